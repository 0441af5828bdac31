# SPDX-License-Identifier: Apache-2.0
"""The steps of tools/gpu_check.py --gpus N: what a replica of N ranks must show, on N GPUs, or with --shared-gpu on one, where
nothing is timed. The order is that of trust: collectives, models, then times, the server, loading, and workers that are ended.
Every step ends within PIECE seconds, so that a run in pieces of nine minutes gets through. Standard library only."""
import json
import pathlib
import re
import sys

PIECE = 500
CONFIG = "tests/data/configs/glm-4.7-fp8.json"
WEIGHT_BYTES = {"each layer": 3.88e9, "beside": 6.0e9}  # of GLM-4.7-FP8: a layer; embedding, head, what a rank takes beside weights
GREEDY = "{}"
SAMPLED = json.dumps({"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1})
TARGETS = ["collectives_bench", "communicator_test", "communicator_process_test", "greedy_over_ranks_test", "koho"]


def layers_that_fit(ranks, memory_bytes):
    """How many of GLM-4.7's 92 layers the ranks hold with a cache for 256 sequences of 1k."""
    cache = 256 * 1100 * 2 * 2 * 8 * 128 / ranks  # a layer's keys and values, bf16
    each = WEIGHT_BYTES["each layer"] / ranks + cache
    return max(4, min(92, int((0.9 * memory_bytes - WEIGHT_BYTES["beside"]) / each)))


def all_reduce_rows(lines):
    """Rows of bench/results from the lines in which collectives_bench tells its times."""
    rows = []
    for line in lines:
        if '"part":"times"' not in line:
            continue
        told = json.loads(line)
        forms = {"one-shot": "plain_one_us", "two-shot": "plain_two_us", "one-shot, with norm": "fused_one_us",
                 "two-shot, with norm": "fused_two_us"}
        rows += [{"op": "all_reduce", "form": form, "shape": {"ranks": told["ranks"], "tokens": told["rows"], "hidden": told["width"]},
                  "us": told[member]} for form, member in forms.items()]
    return rows


def loading_rows(lines):
    """Each rank's "weights of rank 3: 45.4 GB on the device after 1.73 s, 26.2 GB/s, 14 threads"."""
    found = [re.search(r"weights of rank (\d+): ([\d.]+) GB on the device after ([\d.]+) s, ([\d.]+) GB/s", line) for line in lines]
    return [{"op": "load", "rank": int(match[1]), "bytes": round(1e9 * float(match[2])), "us": round(1e6 * float(match[3])),
             "gb_per_s": float(match[4])} for match in found if match]


class Ranks:
    """What the steps share: how many ranks, on which GPUs, and where the programs are."""

    def __init__(self, run, gpus, shared, memory_bytes, build, program):
        self.run, self.count, self.shared, self.build, self.program = run, gpus, shared, build, program
        self.devices = "0" if shared else ",".join(str(gpu) for gpu in range(gpus))
        self.layers = 4 if shared else layers_that_fit(gpus, memory_bytes)
        self.flags = ["--ranks", gpus, "--devices", self.devices]
        self.name = f"{gpus}on1" if shared else f"{gpus}gpus"

    def latency(self, experts, *arguments, name):
        return [self.program, "bench", "latency", "--config", CONFIG, "--weights", "synthetic", "--device", "cuda", "--layers", self.layers,
                *self.flags, "--experts", experts, "--commit", self.run.commit, *arguments, "--out", self.run.out / f"{name}.json"]

    def server(self, name, *arguments, flags):
        return [*self.run.recorded_by("server_check.py", *arguments, name=name), "--", *flags, "--device", "cuda", *self.flags]


def collective_steps(step, ranks, failures):
    bench = [ranks.build / "tests" / "cuda" / "collectives_bench", "--ranks", ranks.count, "--devices", ranks.devices]
    told = (r"wrong", r"FAILED|failed|differs")
    yield step("ranks: collectives", [*bench, "--only", "checks,faults"], PIECE, told)
    yield step("ranks: collectives, soak", [*bench, "--only", "soak"], PIECE, told)
    yield step("ranks: collectives of processes", [*bench, "--processes", "--only", "checks", "--quick"], PIECE, told)
    env = {"KOHO_TEST_DEVICES": ranks.devices}
    tests = ranks.build / "tests"
    yield step("ranks: communicators", [tests / "cuda" / "communicator_test"], PIECE, failures, env)
    yield step("ranks: communicators of processes", [tests / "cuda" / "communicator_process_test"], PIECE, failures, env)
    if not ranks.shared:
        yield step("ranks: communicators over NCCL", [tests / "cuda" / "communicator_test"], PIECE, failures,
                   {**env, "KOHO_TEST_COLLECTIVES": "nccl"})
        yield step("ranks: all-reduce times", [*bench, "--only", "link,times"], PIECE, (r'"part"',),
                   record=(ranks.run.out / f"{ranks.name}-all-reduce.json", all_reduce_rows))


def model_steps(step, ranks, failures):
    yield step("ranks: greedy ids", [ranks.build / "tests" / "sharding" / "greedy_over_ranks_test"], PIECE, failures,
               {"KOHO_TEST_DEVICES": ranks.devices})
    timing = (r"^(decode|prefill) ", r"^  \S.* ms ", r"^NVIDIA", r"error")
    for experts in ("whole", "sliced"):
        if ranks.shared:  # that they run; what they take says nothing
            yield step(f"ranks: steps run, {experts}",
                       ranks.latency(experts, "--batch", "1,4", "--context", "64", "--prefill", "256", "--steps", "4", "--no-classes",
                                     name=f"{ranks.name}-runs-{experts}"), PIECE, (r"error",))
            continue
        yield step(f"ranks: steps, {experts}", ranks.latency(experts, "--batch", "1,16,64,256", "--context", "1024", "--prefill", "1024",
                                                            name=f"{ranks.name}-steps-{experts}"), PIECE, timing)
        yield step(f"ranks: prompt of 8,192, {experts}", ranks.latency(experts, "--batch", "1", "--prefill", "8192", "--no-classes",
                                                                      name=f"{ranks.name}-prompt-{experts}"), PIECE, timing)


def server_steps(step, ranks):
    told = (r"ready|tok/s|ended|FAILED",)
    if not ranks.shared:
        shape = ranks.run.out / "glm-4.7"  # config.json alone: random weights, token ids
        flags = ["--model", shape, "--load-format", "dummy", "--max-num-seqs", "256"]
        for name, body in (("greedy", GREEDY), ("sampled", SAMPLED)):
            for clients in (64, 256):
                arguments = ["--concurrency", clients, "--requests", 2 * clients, "--vocabulary", "151000", "--body", body]
                yield step(f"ranks: server, {clients} at once, {name}",
                           ranks.server(f"{ranks.name}-server-{clients}-{name}", *arguments, flags=flags), PIECE, told)
    kills = ["--kill", "5" if ranks.shared else "20", "--concurrency", "32", "--prompt", "64", "--generate", "64", "--ready", "120"]
    yield step("ranks: workers ended", ranks.server(f"{ranks.name}-kills", *kills,
                                                   flags=["--model", "models/tiny", "--executor", "process", "--deterministic"]), PIECE, told)


def loading_steps(step, ranks, host_bytes):
    """All ranks at once from the page cache; as many layers as the host's memory holds."""
    layers = min(92, int((0.5 * host_bytes - 4e9) / WEIGHT_BYTES["each layer"]))
    if ranks.shared or layers < 4:
        return
    shaped = pathlib.Path("/dev/shm/koho_shaped_ranks")
    make = (f"{sys.executable} tools/make_shaped_checkpoint.py --config {CONFIG} --out {shaped} "
            + (f"--layers {layers}" if layers < 92 else f"--ranks {ranks.count} --fill {','.join(map(str, range(ranks.count)))}"))
    load = f"{ranks.program} bench latency --model {shaped} --device cuda {' '.join(map(str, ranks.flags))} --batch 1 --prefill 0 --no-classes"
    command = f"{make} && {load} && {load}; code=$?; rm -rf {shaped}; exit $code"
    yield step("ranks: loading", ["bash", "-c", command], PIECE, (r"weights",),
               record=(ranks.run.out / f"{ranks.name}-loading.json", loading_rows))


def steps(step, ranks, failures, host_bytes):
    """All steps. `step` makes one: (name, command, limit, kept, env=None, record=None)."""
    return [*collective_steps(step, ranks, failures), *model_steps(step, ranks, failures), *server_steps(step, ranks),
            *loading_steps(step, ranks, host_bytes)]
