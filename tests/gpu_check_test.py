#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.py runs a step and says how it ended, on a machine that says it has a GPU."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import gpu_check  # noqa: E402
import gpu_check_ranks  # noqa: E402


class GpuCheck(unittest.TestCase):
    def test_goals_without_a_measurement_fail(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            smi = folder / "nvidia-smi"
            smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 9.0, 143771, 580.1'\n")
            smi.chmod(0o755)
            ran = subprocess.run([sys.executable, ROOT / "tools" / "gpu_check.py", "--no-build", "--out", folder / "out", "--only", "goals"],
                                 env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}, capture_output=True, text=True, check=False)
            self.assertEqual(ran.returncode, 1, ran.stderr)
            steps = json.loads((folder / "out" / "results.json").read_text())["steps"]
            self.assertEqual([(step["step"], step["state"]) for step in steps], [("goals", "failed (2)")])

    def test_a_list_without_a_gpu_is_of_all_layers(self):
        with tempfile.TemporaryDirectory() as empty:
            ran = subprocess.run([sys.executable, ROOT / "tools" / "gpu_check.py", "--list", "--only", "latency"],
                                 env={**os.environ, "PATH": empty}, capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        lines = ran.stdout.splitlines()
        self.assertTrue(lines)
        self.assertTrue(all(" --layers 46 " in line for line in lines), ran.stdout)

    def test_the_goals_read_what_earlier_steps_write(self):
        out = pathlib.Path("results")
        steps = gpu_check.steps({"memory_bytes": sys.maxsize, "commit": None}, out)
        self.assertEqual(len({step.name for step in steps}), len(steps))
        goals = next(index for index, step in enumerate(steps) if step.name == "goals")
        written = {part for step in steps[:goals] for part in step.command} | {str(step.record[0]) for step in steps[:goals] if step.record}
        self.assertLessEqual({part for part in steps[goals].command if part.endswith(".json")}, written)

    def test_ranks_on_one_gpu_are_not_timed(self):
        for gpus in (2, 4, 8):
            found = {"memory_bytes": 80 << 30, "commit": "abc"}
            alone = gpu_check.rank_steps(found, pathlib.Path("out"), gpus, False)
            shared = gpu_check.rank_steps(found, pathlib.Path("out"), gpus, True)
            for steps in (alone, shared):
                self.assertEqual(len({step.name for step in steps}), len(steps))
                self.assertTrue(all(step.limit <= 540 for step in steps))  # one piece holds it
            names = {step.name for step in shared}
            self.assertTrue({"ranks: collectives", "ranks: greedy ids", "ranks: workers broken", "ranks: goldens"} <= names)
            self.assertFalse([name for name in names if re.search("ranks: .*(times|server|loading|prompt)", name)])
            self.assertEqual({step.name for step in shared if step.record}, {f"one rank of {gpus}: loading"} & names)
            self.assertEqual({step.name for step in shared if step.name.startswith("one rank")} == set(), gpus == 2)
            command = " ".join(next(step for step in alone if step.name == "ranks: steps, sliced").command)
            self.assertIn(f"--ranks {gpus} --devices {','.join(map(str, range(gpus)))} --experts sliced", command)

    def test_a_second_piece_goes_on_where_the_first_ended(self):
        def step(name):
            return gpu_check.Step(name, ["true"], 100)
        chosen = [step(name) for name in ("good", "bad", "late", "cut short", "too slow", "new")]
        states = [("good", "ok", 100), ("bad", "failed (1)", 100), ("late", "no time left", 100), ("cut short", "too slow", 40),
                  ("too slow", "too slow", 100), ("build the rest", "ok", 900)]
        rows = [{"step": name, "state": state, "limit": limit, "seconds": 1.0, "lines": []} for name, state, limit in states]
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "results.json").write_text(json.dumps({"machine": {"commit": "abc"}, "steps": rows}))
            for commit, expected in (("abc", ["late", "cut short", "new"]), ("def", [step.name for step in chosen]),
                                     (None, [step.name for step in chosen])):
                checks = gpu_check.Checks(folder, {"commit": commit}, time.monotonic() + 60)
                self.assertEqual([step.name for step in checks.go_on(chosen)], expected)
                self.assertEqual(len(checks.rows), 3 if commit == "abc" else 0)
                checks.log.close()

    def test_too_few_gpus_are_told_before_anything_runs(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            smi = folder / "nvidia-smi"
            smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 9.0, 143771, 580.1'\n")
            smi.chmod(0o755)
            env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
            command = [sys.executable, ROOT / "tools" / "gpu_check.py", "--no-build", "--out", folder / "out", "--gpus", "4"]
            ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            self.assertEqual(ran.returncode, 2)
            self.assertIn("--gpus 4 needs 4 GPUs, 1 are here", ran.stderr)
            self.assertFalse((folder / "out").exists())
            # On the one GPU that is there the same command runs; this build has no programs.
            ran = subprocess.run([*command, "--shared-gpu", "--only", "communicators"], env=env, capture_output=True, text=True, check=False)
            self.assertEqual(ran.returncode, 1, ran.stderr)
            steps = json.loads((folder / "out" / "results.json").read_text())["steps"]
            self.assertEqual({step["step"] for step in steps}, {"ranks: communicators", "ranks: communicators, 10^5 collectives",
                                                                "ranks: communicators of processes, 300 rounds"})
            shape = json.loads((folder / "out" / "glm-4.7" / "config.json").read_text())
            self.assertEqual(shape["num_hidden_layers"], gpu_check_ranks.layers_that_fit(4, 143771 << 20))

    def test_a_list_says_about_how_long_everything_takes(self):
        ran = subprocess.run([sys.executable, ROOT / "tools" / "gpu_check.py", "--list", "--gpus", "2", "--device", "cpu"],
                             capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        seconds = [int(re.search(r", about +(\d+) s", line)[1]) for line in ran.stdout.splitlines()]
        self.assertIn(f"{len(seconds)} steps, about {sum(seconds) / 60:.0f} minutes", ran.stderr)
        self.assertNotIn("cuda", ran.stdout)

    def test_times_and_loads_become_rows(self):
        line = ('{"ranks":4,"gpus":4,"as":"threads","part":"times","rows":16,"width":5120,"fused_one_us":4.50,"fused_two_us":5.00,'
                '"fused_one_built_in_us":4.25,'
                '"plain_one_us":3.80,"plain_two_us":4.20,"plain_then_norm_us":6.00,"norm_us":2.00,"one_gb_s":100,"two_gb_s":90}')
        rows = gpu_check_ranks.all_reduce_rows(["other", '{"part":"link"}', line])
        self.assertEqual([(row["form"], row["us"]) for row in rows], [("one-shot", 3.8), ("two-shot", 4.2), ("one-shot, with norm", 4.25),
                                                                      ("two-shot, with norm", 5.0)])
        self.assertEqual(rows[0]["shape"], {"ranks": 4, "tokens": 16, "hidden": 5120})
        load, ready = gpu_check_ranks.loading_rows(["weights of rank 3: 45.4 GB on the device after 1.73 s, 26.2 GB/s, 14 threads", "weights: x",
                                                    "NVIDIA H200, start 1.8 s, 48.10 GB held, 90.00 GB free"])
        self.assertEqual(ready, {"op": "ready", "us": 1_800_000})
        self.assertEqual((load["rank"], load["bytes"], load["us"], load["gb_per_s"]), (3, 45_400_000_000, 1_730_000, 26.2))

    def test_an_end_from_outside_ends_the_running_step(self):
        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            checks = gpu_check.Checks(folder, {}, time.monotonic() + 60)
            try:
                signal.setitimer(signal.ITIMER_REAL, 1.0)
                with self.assertRaises(KeyboardInterrupt):
                    checks.run("long", ["sh", "-c", "echo $$ > pid; exec sleep 60"], 60, cwd=folder)
            finally:
                signal.signal(signal.SIGALRM, before)
            process = int((folder / "pid").read_text())
            checks.log.close()
        with self.assertRaises(ProcessLookupError):
            os.kill(process, 0)


if __name__ == "__main__":
    unittest.main()
