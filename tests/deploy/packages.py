#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Python packages that only these tests use, in a folder of the build. `tests/deploy/packages.py` fills it; a test that does
not find its package is skipped."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
FOLDER = ROOT / "build" / "deploy-packages"
SKIPPED = 77  # ctest's exit code for a skipped test


def use() -> str:
    """Lets this process import them; returns the PYTHONPATH with which others do, and find koho."""
    sys.path.append(str(FOLDER))
    return os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")]), str(FOLDER)])


def install():
    stamp = FOLDER / "installed"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(FOLDER), "-r",
                    str(REQUIREMENTS)], check=True)
    stamp.write_text(wanted)


if __name__ == "__main__":
    install()
