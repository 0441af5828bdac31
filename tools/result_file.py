# SPDX-License-Identifier: Apache-2.0
"""Files of bench/results and bench/peers: how the tools in Python write them, and the one way in which they read them.
What must be in a file, check_sources.py says. Standard library only.

A recorded file is never edited. Programs and operators have been renamed since some were written, so read() gives every
file in the names of today (bench/renamed.json).
"""
import argparse
import dataclasses
import datetime
import json
import pathlib
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PEERS = ROOT / "bench" / "peers"
NAME = re.compile(r"(?P<date>\d{4}-\d{2}-\d{2})-(?P<machine>[a-z0-9]+)-(?P<name>[A-Za-z0-9-]+?)(-(?P<commit>[0-9a-f]{7}))?\.json")
RENAMED = json.loads((ROOT / "bench" / "renamed.json").read_text())  # what earlier files say -> what we say now
LIBRARY_FORMS = {"cuBLASLt, one scale": "library", "cuBLASLt, one scale, fast accumulation": "library fast"}


@dataclasses.dataclass
class Record:
    """A recorded file. `tag` and `name` are the parts of its own name between date and commit."""
    path: pathlib.Path
    tag: str
    name: str
    data: dict

    @property
    def command(self):
        return self.data.get("command", "")

    @property
    def rows(self):
        return self.data.get("rows", [])

    def has(self, flag):
        return flag in self.command.split()

    def where(self):
        """Machine, commit, date and command, as a page says them below a table."""
        commit = self.data.get("commit")
        return ", ".join([self.data["machine"]] + ([commit] if commit else []) + [self.data["date"]]) + f": `{self.command}`"


def renamed(row):
    """A row in the names of today."""
    if not isinstance(row, dict):
        return row
    row = dict(row)
    for member, names in (("op", RENAMED["operators"]), ("case", RENAMED["cases"])):
        if row.get(member) in names:
            row[member] = names[row[member]]
    if isinstance(row.get("shape"), dict):
        row["shape"] = {RENAMED["sizes"].get(key, key): size for key, size in row["shape"].items()}
    return row


def renamed_command(command):
    for old, new in RENAMED["programs"].items():
        command = re.sub(rf"(?<![\w/]){re.escape(old)}(?![\w/])", new, command)
    return command


def read(path):
    """One file, in the names of today. Raises ValueError for a file that is no JSON object."""
    data = json.loads(path.read_text())
    if not isinstance(data, dict):
        raise ValueError(f"{path}: must be an object")
    data["command"] = renamed_command(data.get("command", ""))
    if isinstance(data.get("rows"), list):
        data["rows"] = [renamed(row) for row in data["rows"]]
    named = NAME.fullmatch(path.name)
    return Record(path, named["machine"] if named else "", named["name"] if named else path.stem, data)


def newest(folder=RESULTS):
    """{(tag, name): record}: of each machine and name the file with the latest date."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        record = read(path)
        found[record.tag, record.name] = record
    return found


def library_form(row):
    """What a row of gemm_bench timed: "koho" (the kernel that the product chooses), "library" (cuBLASLt's scalar mode),
    "library fast" (the same with fast accumulation), or None for another candidate."""
    return "koho" if row.get("chosen") else LIBRARY_FORMS.get(row.get("form"))


def nvidia_driver():
    """The version of the loaded driver; None without one."""
    version = pathlib.Path("/sys/module/nvidia/version")
    return version.read_text().strip() if version.exists() else None


def add_options(parser):
    parser.add_argument("--json", type=pathlib.Path, help="a file of bench/results to write")
    parser.add_argument("--commit", help="what is measured, for that file")
    parser.add_argument("--machine", help="the same")


def own_and_flags(arguments):
    """What is before `--`, the tool's, and what is behind it, koho's."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1:]


def command_of(tool, arguments, flags=()):
    """What someone types for the same rows: `tool` with its arguments but those of add_options(), the program by its name alone;
    `flags` are koho's, behind "--"."""
    said = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(said)
    said.add_argument("--koho", type=pathlib.Path)
    found, others = said.parse_known_args(arguments)
    program = ["--koho", found.koho.name] if found.koho else []
    return shlex.join([tool, *program, *others, *(["--", *flags] if flags else [])])


def from_root(command):
    """A command as someone types it at the tree's root: no path of this machine."""
    return command.replace(sys.executable, "python3").replace(f"{ROOT}/", "")


def write(options, command, rows, **figures):
    """The file that add_options() asks for, if it does; `figures` are of the whole."""
    if options.json is None:
        return
    options.json.write_text(json.dumps({
        "machine": options.machine, "driver": nvidia_driver(), "commit": options.commit,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "command": from_root(command), **figures,
        "rows": rows}) + "\n")
