#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the sources' own rules and prints each breach with its place and what to do instead. Exit code 1 on any.

    tools/check_sources.py [path ...]      with paths: only the breaches of files below them

Rules: no unfinished words in src/; an SPDX line first; none of the calls that docs and style forbid in src/; no search in
an error's text; the field's words (vocabulary.py); files and functions no longer than code_lengths.py allows; comments within the column limit; no
mention of a file that is not in the tree; formatted as .clang-format says, no undefined name in Python (when clang-format 14 and pyflakes3 are there); nothing that
names a machine's path; files of bench/results as check_result says, those of bench/peers as check_peer does.
"""

import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys

import code_lengths
import result_file
import vocabulary

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE_SUFFIXES = {".html", ".css", ".js"}
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".c"}
UNFINISHED = re.compile(r"\b(TODOs?|FIXME|XXX|stub(bed|s)?|placeholders?|mock(ed|s)?|not[ -]?implemented|unimplemented)\b",
                        re.IGNORECASE)
# pattern -> (what to do instead, folders where it is allowed)
FORBIDDEN = {
    r"\bgetenv\s*\(": ("a flag, as in app/serve_options.cpp", {"app"}),
    r"\bthrow\b": ("return an Error", set()),
    r"\bstd::regex\b": ("PCRE2 with limits", set()),
    r"\b(printf|puts)\s*\(": ("log:: or an output stream of app/", {"app", "base"}),
    r"\b(abort|exit|_exit)\s*\(": ("Status, or KOHO_CHECK", {"app", "base", "worker"}),
    r"\bassert\s*\(": ("KOHO_CHECK", set()),
    r"#include \"\.\./": ("a path from src/", set()),
    r"\balloca\s*\(": ("a vector", set()),
    r"using namespace \w+;": ("a using-declaration", set()),
}
# An error's text, searched: its maker says what a caller acts on in ErrorCode, ErrorReason, a field or an exception's type.
ERROR_TEXT_SEARCHED = re.compile(r"(\bmessage(\(\))?|\bwhat\(\)\s*\)?)\s*\.\s*(r?find\w*|starts_with|ends_with|contains|compare)\s*\("
                                 r"|\bstr(case)?(str|n?cmp)\s*\([^;]*\b(what|message)\b|\b(what\(\)|\.message)\s*[!=]=")
# file -> why it may
ERROR_TEXT_ALLOWED = {"src/api/native.cpp": "puts the client's own name of the field in front of the message"}
RESULT_NAME = re.compile(r"(\d{4}-\d{2}-\d{2})-[a-z0-9]+-[A-Za-z0-9-]+\.json")
RESULTS_WHOLE_SINCE = "2026-11-24"  # earlier files of bench/results have what their programs wrote then
ATTENTION_CASES = {"attention_decode", "attention_prefill"}
# What batch_check.py, gpu_check.py, true_widths.py and long_context.py in tools record.
OTHER_ROWS = {"soak": ("requests", "seconds", "threads", "resident_growth_percent"),
              "batch": ("requests", "answers", "faults", "seconds"), "load": ("bytes", "us", "gb_per_s"), "ready": ("us",),
              "all_reduce": ("us",), "executor": ("us",), "server": ("tokens", "seconds", "faults"), "true_widths": ("chunk", "distance", "bound", "same_best_token"),
              "long_context": ("context", "chunk", "cached_tokens", "prompt_seconds"), "serve_client": ("koho", "vllm", "ratio"), "serve_pairs": ("ratio",),
              "busy_cores": ("two_threads", "one_thread", "kept", "gain"),
              "llama_cpp": ("decode_ratio", "prefill_ratio"),
              "prefill": ("long", "kept", "short_p50_ms", "short_p99_ms", "step_ms", "own_ms"),
              "schema_suite": ("schemas", "refused", "right", "narrower", "wrong", "p50_us", "p99_us")}
MACHINE_PATHS = re.compile(r"(?<![\w.])/(work|farm|root)/")
COMMENT_COLUMNS = 100  # clang-format leaves comments as they are written
# A file of this repository that a text names: a path with a folder, or a page of docs/.
MENTIONED_FILE = re.compile(r"(?<![\w/.$<{}*-])((?:[\w-]+/)+[\w-]+\.(?:h|cpp|cuh|cu|py|md)|[a-z][\w-]*\.md)\b(?![/*{])")
PAGES_ELSEWHERE = re.compile(r"\b(model-spec|kernel-design|measured-(h200|cpu))\b")


def unfinished(text):
    """Whether a line or a path holds an unfinished word, also as a part of a name: `MockClock`, `todo_later`."""
    return UNFINISHED.search(vocabulary.WORD_BOUNDARY.sub(" ", text)) is not None


def sources(root=ROOT):
    """Files that git has, or would take: also those not added yet."""
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root,
                           capture_output=True, text=True, check=True).stdout.splitlines()
    return [pathlib.Path(name) for name in names if (root / name).is_file()]


def pages_of_the_site(root=ROOT):
    """Pages that mkdocs.yml names, of which tools/make_site.py makes some, by their paths below docs/."""
    return {f"docs/{page}" for page in re.findall(r": ([\w/-]+\.md)$", (root / "mkdocs.yml").read_text(), re.MULTILINE)}


def is_mentioned_rightly(mentioned, name, names):
    """Whether `mentioned` in the file `name` is a file of the tree: from its root, from src/, or beside the file."""
    return (mentioned in names or f"src/{mentioned}" in names or f"docs/{mentioned}" in names or f"docs/kernels/{mentioned}" in names
            or str(name.parent / mentioned) in names or any(path.endswith(f"/{mentioned}") for path in names))


def is_prose(name, line):
    """Whether a line is a comment, or of a page: a phrase may go on in the next."""
    return name.suffix == ".md" or line.lstrip().startswith(("//", "#"))


def check_words(name, text, names, breaches):
    """The field's words, and mentions of files that are there."""
    words = vocabulary.table_for(str(name))
    for found, instead in vocabulary.refused(words, str(name)):
        breaches.append(f"{name}:1: `{found}` in the file's name: the field says {instead}")
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        following = lines[number] if number < len(lines) and is_prose(name, line) and is_prose(name, lines[number]) else None
        found_here = vocabulary.refused(words, line)
        if following is not None:
            found_here += vocabulary.refused_across(words, line, following)
        for found, instead in found_here:
            breaches.append(f"{name}:{number}: `{found}`: the field says {instead}: `{line.strip()[:100]}`")
        if name.parts[0] in {"third_party", "fuzz"} or name.name in {"check_sources.py", "check_sources_test.py", "site_test.py"}:
            continue
        for mentioned in MENTIONED_FILE.findall(line):
            if not is_mentioned_rightly(mentioned, name, names):
                breaches.append(f"{name}:{number}: mentions {mentioned}, which is not in the tree")
        if PAGES_ELSEWHERE.search(line):
            breaches.append(f"{name}:{number}: mentions a page that is not in the tree: say what is needed in docs/")


