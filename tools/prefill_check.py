#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What long prompts cost short requests, and short requests long prompts: for each number of --long, as many prompts of --bytes at
once, alone and beside short requests sent one after another, in turn. Exit code 1 if a short request's first token at p99 takes
longer than three of the largest steps and its own prefill, or if long prompts lose more than --loss of their tokens a second by
the medians. The largest step is a long prompt's last: what a chunk of text takes behind the rest, which the prefix cache holds.
Standard library only.

    tools/prefill_check.py --koho build/koho --long 4,16 --rounds 3 -- --model models/tiny
"""
import argparse
import asyncio
import pathlib
import random
import statistics
import sys
import time

import result_file
import server_check

WORDS = ("the", "of", "stone", "river", "7", "and", "Costs", "rose.", "light", "over")
PAUSE_S = 0.1  # between short requests


class Client:
    def __init__(self, port, seed, vocabulary):
        self.port, self.random, self.vocabulary = port, random.Random(seed), vocabulary

    def prompt(self, size):
        """Of `size` bytes of text, or `size` token ids, that nobody sent before."""
        if self.vocabulary:
            return self.random.choices(range(self.vocabulary), k=size)
        text = ""
        while len(text) < size:
            text += self.random.choice(WORDS) + " " + (f"{self.random.randrange(1000)} " if self.random.random() < 0.2 else "")
        return text[:size]

    async def first_token(self, prompt):
        """Seconds to the only token after a prompt."""
        got = await server_check.answer(self.port, {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "stream": True, "return_token_ids": True})
        if got["error"]:
            sys.exit(f"FAILED: {got['error']}")
        return got["first_s"]

    async def last_steps(self, size, chunk, count):
        """Seconds of the last chunk of so many prompts that begin alike."""
        begin = self.prompt(size - chunk)
        await self.first_token(begin)
        return [await self.first_token(begin + self.prompt(chunk)) for _ in range(count)]

    async def longs(self, count, size):
        prompts = [self.prompt(size) for _ in range(count)]
        began = time.monotonic()
        await asyncio.gather(*(self.first_token(prompt) for prompt in prompts))
        return time.monotonic() - began

    async def longs_beside_shorts(self, count, size, short):
        shorts = []

        async def send():
            while True:
                shorts.append(await self.first_token(self.prompt(short)))
                await asyncio.sleep(PAUSE_S)

        task = asyncio.create_task(send())
        seconds = await self.longs(count, size)
        task.cancel()
        return seconds, shorts


async def measure(options, port):
    client = Client(port, options.seed, options.vocabulary)
    await client.longs(2, options.size)  # first touches of the cache
    step = statistics.median(await client.last_steps(options.size, options.chunk, 5))
    own = statistics.median([await client.first_token(client.prompt(options.short)) for _ in range(9)])
    print(f"the last step of a long prompt {1e3 * step:.0f} ms, a short request alone {1e3 * own:.1f} ms")
    rows = []
    for count in options.long:
        alone, beside, shorts = [], [], []
        for _ in range(options.rounds):
            alone.append(await client.longs(count, options.size))
            seconds, times = await client.longs_beside_shorts(count, options.size, options.short)
            beside.append(seconds)
            shorts += times
        shorts.sort()
        row = {"op": "prefill", "long": count, "tokens" if options.vocabulary else "bytes": options.size, "alone_s": [round(one, 3) for one in alone],
               "beside_s": [round(one, 3) for one in beside], "kept": round(statistics.median(alone) / statistics.median(beside), 3),
               "shorts": len(shorts), "short_p50_ms": round(1e3 * statistics.median(shorts), 1),
               "short_p99_ms": round(1e3 * shorts[int(0.99 * (len(shorts) - 1))], 1), "step_ms": round(1e3 * step, 1), "own_ms": round(1e3 * own, 1)}
        print(row, flush=True)
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--koho", type=pathlib.Path, required=True)
    parser.add_argument("--long", type=lambda text: [int(one) for one in text.split(",")], default=[4, 16, 64])
    parser.add_argument("--size", type=int, default=6000, help="of a long prompt")
    parser.add_argument("--short", type=int, default=40, help="size of a short one")
    parser.add_argument("--chunk", type=int, default=1200, help="size of a step's largest chunk: 512 tokens of text")
    parser.add_argument("--vocabulary", type=int, default=0, help="token ids below this; 0: text")
    parser.add_argument("--ready", type=float, default=60, help="seconds that the server may take to be ready")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loss", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("server", nargs="*", help="flags of koho serve")
    result_file.add_options(parser)
    options = parser.parse_args()
    server = server_check.Server(str(options.koho.resolve()), [*options.server, "--max-num-seqs", str(2 * max(options.long))], options.ready)
    try:
        rows = asyncio.run(measure(options, server.port))
    finally:
        wrong = server.end()
    result_file.write(options, result_file.command_of("tools/prefill_check.py", *result_file.own_and_flags(sys.argv[1:])), rows)
    bad = [row for row in rows if row["short_p99_ms"] > 3 * row["step_ms"] + row["own_ms"] or row["kept"] < 1 - options.loss]
    sys.exit(f"FAILED: {wrong or bad}" if wrong or bad else 0)


if __name__ == "__main__":
    main()
