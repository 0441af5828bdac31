# SPDX-License-Identifier: Apache-2.0
"""Unseen checkpoints: random shapes and seeds, koho's logits against the reference's by the rules of the goldens."""
import json
import pathlib
import random
import subprocess
import tempfile

import numpy as np
import torch

from . import generator, goldens, reference

SCHEMES = {
    "none": [[]],
    "channel": [[["_proj", f"channel_{dtype}_{form}"]] for dtype in ("bf16", "f32") for form in ("n1", "n")],
    "tensor": [[["_proj", "tensor_f32_one"]], [["_proj", "tensor_bf16_one"]], [["_proj", "tensor_f32_scalar"]]],
    "block": [[["_proj", "block_f32_block"]], [["_proj", "block_bf16_block"]]],
    "fp8": [[["_proj", "block_f32_inv"]]],
}
MIXED = ("self_attn", "o_proj", "q_proj", "k_proj", "shared_experts", "experts.1.", "down_proj", "layers.0.", "layers.1.")


def random_spec(seed: int) -> dict:
    """A checkpoint nobody chose: shape, structure and storage all drawn from `seed`."""
    pick = random.Random(seed)
    layers = pick.choice((1, 1, 2, 2, 3, 4))
    kv_heads = pick.choice((1, 1, 2, 3, 4))
    head = pick.choice((16, 32, 36, 48, 64, 80, 96, 128))
    groups = pick.choice((1, 1, 1, 2, 4))
    experts = groups * pick.choice((2, 3, 4, 6))
    kept = pick.randint(1, groups)
    per_token = pick.randint(1, min(8, kept * experts // groups))
    quantization = pick.choice(("none", "channel", "channel", "channel", "tensor", "block", "fp8"))
    schemes = list(pick.choice(SCHEMES[quantization]))
    if quantization != "none" and pick.random() < 0.3:
        others = ("bf16", "bf16", "channel_f32_n1", "tensor_f32_one", "block_f32_block")
        schemes = [[part, pick.choice(others)] for part in pick.sample(MIXED, 2)] + schemes
    partial = pick.choice((0.5, 0.5, 0.5, 1.0, 0.25))
    return {
        "name": f"random_{seed}", "seed": seed, "shards": pick.choice((1, 2, 5)),
        "prompt_tokens": pick.choice((pick.randint(64, 300), pick.randint(64, 300), pick.randint(301, 700))),
        "greedy_tokens": 8, "hidden_size": pick.choice((pick.randint(33, 300), 64, 128, 256, 512)),
        "intermediate_size": pick.choice((pick.randint(33, 420), 128, 256)),
        "moe_intermediate_size": pick.choice((pick.randint(17, 200), 64, 128)), "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * pick.choice((1, 2, 3, 5, 12)), "num_key_value_heads": kv_heads, "head_dim": head,
        "vocab_size": pick.randint(60, 300), "first_k_dense_replace": pick.randint(0, layers), "n_routed_experts": experts,
        "num_experts_per_tok": per_token, "n_shared_experts": pick.choice((1, 1, 2, 3)), "n_group": groups,
        "topk_group": kept, "norm_topk_prob": pick.random() < 0.7, "routed_scaling_factor": pick.choice((1.0, 2.5, 0.7)),
        "num_nextn_predict_layers": pick.choice((0, 1)), "mtp_embeddings": pick.random() < 0.5,
        "use_qk_norm": pick.random() < 0.7, "attention_bias": pick.random() < 0.85,
        "partial_rotary_factor": partial if head * partial % 2 == 0 else 0.5, "rope_theta": pick.choice((10000, 1000000)),
        "config_form": pick.choice(("v4", "v5")), "correction_bias_shift": pick.choice((0, 0, -2, 1)),
        "gains": {"o_proj": 2} if layers == 1 else {}, "quantization": quantization, "schemes": schemes,
    }


def koho_logits(koho: pathlib.Path, directory: pathlib.Path, ids: list[int]) -> torch.Tensor:
    (directory / "ids.json").write_text(json.dumps(ids))
    command = [koho, "logits", "--model", directory, "--ids", directory / "ids.json", "--out", directory / "logits.npy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-400:]}")
    return torch.from_numpy(np.load(directory / "logits.npy"))


def compare_one(koho: pathlib.Path, spec: dict, directory: pathlib.Path) -> tuple[bool, str]:
    generator.write_files(generator.make_files(spec), directory)
    checkpoint, ids = reference.Checkpoint(directory), generator.prompt_ids(spec)
    exact = reference.prefill_logits(reference.load(checkpoint, torch.float32), ids)
    rounded = reference.prefill_logits(reference.load(checkpoint, torch.bfloat16), ids)
    logits = koho_logits(koho, directory, ids)
    if logits.shape != exact.shape:
        return False, f"shape {tuple(logits.shape)}, expected {tuple(exact.shape)}"
    noise = reference.median(reference.distance(rounded, exact))
    distance = reference.median(reference.distance(logits, exact))
    bound = goldens.MEDIAN_FACTOR * noise + goldens.MEDIAN_SLACK
    good = distance <= bound
    text = f"distance {distance:.4f} of {bound:.4f} (noise {noise:.4f}, {distance / noise:.2f}x)"
    if goldens.is_one_layer_fp8(spec):
        near = reference.median(reference.distance(logits, rounded)) / noise
        good = good and near <= goldens.ONE_LAYER_FACTOR
        text += f", to the bfloat16 run {near:.2f}x of {goldens.ONE_LAYER_FACTOR}"
    return good, text


def compare(koho: pathlib.Path, seeds: range, keep: pathlib.Path | None) -> int:
    bad = []
    for seed in seeds:
        spec = random_spec(seed)
        with tempfile.TemporaryDirectory() as scratch:
            directory = (keep or pathlib.Path(scratch)) / spec["name"]
            try:
                good, text = compare_one(koho, spec, directory)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                good, text = False, str(error)
        shape = (f"L{spec['num_hidden_layers']} k{spec['first_k_dense_replace']} H{spec['hidden_size']} "
                 f"{spec['num_attention_heads']}/{spec['num_key_value_heads']}x{spec['head_dim']} E{spec['n_routed_experts']}"
                 f" top{spec['num_experts_per_tok']} {spec['quantization']} T{spec['prompt_tokens']}")
        print(f"{'ok ' if good else 'BAD'} {seed:6} {shape:52} {text}", flush=True)
        if not good:
            bad.append(seed)
    print(f"{len(seeds) - len(bad)} of {len(seeds)} within the rules" + (f"; not: {bad}" if bad else ""))
    return 1 if bad else 0
