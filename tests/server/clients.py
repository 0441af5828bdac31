#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The official clients against a running koho: PyPI's `openai` and `anthropic`, and curl.

  python3 -m venv DIR && DIR/bin/pip install openai anthropic
  tests/server/clients.py --venv DIR                       starts build/release/src/app/koho serve --model models/tiny
  tests/server/clients.py --venv DIR --url http://HOST:PORT  uses a server that runs already

Needs PyPI, so run.py --test does not run it; the C++ tests of src/api hold the same shapes without the clients.
"""
import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from serve_process import server

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = 64  # tokens that the prefix cache keeps together
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "description": "The city."}},
           "required": ["city"]}
SEARCH = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather in a city.",
                                                "parameters": WEATHER}},
              {"type": "function", "function": {"name": "web_search", "description": "Search the web.",
                                                "parameters": SEARCH}}]
RESPONSES_TOOLS = [{"type": "function", **tool["function"]} for tool in CHAT_TOOLS]
MESSAGES_TOOLS = [{"name": tool["function"]["name"], "description": tool["function"]["description"],
                   "input_schema": tool["function"]["parameters"]} for tool in CHAT_TOOLS]
QUESTION = "What is the weather in Lisbon?"
RESULT = '{"temperature": 24, "condition": "sunny"}'
ANSWER = "The weather in Lisbon is sunny with 24 degrees."
URL = ""


def user(text):
    return {"role": "user", "content": text}


def common(a, b):
    """The length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def pages(shared):
    """Tokens that must come from the cache when a prompt shares `shared` with what was computed."""
    return PAGE * ((shared - 1) // PAGE)


class OpenAi(unittest.TestCase):
    def setUp(self):
        import openai
        self.error = openai
        self.client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
        self.model = self.client.models.list().data[0].id

    def chat(self, text, thinking=False, **more):
        extra = {"enable_thinking": thinking, **more.pop("extra", {})}
        return self.client.chat.completions.create(
            model=self.model, messages=[user(text)] if isinstance(text, str) else text, temperature=0,
            extra_body=extra, **more)

    def test_models(self):
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)

    def test_chat(self):
        answer = self.chat("What is 37 + 48?", max_tokens=64)
        self.assertIn("85", answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertIsNotNone(answer.usage.prompt_tokens_details.cached_tokens)

    def test_stream_is_the_answer(self):
        whole = self.chat("List the days of the week.", max_tokens=64).choices[0].message.content
        chunks = list(self.chat("List the days of the week.", max_tokens=64, stream=True,
                                stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole)
        self.assertEqual([c.usage for c in chunks[:-1]], [None] * (len(chunks) - 1))
        self.assertEqual(chunks[-1].choices, [])
        self.assertGreater(chunks[-1].usage.completion_tokens, 0)

    def test_thinking_has_both_names(self):
        message = self.chat("Add 68 and 57.", thinking=True, max_tokens=96).choices[0].message
        self.assertIn("125", message.content)
        self.assertTrue(message.reasoning_content)
        self.assertEqual(message.reasoning_content, message.reasoning)
        deltas = [c.choices[0].delta for c in self.chat("Add 68 and 57.", thinking=True, max_tokens=96, stream=True)]
        streamed = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
        self.assertEqual(streamed, message.reasoning_content)

    def test_tools(self):
        first = self.chat(QUESTION, tools=CHAT_TOOLS, max_tokens=96).choices[0]
        self.assertEqual(first.finish_reason, "tool_calls")
        call = first.message.tool_calls[0]
        self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"city": "Lisbon"}))
        second = self.chat([user(QUESTION), first.message.model_dump(exclude_none=True),
                            {"role": "tool", "tool_call_id": call.id, "content": RESULT}],
                           tools=CHAT_TOOLS, max_tokens=96)
        self.assertEqual(second.choices[0].message.content, ANSWER)

    def test_tools_streamed(self):
        name, arguments = "", ""
        for chunk in self.chat(QUESTION, tools=CHAT_TOOLS, max_tokens=96, stream=True):
            for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
        self.assertEqual((name, json.loads(arguments)), ("get_weather", {"city": "Lisbon"}))

    def test_logprobs_and_n(self):
        answer = self.chat("What is the capital of France?", max_tokens=16, logprobs=True, top_logprobs=3, n=2)
        self.assertEqual(len(answer.choices), 2)
        for choice in answer.choices:
            self.assertIn("Paris", choice.message.content)
            entries = choice.logprobs.content
            self.assertTrue(all(len(e.top_logprobs) == 3 and e.logprob <= 0 for e in entries))
            self.assertEqual(entries[0].token, entries[0].top_logprobs[0].token, "greedy takes the likeliest")

    def test_completions(self):
        prompt = "Once upon a time there was an owl named Olga who lived in a small village. One night"
        answer = self.client.completions.create(model=self.model, prompt=[prompt, prompt], max_tokens=24, temperature=0)
        self.assertEqual(len(answer.choices), 2)
        self.assertEqual(answer.choices[0].text, answer.choices[1].text)
        streamed = "".join(c.choices[0].text for c in self.client.completions.create(
            model=self.model, prompt=prompt, max_tokens=24, temperature=0, stream=True) if c.choices)
        self.assertEqual(streamed, answer.choices[0].text)

    def test_echo_with_logprobs_as_lm_eval_uses_them(self):
        prompt = "Once upon a time there was an owl named Olga."
        answer = self.client.completions.create(model=self.model, prompt=prompt, echo=True, logprobs=1, max_tokens=0,
                                                temperature=0)
        log = answer.choices[0].logprobs
        self.assertEqual(answer.choices[0].text, prompt)
        self.assertEqual("".join(log.tokens), prompt)
        self.assertIsNone(log.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in log.token_logprobs[1:]))
        self.assertEqual(log.text_offset[0], 0)
        self.assertEqual(len(log.tokens), len(log.token_logprobs))

    def test_control_tokens_in_text_stay_text(self):
        a = self.chat("<|user|>", max_tokens=1).usage.prompt_tokens
        b = self.chat("x", max_tokens=1).usage.prompt_tokens
        self.assertGreater(a, b, "one control token would be as long as one letter")

    def test_history_comes_from_the_cache(self):
        """What the server sampled comes back as the very ids, also when the client sends it as JSON."""
        messages, before = [{"role": "system", "content": "You are a helpful assistant. " * 20}, user(QUESTION)], []
        for turn in range(4):
            answer = self.chat(messages, thinking=True, tools=CHAT_TOOLS, max_tokens=96,
                               extra={"return_token_ids": True})
            ids = answer.prompt_token_ids
            shared = max((common(ids, old) for old in before), default=0)
            if turn > 0:
                self.assertGreaterEqual(shared, len(before[-1]) - 1, "the answer did not come back as it was sampled")
                self.assertGreaterEqual(answer.usage.prompt_tokens_details.cached_tokens, pages(shared))
            before.append(ids + answer.choices[0].token_ids)
            message = answer.choices[0].message.model_dump(exclude_none=True)
            messages.append({k: message[k] for k in ("role", "content", "reasoning_content", "tool_calls")
                             if k in message})
            if message.get("tool_calls"):
                messages += [{"role": "tool", "tool_call_id": call["id"], "content": RESULT}
                             for call in message["tool_calls"]]
            else:
                messages.append(user("What is the weather in Rome?"))

    def test_responses(self):
        answer = self.client.responses.create(model=self.model, input="What is 37 + 48?", temperature=0,
                                              reasoning={"effort": "none"}, max_output_tokens=64)
        self.assertIn("85", answer.output_text)
        self.assertEqual(answer.status, "completed")
        self.assertGreater(answer.usage.input_tokens, 0)
        self.assertIsNotNone(answer.usage.input_tokens_details.cached_tokens)

    def test_responses_stream(self):
        events = list(self.client.responses.create(model=self.model, input="Add 68 and 57.", temperature=0,
                                                   max_output_tokens=96, stream=True))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        self.assertEqual((events[0].type, events[-1].type), ("response.created", "response.completed"))
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertIn("125", text)
        self.assertEqual(text, events[-1].response.output_text)
        self.assertTrue(any(e.type == "response.reasoning_text.delta" for e in events))

    def test_responses_tools(self):
        """As coding agents do it: items sent back, reasoning sealed."""
        more = dict(model=self.model, temperature=0, tools=RESPONSES_TOOLS, max_output_tokens=96, store=False,
                    include=["reasoning.encrypted_content"])
        with self.client.responses.stream(input=QUESTION, **more) as stream:
            kinds = [event.type for event in stream]
            first = stream.get_final_response()
        self.assertIn("response.function_call_arguments.delta", kinds)
        call = next(item for item in first.output if item.type == "function_call")
        self.assertEqual((call.name, json.loads(call.arguments)), ("get_weather", {"city": "Lisbon"}))
        items = [user(QUESTION)]
        for item in first.output:
            item = item.model_dump(exclude_none=True)
            if item["type"] == "reasoning":
                del item["content"]
            item.pop("parsed_arguments", None)
            items.append(item)
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULT})
        second = self.client.responses.create(input=items, **more)
        self.assertEqual(second.output_text, ANSWER)

    def test_errors(self):
        with self.assertRaises(self.error.NotFoundError):
            self.client.chat.completions.create(model="no-such-model", messages=[user("x")])
        with self.assertRaises(self.error.BadRequestError) as caught:
            self.client.chat.completions.create(model=self.model, messages=[user("x")], temperature=9)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(self.error.BadRequestError):
            self.client.responses.create(model=self.model, input="x", previous_response_id="resp_1")


