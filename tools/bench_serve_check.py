#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`koho bench serve` beside the real `vllm bench serve` on one server: the same requests by both, in turn or at once.

    tools/bench_serve_check.py --koho build/koho --rounds 5 -- --max-concurrency 6
    tools/bench_serve_check.py --koho build/koho --together --rounds 8 --json clients.json -- --request-rate 1 --burstiness 1e6

Flags behind -- go to both. The server has a core of its own, the clients another. vLLM's wheel comes from PyPI; of it run the
benchmark (vllm.benchmarks) and what it uses (vllm.utils, vllm.logger), unchanged; torch and vLLM's engine, which it only
imports, are stand-ins, and its tokenizer is transformers'. Of each figure the ratio of the two is taken in every round, whose
requests differ; exit code 1 if the median of a judged figure's ratios is further than --within from 1.

In turn, what the server's speed changes by from run to run is in the ratios. --together, both clients load the server in the
same seconds, each with its own order of the same prompts. A round is then two runs, alike but that the clients have changed
places: who starts --lead seconds before the other, and who has which order. Both are held where their measurement would
begin, vLLM's after its imports and warm-up, koho's by a pipe for its dataset; it needs no warm-up by then. At a steady rate
(--request-rate with --burstiness 1e6) the two runs' load is the same to the server, so that every request of koho's has one
of vLLM's in the other run: the same prompt at the same place. Of some tens of requests the median may be several per cent
off by chance; PAIRED figures are medians of the ratios of such pairs, and judged in the medians' stead.
"""
import argparse
import concurrent.futures
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types
import urllib.request
import zipfile

import result_file
from result_file import ROOT

sys.path.insert(0, str(ROOT / "tests" / "server"))
import serve_process  # noqa: E402

VLLM = "vllm==0.33.0"
# What the benchmark needs of PyPI.
PACKAGES = ["aiohttp", "numpy", "orjson", "pandas", "pillow", "psutil", "pybase64", "pyyaml", "pyzmq", "regex", "requests", "tqdm",
            "transformers<5.21", "cachetools", "cloudpickle", "msgspec", "pydantic"]
REAL = ("vllm.benchmarks", "vllm.envs", "vllm.logger", "vllm.logging_utils", "vllm.utils", "vllm.version")
MODEL = ROOT / "models" / "tiny"
THROUGHPUTS = ["request_throughput", "output_throughput", "total_token_throughput"]
TIMES = [f"{what}_{metric}_ms" for metric in ("ttft", "tpot", "itl", "e2el") for what in ("mean", "median", "p99")]
SERVER_TTFT = "server_ttft_ms"  # mean, warm-up and all, by the server's clock: what the two clients' load itself differs by
JUDGED = THROUGHPUTS + [name for name in TIMES if not name.startswith("p99")]
PAIRED = {"paired_ttft": lambda ttft, gaps, tokens: ttft, "paired_tpot": lambda ttft, gaps, tokens: sum(gaps) / max(tokens - 1, 1),
          "paired_e2el": lambda ttft, gaps, tokens: ttft + sum(gaps)}
DETAILS = ("ttfts", "itls", "output_lens")  # of each request, in the files of both clients
JUDGED_TOGETHER = [name for name in JUDGED if not name.startswith("median") or "_itl_" in name]
COUNTS = ["completed", "failed", "total_input_tokens", "total_output_tokens"]  # must be equal, and none failed
CLIENTS = ("koho", "vllm")
OVERLAP = "overlap"  # of the two clients: seconds of both by seconds of either
HELD = "held"  # what vLLM's client says where it waits for a line


# ---- vLLM's benchmark, in a process of its own

class StandIn(type):
    """A class whose attributes are such classes, too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name, (), {})