def check_file(name, text, breaches):
    for number, line in enumerate(text.splitlines(), 1):
        if name.suffix in SOURCE_SUFFIXES and line.lstrip().startswith("//") and len(line) > COMMENT_COLUMNS:
            breaches.append(f"{name}:{number}: a comment of {len(line)} columns: {COMMENT_COLUMNS} are allowed")
    in_src = name.parts[0] == "src"
    if in_src and unfinished(str(name)):
        breaches.append(f"{name}:1: unfinished word in the file's name: finish it or leave it out")
    if name.suffix in SOURCE_SUFFIXES:
        if not text.startswith("// SPDX-License-Identifier: Apache-2.0"):
            breaches.append(f"{name}:1: begin with `// SPDX-License-Identifier: Apache-2.0`")
        if in_src and not name.stem.endswith("_test"):
            for number, line in enumerate(text.splitlines(), 1):
                code = re.sub(r'"(\\.|[^"\\])*"', '""', line.split("//")[0])
                if ERROR_TEXT_SEARCHED.search(code) and str(name) not in ERROR_TEXT_ALLOWED:
                    breaches.append(f"{name}:{number}: `{line.strip()}`: searches an error's text: ask for its code, reason, field or type")
                for pattern, (instead, allowed) in FORBIDDEN.items():
                    if name.parts[1] not in allowed and re.search(pattern, code if "include" not in pattern else line):
                        breaches.append(f"{name}:{number}: `{line.strip()}`: use {instead}")
    for number, line in enumerate(text.splitlines(), 1):
        if name.suffix in PAGE_SUFFIXES:
            line = line.replace("placeholder", "hint")  # HTML's attribute
        if in_src and unfinished(line):
            breaches.append(f"{name}:{number}: unfinished word: `{line.strip()}`: finish it or leave it out")
        if MACHINE_PATHS.search(line) and name != pathlib.Path("tools/check_sources.py"):
            breaches.append(f"{name}:{number}: names a machine's path: `{line.strip()[:100]}`")


