#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What takes hours: every test under ThreadSanitizer, the CPU's operators with more shapes under AddressSanitizer, every fuzz target
until all have about as many runs, the tokenizer and the chat template against their referees, a Ray cluster whose actors are killed,
the kernels by PyPI's CUDA compiler, and the wheel and the container on fresh machines (as root, with debootstrap and buildah).
Writes a record, to which the next night adds: the runs of a target count since its first night.

    tools/nightly.py --hours 8 --record nightly.json --corpus CORPUS
    tools/nightly.py --hours 0.5 --only fuzz --targets http_reader_fuzz,json_tree_fuzz --record nightly.json

A target that finds something keeps the input below CORPUS/TARGET.found; the record names it. Exits non-zero if anything was found.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import fuzz_code
import fuzz_cores

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ("tsan", "operators", "fuzz", "differential", "ray", "compiler", "machines")


def run(command, **options):
    print("+", " ".join(map(str, command)), flush=True)
    return subprocess.run(command, cwd=ROOT, check=False, **options)


def build(preset, *targets):
    for command in (["cmake", "--preset", preset],
                    ["cmake", "--build", "--preset", preset, *(["--target", *targets] if targets else [])]):
        if run(command, stdout=subprocess.DEVNULL).returncode != 0:
            sys.exit(f"{' '.join(command)} failed")


def fuzz_targets():
    return sorted(path.stem for path in (ROOT / "fuzz").glob("*_fuzz.cpp"))


def threads():
    """Every test that ThreadSanitizer can run."""
    build("tsan")
    result = run(["ctest", "--test-dir", "build/tsan", "-j", str(os.cpu_count()), "--output-on-failure"],
                 capture_output=True, text=True)
    print(result.stdout[-4000:])
    summary = re.search(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", result.stdout)
    return {"tests": int(summary[3]) if summary else 0, "failed": int(summary[2]) if summary else -1}


def operators():
    """Every operator of the CPU under AddressSanitizer, with twelve times the random shapes that CI gives it."""
    build("dev", "cpu_op_test")
    return run(["build/dev/tests/ops/cpu_op_test", "--gtest_brief=1"], env=dict(os.environ, KOHO_OP_ROUNDS="48")).returncode


def ray():
    """tools/ray_check.py with PyPI's Ray, in a virtual environment that is kept."""
    build("release", "koho", "engine_so")
    tools = ROOT / "build/ray-tools"
    if not (tools / "bin/ray").exists():
        run([sys.executable, "-m", "venv", str(tools)])
        run([tools / "bin/pip", "install", "--quiet", "ray[data,serve]"])
    record = ROOT / "build/ray.json"
    record.unlink(missing_ok=True)
    environment = dict(os.environ, KOHO_ENGINE=str(ROOT / "build/release/src/capi/engine.so"))
    result = run([tools / "bin/python", "tools/ray_check.py", "--json", record], env=environment)
    return {"exit": result.returncode} | (json.loads(record.read_text()) if record.exists() else {})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=8.0, help="of fuzzing, on all cores (%(default)s)")
    parser.add_argument("--record", type=pathlib.Path, required=True, help="JSON file, read and written anew")
    parser.add_argument("--corpus", type=pathlib.Path, default=ROOT / "build/corpus", help="inputs, kept from night to night")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of {', '.join(PARTS)}")
    parser.add_argument("--targets", default="", help="fuzz targets, with commas between (all)")
    parser.add_argument("--texts", type=int, default=1_000_000, help="of the differential fuzz (%(default)s)")
    parser.add_argument("--conversations", type=int, default=20_000, help="of the differential fuzz (%(default)s)")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}")
    record = json.loads(options.record.read_text()) if options.record.exists() else {"nights": [], "runs": {}}
    commit = run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    night = {"date": time.strftime("%Y-%m-%d"), "commit": commit, "cores": os.cpu_count(), "build": "sanitizers"}
    failed = False
    if "tsan" in parts:
        night["tsan"] = threads()
        failed |= night["tsan"]["failed"] != 0
    if "operators" in parts:
        night["operators"] = operators()
        failed |= night["operators"] != 0
    if "fuzz" in parts:
        targets = options.targets.split(",") if options.targets else fuzz_targets()
        build("fuzz", *targets)
        digests = fuzz_code.digests(ROOT / "build/fuzz", targets)
        fuzz_cores.sum_runs(record, digests)
        shares = fuzz_cores.Shares([ROOT / "build/fuzz/fuzz" / target for target in targets], record["runs"], cores=os.cpu_count())
        answers = fuzz_cores.fuzz_on_cores(shares, os.cpu_count(), options.hours * 3600, options.corpus)
        failed |= fuzz_cores.merge_night(record, night, answers, digests)
        for target in targets:
            fuzz_cores.minimise(ROOT / "build/fuzz/fuzz" / target, options.corpus)
    if "differential" in parts:
        build("release", "koho")
        result = run([sys.executable, "tools/differential_fuzz.py", "--texts", str(options.texts), "--conversations",
                      str(options.conversations), "--seed", str(int(time.time()))], capture_output=True, text=True)
        print(result.stdout, result.stderr)
        night["differential"] = {"texts": options.texts, "conversations": options.conversations, "exit": result.returncode}
        failed |= result.returncode != 0
    if "ray" in parts:
        night["ray"] = ray()
        failed |= night["ray"]["exit"] != 0
    if "compiler" in parts:
        night["compiler"] = run([sys.executable, "tools/compiler_check.py"]).returncode
        failed |= night["compiler"] != 0
    if "machines" in parts:
        night["machines"] = {}
        for command in (["./run.py", "--wheel"], ["tools/wheel_check.py", "bookworm", "jammy", "noble"], ["tools/container_check.py"]):
            result = run([sys.executable, *command], capture_output=True, text=True)
            print(result.stdout[-4000:], result.stderr[-4000:])
            night["machines"][command[0]] = result.returncode
            failed |= result.returncode != 0
    if night not in record["nights"]:
        record["nights"].append(night)
    fuzz_cores.sum_runs(record, {})
    options.record.write_text(json.dumps(record, indent=1) + "\n")
    for target, runs in sorted(record["runs"].items()):
        print(f"{target:28} {runs:15,} runs in all")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
