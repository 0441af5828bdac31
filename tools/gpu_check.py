#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds koho for the GPU of this machine, checks it and times it, and keeps every result: what someone with a GPU runs
after a change of src/cuda, and before believing a number. Correctness comes first; a step that fails or outlasts its
limit is recorded and the next one runs. Standard library only.

    tools/gpu_check.py --out results              everything
    tools/gpu_check.py --out results --list       the steps, their limits, what they take about, and commands
    tools/gpu_check.py --out results --only ops --only golden --no-build
    tools/gpu_check.py --out results --minutes 9  no step begins that would not end by then
    tools/gpu_check.py --out results --steps sanitize   compute-sanitizer on small shapes: not among the usual steps
    tools/gpu_check.py --out results --gpus 8     a replica of 8 ranks: collectives, steps, prompts, the server, loading, kills;
                                                  in pieces of nine minutes: the same command goes on where the last one ended
    tools/gpu_check.py --out results --gpus 4 --shared-gpu   four ranks on one GPU: only what one rank alone takes is timed
    tools/gpu_check.py --out results --gpus 2 --device cpu   two ranks on the CPU: what of it runs there

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

import gpu_check_ranks
import result_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cuda"
AIR = "tests/data/configs/glm-4.5-air.json"
AIR_BYTES = {"each layer": 2.36e9, "all": 2.6e9, "beside": 22e9}  # FP8 weights; cache, scratch and what CUDA takes
# Built first, so that the GPU has work while the rest is compiled.
KERNEL_TARGETS = ["cuda_op_test", "self_test_test"]
OTHER_TARGETS = ["cuda_golden_test", "cuda_worker_test", "cuda_engine_test", "gemm_bench", "koho", "engine_so",
                 "capi_engine_test", "worker_fault_cuda"]


def build_folder(device):
    return BUILD if device == "cuda" else BUILD.parent / "release"


class Step:
    """One command. `kept` are patterns of the lines that the report repeats; `record` is a file and what makes its rows
    of those lines, for programs that write none; `usual` is about how many seconds it takes."""

    def __init__(self, name, command, limit, kept=(), env=None, group="usual", needs_all=True, memory=0.0, record=None,
                 modules=(), usual=60):
        self.name, self.command, self.limit, self.kept = name, [str(part) for part in command], limit, kept
        self.env, self.group, self.needs_all, self.memory, self.record = env or {}, group, needs_all, memory, record
        self.modules, self.usual = modules, usual


def few_gpus(options):
    """What keeps --gpus from running here; None if nothing does."""
    there = len(output_of(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines())
    wanted = 1 if options.shared_gpu else options.gpus
    return None if there >= wanted else f"--gpus {options.gpus} needs {wanted} GPUs, {there} are here: --shared-gpu puts all ranks on one"


def output_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def commit_here():
    return output_of(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]) or None


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
            "commit": commit_here(), "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}