def operators(root=ROOT):
    """Names of the operators of src/ops/backend.h: the functions between "operators" and trace() that return Status."""
    text = (root / "src/ops/backend.h").read_text()
    text = text[text.index("// ---- operators"):text.index("Trace& trace()")]
    return set(re.findall(r"^  Status (\w+)\(", text, re.MULTILINE))


def is_number(value, least=0.0):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= least


def check_row(row, ops):
    """What is missing or wrong in a row of a result, in words.

    Every row: op, one of src/ops (attention as attention_decode or attention_prefill) or step_… of `koho bench latency`;
    shape, an object of integers, among them tokens >= 1, and context for attention; us > 0. A row of an operator also:
    bytes, flops >= 0; pct_of_bandwidth, pct_of_floor >= 0, or null where no ceiling of the machine is known. A row with
    `form`, one of several kernels of an operator beside each other (gemm_bench), need not have these four. A row of
    something else entirely has the numbers of OTHER_ROWS instead.
    """
    if not isinstance(row, dict):
        return ["is no object"]
    faults = []
    op = row.get("op")
    if isinstance(op, str):
        op = result_file.RENAMED["operators"].get(op, op)
    if isinstance(op, str) and op in OTHER_ROWS:
        return [f"{name} must be a number" for name in OTHER_ROWS[op] if not is_number(row.get(name))]
    step = isinstance(op, str) and op.startswith("step_")
    if not step and op not in (ops - {"attention"}) | ATTENTION_CASES:
        faults.append(f"op {op!r} is no operator of src/ops")
    shape = row.get("shape")
    if not isinstance(shape, dict) or any(type(size) is not int for size in shape.values()):
        faults.append("shape must be an object of integers")
    else:
        if shape.get("tokens", 0) < 1:
            faults.append("shape lacks tokens >= 1")
        if op in ATTENTION_CASES and "context" not in shape:
            faults.append("shape lacks context")
    if not is_number(row.get("us")) or row["us"] == 0:
        faults.append("us must be a number above 0")
    if step or "form" in row:
        return faults
    faults += [f"{name} must be a number" for name in ("bytes", "flops") if not is_number(row.get(name))]
    for name in ("pct_of_bandwidth", "pct_of_floor"):
        if name not in row or (row[name] is not None and not is_number(row[name])):
            faults.append(f"{name} must be a number, or null without a ceiling")
    return faults


