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
SHORT_BYTES = 40
PAUSE_S = 0.1  # between short requests
STEP_BYTES = 1200  # text of a step's largest chunk, 512 tokens


class Client:
    def __init__(self, port, seed):
        self.port, self.random = port, random.Random(seed)

    def text(self, size):
        """Of `size` bytes, that nobody sent before."""
        text = ""
        while len(text) < size:
            text += self.random.choice(WORDS) + " " + (f"{self.random.randrange(1000)} " if self.random.random() < 0.2 else "")
        return text[:size]

    async def first_token(self, size, text=None):
        """Seconds to the only token after a prompt."""
        got = await server_check.answer(self.port, {"prompt": text or self.text(size), "max_tokens": 1, "ignore_eos": True, "stream": True, "return_token_ids": True})
        if got["error"]:
            sys.exit(f"FAILED: {got['error']}")
        return got["first_s"]

    async def last_step(self, size):
        text = self.text(size)
        await self.first_token(size, text[:size - STEP_BYTES])
        return await self.first_token(size, text)

    async def longs(self, count, size):
        began = time.monotonic()
        await asyncio.gather(*(self.first_token(size) for _ in range(count)))
        return time.monotonic() - began

    async def longs_beside_shorts(self, count, size):
        shorts = []

        async def send():
            while True:
                shorts.append(await self.first_token(SHORT_BYTES))
                await asyncio.sleep(PAUSE_S)

        task = asyncio.create_task(send())
        seconds = await self.longs(count, size)
        task.cancel()
        return seconds, shorts


async def measure(options, port):
    client = Client(port, options.seed)
    await client.longs(2, options.bytes)  # first touches of the cache
    step = statistics.median([await client.last_step(options.bytes) for _ in range(5)])
    own = statistics.median([await client.first_token(SHORT_BYTES) for _ in range(9)])
    print(f"the last step of a long prompt {1e3 * step:.0f} ms, a short request alone {1e3 * own:.1f} ms")
    rows = []
    for count in options.long:
        alone, beside, shorts = [], [], []
        for _ in range(options.rounds):
            alone.append(await client.longs(count, options.bytes))
            seconds, times = await client.longs_beside_shorts(count, options.bytes)
            beside.append(seconds)
            shorts += times
        shorts.sort()
        row = {"op": "prefill", "long": count, "bytes": options.bytes, "alone_s": [round(one, 3) for one in alone],
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
    parser.add_argument("--bytes", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loss", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("server", nargs="*", help="flags of koho serve")
    result_file.add_options(parser)
    options = parser.parse_args()
    server = server_check.Server(str(options.koho.resolve()), [*options.server, "--max-num-seqs", str(2 * max(options.long))], 60)
    try:
        rows = asyncio.run(measure(options, server.port))
    finally:
        wrong = server.end()
    result_file.write(options, result_file.command_of("tools/prefill_check.py", *result_file.own_and_flags(sys.argv[1:])), rows)
    bad = [row for row in rows if row["short_p99_ms"] > 3 * row["step_ms"] + row["own_ms"] or row["kept"] < 1 - options.loss]
    sys.exit(f"FAILED: {wrong or bad}" if wrong or bad else 0)


if __name__ == "__main__":
    main()
