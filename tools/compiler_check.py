#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyPI's CUDA compiler, with which run.py builds where no toolkit is, beside this machine's toolkit: every kernel must be the same.

    tools/compiler_check.py

Builds the CUDA objects by the toolkit (build/cuda-compile) and the program by PyPI's packages, as run.py does without nvcc
(build/cuda-compile-pypi); compares the kernels' machine code (kernel_digest.py), and lets the second program answer on the CPU.
Nothing of the toolkit may be in the second build's commands. Needs the toolkit of the same version. Where it has no cuobjdump,
PyPI's reads the kernels. Exit code 1 on a difference.
"""
import os
import pathlib
import subprocess
import sys

import kernel_digest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import run  # noqa: E402

OBJECTS = ("koho_cuda_kernels", "koho_cuda_hopper")
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."

DISASSEMBLER = ("nvidia-cuda-cuobjdump==13.5.37", "nvidia-cuda-nvdisasm==13.5.37")  # it reads earlier versions' code


def cuobjdump(toolkit):
    """The toolkit's, or PyPI's in a folder of the build; nvdisasm, which it runs, is on PATH then."""
    folder = toolkit / "bin"
    if not (folder / "cuobjdump").exists():
        place = ROOT / "build" / "cuda-disassembler"
        folder = place / "nvidia" / "cu13" / "bin"
        if not (folder / "cuobjdump").exists():
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place, *DISASSEMBLER], check=True)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return folder / "cuobjdump"


def build(folder, targets, variables):
    for command in (["cmake", "--preset", "cuda-compile", "-B", folder, *variables],
                    ["cmake", "--build", folder, "-j", str(run.jobs()), "--target", *targets]):
        print("+", *command, flush=True)
        if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            sys.exit(f"compiler_check: {' '.join(map(str, command))} failed")


def main():
    compiler = run.find_cuda_compiler()
    if compiler is None:
        sys.exit("compiler_check: this machine has no CUDA toolkit to compare with")
    toolkit = pathlib.Path(compiler).resolve().parent.parent
    folders = ROOT / "build" / "cuda-compile", ROOT / "build" / "cuda-compile-pypi"
    os.environ["CUDACXX"] = compiler
    build(folders[0], OBJECTS, [])
    run.find_cuda_compiler = lambda: None
    # Each file by itself: a missing include shows.
    build(folders[1], (*OBJECTS, "koho"), [*run.use_cuda(), "-DKOHO_PRECOMPILE=OFF"])
    if str(toolkit) in (folders[1] / "build.ninja").read_text():
        sys.exit(f"compiler_check: the build by PyPI's compiler has parts of {toolkit}")
    tool = cuobjdump(toolkit)
    theirs, ours = (kernel_digest.digests(folder / "src" / "cuda", tool) for folder in folders)
    kernels = sum(int(line.split()[2]) for line in theirs)
    different = sorted(set(theirs) ^ set(ours))
    for line in different:
        print(f"{'by PyPI' if line in ours else 'by the toolkit'} only: {line}")
    said = subprocess.run([folders[1] / "src" / "app" / "koho", "run", ROOT / "models" / "tiny", QUESTION, "--device", "cpu", "--temperature", "0"],
                          capture_output=True, text=True, check=False)
    if said.returncode != 0 or ANSWER not in said.stdout:
        sys.exit(f"compiler_check: the program by PyPI's compiler ended with {said.returncode}: {said.stderr[-500:]}{said.stdout[-500:]}")
    print(f"{kernels} kernels by the toolkit, {len(different)} digests apart by PyPI's compiler; its program answers")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
