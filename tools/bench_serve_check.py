#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`koho bench serve` beside the real `vllm bench serve` on one server: the same requests by both in turn.

    tools/bench_serve_check.py --koho build/koho --rounds 5 -- --max-concurrency 6
    tools/bench_serve_check.py --koho build/koho --rounds 5 --prompt-len 300 --json clients.json -- --request-rate 4

Flags behind -- go to both. The server has a core of its own, the clients another. vLLM's wheel comes from PyPI; of it run the
benchmark (vllm.benchmarks) and what it uses (vllm.utils, vllm.logger), unchanged; torch and vLLM's engine, which it only
imports, are stand-ins, and its tokenizer is transformers'. Of each figure the ratio of the two is taken in every round, whose
requests differ; exit code 1 if the median of a figure's ratios (JUDGED) is further than --within from 1.
"""
import argparse
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
COUNTS = ["completed", "failed", "total_input_tokens", "total_output_tokens"]  # must be equal


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


def run_vllm(flags):
    sys.meta_path.insert(0, StandIns())
    from transformers import AutoTokenizer
    import vllm.benchmarks.serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    vllm.benchmarks.serve.get_tokenizer = lambda name, **_: AutoTokenizer.from_pretrained(name)
    parser = FlexibleArgumentParser()
    vllm.benchmarks.serve.add_cli_args(parser)
    vllm.benchmarks.serve.main(parser.parse_args(flags))


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

def write_prompts(path, count, prompt_len, output_len, seed):
    """Prompts of words, of lengths around the given ones, each with the length of its answer."""
    draw = random.Random(seed)
    words = "time year people way day man thing home world school state family group country hand part place case week work".split()
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            length = draw.randint(prompt_len // 2, prompt_len * 3 // 2)
            file.write(json.dumps({"prompt": " ".join(draw.choices(words, k=length)),
                                   "output_tokens": draw.randint(output_len // 2, output_len * 3 // 2)}) + "\n")


def measure(command, result, core):
    """One run; its result file. A client that fails ends everything."""
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                         preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    if ran.returncode != 0 or not result.exists():
        sys.exit(f"bench_serve_check: {' '.join(map(str, command))} failed with {ran.returncode}:\n{ran.stdout[-2000:]}")
    return json.loads(result.read_text())


def server_ttft(url):
    """Seconds to the first token of all requests so far as the server counts them, and their number."""
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return [float(re.search(rf"^vllm:time_to_first_token_seconds_{part}\S* (\S+)$", text, re.MULTILINE)[1]) for part in ("sum", "count")]


def compare(options, flags):
    """{figure: {client: its values, a round each}}."""
    python = vllm_python(options.tools)
    cores = sorted(os.sched_getaffinity(0))
    found = {name: {"koho": [], "vllm": []} for name in [*THROUGHPUTS, *TIMES, SERVER_TTFT, *COUNTS]}
    server = serve_process.server(options.koho, str(MODEL), "--device", "cpu", "--threads", "1", "--no-enable-prefix-caching")
    os.sched_setaffinity(0, cores[:1])  # the server inherits it
    with server as url, tempfile.TemporaryDirectory() as place:
        os.sched_setaffinity(0, cores)
        folder = pathlib.Path(place)
        for one in range(options.rounds):
            write_prompts(folder / "prompts.jsonl", options.num_prompts, options.prompt_len, options.output_len, one)
            for client in ("koho", "vllm") if one % 2 == 0 else ("vllm", "koho"):
                result = folder / f"{client}-{one}.json"
                start = [options.koho, "bench", "serve"] if client == "koho" else [python, __file__, "--vllm"]
                before = server_ttft(url)
                data = measure([*start, "--base-url", url, "--model", str(MODEL), "--served-model-name", "tiny", "--backend", "openai",
                                "--dataset-name", "custom", "--dataset-path", str(folder / "prompts.jsonl"), "--disable-shuffle",
                                "--skip-chat-template", "--custom-output-len", "-1", "--num-prompts", str(options.num_prompts),
                                "--ignore-eos", "--temperature", "0", "--num-warmups", "2", "--percentile-metrics", "ttft,tpot,itl,e2el",
                                "--save-result", "--result-dir", str(folder), "--result-filename", result.name, "--disable-tqdm", *flags],
                               result, cores[-1])
                after = server_ttft(url)
                data[SERVER_TTFT] = 1e3 * (after[0] - before[0]) / (after[1] - before[1])
                for name, values in found.items():
                    values[client].append(data[name])
    return found


def main():
    if sys.argv[1:2] == ["--vllm"]:
        return run_vllm(sys.argv[2:])
    own, flags = result_file.own_and_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--koho", type=lambda path: str(pathlib.Path(path).resolve()), default=str(ROOT / "build" / "koho"))
    parser.add_argument("--rounds", type=int, default=5, help="of both clients (%(default)s)")
    parser.add_argument("--num-prompts", type=int, default=40, help="of a run (%(default)s)")
    parser.add_argument("--prompt-len", type=int, default=200, help="words, random within half and one and a half of it (%(default)s)")
    parser.add_argument("--output-len", type=int, default=80, help="tokens, likewise (%(default)s)")
    parser.add_argument("--within", type=float, default=0.03, help="the largest difference (%(default)s)")
    parser.add_argument("--tools", type=pathlib.Path, default=ROOT / "build" / "vllm-bench", help="where vLLM's benchmark is kept (%(default)s)")
    result_file.add_options(parser)
    options = parser.parse_args(own)
    rows, apart = [], []
    for name, values in compare(options, flags).items():
        if name in COUNTS:
            if values["koho"] != values["vllm"]:
                apart.append(name)
                print(f"{name}: koho {values['koho']}, vLLM {values['vllm']}")
            continue
        koho, theirs = (statistics.median(values[client]) for client in ("koho", "vllm"))
        ratio = statistics.median(one / other for one, other in zip(values["koho"], values["vllm"]))
        rows.append({"op": "serve_client", "form": name, "koho": koho, "vllm": theirs, "ratio": round(ratio, 4),
                     "all_koho": values["koho"], "all_vllm": values["vllm"]})
        if name in JUDGED and abs(ratio - 1) > options.within:
            apart.append(name)
        print(f"{name:24} koho {koho:9.3f}  vLLM {theirs:9.3f}  ratio {ratio:.4f}{'' if name in JUDGED else '  (not judged)'}"
              f"{'  APART' if name in apart else ''}")
    result_file.write(options, result_file.command_of("tools/bench_serve_check.py", own, flags), rows, peer=VLLM)
    print(f"bench_serve_check: {'apart: ' + ', '.join(apart) if apart else f'within {options.within:.0%}'}")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