class Batches(unittest.TestCase):
    """OpenAI's files and batches: the server keeps files (--files-dir)."""

    def setUp(self):
        import openai
        self.error = openai
        self.client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)

    def line(self, custom_id, **body):
        return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions",
                           "body": {"model": "tiny", "temperature": 0, "enable_thinking": False, **body}})

    def wait(self, batch):
        for _ in range(600):
            batch = self.client.batches.retrieve(batch.id)
            if batch.status in ("completed", "failed", "expired", "cancelled"):
                return batch
            time.sleep(0.1)
        self.fail(batch)

    def upload(self, *lines):
        return self.client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch",
                                        expires_after={"anchor": "created_at", "seconds": 3600})

    def start(self, file):
        return self.client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h",
                                          metadata={"of": "clients.py"})

    def test_a_batch(self):
        lines = [self.line(f"r{i}", messages=[user(f"What is {i} + 2?")], max_tokens=20) for i in range(20)]
        lines.append(self.line("wrong", messages=[user("Hi")], top_p=5))
        file = self.upload(*lines)
        self.assertEqual((file.purpose, file.filename, file.status), ("batch", "in.jsonl", "processed"))
        self.assertEqual(file.expires_at, file.created_at + 3600)
        self.assertEqual(self.client.files.retrieve(file.id).bytes, file.bytes)
        self.assertEqual(self.client.files.content(file.id).text, "\n".join(lines))
        self.assertIn(file.id, [one.id for one in self.client.files.list(purpose="batch")])
        batch = self.wait(self.start(file))
        self.assertEqual(batch.status, "completed", batch)
        counts = batch.request_counts
        self.assertEqual((counts.total, counts.completed, counts.failed), (21, 20, 1))
        self.assertEqual(batch.metadata, {"of": "clients.py"})
        answers = [json.loads(one) for one in self.client.files.content(batch.output_file_id).text.splitlines()]
        self.assertEqual({one["custom_id"] for one in answers}, {f"r{i}" for i in range(20)})
        for one in answers:
            self.assertEqual(one["response"]["body"]["object"], "chat.completion")
        errors = [json.loads(one) for one in self.client.files.content(batch.error_file_id).text.splitlines()]
        self.assertEqual([one["custom_id"] for one in errors], ["wrong"])
        self.assertEqual(errors[0]["response"]["status_code"], 400)
        self.assertIn(batch.id, [one.id for one in self.client.batches.list(limit=3)])
        self.assertTrue(self.client.files.delete(file.id).deleted)
        with self.assertRaises(self.error.NotFoundError):
            self.client.files.retrieve(file.id)

    def test_pages_of_a_list(self):
        made = [self.upload(self.line(f"p{i}", messages=[user("Hi")])).id for i in range(5)]
        listed = [one.id for one in self.client.files.list(limit=2)]  # fetches every page
        self.assertEqual(len(listed), len(set(listed)))
        self.assertTrue(set(made) <= set(listed))

    def test_a_wrong_file_fails(self):
        batch = self.wait(self.start(self.upload(self.line("a", messages=[user("Hi")]), "no json")))
        self.assertEqual(batch.status, "failed")
        self.assertEqual((batch.errors.data[0].line, batch.errors.data[0].code), (2, "invalid_json_line"))

    def test_cancel(self):
        batch = self.start(self.upload(*(self.line(f"c{i}", messages=[user("Count.")], max_tokens=500, ignore_eos=True)
                                         for i in range(100))))
        self.assertIn(self.client.batches.cancel(batch.id).status, ("cancelling", "cancelled"))
        batch = self.wait(batch)
        self.assertEqual(batch.status, "cancelled")
        self.assertEqual(batch.request_counts.completed + batch.request_counts.failed, 100)

    def test_refusals(self):
        with self.assertRaises(self.error.BadRequestError):
            self.client.files.create(file=b"{}", purpose="assistants")
        with self.assertRaises(self.error.NotFoundError):
            self.client.batches.create(input_file_id="file-none", endpoint="/v1/completions", completion_window="24h")
        with self.assertRaises(self.error.BadRequestError):
            self.client.batches.create(input_file_id="file-none", endpoint="/v1/embeddings", completion_window="24h")
        with self.assertRaises(self.error.NotFoundError):
            self.client.batches.retrieve("batch_none")


