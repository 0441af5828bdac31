#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The front door of koho: sets up a machine, builds, and runs the main jobs. Standard library only.

    ./run.py --smoke          set up, build, answer the embedded model's demonstration prompts, check every answer
    ./run.py --test           set up, build, pass all tests (plain and under sanitizers)
    ./run.py --build          set up and build only; leaves build/koho
    ./run.py --device cpu     build without CUDA on a machine that has an NVIDIA GPU

Exits non-zero with the reason when anything fails.
"""

import argparse
import array
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent
PACKAGES_FILE = ROOT / "packages.txt"
MODEL = ROOT / "models" / "tiny"


class Failure(Exception):
    """A step failed; the message says which and why."""


def say(text):
    print(text, flush=True)


def step(title, command, quiet=True, **options):
    """Runs one step, showing its time; on failure shows the end of its output."""
    say(f"==> {title}")
    started = time.monotonic()
    log = ROOT / "build" / "log" / (title.split(" (")[0].replace(" ", "-").replace("/", "-") + ".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    if quiet:
        with open(log, "wb") as output:
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, **options).returncode
    else:
        code = subprocess.run(command, **options).returncode
    seconds = time.monotonic() - started
    if code != 0:
        if quiet:
            tail = log.read_text(errors="replace").splitlines()[-40:]
            say("\n".join("    " + line for line in tail))
            say(f"    (whole log: {log.relative_to(ROOT)})")
        raise Failure(f"{title} failed with exit code {code} after {seconds:.0f} s: {' '.join(map(str, command))}")
    say(f"    done in {seconds:.1f} s")


def packages():
    """The Debian packages koho needs, from the one list."""
    lines = PACKAGES_FILE.read_text().splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


def missing_packages():
    if shutil.which("dpkg-query") is None:
        return []  # not a Debian system: CMake names what it does not find
    result = subprocess.run(["dpkg-query", "-W", "-f", "${binary:Package} ${db:Status-Status}\n"],
                            capture_output=True, text=True, check=False)
    installed = {line.split()[0].split(":")[0] for line in result.stdout.splitlines() if line.endswith(" installed")}
    return [name for name in packages() if name not in installed]


def set_up():
    """Installs what is missing, or says which command would."""
    missing = missing_packages()
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.geteuid() != 0:
        raise Failure("packages are missing; install them with:\n    sudo apt-get update && sudo " + " ".join(command))
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    step("update the package lists", ["apt-get", "update"], env=environment)
    step(f"install packages ({len(missing)} missing)", command, env=environment)


def has_nvidia_gpu():
    return any(pathlib.Path("/dev").glob("nvidia[0-9]*"))


def choose_preset(device):
    """The CMake preset for this machine: CUDA wherever there is a GPU, unless --device cpu asks otherwise."""
    if device == "cpu" or (device == "auto" and not has_nvidia_gpu()):
        return "release"
    compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if compiler is None:
        raise Failure("this machine has an NVIDIA GPU, but nvcc (CUDA toolkit 13.0 or newer) was found neither on PATH "
                      "nor in /usr/local/cuda/bin; install the CUDA toolkit, or ask for the CPU with --device cpu")
    os.environ["CUDACXX"] = compiler
    return "cuda"


def jobs():
    """Parallel compilers: one a core, but at most one for every 1.5 GiB of memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, int(memory / (1.5 * 2**30))))


def configure_and_build(preset, targets=()):
    step(f"configure {preset}", ["cmake", "--preset", preset], cwd=ROOT)
    command = ["cmake", "--build", "--preset", preset, "-j", str(jobs())]
    if targets:
        command += ["--target", *targets]
    step(f"build {preset} (first time: minutes)", command, cwd=ROOT)


def build(device):
    """Builds the product and leaves build/koho."""
    preset = choose_preset(device)
    configure_and_build(preset, ["koho"])
    for name, made in {"koho": f"{preset}/src/app/koho"}.items():
        link = ROOT / "build" / name
        link.unlink(missing_ok=True)
        link.symlink_to(made)
    return preset


def run_koho(arguments, stdin=None):
    result = subprocess.run([str(ROOT / "build" / "koho"), *arguments], capture_output=True, text=True, input=stdin,
                            check=False)
    if result.returncode != 0:
        raise Failure(f"koho {' '.join(arguments)} failed with exit code {result.returncode}: {result.stderr.strip()}")
    return result.stdout


