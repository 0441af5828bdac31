# SPDX-License-Identifier: Apache-2.0
"""The steps of tools/gpu_check.py --gpus N: what a replica of N ranks must show, on N GPUs, or with --shared-gpu on one, where
only what a rank takes alone is timed, or with --device cpu on none, to try the steps themselves. The order is that of trust:
collectives, models, workers that are ended, then times, the server, loading. Every step ends within PIECE seconds, so that a run
in pieces of nine minutes gets through. Standard library only."""
import json
import os
import pathlib
import re
import shlex
import sys

PIECE = 500
CONFIG = "tests/data/configs/glm-4.7-fp8.json"
WEIGHT_BYTES = {"each layer": 3.88e9, "beside": 6.0e9}  # of GLM-4.7-FP8: a layer; embedding, head, what a rank takes beside weights
# Memory that one rank of so many takes at full size, and the name that bench/results has for it.
ALONE = {8: 62e9, 4: 110e9}
GREEDY = "{}"
SAMPLED = json.dumps({"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1})
COUNTED = {2: "Two", 4: "Four", 8: "Eight"}  # as greedy_over_ranks_test calls them
TARGETS = ["collectives_bench", "communicator_test", "communicator_process_test", "greedy_over_ranks_test", "sharding_test", "worker_fault_cuda",
           "koho"]
CPU_TARGETS = ["greedy_over_ranks_test", "sharding_test", "worker_fault_cpu", "koho"]
# Of the server whose workers are broken.
FAULT_FLAGS = ["--model", "models/tiny", "--deterministic", "--max-num-seqs", "32", "--max-model-len", "1024", "--step-deadline", "5"]
FAULT_LINES = (r"ready|tok/s|ended|noticed|FAILED",)


def layers_that_fit(ranks, memory_bytes):
    """How many of GLM-4.7's 92 layers the ranks hold with a cache for 256 sequences of 1k."""
    cache = 256 * 1100 * 2 * 2 * 8 * 128 / ranks  # a layer's keys and values, bf16
    each = WEIGHT_BYTES["each layer"] / ranks + cache
    return max(4, min(92, int((0.9 * memory_bytes - WEIGHT_BYTES["beside"]) / each)))


def layers_in_host_memory(layers, host_bytes):
    """Of so many layers, how many a checkpoint in /dev/shm may have; all 92 need it to be made larger than half of the memory."""
    share = 0.75 if 0.75 * host_bytes > 92 * WEIGHT_BYTES["each layer"] else 0.4
    return min(layers, int((share * host_bytes - 4e9) / WEIGHT_BYTES["each layer"]))


def all_reduce_rows(lines):
    """Rows of bench/results from the lines in which collectives_bench tells its times."""
    rows = []
    for line in lines:
        if '"part":"times"' not in line:
            continue
        told = json.loads(line)
        forms = {"one-shot": "plain_one_us", "two-shot": "plain_two_us", "one-shot, with norm": "fused_one_built_in_us",
                 "two-shot, with norm": "fused_two_us"}
        rows += [{"op": "all_reduce", "form": form, "shape": {"ranks": told["ranks"], "tokens": told["rows"], "hidden": told["width"]},
                  "us": told[member]} for form, member in forms.items()]
    return rows


def loading_rows(lines):
    """Each rank's "weights of rank 3: 45.4 GB on the device after 1.73 s, 26.2 GB/s, 14 threads" (alone without its number), and
    rank 0's "…, start 1.8 s, …", by which it is ready for steps."""
    rows = []
    for line in lines:
        if match := re.search(r"weights(?: of rank (\d+))?: ([\d.]+) GB on the device after ([\d.]+) s, ([\d.]+) GB/s", line):
            rows.append({"op": "load", **({"rank": int(match[1])} if match[1] else {}), "bytes": round(1e9 * float(match[2])),
                         "us": round(1e6 * float(match[3])), "gb_per_s": float(match[4])})
        elif match := re.search(r", start ([\d.]+) s, ", line):
            rows.append({"op": "ready", "us": round(1e6 * float(match[1]))})
    return rows


class Ranks:
    """What the steps share: how many ranks, on which GPUs, and where the programs are."""

    def __init__(self, run, gpus, shared, memory_bytes, build, program, device="cuda"):
        self.run, self.count, self.shared, self.build, self.program, self.device = run, gpus, shared, build, program, device
        self.memory_bytes = memory_bytes
        self.devices = "0" if shared else ",".join(str(gpu) for gpu in range(gpus))
        self.layers = 4 if shared else layers_that_fit(gpus, memory_bytes)
        self.flags = ["--ranks", gpus, *(["--devices", self.devices] if device == "cuda" else [])]
        self.name = f"{gpus}cpu" if device == "cpu" else f"{gpus}on1" if shared else f"{gpus}gpus"
        self.env = {"KOHO_TEST_DEVICES": self.devices} if device == "cuda" else {}
        self.tests = build / "tests"
        self.hook = self.tests / "processes" / f"worker_fault_{device}.so"

    def latency(self, experts, *arguments, name):
        return [self.program, "bench", "latency", "--config", CONFIG, "--weights", "synthetic", "--device", self.device, "--layers", self.layers,
                *self.flags, "--experts", experts, "--commit", self.run.commit, *arguments, "--out", self.run.out / f"{name}.json"]

    def server(self, name, *arguments, flags):
        return [*self.run.recorded_by("server_check.py", *arguments, name=name), "--", *flags, "--device", self.device, *self.flags]


def collective_steps(step, ranks, failures):
    bench = [ranks.build / "tests" / "cuda" / "collectives_bench", "--ranks", ranks.count, "--devices", ranks.devices]
    told = (r"wrong", r"FAILED|failed|differs")
    yield step("ranks: collectives", [*bench, "--only", "checks,faults"], PIECE, told, usual=60)
    yield step("ranks: collectives, 10^5 calls", [*bench, "--only", "soak", "--rounds", "50000"], PIECE, told, usual=30)
    # Rank 0 alone: the forms of ranks with a GPU each, where these share one.
    yield step("ranks: collectives in loopback", [*bench, "--loopback", "--only", "checks,soak"], PIECE, told, usual=40)
    yield step("ranks: collectives of processes", [*bench, "--processes", "--only", "checks", "--quick"], PIECE, told, usual=60)
    cuda = ranks.tests / "cuda"
    mine = f"*/{ranks.count}"
    yield step("ranks: communicators", [cuda / "communicator_test", f"--gtest_filter={mine}:-*RoundAfterRound*"], PIECE, failures, ranks.env,
               usual=30)
    # Six collectives a round.
    yield step("ranks: communicators, 10^5 collectives", [cuda / "communicator_test", f"--gtest_filter=*RoundAfterRound{mine[1:]}"], PIECE,
               failures, {**ranks.env, "KOHO_TEST_ROUNDS": "20000"}, usual=60)
    yield step("ranks: communicators of processes, 300 rounds", [cuda / "communicator_process_test", f"--gtest_filter={mine}"], PIECE, failures,
               {**ranks.env, "KOHO_TEST_ROUNDS": "300"}, usual=90 if ranks.shared else 20)
    # NCCL 2.30 lets ranks share a GPU, if it is told so; LD_LIBRARY_PATH names it.
    if not ranks.shared or os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE"):
        nccl = {**ranks.env, "KOHO_TEST_COLLECTIVES": "nccl"}
        if not ranks.shared or ranks.count == 2:  # four threads on one GPU wait for each other for ever (docs/decisions/0012)
            yield step("ranks: communicators over NCCL", [cuda / "communicator_test", f"--gtest_filter={mine}:-*RoundAfterRound*"], PIECE,
                       failures, nccl, usual=45)
        yield step("ranks: communicators of processes over NCCL", [cuda / "communicator_process_test", f"--gtest_filter={mine}"], PIECE,
                   failures, nccl, usual=45)
    if not ranks.shared:
        yield step("ranks: all-reduce times", [*bench, "--only", "link,times"], PIECE, (r'"part"',), usual=20,
                   record=(ranks.run.out / f"{ranks.name}-all-reduce.json", all_reduce_rows))


def model_steps(step, ranks, failures):
    yield step("ranks: goldens", [ranks.tests / "sharding" / "sharding_test",
                                  "--gtest_filter=*Over*Ranks*:*KeyValueHeads*:*EveryCheckpoint*:*OwnersAndOtherPrompts*"], PIECE,
               (*failures, r"times? the bound|noise"), {**ranks.env, "KOHO_TEST_RANKS": str(ranks.count)}, usual=120)
    greedy, counted = ranks.tests / "sharding" / "greedy_over_ranks_test", COUNTED[ranks.count]
    told = (*failures, r"answers equal")
    invariance = ":*DoesNotDependOnItsBatch*" if ranks.count == 2 else ""
    yield step("ranks: greedy ids", [greedy, f"--gtest_filter=*Enough*:*{counted}*{invariance}"], PIECE, told, ranks.env, usual=60)
    if ranks.device == "cuda":
        yield step("ranks: greedy ids of processes", [greedy, f"--gtest_filter=*{counted}TensorParallel:*{counted}DataParallel"], PIECE, told,
                   {**ranks.env, "KOHO_TEST_EXECUTOR": "process", "KOHO_GREEDY_TOKENS": "12"}, usual=120 if ranks.shared else 60)


def true_width_steps(step, ranks):
    """GLM-4.7's own widths, few layers, both cuts of the experts."""
    small = [] if ranks.device == "cuda" else [part for size in ("hidden_size=256", "intermediate_size=512", "moe_intermediate_size=128",
                                                                   "n_routed_experts=16", "num_attention_heads=16") for part in ("--set", size)]
    tokens = ["--tokens", "512", "--chunk", "1,64,512"] if ranks.device == "cuda" else ["--tokens", "64", "--chunk", "64"]
    devices = ["--devices", ranks.devices] if ranks.device == "cuda" else []
    yield step("ranks: true widths", ranks.run.recorded_by("true_widths.py", "--device", ranks.device, "--ranks", ranks.count, *devices,
                                                           "--layers", "5", *tokens, *small, name=f"true-widths-{ranks.name}"),
               PIECE, (r"^layers|^noise|^koho|^FAILED|^passed|Error",), usual=240, memory=70e9 if ranks.device == "cuda" else 0.0,
               modules=("torch", "transformers", "numpy"))


def fault_arguments(hook, faults=20, clients=32):
    """Of server_check.py: workers that are broken in every way while `clients` answers stream."""
    return ["--faults", faults, "--kinds", "kill,illegal,hang,stop", "--hook", hook, "--gpu-memory", "--concurrency", clients, "--prompt", "64",
            "--generate", "64", "--ready", "120"]


def fault_steps(step, ranks):
    arguments = fault_arguments(ranks.hook, faults=8, clients=8) if ranks.device == "cpu" else fault_arguments(ranks.hook)
    # Processes that share a GPU take turns, some rows of a collective each: warm-up's largest steps took 85 s.
    short = ["--max-num-batched-tokens", "256"] if ranks.shared else []
    yield step("ranks: workers broken", ranks.server(f"{ranks.name}-faults", *arguments, flags=[*FAULT_FLAGS, *short, "--executor", "process"]), PIECE,
               FAULT_LINES, usual=240 if ranks.shared else 200)


def timing_steps(step, ranks):
    timing = (r"^(decode|prefill) ", r"^  \S.* ms ", r"^NVIDIA", r"error")
    for experts in ("whole", "sliced"):
        if ranks.shared or ranks.device == "cpu":  # that they run; what they take says nothing
            shape = ["--batch", "1,4", "--context", "64", "--prefill", "256", "--steps", "4", "--no-classes"]
            command = ranks.latency(experts, *shape, name=f"{ranks.name}-runs-{experts}")
            if ranks.device == "cpu":
                command = [ranks.program, "bench", "latency", "--model", "models/tiny", "--device", "cpu", *ranks.flags, "--experts", experts, *shape]
            yield step(f"ranks: steps run, {experts}", command, PIECE, (r"error",), usual=20)
            continue
        yield step(f"ranks: steps, {experts}", ranks.latency(experts, "--batch", "1,16,64,256", "--context", "1024", "--prefill", "1024",
                                                            name=f"{ranks.name}-steps-{experts}"), PIECE, timing, usual=45)
        yield step(f"ranks: prompt of 8,192, {experts}", ranks.latency(experts, "--batch", "1", "--prefill", "8192", "--no-classes",
                                                                      name=f"{ranks.name}-prompt-{experts}"), PIECE, timing, usual=20)


def alone_steps(step, ranks, host_bytes):
    """One rank of N at full size on one GPU: its steps with either cut, and its weights from the page cache."""
    if ranks.count not in ALONE or not ranks.shared:
        return
    flags = ["--ranks", ranks.count, "--rank", "3"]
    memory = ALONE[ranks.count]
    timing = (r"^(decode|prefill) ", r"^  \S.* ms|not in this step", r"^NVIDIA", r"error")
    for experts in ("whole", "sliced"):
        yield step(f"one rank of {ranks.count}, {experts}",
                   [ranks.program, "bench", "latency", "--config", CONFIG, "--weights", "synthetic", "--device", "cuda", *flags, "--experts", experts,
                    "--batch", "1,16,64,256", "--context", "1024", "--prefill", "1024", "--commit", ranks.run.commit, "--out",
                    ranks.run.out / f"rank{ranks.count}-{experts}.json"], PIECE, timing, usual=45, memory=memory)
    shaped = pathlib.Path("/dev/shm/koho_shaped_rank")
    filled = 369e9 / ranks.count
    if filled > 0.45 * host_bytes:
        return
    make = [sys.executable, "tools/make_shaped_checkpoint.py", "--config", CONFIG, "--out", shaped, "--ranks", ranks.count, "--fill", "3",
            "--experts", "whole"]
    load = [ranks.program, "bench", "latency", "--model", shaped, "--device", "cuda", *flags, "--experts", "whole", "--batch", "1", "--prefill", "0",
            "--no-classes"]
    yield step(f"one rank of {ranks.count}: loading", loading_command(make, load, shaped), PIECE, (r"weights|, start |GB in",), usual=60, memory=memory,
               record=(ranks.run.out / f"rank{ranks.count}-loading.json", loading_rows))


def loading_command(make, load, shaped):
    """Makes a checkpoint, loads it twice, removes it. `make`: a command, or several."""
    made = [make] if isinstance(make, list) else make
    text = " && ".join(shlex.join(str(part) for part in command) for command in (*made, load, load))
    return ["bash", "-c", f"{text}; code=$?; rm -rf {shaped}; exit $code"]


def server_steps(step, ranks):
    if ranks.device == "cpu":
        arguments = ["--concurrency", "8", "--requests", "16", "--prompt", "32", "--generate", "32", "--body", SAMPLED]
        yield step("ranks: server, 8 at once, sampled", ranks.server(f"{ranks.name}-server", *arguments, flags=["--model", "models/tiny"]), PIECE,
                   FAULT_LINES, usual=20)
    if ranks.shared or ranks.device == "cpu":
        return
    shape = ranks.run.out / "glm-4.7"  # config.json alone: random weights, token ids
    flags = ["--model", shape, "--load-format", "dummy", "--max-num-seqs", "256"]
    for name, body in (("greedy", GREEDY), ("sampled", SAMPLED)):
        for clients in (64, 256):
            arguments = ["--concurrency", clients, "--requests", 2 * clients, "--vocabulary", "151000", "--body", body]
            yield step(f"ranks: server, {clients} at once, {name}",
                       ranks.server(f"{ranks.name}-server-{clients}-{name}", *arguments, flags=flags), PIECE, FAULT_LINES, usual=90)


def loading_steps(step, ranks, host_bytes):
    """All ranks at once from the page cache; as many layers as the host's memory holds."""
    layers = layers_in_host_memory(ranks.layers, host_bytes)
    if ranks.shared or ranks.device == "cpu" or layers < 4:
        return
    shaped = pathlib.Path("/dev/shm/koho_shaped_ranks")
    make = [sys.executable, "tools/make_shaped_checkpoint.py", "--config", CONFIG, "--out", shaped]
    if layers < 92:
        make += ["--layers", layers]
    else:
        make = ["mount", "-o", f"remount,size={int(0.75 * host_bytes)}", "/dev/shm"], make
    load = [ranks.program, "bench", "latency", "--model", shaped, "--device", "cuda", *ranks.flags, "--batch", "1", "--prefill", "0", "--no-classes"]
    yield step("ranks: loading", loading_command(make, load, shaped), PIECE, (r"weights|, start |GB in",), usual=90,
               record=(ranks.run.out / f"{ranks.name}-loading.json", loading_rows))


def sanitizer_steps(step, ranks, failures):
    """compute-sanitizer on the collectives of few rows: one-shot, and from 4 ranks on two-shot."""
    for tool in ("memcheck", "racecheck", "synccheck"):
        yield step(f"ranks: sanitize {tool}",
                   ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", ranks.tests / "cuda" / "communicator_test",
                    f"--gtest_filter=*/{ranks.count}:-*RoundAfterRound*:*GivesUp*:*Times*"], PIECE,
                   (*failures, r"(ERROR|RACECHECK) SUMMARY"), {**ranks.env, "KOHO_TEST_ROWS": "256"}, group="sanitize", usual=120)


def steps(step, ranks, failures, host_bytes):
    """All steps. `step` makes one: gpu_check.Step."""
    on_gpus = ranks.device == "cuda"
    return [*(collective_steps(step, ranks, failures) if on_gpus else ()), *model_steps(step, ranks, failures), *fault_steps(step, ranks),
            *timing_steps(step, ranks), *(alone_steps(step, ranks, host_bytes) if on_gpus else ()), *server_steps(step, ranks),
            *loading_steps(step, ranks, host_bytes), *true_width_steps(step, ranks),
            *(sanitizer_steps(step, ranks, failures) if on_gpus else ())]
