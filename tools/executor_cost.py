#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a worker process costs beside a thread: `koho bench` with both executors in turn, the median time of a token in each.
Exit code 1 if a process takes more than --most per cent longer. Standard library only.

    tools/executor_cost.py --koho build/cuda/src/app/koho --json executor.json -- --config config.json --weights synthetic --device cuda
    tools/executor_cost.py --koho build/koho --batch 1,8 --generate 64 --most 10 -- --model models/tiny --ranks 2
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import result_file

EXECUTORS = ("thread", "process")


def measure(options, flags, executor, batch, folder):
    """Milliseconds of a token, the median over all requests of one run."""
    out = folder / "bench.json"
    command = [options.koho, "bench", *flags, "--executor", executor, "--requests", batch, "--concurrency", batch, "--prompt-len", options.prompt,
               "--gen-len", options.generate, "--no-prefix-cache", "--temperature", 1, "--json", out]
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"FAILED: koho bench, exit code {ran.returncode}: {ran.stderr.strip()[-600:]}")
    figures = json.loads(out.read_text())
    options.machine = options.machine or figures["machine"]
    return figures["median_tpot_ms"]


def main():
    own, flags = result_file.own_and_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--koho", type=pathlib.Path, required=True)
    parser.add_argument("--batch", default="1,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--generate", type=int, default=256, help="tokens")
    parser.add_argument("--most", type=float, default=1.0, metavar="PERCENT")
    result_file.add_options(parser)
    options = parser.parse_args(own)
    rows, slow = [], []
    with tempfile.TemporaryDirectory() as name:
        for batch in map(int, options.batch.split(",")):
            times = {executor: [] for executor in EXECUTORS}
            for number in range(options.rounds):  # each goes first in turn
                for executor in EXECUTORS if number % 2 == 0 else reversed(EXECUTORS):
                    times[executor].append(measure(options, flags, executor, batch, pathlib.Path(name)))
            thread, process = (statistics.median(times[executor]) for executor in EXECUTORS)
            more = 100 * (process / thread - 1)
            print(f"batch {batch}: a token in {thread:.3f} ms by a thread, {process:.3f} by a process: {more:+.2f} %; "
                  + "; ".join(f"{executor} " + " ".join(f"{ms:.3f}" for ms in times[executor]) for executor in EXECUTORS), flush=True)
            rows += [{"op": "executor", "form": executor, "shape": {"batch": batch}, "us": round(1e3 * statistics.median(ms), 1),
                      "all_us": [round(1e3 * one, 1) for one in ms]} for executor, ms in times.items()]
            slow += [batch] if more > options.most else []
    for batch in slow:
        print(f"FAILED: batch {batch}: more than {options.most:g} % longer")
    result_file.write(options, result_file.command_of("tools/executor_cost.py", own, flags), rows)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
