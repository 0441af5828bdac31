#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the libFuzzer programs of a folder on several cores at once, in slices: each free core takes the program with the fewest runs
so far, so that all come to about the same count whatever their speed; one that is far slower than all others has at most a quarter of the
cores while another wants them. Writes what tools/nightly.py writes, and adds to it.

    tools/fuzz_cores.py --programs build/fuzz/fuzz --cores 16 --seconds 600 --corpus CORPUS --record fuzz.json

    tools/fuzz_cores.py --record bench/results/fuzz.json --add machine-a/record.json machine-b/record.json

The second form adds what other machines ran, each call of theirs once, and tells the sums. Seeds are read from fuzz/corpus/TARGET, inputs that reach new code are kept in CORPUS/TARGET, an input that finds something in
CORPUS/TARGET.found; the record names it. Needs nothing but Python and the programs. Exits non-zero if anything was found.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Of targets whose inputs have the words of a format.
DICTIONARIES = {"api_request_fuzz": "api.dict", "http_reader_fuzz": "http.dict", "chat_request_fuzz": "json.dict",
                "tokenizer_file_fuzz": "json.dict", "model_config_fuzz": "json.dict", "json_tree_fuzz": "json.dict",
                "batch_request_fuzz": "api.dict", "upload_fuzz": "api.dict", "grammar_walk_fuzz": "json.dict",
                "safetensors_header_fuzz": "json.dict"}
FINDINGS_MAX = 5  # of one target, after which its cores go to others
SLICE_SECONDS = (5, 60)
UNKNOWN_SPEED = 1000  # runs a second, of a program that has not run yet


