#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Digests of the kernels' machine code, to show that a change of names or files left every kernel as it was.

    tools/kernel_digest.py build/cuda-compile --out before.txt      # then change, build again, and
    tools/kernel_digest.py build/cuda-compile --against before.txt

A kernel's digest is of its instructions with their encodings and its use of registers, stack and shared memory, without its name; a kernel
that was only renamed or moved to another file keeps it. Needs cuobjdump of the CUDA toolkit. Exit code 1 on a difference.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

FUNCTION = re.compile(r"^\s*Function : (\S+)")
ARCHITECTURE = re.compile(r"^\s*(?:arch = |code for )(sm_\w+)")
ENCODING = re.compile(r"/\* 0x[0-9a-f]{16} \*/$")  # ends an instruction's line, and is alone on the second line of each
MANGLED_NAME = re.compile(r"\b_Z\w+")
RESOURCE_FUNCTION = re.compile(r"^\s*Function (\S+?):$")


def run(tool, *arguments):
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout.splitlines()


def kernels_of(tool, path):
    """(architecture, name) -> digest of each kernel in one object file."""
    resources, name, architecture = {}, None, None
    for line in run(tool, "--dump-resource-usage", str(path)):
        if found := ARCHITECTURE.match(line):
            architecture = found[1]
        elif found := RESOURCE_FUNCTION.match(line):
            name = found[1]
        elif "REG:" in line and name is not None:
            resources[architecture, name] = line.strip()
            name = None
    bodies = collections.defaultdict(list)
    for line in run(tool, "--dump-sass", str(path)):
        if found := ARCHITECTURE.match(line):
            architecture = found[1]
        elif found := FUNCTION.match(line):
            name = found[1]
        elif name is not None and ENCODING.search(line):
            bodies[architecture, name].append(MANGLED_NAME.sub("", line.strip()))
    return {key: hashlib.sha256("\n".join([*body, resources.get(key, "")]).encode()).hexdigest()[:16]
            for key, body in bodies.items()}


def digests(folder, tool):
    """Sorted lines `architecture digest count` of all kernels of the CUDA objects under `folder`."""
    objects = sorted(folder.rglob("*.cu.o"))
    if not objects:
        raise SystemExit(f"{folder} holds no CUDA objects (*.cu.o): build the preset cuda-compile first")
    counts = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for found in pool.map(lambda path: kernels_of(tool, path), objects):
            counts.update((architecture, digest) for (architecture, _), digest in found.items())
    return [f"{architecture} {digest} {count}" for (architecture, digest), count in sorted(counts.items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="a build folder with CUDA")
    parser.add_argument("--out", type=pathlib.Path, help="write the digests here")
    parser.add_argument("--against", type=pathlib.Path, help="compare with digests written earlier")
    arguments = parser.parse_args()
    tool = shutil.which("cuobjdump") or shutil.which("cuobjdump", path="/usr/local/cuda/bin")
    if tool is None:
        raise SystemExit("cuobjdump was found neither on PATH nor in /usr/local/cuda/bin")
    lines = digests(arguments.build, tool)
    kernels = sum(int(line.split()[2]) for line in lines)
    print(f"{kernels} kernels, digest {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}")
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")
    if arguments.against:
        before = arguments.against.read_text().splitlines()
        for line in sorted(set(before) - set(lines)):
            print(f"gone: {line}")
        for line in sorted(set(lines) - set(before)):
            print(f"new:  {line}")
        return 0 if before == lines else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
