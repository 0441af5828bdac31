#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/fuzz_cores.py gives programs of different speeds about the same number of runs, and keeps what they find."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import fuzz_cores  # noqa: E402

# What a libFuzzer program prints and leaves; `speed` runs a second.
PROGRAM = """#!{python}
import pathlib, sys, time
seconds = next(float(a.split("=")[1]) for a in sys.argv if a.startswith("-max_total_time"))
found = next(a.split("=")[1] for a in sys.argv if a.startswith("-artifact_prefix"))
time.sleep(seconds / 50)
print("#1 INITED cov: 3 ft: 4\\n#9 DONE cov: 7 ft: 9", file=sys.stderr)
print(f"stat::number_of_executed_units: {{int(seconds * {speed})}}\\nstat::peak_rss_mb: 31", file=sys.stderr)
if {crashes}:
    pathlib.Path(found + f"crash-{{time.monotonic_ns()}}").write_text("x")
    sys.exit(77)
"""


class FuzzCores(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.corpus = pathlib.Path(self.folder.name) / "corpus"
        fuzz_cores.SLICE_SECONDS = (1, 1)

    def program(self, name, speed, crashes=False):
        path = pathlib.Path(self.folder.name) / name
        path.write_text(PROGRAM.format(python=sys.executable, speed=speed, crashes=crashes))
        path.chmod(0o755)
        return path

    def test_a_program_tells_its_runs(self):
        one = fuzz_cores.fuzz(self.program("a_fuzz", 1000), 2, self.corpus)
        self.assertEqual((one["runs"], one["edges"], one["peak_rss_mb"], one["found"], one["exit"]), (2000, 7, 31, [], 0))

    def test_records_of_machines_are_added_once(self):
        one = {"runs": 5, "seconds": 2.0, "edges": 1, "peak_rss_mb": 1, "found": [], "exit": 0}
        record = {"nights": [{"date": "2026-11-25", "commit": "a", "fuzz": {"a_fuzz": one}}], "runs": {"a_fuzz": 5}}
        other = {"nights": [{"date": "2026-11-26", "commit": "b", "fuzz": {"a_fuzz": {**one, "runs": 7}, "b_fuzz": one}}], "runs": {}}
        self.assertEqual([fuzz_cores.add_record(record, other), fuzz_cores.add_record(record, other)], [1, 0])
        self.assertEqual(record["runs"], {"a_fuzz": 12, "b_fuzz": 5})

    def test_slow_programs_have_more_time(self):
        programs = [self.program("fast_fuzz", 9000), self.program("slow_fuzz", 1000), self.program("middle_fuzz", 3000)]
        shares = fuzz_cores.Shares(programs, {}, float("inf"))
        for _ in range(60):  # slices of one second, one after another
            program = shares.take(1)
            speed = {"fast_fuzz": 9000, "slow_fuzz": 1000, "middle_fuzz": 3000}[program.name]
            shares.put(program, 1, {"runs": speed, "seconds": 1.0, "edges": 1, "peak_rss_mb": 1, "found": [], "exit": 0})
        runs = [total["runs"] for total in shares.totals.values()]
        self.assertLessEqual(max(runs) - min(runs), 9000)
        self.assertAlmostEqual(shares.totals["slow_fuzz"]["seconds"], 60 / (1 + 1 / 3 + 1 / 9), delta=2)

    def test_a_very_slow_program_leaves_cores_to_others(self):
        speeds = {"a_fuzz": 9000, "b_fuzz": 9000, "c_fuzz": 9000, "slow_fuzz": 1}
        shares = fuzz_cores.Shares([self.program(name, speed) for name, speed in speeds.items()], {}, float("inf"), cores=8)
        for name, speed in speeds.items():
            shares.totals[name] = {"runs": speed, "seconds": 1.0, "edges": 1, "peak_rss_mb": 1, "found": [], "exit": 0}
        taken = [shares.take(1).name for _ in range(8)]
        self.assertEqual(taken.count("slow_fuzz"), 2)

    def test_the_goal_counts_earlier_nights(self):
        program = self.program("a_fuzz", 1000)
        answers = fuzz_cores.fuzz_on_cores([program], 2, 10, self.corpus, {"a_fuzz": 500}, goal=1400)
        self.assertEqual(answers["a_fuzz"]["runs"], 1000)

    def test_a_finding_is_named_and_stops_its_program(self):
        program = self.program("bad_fuzz", 1000, crashes=True)
        answers = fuzz_cores.fuzz_on_cores([program], 1, 3, self.corpus, {})
        self.assertEqual(len(answers["bad_fuzz"]["found"]), fuzz_cores.FINDINGS_MAX)
        self.assertEqual(answers["bad_fuzz"]["exit"], 77)
        record, night = {"nights": [], "runs": {"bad_fuzz": 1}}, {}
        self.assertTrue(fuzz_cores.merge_night(record, night, answers))
        self.assertEqual(record["runs"]["bad_fuzz"], 1 + answers["bad_fuzz"]["runs"])


if __name__ == "__main__":
    unittest.main()