def cpu_machine():
    """The same of a machine whose CPU alone is used."""
    return {"gpu": "CPU", "memory_bytes": host_memory_bytes(), "driver": None, "nvcc": None, "cuda": None, "cores": os.cpu_count(),
            "commit": commit_here(), "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}


def write_shape(folder, gpus, memory_bytes):
    """GLM-4.7's config with as many layers as so many GPUs hold, for servers with random weights."""
    config = json.loads((ROOT / gpu_check_ranks.CONFIG).read_text())
    config["num_hidden_layers"] = gpu_check_ranks.layers_that_fit(gpus, memory_bytes)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def layers_that_fit(memory_bytes):
    """How many of GLM-4.5-Air's 46 layers this GPU holds; all on one with 140 GB."""
    return max(2, min(46, int((memory_bytes - AIR_BYTES["all"] - AIR_BYTES["beside"]) / AIR_BYTES["each layer"])))


def loading_rows(lines):
    """Of koho's log lines "weights: 21.5 GB on the device after 0.80 s, 27.0 GB/s"."""
    found = [re.search(r"weights: ([\d.]+) GB on the device after ([\d.]+) s, ([\d.]+) GB/s", line) for line in lines]
    return [{"op": "load", "bytes": round(1e9 * float(match[1])), "us": round(1e6 * float(match[2])),
             "gb_per_s": float(match[3])} for match in found if match]


FAILURES = (r"\[  FAILED  \]", r"\[  PASSED  \]", r"\[  SKIPPED \]", r"KOHO_OP_SEED=", r"Failure")
TIMING = (r"^(decode|prefill|mixed) ", r"^  \S.* ms ", r"^NVIDIA")
PROGRAM = BUILD / "src" / "app" / "koho"
TESTS = BUILD / "tests"
OP_TEST = TESTS / "ops" / "cuda_op_test"


class Run:
    """What the steps of one call share: the machine, the folder of results, the seed, GLM-4.5-Air's flags."""

    def __init__(self, found, out, program=PROGRAM):
        self.gpu, self.out, self.commit = found.get("gpu", "unknown"), out, found["commit"] or "unknown"
        self.program = program
        self.seed = str(int(time.time()))  # printed with every failure
        self.air = ["--config", AIR, "--weights", "synthetic", "--device", "cuda", "--layers", str(layers_that_fit(found["memory_bytes"]))]

    def recorded_by(self, tool, *arguments, name):
        """A tool in Python that writes a file of bench/results."""
        return [sys.executable, f"tools/{tool}", "--koho", self.program, *arguments, "--commit", self.commit, "--machine", self.gpu, "--json",
                self.out / f"{name}.json"]

    def latency(self, *arguments, name):
        return [PROGRAM, "bench", "latency", *self.air, "--commit", self.commit, *arguments, "--out", self.out / f"{name}.json"]

    def ops(self, *arguments, name):
        return [PROGRAM, "bench", "ops", "--device", "cuda", *arguments, "--out", self.out / f"{name}.json", "--commit", self.commit]


def operator_steps(run):
    """The operators against float64 references: each mode a process of its own, because a fault leaves a GPU context dead. A round
    of one took 10 to 20 s with all four side by side on 16 cores."""
    others = ("portable", "deterministic", "captured")
    for mode in (*others, "fast"):
        chosen = f"*/{mode}_*" if mode in others else "-" + ":".join(f"*/{other}_*" for other in others)
        yield Step(f"ops {mode}", [OP_TEST, f"--gtest_filter={chosen}"], 420, FAILURES,
                   {"KOHO_OP_SEED": run.seed, "KOHO_OP_ROUNDS": "12"}, needs_all=False)
    yield Step("self-test", [TESTS / "cuda" / "self_test_test"], 240, FAILURES)


def engine_steps(run):
    """Whole models: the golden outputs, the worker, the engine and both interfaces."""
    engine_test = TESTS / "batch_invariance" / "cuda_engine_test"
    yield Step("golden", [TESTS / "golden" / "cuda_golden_test"], 180, (*FAILURES, r"noise .* koho", r"^prompt "))
    yield Step("worker", [TESTS / "cuda" / "cuda_worker_test"], 240, (*FAILURES, r"prompts end"))
    yield Step("engine batch invariance", [engine_test, "--gtest_filter=*BatchInvariance*"], 300, (*FAILURES, r"differ"))
    yield Step("engine batch invariance, all", [engine_test, "--gtest_filter=*BatchInvariance*"], 600, (*FAILURES, r"differ"),
               {"KOHO_BATCH_INVARIANCE": "all"})
    yield Step("engine leak", [engine_test, "--gtest_filter=*Leak*"], 300, (*FAILURES, r"resident"))
    yield Step("c interface", [TESTS / "capi" / "capi_engine_test", "models/tiny", "1"], 120, (r".*",))
    yield Step("python interface", [sys.executable, "tests/capi/test_koho.py", "-v"], 180, (r"\.\.\. ", r"^(OK|FAILED)"),
               {"KOHO_ENGINE": str(BUILD / "src" / "capi" / "engine.so"), "PYTHONPATH": str(ROOT / "python"),
                "KOHO_BINARY": str(PROGRAM), "KOHO_TEST_GPUS": "1", "PYTHONDONTWRITEBYTECODE": "1"})
    yield Step("embedded model", [PROGRAM, "run", "--model", "models/tiny", "--device", "cuda", "--json", "Once upon a time"], 60, (r".*",))
    broken = run.recorded_by("server_check.py", *gpu_check_ranks.fault_arguments(TESTS / "processes" / "worker_fault_cuda.so"), name="faults")
    yield Step("worker broken", [*broken, "--", *gpu_check_ranks.FAULT_FLAGS, "--device", "cuda"], 500, gpu_check_ranks.FAULT_LINES, usual=180)
    yield Step("true widths", run.recorded_by("true_widths.py", "--device", "cuda", name="true-widths"), 600,
               (r"^layers|^noise|^koho|^greedy|^FAILED|^passed|Error",), memory=70e9, modules=("torch", "transformers", "numpy"))
    long_context = run.recorded_by("long_context.py", "--vocabulary", "151552", "--context", "131072", name="long-context")
    yield Step("long context", [*long_context, "--", *run.air], 420, (r"once|default|FAILED|passed",))


def operator_timing_steps(run):
    yield Step("op timings", run.ops(name="operators"), 300, (r" us ", r"WRONG|failed|cannot be built", r"^-- .* cases"))
    yield Step("op timings, sustained", run.ops("--sustained", "--no-check", "--only", "linear_", "--tokens", "4096,8192",
                                                name="prompts-sustained"), 120, (r" us ", r"failed"))
    yield Step("op timings, portable", run.ops("--portable", "--only", "experts_", "--tokens", "16,64,256,1024,8192", name="experts-portable"), 60,
               (r" us ", r"WRONG|failed"))
    for name, only in (("linear", "_tp"), ("linear-head", "head_whole")):
        yield Step(f"{name} beside cuBLASLt", [BUILD / "bench" / "gemm_bench", "--only", only, "--chosen", "--top", "0", "--tokens",
                                               "1,8,16,32,48,64,65,80,96,112,128", "--commit", run.commit, "--out", run.out / f"{name}.json"],
                   120, (r"chosen",))


def model_timing_steps(run):
    """GLM-4.5-Air's steps, prompts and offline throughput."""
    usual = ("--batch", "1,16,64", "--context", "1024", "--prefill", "8192")
    yield Step("latency", run.latency(*usual, name="air-latency"), 150, TIMING)
    yield Step("latency by length", run.latency("--batch", "1,8,64", *usual[2:4], "--prefill", "128,256,512,1024,2048,4096,8192", "--mixed", "512",
                                                "--no-classes", name="air-prompts"), 120, TIMING)
    # A process of its own: whatever records kernels stays in it.
    yield Step("latency kernels", run.latency(*usual, "--kernels", name="air-kernels"), 180, (*TIMING, r"the step less", r"not recorded"))
    yield Step("latency fp8 cache", run.latency("--batch", "1,64", *usual[2:], "--kv-dtype", "fp8", "--no-classes", name="air-latency-e4m3"),
               120, TIMING)
    yield Step("latency cublaslt", run.latency(*usual, "--no-deterministic", "--no-classes", name="air-cublaslt"), 120, TIMING)
    for cache in ("bf16", "fp8"):
        yield Step(f"latency of 131k, {cache}", run.latency("--batch", "1", "--context", "131000", "--prefill", "8192", "--kv-dtype", cache,
                                                            "--no-classes", name=f"air-long-{cache}"), 150, TIMING, memory=148e9)
    yield Step("throughput", [PROGRAM, "bench", *run.air, "--requests", "128", "--concurrency", "64", "--prompt-len", "256", "--gen-len", "256",
                              "--temperature", "1", "--no-prefix-cache", "--commit", run.commit, "--json", run.out / "air-throughput.json"],
               180, (r".*",))
    yield Step("executors", [*run.recorded_by("executor_cost.py", name="executors"), "--", *run.air], 500, (r"^batch|^FAILED",), usual=150)
    yield Step("batch", [*run.recorded_by("batch_check.py", "--vocabulary", "151552", name="air-batch"), "--", *run.air], 180,
               (r"^batch:|^FAILED",))


def loading_steps(run):
    shaped = pathlib.Path("/dev/shm/koho_shaped_checkpoint")  # 21.5 GB of memory
    load = (f"test -x {PROGRAM} && {shlex.quote(sys.executable)} tools/make_shaped_checkpoint.py --config {AIR} --layers 9 "
            f"--out {shaped}; code=$?; for i in 1 2; do test $code = 0 && {{ {PROGRAM} bench latency --model {shaped} "
            f"--device cuda --batch 1 --prefill 0 --no-classes; code=$?; }}; done; rm -rf {shaped}; exit $code")
    yield Step("loading", ["bash", "-c", load], 150, (r"weights:", r"GB/s"), memory=40e9, record=(run.out / "loading.json", loading_rows))


def goal_steps(run):
    """Last, of all these files: which goals are reached."""
    names = ("operators", "prompts-sustained", "experts-portable", "linear", "linear-head", "air-prompts", "air-kernels", "air-latency",
             "air-throughput", "loading")
    yield Step("goals", [sys.executable, "tools/speed_goals.py", *(run.out / f"{name}.json" for name in names)], 20, (r".*",))


def sanitizer_steps(run):
    """compute-sanitizer, one round a case: the small cases, those of the portable mode that other kernels run there, and the ones
    of many rows that reach kernels of their own (`route_many`, `sample_many`; a small case reaches gemm_prefill_sm90.cu)."""
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
        yield Step(f"sanitize {tool}{mode}", ["compute-sanitizer", "--tool", tool, *ours, "--error-exitcode", "9", OP_TEST,
                                              f"--gtest_filter={cases}"],
                   500, (*FAILURES, r"(ERROR|RACECHECK) SUMMARY"), {"KOHO_OP_SEED": run.seed, "KOHO_OP_ROUNDS": "1"},
                   group="sanitize", needs_all=False)


def host_memory_bytes():
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def rank_steps(found, out, gpus, shared, device="cuda"):
    """The steps of a replica of several ranks."""
    build = build_folder(device)
    program = build / PROGRAM.relative_to(BUILD)
    ranks = gpu_check_ranks.Ranks(Run(found, out, program), gpus, shared, found["memory_bytes"], build, program, device)
    return gpu_check_ranks.steps(Step, ranks, FAILURES, host_memory_bytes())


def steps(found, out):
    """All steps, in the order in which they run: correctness before speed."""
    run = Run(found, out)
    return [step for group in (operator_steps, engine_steps, operator_timing_steps, model_timing_steps, loading_steps, goal_steps,
                               sanitizer_steps) for step in group(run)]


class Checks:
    def __init__(self, out, found, deadline, device="cuda"):
        self.out, self.found, self.deadline, self.device = out, found, deadline, device
        self.log = open(out / "log.txt", "a", encoding="utf-8", errors="replace")  # after what earlier calls of this command ran
        self.rows = []

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
                    lines.append(line.rstrip()[:500])
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
                                    "date": self.found["date"][:10], "command": result_file.from_root(row["command"]), "rows": rows}) + "\n")

    def note(self, row):
        self.rows.append(row)
        print(f"   {row['state']}, {row['seconds']} s", flush=True)
        self.write()

    def go_on(self, chosen):
        """Takes over what an earlier call of the same folder recorded of the same commit; returns the steps that are still to run."""
        path = self.out / "results.json"
        earlier = json.loads(path.read_text()) if path.exists() else {}
        commit = self.found["commit"]
        if commit is None or earlier.get("machine", {}).get("commit") != commit:  # None: without git
            return chosen
        limits = {step.name: step.limit for step in chosen}

        def ended(row):
            cut_short = row["state"] == "too slow" and row["limit"] < limits.get(row["step"], 0)  # by the end of its piece
            return row["state"] not in ("no time left", "not there") and not cut_short and not row["step"].startswith(("configure", "build"))
        self.rows = [row for row in earlier["steps"] if ended(row)]
        return [step for step in chosen if step.name not in {row["step"] for row in self.rows}]

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
        if self.device == "cpu":
            return self.run("configure", ["cmake", "--preset", "release", *extra], 120, kept=(r"Error",))
        major, minor = self.found["capability"].split(".")
        target = f"{major}{minor}{'a' if int(major) in (9, 10) else ''}-real"
        return self.run("configure", ["cmake", "--preset", "cuda", f"-DKOHO_CUDA_ARCHITECTURES={target}",
                                      f"-DCMAKE_CUDA_COMPILER={self.found['nvcc']}", *extra], 120, kept=(r"Error",))

    def build(self, name, targets, limit, log=None):
        return self.run(name, ["cmake", "--build", str(build_folder(self.device)), "--target", *targets], limit,
                        kept=(r"error|warning|FAILED",), log=log)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu_check"), help="folder of the results")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="steps whose name contains it")
    parser.add_argument("--skip", action="append", default=[], metavar="TEXT")
    parser.add_argument("--steps", choices=["usual", "sanitize", "all"], default="usual")
    parser.add_argument("--minutes", type=float, help="for everything, the build included: 120; with --gpus 9")
    parser.add_argument("--gpus", type=int, choices=[2, 4, 8], help="the steps of a replica of so many ranks")
    parser.add_argument("--shared-gpu", action="store_true", help="its ranks share one GPU")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: try the steps of ranks without a GPU")
    parser.add_argument("--no-build", action="store_true", help="take build/cuda as it is")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--commit", help="what is measured, where it is not what git says")
    parser.add_argument("--cmake", action="append", default=[], metavar="ARG", help="for the configuration: --cmake=-DNAME=VALUE")
    options = parser.parse_args()
    if options.shared_gpu and not options.gpus:
        parser.error("--shared-gpu needs --gpus: how many ranks")
    if options.device == "cpu" and (options.shared_gpu or not options.gpus):
        parser.error("--device cpu needs --gpus, how many ranks, and no GPU to share")
    if options.minutes is None:
        options.minutes = 9.0 if options.gpus else 120.0
    return options


