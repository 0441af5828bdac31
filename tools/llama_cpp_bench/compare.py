#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs koho's bench/cpu_model and llama.cpp's llama-bench in turn, on the same shape, and prints medians and ratios.

    compare.py --ours build/release/bench/cpu_model --llama-bench DIR/llama-bench --gguf FILE.gguf [--out FILE.json]

FILE.gguf comes from make_gguf.py. Each round measures read bandwidth and koho, then llama.cpp; a ratio is taken
within its round, so that a busy moment of the machine meets both. Standard library only.
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys


def run_ours(arguments: argparse.Namespace) -> dict:
    command = [arguments.ours, "--rounds", "1", "--threads", str(arguments.threads), "--prompt", str(arguments.prompt),
               "--tokens", str(arguments.tokens), "--batches", arguments.batches, "--isa", arguments.isa]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    row = {key: value["median"] for key, value in result.items() if isinstance(value, dict)}
    return {"backend": result["backend"], "active_bytes": result["active_bytes"], **row}


def run_peer(arguments: argparse.Namespace) -> dict:
    command = [arguments.llama_bench, "-m", arguments.gguf, "-p", str(arguments.prompt), "-n", str(arguments.tokens),
               "-t", str(arguments.threads), "-r", "1", "-o", "json"]
    tests = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"build": tests[0]["build_commit"],
            "prefill": next(test["avg_ts"] for test in tests if test["n_prompt"] > 0),
            "decode": next(test["avg_ts"] for test in tests if test["n_gen"] > 0)}


def machine() -> str:
    info = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = next((line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")), "CPU")
    best = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in info]
    return f"{os.cpu_count()} cores, {name}, {' '.join(best)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="the program bench/cpu_model")
    parser.add_argument("--llama-bench", required=True, help="llama.cpp's llama-bench")
    parser.add_argument("--gguf", required=True, help="the model from make_gguf.py")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--batches", default="1,16", help="koho's batch sizes; 1 among them")
    parser.add_argument("--isa", default="auto", help="koho's instruction set; llama.cpp's is that of its build")
    parser.add_argument("--commit", default="", help="koho's commit, for the record")
    parser.add_argument("--out", help="where the JSON goes as well")
    arguments = parser.parse_args()

    rounds = []
    for index in range(arguments.rounds):
        ours = run_ours(arguments)
        peer = run_peer(arguments)
        rounds.append({"op": "llama_cpp", "decode_ratio": round(ours["decode_1"] / peer["decode"], 3),
                       "prefill_ratio": round(ours[f"prefill_{arguments.prompt}"] / peer["prefill"], 3), "koho": ours, "llama.cpp": peer})
        print(f"round {index + 1}: {json.dumps(rounds[-1])}", file=sys.stderr, flush=True)

    def median(value) -> float:
        return round(statistics.median(value(row["koho"], row["llama.cpp"]) for row in rounds), 3)

    prefill = f"prefill_{arguments.prompt}"
    batch = max(int(text) for text in arguments.batches.split(","))
    record = {
        "machine": machine(), "driver": None, "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": arguments.commit, "llama.cpp": rounds[0]["llama.cpp"]["build"],
        "command": "tools/llama_cpp_bench/compare.py --ours cpu_model --llama-bench llama-bench --gguf synthetic.gguf "
                   f"--rounds {arguments.rounds} --threads {arguments.threads} --prompt {arguments.prompt} "
                   f"--tokens {arguments.tokens} --batches {arguments.batches} --isa {arguments.isa}",
        "medians": {
            "read_bandwidth_gb_s": median(lambda ours, peer: ours["read_bandwidth"]),
            "decode_tok_s": median(lambda ours, peer: ours["decode_1"]),
            "decode_share_of_bandwidth": median(lambda ours, peer: ours["decode_1_share_of_bandwidth"]),
            "decode_share_of_pages_side_by_side": median(
                lambda ours, peer: ours["decode_1_share_of_pages_side_by_side"]),
            "decode_peer_tok_s": median(lambda ours, peer: peer["decode"]),
            "decode_ratio": median(lambda ours, peer: ours["decode_1"] / peer["decode"]),
            "prefill_tok_s": median(lambda ours, peer: ours[prefill]),
            "prefill_peer_tok_s": median(lambda ours, peer: peer["prefill"]),
            "prefill_ratio": median(lambda ours, peer: ours[prefill] / peer["prefill"]),
            f"decode_{batch}_tok_s": median(lambda ours, peer: ours[f"decode_{batch}"]),
            f"decode_{batch}_over_1": median(lambda ours, peer: ours[f"decode_{batch}"] / ours["decode_1"]),
        },
        "rows": rounds,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if arguments.out:
        pathlib.Path(arguments.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
