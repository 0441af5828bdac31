# SPDX-License-Identifier: Apache-2.0
"""Files of bench/results as the tools in Python write them; what is in them, check_sources.py says. Standard library only."""
import argparse
import datetime
import json
import pathlib
import shlex


def nvidia_driver():
    """The version of the loaded driver; None without one."""
    version = pathlib.Path("/sys/module/nvidia/version")
    return version.read_text().strip() if version.exists() else None


def add_options(parser):
    parser.add_argument("--json", type=pathlib.Path, help="a file of bench/results to write")
    parser.add_argument("--commit", help="what is measured, for that file")
    parser.add_argument("--machine", help="the same")


def command_of(tool, arguments, flags=()):
    """What someone types for the same rows: `tool` with its arguments but those of add_options(), the program by its name alone;
    `flags` are koho's, behind "--"."""
    said = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(said)
    said.add_argument("--koho", type=pathlib.Path)
    found, others = said.parse_known_args(arguments)
    program = ["--koho", found.koho.name] if found.koho else []
    return shlex.join([tool, *program, *others, *(["--", *flags] if flags else [])])


def write(options, command, rows, **figures):
    """The file that add_options() asks for, if it does; `figures` are of the whole."""
    if options.json is None:
        return
    options.json.write_text(json.dumps({
        "machine": options.machine, "driver": nvidia_driver(), "commit": options.commit,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "command": command, **figures,
        "rows": rows}) + "\n")