def last(pattern, text):
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def fuzz(program, seconds, corpus, nice=0):
    """Runs one program; returns what the record says of it."""
    target = program.name
    own, found = corpus / target, corpus / (target + ".found")
    for folder in (own, found):
        folder.mkdir(parents=True, exist_ok=True)
    seeds = ROOT / "fuzz/corpus" / target
    # Entropic weighs inputs anew after each run: two thirds of the time of a target with many edges.
    command = [str(program), str(own), *([str(seeds)] if seeds.is_dir() else []), f"-max_total_time={max(1, int(seconds))}",
               "-print_final_stats=1", "-entropic=0", "-rss_limit_mb=2048", "-timeout=25", f"-artifact_prefix={found}/"]
    if target in DICTIONARIES:
        command.append(f"-dict=fuzz/{DICTIONARIES[target]}")
    began = time.monotonic()
    before = {path.name for path in found.iterdir()}
    result = subprocess.run(["nice", "-n", str(nice), *command], cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode != 0:
        print(target, result.stderr[-4000:], flush=True)
    return {"runs": last(r"stat::number_of_executed_units:\s*(\d+)", result.stderr), "seconds": round(time.monotonic() - began, 1),
            "edges": last(r"cov: (\d+)", result.stderr), "peak_rss_mb": last(r"stat::peak_rss_mb:\s*(\d+)", result.stderr),
            "found": sorted({path.name for path in found.iterdir()} - before), "exit": result.returncode}


def add(total, one):
    """Two answers of fuzz() for one target, as one."""
    if not total:
        return dict(one)
    return {"runs": total["runs"] + one["runs"], "seconds": round(total["seconds"] + one["seconds"], 1),
            "edges": max(total["edges"], one["edges"]), "peak_rss_mb": max(total["peak_rss_mb"], one["peak_rss_mb"]),
            "found": sorted({*total["found"], *one["found"]}), "exit": total["exit"] or one["exit"]}


class Shares:
    """Which program the next slice runs. Threads: any."""

    def __init__(self, programs, runs, goal, cores=1):
        self.lock = threading.Lock()
        self.programs = {program.name: program for program in programs}
        self.before = {name: runs.get(name, 0) for name in self.programs}
        self.totals = {name: {} for name in self.programs}
        self.running = dict.fromkeys(self.programs, 0.0)  # seconds of the slices that run
        self.slices = dict.fromkeys(self.programs, 0)  # that run
        self.slices_max = max(1, cores // 4)
        self.goal = goal

    def expected(self, name):
        total = self.totals[name]
        speed = total["runs"] / max(total["seconds"], 0.1) if total else UNKNOWN_SPEED
        return self.before[name] + total.get("runs", 0) + self.running[name] * speed

    def open(self, name, runs):
        return len(self.totals[name].get("found", ())) < FINDINGS_MAX and runs < self.goal

    def take(self, seconds):
        """None: what runs now should reach the goal."""
        with self.lock:
            wanted = [name for name in self.programs if self.open(name, self.expected(name))]
            if not wanted:
                return None
            name = min(wanted, key=lambda one: (max(0, self.slices[one] - self.slices_max + 1), self.expected(one)))
            self.running[name] += seconds
            self.slices[name] += 1
            return self.programs[name]

    def done(self):
        with self.lock:
            return not any(self.running.values()) and not any(
                self.open(name, self.before[name] + total.get("runs", 0)) for name, total in self.totals.items())

    def put(self, program, seconds, one):
        with self.lock:
            self.running[program.name] -= seconds
            self.slices[program.name] -= 1
            self.totals[program.name] = add(self.totals[program.name], one)


def fuzz_on_cores(programs, cores, seconds, corpus, runs, goal=float("inf"), nice=0):
    """One answer of fuzz() a target; `runs` says how many there were before. No target runs beyond `goal`."""
    shares = Shares(programs, runs, goal, cores)
    end = time.monotonic() + seconds

    def work():
        while (left := end - time.monotonic()) >= 1 and not shares.done():
            # First short ones, which say how fast each is.
            known = all(shares.totals.values())
            slice_seconds = min(left, SLICE_SECONDS[0] if not known else max(SLICE_SECONDS[0], min(SLICE_SECONDS[1], seconds / 20)))
            program = shares.take(slice_seconds)
            if program is None:
                time.sleep(0.2)
                continue
            shares.put(program, slice_seconds, fuzz(program, slice_seconds, corpus, nice))

    threads = [threading.Thread(target=work) for _ in range(cores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: total for name, total in shares.totals.items() if total}


def merge_night(record, night, answers):
    """Adds `answers` of fuzz_on_cores() to the record; returns whether anything was found."""
    night["fuzz"] = answers
    for target, one in answers.items():
        record["runs"][target] = record["runs"].get(target, 0) + one["runs"]
    return any(one["exit"] != 0 or one["found"] for one in answers.values())


def add_record(record, other):
    """Adds the nights of another machine's record that `record` does not have yet; returns how many."""
    added = [night for night in other["nights"] if night not in record["nights"]]
    record["nights"] += added
    for night in added:
        for target, one in night["fuzz"].items():
            record["runs"][target] = record["runs"].get(target, 0) + one["runs"]
    return len(added)


def print_sums(record):
    """A line a target: runs of all nights, processor time, findings."""
    for target, runs in sorted(record["runs"].items()):
        answers = [night["fuzz"][target] for night in record["nights"] if target in night["fuzz"]]
        print(f"{target:28} {runs:15,} runs in {sum(one['seconds'] for one in answers):10,.0f} core seconds, "
              f"{len({name for one in answers for name in one['found']})} found")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, help="folder of the programs")
    parser.add_argument("--add", type=pathlib.Path, nargs="+", help="records of other machines to add to --record; runs nothing")
    parser.add_argument("--targets", default="", help="with commas between (all)")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="(%(default)s)")
    parser.add_argument("--seconds", type=float, help="in all")
    parser.add_argument("--goal", type=float, default=float("inf"), help="runs of a target in all nights, after which others have its time")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--corpus", type=pathlib.Path, default=ROOT / "build/corpus", help="inputs, kept from night to night")
    parser.add_argument("--record", type=pathlib.Path, required=True, help="JSON file, read and written anew")
    parser.add_argument("--commit", default="", help="that the programs were built from")
    parser.add_argument("--build", default="sanitizers", help="how: sanitizers or volume (%(default)s)")
    options = parser.parse_args()
    if not options.add and (options.programs is None or options.seconds is None):
        parser.error("--programs and --seconds, or --add")
    record = json.loads(options.record.read_text()) if options.record.exists() else {"nights": [], "runs": {}}
    if options.add:
        for path in options.add:
            print(f"{path}: {add_record(record, json.loads(path.read_text()))} calls added")
        options.record.write_text(json.dumps(record, indent=1) + "\n")
        print_sums(record)
        sys.exit(1 if any(one["found"] for night in record["nights"] for one in night["fuzz"].values()) else 0)
    names = options.targets.split(",") if options.targets else sorted(path.name for path in options.programs.glob("*_fuzz"))
    night = {"date": time.strftime("%Y-%m-%d"), "commit": options.commit, "cores": options.cores, "build": options.build}
    answers = fuzz_on_cores([(options.programs / name).resolve() for name in names], options.cores, options.seconds,
                            options.corpus.resolve(), record["runs"], options.goal, options.nice)
    found = merge_night(record, night, answers)
    record["nights"].append(night)
    options.record.write_text(json.dumps(record, indent=1) + "\n")
    for target, one in sorted(answers.items()):
        print(f"{target:28} {one['runs']:13,} runs, {one['runs'] / max(one['seconds'], 0.1):10,.0f} a second and core, "
              f"{record['runs'][target]:13,} in all, {len(one['found'])} found")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
