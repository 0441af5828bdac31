#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds koho for the GPU of this machine, checks it and times it, and keeps every result: what someone with a GPU runs
after a change of src/cuda, and before believing a number. Correctness comes first; a step that fails or outlasts its
limit is recorded and the next one runs. Standard library only.

    tools/gpu_check.py --out results              everything
    tools/gpu_check.py --out results --list       the steps, their limits and commands
    tools/gpu_check.py --out results --only ops --only golden --no-build
    tools/gpu_check.py --out results --minutes 9  no step begins that would not end by then
    tools/gpu_check.py --out results --steps sanitize   compute-sanitizer on small shapes: not among the usual steps

`results` gets report.txt (a line a step, then what the steps say of themselves), results.json (the same for programs),
log.txt (all output) and the tables that the benchmarks write. Exit code 1 if a step failed, else 3 if one had no time or memory.
"""
import argparse
import datetime
import importlib.util
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cuda"
AIR = "tests/data/configs/glm-4.5-air.json"
AIR_BYTES = {"each layer": 2.36e9, "all": 2.6e9, "beside": 22e9}  # FP8 weights; cache, scratch and what CUDA takes
# Built first, so that the GPU has work while the rest is compiled.
KERNEL_TARGETS = ["cuda_op_test", "self_test_test"]
OTHER_TARGETS = ["cuda_golden_test", "cuda_worker_test", "cuda_engine_test", "gemm_bench", "koho", "engine_so",
                 "capi_engine_test"]


class Step:
    """One command. `kept` are patterns of the lines that the report repeats; `record` is a file and what makes its rows
    of those lines, for programs that write none."""

    def __init__(self, name, command, limit, kept=(), env=None, group="usual", needs_all=True, memory=0.0, record=None,
                 modules=()):
        self.name, self.command, self.limit, self.kept = name, [str(part) for part in command], limit, kept
        self.env, self.group, self.needs_all, self.memory, self.record = env or {}, group, needs_all, memory, record
        self.modules = modules


def output_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def machine():
    """What is under test; None without a GPU."""
    line = output_of(["nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version",
                      "--format=csv,noheader,nounits"]).splitlines()
    if not line:
        return None
    name, capability, memory, driver = [part.strip() for part in line[0].split(",")]
    compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    version = re.search(r"release [\d.]+, V([\d.]+)", output_of([compiler, "--version"])) if compiler else None
    return {"gpu": name, "capability": capability, "memory_bytes": int(memory) << 20, "driver": driver, "nvcc": compiler,
            "cuda": version.group(1) if version else None, "cores": os.cpu_count(),
            "commit": output_of(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]) or None,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}


def layers_that_fit(memory_bytes):
    """How many of GLM-4.5-Air's 46 layers this GPU holds; all on one with 140 GB."""
    return max(2, min(46, int((memory_bytes - AIR_BYTES["all"] - AIR_BYTES["beside"]) / AIR_BYTES["each layer"])))


def loading_rows(lines):
    """Of koho's log lines "weights: 21.5 GB on the device after 0.80 s, 27.0 GB/s"."""
    found = [re.search(r"weights: ([\d.]+) GB on the device after ([\d.]+) s, ([\d.]+) GB/s", line) for line in lines]
    return [{"op": "load", "bytes": round(1e9 * float(match[1])), "us": round(1e6 * float(match[2])),
             "gb_per_s": float(match[3])} for match in found if match]


