# SPDX-License-Identifier: Apache-2.0
"""Writes a trained model as a GLM-4.7-FP8 checkpoint directory, and reads one back.

FP8 E4M3 with one BF16 scale per output row for every projection, BF16 for the rest, F32 for the
correction biases: names, shards, index and quantization_config as compressed-tensors has them.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from . import tokenizer as tok
from .model import TinyGlm, quantize_weight


def layer_tensors(layer, prefix):
    """(name, tensor, quantised) of one decoder layer in the checkpoint's names."""
    a = layer.attention
    yield prefix + "input_layernorm.weight", layer.input_norm.weight, False
    for name in "qkv":
        yield f"{prefix}self_attn.{name}_proj.weight", getattr(a, name), True
        yield f"{prefix}self_attn.{name}_proj.bias", getattr(a, name + "_bias"), False
    yield prefix + "self_attn.o_proj.weight", a.o, True
    yield prefix + "self_attn.q_norm.weight", a.q_norm.weight, False
    yield prefix + "self_attn.k_norm.weight", a.k_norm.weight, False
    yield prefix + "post_attention_layernorm.weight", layer.post_norm.weight, False
    if layer.dense:
        yield from mlp_tensors(layer.mlp, prefix + "mlp.")
        return
    moe = layer.mlp
    yield prefix + "mlp.gate.weight", moe.router, False
    yield prefix + "mlp.gate.e_score_correction_bias", moe.bias, False
    for e in range(moe.experts):
        for name in ("gate", "up", "down"):
            yield f"{prefix}mlp.experts.{e}.{name}_proj.weight", getattr(moe, name)[e], True
    yield from mlp_tensors(moe.shared, prefix + "mlp.shared_experts.")


def mlp_tensors(mlp, prefix):
    for name in ("gate", "up", "down"):
        yield f"{prefix}{name}_proj.weight", getattr(mlp, name), True


def shards(model):
    """Lists of (name, tensor, quantised), one list per file."""
    layers = [list(layer_tensors(layer, f"model.layers.{i}.")) for i, layer in enumerate(model.layers)]
    n = len(model.layers)
    mtp = f"model.layers.{n}."
    last = list(layer_tensors(model.mtp, mtp)) + [
        (mtp + "enorm.weight", model.enorm.weight, False),
        (mtp + "hnorm.weight", model.hnorm.weight, False),
        (mtp + "eh_proj.weight", model.eh_proj, False),
        (mtp + "shared_head.norm.weight", model.mtp_norm.weight, False),
    ]
    return [
        [("model.embed_tokens.weight", model.embed, False)] + layers[0],
        sum(layers[1:3], []),
        sum(layers[3:], []),
        [("model.norm.weight", model.norm.weight, False), ("lm_head.weight", model.head, False)],
        last,
    ]


def stored(name, tensor, quantised):
    tensor = tensor.detach().float().cpu()
    if quantised:
        values, scale = quantize_weight(tensor)
        return {name: values.to(torch.float8_e4m3fn), name + "_scale": scale.to(torch.bfloat16)}
    return {name: tensor if name.endswith("e_score_correction_bias") else tensor.to(torch.bfloat16)}


def ignored(model):
    """The modules that stay unquantised, as the ignore list of a GLM -FP8 checkpoint names them."""
    names = []
    for shard in shards(model):
        for name, _, quantised in shard:
            if not quantised:
                names.append(name.removesuffix(".weight"))
    return names


