#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random chat conversations, rendered by jinja2 under the settings transformers uses.

golden: writes tests/chat/data/generated_cases.jsonl, which a C++ test compares with koho.
differ: renders fresh seeds with jinja2 and with `koho render` and reports the first difference.

Needs PyPI's jinja2. Examples:
  tools/make_chat_cases.py golden --seed 1 --count 520 > tests/chat/data/generated_cases.jsonl
  tools/make_chat_cases.py differ --koho build/release/src/app/koho --seed 100 --count 20000
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "chat" / "data"
STYLES = ("glm-4.7", "glm-4.6")

SPACES = list(" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2009\u200a\u2028\u2029\u202f\u205f\u3000")
NEAR_SPACES = ["\u180e", "\u200b", "\ufeff", "\u2060", "\x00", "\x7f", "\x80", "\u0084", "\u0086"]
TAGS = ["<think>", "</think>", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>", "[gMASK]", "<sop>", "/nothink",
        "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_response>",
        "</tool_response>", "<|endoftext|>", "<think", "</think", "think>", "<tools>", "{{ x }}", "{% if %}", "&amp;", "<", ">"]
WORDS = ["a", "Hi", "weather?", "The capital is Paris.", "北京", "naïve", "кохо", "🎉", "👩‍👩‍👧", "e\u0301", "\U0001d518", "שלום", "'", '"',
         "it's", '"q"', "\\", "\\n", "a/b", "C:\\x", "{\"a\": 1}", "[1, 2]", "true", "null", "None", "12345", "-0.5", "\u2028x",
         "\ue000", "\U000e0001", "\U0010ffff", "\u0378", "\xad", "ſ", "x" * 40]


def env():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    return made


class Generator:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def chance(self, p):
        return self.r.random() < p

    def text(self, pieces=6):
        r = self.r
        out = []
        for _ in range(r.randint(0, pieces)):
            kind = r.random()
            if kind < 0.25:
                out.append("".join(r.choices(SPACES, k=r.randint(1, 3))))
            elif kind < 0.30:
                out.append(r.choice(NEAR_SPACES))
            elif kind < 0.45:
                out.append(r.choice(TAGS))
            elif kind < 0.55:
                out.append("\n" * r.randint(1, 3))
            elif kind < 0.60:
                out.append(self.any_character())
            else:
                out.append(r.choice(WORDS))
        return "".join(out)

    def any_character(self):
        while True:
            code = self.r.choice([self.r.randrange(0x110000), self.r.randrange(0x3000), self.r.randrange(0x100)])
            if not 0xD800 <= code < 0xE000:
                return chr(code)

    def number(self):
        r = self.r
        kind = r.randrange(9)
        if kind == 0:
            return r.randint(-5, 20)
        if kind == 1:
            return r.choice([1e16, 1e15, 123456789012345680.0, 1e-5, 1e-4, 0.0001, 1.0, -0.0, 0.0, 1e22, 1e100, 5e-324,
                             1.7976931348623157e308, 0.1, 1 / 3, 100.0, 9007199254740993.0, 1e21, 1.5e-7, 2.5e16])
        if kind == 2:
            return r.choice([2 ** 63, 2 ** 64, -2 ** 63, -2 ** 63 - 1, 2 ** 64 - 1, 10 ** 30, -10 ** 300, 0])
        if kind == 3:
            return r.uniform(-1, 1) * 10.0 ** r.randint(-30, 30)
        if kind == 4:
            return round(r.uniform(-1000, 1000), r.randint(0, 6))
        if kind == 5:
            return r.getrandbits(r.randint(1, 80))
        if kind == 6:
            return float(r.getrandbits(r.randint(1, 70)))
        return r.randint(-10 ** 6, 10 ** 6)

    def value(self, depth=0):
        r = self.r
        kind = r.random()
        if depth < 3 and kind < 0.15:
            return [self.value(depth + 1) for _ in range(r.randint(0, 3))]
        if depth < 3 and kind < 0.35:
            return self.object(depth + 1)
        if kind < 0.55:
            return self.number()
        if kind < 0.65:
            return r.choice([True, False, None])
        return self.text(4)

    def key(self):
        r = self.r
        kind = r.random()
        if kind < 0.6:
            return r.choice(["city", "days", "path", "query", "items", "keys", "type", "text", "output", "name", "get", "values", "x"])
        return self.text(3)

    def object(self, depth=0):
        return {self.key(): self.value(depth) for _ in range(self.r.randint(0, 4))}

    def part(self):
        r = self.r
        kind = r.random()
        if kind < 0.55:
            return {"type": "text", "text": self.text()}
        if kind < 0.65:
            return self.text()
        if kind < 0.72:
            return {"type": "image_url", "image_url": {"url": self.text(2)}}
        if kind < 0.78:
            return {"type": "text"}
        if kind < 0.84:
            return {"type": "text", "text": self.value()}
        if kind < 0.90:
            return {"text": self.text(2)}
        return self.value()

    def content(self, odd=True):
        r = self.r
        kind = r.random()
        if kind < 0.7 or not odd:
            return self.text()
        if kind < 0.9:
            return [self.part() for _ in range(r.randint(0, 4))]
        if kind < 0.95:
            return None
        return self.value()

    def tool_content(self):
        r = self.r
        kind = r.random()
        if kind < 0.7:
            return self.text()
        if kind < 0.97:
            return [{"output": self.value()} if self.chance(0.4) else self.part() for _ in range(r.randint(0, 4))]
        return r.choice([None, 3, True])

    def tool_call(self):
        body = {"name": self.r.choice(["get_weather", "f", "now", self.text(2)])}
        kind = self.r.random()
        if kind < 0.9:
            body["arguments"] = self.object()
        elif kind < 0.95:
            body["arguments"] = {}
        if "arguments" in body and self.chance(0.1):
            body = dict(reversed(body.items()))
        if self.chance(0.2):
            return body
        call = {"id": "call_%d" % self.r.randrange(100), "type": "function", "function": body}
        return call

    def message(self):
        r = self.r
        kind = r.random()
        if kind < 0.35:
            role = "user"
        elif kind < 0.68:
            role = "assistant"
        elif kind < 0.86:
            role = "tool"
        elif kind < 0.96:
            role = "system"
        else:
            role = r.choice(["developer", "User", "", "function"])
        message = {"role": role}
        if role == "tool":
            message["content"] = self.tool_content()
            if self.chance(0.5):
                message["tool_call_id"] = "call_1"
        elif not self.chance(0.04):
            message["content"] = self.content()
        if role == "assistant":
            if self.chance(0.4):
                message["reasoning_content"] = r.choice([self.text(), self.text(), "", " \n", None, self.value()])
            elif self.chance(0.3) and isinstance(message.get("content"), str):
                message["content"] = (r.choice(["", "<think>", "\n<think>\n", "<think>x<think>"]) + self.text() + r.choice(["\n</think>\n\n", "</think>"]) +
                                      self.text())
            if self.chance(0.45):
                message["tool_calls"] = [self.tool_call() for _ in range(r.randint(0, 3))]
            elif self.chance(0.1):
                message["tool_calls"] = None
            if self.chance(0.05):
                message["reasoning"] = self.text()
        if self.chance(0.1):
            message["name"] = "n"
        if self.chance(0.1):
            message = dict(reversed(message.items()))
        return message

    def tool(self):
        r = self.r
        function = {"name": r.choice(["get_weather", "search", self.text(2)])}
        if self.chance(0.8):
            function["description"] = self.text()
        if self.chance(0.8):
            function["parameters"] = {"type": "object", "properties": {self.key(): {"type": r.choice(
                ["string", "integer", ["string", "null"]]), "default": self.value()} for _ in range(r.randint(0, 3))}}
        kind = r.random()
        if kind < 0.7:
            return {"type": "function", "function": function}
        if kind < 0.9:
            return {"type": "function", **function, "strict": True}
        return self.value()

    def conversation(self):
        r = self.r
        request = {"messages": [self.message() for _ in range(r.choice([0, 1, 1, 2, 3, 4, 5, 6, 7]))]}
        if self.chance(0.35):
            request["tools"] = r.choice([None, [], [self.tool() for _ in range(r.randint(1, 3))],
                                         [self.tool() for _ in range(r.randint(1, 2))]])
        for flag in ("add_generation_prompt", "enable_thinking", "clear_thinking"):
            if self.chance(0.6):
                request[flag] = r.choice([True, False, True, False, None])
        return request


