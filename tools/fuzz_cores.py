#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the libFuzzer programs of a folder on several cores at once, in slices. Each free core takes the program that --by names: the one
of whose missing runs the largest part is left (`share`, the default with --goal: whatever the time, each program has it in proportion to
what it lacks, and all are there together), the one with the least time so far, or the one with the fewest runs (the default without a
goal; a far slower one has at most a quarter of the cores then).

    tools/fuzz_cores.py --programs build/fuzz-volume/fuzz --build volume --cores 16 --seconds 600 --goal 1e8 --corpus CORPUS --record fuzz.json
    tools/fuzz_cores.py --record fuzz/record.json --goal 1e8 --add machine-a/record.json machine-b/record.json

The second form adds what other machines ran, each call of theirs once, and tells the sums. Seeds are read from fuzz/corpus/TARGET, inputs
that reach new code are kept in CORPUS/TARGET, an input that finds something in CORPUS/TARGET.found; the record names it. The record is
written after every slice; SIGTERM and SIGINT end the slices and lose nothing. Needs nothing but Python and the programs. Exits non-zero if
anything was found.

What counts: RULE below. The code of each target is a digest in code.json beside the programs (tools/fuzz_code.py).
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RULE = ("runs: inputs that libFuzzer made and ran, without the corpus that a slice reads first, both builds and all machines together, of "
        "all commits since the last night in which the target found something; current: those of its newest code, by a digest of every "
        "source and header of koho and of xgrammar that the program was compiled from, without comments and blanks; texts and "
        "conversations compared: all nights")
# Of targets whose inputs have the words of a format.
DICTIONARIES = {"api_request_fuzz": "api.dict", "http_reader_fuzz": "http.dict", "chat_request_fuzz": "api.dict",
                "tokenizer_file_fuzz": "json.dict", "model_config_fuzz": "json.dict", "json_tree_fuzz": "json.dict",
                "batch_request_fuzz": "api.dict", "upload_fuzz": "api.dict", "grammar_walk_fuzz": "grammar.dict",
                "safetensors_header_fuzz": "json.dict"}
FINDINGS_MAX = 5  # of one target, after which its cores go to others
COMPARED = ("texts", "conversations")  # by tools/differential_fuzz.py
SLICE_SECONDS = (5, 60)
CORPUS_MAX = 4000  # inputs that a slice reads first, and after which a target's corpus is made smaller
READ_SECONDS = 6  # that those inputs take at the target's speed; a slower one has fewer
MINIMISE_SECONDS = 300
SLOW_MS = 20  # of an input, where most take a tenth
EDGES = "-use_counters=0"  # of libFuzzer: how often an edge is taken makes no other feature
COMMAND_MAX = 2000  # inputs in one command
GRACE_SECONDS = 3  # for a program to end after its time, and again before it is killed
UNKNOWN_SPEED = 1000  # runs a second, of a program that has not run yet


def last(pattern, text):
    found = re.findall(pattern, text, re.MULTILINE)
    return int(found[-1]) if found else 0


class Running:
    """The programs that run, so that a signal can end them. Threads: any."""

    def __init__(self):
        self.lock = threading.Lock()
        self.processes = set()
        self.stopped = threading.Event()

    def run(self, command, seconds):
        """Returns (exit code, 0 if we ended it; what it wrote). Ends what runs GRACE_SECONDS beyond its time, and kills it as much later."""
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                                   start_new_session=True)
        with self.lock:
            self.processes.add(process)
        if self.stopped.is_set():
            process.terminate()
        written, late = "", False
        for wait, end in ((seconds + GRACE_SECONDS, process.terminate), (GRACE_SECONDS, process.kill), (None, None)):
            try:
                written = process.communicate(timeout=wait)[1]
                break
            except subprocess.TimeoutExpired:
                late = True
                end()
        with self.lock:
            self.processes.discard(process)
        ended = (late or self.stopped.is_set()) and process.returncode in ENDED
        return 0 if ended else process.returncode, written

    def send(self, number):
        with self.lock:
            for process in self.processes:
                process.send_signal(number)

    def stop(self, *_):
        """libFuzzer tells its sums when it is terminated. For signal handlers: does not wait for the lock."""
        self.stopped.set()
        for seconds, number in ((0, signal.SIGTERM), (GRACE_SECONDS, signal.SIGKILL)):
            timer = threading.Timer(seconds, self.send, (number,))
            timer.daemon = True
            timer.start()


