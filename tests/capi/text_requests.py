# SPDX-License-Identifier: Apache-2.0
"""Chats and text through python/koho; test_koho.py runs these tests."""

import asyncio
import functools
import os
import pathlib
import pickle
import threading
import time
import unittest

import koho
from koho import EngineError, Info

MODEL = pathlib.Path(__file__).resolve().parent.parent.parent / "models" / "tiny"
Engine = functools.partial(koho.Engine, num_gpus=int(os.environ.get("KOHO_TEST_GPUS", "0")))


class Text(unittest.TestCase):
    """The endpoints of `koho serve` in this process."""

    @classmethod
    def setUpClass(cls):
        cls.engine = Engine(MODEL)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def test_a_chat_answers_and_its_message_goes_on(self):
        answer = self.engine.chat("What is the capital of France?", temperature=0, max_tokens=64)
        self.assertIn("Paris", answer.text)
        self.assertEqual((answer.finish_reason, str(answer)), ("stop", answer.text))
        self.assertTrue(answer.reasoning)
        turns = [{"role": "user", "content": "What is the capital of France?"}, answer.message,
                 {"role": "user", "content": "And of Italy?"}]
        self.assertGreater(self.engine.chat(turns, temperature=0).usage["prompt_tokens"], answer.usage["prompt_tokens"])

    def test_a_stream_has_the_text_of_the_whole_answer(self):
        options = {"temperature": 0, "max_tokens": 64, "enable_thinking": False}
        pieces = list(self.engine.chat_stream("What is 2 + 3?", **options))
        self.assertGreater(len(pieces), 1)
        self.assertEqual("".join(pieces), self.engine.chat("What is 2 + 3?", **options).text)

    def test_text_goes_on(self):
        whole = self.engine.request("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0,
                                                        "return_token_ids": True})["choices"][0]
        self.assertEqual(self.engine.complete("Once upon a time", max_tokens=8, temperature=0), whole["text"])
        self.assertEqual(len(whole["token_ids"]), 8)
        counted = self.engine.request("/tokenize", {"prompt": "Once upon a time"})
        self.assertEqual(counted["count"], len(counted["tokens"]))

    def test_what_is_wrong_names_its_field(self):
        for body, field in (({"messages": []}, "messages"), ({"messages": [{"role": "user", "content": "a"}], "top_p": 3}, "top_p")):
            with self.assertRaises(koho.RequestRefused) as refused:
                self.engine.request("/v1/chat/completions", body)
            self.assertEqual((refused.exception.status, refused.exception.error["param"]), (400, field))
            with self.assertRaises(koho.RequestRefused):
                list(self.engine.request_stream("/v1/chat/completions", body))
        with self.assertRaises(EngineError) as missing:
            self.engine.request("/nowhere", {})
        self.assertEqual(missing.exception.name, "not_found")

    def test_errors_pass_between_processes(self):
        refused = pickle.loads(pickle.dumps(koho.RequestRefused(429, {"message": "full"})))
        self.assertEqual((refused.status, refused.error, str(refused)), (429, {"message": "full"}, "full"))
        failed = pickle.loads(pickle.dumps(EngineError("gone", -10)))
        self.assertEqual((failed.name, failed.code, str(failed)), ("device_error", -10, "gone"))

    def test_leaving_a_stream_cancels_its_request(self):
        pieces = self.engine.chat_stream("Hello", ignore_eos=True, max_tokens=100_000, enable_thinking=False)
        next(pieces)
        pieces.close()
        deadline = time.monotonic() + 120
        while self.engine.info(Info.REQUESTS_LIVE) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.engine.info(Info.REQUESTS_LIVE), 0)

    def test_asyncio_computes_requests_together(self):
        async def ask():
            chats = koho.AsyncEngine(self.engine)
            answers = await asyncio.gather(*(chats.chat(f"What is {n} + 3?", temperature=0, max_tokens=64) for n in range(8)))
            streamed = "".join([piece async for piece in chats.chat_stream("What is 1 + 3?", temperature=0, max_tokens=64)])
            return answers, streamed
        answers, streamed = asyncio.run(ask())
        self.assertEqual(streamed, answers[1].text)
        self.assertEqual([answer.text for answer in answers],
                         [self.engine.chat(f"What is {n} + 3?", temperature=0, max_tokens=64).text for n in range(8)])

    def test_asyncio_waits_for_more_requests_than_its_default_threads(self):
        async def ask(engine):
            chats = koho.AsyncEngine(engine)

            def requests(max_tokens):
                return [asyncio.ensure_future(chats.complete(f"{n}", ignore_eos=True, max_tokens=max_tokens, temperature=0)) for n in range(48)]
            endless = requests(100_000)
            deadline = time.monotonic() + 300
            while engine.info(Info.LARGEST_BATCH) <= 32 and time.monotonic() < deadline:  # asyncio.to_thread() has at most 32 threads
                await asyncio.sleep(0.01)
            for task in endless:
                task.cancel()
            await asyncio.wait(endless)
            await asyncio.gather(*requests(4))
        with Engine(MODEL, max_batch=48) as engine:
            asyncio.run(ask(engine))
            self.assertGreater(engine.info(Info.LARGEST_BATCH), 32)

    def test_a_cancelled_task_cancels_its_request(self):
        endless = {"ignore_eos": True, "max_tokens": 100_000, "enable_thinking": False}

        async def stream(chats):
            async for _ in chats.chat_stream("Hello", **endless):
                pass

        async def leave():
            chats = koho.AsyncEngine(self.engine)
            for work in (chats.chat("Hello", **endless), stream(chats)):
                task = asyncio.ensure_future(work)
                while not self.engine.info(Info.REQUESTS_LIVE):
                    await asyncio.sleep(0.01)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                deadline = time.monotonic() + 120
                while self.engine.info(Info.REQUESTS_LIVE) and time.monotonic() < deadline:
                    await asyncio.sleep(0.01)
                self.assertEqual(self.engine.info(Info.REQUESTS_LIVE), 0)
        asyncio.run(leave())

    def test_a_closed_engine_ends_its_readers(self):
        engine = Engine(MODEL)
        pieces = engine.chat_stream("Hello", ignore_eos=True, max_tokens=100_000, enable_thinking=False)
        next(pieces)
        ended = []

        def read():
            try:
                for _ in pieces:
                    pass
            except (EngineError, koho.RequestRefused) as error:
                ended.append(error)
        reader = threading.Thread(target=read)
        reader.start()
        engine.close()
        reader.join(20)
        self.assertFalse(reader.is_alive())
        self.assertEqual(len(ended), 1)