class Anthropic(unittest.TestCase):
    def setUp(self):
        import anthropic
        self.error = anthropic
        self.client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)

    def ask(self, text, method=None, **more):
        more.setdefault("max_tokens", 96)
        return (method or self.client.messages.create)(
            model="claude-opus-4-5", messages=[user(text)] if isinstance(text, str) else text,
            extra_body={"temperature": 0}, **more)  # newer clients have no argument for it

    def test_models(self):
        page = self.client.models.list()
        self.assertFalse(page.has_more)
        first = page.data[0]
        self.assertEqual((first.type, first.display_name, first.created_at.year >= 2026), ("model", first.id, True))
        self.assertEqual(self.client.models.retrieve("claude-opus-4-5").id, "claude-opus-4-5")
        with self.assertRaises(self.error.NotFoundError) as refused:
            self.client.models.retrieve("nothing")
        self.assertEqual(refused.exception.body["request_id"], refused.exception.request_id)

    def test_message(self):
        answer = self.ask("What is 37 + 48?")
        self.assertEqual([b.type for b in answer.content], ["text"])
        self.assertIn("85", answer.content[0].text)
        self.assertEqual((answer.stop_reason, answer.model), ("end_turn", "claude-opus-4-5"))
        self.assertGreater(answer.usage.output_tokens, 0)

    def test_stream_is_the_message(self):
        thinking = {"type": "enabled", "budget_tokens": 1024}
        whole = self.ask("Add 68 and 57.", thinking=thinking)
        self.assertEqual([b.type for b in whole.content], ["thinking", "text"])
        with self.ask("Add 68 and 57.", self.client.messages.stream, thinking=thinking) as stream:
            types = [event.type for event in stream]
            final = stream.get_final_message()
        self.assertEqual([b.model_dump(include={"type", "text", "thinking"}) for b in final.content],
                         [b.model_dump(include={"type", "text", "thinking"}) for b in whole.content])
        self.assertIn("signature", types)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        self.assertEqual(final.stop_reason, "end_turn")

    def test_tools(self):
        with self.ask(QUESTION, self.client.messages.stream, tools=MESSAGES_TOOLS) as stream:
            partial = [e.partial_json for e in stream if e.type == "input_json"]
            first = stream.get_final_message()
        call = first.content[-1]
        self.assertEqual((first.stop_reason, call.type, call.name, call.input),
                         ("tool_use", "tool_use", "get_weather", {"city": "Lisbon"}))
        self.assertGreater(len(partial), 1, "arguments must come as they grow")
        self.assertTrue(call.id.startswith("toolu_"))
        second = self.ask([user(QUESTION), {"role": "assistant", "content": [b.model_dump() for b in first.content]},
                           {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                                         "content": [{"type": "text", "text": RESULT}]}]}],
                          tools=MESSAGES_TOOLS)
        self.assertEqual(second.content[-1].text, ANSWER)

    def test_count_tokens(self):
        counted = self.client.messages.count_tokens(model="claude-x", messages=[user(QUESTION)], tools=MESSAGES_TOOLS)
        usage = self.ask(QUESTION, tools=MESSAGES_TOOLS).usage
        self.assertEqual(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_stop_and_length(self):
        cut = self.ask("List the days of the week.", max_tokens=2)
        self.assertEqual(cut.stop_reason, "max_tokens")
        stopped = self.ask("List the days of the week.", stop_sequences=["Wednesday"])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", "Wednesday"))
        self.assertNotIn("Wednesday", stopped.content[0].text)

    def test_errors(self):
        with self.assertRaises(self.error.NotFoundError):
            self.client.messages.create(model="gpt-4", max_tokens=1, messages=[user("x")])
        with self.assertRaisesRegex(self.error.BadRequestError, r"prompt is too long: \d+ tokens > \d+ maximum"):
            self.ask("word " * 300_000, max_tokens=10)

    def test_claude_code_session(self):
        """A billing header that changes with every request, a long system prompt, tools, thinking, tool results."""
        prompt = "You are an interactive tool that helps with questions. Answer briefly. Use the tools. " * 30
        messages, before, calls = [user([{"type": "text", "text": QUESTION,
                                          "cache_control": {"type": "ephemeral"}}])], 0, 0
        for turn in range(6):
            system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.9{turn}; cch={turn:05x};"},
                      {"type": "text", "text": "You are Claude Code."},
                      {"type": "text", "text": prompt, "cache_control": {"type": "ephemeral"}}]
            with self.client.beta.messages.stream(model="claude-sonnet-4-5", max_tokens=128,
                                                  extra_body={"temperature": 0}, system=system, messages=messages, tools=MESSAGES_TOOLS,
                                                  thinking={"type": "enabled", "budget_tokens": 1024},
                                                  metadata={"user_id": "u"}) as stream:
                answer = stream.get_final_message()
            usage = answer.usage
            total = usage.input_tokens + usage.cache_read_input_tokens
            if turn > 0:
                self.assertGreater(total, before)
                self.assertGreaterEqual(usage.cache_read_input_tokens, pages(before), f"turn {turn}")
            # The prompt and all of the answer but its end token begin the next prompt.
            before = total + usage.output_tokens - 1
            messages.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in answer.content]})
            uses = [b for b in answer.content if b.type == "tool_use"]
            calls += len(uses)
            messages.append(user([{"type": "tool_result", "tool_use_id": b.id, "content": RESULT} for b in uses]
                                 or [{"type": "text", "text": "What is the weather in Rome?"}]))
        self.assertGreater(calls, 0, "the session had no tool call")


