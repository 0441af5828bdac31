# SPDX-License-Identifier: Apache-2.0
"""koho's synthetic weights (`--weights synthetic`, src/model/synthetic.cpp) made by torch, element by element the same,
and transformers' model over them on any torch device: a reference at true widths without a checkpoint on disk. FP8
matrices stay in FP8 and are widened as they multiply. Knows FP8 per channel only."""
import math

import numpy as np
import torch
from torch import nn
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from . import reference
from .generator import fnv1a

BELL_MAX, BELL_DEVIATION = 131070, np.float32(37837.0)
CODE_FACTOR = np.float32(7.0) / np.float32(2048.0)
PIECE = 1 << 24  # elements made at a time


def signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    """A logical shift to the right of int64."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def mix(z: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser; int64 arithmetic wraps."""
    z = (z ^ shifted(z, 30)) * signed(0xBF58476D1CE4E5B9)
    z = (z ^ shifted(z, 27)) * signed(0x94D049BB133111EB)
    return z ^ shifted(z, 31)


class SyntheticCheckpoint:
    """Stands in for reference.Checkpoint: tensors by name, made when asked for. FP8 weights are kept for the next run."""

    def __init__(self, config: dict, layers: int, seed: int, device: str):
        self.config = dict(config, num_hidden_layers=layers,
                           first_k_dense_replace=min(config["first_k_dense_replace"], layers))
        self.seed, self.device, self.quantized = seed, device, {}
        self.residual_factor = np.float32(1.0) / np.sqrt(np.float32(2.0) * np.float32(layers))

    def values(self, name: str, shape, factor, offset, dtype: torch.dtype) -> torch.Tensor:
        key = int(mix(torch.tensor([signed(self.seed + fnv1a(name))])))
        out = torch.empty(math.prod(shape), dtype=dtype, device=self.device)
        for first in range(0, out.numel(), PIECE):
            count = min(PIECE, out.numel() - first)
            index = torch.arange(first + 1, first + count + 1, dtype=torch.int64, device=self.device)
            bits = mix(key + index * signed(0x9E3779B97F4A7C15))
            bell = sum(shifted(bits, by) & 0xFFFF if by else bits & 0xFFFF for by in (0, 16, 32, 48)) - BELL_MAX
            made = bell.to(torch.float32) * float(factor) + float(offset)
            out[first:first + count] = made.to(dtype)
        return out.reshape(shape)

    def place(self, name: str, shape, spread, offset, dtype=torch.bfloat16) -> torch.Tensor:
        return self.values(name, shape, np.float32(spread) / BELL_DEVIATION, np.float32(offset), dtype)

    def deviation(self, name: str, columns: int):
        adds = ".o_proj." in name or ".down_proj." in name
        return (self.residual_factor if adds else np.float32(1.0)) / np.sqrt(np.float32(columns))

    def tensor(self, name: str, shape) -> torch.Tensor:
        """Everything but linears."""
        if name.endswith("e_score_correction_bias"):
            return self.place(name, shape, 0.01, 0.0, torch.float32)
        if name.endswith("embed_tokens.weight"):
            return self.place(name, shape, 1.0, 0.0)
        if name.endswith("norm.weight"):
            return self.place(name, shape, 0.1, 1.0)
        return self.place(name, shape, self.deviation(name, shape[1]), 0.0)

    def linear(self, module: str, rows: int, columns: int, bias: bool, dtype: torch.dtype) -> nn.Module:
        name = module + ".weight"
        if module == "lm_head":
            head = nn.Linear(columns, rows, bias=False, dtype=dtype, device="meta")
            head.weight = nn.Parameter(self.tensor(name, (rows, columns)).to(dtype), requires_grad=False)
            return head
        if module not in self.quantized:
            scale = self.deviation(name, columns) / (CODE_FACTOR * BELL_DEVIATION)
            self.quantized[module] = (
                self.values(name, (rows, columns), CODE_FACTOR, 0.0, torch.float8_e4m3fn),
                self.place(module + ".weight_scale", (rows,), np.float32(0.1) * scale, scale, torch.float32),
                self.place(module + ".bias", (rows,), 0.1, 0.0) if bias else None)
        return ChannelLinear(*self.quantized[module], dtype)


class ChannelLinear(nn.Module):
    """reference.Fp8Linear with a scale a row, its weight kept in FP8."""

    def __init__(self, quantized, scale, bias, dtype):
        super().__init__()
        self.quantized, self.scale, self.bias = quantized, scale, None if bias is None else bias.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).to(torch.float32)
        quantized, scale = reference.quantize_rows(rows)
        out = (quantized @ self.quantized.to(torch.float32).T) * self.scale * scale
        if self.bias is not None:
            out = out + self.bias.to(torch.float32)
        return out.to(x.dtype).reshape(*x.shape[:-1], -1)


def load(checkpoint: SyntheticCheckpoint, dtype: torch.dtype) -> Glm4MoeForCausalLM:
    """The model with nothing allocated but what is made here."""
    ours = ("quantization_config", "torch_dtype", "dtype")
    config = Glm4MoeConfig(**{key: value for key, value in checkpoint.config.items() if key not in ours})
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = Glm4MoeForCausalLM._from_config(config, dtype=dtype).eval()
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "Glm4MoeExperts":
            ffn, hidden = config.moe_intermediate_size, config.hidden_size
            shapes = (("gate", ffn, hidden), ("up", ffn, hidden), ("down", hidden, ffn))
            experts = [[checkpoint.linear(f"{name}.{expert}.{part}_proj", rows, columns, False, dtype)
                        for part, rows, columns in shapes] for expert in range(config.n_routed_experts)]
            model.set_submodule(name, reference.Experts(experts, module.act_fn))
        elif isinstance(module, nn.Linear):
            model.set_submodule(name, checkpoint.linear(name, module.out_features, module.in_features,
                                                        module.bias is not None, dtype))
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(checkpoint.device)
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.device.type != "meta":
            continue
        owner = model.get_submodule(name.rpartition(".")[0])
        made = checkpoint.tensor(name, tuple(value.shape)).to(value.dtype)
        if isinstance(value, nn.Parameter):
            owner._parameters[name.rpartition(".")[2]] = nn.Parameter(made, requires_grad=False)
        else:
            owner._buffers[name.rpartition(".")[2]] = made
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    return model