def read_reference():
    """The reference implementation's greedy answers of the embedded model: tests/golden/trained.* (docs/goldens.md)."""
    folder = ROOT / "tests" / "golden"
    raw = (folder / "trained.safetensors").read_bytes()
    header_bytes = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + header_bytes])

    def numbers(name):
        entry = header[name]
        begin, end = entry["data_offsets"]
        values = array.array({"I32": "i", "F32": "f"}[entry["dtype"]])
        values.frombytes(raw[8 + header_bytes + begin:8 + header_bytes + end])
        return values.tolist()

    for index, entry in enumerate(json.loads((folder / "trained.json").read_text())):
        best = numbers(f"{index:02}.best_logits")
        yield {"name": entry["name"], "prompt_ids": numbers(f"{index:02}.ids"), "ids": numbers(f"{index:02}.greedy_ids"),
               "gaps": [best[2 * i] - best[2 * i + 1] for i in range(len(best) // 2)],
               "noise": numbers(f"{index:02}.rounding_noise")}


def agreement(found, reference):
    """Whether `found` is the beginning of the reference's ids, up to a first difference where the reference's own two
    best logits are closer than its rounding noise. Returns (agrees, words)."""
    for i, (ours, theirs) in enumerate(zip(found, reference["ids"])):
        if ours != theirs:
            near = reference["gaps"][i] < reference["noise"][i]
            return near, (f"equal up to token {i}, a near tie of the reference" if near else f"DIFFER at token {i}")
    return len(found) > 0, f"all {len(found)} equal"


def smoke(device):
    """Builds, then answers the demonstration prompts of the embedded model and checks them twice: the text against what
    a right answer contains, and the token ids against the reference implementation's."""
    started = time.monotonic()
    build(device)
    step("check the checkpoint", [str(ROOT / "build" / "koho"), "check", "--model", str(MODEL)])
    expected = {entry["name"]: entry for entry in json.loads((MODEL / "prompts.json").read_text())["prompts"]}
    cases = [case for case in read_reference() if case["name"] in expected]
    wrong, rates = [], []
    say("==> ask the embedded model")
    for case in cases:
        demonstration = expected[case["name"]]
        request = demonstration["request"]
        question = request["messages"][-1]["content"] if "messages" in request else request["prompt"]
        ids_file = ROOT / "build" / "smoke-ids.json"
        ids_file.write_text(json.dumps(case["prompt_ids"]))
        line = run_koho(["run", "--model", str(MODEL), "--prompt-ids", str(ids_file), "--temperature", "0",
                         "--max-tokens", str(min(len(case["ids"]), demonstration["max_tokens"])), "--json"])
        answer = json.loads(line.splitlines()[-1])
        agrees, words = agreement(answer["ids"], case)
        # The expectation may end in the control token that ends the answer, which koho does not show.
        right = re.sub(r"<\|\w+\|>$", "", demonstration["expect"]) in answer["text"]
        timings = answer["timings"]
        rates.append(timings["decode_tokens_per_s"])
        say("    prompt   " + str(question).strip().replace("\n", "\n             "))
        say("    answer   " + answer["text"].strip().replace("\n", "\n             "))
        say(f"    {'ok' if agrees and right else 'WRONG'}       ids against the reference: {words}; "
            f"{'right' if right else 'should contain ' + repr(demonstration['expect'])}; "
            f"loaded in {timings['load_ms']:.0f} ms, {timings['decode_tokens_per_s']:.0f} tok/s\n")
        if not (agrees and right):
            wrong.append(case["name"])
    if len(cases) < 5:
        raise Failure(f"only {len(cases)} reference answers found")
    if wrong:
        raise Failure(f"{len(wrong)} of {len(cases)} answers are wrong: {'; '.join(wrong)}")
    say(f"==> smoke passed: {len(cases)} prompts answered as the reference implementation answers them, "
        f"{sum(rates) / len(rates):.0f} tok/s on average, {time.monotonic() - started:.0f} s in all")


def test(device):
    """Builds and runs every test: optimised, and the folders' own under AddressSanitizer and UBSan."""
    preset = choose_preset(device)
    build(device)
    configure_and_build(preset)
    step("tests (optimised)", ["ctest", "--test-dir", f"build/{preset}", "--output-on-failure", "-j", str(jobs())],
         quiet=False, cwd=ROOT)
    configure_and_build("dev")
    step("tests (AddressSanitizer, UndefinedBehaviorSanitizer)",
         ["ctest", "--test-dir", "build/dev", "--output-on-failure", "-j", str(jobs()), "-LE", "optimised"],
         quiet=False, cwd=ROOT)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    job = parser.add_mutually_exclusive_group(required=True)
    job.add_argument("--smoke", action="store_true", help="set up, build, run the embedded model and check its answers")
    job.add_argument("--test", action="store_true", help="set up, build and pass all tests")
    job.add_argument("--build", action="store_true", help="set up and build")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto",
                        help="what to build for: auto takes CUDA where there is an NVIDIA GPU")
    options = parser.parse_args()
    try:
        set_up()
        if options.smoke:
            smoke(options.device)
        elif options.test:
            test(options.device)
        else:
            build(options.device)
            say("==> build/koho is ready")
    except Failure as failure:
        say(f"run.py: {failure}")
        return 1
    except KeyboardInterrupt:
        say("run.py: interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