class Curl(unittest.TestCase):
    def curl(self, path, body=None):
        command = ["curl", "-sS", "-N", "-w", "\n%{http_code}", URL + path]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        out, _, status = subprocess.run(command, check=True, capture_output=True, text=True).stdout.rpartition("\n")
        return out, int(status)

    def test_stream_ends_with_done(self):
        out, status = self.curl("/v1/chat/completions", {"model": "tiny", "stream": True, "max_tokens": 8,
                                                         "messages": [user("What is 2 + 2?")]})
        self.assertEqual(status, 200)
        self.assertTrue(out.rstrip().endswith("data: [DONE]"), out[-200:])

    def test_message_events(self):
        out, status = self.curl("/v1/messages?beta=true", {"model": "claude-x", "stream": True, "max_tokens": 8,
                                                           "messages": [user("What is 2 + 2?")]})
        self.assertEqual(status, 200)
        names = [line[7:] for line in out.splitlines() if line.startswith("event: ")]
        self.assertEqual(names[:3], ["message_start", "ping", "content_block_start"])
        self.assertEqual(names[-3:], ["content_block_stop", "message_delta", "message_stop"])

    def test_error_bodies(self):
        out, status = self.curl("/v1/messages", {"model": "claude-x", "messages": [user("x")]})
        self.assertEqual((status, json.loads(out)["error"]),
                         (400, {"type": "invalid_request_error", "message": "max_tokens: Field required"}))
        out, status = self.curl("/v1/chat/completions", {"model": 7, "messages": [user("x")]})
        self.assertEqual((status, json.loads(out)["error"]["param"]), (400, "model"))

    def test_cache_explainer(self):
        text = "Tell me a short story about a fox, a forest and a key. " * 8
        ids = []
        for end in ("One.", "Two."):
            out, _ = self.curl("/v1/chat/completions", {"model": "tiny", "max_tokens": 4,
                                                        "messages": [user(text + end)]})
            ids.append(json.loads(out)["id"])
        out, status = self.curl("/debug/cache/" + ids[1])
        self.assertEqual(status, 200, out)
        report = json.loads(out)
        self.assertGreater(report["longest_shared_prefix"], PAGE)
        self.assertIn("Two", report["first_difference"]["here"]["text"])
        self.assertIn("One", report["first_difference"]["there"]["text"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", required=True, help="a virtual environment with openai and anthropic")
    parser.add_argument("--url", help="of a server that runs already")
    parser.add_argument("--koho", default=str(ROOT / "build/release/src/app/koho"))
    parser.add_argument("--model", default=str(ROOT / "models/tiny"))
    args, rest = parser.parse_known_args()
    python = pathlib.Path(args.venv) / "bin/python"
    if pathlib.Path(sys.prefix).resolve() != pathlib.Path(args.venv).resolve():
        os.execv(python, [str(python), *sys.argv])
    import anthropic
    import openai
    print(f"openai {openai.__version__}, anthropic {anthropic.__version__}, Python {sys.version.split()[0]}")
    global URL
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(tempfile.TemporaryDirectory())
        URL = args.url or stack.enter_context(server(args.koho, args.model, "--files-dir", files))
        passed = unittest.main(argv=[sys.argv[0], *rest], exit=False, verbosity=2).result.wasSuccessful()
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
