#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the sources' own rules and prints each breach with its place and what to do instead. Exit code 1 on any.

Rules: no unfinished words in src/; an SPDX line first; none of the calls that docs and style forbid in src/; formatted
as .clang-format says (when clang-format 14 is there); nothing that names a machine's path.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".c"}
UNFINISHED = re.compile(r"\b(TODOs?|FIXME|XXX|stub(bed|s)?|placeholders?|mock(ed|s)?|not[ -]?implemented|unimplemented)\b",
                        re.IGNORECASE)
# Where a name's words meet: snake_case, camelCase, ACRONYMThenWord, and a digit after a letter.
WORD_BORDER = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
# pattern -> (what to do instead, folders where it is allowed)
FORBIDDEN = {
    r"\bgetenv\s*\(": ("a flag in app/options.cpp", {"app"}),
    r"\bthrow\b": ("return an Error", set()),
    r"\bstd::regex\b": ("PCRE2 with limits", set()),
    r"\b(printf|puts)\s*\(": ("log:: or an output stream of app/", {"app", "base"}),
    r"\b(abort|exit|_exit)\s*\(": ("Status, or KOHO_CHECK", {"app", "base", "worker"}),
    r"\bassert\s*\(": ("KOHO_CHECK", set()),
    r"#include \"\.\./": ("a path from src/", set()),
    r"\balloca\s*\(": ("a vector", set()),
    r"using namespace \w+;": ("a using-declaration", set()),
}
MACHINE_PATHS = re.compile(r"(?<![\w.])/(work|farm|root)/")


def unfinished(text):
    """Whether a line or a path holds an unfinished word, also as a part of a name: `MockClock`, `todo_later`."""
    return UNFINISHED.search(WORD_BORDER.sub(" ", text)) is not None


def sources(root=ROOT):
    """Files that git has, or would take: also those not added yet."""
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root,
                           capture_output=True, text=True, check=True).stdout.splitlines()
    return [pathlib.Path(name) for name in names if (root / name).is_file()]


def check_file(name, breaches):
    text = (ROOT / name).read_text(errors="replace")
    in_src = name.parts[0] == "src"
    if in_src and unfinished(str(name)):
        breaches.append(f"{name}:1: unfinished word in the file's name: finish it or leave it out")
    if name.suffix in SOURCE_SUFFIXES:
        if not text.startswith("// SPDX-License-Identifier: Apache-2.0"):
            breaches.append(f"{name}:1: begin with `// SPDX-License-Identifier: Apache-2.0`")
        if in_src and not name.stem.endswith("_test"):
            for number, line in enumerate(text.splitlines(), 1):
                code = re.sub(r'"(\\.|[^"\\])*"', '""', line.split("//")[0])
                for pattern, (instead, allowed) in FORBIDDEN.items():
                    if name.parts[1] not in allowed and re.search(pattern, code if "include" not in pattern else line):
                        breaches.append(f"{name}:{number}: `{line.strip()}`: use {instead}")
    for number, line in enumerate(text.splitlines(), 1):
        if in_src and unfinished(line):
            breaches.append(f"{name}:{number}: unfinished word: `{line.strip()}`: finish it or leave it out")
        if MACHINE_PATHS.search(line) and name != pathlib.Path("tools/check_sources.py"):
            breaches.append(f"{name}:{number}: names a machine's path: `{line.strip()[:100]}`")


def check_format(names, breaches):
    formatter = shutil.which("clang-format-14")
    if formatter is None:
        print("clang-format-14 is not installed: format not checked")
        return
    sources = [str(name) for name in names if name.suffix in SOURCE_SUFFIXES]
    result = subprocess.run([formatter, "--dry-run", "-Werror", *sources], cwd=ROOT, capture_output=True, text=True,
                            check=False)
    for line in sorted({line.split(": error")[0] for line in result.stderr.splitlines() if ": error" in line}):
        breaches.append(f"{line}: not formatted: run clang-format-14 -i on the file")


def main():
    breaches = []
    names = [name for name in sources() if name.parts[0] not in {"models"} and name.suffix not in {".json", ".npy"}]
    for name in names:
        check_file(name, breaches)
    check_format(names, breaches)
    for breach in breaches[:200]:
        print(breach)
    print(f"{len(names)} files checked, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
