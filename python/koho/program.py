# SPDX-License-Identifier: Apache-2.0
"""The command `koho` of the installed package: becomes the program that the wheel holds, with a fetcher of models beside it."""

import os
import pathlib
import sys

from koho import hub
from koho.places import find, let_programs_find_cuda


def path() -> pathlib.Path:
    """The program (koho/places.py); KOHO_BINARY names another."""
    return find("koho", "KOHO_BINARY")


def main() -> None:
    """Replaces this process by the program, with the same arguments."""
    try:
        program = str(path())
        os.environ.setdefault("KOHO_FETCH", hub.command())
        let_programs_find_cuda()
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"koho: {error}")
