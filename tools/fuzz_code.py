#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A digest of the code of each fuzz target: the sources and headers of koho and of xgrammar that its program was compiled from, without
comments and blanks. Runs of two commits add up for a target whose digest is the same (tools/fuzz_cores.py).

    tools/fuzz_code.py build/fuzz-volume > build/fuzz-volume/fuzz/code.json

A library's object that the program does not contain does not count: its compilation units name those that it does. Needs ninja and
llvm-dwarfdump-14.
"""

import hashlib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LITERAL = r'R"(?P<raw>[^(\s]*)\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\''
NO_CODE = r"(?P<no_code>(?:\s+|//[^\n]*|/\*.*?\*/)+)"
TOKEN = re.compile(f"{LITERAL}|{NO_CODE}", re.DOTALL)


def without_comments(text):
    """C++ without comments, with one blank or line end where there were blanks, line ends and comments."""
    return TOKEN.sub(lambda found: found[0] if found["no_code"] is None else "\n" if "\n" in found[0] else " ", text)


def compiled_from(build):
    """Of each source that the build has compiled: the files that it read, all paths absolute."""
    told = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    read = {}
    for entry in told.split("\n\n"):
        paths = [(build / line.strip()).resolve() for line in entry.split("\n")[1:] if line.strip()]
        # The sanitizers' lists may come before the source.
        for source in [path for path in paths if path.suffix in {".c", ".cc", ".cpp"}][:1]:
            read[source] = paths
    return read


def units(build, program):
    told = subprocess.run(["llvm-dwarfdump-14", "--debug-info", "--recurse-depth=0", program], capture_output=True, text=True, check=True).stdout
    # Relative names are of this build, whatever folder ccache compiled them in.
    return [(build / name).resolve() for name in re.findall(r'DW_AT_name\s+\("(.*)"\)', told)]


def digests(build, targets):
    build = pathlib.Path(build).resolve()
    read = compiled_from(build)
    cleaned = {}
    made = {}
    for target in targets:
        files = set()
        for unit in units(build, build / "fuzz" / target):
            if unit in read:
                files |= set(read[unit])
            elif unit.is_relative_to(ROOT):
                sys.exit(f"{target}: ninja does not know what {unit} was compiled from; build anew")
        digest = hashlib.sha256()
        for path in sorted(path for path in files if path.is_relative_to(ROOT)):
            if path not in cleaned:
                cleaned[path] = without_comments(path.read_text(errors="replace"))
            base = build if path.is_relative_to(build) else ROOT
            digest.update(f"{path.relative_to(base)}\n{cleaned[path]}\n".encode())
        made[target] = digest.hexdigest()[:16]
    return made


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[1])
    print(json.dumps(digests(build, sorted(path.name for path in (build / "fuzz").glob("*_fuzz"))), indent=1))


if __name__ == "__main__":
    main()
