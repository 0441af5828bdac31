#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/fuzz_cores.py gives each core the program that needs it most, counts runs since a target's last finding, and keeps what programs find."""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import fuzz_code  # noqa: E402
import fuzz_cores  # noqa: E402

# What a libFuzzer program prints and leaves; `speed` runs a second.
PROGRAM = """#!{python}
import pathlib, shutil, signal, sys, time
if "-merge=1" in sys.argv:  # features are in inputs whose names are short, edges in those before "c"
    for path in pathlib.Path(sys.argv[-1]).iterdir():
        if len(path.name) == 1 and ("-use_counters=0" not in sys.argv or path.name < "c"):
            shutil.copy(path, sys.argv[-2])
    time.sleep({merging})
    sys.exit(0)
if not any(a.startswith("-max_total_time") for a in sys.argv):  # another slice writes one meanwhile
    inputs = [pathlib.Path(a) for a in sys.argv[1:] if not a.startswith("-")]
    (inputs[0].parent / "meanwhile").write_text("")
    for path in inputs:
        print(f"Executed {{path}} in {{99 if path.read_text() == 'slow' else 1}} ms", file=sys.stderr)
    sys.exit(0)
def told(runs):
    print(f"stat::number_of_executed_units: {{runs}}\\nstat::peak_rss_mb: 31", file=sys.stderr)
def terminated(*_):
    told(44)
    sys.exit(72)
signal.signal(signal.SIGTERM, terminated)
seconds = next(float(a.split("=")[1]) for a in sys.argv if a.startswith("-max_total_time"))
found = next(a.split("=")[1] for a in sys.argv if a.startswith("-artifact_prefix"))
if {reads}:
    print("#4\\tINITED cov: 3 ft: 4", file=sys.stderr, flush=True)
pathlib.Path(sys.argv[1], "new").write_text("")
for listed in (a.split("@")[1] for a in sys.argv if a.startswith("-seed_inputs=@")):
    pathlib.Path(__file__ + ".read").write_text(pathlib.Path(listed).read_text())
time.sleep(seconds / 50 if {speed} else 60)
print("#9\\tDONE cov: 7 ft: 9", file=sys.stderr)
told(int(seconds * {speed}) + 4)
if {crashes}:
    pathlib.Path(found + f"crash-{{time.monotonic_ns()}}").write_text("x")
    sys.exit(77)
"""


ANSWER = {"runs": 5, "seconds": 2.0, "edges": 1, "peak_rss_mb": 1, "found": [], "exit": 0}


