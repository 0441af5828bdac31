# SPDX-License-Identifier: Apache-2.0
"""Where the package's machine code is: in the installed package, or in the source tree's build."""

import os
import pathlib


def find(name: str, variable: str) -> pathlib.Path:
    """The file `name`: what the environment's `variable` names, else the one in this package, else build/NAME of the source
    tree. Raises OSError."""
    here = pathlib.Path(__file__).resolve().parent
    named = os.environ.get(variable)
    places = [pathlib.Path(named)] if named else [here / "bin" / name, here.parent.parent / "build" / name]
    for place in places:
        if place.exists():
            return place
    raise OSError(f"{name} was not found at " + " or ".join(map(str, places)) + "; ./run.py --build makes it")
