# SPDX-License-Identifier: Apache-2.0
"""Where the package's machine code is, in the installed package or in the source tree's build, and the CUDA libraries that it
opens."""

import os
import pathlib
import sys

# Of PyPI's nvidia-cublas and nvidia-nccl-cu13, below the folder into which pip installs.
CUDA_LIBRARIES = ("nvidia/cu13/lib/libcublasLt.so.13", "nvidia/nccl/lib/libnccl.so.2")


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


def cuda_libraries_elsewhere() -> list[pathlib.Path]:
    """The CUDA_LIBRARIES that lie beside other packages than this one: a virtual environment over the system's packages, pip's
    --user or --target. The wheel's own RUNPATH finds those beside this package; in the source tree it is the build that knows."""
    package = pathlib.Path(__file__).resolve().parent
    if not (package / "bin").is_dir():
        return []
    found = []
    for name in CUDA_LIBRARIES:
        places = [folder / name for folder in (package.parent, *map(pathlib.Path, sys.path))]
        if (place := next((one for one in places if one.exists()), places[0])) != places[0]:
            found.append(place)
    return found


def let_programs_find_cuda() -> list[pathlib.Path]:
    """Names the folders of cuda_libraries_elsewhere() to programs that this process starts or becomes, behind those of the
    user's own LD_LIBRARY_PATH; returns the files."""
    files = cuda_libraries_elsewhere()
    known = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if more := [folder for folder in (str(path.parent) for path in files) if folder not in known]:
        os.environ["LD_LIBRARY_PATH"] = ":".join(known + more)
    return files