ENDED = {72, -signal.SIGTERM, -signal.SIGKILL}  # 72 is libFuzzer's after SIGTERM


def fuzz(program, seconds, corpus, nice=0, running=None, inputs_max=CORPUS_MAX):
    """Runs one program, which reads at most `inputs_max` of its corpus first; returns what the record says of it."""
    target = program.name
    own, found = corpus / target, corpus / (target + ".found")
    for folder in (own, found):
        folder.mkdir(parents=True, exist_ok=True)
    seeds = ROOT / "fuzz/corpus" / target
    before = {path.name for path in found.iterdir()}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=corpus, prefix=target + ".") as folder:
        new, listed = pathlib.Path(folder) / "new", pathlib.Path(folder) / "listed"
        new.mkdir()
        inputs = [str(path) for path in own.iterdir()]
        listed.write_text(",".join(random.sample(inputs, min(len(inputs), int(inputs_max)))))
        # Entropic weighs inputs anew after each run: two thirds of the time of a target with many edges. What other slices find is read by
        # the next one: read while it runs it would count as runs.
        command = [str(program), str(new), *([str(seeds)] if seeds.is_dir() else []), *([f"-seed_inputs=@{listed}"] if inputs else []),
                   f"-max_total_time={max(1, int(seconds))}", "-print_final_stats=1", "-entropic=0", "-rss_limit_mb=2048", "-timeout=25",
                   "-reload=0", f"-artifact_prefix={found}/"]
        if target in DICTIONARIES:
            command.append(f"-dict=fuzz/{DICTIONARIES[target]}")
        code, written = (running or Running()).run(["nice", "-n", str(nice), *command], seconds)
        for path in new.iterdir():
            path.replace(own / path.name)
    added = sorted({path.name for path in found.iterdir()} - before)
    if code != 0 or added:
        print(target, written[-4000:], flush=True)
    # A program that was killed has told its runs when it last wrote; one that ended before INITED has only read.
    runs = max(last(r"stat::number_of_executed_units:\s*(\d+)", written), last(r"^#(\d+)\t", written))
    read = last(r"^#(\d+)\tINITED", written)
    return {"runs": max(0, runs - read) if read else 0, "seconds": round(time.monotonic() - began, 1),
            "edges": last(r"cov: (\d+)", written), "peak_rss_mb": last(r"stat::peak_rss_mb:\s*(\d+)", written),
            "found": added, "exit": code}


def slow_inputs(command, paths, run):
    """Of inputs, those that take SLOW_MS and more. Variations of those few inputs can take most of a target's time."""
    slow = set()
    for first in range(0, len(paths), COMMAND_MAX):
        _, written = run([*command, *map(str, paths[first:first + COMMAND_MAX])])
        slow |= {pathlib.Path(path) for path, took in re.findall(r"^Executed (.*) in (\d+) ms$", written, re.MULTILINE) if int(took) >= SLOW_MS}
    return slow


def minimise(program, corpus, nice=0, running=None, inputs_max=CORPUS_MAX, seconds=None):
    """Keeps one input for each feature of the code that the program's corpus reaches; for each edge, if those are more than `inputs_max`;
    the smallest ones, if that takes more than `seconds` (MINIMISE_SECONDS). A slow one is kept if it alone reaches an edge. Inputs that other slices write
    meanwhile stay. Returns how many it keeps."""
    running, own = running or Running(), corpus / program.name
    end = time.monotonic() + (MINIMISE_SECONDS if seconds is None else seconds)

    def run(command):
        return running.run(command, max(0.1, end - time.monotonic()))

    command = ["nice", "-n", str(nice), str(program), "-rss_limit_mb=2048"]
    before = sorted(own.iterdir(), key=lambda path: path.stat().st_size)
    slow = slow_inputs(command, before, run)

    def merge(kept, inputs, *features):
        """Adds to the names in `kept`, in time."""
        with tempfile.TemporaryDirectory(dir=corpus, prefix=program.name + ".") as folder:
            into, given = pathlib.Path(folder) / "into", pathlib.Path(folder) / "from"
            for made, names in ((into, kept), (given, inputs)):
                made.mkdir()
                for name in names:
                    os.link(own / name, made / name)
            code, _ = run([*command, "-merge=1", *features, str(into), str(given)])
            done = code == 0 and time.monotonic() < end
            return {path.name for path in into.iterdir()} if done else None

    quick = [path.name for path in before if path not in slow]
    kept = merge((), quick)
    if kept and len(kept) > inputs_max:
        kept = merge((), kept, EDGES) or kept
    if kept and slow:
        kept = merge(kept, [path.name for path in slow], EDGES) or kept
    if running.stopped.is_set():
        return len(before)
    kept = kept or set(quick[:int(inputs_max)])
    for path in before:
        if path.name not in kept:
            path.unlink(missing_ok=True)
    return len(kept)


