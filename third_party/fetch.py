#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Brings the sources named in requirements.txt into a folder, once: pip downloads the source distributions, nothing of
them is run. Standard library and pip only. Called by CMake; prints where each package lies.

    third_party/fetch.py DIRECTORY [--archive FILE]    FILE: a source distribution that is there already
"""

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# What of a source distribution is kept: sources, headers and licences.
KEPT = {"xgrammar": ("cpp/", "include/", "3rdparty/picojson/picojson.h", "3rdparty/dlpack/include/",
                     "3rdparty/dlpack/LICENSE", "LICENSE", "NOTICE")}
# pip asks a package's build backend for its metadata even when it only downloads. This one answers for all of them, so
# that no backend is needed and no code of the package runs.
BACKEND = '''
import os
def prepare_metadata_for_build_wheel(directory, config_settings=None):
    info = "{name}-{version}.dist-info"
    os.mkdir(os.path.join(directory, info))
    with open(os.path.join(directory, info, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return info
'''
BACKEND_MODULES = {"xgrammar": "scikit_build_core/build.py"}


class Failure(Exception):
    """Something is not as it must be; the message says what to do."""


def pins():
    found = []
    for line in (HERE / "requirements.txt").read_text().splitlines():
        match = re.fullmatch(r"([\w-]+)==([\w.]+) --hash=sha256:([0-9a-f]{64})", line.strip())
        if match:
            found.append((*match.groups(), line.strip()))
    return found


def download(name, version, line, folder):
    """The source distribution, as pip gives it: by its configuration, index and proxy."""
    module = folder / "backend" / BACKEND_MODULES[name]
    module.parent.mkdir(parents=True)
    (module.parent / "__init__.py").touch()
    module.write_text(BACKEND.format(name=name, version=version))
    (folder / "one.txt").write_text(line + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--no-build-isolation", "--no-binary", ":all:", "--require-hashes", "-r", str(folder / "one.txt"),
               "-d", str(folder)]
    result = subprocess.run(command, env=dict(os.environ, PYTHONPATH=str(folder / "backend")), capture_output=True,
                            text=True, check=False)
    if result.returncode != 0:
        raise Failure(f"pip could not download the sources of {name} {version}:\n{result.stderr.strip()[-2000:]}\n"
                      f"koho needs them once. With a network: check that `{sys.executable} -m pip --version` works "
                      f"(Debian: apt-get install python3-pip). Without: bring {name}-{version}.tar.gz here and run\n"
                      f"    third_party/fetch.py DIRECTORY --archive {name}-{version}.tar.gz")
    return folder / f"{name}-{version}.tar.gz"


def unpack(archive, name, version, digest, folder):
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != digest:
        raise Failure(f"{archive.name} has the SHA-256 {found}, requirements.txt pins {digest}")
    root = f"{name}-{version}/"
    with tarfile.open(archive) as tar:
        for member in tar:
            path = member.name.removeprefix(root)
            if not member.isfile() or not path.startswith(KEPT[name]) or ".." in path.split("/"):
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with tar.extractfile(member) as source, open(target, "wb") as file:
                shutil.copyfileobj(source, file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--archive", type=pathlib.Path)
    options = parser.parse_args()
    try:
        for name, version, digest, line in pins():
            final = options.directory / f"{name}-{version}"
            if not final.is_dir():
                options.directory.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
                    folder = pathlib.Path(temporary)
                    archive = options.archive or download(name, version, line, folder)
                    unpack(archive, name, version, digest, folder / "sources")
                    try:
                        (folder / "sources").rename(final)
                    except OSError:  # another build was quicker
                        if not final.is_dir():
                            raise
            print(final)
    except (Failure, OSError) as failure:
        print(f"third_party/fetch.py: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
