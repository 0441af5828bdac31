# SPDX-License-Identifier: Apache-2.0
"""The reference: transformers' Glm4MoeForCausalLM on the CPU, with FP8 checkpoints' arithmetic emulated.

What the reference is, point by point (docs/goldens.md has the reasons):
- Everything but linears and experts is transformers' own code: norms, RoPE, attention (sdpa), router, residuals.
- A BF16 linear is torch's F.linear (f32 accumulation, one rounding).
- An FP8 linear quantises its input per token (per token and 128 columns for block weights): scale = max(amax / 448,
  1 / (448 * 512)), quantized = e4m3(input / scale), then (quantized_x . quantized_w, in f32) * weight scale * input scale + bias,
  rounded once to the run's dtype. The bfloat16 run quantises bf16 inputs, the float32 run f32 inputs.
- Experts: as transformers' default implementation, each expert a linear as above, weighted and summed in f32 over the
  chosen experts, one rounding.
Needs torch and transformers.
"""
import json
import pathlib

import numpy as np
import torch
from safetensors import safe_open
from torch import nn
from transformers import DynamicCache, Glm4MoeConfig, Glm4MoeForCausalLM

from .generator import BLOCK

FLOAT_MAX = 448.0
SCALE_MIN = 1.0 / (448.0 * 512.0)


def e4m3(values: torch.Tensor) -> torch.Tensor:
    """f32 rounded to E4M3, saturating, as f32."""
    return values.clamp(-FLOAT_MAX, FLOAT_MAX).to(torch.float8_e4m3fn).to(torch.float32)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, K] f32 -> quantized [T, K] f32 and scales [T, 1] f32."""
    scale = torch.clamp(x.abs().amax(dim=-1, keepdim=True) / FLOAT_MAX, min=SCALE_MIN)
    return e4m3(x / scale), scale


class Fp8Linear(nn.Module):
    """y = x W^T + b, W in E4M3 with scales per channel [N, 1], per tensor [1, 1] or per block [N/128, K/128]."""

    quantize_inputs = True  # the negative control clears it

    def __init__(self, quantized: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None):
        super().__init__()
        self.register_buffer("quantized", quantized.to(torch.float32), persistent=False)
        rows, columns = quantized.shape
        scale = scale.to(torch.float32)
        blocks = (-(-rows // BLOCK), -(-columns // BLOCK))
        self.block = scale.dim() == 2 and tuple(scale.shape) == blocks and scale.shape[1] > 1
        if not self.block:
            assert scale.numel() in (1, rows), (tuple(quantized.shape), tuple(scale.shape))
            scale = scale.reshape(-1)
        else:
            scale = scale.repeat_interleave(BLOCK, dim=0)[:rows]  # [N, K/128]
        self.register_buffer("scale", scale, persistent=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape, dtype = x.shape, x.dtype
        rows = x.reshape(-1, shape[-1]).to(torch.float32)
        step = BLOCK if self.block else shape[-1]
        out = 0.0
        for block, begin in enumerate(range(0, shape[-1], step)):
            part = rows[:, begin:begin + step]
            quantized, scale = quantize_rows(part) if self.quantize_inputs else (part, torch.ones(1))
            weight_scale = self.scale[:, block] if self.block else self.scale
            out = out + (quantized @ self.quantized[:, begin:begin + step].T) * weight_scale * scale
        if self.bias is not None:
            out = out + self.bias.to(torch.float32)
        return out.to(dtype).reshape(*shape[:-1], -1)


def is_one_block_wide(scale_shape, rows: int, columns: int) -> bool:
    return tuple(scale_shape) == (-(-rows // BLOCK), 1) and rows > 1 and columns <= BLOCK


class Experts(nn.Module):
    """transformers' routed experts, each expert three linears of its own."""

    def __init__(self, experts: list[list[nn.Module]], act_fn):
        super().__init__()
        self.experts = nn.ModuleList(nn.ModuleList(expert) for expert in experts)
        self.act_fn = act_fn

    def forward(self, hidden_states, top_k_index, top_k_weights):
        tokens, chosen = top_k_index.shape
        out = torch.zeros(tokens, chosen, hidden_states.shape[-1], dtype=torch.float32, device=hidden_states.device)
        for index, (gate, up, down) in enumerate(self.experts):
            token, slot = torch.where(top_k_index == index)
            if token.numel() == 0:
                continue
            x = hidden_states[token]
            y = down(self.act_fn(gate(x)) * up(x))
            out[token, slot] = y * top_k_weights[token, slot, None]
        return out.sum(dim=1).to(hidden_states.dtype)