def steps(found, out):
    """All steps, in the order in which they run."""
    program = BUILD / "src" / "app" / "koho"
    tests = BUILD / "tests"
    seed = str(int(time.time()))  # printed with every failure
    failures = (r"\[  FAILED  \]", r"\[  PASSED  \]", r"\[  SKIPPED \]", r"KOHO_OP_SEED=", r"Failure")
    layers = str(layers_that_fit(found["memory_bytes"]))
    commit = found["commit"] or "unknown"
    air = ["--config", AIR, "--weights", "synthetic", "--device", "cuda", "--layers", layers]
    latency = [program, "bench", "latency", *air, "--commit", commit]
    timing = (r"^(decode|prefill) ", r"^  \S.* ms ", r"^NVIDIA")
    list_ = []

    # The operators against float64 references: each mode a process of its own, because a fault leaves a GPU context dead. A round
    # of one took 10 to 20 s with all four side by side on 16 cores.
    others = ("portable", "deterministic", "captured")
    for mode in (*others, "fast"):
        chosen = f"*/{mode}_*" if mode in others else "-" + ":".join(f"*/{other}_*" for other in others)
        list_.append(Step(f"ops {mode}", [tests / "ops" / "cuda_op_test", f"--gtest_filter={chosen}"], 420, failures,
                          {"KOHO_OP_SEED": seed, "KOHO_OP_ROUNDS": "12"}, needs_all=False))
    list_.append(Step("self-test", [tests / "cuda" / "self_test_test"], 240, failures))
    list_.append(Step("golden", [tests / "golden" / "cuda_golden_test"], 180, (*failures, r"noise .* koho", r"^prompt ")))
    list_.append(Step("worker", [tests / "cuda" / "cuda_worker_test"], 240, (*failures, r"prompts end")))
    list_.append(Step("engine batch invariance", [tests / "batch_invariance" / "cuda_engine_test", "--gtest_filter=*BatchInvariance*"], 300,
                      (*failures, r"differ")))
    list_.append(Step("engine batch invariance, all", [tests / "batch_invariance" / "cuda_engine_test", "--gtest_filter=*BatchInvariance*"], 600,
                      (*failures, r"differ"), {"KOHO_BATCH_INVARIANCE": "all"}))
    list_.append(Step("engine leak", [tests / "batch_invariance" / "cuda_engine_test", "--gtest_filter=*Leak*"], 300,
                      (*failures, r"resident")))
    list_.append(Step("c interface", [tests / "capi" / "capi_engine_test", "models/tiny", "1"], 120, (r".*",)))
    list_.append(Step("python interface", [sys.executable, "tests/capi/test_koho.py", "-v"], 180, (r"\.\.\. ", r"^(OK|FAILED)"),
                      {"KOHO_ENGINE": str(BUILD / "src" / "capi" / "engine.so"), "PYTHONPATH": str(ROOT / "python"),
                       "KOHO_BINARY": str(program), "KOHO_TEST_GPUS": "1", "PYTHONDONTWRITEBYTECODE": "1"}))
    list_.append(Step("embedded model", [program, "run", "--model", "models/tiny", "--device", "cuda", "--json",
                                         "Once upon a time"], 60, (r".*",)))
    list_.append(Step("true widths", [sys.executable, "tools/true_widths.py", "--koho", program, "--device", "cuda", "--commit", commit,
                                      "--machine", found.get("gpu", "unknown"), "--json", out / "true-widths.json"], 600,
                      (r"^layers|^noise|^koho|^greedy|^FAILED|^passed|Error",), memory=70e9, modules=("torch", "transformers", "numpy")))
    list_.append(Step("long context", [sys.executable, "tools/long_context.py", "--koho", program, "--vocabulary", "151552", "--context",
                                       "131072", "--commit", commit, "--machine", found.get("gpu", "unknown"), "--json",
                                       out / "long-context.json", "--", *air], 420, (r"once|default|FAILED|passed",)))

    # Speed.
    list_.append(Step("op timings", [program, "bench", "ops", "--out", out / "operators.json", "--commit", commit], 300,
                      (r" us ", r"WRONG|failed|cannot be built", r"^-- .* cases")))
    list_.append(Step("op timings, sustained", [program, "bench", "ops", "--sustained", "--no-check", "--only", "linear_", "--tokens",
                                                "4096,8192", "--out", out / "prompts-sustained.json", "--commit", commit], 120,
                      (r" us ", r"failed")))
    list_.append(Step("op timings, portable", [program, "bench", "ops", "--portable", "--only", "experts_", "--tokens",
                                               "16,64,256", "--out", out / "experts-portable.json", "--commit", commit], 60,
                      (r" us ", r"WRONG|failed")))
    for name, only in (("linear", "_tp"), ("linear-head", "head_whole")):
        list_.append(Step(f"{name} beside cuBLASLt", [BUILD / "bench" / "gemm_bench", "--only", only, "--chosen", "--top", "0", "--tokens",
                                                      "1,8,16,32,48,64,65,80,96,112,128", "--commit", commit, "--out",
                                                      out / f"{name}.json"], 120, (r"chosen",)))
    list_.append(Step("latency", [*latency, "--batch", "1,16,64", "--context", "1024", "--prefill", "8192", "--out",
                                  out / "air-latency.json"], 150, timing))
    # A process of its own: whatever records kernels stays in it.
    list_.append(Step("latency kernels", [*latency, "--batch", "1,16,64", "--context", "1024", "--prefill", "8192", "--kernels",
                                          "--out", out / "air-kernels.json"], 180,
                      (*timing, r"the step less", r"not recorded")))
    list_.append(Step("latency fp8 cache", [*latency, "--batch", "1,64", "--context", "1024", "--prefill", "8192", "--kv-dtype",
                                            "fp8", "--no-classes", "--out", out / "air-latency-e4m3.json"], 120, timing))
    list_.append(Step("latency deterministic", [*latency, "--batch", "1,16,64", "--context", "1024", "--prefill", "8192",
                                                "--deterministic", "--no-classes", "--out", out / "air-deterministic.json"], 120, timing))
    for cache in ("bf16", "fp8"):
        list_.append(Step(f"latency of 131k, {cache}", [*latency, "--batch", "1", "--context", "131000", "--prefill", "8192",
                                                    "--kv-dtype", cache, "--no-classes", "--out", out / f"air-long-{cache}.json"],
                          150, timing, memory=148e9))
    list_.append(Step("throughput", [program, "bench", *air, "--requests", "128", "--concurrency", "64", "--prompt-len", "256",
                                     "--gen-len", "256", "--temperature", "1", "--no-prefix-cache", "--commit",
                                     commit, "--json", out / "air-throughput.json"], 180, (r".*",)))
    list_.append(Step("batch", [sys.executable, "tools/batch_check.py", "--koho", program, "--vocabulary", "151552", "--commit",
                                commit, "--machine", found.get("gpu", "unknown"), "--json", out / "air-batch.json", "--", *air], 180,
                      (r"^batch:|^FAILED",)))
    shaped = pathlib.Path("/dev/shm/koho_shaped_checkpoint")  # 21.5 GB of memory
    load = (f"test -x {program} && {shlex.quote(sys.executable)} tools/make_shaped_checkpoint.py --config {AIR} --layers 9 "
            f"--out {shaped}; code=$?; for i in 1 2; do test $code = 0 && {{ {program} bench latency --model {shaped} "
            f"--device cuda --batch 1 --prefill 0 --no-classes; code=$?; }}; done; rm -rf {shaped}; exit $code")
    list_.append(Step("loading", ["bash", "-c", load], 150, (r"weights:", r"GB/s"), memory=40e9,
                      record=(out / "loading.json", loading_rows)))

    # Last, of all these files: which goals are reached.
    list_.append(Step("goals", [sys.executable, "tools/speed_goals.py", *(out / f"{name}.json" for name in (
        "operators", "prompts-sustained", "experts-portable", "linear", "linear-head", "air-kernels", "air-latency", "air-throughput",
        "loading"))], 20, (r".*",)))

    # compute-sanitizer: one round a case: the small ones, those of the portable mode that other kernels run there, and the ones of
    # many rows that reach kernels of their own (`route_many`, `sample_many`: gemm_prefill_sm90.cu is reached by a small one too).
    small = "-*long*:*many*:*large*:*131072*:*captured_*"
    reference = "*MatchesItsFloat64Reference/"
    many = ("route_many", "sample_many", "rms_norm_many", "add_rms_norm_many", "silu_mul_many", "embed_many", "gather_rows_many",
            "gather_input_ids_many")
    for tool, mode in itertools.product(("memcheck", "racecheck", "synccheck", "initcheck"), ("", " portable", " many")):
        # On cuBLASLt's kernel without row scales racecheck fails by itself ("failed to handle a hardware exception"), so there it
        # has koho's portable kernels alone: what is missing, gemm_scale_epilogue.cu's, has no shared memory.
        prefix = reference + ("portable_deterministic_" if tool == "racecheck" else "portable_")
        cases = {"": f"{reference}*{small}:*portable_*:*deterministic_*",
                 " portable": ":".join(f"{prefix}{operator}*" for operator in ("linear", "experts", "attention")) + small,
                 " many": ":".join(f"{reference}{case}" for case in many)}[mode]
        # Racecheck reports hazards inside cuBLASLt's kernels, which the self-test runs. Initcheck does not see what they store by
        # TMA, and reports the kernel that reads it.
        without = {"racecheck": "nvjet", "initcheck": "gemm_scale_epilogue_kernel"}.get(tool)
        ours = ["--kernel-name-exclude", f"kernel_substring={without}"] if without else []
        list_.append(Step(f"sanitize {tool}{mode}", ["compute-sanitizer", "--tool", tool, *ours, "--error-exitcode", "9",
                                                     tests / "ops" / "cuda_op_test", f"--gtest_filter={cases}"],
                          500, (*failures, r"(ERROR|RACECHECK) SUMMARY"), {"KOHO_OP_SEED": seed, "KOHO_OP_ROUNDS": "1"},
                          group="sanitize", needs_all=False))
    return list_