def check_result(name, text, ops):
    """What is missing or wrong in the file `name` of bench/results, in words.

    Always: the name is <date>-<machine>-<name>.json; the file is a JSON object with machine, date and command, strings,
    the date that of the name. From RESULTS_WHOLE_SINCE on also: driver, a string or null; commit, of 7 to 40 hexadecimal
    digits, with "-dirty" behind it only beside a note that says what differs; and rows, at least one, each as check_row
    says, or else what `koho bench` counts: completed, duration and output_throughput.
    """
    named = RESULT_NAME.fullmatch(name)
    if named is None:
        return ["the name must be <date>-<machine>-<name>.json"]
    try:
        datetime.date.fromisoformat(named[1])
        result = json.loads(text)
    except ValueError as error:
        return [str(error)]
    if not isinstance(result, dict):
        return ["must be an object"]
    faults = [f"{member} must be a string" for member in ("machine", "date", "command")
              if not isinstance(result.get(member), str) or not result[member]]
    if not faults and result["date"] != named[1]:
        faults.append(f"date {result['date']} is not that of the name")
    if named[1] < RESULTS_WHOLE_SINCE:
        return faults
    if "driver" not in result or not (result["driver"] is None or isinstance(result["driver"], str) and result["driver"]):
        faults.append("driver must be a string, or null without one")
    commit = re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", str(result.get("commit")))
    if commit is None:
        faults.append("commit must be 7 to 40 hexadecimal digits")
    elif commit[1] and not result.get("note"):
        faults.append("commit is of changed files: a note must say what differs")
    if "rows" not in result:
        return faults + [f"{member} must be a number, or there must be rows"
                         for member in ("completed", "duration", "output_throughput") if not is_number(result.get(member))]
    rows = result["rows"]
    if not isinstance(rows, list) or not rows:
        return faults + ["rows must be an array, not empty"]
    return faults + [f"row {index}: {fault}" for index, row in enumerate(rows) for fault in check_row(row, ops)]


def check_peer(name, text):
    """What is missing or wrong in a file of bench/peers, in words: another engine's figures beside koho's of the same conditions."""
    if RESULT_NAME.fullmatch(name) is None:
        return ["the name must be <date>-<machine>-<name>.json"]
    try:
        record = json.loads(text)
    except ValueError as error:
        return [str(error)]
    faults = [f"{member} must be a string" for member in ("peer", "machine", "date", "commit", "source", "conditions", "command")
              if not isinstance(record.get(member), str) or not record[member]]
    for index, row in enumerate(record.get("rows") or [{}]):
        if not all(isinstance(row.get(member), str) for member in ("what", "unit")) or not is_number(row.get("peer")) or \
                not row.get("koho") or not all(is_number(value) for value in row["koho"]):
            faults.append(f"row {index}: must have what, unit, the peer's number and koho's")
    return faults


def is_text(name):
    """Whether the rules for texts hold for a file: not the embedded model's data, recorded results and other people's texts."""
    return (name.parts[0] != "models" or name.suffix == ".py") and name.name != "LICENSE" and name.parts[:2] != ("fuzz", "corpus") and \
        name.suffix not in {".json", ".jsonl", ".npy", ".safetensors", ".png", ".svg"}


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


def check_names(names, breaches):
    """Names in Python that nothing defines."""
    checker = shutil.which("pyflakes3")
    if checker is None:
        print("pyflakes3 is not installed: names in Python not checked")
        return
    sources = [str(name) for name in names if name.suffix == ".py"]
    result = subprocess.run([checker, *sources], cwd=ROOT, capture_output=True, text=True, check=False)
    breaches += [line for line in result.stdout.splitlines() if "undefined name" in line]


def main():
    """With paths as arguments: prints only the breaches of files below them."""
    breaches = []
    everything = sources()
    names = [name for name in everything if is_text(name)]
    known = {str(name) for name in everything} | pages_of_the_site()
    longer_used = set()
    for name in names:
        text = (ROOT / name).read_text(errors="replace")
        check_file(name, text, breaches)
        check_words(name, text, known, breaches)
        too_long, used = code_lengths.breaches_of(str(name), name.suffix, text)
        breaches += too_long
        longer_used |= used
    for key in sorted(set(code_lengths.LONGER) - longer_used):
        breaches.append(f"tools/code_lengths.py: {key} is within the limits now: take it out of LONGER")
    check_format(names, breaches)
    check_names(names, breaches)
    results = sorted((ROOT / "bench/results").iterdir())
    ops = operators()
    for path in results:
        breaches += [f"{path.relative_to(ROOT)}: {fault}" for fault in check_result(path.name, path.read_text(), ops)]
    for path in sorted((ROOT / "bench/peers").iterdir()):
        breaches += [f"{path.relative_to(ROOT)}: {fault}" for fault in check_peer(path.name, path.read_text())]
    below = tuple(sys.argv[1:])
    breaches = [breach for breach in breaches if not below or breach.startswith(below)]
    for breach in breaches[:400 if not below else None]:
        print(breach)
    print(f"{len(names) + len(results)} files checked, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