class Checkpoint:
    """All tensors of a checkpoint directory, config.json beside them."""

    def __init__(self, directory: pathlib.Path):
        self.config = json.loads((directory / "config.json").read_text())
        index = directory / "model.safetensors.index.json"
        names = ["model.safetensors"]
        if index.exists():
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        self.tensors: dict[str, torch.Tensor] = {}
        for name in names:
            with safe_open(directory / name, framework="pt") as file:
                self.tensors |= {key: file.get_tensor(key) for key in file.keys()}

    def scale(self, module: str) -> torch.Tensor | None:
        for suffix in (".weight_scale", ".weight_scale_inv"):
            if module + suffix in self.tensors:
                return self.tensors[module + suffix]
        return None

    def linear(self, module: str, dtype: torch.dtype) -> nn.Module:
        weight, bias = self.tensors[module + ".weight"], self.tensors.get(module + ".bias")
        bias = None if bias is None else bias.to(dtype)
        if weight.dtype == torch.float8_e4m3fn:
            scale = self.scale(module)
            if is_one_block_wide(scale.shape, *weight.shape):
                scale = scale.repeat_interleave(BLOCK, dim=0)[:weight.shape[0]]  # one block wide: a scale a channel
            return Fp8Linear(weight, scale, bias)
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=dtype)
        linear.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias, requires_grad=False)
        return linear


def load(checkpoint: Checkpoint, dtype: torch.dtype, attention: str = "sdpa") -> Glm4MoeForCausalLM:
    """The model with every parameter from the checkpoint; MTP tensors (layer num_hidden_layers) are left out."""
    ours = ("quantization_config", "torch_dtype", "dtype")
    facts = {key: value for key, value in checkpoint.config.items() if key not in ours}
    config = Glm4MoeConfig(**facts)
    config._attn_implementation = attention
    model = Glm4MoeForCausalLM._from_config(config, dtype=dtype).eval()
    tensors = checkpoint.tensors
    unset = set(dict(model.named_parameters())) | {name for name, _ in model.named_buffers() if "correction" in name}

    with torch.no_grad():
        for name, module in list(model.named_modules()):
            if type(module).__name__ == "Glm4MoeExperts":
                experts = Experts([[checkpoint.linear(f"{name}.{expert}.{part}_proj", dtype) for part in ("gate", "up", "down")]
                                   for expert in range(module.num_experts)], module.act_fn)
                model.set_submodule(name, experts)
                unset -= {name + ".gate_up_proj", name + ".down_proj"}
            elif isinstance(module, nn.Linear):
                model.set_submodule(name, checkpoint.linear(name, dtype))
                unset -= {name + ".weight", name + ".bias"}
        for name in list(unset):
            target = model.get_buffer(name) if name.endswith("correction_bias") else model.get_parameter(name)
            assert target.shape == tensors[name].shape, name
            target.copy_(tensors[name])
            assert name.endswith("correction_bias") is False or target.dtype == torch.float32
            unset.discard(name)
    assert not unset, unset
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    return model


@torch.no_grad()
def prefill_logits(model: Glm4MoeForCausalLM, ids: list[int]) -> torch.Tensor:
    """[T, V] in the run's dtype."""
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


@torch.no_grad()
def greedy(model: Glm4MoeForCausalLM, ids: list[int], count: int) -> tuple[list[int], torch.Tensor]:
    """`count` greedy tokens, whatever they are (no stop token), and the logits [count, V] each was chosen from."""
    cache, chosen, rows = DynamicCache(config=model.config), [], []
    step = torch.tensor([ids])
    for _ in range(count):
        row = model(input_ids=step, past_key_values=cache, use_cache=True).logits[0, -1]
        rows.append(row)
        chosen.append(int(row.to(torch.float32).argmax()))
        step = torch.tensor([[chosen[-1]]])
    return chosen, torch.stack(rows)


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Relative L2 distance of a from b, per token."""
    a, b = a.to(torch.float64), b.to(torch.float64)
    return (a - b).norm(dim=-1) / b.norm(dim=-1)


def median(values: torch.Tensor) -> float:
    return float(np.median(values.numpy()))
