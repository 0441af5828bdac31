#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares koho with transformers at a model's true widths, where no golden could be committed: a few layers of the
config, synthetic weights that both sides draw for themselves, one prompt, logits of every token. The rule is that of
docs/goldens.md: koho's distance from the float32 run is at most 1.35 times the bfloat16 run's, plus 0.005, in the median.
Needs torch and transformers; GLM-4.7's seven layers take 45 GB of device memory.

    tools/true_widths.py --koho build/cuda/src/app/koho --device cuda --json widths.json
    tools/true_widths.py --koho build/cuda/src/app/koho --ranks 8 --devices 0 --layers 5    eight ranks on one GPU, both cuts of the experts
    tools/true_widths.py --koho build/koho --device cpu --set hidden_size=256 …     other widths, to try this tool
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import result_file  # noqa: E402
from golden import goldens, reference, synthetic  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent


def modes_of(options):
    """{name: koho's flags} of the ways in which koho computes."""
    modes = {"default": []} if options.device == "cpu" else {"cublaslt": ["--no-deterministic"], "deterministic": ["--deterministic"]}
    if options.ranks == 1:
        return modes
    devices = ["--devices", options.devices] if options.devices else []
    return {f"{name}, experts {experts}": [*flags, "--ranks", options.ranks, *devices, "--experts", experts]
            for experts in options.experts.split(",") for name, flags in modes.items()}


def koho_logits(options, folder, chunk, extra):
    """[T, V] f32 of `koho logits`."""
    out = folder / "logits.npy"
    command = [options.koho, "logits", "--config", folder / "config.json", "--weights", "synthetic", "--layers", options.layers,
               "--device", options.device, "--ids", folder / "ids.json", "--out", out, "--chunk", chunk, *extra]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"FAILED: koho logits, exit code {done.returncode}: {done.stderr.strip()[-800:]}")
    logits = torch.from_numpy(np.load(out))
    out.unlink()
    return logits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--koho", type=pathlib.Path, default=ROOT / "build" / "koho")
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "tests" / "data" / "configs" / "glm-4.7-fp8.json")
    parser.add_argument("--layers", type=int, default=7, help="the first three are dense in GLM-4.7")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--chunk", default="1,64,512,2048", metavar="N,…",
                        help="prompt tokens in one of koho's steps, a run for each: decode's kernels, few rows an expert, many")
    result_file.add_options(parser)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--ranks", type=int, default=1, help="koho's")
    parser.add_argument("--devices", help="koho's: the GPU of each rank, or one for all")
    parser.add_argument("--experts", default="whole,sliced", help="with several ranks, a run for each")
    parser.add_argument("--seed", type=int, default=1, help="of the prompt; the weights' seed is koho's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=NUMBER", help="changes the config")
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    config.update((key, int(value)) for key, value in (change.split("=") for change in options.set))
    pick = random.Random(options.seed)
    ids = [pick.randrange(config["vocab_size"]) for _ in range(options.tokens)]
    print(f"layers {options.layers}, hidden {config['hidden_size']}, {config['n_routed_experts']} experts of "
          f"{config['moe_intermediate_size']}, {options.tokens} tokens, prompt's seed {options.seed}", flush=True)
    modes = modes_of(options)

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    checkpoint = synthetic.SyntheticCheckpoint(config, options.layers, 1, options.device)
    runs = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = synthetic.load(checkpoint, dtype)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids], device=options.device), use_cache=False).logits[0]
        runs[dtype] = logits.to(torch.float32).cpu()
        del model, logits
    del checkpoint
    if options.device == "cuda":
        torch.cuda.empty_cache()  # for koho
    exact, rounded = runs[torch.float32], runs[torch.bfloat16]
    best = exact.argmax(-1)
    agreeing = lambda logits: float((logits.argmax(-1) == best).float().mean())  # noqa: E731
    noise = reference.median(reference.distance(rounded, exact))
    bound = goldens.MEDIAN_FACTOR * noise + goldens.MEDIAN_SLACK
    print(f"noise {noise:.4f}: transformers' bfloat16 run from its float32 run; the same best token {agreeing(rounded):.4f}",
          flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "ids.json").write_text(json.dumps(ids))
        for chunk in options.chunk.split(","):
            for mode, extra in modes.items():
                logits = koho_logits(options, folder, chunk, extra)
                distance = reference.median(reference.distance(logits, exact))
                near = reference.median(reference.distance(logits, rounded))
                rows.append({"op": "true_widths", "deterministic": "--deterministic" in extra, "chunk": int(chunk),
                             **({"ranks": options.ranks, "experts": extra[-1]} if options.ranks > 1 else {}),
                             "distance": round(distance, 5), "bound": round(bound, 5), "to_bf16_run": round(near, 5),
                             "same_best_token": round(agreeing(logits), 4)})
                print(f"koho {mode}, {chunk} at once: distance {distance:.4f} of {bound:.4f} = {distance / noise:.2f} times the noise, "
                      f"to the bfloat16 run {near / noise:.2f}; the same best token {agreeing(logits):.4f}", flush=True)
                del logits
    options.machine = options.machine or (torch.cuda.get_device_name() if options.device == "cuda" else "CPU")
    result_file.write(options, result_file.command_of("tools/true_widths.py", sys.argv[1:]), rows, noise=round(noise, 5),
                      same_best_token_of_bf16=round(agreeing(rounded), 4))
    good = all(row["distance"] <= row["bound"] for row in rows)
    print("passed" if good else "FAILED: the median rule of docs/goldens.md")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
