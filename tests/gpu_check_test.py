#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.py runs a step and says how it ended, on a machine that says it has a GPU."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import gpu_check  # noqa: E402


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
