#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random texts through koho's tokenizer and Hugging Face's, random conversations through koho's chat template and the
checkpoint's own in Jinja: any difference is printed, and fails. Needs the Python packages tokenizers and jinja2.

    tools/differential_fuzz.py --texts 1000000 --conversations 20000 --seed 7 [--model models/tiny] [--koho build/koho]
    tools/differential_fuzz.py --texts 10000000 --cores 16 --seconds 500 --record fuzz/record.json

With --cores each process draws with its own seed, the first with --seed. --seconds ends it early; what was compared is printed, and added to
the nights of --record (tools/fuzz_cores.py). A directory with nothing but the tokenizer.json of a real vocabulary (tools/gguf_tokenizer.py) needs --conversations 0.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
import time

import fuzz_cores

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Where splitters and byte-level encoders differ: blanks, accents, digits, letters of many scripts, surrogate pairs, controls.
RANGES = [(0x20, 0x7E), (0x9, 0xD), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F),
          (0x1100, 0x11FF), (0x2000, 0x206F), (0x2150, 0x218F), (0x2460, 0x24FF), (0x3000, 0x30FF), (0x4E00, 0x9FFF),
          (0xAC00, 0xD7A3), (0xFB00, 0xFB4F), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x10000, 0x100FF), (0x1F300, 0x1FAFF),
          (0x20000, 0x2A6DF), (0xE0100, 0xE01EF), (0x0, 0x1F)]
PIECES = ["'s", "'RE", "\r\n", "\n\n", "  ", " \t", "123", "1234567", "<|user|>", "</think>", "[gMASK]", "<sop>", "ﬁ", "e\u0301",
          "\u200d", "\ufeff", "İ", "ß", "ǅ", "٣٤", "…", "\u2028", "\u0085", "\u00a0"]
BATCH = 20_000


LONG_TEXTS = 5_000  # one text of so many is a word of several windows of the encoder (src/tokenizer/bpe.cpp)


def long_word(draw):
    """A text without blanks of 70 to 200 KB: few characters in a random order, or in turn."""
    low, high = draw.choice([(0x61, 0x66), (0x4E00, 0x4E20), (0x61, 0x7A), (0x430, 0x44F), (0x21, 0x2F), (0x3041, 0x3096)])
    size = draw.randint(70_000, 200_000) // len(chr(high).encode())
    if draw.random() < 0.5:
        unit = "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 9)))
        return (unit * (size // len(unit) + 1))[:size]
    return "".join(draw.choices([chr(code) for code in range(low, high + 1)], k=size))


def text(draw, rarely_long=False):
    if rarely_long and draw.random() < 1 / LONG_TEXTS:
        return long_word(draw)
    parts = []
    for _ in range(draw.randint(1, 12)):
        kind = draw.random()
        if kind < 0.3:
            parts.append(draw.choice(PIECES))
        else:
            low, high = draw.choice(RANGES)
            parts.append("".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 8))))
    return "".join(parts)


def koho_lines(command, values):
    lines = "".join(json.dumps(value) + "\n" for value in values)
    result = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed: {result.stderr.strip()[:500]}")
    return [json.loads(line) for line in result.stdout.split("\n") if line]


def compare_tokens(options, draw):
    from tokenizers import Tokenizer
    referee = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    command = [options.koho, "tokenize", "--model", options.model, "--jsonl", "--allow-special"]
    differences = compared = 0
    while compared < options.texts and time.monotonic() < options.end:
        texts = [text(draw, rarely_long=True) for _ in range(min(BATCH, options.texts - compared))]
        expected = [encoding.ids for encoding in referee.encode_batch(texts, add_special_tokens=False)]
        for one, ours, theirs in zip(texts, koho_lines(command, texts), expected, strict=True):
            if ours != theirs:
                differences += 1
                print(f"tokens of {json.dumps(one)[:2000]}:\n  koho    {str(ours)[:2000]}\n  referee {str(theirs)[:2000]}")
        compared += len(texts)
    return compared, differences


