# SPDX-License-Identifier: Apache-2.0
"""glm4_moe in plain PyTorch, shaped for fast training of a tiny model.

Same mathematics and rounding points as Hugging Face's Glm4MoeForCausalLM, and an MTP layer on top.
Experts are computed densely (every expert on every token, weighted by a mostly zero router row),
which at this size is faster than any grouping. Masters are float32; `dtype` is what a step computes
in. With `quant` on, every weight that the FP8 checkpoint quantises, and its input, passes through
E4M3 with a straight-through gradient.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "hidden_size": 192,
    "num_hidden_layers": 5,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
    "rope_theta": 1000000,
    "intermediate_size": 512,
    "moe_intermediate_size": 64,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-5,
    "vocab_size": 4096,
    "num_nextn_predict_layers": 1,
}
E4M3_MAX = 448.0
SCALE_FLOOR = 1.0 / (448.0 * 512.0)


def quantize_rows(x):
    """Dynamic per-row quantisation: (E4M3 values as float32, float32 scale)."""
    x = x.float()
    scale = torch.clamp(x.abs().amax(-1, keepdim=True) / E4M3_MAX, min=SCALE_FLOOR)
    return torch.clamp(x / scale, -E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float(), scale


def weight_scale(w):
    """One scale per output row, rounded to bfloat16 as the checkpoint stores it."""
    return torch.clamp(w.abs().amax(-1, keepdim=True) / E4M3_MAX, min=1e-8).to(torch.bfloat16).float()


def quantize_weight(w):
    w = w.float()
    scale = weight_scale(w)
    return torch.clamp(w / scale, -E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float(), scale


_frozen = {}  # quantised weights of models whose weights no longer change, see frozen_weight


def frozen_weight(w):
    """quantize_weight, done once per weight: for inference only, where weights stay as they are."""
    key = (w.data_ptr(), tuple(w.shape))
    if key not in _frozen:
        _frozen[key] = (w, *quantize_weight(w.detach()))
    return _frozen[key][1:]


def through(x, quantised):
    """The quantised value with the gradient of x."""
    values, scale = quantised
    return x + ((values * scale).to(x.dtype) - x).detach()


def linear(x, w, bias, dtype, quant, exact=False):
    """x W^T + b with rounding to dtype. `exact` scales after the product, as inference does."""
    if quant and exact:
        (qx, sx), (qw, sw) = quantize_rows(x), frozen_weight(w)
        y = (qx @ qw.T) * sw.squeeze(-1) * sx
        return (y if bias is None else y + bias.to(dtype).float()).to(dtype)
    if quant:
        x, w = through(x, quantize_rows(x)), through(w, quantize_weight(w))
    return F.linear(x, w.to(dtype), None if bias is None else bias.to(dtype))


class RmsNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        x32 = x.float()
        y = (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)
        return self.weight.to(x.dtype) * y


def rotate(x, cos, sin):
    """RoPE on the first 2 * cos.shape[-1] dims, half-split pairs. x [B, heads, T, D]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.width = (
            c["num_attention_heads"],
            c["num_key_value_heads"],
            c["head_dim"],
        )
        h = c["hidden_size"]

        def weight(rows, cols):
            return nn.Parameter(torch.randn(rows, cols) / math.sqrt(cols))

        self.q, self.k, self.v = (
            weight(n * self.width, h) for n in (self.heads, self.kv_heads, self.kv_heads)
        )
        self.o = nn.Parameter(
            torch.randn(h, self.heads * self.width) / math.sqrt(self.heads * self.width) / 3
        )
        self.q_bias, self.k_bias, self.v_bias = (
            nn.Parameter(torch.randn(n * self.width) * 0.05)
            for n in (self.heads, self.kv_heads, self.kv_heads)
        )
        self.q_norm, self.k_norm = RmsNorm(self.width, c["rms_norm_eps"]), RmsNorm(
            self.width, c["rms_norm_eps"]
        )

    def forward(self, x, cos, sin, mode, cache=None):
        b, t, _ = x.shape
        q = linear(x, self.q, self.q_bias, *mode).view(b, t, self.heads, self.width)
        k = linear(x, self.k, self.k_bias, *mode).view(b, t, self.kv_heads, self.width)
        v = linear(x, self.v, self.v_bias, *mode).view(b, t, self.kv_heads, self.width).transpose(1, 2)
        q, k = rotate(self.q_norm(q).transpose(1, 2), cos, sin), rotate(
            self.k_norm(k).transpose(1, 2), cos, sin
        )
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            keys, values, rows, slots, mask = cache
            keys[rows, :, slots] = k.transpose(1, 2)
            values[rows, :, slots] = v.transpose(1, 2)
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        return linear(y.transpose(1, 2).reshape(b, t, -1), self.o, None, *mode)