def rendering(template, request):
    """The prompt text; None where the template raises. Missing arguments are {} as koho reads them."""
    request = json.loads(json.dumps(request))
    for message in request["messages"]:
        for call in message.get("tool_calls") or []:
            body = call.get("function") or call
            if body.get("arguments") is None:
                body["arguments"] = {}
    try:
        return template.render(**request)
    except TypeError:
        return None


def cases(seed, count):
    environment = env()
    templates = {style: environment.from_string((DATA / f"{style}.jinja").read_text()) for style in STYLES}
    for index in range(count):
        request = Generator(seed * 1_000_003 + index).conversation()
        yield {"input": request, **{style: rendering(templates[style], request) for style in STYLES}}


def golden(arguments):
    for case in cases(arguments.seed, arguments.count):
        print(json.dumps(case, ensure_ascii=False, separators=(",", ":")))


def differ(arguments):
    """Runs koho once over the requests that jinja2 renders, then once a request that it refuses."""
    everything = list(cases(arguments.seed, arguments.count))
    differences = 0
    refused = 0
    for style in STYLES:
        command = [arguments.koho, "render", "--chat-template", style]
        good = [case for case in everything if case[style] is not None]
        lines = "".join(json.dumps(case["input"], ensure_ascii=bool(i % 2)) + "\n" for i, case in enumerate(good))
        ran = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        got = ran.stdout.decode().split("\n")[:-1]
        for case, line in zip(good, got):
            if json.dumps(case[style], ensure_ascii=False) != line:
                differences += 1
                if differences <= 3:
                    print(f"{style} differs:\n  input {json.dumps(case['input'])}\n  jinja {json.dumps(case[style])}\n  koho  {line}")
        if ran.returncode != 0 or len(got) != len(good):
            print(f"{style}: koho stopped after {len(got)} of {len(good)} requests: {ran.stderr.decode()}")
            if len(got) < len(good):
                print(f"  input {json.dumps(good[len(got)]['input'])}")
            return 1
        for case in [case for case in everything if case[style] is None][:200]:
            ran = subprocess.run(command, input=json.dumps(case["input"]).encode(), capture_output=True)
            refused += 1
            if ran.returncode == 0:
                differences += 1
                print(f"{style}: koho renders what jinja2 refuses: {json.dumps(case['input'])}")
    print(f"{arguments.count} conversations, {len(STYLES)} templates, {refused} refusals tried, {differences} differences")
    return 1 if differences else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["golden", "differ"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=520)
    parser.add_argument("--koho", default="build/koho", help="the program, for differ")
    arguments = parser.parse_args()
    return golden(arguments) if arguments.mode == "golden" else differ(arguments)


if __name__ == "__main__":
    sys.exit(main())
