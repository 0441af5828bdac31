#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `koho bench` keeps of its throughput on two cores while another program computes: nothing, a loop kept on core 0, a loop
that may move, a loop on each core, in turn; with two threads and with one. A run beside which the rest of the machine took more
than OTHERS of a core is made again. A VM's cores change their speed within minutes: what is kept is a share of the runs beside
nothing just before and just after. Exit code 1 if two threads keep less than --least beside one loop, or are slower than one
thread, by the medians. Linux, standard library only.

    tools/busy_cores.py --koho build/koho --rounds 5
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import result_file

LOOP = ["sh", "-c", "while :; do :; done"]
BESIDE = {"nothing": [], "a loop on core 0": [["taskset", "-c", "0", *LOOP]], "a loop": [LOOP],
          "a loop on each core": [["taskset", "-c", core, *LOOP] for core in "01"]}
ONE_LOOP = ("a loop on core 0", "a loop")
THREADS = (2, 1)
BENCH = ["--concurrency", "4", "--prompt-len", "16", "--gen-len", "200", "--device", "cpu"]
OTHERS = 0.06
TRIES = 6


def spent(loops):
    """Seconds of all cores so far, but for those of koho's runs and the loops."""
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, irq, soft, *_ = map(int, pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    fields = [pathlib.Path(f"/proc/{loop.pid}/stat").read_text().rpartition(")")[2].split() for loop in loops]
    return (user + nice + system + irq + soft - sum(int(one[11]) + int(one[12]) for one in fields)) / ticks - ours.ru_utime - ours.ru_stime


def measure(options, threads, loops, out):
    """Tokens a second of a run beside which the machine did nothing else; None where there was none."""
    command = [options.koho, "bench", result_file.ROOT / "models" / "tiny", *BENCH, "--threads", threads, "--duration", options.duration, "--json", out]
    for _ in range(TRIES):
        before, began = spent(loops), time.monotonic()
        ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            sys.exit(f"FAILED: koho bench, exit code {ran.returncode}: {ran.stderr.strip()[-600:]}")
        if (spent(loops) - before) / (time.monotonic() - began) < OTHERS:
            figures = json.loads(out.read_text())
            options.machine = options.machine or figures["machine"]
            return figures["output_throughput"]
    return None


def rates(options, out, found, beside, threads=THREADS):
    """Of a run with each number of threads, or None, as measure() has them; adds them to `found`, by case and threads."""
    loops = [subprocess.Popen(command) for command in BESIDE[beside]]  # pylint: disable=consider-using-with
    try:
        got = [measure(options, count, loops, out) for count in threads]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    for count, rate in zip(threads, got):
        print(f"{beside}, {count} threads: {'others were busy' if rate is None else f'{rate:.0f} tok/s'}", flush=True)
        found[beside, count] += [] if rate is None else [rate]
    return got


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--koho", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration", type=float, default=3, help="seconds of a run")
    parser.add_argument("--least", type=float, default=0.6, help="share of the throughput beside nothing")
    result_file.add_options(parser)
    options = parser.parse_args()
    found = {(beside, threads): [] for beside in BESIDE for threads in THREADS}
    shares = {beside: [] for beside in BESIDE}  # of the runs beside nothing before and after
    gains = {beside: [] for beside in BESIDE}  # two threads over one, one after the other
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "bench.json"
        for _ in range(options.rounds):
            before = None
            for beside in BESIDE:
                two, one = rates(options, out, found, beside)
                after = two if beside == "nothing" else rates(options, out, found, "nothing", (2,))[0]
                before = before or after
                gains[beside] += [two / one] if two and one else []
                shares[beside] += [two / statistics.mean((before, after))] if two and before and after else []
                before = after
    if not (all(found.values()) and all(shares.values()) and all(gains.values())):
        sys.exit("FAILED: others were busy in every round of a case")
    median = {case: statistics.median(all_rates) for case, all_rates in found.items()}
    rows = [{"op": "busy_cores", "case": beside, "two_threads": round(median[beside, 2], 1), "one_thread": round(median[beside, 1], 1),
             "kept": round(statistics.median(shares[beside]), 3), "gain": round(statistics.median(gains[beside]), 3),
             "all_two_threads": found[beside, 2], "all_one_thread": found[beside, 1],
             "all_kept": [round(share, 3) for share in shares[beside]], "all_gain": [round(gain, 3) for gain in gains[beside]]}
            for beside in BESIDE]
    for row in rows:
        print(f"{row['case']}: {row['two_threads']} tok/s, kept {row['kept']:.0%} {row['all_kept']}; {row['gain']:.2f} times one thread {row['all_gain']}")
    result_file.write(options, result_file.command_of("tools/busy_cores.py", sys.argv[1:]), rows)
    short = [row["case"] for row in rows if row["case"] in ONE_LOOP and row["kept"] < options.least]
    slower = [row["case"] for row in rows if row["gain"] < 1]
    for cases, what in ((short, f"keeps less than {options.least:.0%} beside"), (slower, "two threads are slower than one beside")):
        if cases:
            print(f"FAILED: {what} {', '.join(cases)}")
    return 1 if short or slower else 0


if __name__ == "__main__":
    sys.exit(main())
