#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes and checks koho's goldens (docs/goldens.md). Needs torch, transformers, numpy and safetensors; --write and --verify
need numpy only.

  tools/make_golden.py --codec                 tests/golden/number_formats.safetensors
  tools/make_golden.py --checkpoints [NAME…]   the reference's outputs for the random checkpoints
  tools/make_golden.py --trained models/tiny   the reference's greedy answers of the trained model
  tools/make_golden.py --write DIR [NAME…]     only writes the random checkpoints, for example to look at them
  tools/make_golden.py --verify DIR            compares checkpoints another program wrote, byte by byte
  tools/make_golden.py --random SEED [--count N] --koho build/koho
                                               unseen checkpoints: makes each, runs both, compares
"""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from golden import generator  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"


def specs(names: list[str]) -> list[dict]:
    known = json.loads((GOLDEN / "checkpoints.json").read_text())
    if unknown := set(names) - {spec["name"] for spec in known}:
        sys.exit(f"no such checkpoint in tests/golden/checkpoints.json: {', '.join(sorted(unknown))}")
    return [spec for spec in known if not names or spec["name"] in names]


def verify(directory: pathlib.Path) -> int:
    wrong = 0
    for spec in specs([]):
        for name, data in generator.make_files(spec).items():
            path = directory / spec["name"] / name
            if not path.exists() or path.read_bytes() != data:
                print(f"{path}: {'differs' if path.exists() else 'missing'}")
                wrong += 1
    print(f"{wrong} files differ" if wrong else "all files are equal")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--codec", action="store_true")
    task.add_argument("--checkpoints", nargs="*", metavar="NAME")
    task.add_argument("--trained", type=pathlib.Path, metavar="DIR")
    task.add_argument("--write", nargs="+", metavar=("DIR", "NAME"))
    task.add_argument("--verify", type=pathlib.Path, metavar="DIR")
    task.add_argument("--random", type=int, metavar="SEED")
    parser.add_argument("--count", type=int, default=1, help="with --random: that many seeds from SEED on")
    parser.add_argument("--koho", type=pathlib.Path, default=ROOT / "build" / "koho", help="with --random: the binary")
    parser.add_argument("--keep", type=pathlib.Path, help="with --random: keep the checkpoints here")
    arguments = parser.parse_args()

    if arguments.write:
        for spec in specs(arguments.write[1:]):
            generator.write_files(generator.make_files(spec), pathlib.Path(arguments.write[0]) / spec["name"])
        return 0
    if arguments.verify:
        return verify(arguments.verify)

    from golden import goldens, heldout  # torch and transformers from here on
    if arguments.codec:
        return goldens.make_codec(GOLDEN)
    if arguments.checkpoints is not None:
        return goldens.make_checkpoints(GOLDEN, specs(arguments.checkpoints))
    if arguments.trained:
        return goldens.make_trained(GOLDEN, arguments.trained)
    return heldout.compare(arguments.koho, range(arguments.random, arguments.random + arguments.count), arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
