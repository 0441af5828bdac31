#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/gpu_check.py runs a step and says how it ended, on a machine that says it has a GPU."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


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


if __name__ == "__main__":
    unittest.main()
