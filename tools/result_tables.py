#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of measured figures in docs/ and README.md, from bench/results and bench/peers. Standard library only.

    tools/result_tables.py            writes every table anew
    tools/result_tables.py --check    exit code 1, and a line each, if anything is stale, typed by hand or left over
    tools/result_tables.py --list     the names of all tables, and the pages that show them

A page says `<!-- table: NAME -->` and `<!-- /table -->`, and this tool owns what is between. table_definitions.py says what
is in NAME. Below each table stand the machine, commit, date and command of the files that it reads.
"""
import argparse
import re
import sys

import result_file
import table_definitions

ROOT = result_file.ROOT
BLOCK = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n(?P<body>.*?)<!-- /table -->", re.DOTALL)
MARKER = re.compile(r"<!-- (?:table: [\w-]+|/table) -->")
UNITS = r"(?:µs|us|ms|tok/s|GB/s|TB/s|TFLOP/s|GB|MB|GiB|MiB|s|%)"
FIGURE = re.compile(rf"\d\s?{UNITS}(?![\w/-])")
UNIT_ALONE = re.compile(rf"(?<![\w/-]){UNITS}(?![\w/-])")
NUMBER_CELL = re.compile(r"\|\s*\**[\d.,]+\**\s*(?=\|)")
RESULT_NAMED = re.compile(r"bench/(?:results|peers)/([\w.-]+\.json)")

# (page, what the line holds, why its figure may be typed by hand)
TYPED = (("docs/decisions/0001-what-we-build.md", "| KV pages of 16 tokens |", "a decision keeps the figure that it was taken on"),
         *(("docs/server.md", part, "a limit that the server sets, not a measurement")
           for part in ("| head, URL, body |", "| request |", "| time |", "| slow readers |", "`--kv-cache-memory-bytes`")))
# Files that a test or a page reads, but no table.
READ_ELSEWHERE = {(gpus, "all-reduce"): "bench/link_times.cpp" for gpus in ("h100x2", "h100x4", "h100x8", "h200x2", "h200x4", "h200x8")}


def pages(root=ROOT):
    return sorted([root / "README.md", *(root / "docs").rglob("*.md")])


def records_of(table, results, peers):
    """The records that a table reads. KeyError names one that is not there."""
    records = [peers[name] if tag == "peers" else results[tag, name] for tag, name in table.reads]
    records += [results[key] for key in table.optional if key in results]
    return [max(reversed(records), key=lambda record: record.data["date"])] if table.newest else records


def shortened(commands):
    """The first command whole; of the others only what differs from its beginning."""
    first = commands[0].split()
    out = [f"`{commands[0]}`"]
    for command in commands[1:]:
        words = command.split()
        same = next((index for index, word in enumerate(words) if index >= len(first) or word != first[index]), len(words))
        while same and words[same - 1].startswith("-"):  # a flag stays with its value
            same -= 1
        out.append(f"`… {' '.join(words[same:])}`" if same >= 4 else f"`{command}`")
    return out


def sources(table, records):
    """The line below a table: where each file was measured. Files of one machine and date share what they can."""
    places = {}
    for record in records:
        places.setdefault((record.data["machine"], record.data.get("commit"), record.data["date"]), []).append(record)
    by_commands = {}
    for (machine, commit, date), group in places.items():
        commands = table.command or "; ".join(shortened(list(dict.fromkeys(record.command for record in group))))
        by_commands.setdefault(commands, {}).setdefault((machine, date), []).append(commit)
    said = ["Measured on " + "; ".join(", ".join(filter(None, (machine, *commits, date))) for (machine, date), commits in where.items()) + ": " + commands
            for commands, where in by_commands.items()]
    notes = dict.fromkeys(text[0].upper() + text[1:].rstrip(".") for record in records
                          for text in (record.data.get(member) for member in ("source", "conditions", "note")) if text)
    return ". ".join([*said, *notes]) + "."


def render(table, records):
    """A table's Markdown, and below it what its cells mean and where it was measured."""
    lines = ["| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
    lines += ["| " + " | ".join(cells) + " |" for cells in table.rows(*records)]
    lines = [re.sub(r"\|  (?=\|)", "| ", line) for line in lines]
    below = (table.note + ". " if table.note else "") + sources(table, records)
    return "\n".join([*lines, "", below]) + "\n"


def rewrite(text, tables, results, peers):
    """The page with every table anew, and what is wrong with its markers."""
    faults = []

    def block(match):
        table = tables.get(match["name"])
        if table is None:
            faults.append(f"no table is called {match['name']}: tools/table_definitions.py has the names")
            return match[0]
        try:
            body = render(table, records_of(table, results, peers))
        except KeyError as error:
            faults.append(f"table {match['name']} reads {error}, which is not in bench/")
            return match[0]
        return f"<!-- table: {match['name']} -->\n{body}<!-- /table -->"
    if len(MARKER.findall(text)) != 2 * len(BLOCK.findall(text)):
        faults.append("a marker of a table lacks its other one, or two tables lie in each other")
    return BLOCK.sub(block, text), faults


def typed_figures(page, text):
    """Lines of tables outside the markers that hold a measured figure."""
    found, header = [], None
    for line in BLOCK.sub("", text).splitlines():
        if not line.startswith("|"):
            header = None
            continue
        header = header or line
        measured = FIGURE.search(line) or (line != header and NUMBER_CELL.search(line)
                                           and (UNIT_ALONE.search(header) or UNIT_ALONE.search(line.split("|")[1])))
        if measured and not any(page == name and part in line for name, part, _ in TYPED):
            found.append(line)
    return found


def unread(tables, folder):
    """Files of bench/results that no table reads, or that are not the newest of their machine and name."""
    newest = result_file.newest(folder)
    read = {key for table in tables.values() for key in (*table.reads, *table.optional)} | set(READ_ELSEWHERE)
    kept = {record.path.name for key, record in newest.items() if key in read}
    return sorted(path.name for path in folder.glob("*.json") if path.name not in kept)


def check_page(name, text, tables, results, peers, names):
    """What is wrong with a page, in words."""
    written, faults = rewrite(text, tables, results, peers)
    if written != text:
        faults.append("a table is stale: run tools/result_tables.py")
    faults += [f"a figure in a table typed by hand: `{line[:90]}`: record it, and leave a marker" for line in typed_figures(name, text)]
    faults += [f"names bench's {found}, which is not there" for found in RESULT_NAMED.findall(text) if found not in names]
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    tables = table_definitions.TABLES
    results, peers = result_file.newest(), {name: record for (_, name), record in result_file.newest(result_file.PEERS).items()}
    names = {path.name for folder in (result_file.RESULTS, result_file.PEERS) for path in folder.glob("*.json")}
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in pages()}
    if options.list:
        for name in tables:
            print(f"{name:20} {', '.join(page for page, text in texts.items() if f'<!-- table: {name} -->' in text) or 'on no page'}")
        return 0
    faults = []
    for page, text in texts.items():
        if options.check:
            faults += [f"{page}: {fault}" for fault in check_page(page, text, tables, results, peers, names)]
            continue
        written, wrong = rewrite(text, tables, results, peers)
        faults += [f"{page}: {fault}" for fault in wrong]
        if written != text:
            (ROOT / page).write_text(written)
            print(f"{page}: written")
    if options.check:
        faults += [f"bench/results/{name}: no table reads it, or a newer one of its machine and name is there: delete it"
                   for name in unread(tables, result_file.RESULTS)]
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