def print_list(chosen):
    for step in chosen:
        env = "".join(f"{key}={value} " for key, value in step.env.items())
        print(f"{step.name:22} {step.limit:4} s, about {step.usual:3} s  {env}{shlex.join(step.command)}")
    print(f"{len(chosen)} steps, about {sum(step.usual for step in chosen) / 60:.0f} minutes beside the build", file=sys.stderr)


def build_first(checks, options, targets):
    """Configures, and builds what the first steps need; False if that failed."""
    checks.note(checks.configure(options.cmake))
    if checks.rows[-1]["state"] == "ok":
        checks.note(checks.build(f"build {targets[0]}", targets, 600))
    if checks.rows[-1]["state"] == "ok":
        return True
    print((checks.out / "report.txt").read_text())
    print(f"nothing is built, so nothing ran: {checks.out}/log.txt has why. What a build needs: packages.txt, CUDA 13; "
          "./run.py --build installs the packages", file=sys.stderr)
    return False


def run_step(checks, step):
    """Runs a step, or says why it cannot run; returns its row."""
    row = {"step": step.name, "state": "", "seconds": 0.0, "limit": step.limit, "command": shlex.join(step.command), "env": step.env,
           "lines": []}
    left = checks.deadline - time.monotonic()
    if left < 15:
        row["state"] = "no time left"
    elif step.memory > checks.found["memory_bytes"]:
        row["state"] = "needs more memory"
    elif not shutil.which(step.command[0]):
        row["state"] = "not there"
    elif not all(importlib.util.find_spec(name) for name in step.modules):
        row["state"] = "needs " + ", ".join(step.modules)
    else:
        row = checks.run(step.name, step.command, min(step.limit, left), step.env, step.kept)
        if row["state"] == "ok" and any(re.search(r"\[  PASSED  \] 0 tests", line) for line in row["lines"]):
            row["state"] = "failed (nothing ran)"
        if step.record and row["state"] == "ok":
            checks.record(row, *step.record)
    return row


