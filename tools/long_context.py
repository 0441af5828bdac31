#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Has `koho batch` answer one long prompt in several ways that may not change a bit of the answer whatever runs beside it: in
chunks of different lengths, and again from the prefix cache. Greedy, with log-probabilities. What a shape without trained
weights can be checked by at the end of its context; that attention over so many tokens is right is the operators' test
(`attention_*_of_131072`). With --no-deterministic the same prompt once more: its time, and how far its answer is from the others.
Standard library only.

    tools/long_context.py --koho build/cuda/src/app/koho --vocabulary 151552 --context 131072 --json long.json -- \\
        --config tests/data/configs/glm-4.5-air.json --weights synthetic --device cuda
    tools/long_context.py --koho build/koho --vocabulary 4096 --context 1024 --chunks 64,100 -- --model models/tiny --device cpu

Exit code 1 if an answer is missing, is not as long as asked for or has other ids or log-probabilities than the others, or if
the cache gave less than all whole pages of the prompt.
"""
import argparse
import random
import sys

import result_file
from batch_check import run_batch

PAGE_TOKENS = 64


def answers_of(koho, requests, flags):
    """`koho batch`'s answers by id. Ends the program if one lacks."""
    code, found = run_batch(koho, requests, ["--concurrency", "1", *flags])
    if code or len(found) != len(requests) or any("error" in answer for answer in found):
        errors = [answer["error"].get("message") for answer in found if "error" in answer]
        sys.exit(f"FAILED: exit code {code}, {len(found)} answers to {len(requests)} requests {errors}")
    return {answer["id"]: answer for answer in found}


def sampled(answer):
    """What must not differ."""
    return answer["ids"], [(entry["logprob"], entry["top"]) for entry in answer["logprobs"]]


def main():
    own, flags = result_file.own_and_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--koho", required=True)
    parser.add_argument("--vocabulary", type=int, required=True, help="ids are drawn below it")
    parser.add_argument("--context", type=int, required=True, help="tokens of prompt and answer")
    parser.add_argument("--chunks", default="2048,1500", metavar="N,N,…", help="prompt tokens in one step, a run for each")
    parser.add_argument("--tokens", type=int, default=16, help="of the answer")
    parser.add_argument("--seed", type=int, default=1)
    result_file.add_options(parser)
    options = parser.parse_args(own)
    draw = random.Random(options.seed)
    prompt = [draw.randrange(options.vocabulary) for _ in range(options.context - options.tokens)]
    request = {"prompt_ids": prompt, "max_tokens": options.tokens, "temperature": 0, "logprobs": 8, "ignore_eos": True}
    flags = [*flags, "--context", str(options.context)]

    faults, rows, expected = [], [], None
    for chunk in (int(text) for text in options.chunks.split(",")):
        # The second one finds the first one's pages.
        found = answers_of(options.koho, [{"id": name, **request} for name in ("computed", "cached")],
                           [*flags, "--deterministic", "--prefill-chunk", str(chunk)])
        for name, answer in found.items():
            expected = expected or sampled(answer)
            if len(answer["ids"]) != options.tokens:
                faults.append(f"{name}, {chunk} at once: {len(answer['ids'])} tokens, asked for {options.tokens}")
            if sampled(answer) != expected:
                faults.append(f"{name}, {chunk} at once: other bits than the first answer's")
        cached = found["cached"]["usage"]["cached_tokens"]
        if cached < (len(prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS:
            faults.append(f"{chunk} at once: {cached} of {len(prompt)} tokens cached")
        seconds = found["computed"]["timings"]["prefill_ms"] / 1e3
        rows.append({"op": "long_context", "deterministic": True, "context": options.context, "chunk": chunk, "cached_tokens": cached,
                     "prompt_seconds": round(seconds, 3)})
        print(f"{len(prompt)} tokens, {chunk} at once: {seconds:.2f} s, {len(prompt) / seconds:.0f} tok/s; again with {cached} cached")
    answer = answers_of(options.koho, [{"id": "cublaslt", **request}], [*flags, "--no-deterministic"])["cublaslt"]
    seconds = answer["timings"]["prefill_ms"] / 1e3
    decode = answer["timings"]["decode_ms"] / (options.tokens - 1)
    same = sum(one == other for one, other in zip(answer["ids"], expected[0]))
    apart = abs(answer["logprobs"][0]["logprob"] - expected[1][0][0])
    print(f"with cuBLASLt: {seconds:.2f} s, {len(prompt) / seconds:.0f} tok/s, {decode:.2f} ms a token after it; {same} of {options.tokens} ids "
          f"the same, the first one's log-probability {apart:.4f} apart")
    rows.append({"op": "long_context", "deterministic": False, "context": options.context, "chunk": 0, "cached_tokens": 0,
                 "prompt_seconds": round(seconds, 3), "decode_ms": round(decode, 3), "same_ids": same})
    for fault in faults:
        print("FAILED", fault)
    result_file.write(options, result_file.command_of("tools/long_context.py", own, flags), rows)
    print("failed" if faults else "passed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