class Checks:
    def __init__(self, out, found, deadline):
        self.out, self.found, self.deadline = out, found, deadline
        self.log = open(out / "log.txt", "w", encoding="utf-8", errors="replace")
        self.rows = []
        self.kept = []

    def run(self, name, command, limit, env=None, kept=(), log=None, cwd=ROOT):
        """Runs a command in a process group of its own, which a limit ends; returns its row."""
        log = log or self.log
        print(f"-- {name}", flush=True)
        log.write(f"\n==== {name}\n$ {shlex.join(command)}\n")
        log.flush()
        begin, lines = time.monotonic(), []
        process = subprocess.Popen(command, cwd=cwd, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        timed_out = threading.Event()

        def stop():
            timed_out.set()
            os.killpg(process.pid, signal.SIGKILL)
        timer = threading.Timer(limit, stop)
        timer.start()
        try:
            for line in process.stdout:
                log.write(line)
                if len(lines) < 400 and any(re.search(pattern, line) for pattern in kept):
                    lines.append(line.rstrip()[:200])
            code = process.wait()
        except BaseException:  # an end from outside: Ctrl-C does not reach the step's own group
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            timer.cancel()
            log.flush()
        state = "too slow" if timed_out.is_set() else "ok" if code == 0 else f"failed ({code})"
        return {"step": name, "state": state, "seconds": round(time.monotonic() - begin, 1), "limit": limit,
                "command": shlex.join(command), "env": env or {}, "lines": lines}

    def record(self, row, path, rows_of):
        """A step's lines as a file of bench/results."""
        rows = rows_of(row["lines"])
        if not rows:
            row["state"] = "failed (printed nothing to record)"
        path.write_text(json.dumps({"machine": self.found["gpu"], "driver": self.found["driver"], "commit": self.found["commit"],
                                    "date": self.found["date"][:10], "command": row["command"], "rows": rows}) + "\n")

    def note(self, row):
        self.rows.append(row)
        print(f"   {row['state']}, {row['seconds']} s", flush=True)
        self.write()

    def write(self):
        """After every step, so that an end from outside leaves what there is."""
        (self.out / "results.json").write_text(json.dumps({"machine": self.found, "steps": self.rows}, indent=1) + "\n")
        text = [f"{key:14} {value}" for key, value in self.found.items()] + [""]
        text += [f"{row['state']:14} {row['seconds']:7.1f} s  {row['step']}" for row in self.rows]
        for row in self.rows:
            if row["lines"]:
                text += ["", f"---- {row['step']}", *row["lines"]]
        (self.out / "report.txt").write_text("\n".join(text) + "\n")

    def configure(self, extra):
        major, minor = self.found["capability"].split(".")
        target = f"{major}{minor}{'a' if int(major) in (9, 10) else ''}-real"
        return self.run("configure", ["cmake", "--preset", "cuda", f"-DKOHO_CUDA_ARCHITECTURES={target}",
                                      f"-DCMAKE_CUDA_COMPILER={self.found['nvcc']}", *extra], 120, kept=(r"Error",))

    def build(self, name, targets, limit, log=None):
        return self.run(name, ["cmake", "--build", str(BUILD), "--target", *targets], limit,
                        kept=(r"error|warning|FAILED",), log=log)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu_check"), help="folder of the results")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="steps whose name contains it")
    parser.add_argument("--skip", action="append", default=[], metavar="TEXT")
    parser.add_argument("--steps", choices=["usual", "sanitize", "all"], default="usual")
    parser.add_argument("--minutes", type=float, default=120.0, help="for everything, the build included")
    parser.add_argument("--no-build", action="store_true", help="take build/cuda as it is")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--commit", help="what is measured, where it is not what git says")
    parser.add_argument("--cmake", action="append", default=[], metavar="ARG", help="for the configuration: --cmake=-DNAME=VALUE")
    options = parser.parse_args()
    found = machine()
    if found is None and not options.list:
        print("tools/gpu_check.py: nvidia-smi finds no GPU on this machine", file=sys.stderr)
        return 2
    found = found or {"memory_bytes": sys.maxsize, "commit": None}  # a list as for a GPU that holds all layers
    found["commit"] = options.commit or found["commit"]
    chosen = [step for step in steps(found, options.out.resolve())
              if options.steps in (step.group, "all") and not any(text in step.name for text in options.skip)
              and (not options.only or any(text in step.name for text in options.only))]
    if options.list:
        for step in chosen:
            env = "".join(f"{key}={value} " for key, value in step.env.items())
            print(f"{step.name:22} {step.limit:4} s  {env}{shlex.join(step.command)}")
        return 0
    if found["nvcc"] is None and not options.no_build:
        print("tools/gpu_check.py: no nvcc on PATH nor in /usr/local/cuda/bin", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    checks = Checks(options.out.resolve(), found, time.monotonic() + 60 * options.minutes)

    rest, rest_rows = None, []
    if not options.no_build:
        checks.note(checks.configure(options.cmake))
        if checks.rows[-1]["state"] == "ok":
            checks.note(checks.build("build the operators' test", KERNEL_TARGETS, 600))
        if checks.rows[-1]["state"] != "ok":
            print((checks.out / "report.txt").read_text())
            print(f"nothing is built, so nothing ran: {checks.out}/log.txt has why. What a build needs: packages.txt, CUDA 13; "
                  "./run.py --build installs the packages", file=sys.stderr)
            return 1
        if any(step.needs_all for step in chosen):
            rest_log = open(checks.out / "build_log.txt", "w", encoding="utf-8")
            # -k 0: a target that does not compile keeps its own steps from running only.
            rest = threading.Thread(target=lambda: rest_rows.append(
                checks.build("build the rest", [*OTHER_TARGETS, "--", "-k", "0"], 900, rest_log)))
            rest.start()
    for step in chosen:
        if step.needs_all and rest is not None:
            rest.join()
            rest = None
            checks.note(rest_rows[0])
        row = {"step": step.name, "state": "", "seconds": 0.0, "limit": step.limit, "command": shlex.join(step.command),
               "env": step.env, "lines": []}
        left = checks.deadline - time.monotonic()
        if left < 15:
            row["state"] = "no time left"
        elif step.memory > found["memory_bytes"]:
            row["state"] = "needs more memory"
        elif not shutil.which(step.command[0]):
            row["state"] = "not there"
        elif not all(importlib.util.find_spec(name) for name in step.modules):
            row["state"] = "needs " + ", ".join(step.modules)
        else:
            row = checks.run(step.name, step.command, min(step.limit, left), step.env, step.kept)
            if step.record and row["state"] == "ok":
                checks.record(row, *step.record)
        checks.note(row)
    if rest is not None:
        rest.join()
    print((checks.out / "report.txt").read_text())
    left_out = [row["step"] for row in checks.rows if row["state"] in ("needs more memory", "no time left")]
    if left_out:
        print(f"did not run, for lack of time or memory: {', '.join(left_out)}")
    if any(row["state"] != "ok" and row["step"] not in left_out for row in checks.rows):
        return 1
    return 3 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