class FuzzCores(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.corpus = pathlib.Path(self.folder.name) / "corpus"
        self.set_constants(SLICE_SECONDS=(1, 1))

    def set_constants(self, **values):
        changed = unittest.mock.patch.multiple(fuzz_cores, **values)
        changed.start()
        self.addCleanup(changed.stop)

    def program(self, name, speed, crashes=False, reads=True, merging=0):
        path = pathlib.Path(self.folder.name) / name
        path.write_text(PROGRAM.format(python=sys.executable, speed=speed, crashes=crashes, reads=reads, merging=merging))
        path.chmod(0o755)
        return path

    def test_a_program_tells_its_runs(self):
        one = fuzz_cores.fuzz(self.program("a_fuzz", 1000), 2, self.corpus)
        self.assertEqual((one["runs"], one["edges"], one["peak_rss_mb"], one["found"], one["exit"]), (2000, 7, 31, [], 0))

    def test_a_program_beyond_its_time_is_ended_and_tells_its_runs(self):
        one = fuzz_cores.fuzz(self.program("a_fuzz", 0), 1, self.corpus)
        self.assertEqual((one["runs"], one["exit"]), (40, 0))

    def test_what_is_read_of_a_corpus_is_no_run(self):
        self.assertEqual(fuzz_cores.fuzz(self.program("a_fuzz", 1000, reads=False), 2, self.corpus)["runs"], 0)

    def test_records_of_machines_are_added_once(self):
        record = {"nights": [{"date": "2026-11-25", "commit": "a", "fuzz": {"a_fuzz": ANSWER}}], "runs": {"a_fuzz": 5}}
        other = {"nights": [{"date": "2026-11-26", "commit": "b", "fuzz": {"a_fuzz": {**ANSWER, "runs": 7}, "b_fuzz": ANSWER}}], "runs": {}}
        self.assertEqual([fuzz_cores.add_record(record, other), fuzz_cores.add_record(record, other)], [1, 0])
        self.assertEqual(record["runs"], {"a_fuzz": 12, "b_fuzz": 5})

    def test_texts_of_the_differential_fuzz_are_summed(self):
        record = {"nights": [], "runs": {}}
        for commit, differ in (("a", 0), ("b", 1)):
            fuzz_cores.add_record(record, {"nights": [{"commit": commit, "differential": {"texts": 3, "conversations": 2, "differ": differ}}]})
            self.assertEqual(fuzz_cores.found(record), differ == 1)
        self.assertEqual(record["runs"], {"texts compared": 6, "conversations compared": 4})

    def test_runs_of_changed_code_are_told_apart(self):
        record = {"nights": [], "runs": {}}
        for commit, answers, digests, current in (("a", ("a_fuzz", "b_fuzz"), {"a_fuzz": "1", "b_fuzz": "2"}, {"a_fuzz": 5, "b_fuzz": 5}),
                                                  ("b", ("a_fuzz",), {"a_fuzz": "3", "b_fuzz": "2"}, {"a_fuzz": 5, "b_fuzz": 5}),
                                                  ("c", ("a_fuzz",), {"a_fuzz": "3", "b_fuzz": "4"}, {"a_fuzz": 10, "b_fuzz": 0})):
            fuzz_cores.merge_night(record, {"commit": commit}, {target: ANSWER for target in answers}, digests)
            self.assertEqual(record["current"], current)
        self.assertEqual(record["runs"], {"a_fuzz": 15, "b_fuzz": 5})

    def test_runs_count_from_the_last_finding_on(self):
        def night(date, code, runs, found):
            return {"date": date, "fuzz": {"a_fuzz": {**ANSWER, "runs": runs, "code": code, "found": found}}}
        record = {"nights": [night("2026-11-26 15:00:00", "new", 5, [])], "runs": {}}
        fuzz_cores.add_record(record, {"nights": [night("2026-11-26 13:00:00", "old", 9, []), night("2026-11-26 14:00:00", "old", 7, ["crash"])]})
        self.assertEqual((record["runs"], record["current"], fuzz_cores.found(record)), ({"a_fuzz": 5}, {"a_fuzz": 5}, False))
        fuzz_cores.sum_runs(record, {"a_fuzz": "old"})
        self.assertEqual((record["runs"], record["current"], fuzz_cores.found(record)), ({"a_fuzz": 5}, {"a_fuzz": 16}, True))

    def test_comments_and_blanks_are_no_code(self):
        self.assertEqual(fuzz_code.without_comments("int a = 1'000;  // it's\n\n/* b */ f('\"', \"//\\\"\");"),
                         fuzz_code.without_comments("int a = 1'000;\n f('\"', \"//\\\"\");"))
        self.assertNotEqual(fuzz_code.without_comments('f("// a");'), fuzz_code.without_comments('f("// b");'))
        self.assertNotEqual(fuzz_code.without_comments('R"(\n// a)"'), fuzz_code.without_comments('R"(\n// b)"'))

    def test_each_program_has_the_time_that_it_lacks(self):
        programs = [self.program(name, 1) for name in ("fast_fuzz", "slow_fuzz", "there_fuzz")]
        self.set_constants(SLICE_SECONDS=(1, 10))
        shares = fuzz_cores.Shares(programs, {"there_fuzz": 1000, "slow_fuzz": 900}, 1000,
                                   speeds={"fast_fuzz": 50, "slow_fuzz": 1, "there_fuzz": 1})
        taken = [shares.take(100) for _ in range(20)]  # slow lacks 100 s, fast 20 s
        seconds = {name: sum(one[1] for one in taken if one and one[0].name == name) for name in ("fast_fuzz", "slow_fuzz", "there_fuzz")}
        self.assertEqual(seconds, {"fast_fuzz": 20, "slow_fuzz": 100, "there_fuzz": 0})
        self.assertIsNone(taken[-1])

    def test_missing_runs_fall_evenly_whatever_the_time(self):
        speeds = {"fast_fuzz": 1000, "slow_fuzz": 10, "half_fuzz": 100, "there_fuzz": 1}
        before = {"half_fuzz": 5000, "there_fuzz": 10000}
        shares = fuzz_cores.Shares([self.program(name, speed) for name, speed in speeds.items()], before, 10000, cores=4,
                                   speeds={**speeds, "slow_fuzz": 140})  # which its best night told of easier inputs
        for _ in range(100):  # of four cores, a second each
            for program, _ in [shares.take(1) for _ in range(4)]:
                shares.put(program, 1, {**ANSWER, "runs": speeds[program.name], "seconds": 1.0})
        left = [(10000 - before.get(name, 0) - total["runs"]) / (10000 - before.get(name, 0)) for name, total in shares.totals.items() if total]
        self.assertEqual(len(left), 3)
        self.assertLess(max(left) - min(left), 0.2)  # a slice of the fast one is a tenth

    def test_a_speed_is_that_of_the_newest_code(self):
        def night(code, runs, build="volume"):
            return {"build": build, "fuzz": {"a_fuzz": {**ANSWER, "runs": runs, "code": code}}}
        nights = [night("1", 900), night("2", 10), night("2", 30), night("2", 5000, "sanitizers")]
        for digest, speed in (("1", 450), ("2", 15), ("3", 450)):
            self.assertEqual(fuzz_cores.speeds_of({"nights": nights, "code": {"a_fuzz": digest}}, "volume"), ({"a_fuzz": speed}, {"a_fuzz": 6}))

    def test_time_can_be_the_same_for_all(self):
        shares = fuzz_cores.Shares([self.program("a_fuzz", 1), self.program("b_fuzz", 1)], {}, by="seconds", spent={"a_fuzz": 3.5},
                                   speeds={"a_fuzz": 1, "b_fuzz": 1})
        self.assertEqual([shares.take(1)[0].name for _ in range(6)], ["b_fuzz"] * 4 + ["a_fuzz", "b_fuzz"])

    def names_in_corpus(self, *more):
        (self.corpus / "a_fuzz").mkdir(parents=True, exist_ok=True)
        for name in more:
            (self.corpus / "a_fuzz" / name).write_text(name)
        return sorted(path.name for path in (self.corpus / "a_fuzz").iterdir())

    def test_a_slice_reads_few_inputs_and_leaves_what_it_finds(self):
        self.names_in_corpus("a", "b", "c")
        program = self.program("a_fuzz", 1000)
        fuzz_cores.fuzz(program, 1, self.corpus, inputs_max=2)
        read = [pathlib.Path(path).name for path in (self.corpus.parent / "a_fuzz.read").read_text().split(",")]
        self.assertEqual((len(read), len(set(read) & set("abc"))), (2, 2))
        self.assertEqual(self.names_in_corpus(), ["a", "b", "c", "new"])
        self.assertEqual(sorted(path.name for path in self.corpus.iterdir()), ["a_fuzz", "a_fuzz.found"])

    def test_a_slow_program_has_a_smaller_corpus(self):
        shares = fuzz_cores.Shares([self.program("slow_fuzz", 1), self.program("a_fuzz", 1)], {}, speeds={"slow_fuzz": 30, "a_fuzz": 3000})
        self.assertEqual((shares.inputs_max("slow_fuzz"), shares.inputs_max("a_fuzz")), (30 * fuzz_cores.READ_SECONDS, fuzz_cores.CORPUS_MAX))

    def test_a_large_corpus_is_made_smaller(self):
        self.set_constants(CORPUS_MAX=6)
        program = self.program("a_fuzz", 1000)
        shares = fuzz_cores.Shares([program], {})

        def names_after(*names):
            self.names_in_corpus(*names)
            shares.keep_small(program, self.corpus)
            return self.names_in_corpus()

        self.assertEqual(names_after("a", "b", "c", "l1", "l2", "l3"), ["a", "b", "c", "l1", "l2", "l3"])
        self.assertEqual(names_after("l4"), ["a", "b", "c", "meanwhile"])
        # What others wrote meanwhile does not raise what it may be, beyond half of which one input for each edge is left.
        self.assertEqual(names_after("d", "l1", "l2"), ["a", "b"])
        self.assertEqual(shares.inputs_max("a_fuzz"), 6)
        self.assertEqual([path.name for path in self.corpus.iterdir()], ["a_fuzz"])

    def test_a_slow_input_is_left_if_it_alone_reaches_an_edge(self):
        self.names_in_corpus("b", "e")
        for name in "ad":
            (self.corpus / "a_fuzz" / name).write_text("slow")
        self.assertEqual(fuzz_cores.minimise(self.program("a_fuzz", 1000), self.corpus), 3)
        self.assertEqual(self.names_in_corpus(), ["a", "b", "e", "meanwhile"])

    def test_the_smallest_inputs_are_left_of_a_corpus_that_takes_too_long(self):
        self.set_constants(MINIMISE_SECONDS=3, GRACE_SECONDS=0.2)
        self.names_in_corpus("a", "b", "l1", "long", "longer")
        self.assertEqual(fuzz_cores.minimise(self.program("a_fuzz", 1000, merging=60), self.corpus, inputs_max=3), 3)
        self.assertEqual(self.names_in_corpus(), ["a", "b", "l1", "meanwhile"])

    def test_a_corpus_is_made_smaller_in_the_time_that_is_left(self):
        self.set_constants(CORPUS_MAX=2, SLICE_SECONDS=(0.5, 1), GRACE_SECONDS=0.2)
        self.names_in_corpus("a", "b", "c", "d")
        began = time.monotonic()
        fuzz_cores.fuzz_on_cores(fuzz_cores.Shares([self.program("a_fuzz", 1000, merging=60)], {}), 1, 3, self.corpus)
        self.assertLess(time.monotonic() - began, 30)

    def test_a_signal_ends_all_and_the_record_has_what_they_ran(self):
        self.program("a_fuzz", 0), self.program("b_fuzz", 0)
        record = self.corpus.parent / "record.json"
        command = [sys.executable, ROOT / "tools/fuzz_cores.py", "--programs", self.corpus.parent, "--cores", "2", "--seconds", "60",
                   "--goal", "1e6", "--corpus", self.corpus, "--record", record]
        started = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while len(list(self.corpus.glob("*/new/new"))) < 2:  # which they write once they know what to do at a signal
            time.sleep(0.05)
        started.send_signal(signal.SIGTERM)
        self.assertEqual(started.wait(timeout=120), 0)
        self.assertEqual(json.loads(record.read_text())["runs"], {"a_fuzz": 40, "b_fuzz": 40})

    def test_slow_programs_have_more_time(self):
        programs = [self.program("fast_fuzz", 9000), self.program("slow_fuzz", 1000), self.program("middle_fuzz", 3000)]
        shares = fuzz_cores.Shares(programs, {})
        for _ in range(60):  # slices of one second, one after another
            program, _ = shares.take(1)
            speed = {"fast_fuzz": 9000, "slow_fuzz": 1000, "middle_fuzz": 3000}[program.name]
            shares.put(program, 1, {"runs": speed, "seconds": 1.0, "edges": 1, "peak_rss_mb": 1, "found": [], "exit": 0})
        runs = [total["runs"] for total in shares.totals.values()]
        self.assertLessEqual(max(runs) - min(runs), 9000)
        self.assertAlmostEqual(shares.totals["slow_fuzz"]["seconds"], 60 / (1 + 1 / 3 + 1 / 9), delta=2)

    def test_a_very_slow_program_leaves_cores_to_others(self):
        speeds = {"a_fuzz": 9000, "b_fuzz": 9000, "c_fuzz": 9000, "slow_fuzz": 1}
        shares = fuzz_cores.Shares([self.program(name, speed) for name, speed in speeds.items()], {}, cores=8)
        for name, speed in speeds.items():
            shares.totals[name] = {"runs": speed, "seconds": 1.0, "edges": 1, "peak_rss_mb": 1, "found": [], "exit": 0}
        taken = [shares.take(1)[0].name for _ in range(8)]
        self.assertEqual(taken.count("slow_fuzz"), 2)

    def test_the_goal_counts_earlier_nights(self):
        program = self.program("a_fuzz", 1000)
        answers = fuzz_cores.fuzz_on_cores(fuzz_cores.Shares([program], {"a_fuzz": 500}, 1400), 2, 10, self.corpus)
        self.assertEqual(answers["a_fuzz"]["runs"], 1000)

    def test_a_finding_is_named_and_stops_its_program(self):
        program = self.program("bad_fuzz", 1000, crashes=True)
        answers = fuzz_cores.fuzz_on_cores(fuzz_cores.Shares([program], {}), 1, 60, self.corpus)
        self.assertEqual(len(answers["bad_fuzz"]["found"]), fuzz_cores.FINDINGS_MAX)
        self.assertEqual(answers["bad_fuzz"]["exit"], 77)
        record = {"nights": [{"fuzz": {"bad_fuzz": {**ANSWER, "code": "1"}}}], "runs": {}}
        self.assertTrue(fuzz_cores.merge_night(record, {}, answers, {"bad_fuzz": "1"}))
        self.assertEqual(record["runs"]["bad_fuzz"], 0)
        self.assertEqual(record["current"]["bad_fuzz"], 5 + answers["bad_fuzz"]["runs"])


if __name__ == "__main__":
    unittest.main()