def conversation(draw):
    def message(role):
        made = {"role": role, "content": text(draw)}
        if role == "assistant" and draw.random() < 0.4:
            made["reasoning_content"] = text(draw)
        if role == "assistant" and draw.random() < 0.3:
            made["tool_calls"] = [{"function": {"name": "f", "arguments": {"a": text(draw), "n": draw.randint(-9, 99),
                                                                           "l": [1.5, None, {"k": text(draw)}]}}}]
        if role == "user" and draw.random() < 0.2:
            made["content"] = [{"type": "text", "text": text(draw)}, {"type": "text", "text": text(draw)}]
        return made

    roles = ["system"] * draw.randint(0, 1)
    for _ in range(draw.randint(1, 4)):
        roles += ["user", "assistant"] if draw.random() < 0.7 else ["user", "assistant", "tool", "assistant"]
    made = {"messages": [message(role) for role in roles + ["user"]], "add_generation_prompt": draw.random() < 0.8}
    if draw.random() < 0.3:
        made["tools"] = [{"type": "function", "function": {"name": "f", "description": text(draw), "parameters": {
            "type": "object", "properties": {"a": {"type": "string", "description": text(draw)}}}}}]
    for name in ("enable_thinking", "clear_thinking"):
        if draw.random() < 0.4:
            made[name] = draw.random() < 0.5
    return made


def compare_templates(options, draw):
    if not options.conversations:
        return 0, 0
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **_: json.dumps(value, ensure_ascii=ensure_ascii)
    referee = environment.from_string((options.model / "chat_template.jinja").read_text())
    command = [options.koho, "render", "--model", options.model]
    differences = compared = 0
    while compared < options.conversations and time.monotonic() < options.end:
        made = [conversation(draw) for _ in range(min(1000, options.conversations - compared))]
        for one, ours in zip(made, koho_lines(command, made), strict=True):
            theirs = referee.render(**one)
            if ours != theirs:
                differences += 1
                print(f"prompt of {json.dumps(one)}:\n  koho    {json.dumps(ours)}\n  referee {json.dumps(theirs)}")
        compared += len(made)
    return compared, differences


TOLD = re.compile(r"([\d,]+) (conversations|texts) compared \(seed \d+\), (\d+) differ")


def on_cores(options):
    """One process a core, each with its share; returns what they told in the end, and whether all ended well."""
    environment = dict(os.environ, TOKENIZERS_PARALLELISM="false")
    command = [sys.executable, __file__, "--texts", str(-(-options.texts // options.cores)), "--conversations",
               str(-(-options.conversations // options.cores)), "--model", options.model, "--koho", options.koho,
               "--seconds", str(options.seconds)]
    started = [subprocess.Popen([*command, "--seed", str(options.seed + core)], env=environment, stdout=subprocess.PIPE, text=True)
               for core in range(options.cores)]
    told = {"texts": 0, "conversations": 0, "differ": 0}

    def read(process):
        for line in process.stdout:
            print(line, end="", flush=True)
            if found := TOLD.fullmatch(line.strip()):
                with lock:
                    told[found[2]] += int(found[1].replace(",", ""))
                    told["differ"] += int(found[3])

    lock = threading.Lock()
    readers = [threading.Thread(target=read, args=(process,)) for process in started]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return told, all(process.wait() == 0 for process in started)


def keep(options, told):
    """Adds a night to the record."""
    record = json.loads(options.record.read_text()) if options.record.exists() else {"nights": [], "runs": {}}
    referees = {name: importlib.metadata.version(name) for name in ("tokenizers", "jinja2")}
    record["nights"].append({"date": time.strftime("%Y-%m-%d %H:%M:%S"), "commit": options.commit, "machine": options.machine,
                             "cores": options.cores, "differential": {**told, "vocabulary": options.vocabulary or options.model.name, "seed": options.seed, "referees": referees}})
    fuzz_cores.sum_runs(record, {})
    fuzz_cores.write(options.record, record)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=1_000_000, help="(%(default)s)")
    parser.add_argument("--conversations", type=int, default=20_000, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/tiny")
    parser.add_argument("--koho", type=pathlib.Path, default=ROOT / "build/release/src/app/koho")
    parser.add_argument("--cores", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which nothing new is compared")
    parser.add_argument("--record", type=pathlib.Path, help="JSON file, read and written anew")
    parser.add_argument("--commit", default="", help="of koho, for the record")
    parser.add_argument("--machine", default="", help="in words, for the record")
    parser.add_argument("--vocabulary", default="", help="in words, for the record (the model directory's name)")
    options = parser.parse_args()
    if options.cores > 1:
        told, well = on_cores(options)
    else:
        draw = random.Random(options.seed)
        options.end = time.monotonic() + options.seconds
        templates, prompts_differ = compare_templates(options, draw)
        print(f"{templates:,} conversations compared (seed {options.seed}), {prompts_differ} differ", flush=True)
        texts, differ = compare_tokens(options, draw)
        print(f"{texts:,} texts compared (seed {options.seed}), {differ} differ")
        told, well = {"texts": texts, "conversations": templates, "differ": differ + prompts_differ}, True
    if options.record:
        keep(options, told)
    sys.exit(0 if well and told["differ"] == 0 else 1)


if __name__ == "__main__":
    main()
