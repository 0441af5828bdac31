#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint of a config's shape, FP8 per channel, to time its loading: every byte is between 0x30 and
0x3F, which is a small positive number in E4M3, BF16 and F32 alike. Standard library only.

    tools/make_shaped_checkpoint.py --config config.json --layers 8 --out /dev/shm/model
    koho bench latency --model /dev/shm/model --device cuda --batch 1 --prefill 0 --no-classes
"""
import argparse
import concurrent.futures
import json
import os
import random
import struct

SIZES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}


def tensors(config, layers):
    """Yields lists of (name, dtype, shape), one list a file."""
    hidden, width = config["hidden_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * width, config["num_key_value_heads"] * width

    def linear(name, rows, columns, bias=False):
        yield name + ".weight", "F8_E4M3", [rows, columns]
        yield name + ".weight_scale", "F32", [rows, 1]
        if bias:
            yield name + ".bias", "BF16", [rows]

    def mlp(name, ffn):
        yield from linear(name + ".gate_proj", ffn, hidden)
        yield from linear(name + ".up_proj", ffn, hidden)
        yield from linear(name + ".down_proj", hidden, ffn)

    def layer(i):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", "BF16", [hidden]
        yield at + "post_attention_layernorm.weight", "BF16", [hidden]
        bias = config["attention_bias"]
        yield from linear(at + "self_attn.q_proj", query, hidden, bias)
        yield from linear(at + "self_attn.k_proj", key, hidden, bias)
        yield from linear(at + "self_attn.v_proj", key, hidden, bias)
        yield from linear(at + "self_attn.o_proj", hidden, query)
        if config["use_qk_norm"]:
            yield at + "self_attn.q_norm.weight", "BF16", [width]
            yield at + "self_attn.k_norm.weight", "BF16", [width]
        if i < config["first_k_dense_replace"]:
            yield from mlp(at + "mlp", config["intermediate_size"])
            return
        experts, ffn = config["n_routed_experts"], config["moe_intermediate_size"]
        yield at + "mlp.gate.weight", "BF16", [experts, hidden]
        yield at + "mlp.gate.e_score_correction_bias", "F32", [experts]
        for expert in range(experts):
            yield from mlp(f"{at}mlp.experts.{expert}", ffn)
        yield from mlp(at + "mlp.shared_experts", ffn * config["n_shared_experts"])

    vocabulary = config["vocab_size"]
    yield [("model.embed_tokens.weight", "BF16", [vocabulary, hidden]),
           ("lm_head.weight", "BF16", [vocabulary, hidden]),
           ("model.norm.weight", "BF16", [hidden])]
    for i in range(layers):
        yield list(layer(i))


def write(path, rows):
    header, offset = {}, 0
    for name, dtype, shape in rows:
        size = SIZES[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # data on a boundary of 64 bytes
    block = bytes(random.Random(path).choices(range(0x30, 0x40), k=1 << 20)) * 64
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for begin in range(0, offset, len(block)):
            file.write(block[:min(len(block), offset - begin)])
    return offset


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    with open(options.config) as file:
        config = json.load(file)
    layers = config["num_hidden_layers"] = options.layers or config["num_hidden_layers"]
    config["num_nextn_predict_layers"] = 0
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
        "kv_cache_scheme": None, "ignore": ["lm_head"] + [f"model.layers.{i}.mlp.gate" for i in range(layers)],
        "config_groups": {"group_0": {
            "targets": ["Linear"], "output_activations": None,
            "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token",
                                  "dynamic": True}}}}
    os.makedirs(options.out, exist_ok=True)
    files = list(tensors(config, layers))
    names = [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    with concurrent.futures.ProcessPoolExecutor() as pool:
        total = sum(pool.map(write, [os.path.join(options.out, name) for name in names], files))
    index = {row[0]: name for name, rows in zip(names, files) for row in rows}
    with open(os.path.join(options.out, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": index}, file)
    with open(os.path.join(options.out, "config.json"), "w") as file:
        json.dump(config, file)
    print(f"{total / 1e9:.1f} GB in {len(files)} files")


if __name__ == "__main__":
    main()