def config_json(model):
    c = model.config
    eos = [tok.BASE_TOKENS + i for i in (0, 7, 9)]
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "pad_token_id": eos[0],
        "eos_token_id": eos,
        "head_dim": c["head_dim"],
        "hidden_act": "silu",
        "hidden_size": c["hidden_size"],
        "partial_rotary_factor": c["partial_rotary_factor"],
        "initializer_range": 0.02,
        "intermediate_size": c["intermediate_size"],
        "max_position_embeddings": 131072,
        "model_type": "glm4_moe",
        "moe_intermediate_size": c["moe_intermediate_size"],
        "norm_topk_prob": True,
        "num_attention_heads": c["num_attention_heads"],
        "n_group": 1,
        "topk_group": 1,
        "n_routed_experts": c["n_routed_experts"],
        "n_shared_experts": c["n_shared_experts"],
        "routed_scaling_factor": c["routed_scaling_factor"],
        "num_experts_per_tok": c["num_experts_per_tok"],
        "first_k_dense_replace": c["first_k_dense_replace"],
        "num_hidden_layers": c["num_hidden_layers"],
        "num_key_value_heads": c["num_key_value_heads"],
        "rms_norm_eps": c["rms_norm_eps"],
        "rope_scaling": None,
        "rope_theta": c["rope_theta"],
        "num_nextn_predict_layers": c["num_nextn_predict_layers"],
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.56.2",
        "use_cache": True,
        "use_qk_norm": True,
        "vocab_size": c["vocab_size"],
        "quantization_config": {
            "config_groups": {
                "group_0": {
                    "format": "float-quantized",
                    "input_activations": {
                        "actorder": None,
                        "block_structure": None,
                        "dynamic": True,
                        "group_size": None,
                        "num_bits": 8,
                        "observer": None,
                        "observer_kwargs": {},
                        "strategy": "token",
                        "symmetric": True,
                        "type": "float",
                    },
                    "output_activations": None,
                    "targets": ["Linear"],
                    "weights": {
                        "actorder": None,
                        "block_structure": None,
                        "dynamic": False,
                        "group_size": None,
                        "num_bits": 8,
                        "observer": "minmax",
                        "observer_kwargs": {},
                        "strategy": "channel",
                        "symmetric": True,
                        "type": "float",
                    },
                }
            },
            "format": "float-quantized",
            "global_compression_ratio": None,
            "ignore": ignored(model),
            "kv_cache_scheme": None,
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
        },
    }


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", "utf-8")


def export(model, directory):
    """Weights, index and configs. The tokenizer and the chat template must be there already."""
    directory = Path(directory)
    files, weight_map, total = shards(model), {}, 0
    for old in directory.glob("*.safetensors"):
        old.unlink()
    for i, shard in enumerate(files, 1):
        name, tensors = f"model-{i:05d}-of-{len(files):05d}.safetensors", {}
        for item in shard:
            tensors.update(stored(*item))
        save_file(tensors, directory / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, name))
        total += sum(t.numel() * t.element_size() for t in tensors.values())
    write_json(
        directory / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
    )
    config = config_json(model)
    write_json(directory / "config.json", config)
    write_json(
        directory / "generation_config.json",
        {
            "_from_model_config": True,
            "eos_token_id": config["eos_token_id"],
            "pad_token_id": config["pad_token_id"],
            "temperature": 1.0,
            "transformers_version": "4.56.2",
        },
    )
    write_json(directory / "tokenizer_config.json", tok.tokenizer_config())
    return total


def load_exported(directory, device="cpu", dtype=torch.bfloat16):
    """The checkpoint as a TinyGlm whose weights are the dequantised values (quantising them again is exact)."""
    directory = Path(directory)
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors.update(load_file(path))
    config = json.loads((directory / "config.json").read_text())
    model = TinyGlm({k: config[k] for k in TinyGlm().config}, dtype=dtype)
    with torch.no_grad():
        for shard in shards(model):
            for name, target, quantised in shard:
                value = tensors.pop(name).float()
                if quantised:
                    value = value * tensors.pop(name + "_scale").float()
                target.copy_(value)
    assert not tensors, f"tensors without a place: {sorted(tensors)[:5]}"
    model.quant = model.exact = True
    return model.to(device)


def hf_state(model):
    """The unquantised weights under Hugging Face's names (no MTP), for the parity check."""
    skip = f"model.layers.{len(model.layers)}."
    return {
        name: t.detach().float()
        for shard in shards(model)
        for name, t, _ in shard
        if not name.startswith(skip)
    }
