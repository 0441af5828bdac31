# SPDX-License-Identifier: Apache-2.0
"""Negative controls: the reference with one thing forgotten. A golden that such a model would pass tests nothing."""
import contextlib
import copy

import torch
from transformers.models.glm4_moe import modeling_glm4_moe

from . import reference


def edit_tensors(suffix: str, edit):
    """Applies `edit` to every tensor whose name ends so."""
    def apply(checkpoint):
        checkpoint.tensors = {name: edit(tensor) if name.endswith(suffix) else tensor
                              for name, tensor in checkpoint.tensors.items()}
    return apply


def edit_config(**values):
    def apply(checkpoint):
        checkpoint.config |= values
    return apply


def edit_rope(**values):
    def apply(checkpoint):
        target = checkpoint.config.get("rope_parameters", checkpoint.config)
        target |= {key: value(target[key]) for key, value in values.items()}
    return apply


def mean_scales(checkpoint):
    for name, tensor in checkpoint.tensors.items():
        if "_scale" in name:
            checkpoint.tensors[name] = torch.full_like(tensor, float(tensor.float().mean()))


@contextlib.contextmanager
def interleaved_rope():
    def rotate_pairs(x):
        return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)

    def apply(q, k, cos, sin, unsqueeze_dim=1):
        width = cos.shape[-1]
        cos, sin = (part[..., :width // 2].repeat_interleave(2, dim=-1).unsqueeze(unsqueeze_dim) for part in (cos, sin))
        return tuple(torch.cat((x[..., :width] * cos + rotate_pairs(x[..., :width]) * sin, x[..., width:]), dim=-1)
                     for x in (q, k))

    original = modeling_glm4_moe.apply_rotary_pos_emb
    modeling_glm4_moe.apply_rotary_pos_emb = apply
    yield
    modeling_glm4_moe.apply_rotary_pos_emb = original


@contextlib.contextmanager
def unquantized_inputs():
    reference.Fp8Linear.quantize_inputs = False
    yield
    reference.Fp8Linear.quantize_inputs = True


def variants(spec: dict) -> dict:
    """Name to (edit of the checkpoint or None, context of the run or None); only what applies to `spec`."""
    sparse = spec["num_hidden_layers"] > spec["first_k_dense_replace"]
    quantised = spec["quantization"] != "none"
    zeros = torch.zeros_like
    out = {
        "no q/k/v bias": (edit_tensors("_proj.bias", zeros), None),
        "interleaved RoPE": (None, interleaved_rope),
        "other rotated share": (edit_rope(partial_rotary_factor=lambda share: 1.5 - share), None),
        "other RoPE base": (edit_rope(rope_theta=lambda theta: 10000 if theta > 10000 else 1000000), None),
    }
    if spec["use_qk_norm"]:
        out["no q/k norm"] = (edit_config(use_qk_norm=False), None)
    if sparse:
        out["no correction bias"] = (edit_tensors("e_score_correction_bias", zeros), None)
        out["other norm_topk_prob"] = (edit_config(norm_topk_prob=not spec["norm_topk_prob"]), None)
        out["no shared expert"] = (edit_tensors("shared_experts.gate_proj.weight", zeros), None)
        if spec["routed_scaling_factor"] != 1.0:
            out["no routed scaling"] = (edit_config(routed_scaling_factor=1.0), None)
        if spec["n_group"] > 1:
            out["no group limit"] = (edit_config(n_group=1, topk_group=1), None)
    if quantised:
        if spec["quantization"] != "tensor":
            out["one scale a tensor"] = (mean_scales, None)
        out["no activation quantisation"] = (None, unquantized_inputs)
    return out


def run_variant(checkpoint, edit, context, ids) -> torch.Tensor:
    """The bfloat16 run's logits with one thing forgotten."""
    checkpoint = copy.deepcopy(checkpoint)
    if edit is not None:
        edit(checkpoint)
    with context() if context is not None else contextlib.nullcontext():
        return reference.prefill_logits(reference.load(checkpoint, torch.bfloat16), ids)
