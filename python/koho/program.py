# SPDX-License-Identifier: Apache-2.0
"""The command `koho` of the installed package: becomes the program that the wheel holds."""

import os
import pathlib
import sys


def path() -> pathlib.Path:
    """The program: what KOHO_BINARY names, else the one in this package, else build/koho of the source tree."""
    here = pathlib.Path(__file__).resolve().parent
    named = os.environ.get("KOHO_BINARY")
    places = [pathlib.Path(named)] if named else [here / "bin" / "koho", here.parent.parent / "build" / "koho"]
    for place in places:
        if place.exists():
            return place
    raise OSError("the program koho was not found at " + " or ".join(map(str, places)) + "; ./run.py --build makes it")


def main() -> None:
    """Replaces this process by the program, with the same arguments."""
    try:
        program = str(path())
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"koho: {error}")
