#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a file of requests, has `koho batch` answer it and holds every answer to its request: what a batch of a shape
without a tokenizer, or without trained weights, can be checked by. Standard library only.

    tools/batch_check.py --koho build/cuda/src/app/koho --vocabulary 151552 --json batch.json -- \\
        --config tests/data/configs/glm-4.5-air.json --weights synthetic --device cuda
    tools/batch_check.py --koho build/release/src/app/koho --vocabulary 4096 -- --model models/tiny --device cpu

--seed decides the requests: prompts of 16 to 512 token ids, in groups that begin alike, so that the prefix cache has hits
once more requests wait than are computed at once; greedy and sampled, some with penalties, log-probabilities or two answers. Exit code 1 if
an answer is missing, is an error, has another number of tokens than asked for, an id outside the vocabulary or a
log-probability above 0.
"""
import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import result_file


def run_batch(koho, requests, flags):
    """The exit code of `koho batch` over these requests, and its answers."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder) / "in.jsonl", pathlib.Path(folder) / "out.jsonl"
        source.write_text("".join(json.dumps(request) + "\n" for request in requests))
        code = subprocess.run([koho, "batch", str(source), str(target), *flags], check=False).returncode
        return code, [json.loads(line) for line in target.read_text().splitlines()] if target.exists() else []


def make_requests(count, vocabulary, longest, seed):
    draw = random.Random(seed)
    ids = lambda length: [draw.randrange(vocabulary) for _ in range(length)]
    beginnings = [ids(min(longest // 2, 192)) for _ in range(4)]
    made = []
    for number in range(count):
        own = ids(draw.randint(min(16, longest // 2), longest // 2))
        prompt = draw.choice(beginnings) + own if number % 2 else own
        request = {"id": f"r{number}", "prompt_ids": prompt, "max_tokens": draw.randint(32, 128), "ignore_eos": True,
                   "temperature": 0 if number % 3 == 0 else 1, "seed": number}
        if number % 5 == 1:
            request["logprobs"] = draw.randint(0, 20)
        if number % 7 == 2:
            request.update(frequency_penalty=0.5, repetition_penalty=1.1)
        if number % 8 == 3:
            request.update(top_p=0.9, top_k=50)
        if number % 16 == 4:
            request["n"] = 2
        made.append(request)
    return made


def faults_of(request, answer, vocabulary):
    """What is wrong with an answer, in words."""
    if answer is None:
        return ["no answer"]
    if "error" in answer:
        return [f"error: {answer['error'].get('message')}"]
    faults = []
    choices = answer.get("choices", [answer])
    if len(choices) != request.get("n", 1):
        faults.append(f"{len(choices)} answers, asked for {request.get('n', 1)}")
    for choice in choices:
        if len(choice["ids"]) != request["max_tokens"] or choice["finish_reason"] != "length":
            faults.append(f"{len(choice['ids'])} tokens, ended by {choice['finish_reason']}, asked for "
                          f"{request['max_tokens']}")
        if not all(0 <= token < vocabulary for token in choice["ids"]):
            faults.append("an id outside the vocabulary")
        if "logprobs" in request:
            entries = choice.get("logprobs") or []
            if len(entries) != len(choice["ids"]):
                faults.append(f"{len(entries)} log-probabilities for {len(choice['ids'])} tokens")
            if any(not math.isfinite(entry["logprob"]) or entry["logprob"] > 0 or len(entry["top"]) != request["logprobs"]
                   for entry in entries):
                faults.append("a log-probability above 0 or no number, or another number of alternatives")
    if answer["usage"]["prompt_tokens"] != len(request["prompt_ids"]):
        faults.append(f"a prompt of {answer['usage']['prompt_tokens']} tokens, given {len(request['prompt_ids'])}")
    return faults


def main():
    own, flags = result_file.own_and_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--koho", required=True)
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--vocabulary", type=int, required=True, help="ids are drawn below it")
    parser.add_argument("--longest", type=int, default=512, help="tokens of a prompt, at most")
    parser.add_argument("--seed", type=int, default=1)
    result_file.add_options(parser)
    options = parser.parse_args(own)
    requests = make_requests(options.requests, options.vocabulary, options.longest, options.seed)
    begin = time.monotonic()
    code, answers = run_batch(options.koho, requests, flags)
    seconds = time.monotonic() - begin
    by_id = {answer["id"]: answer for answer in answers}
    faults = [f"exit code {code}"] if code else []
    if len(by_id) != len(answers) or len(answers) != len(requests):
        faults.append(f"{len(answers)} answers of {len(by_id)} ids, {len(requests)} requests")
    for request in requests:
        faults += [f"{request['id']}: {fault}" for fault in faults_of(request, by_id.get(request["id"]), options.vocabulary)]
    usage = [answer["usage"] for answer in answers if "usage" in answer]
    total = {key: sum(entry[key] for entry in usage) for key in ("prompt_tokens", "cached_tokens", "completion_tokens")}
    if options.requests >= 160 and "--no-prefix-cache" not in flags and usage and total["cached_tokens"] == 0:
        faults.append("prompts begin alike and none was found in the cache")
    for fault in faults[:20]:
        print("FAILED", fault)
    print(f"batch: {len(answers)} answers to {len(requests)} requests, {total['prompt_tokens']} prompt tokens, "
          f"{total['cached_tokens']} of them cached, {total['completion_tokens']} generated, {seconds:.1f} s with the start")
    result_file.write(options, result_file.command_of("tools/batch_check.py", own, flags),
                      [{"op": "batch", "requests": len(requests), "answers": len(answers), "faults": len(faults), **total,
                        "seconds": round(seconds, 2)}])
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