def main():
    options = arguments()
    found = machine() if options.device == "cuda" else cpu_machine()
    if found is None and not options.list:
        print("tools/gpu_check.py: nvidia-smi finds no GPU on this machine", file=sys.stderr)
        return 2
    found = found or {"memory_bytes": sys.maxsize, "commit": None}  # a list as for a GPU that holds all layers
    found["commit"] = options.commit or found["commit"]
    every = (rank_steps(found, options.out.resolve(), options.gpus, options.shared_gpu, options.device) if options.gpus
             else steps(found, options.out.resolve()))
    chosen = [step for step in every
              if options.steps in (step.group, "all") and not any(text in step.name for text in options.skip)
              and (not options.only or any(text in step.name for text in options.only))]
    if options.list:
        print_list(chosen)
        return 0
    if options.gpus and options.device == "cuda" and few_gpus(options):
        print(f"tools/gpu_check.py: {few_gpus(options)}", file=sys.stderr)
        return 2
    if options.device == "cuda" and found["nvcc"] is None and not options.no_build:
        print("tools/gpu_check.py: no nvcc on PATH nor in /usr/local/cuda/bin", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    checks = Checks(options.out.resolve(), found, time.monotonic() + 60 * options.minutes, options.device)
    if options.gpus:
        chosen = checks.go_on(chosen)
        write_shape(checks.out / "glm-4.7", options.gpus, found["memory_bytes"])

    rest, rest_rows = None, []
    others = (gpu_check_ranks.CPU_TARGETS if options.device == "cpu" else gpu_check_ranks.TARGETS) if options.gpus else OTHER_TARGETS
    if not options.no_build:
        if not build_first(checks, options, others[:1] if options.gpus else KERNEL_TARGETS):
            return 1
        if any(step.needs_all for step in chosen):
            rest_log = open(checks.out / "build_log.txt", "w", encoding="utf-8")
            # -k 0: a target that does not compile keeps its own steps from running only.
            rest = threading.Thread(target=lambda: rest_rows.append(
                checks.build("build the rest", [*others, "--", "-k", "0"], 900, rest_log)))
            rest.start()
    for step in chosen:
        if step.needs_all and rest is not None:
            rest.join()
            rest = None
            checks.note(rest_rows[0])
        checks.note(run_step(checks, step))
    if rest is not None:
        rest.join()
    print((checks.out / "report.txt").read_text())
    left_out = [row["step"] for row in checks.rows if row["state"] in ("needs more memory", "no time left")]
    if left_out:
        print(f"did not run, for lack of time or memory: {', '.join(left_out)}" + ("; the same command goes on" if options.gpus else ""))
    if any(row["state"] != "ok" and row["step"] not in left_out for row in checks.rows):
        return 1
    return 3 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
