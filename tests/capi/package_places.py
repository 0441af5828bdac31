# SPDX-License-Identifier: Apache-2.0
"""Where the installed package finds what it opens (python/koho/places.py). Runs with test_koho.py."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIBRARY = os.environ["KOHO_ENGINE"]


class Places(unittest.TestCase):
    def test_cuda_libraries_of_other_packages_are_found(self):
        with tempfile.TemporaryDirectory() as place:
            own, other = (pathlib.Path(place).resolve() / name for name in ("own", "other"))
            shutil.copytree(ROOT / "python" / "koho", own / "koho", ignore=shutil.ignore_patterns("__pycache__"))
            (own / "koho" / "bin").mkdir()
            (own / "koho" / "bin" / "engine.so").symlink_to(LIBRARY)
            (own / "koho" / "bin" / "koho").write_text("#!/bin/sh\necho $LD_LIBRARY_PATH\n")
            (own / "koho" / "bin" / "koho").chmod(0o755)
            files = [other / file for file in ("nvidia/cu13/lib/libcublasLt.so.13", "nvidia/nccl/lib/libnccl.so.2")]
            for file in files:
                file.parent.mkdir(parents=True)
                shutil.copy(LIBRARY, file)  # any library
            environment = {name: value for name, value in os.environ.items() if not name.startswith("KOHO_")}
            environment |= {"PYTHONPATH": f"{own}:{other}", "LD_LIBRARY_PATH": "/mine"}

            def said(*arguments):
                return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True).stdout.strip()

            self.assertEqual(said("-m", "koho"), f"/mine:{files[0].parent}:{files[1].parent}")
            maps = said("-c", "from koho import library; library.load(); print(open('/proc/self/maps').read())")
            for file in files:
                self.assertIn(str(file), maps)
            # Beside the package RUNPATH reaches them.
            (other / "nvidia").rename(own / "nvidia")
            self.assertEqual(said("-m", "koho"), "/mine")
