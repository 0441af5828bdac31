# SPDX-License-Identifier: Apache-2.0
"""koho.ray without Ray: its actors as plain objects, their deaths as exceptions; test_koho.py runs these tests.
tools/ray_check.py kills the real ones."""

import asyncio
import json
import unittest
import unittest.mock

import koho.ray
from koho import EngineError, RequestRefused
from koho.ray import ATTEMPTS, COLUMNS, ChatStage, Frontend, Replica
from text_requests import MODEL

CHAT = "/v1/chat/completions"


class Died(Exception):
    """What stands for Ray's RayActorError."""


class Handle:
    """Replicas behind one handle, as Ray Serve's: request i dies after `deaths[i]` pieces, or not at all (None)."""

    def __init__(self, replica, deaths):
        self.answer = self
        self.asked = 0
        self._replica = replica
        self._deaths = deaths

    def options(self, stream):
        assert stream
        return self

    def remote(self, path, body):
        self.asked += 1
        return Answer(self._replica.answer(path, body), self._deaths[self.asked - 1] if self.asked <= len(self._deaths) else None)


class Answer:
    def __init__(self, pieces, lives):
        self._pieces, self._lives = pieces, lives

    async def __aiter__(self):
        count = 0
        async for piece in self._pieces:
            if count == self._lives:
                raise Died("killed")
            count += 1
            yield piece

    def cancel(self):
        pass


class Ray(unittest.TestCase):
    """The stage of Ray Data and the deployment of Ray Serve."""

    @classmethod
    def setUpClass(cls):
        cls.stage = ChatStage(str(MODEL), {}, {"max_tokens": 12, "enable_thinking": False})
        cls.replica = Replica(str(MODEL), {}, 16)

    @classmethod
    def tearDownClass(cls):
        cls.stage._chats.engine.close()
        cls.replica._engine.close()

    def test_a_batch_has_each_row_in_its_place(self):
        batch = {"id": list(range(40)), "prompt": [f"What is {n} + 3?" for n in range(40)], "seed": [None, 7] * 20}
        answers = asyncio.run(self.stage(batch))
        self.assertEqual(list(answers), [*batch, *COLUMNS])
        self.assertEqual({name: answers[name] for name in batch}, batch)
        self.assertEqual(set(answers["error"]), {""})
        engine = self.stage._chats.engine
        for n in (1, 17, 39):
            alone = engine.chat(f"What is {n} + 3?", max_tokens=12, enable_thinking=False, seed=7)
            self.assertEqual(answers["answer"][n], alone.text)
            self.assertEqual(answers["completion_tokens"][n], alone.usage["completion_tokens"])

    def test_a_batch_computed_again_has_the_same_answers(self):
        batch = {"id": list(range(24)), "messages": [[{"role": "user", "content": "Tell me a story.", "name": None}]] * 24}
        hot = ChatStage.__new__(ChatStage)
        hot._chats, hot._options = self.stage._chats, {"temperature": 2, "max_tokens": 24, "enable_thinking": False}
        first, again = asyncio.run(hot(batch)), asyncio.run(hot({name: values[::-1] for name, values in batch.items()}))
        self.assertEqual(first["answer"], again["answer"][::-1])
        self.assertGreater(len(set(first["answer"])), 12)  # each row by a seed of its own

    def test_a_refused_row_does_not_stop_the_others(self):
        answers = asyncio.run(self.stage({"messages": [[{"role": "bad", "content": "a"}], [{"role": "user", "content": "Hello"}]]}))
        self.assertIn("role", answers["error"][0])
        self.assertEqual((answers["answer"][0], answers["error"][1]), ("", ""))
        self.assertTrue(answers["answer"][1])
        self.assertIn("lacks 'prompt'", asyncio.run(self.stage({"id": [1]}))["error"][0])

    def test_a_busy_engine_is_asked_again_and_a_failed_one_is_no_row_s_fault(self):
        class Refusing:
            def __init__(self, statuses):
                self.statuses = statuses

            async def request(self, path, body):
                status = self.statuses.pop(0)
                if status != 200:
                    raise RequestRefused(status, {"message": f"status {status}"})
                return {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}

        def answer(statuses):
            stage = ChatStage.__new__(ChatStage)
            stage._chats, stage._options = Refusing(statuses), {}
            return asyncio.run(stage({"prompt": ["a"]}))
        with unittest.mock.patch.object(koho.ray, "PAUSE_S", 0):
            self.assertEqual(answer([429, 503, 200])["answer"], ["yes"])
            self.assertEqual(answer([400, 200])["error"], ["status 400"])
            for statuses in ([503] * ATTEMPTS, [500, 200]):
                with self.assertRaises(RequestRefused):
                    answer(statuses)

    def test_a_replica_whose_engine_failed_is_not_healthy(self):
        replica = Replica(str(MODEL), {}, 2)
        replica.check_health()
        replica._engine.close()

        async def ask():
            return [piece async for piece in replica.answer(CHAT, b"{}")]
        with self.assertRaises(EngineError):
            asyncio.run(ask())
        with self.assertRaises(EngineError):
            replica.check_health()

    def ask(self, deaths, stream, path=CHAT, max_tokens=12):
        handle = Handle(self.replica, deaths)
        body = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True,
                "stream": stream}

        async def collect():
            return [piece async for piece in Frontend(handle, "tiny", (Died,)).pieces(path, json.dumps(body).encode())]
        pieces = asyncio.run(collect())
        return b"".join(piece for piece, _ in pieces).decode(), pieces[-1][1], handle.asked

    def test_a_request_goes_to_another_replica_when_its_own_dies(self):
        text, status, asked = self.ask([0, 0], stream=False)
        self.assertEqual((status, asked), (200, 3))
        self.assertEqual(json.loads(text)["choices"][0]["finish_reason"], "length")
        text, status, asked = self.ask([0], stream=True)
        self.assertEqual((status, asked, text.count("data: [DONE]")), (200, 2, 1))

    def test_a_stream_that_had_begun_ends_with_an_error(self):
        text, status, asked = self.ask([1], stream=True, max_tokens=400)  # a GPU has 12 tokens before anyone reads
        self.assertEqual((status, asked), (503, 1))
        self.assertIn("died", json.loads(text.strip().split("\n")[-1].removeprefix("data: "))["error"]["message"])
        self.assertNotIn("[DONE]", text)

    def test_deaths_without_end_are_an_error(self):
        text, status, asked = self.ask([0] * ATTEMPTS, stream=False)
        self.assertEqual((status, asked), (503, ATTEMPTS))
        self.assertIn("died", json.loads(text)["error"]["message"])

    def test_what_the_engine_refuses_passes_through(self):
        text, status, asked = self.ask([], stream=False, path="/v1/nowhere")
        self.assertEqual((status, asked), (404, 1))
        self.assertIn("/v1/nowhere", json.loads(text)["error"]["message"])