class DenseMlp(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate = nn.Parameter(torch.randn(width, hidden) / math.sqrt(hidden))
        self.up = nn.Parameter(torch.randn(width, hidden) / math.sqrt(hidden))
        self.down = nn.Parameter(torch.randn(hidden, width) / math.sqrt(width) / 3)

    def forward(self, x, mode):
        return linear(
            F.silu(linear(x, self.gate, None, *mode)) * linear(x, self.up, None, *mode),
            self.down,
            None,
            *mode
        )


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, i = c["hidden_size"], c["moe_intermediate_size"]
        self.experts, self.top, self.scale, self.inner = (
            c["n_routed_experts"],
            c["num_experts_per_tok"],
            c["routed_scaling_factor"],
            i,
        )
        self.router = nn.Parameter(torch.randn(self.experts, h) / math.sqrt(h))
        self.register_buffer("bias", torch.zeros(self.experts))
        self.gate = nn.Parameter(torch.randn(self.experts, i, h) / math.sqrt(h))
        self.up = nn.Parameter(torch.randn(self.experts, i, h) / math.sqrt(h))
        self.down = nn.Parameter(torch.randn(self.experts, h, i) / math.sqrt(i) / 3)
        self.shared = DenseMlp(h, i * c["n_shared_experts"])

    def route(self, x):
        """(dense router weights [N, E], tokens per expert [E])."""
        scores = torch.sigmoid(F.linear(x.float(), self.router.to(x.dtype).float()))
        chosen = torch.topk(scores.detach() + self.bias, self.top, dim=-1).indices
        mask = torch.zeros_like(scores).scatter_(-1, chosen, 1.0)
        picked = scores * mask
        return picked / (picked.sum(-1, keepdim=True) + 1e-20) * self.scale, mask.sum(0)

    def forward(self, x, mode):
        dtype, quant, exact = mode
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        weights, load = self.route(x)
        gate = linear(x, self.gate.flatten(0, 1), None, *mode)
        up = linear(x, self.up.flatten(0, 1), None, *mode)
        inner = (F.silu(gate) * up).view(-1, self.experts, self.inner)
        if exact:
            outs = torch.stack(
                [linear(inner[:, e], self.down[e], None, *mode) for e in range(self.experts)], 1
            )
            y = (outs.float() * weights.unsqueeze(-1)).sum(1).to(dtype)
        else:
            down = self.down
            if quant:
                inner, down = through(inner, quantize_rows(inner)), through(down, quantize_weight(down))
            inner = inner * weights.to(dtype).unsqueeze(-1)
            y = F.linear(inner.flatten(1), down.to(dtype).permute(1, 0, 2).flatten(1))
        return (y + self.shared(x, mode)).view(shape), load


class Layer(nn.Module):
    def __init__(self, c, dense):
        super().__init__()
        self.input_norm, self.post_norm = (RmsNorm(c["hidden_size"], c["rms_norm_eps"]) for _ in range(2))
        self.attention = Attention(c)
        self.mlp = DenseMlp(c["hidden_size"], c["intermediate_size"]) if dense else Moe(c)
        self.dense = dense

    def forward(self, x, cos, sin, mode, cache=None):
        x = x + self.attention(self.input_norm(x), cos, sin, mode, cache)
        y = self.mlp(self.post_norm(x), mode)
        y, load = (y, None) if self.dense else y
        return x + y, load


class TinyGlm(nn.Module):
    def __init__(self, config=None, dtype=torch.float32):
        super().__init__()
        c = self.config = dict(CONFIG, **(config or {}))
        h = c["hidden_size"]
        self.dtype, self.quant, self.exact = dtype, False, False
        self.embed = nn.Parameter(torch.randn(c["vocab_size"], h) * 0.5)
        self.head = nn.Parameter(torch.randn(c["vocab_size"], h) * 0.02)
        self.layers = nn.ModuleList(
            Layer(c, i < c["first_k_dense_replace"]) for i in range(c["num_hidden_layers"])
        )
        self.norm = RmsNorm(h, c["rms_norm_eps"])
        self.mtp = Layer(c, False)
        self.enorm, self.hnorm, self.mtp_norm = (RmsNorm(h, c["rms_norm_eps"]) for _ in range(3))
        self.eh_proj = nn.Parameter(torch.randn(h, 2 * h) / math.sqrt(2 * h))

    @property
    def mode(self):
        return self.dtype, self.quant, self.exact

    def angles(self, positions):
        """cos, sin [..., T, rotary / 2] of integer positions, rounded to the compute type."""
        rotary = int(self.config["head_dim"] * self.config["partial_rotary_factor"])
        inverse = self.config["rope_theta"] ** (
            -torch.arange(0, rotary, 2, device=positions.device).float() / rotary
        )
        angle = positions.float().unsqueeze(-1) * inverse
        return angle.cos().to(self.dtype), angle.sin().to(self.dtype)

    def hidden(self, tokens):
        """Normed states [B, T, H] of whole sequences, and each MoE layer's load."""
        cos, sin = self.angles(torch.arange(tokens.shape[1], device=tokens.device))
        x, loads = F.embedding(tokens, self.embed.to(self.dtype)), []
        for layer in self.layers:
            x, load = layer(x, cos, sin, self.mode)
            if load is not None:
                loads.append(load)
        return self.norm(x), loads

    def logits(self, states):
        return F.linear(states, self.head.to(self.dtype))

    def draft(self, states, following):
        """MTP logits for slot p from state p and the token after p, which `following` holds."""
        e = self.enorm(F.embedding(following, self.embed.to(self.dtype)))
        x = F.linear(torch.cat((e, self.hnorm(states)), -1), self.eh_proj.to(self.dtype))
        cos, sin = self.angles(torch.arange(states.shape[1], device=states.device))
        x, load = self.mtp(x, cos, sin, self.mode)
        return self.logits(self.mtp_norm(x)), load

    def moe_layers(self):
        return [layer.mlp for layer in self.layers if not layer.dense] + [self.mtp.mlp]

    @torch.no_grad()
    def generate(self, prompts, max_tokens, stop_ids, real_vocab, temperature=0.0, generator=None):
        """Continuations (with their stop token) of token-id lists, all at once; greedy at temperature 0."""
        device = self.embed.device
        b, longest = len(prompts), max(map(len, prompts))
        total = longest + max_tokens
        c = self.config
        shape = (b, c["num_key_value_heads"], total, c["head_dim"])
        caches = [
            (
                torch.zeros(shape, device=device, dtype=self.dtype),
                torch.zeros(shape, device=device, dtype=self.dtype),
            )
            for _ in self.layers
        ]
        rows = torch.arange(b, device=device).unsqueeze(1)
        lengths = torch.tensor([len(p) for p in prompts], device=device)
        tokens = torch.zeros(b, longest, dtype=torch.long, device=device)
        for i, p in enumerate(prompts):
            tokens[i, : len(p)] = torch.tensor(p, device=device)
        slots = torch.arange(longest, device=device).expand(b, -1)
        out, done = [[] for _ in prompts], [False] * b
        for step in range(max_tokens):
            cos, sin = self.angles(slots)
            mask = torch.arange(total, device=device).view(1, 1, 1, -1) <= slots.unsqueeze(1).unsqueeze(-1)
            x = F.embedding(tokens, self.embed.to(self.dtype))
            for layer, (k, v) in zip(self.layers, caches):
                x, _ = layer(x, cos.unsqueeze(1), sin.unsqueeze(1), self.mode, (k, v, rows, slots, mask))
            if step == 0:
                x = x[torch.arange(b, device=device), lengths - 1].unsqueeze(1)
            logits = self.logits(self.norm(x))[:, -1, :real_vocab].float()
            best = (
                logits.argmax(-1)
                if temperature == 0
                else torch.multinomial(
                    torch.softmax(logits / temperature, -1), 1, generator=generator
                ).squeeze(-1)
            )
            for i, token in enumerate(best.tolist()):
                if not done[i]:
                    out[i].append(token)
                    done[i] = token in stop_ids
            if all(done):
                break
            tokens, slots = best.unsqueeze(1), (lengths + step).unsqueeze(1)
        return out