class StandInModule(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name, (), {})


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch and every part of vLLM but REAL."""

    def find_spec(self, name, path, target=None):
        real = any(name == one or name.startswith(one + ".") for one in REAL)
        if name.split(".")[0] == "torch" or (name.startswith("vllm.") and not real):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandInModule(spec.name)

    def exec_module(self, module):
        pass


def run_vllm(flags, held):
    sys.meta_path.insert(0, StandIns())
    from transformers import AutoTokenizer
    import vllm.benchmarks.serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    vllm.benchmarks.serve.get_tokenizer = lambda name, **_: AutoTokenizer.from_pretrained(name)
    if held:
        hold(vllm.benchmarks.serve)
    parser = FlexibleArgumentParser()
    vllm.benchmarks.serve.add_cli_args(parser)
    vllm.benchmarks.serve.main(parser.parse_args(flags))


def hold(serve):
    """Lets the benchmark wait for a line once it has asked the server for what it reads last before its first request."""
    fetch = serve.fetch_diffusion_metrics

    async def fetch_and_wait(*arguments):
        found = await fetch(*arguments)
        serve.fetch_diffusion_metrics = fetch
        print(HELD, flush=True)
        sys.stdin.readline()
        return found

    serve.fetch_diffusion_metrics = fetch_and_wait


def vllm_python(folder):
    """A virtual environment with vLLM's benchmark, made once; its Python."""
    stamp = folder / VLLM
    python = folder / "bin" / "python"
    if not stamp.exists():
        print(f"==> {VLLM} from PyPI", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", *PACKAGES], check=True)
        with tempfile.TemporaryDirectory(dir=folder) as wheels:
            subprocess.run([*pip, "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", wheels, VLLM], check=True)
            site = next(folder.glob("lib/python3*/site-packages"))
            with zipfile.ZipFile(next(pathlib.Path(wheels).glob("vllm-*.whl"))) as wheel:
                wheel.extractall(site, [name for name in wheel.namelist() if name.endswith(".py") or ".dist-info/" in name])
        stamp.touch()
    return python


# ---- the comparison

def prompts(count, prompt_len, output_len, seed):
    """Prompts of words, of lengths around the given ones, each with the length of its answer: lines of a custom dataset."""
    draw = random.Random(seed)
    words = "time year people way day man thing home world school state family group country hand part place case week work".split()
    lines = []
    for _ in range(count):
        length = draw.randint(prompt_len // 2, prompt_len * 3 // 2)
        lines.append(json.dumps({"prompt": " ".join(draw.choices(words, k=length)),
                                 "output_tokens": draw.randint(output_len // 2, output_len * 3 // 2)}) + "\n")
    return lines


class Bench:
    """What the runs of both clients share: programs, server, flags, folder, core."""

    def __init__(self, options, flags, url, folder, core):
        self.options, self.flags, self.url, self.folder, self.core = options, flags, url, folder, core
        self.python = vllm_python(options.tools)

    def lines(self, seed):
        return prompts(self.options.num_prompts, self.options.prompt_len, self.options.output_len, seed)

    def start(self, client, lines, warmups, program=()):
        """The client's process, its result file to come. `lines`: the dataset, or None if it comes through a pipe."""
        dataset, result = self.folder / f"{client}.jsonl", self.folder / f"{client}.json"
        if lines is not None:
            dataset.write_text("".join(lines))
        result.unlink(missing_ok=True)
        programs = {"koho": [self.options.koho, "bench", "serve"], "vllm": [self.python, __file__, "--vllm"]}
        return subprocess.Popen(
            [*(program or programs[client]), "--base-url", self.url, "--model", str(MODEL), "--served-model-name", "tiny", "--backend", "openai",
             "--dataset-name", "custom", "--dataset-path", str(dataset), "--disable-shuffle", "--skip-chat-template",
             "--custom-output-len", "-1", "--num-prompts", str(self.options.num_prompts), "--ignore-eos", "--temperature", "0",
             "--num-warmups", str(warmups), "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result",
             "--result-dir", str(self.folder), "--result-filename", result.name, "--disable-tqdm",
             *(["--save-detailed"] if self.options.together else []), *self.flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {self.core}))

    def start_held_vllm(self, lines):
        """(its process, what lets it begin)."""
        process = self.start("vllm", lines, 2, [self.python, __file__, "--vllm-held"])
        said = ""
        while not said.endswith(HELD + "\n"):
            line = process.stdout.readline()
            if not line:
                sys.exit(f"bench_serve_check: vllm's client ended before its measurement:\n{said[-2000:]}")
            said += line

        def begin():
            process.stdin.write("\n")
            process.stdin.flush()
        return process, begin

    def start_held_koho(self, lines):
        """Likewise."""
        dataset = self.folder / "koho.jsonl"
        dataset.unlink(missing_ok=True)
        os.mkfifo(dataset)
        process = self.start("koho", None, 0)
        pipe = dataset.open("w")  # once the other end is opened

        def begin():
            with pipe:
                pipe.writelines(lines)
        return process, begin

    def end(self, client, process):
        """Its result. A client that fails ends everything."""
        said = process.stdout.read()
        code = process.wait()
        result = self.folder / f"{client}.json"
        if code != 0 or not result.exists():
            sys.exit(f"bench_serve_check: {client}'s client failed with {code}:\n{said[-2000:]}")
        return json.loads(result.read_text())


def server_ttft(url):
    """Seconds to the first token of all requests so far as the server counts them, and their number."""
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return [float(re.search(rf"^vllm:time_to_first_token_seconds_{part}\S* (\S+)$", text, re.MULTILINE)[1]) for part in ("sum", "count")]


def in_turn(bench, one):
    """The runs of a round: {client: its result}."""
    found = {}
    for client in CLIENTS if one % 2 == 0 else reversed(CLIENTS):
        before = server_ttft(bench.url)
        found[client] = bench.end(client, bench.start(client, bench.lines(one), warmups=2))
        after = server_ttft(bench.url)
        found[client][SERVER_TTFT] = 1e3 * (after[0] - before[0]) / (after[1] - before[1])
    return [found]


def together(bench, one):
    """Likewise, with OVERLAP in both results, and PAIRED in koho's of the first run."""
    orders = [bench.lines(one) for _ in CLIENTS]
    for place, lines in enumerate(orders):
        random.Random(f"{one} {place}").shuffle(lines)
    runs = [run_at_once(bench, dict(zip(places, orders)), places) for places in (CLIENTS, CLIENTS[::-1])]
    # Who is first in a run is second in the other, with the other's requests; and so is the server's speed in the two ratios.
    pairs = [(runs[0]["koho"], runs[1]["vllm"]), (runs[1]["koho"], runs[0]["vllm"])]
    paired = {name: statistics.geometric_mean(statistics.median(ratios(ours, theirs, value)) for ours, theirs in pairs)
              for name, value in PAIRED.items()}
    for result in (result for run in runs for result in run.values()):
        for name in [name for name, value in result.items() if isinstance(value, list)]:
            del result[name]  # each request's own, kept no longer
    runs[0]["koho"] |= paired
    return runs


def ratios(ours, theirs, value):
    """Of one value of each request, koho's by vLLM's."""
    one, other = ([value(*request) for request in zip(*(result[name] for name in DETAILS), strict=True)] for result in (ours, theirs))
    return [mine / its for mine, its in zip(one, other, strict=True) if its > 0]


def run_at_once(bench, orders, places):
    """One run; `places`: who starts first, and who second."""
    held = {"vllm": bench.start_held_vllm(orders["vllm"]), "koho": bench.start_held_koho(orders["koho"])}
    begun = {}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ends = {client: pool.submit(bench.end, client, process) for client, (process, _) in held.items()}
        for client in places:
            if begun:
                time.sleep(begun[places[0]] + bench.options.lead - time.monotonic())
            begun[client] = time.monotonic()
            held[client][1]()
        results = {client: end.result() for client, end in ends.items()}
    spans = [(begun[client], begun[client] + results[client]["duration"]) for client in CLIENTS]
    overlap = (min(end for _, end in spans) - max(begin for begin, _ in spans)) / (max(end for _, end in spans) - min(begin for begin, _ in spans))
    return {client: {**result, OVERLAP: overlap} for client, result in results.items()}


def compare(options, flags, command):
    """The runs of all rounds, also of earlier calls where --kept has some: [[{client: its result}, …] of a round, …]."""
    kept = {"command": command, "rounds": []}
    if options.kept and options.kept.exists():
        kept = json.loads(options.kept.read_text())
        if kept["command"] != command:
            sys.exit(f"bench_serve_check: {options.kept} has rounds of another command: {kept['command']}")
    rounds = kept["rounds"]
    cores = sorted(os.sched_getaffinity(0))
    server = serve_process.server(options.koho, str(MODEL), "--device", "cpu", "--threads", "1", "--no-enable-prefix-caching")
    os.sched_setaffinity(0, cores[:1])  # the server inherits it
    with server as url, tempfile.TemporaryDirectory() as place:
        os.sched_setaffinity(0, cores)
        bench = Bench(options, flags, url, pathlib.Path(place), cores[-1])
        for one in range(len(rounds), min(options.rounds, len(rounds) + options.at_most)):
            rounds.append((together if options.together else in_turn)(bench, one))
            if options.kept:
                options.kept.write_text(json.dumps(kept))
    return rounds


def main():
    if sys.argv[1:2] in (["--vllm"], ["--vllm-held"]):
        return run_vllm(sys.argv[2:], held=sys.argv[1] == "--vllm-held")
    own, flags = result_file.own_and_flags(sys.argv[1:])
    parts = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # what no record's command says
    parts.add_argument("--kept", type=pathlib.Path, help="a file of the rounds so far: a later call goes on where one ended")
    parts.add_argument("--at-most", type=int, default=sys.maxsize, help="rounds of this call")
    parts.add_argument("--tools", type=pathlib.Path, default=ROOT / "build" / "vllm-bench", help="where vLLM's benchmark is kept (%(default)s)")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[parts])
    parser.add_argument("--koho", type=lambda path: str(pathlib.Path(path).resolve()), default=str(ROOT / "build" / "koho"))
    parser.add_argument("--together", action="store_true", help="both clients at once")
    parser.add_argument("--lead", type=float, default=0.2, help="seconds between their starts, with --together (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of both clients (%(default)s)")
    parser.add_argument("--num-prompts", type=int, default=40, help="of a run (%(default)s)")
    parser.add_argument("--prompt-len", type=int, default=200, help="words, random within half and one and a half of it (%(default)s)")
    parser.add_argument("--output-len", type=int, default=80, help="tokens, likewise (%(default)s)")
    parser.add_argument("--within", type=float, default=0.03, help="the largest difference (%(default)s)")
    result_file.add_options(parser)
    options = parser.parse_args(own)
    _, said = parts.parse_known_args(own)
    command = result_file.command_of("tools/bench_serve_check.py", said, flags)
    rounds = compare(options, flags, command)
    if len(rounds) < options.rounds:
        print(f"bench_serve_check: {len(rounds)} of {options.rounds} rounds")
        return 0
    runs = [run for one in rounds for run in one]
    judged = JUDGED_TOGETHER if options.together else JUDGED
    rows, apart = [], []
    for name in COUNTS:
        koho, theirs = ([run[client][name] for run in runs] for client in CLIENTS)
        if koho != theirs or (name == "failed" and any(koho)):
            apart.append(name)
            print(f"{name}: koho {koho}, vLLM {theirs}")
    for name in [*THROUGHPUTS, *TIMES, *([] if options.together else [SERVER_TTFT])]:
        values = {client: [run[client][name] for run in runs] for client in CLIENTS}
        koho, theirs = (statistics.median(values[client]) for client in CLIENTS)
        ratio = statistics.median(sum(run["koho"][name] for run in one) / sum(run["vllm"][name] for run in one) for one in rounds)
        rows.append({"op": "serve_client", "form": name, "koho": koho, "vllm": theirs, "ratio": round(ratio, 4),
                     "all_koho": values["koho"], "all_vllm": values["vllm"]})
        if name in judged and abs(ratio - 1) > options.within:
            apart.append(name)
        print(f"{name:24} koho {koho:9.3f}  vLLM {theirs:9.3f}  ratio {ratio:.4f}{'' if name in judged else '  (not judged)'}"
              f"{'  APART' if name in apart else ''}")
    for name in PAIRED if options.together else ():
        found = [one[0]["koho"][name] for one in rounds]
        ratio = statistics.median(found)
        rows.append({"op": "serve_pairs", "form": name, "ratio": round(ratio, 4), "all_ratios": found})
        if abs(ratio - 1) > options.within:
            apart.append(name)
        print(f"{name:24} {'':31}  ratio {ratio:.4f}{'  APART' if name in apart else ''}")
    figures = {"peer": VLLM}
    if options.together:
        figures[OVERLAP] = [round(run["koho"][OVERLAP], 4) for run in runs]
        print(f"both clients at once in {min(figures[OVERLAP]):.1%} of a run and more")
    result_file.write(options, command, rows, **figures)
    print(f"bench_serve_check: {'apart: ' + ', '.join(apart) if apart else f'within {options.within:.0%}'}")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