def add(total, one):
    """Two answers of fuzz() for one target, as one."""
    if not total:
        return dict(one)
    return {**total, "runs": total["runs"] + one["runs"], "seconds": round(total["seconds"] + one["seconds"], 1),
            "edges": max(total["edges"], one["edges"]), "peak_rss_mb": max(total["peak_rss_mb"], one["peak_rss_mb"]),
            "found": sorted({*total["found"], *one["found"]}), "exit": total["exit"] or one["exit"]}


class Shares:
    """Which program the next slice runs, and how long. `before` and `speeds`: runs and runs a second of earlier nights, by name. Threads: any."""

    def __init__(self, programs, before, goal=float("inf"), cores=1, by="", speeds=None, spent=None):
        self.lock = threading.Lock()
        self.programs = {program.name: program for program in programs}
        self.before = {name: before.get(name, 0) for name in self.programs}
        self.spent = {name: (spent or {}).get(name, 0) for name in self.programs}
        self.known = {name: (speeds or {}).get(name, 0) for name in self.programs}
        self.totals = {name: {} for name in self.programs}
        self.running = dict.fromkeys(self.programs, 0.0)  # seconds of the slices that run
        self.slices = dict.fromkeys(self.programs, 0)  # that run
        self.slices_max = max(1, cores // 4)
        self.inputs_kept = dict.fromkeys(self.programs, 0)  # by the last minimise()
        self.minimising = set()
        self.goal = goal
        self.rank = {"share": lambda name: (self.missing_share(name), self.missing_seconds(name)),
                     "seconds": lambda name: -self.seconds(name),
                     "runs": lambda name: (-max(0, self.slices[name] - self.slices_max + 1), -self.expected(name))}[
                         by or ("runs" if goal == float("inf") else "share")]

    def speed(self, name):
        total = self.totals[name]
        return (total["runs"] / max(total["seconds"], 0.1) if total else self.known[name] or UNKNOWN_SPEED) or 1

    def expected(self, name):
        return self.before[name] + self.totals[name].get("runs", 0) + self.running[name] * self.speed(name)

    def seconds(self, name):
        return self.spent[name] + self.totals[name].get("seconds", 0) + self.running[name]

    def missing_seconds(self, name):
        return max(0.0, self.goal - self.expected(name)) / self.speed(name)

    def missing_share(self, name):
        """Of the runs that were missing before: the part that still is. What the program's speed is taken for makes no difference."""
        return (self.goal - self.expected(name)) / max(1, self.goal - self.before[name])

    def open(self, name, runs):
        return len(self.totals[name].get("found", ())) < FINDINGS_MAX and runs < self.goal

    def slice_seconds(self, name, seconds):
        """Short ones first, which say how fast each is; none much longer than what is missing."""
        if not (self.known[name] or self.totals[name]):
            return min(seconds, SLICE_SECONDS[0])
        return min(seconds, max(SLICE_SECONDS[0], min(SLICE_SECONDS[1], self.missing_seconds(name))))

    def take(self, seconds):
        """(program, seconds of the slice, at most `seconds`), or None: what runs now should reach the goal."""
        with self.lock:
            wanted = [name for name in self.programs if self.open(name, self.expected(name))]
            if not wanted:
                return None
            name = max(wanted, key=lambda one: (not (self.known[one] or self.totals[one] or self.slices[one]), self.rank(one)))
            seconds = self.slice_seconds(name, seconds)
            self.running[name] += seconds
            self.slices[name] += 1
            return self.programs[name], seconds

    def inputs_max(self, name):
        """Of a corpus: what a slice reads in little of its time; twice what one input for each edge takes, if that is more."""
        return int(max(min(CORPUS_MAX, READ_SECONDS * self.speed(name)), 2 * self.inputs_kept[name]))

    def keep_small(self, program, corpus, nice=0, running=None, seconds=None):
        """One thread a target; of libFuzzer's time this is little, and a slice that reads a large corpus first is slow."""
        name = program.name
        with self.lock:
            inputs_max = self.inputs_max(name)
            if name in self.minimising or sum(1 for _ in (corpus / name).iterdir()) <= inputs_max:
                return
            self.minimising.add(name)
        kept = minimise(program, corpus, nice, running, inputs_max // 2, seconds)
        with self.lock:
            self.inputs_kept[name] = kept
            self.minimising.discard(name)

    def done(self):
        with self.lock:
            return not any(self.slices.values()) and not any(
                self.open(name, self.before[name] + total.get("runs", 0)) for name, total in self.totals.items())

    def put(self, program, seconds, one):
        with self.lock:
            self.running[program.name] -= seconds
            self.slices[program.name] -= 1
            self.totals[program.name] = add(self.totals[program.name], one)
            return {name: dict(total) for name, total in self.totals.items() if total}


def fuzz_on_cores(shares, cores, seconds, corpus, nice=0, running=None, keep=lambda answers: None):
    """One answer of fuzz() a target; `keep` has those so far after every slice, one call at a time. No target runs beyond the goal."""
    end = time.monotonic() + seconds
    running = running or Running()
    keeping = threading.Lock()

    def work():
        while (left := end - time.monotonic()) >= 1 and not running.stopped.is_set() and not shares.done():
            taken = shares.take(left)
            if taken is None:
                time.sleep(0.2)
                continue
            program, slice_seconds = taken
            one = fuzz(program, slice_seconds, corpus, nice, running, shares.inputs_max(program.name))
            with keeping:
                keep(shares.put(program, slice_seconds, one))
            left = end - time.monotonic()
            if left > SLICE_SECONDS[1] and not running.stopped.is_set():
                shares.keep_small(program, corpus, nice, running, min(MINIMISE_SECONDS, left))

    threads = [threading.Thread(target=work) for _ in range(cores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {name: total for name, total in shares.totals.items() if total}


def since_findings(record):
    """Of each target, the nights after the last one in which it found something."""
    answers = {}
    for night in sorted(record["nights"], key=lambda night: night.get("date", "")):
        for target, one in night.get("fuzz", {}).items():
            answers.setdefault(target, []).append((night, one))
            if one["found"]:
                answers[target].clear()
    return answers


def of_code(record, digests):
    """Of each target, the nights of the code in `digests` (all of a target that has none there)."""
    answers = {}
    for night in record["nights"]:
        for target, one in night.get("fuzz", {}).items():
            if digests.get(target) in (None, one.get("code")):
                answers.setdefault(target, []).append((night, one))
    return answers


def sum_runs(record, digests):
    """Writes the sums into the record; the newest code is that in `digests`, else that of a target's last night."""
    record["rule"] = RULE
    record["code"] = {target: one["code"] for night in sorted(record["nights"], key=lambda night: night.get("date", ""))
                      for target, one in night.get("fuzz", {}).items() if "code" in one} | digests
    for sums, answers in (("runs", since_findings(record)), ("current", of_code(record, record["code"]))):
        record.setdefault(sums, {}).update({target: sum(one["runs"] for _, one in answers.get(target, ()))
                                            for target in {*answers, *record["code"]}})
    compared = [night["differential"] for night in record["nights"] if "differential" in night]
    for what in {name for one in compared for name in COMPARED if name in one}:
        record["runs"][f"{what} compared"] = sum(one.get(what, 0) for one in compared)


def merge_night(record, night, answers, digests):
    """The record's sums with `answers` of fuzz_on_cores() in it; returns whether anything was found. Callable again with newer answers."""
    night["fuzz"] = {target: {**one, **({"code": digests[target]} if target in digests else {})} for target, one in answers.items()}
    if not any(one is night for one in record["nights"]):
        record["nights"].append(night)
    sum_runs(record, digests)
    return any(one["exit"] != 0 or one["found"] for one in answers.values())


def speeds_of(record, build):
    """(runs a second, seconds) of each target in that build: the speed of the best night of its newest code, or of all if that has none, as
    others may have had the machine; the time of all."""
    speeds, spent = {}, {}
    for digests, counts in (({}, True), (record.get("code", {}), False)):
        best = {}
        for target, answers in of_code(record, digests).items():
            for night, one in answers:
                if night.get("build", "sanitizers") == build and one["seconds"] > 0:
                    best[target] = max(best.get(target, 0), one["runs"] / one["seconds"])
                    if counts:
                        spent[target] = spent.get(target, 0) + one["seconds"]
        speeds.update(best)
    return speeds, spent


def found(record):
    """Whether the code that counts failed, or a text of the differential fuzz differs."""
    return (any(one["found"] for answers in of_code(record, record["code"]).values() for _, one in answers) or
            any(night.get("differential", {}).get("differ", 0) > 0 for night in record["nights"]))


def add_record(record, other):
    """Adds the nights of another machine's record that `record` does not have yet; returns how many."""
    added = [night for night in other["nights"] if night not in record["nights"]]
    record["nights"] += added
    sum_runs(record, {})
    return len(added)


def print_sums(record, goal):
    """A line a target: runs since its last finding and their processor time, those of its newest code, what is missing to the goal."""
    answers = since_findings(record)
    speeds, _ = speeds_of(record, "volume")
    missing = 0
    for target, runs in sorted(record["runs"].items()):
        if target.endswith(" compared"):
            print(f"{target:28} {runs:15,}")
            continue
        seconds = max(0, goal - runs) / speeds[target] if target in speeds and goal < float("inf") else 0
        missing += seconds
        print(f"{target:28} {runs:15,} runs without a finding in {sum(one['seconds'] for _, one in answers.get(target, ())):10,.0f} core "
              f"seconds, {record['current'].get(target, 0):15,} of the newest code, {seconds:9,.0f} core seconds missing")
    print(f"{missing:,.0f} core seconds missing in all")


def write(path, record):
    """At once, so that a reader never sees half of it."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(record, indent=1) + "\n")
    new.replace(path)


def read_digests(programs):
    return json.loads((programs / "code.json").read_text()) if (programs / "code.json").exists() else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, help="folder of the programs")
    parser.add_argument("--add", type=pathlib.Path, nargs="*", help="records of other machines to add to --record; runs nothing; the "
                        "code of --programs counts, else that of a target's last night")
    parser.add_argument("--targets", default="", help="with commas between (all)")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="(%(default)s)")
    parser.add_argument("--seconds", type=float, help="in all")
    parser.add_argument("--goal", type=float, default=float("inf"), help="runs of a target in all nights, after which others have its time")
    parser.add_argument("--by", default="", choices=("", "share", "seconds", "runs"),
                        help="what the next program has most of, or least")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--corpus", type=pathlib.Path, default=ROOT / "build/corpus", help="inputs, kept from night to night")
    parser.add_argument("--record", type=pathlib.Path, required=True, help="JSON file, read and written anew")
    parser.add_argument("--commit", default="", help="that the programs were built from")
    parser.add_argument("--machine", default="", help="in words, for the record")
    parser.add_argument("--build", default="sanitizers", help="how: sanitizers or volume (%(default)s)")
    options = parser.parse_args()
    if options.add is None and (options.programs is None or options.seconds is None):
        parser.error("--programs and --seconds, or --add")
    if options.by == "share" and options.goal == float("inf"):
        parser.error("--by share needs --goal")
    record = json.loads(options.record.read_text()) if options.record.exists() else {"nights": [], "runs": {}}
    if options.add is not None:
        for path in options.add:
            print(f"{path}: {add_record(record, json.loads(path.read_text()))} calls added")
        sum_runs(record, read_digests(options.programs) if options.programs else {})
        write(options.record, record)
        print_sums(record, options.goal)
        sys.exit(1 if found(record) else 0)
    names = options.targets.split(",") if options.targets else sorted(path.name for path in options.programs.glob("*_fuzz"))
    digests = {name: code for name, code in read_digests(options.programs).items() if name in names}
    sum_runs(record, digests)
    night = {"date": time.strftime("%Y-%m-%d %H:%M:%S"), "commit": options.commit, "machine": options.machine, "cores": options.cores,
             "build": options.build}
    speeds, spent = speeds_of(record, options.build)
    shares = Shares([(options.programs / name).resolve() for name in names], record["runs"], options.goal, options.cores, options.by,
                    speeds, spent)

    def keep(answers):
        merge_night(record, night, answers, digests)
        write(options.record, record)

    running = Running()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, running.stop)
    answers = fuzz_on_cores(shares, options.cores, options.seconds, options.corpus.resolve(), options.nice, running, keep)
    for target, one in sorted(answers.items()):
        print(f"{target:28} {one['runs']:13,} runs, {one['runs'] / max(one['seconds'], 0.1):10,.0f} a second and core, "
              f"{record['runs'][target]:13,} in all, {len(one['found'])} found")
    sys.exit(1 if any(one["exit"] != 0 or one["found"] for one in answers.values()) else 0)


if __name__ == "__main__":
    main()
