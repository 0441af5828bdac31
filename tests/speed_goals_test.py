#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/speed_goals.py tells reached, missed and unmeasured goals apart, and takes the last file's figures."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "speed_goals.py"
spec = importlib.util.spec_from_file_location("speed_goals", TOOL)
speed_goals = importlib.util.module_from_spec(spec)
spec.loader.exec_module(speed_goals)


def router(us, tokens=64):
    return {"op": "route", "case": "rows_5120_route", "shape": {"experts": 160, "hidden": 5120, "tokens": tokens}, "us": us, "bytes": 1,
            "flops": 1, "pct_of_bandwidth": 1.0, "pct_of_floor": 1.0}


def linear(us, form="own", chosen=True):
    return {"op": "linear", "case": "linear_o_tp4", "shape": {"columns": 3072, "rows": 5120, "tokens": 128}, "form": form, "chosen": chosen,
            "us": us}


class Goals(unittest.TestCase):
    def judged(self, *records):
        with tempfile.TemporaryDirectory() as name:
            paths = []
            for number, record in enumerate(records):
                paths.append(pathlib.Path(name) / f"{number}.json")
                paths[-1].write_text(json.dumps(record))
            return {goal: (text, reached) for goal, text, reached in speed_goals.judge(*speed_goals.rows_of(paths))}

    def test_a_missed_goal_names_its_rows(self):
        text, reached = self.judged({"command": "op_bench", "rows": [router(2.5, 1), router(3.1)]})["route, 1 to 64 tokens: at most 3 us"]
        self.assertFalse(reached)
        self.assertIn("3.1 us  rows_5120_route, 64 tokens", text)
        self.assertNotIn("2.5", text)

    def test_rows_beyond_the_goal_do_not_count(self):
        judged = self.judged({"command": "op_bench", "rows": [router(2.5), router(12.0, 256)]})
        self.assertTrue(judged["route, 1 to 64 tokens: at most 3 us"][1])

    def test_the_last_file_counts(self):
        judged = self.judged({"command": "op_bench", "rows": [router(3.1)]}, {"command": "op_bench", "rows": [router(2.9)]})
        self.assertTrue(judged["route, 1 to 64 tokens: at most 3 us"][1])

    def test_what_was_not_measured_is_not_reached(self):
        self.assertTrue(all(reached is None for _, reached in self.judged({"command": "op_bench", "rows": []}).values()))

    def test_other_modes_do_not_stand_for_the_product(self):
        for command in ("op_bench --portable", "op_bench --deterministic"):
            self.assertIsNone(self.judged({"command": command, "rows": [router(2.0)]})["route, 1 to 64 tokens: at most 3 us"][1])
        step = {"op": "step_decode", "shape": {"batch": 1, "tokens": 1, "context": 1060}, "us": 4000.0}
        name = "GLM-4.5-Air, a step of 1, 1k context: at most 4400 us"
        self.assertTrue(self.judged({"command": "koho bench latency", "layers": 46, "rows": [step]})[name][1])
        self.assertIsNone(self.judged({"command": "koho bench latency", "layers": 9, "rows": [step]})[name][1])
        self.assertIsNone(self.judged({"command": "koho bench latency --kv-dtype fp8", "layers": 46, "rows": [step]})[name][1])

    def test_cublaslt_beside(self):
        name = "linear, 1 to 128 tokens: no slower than cuBLASLt's scalar mode"
        library = linear(7.0, "cuBLASLt, one scale", False)
        self.assertTrue(self.judged({"command": "matmul_forms", "rows": [linear(6.9), library]})[name][1])
        text, reached = self.judged({"command": "matmul_forms", "rows": [linear(7.1), library]})[name]
        self.assertFalse(reached)
        self.assertIn("linear_o_tp4, 128 tokens: 7.1 us, cuBLASLt 7", text)

    def test_exit_codes_and_tables_of_kept_results(self):
        kept = sorted((ROOT / "bench" / "results").glob("*-h200-*.json"))
        run = lambda *arguments: subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(run(ROOT / "no_such.json").returncode, 2)
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "slow.json"
            path.write_text(json.dumps({"command": "op_bench", "rows": [router(9.0)]}))
            self.assertEqual(run(path).returncode, 1)
        printed = run("--table", *kept)
        self.assertEqual(printed.returncode, 0, printed.stderr)
        self.assertIn("| route |", printed.stdout)


if __name__ == "__main__":
    unittest.main()
