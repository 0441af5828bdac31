#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a valid checkpoint of a config's shape, FP8 per channel, to time its loading: all names, dtypes and shapes, the index,
the MTP layer. Every byte that is filled is between 0x30 and 0x3F, a small positive number in E4M3, BF16 and F32 alike; files
are sparse, and with --fill only those bytes are filled that the named ranks of --ranks hold: the rest takes no space and reads
as zeros. Standard library only.

    tools/make_shaped_checkpoint.py --config config.json --layers 8 --out /dev/shm/model
    koho bench latency --model /dev/shm/model --device cuda --batch 1 --prefill 0 --no-classes
    tools/make_shaped_checkpoint.py --config config.json --ranks 8 --fill 3 --out /dev/shm/model   355 GB that take 45
    tools/make_shaped_checkpoint.py --held /dev/shm/model      the bytes that the files take: unchanged, if a load read its part only
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import struct
import sys

SIZES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
PAGE = 4096
BLOCK = bytes((0x30 + (7 * i ^ i >> 3) % 16) for i in range(1 << 20)) * 8


class Tensor:
    """`cut` is what ranks divide: "rows", "columns", nothing of it ("whole"); "none": no rank has it. `expert` is the number of
    a routed expert and how many there are."""

    def __init__(self, name, dtype, shape, cut="whole", expert=None):
        self.name, self.dtype, self.shape, self.cut, self.expert = name, dtype, shape, cut, expert

    @property
    def bytes(self):
        size = SIZES[self.dtype]
        for n in self.shape:
            size *= n
        return size

    def parts(self, ranks, rank, sliced):
        """The byte ranges (begin, end) of the tensor that a rank holds, as sharding.h cuts it."""
        cut = self.cut
        if self.expert is not None and not sliced:
            expert, experts = self.expert
            cut = "whole" if expert // (experts // ranks) == rank else "none"
        if cut == "none":
            return
        if cut == "whole" or ranks == 1:
            yield 0, self.bytes
            return
        row = self.bytes // self.shape[0]
        if cut == "rows":
            count = self.shape[0] // ranks
            yield rank * count * row, (rank + 1) * count * row
            return
        width = row // ranks  # columns
        if row <= PAGE:  # every page has a part of it
            yield 0, self.bytes
            return
        for begin in range(rank * width, self.bytes, row):
            yield begin, begin + width


def tensors(config, layers, mtp):
    """Yields lists of tensors, one list a file: embedding and head, then a layer each."""
    hidden, width = config["hidden_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    vocabulary = config["vocab_size"]

    def linear(name, rows, columns, cut, bias=False, expert=None):
        yield Tensor(name + ".weight", "F8_E4M3", [rows, columns], cut, expert)
        yield Tensor(name + ".weight_scale", "F32", [rows, 1], "rows" if cut == "rows" else "whole", expert)
        if bias:
            yield Tensor(name + ".bias", "BF16", [rows], "rows")

    def mlp(name, ffn, expert=None):
        yield from linear(name + ".gate_proj", ffn, hidden, "rows", expert=expert)
        yield from linear(name + ".up_proj", ffn, hidden, "rows", expert=expert)
        yield from linear(name + ".down_proj", hidden, ffn, "columns", expert=expert)

    def layer(i):
        at = f"model.layers.{i}."
        yield Tensor(at + "input_layernorm.weight", "BF16", [hidden])
        yield Tensor(at + "post_attention_layernorm.weight", "BF16", [hidden])
        bias = config["attention_bias"]
        yield from linear(at + "self_attn.q_proj", query, hidden, "rows", bias)
        yield from linear(at + "self_attn.k_proj", key, hidden, "rows", bias)
        yield from linear(at + "self_attn.v_proj", key, hidden, "rows", bias)
        yield from linear(at + "self_attn.o_proj", hidden, query, "columns")
        if config["use_qk_norm"]:
            yield Tensor(at + "self_attn.q_norm.weight", "BF16", [width])
            yield Tensor(at + "self_attn.k_norm.weight", "BF16", [width])
        if i < config["first_k_dense_replace"]:
            yield from mlp(at + "mlp", config["intermediate_size"])
            return
        experts, ffn = config["n_routed_experts"], config["moe_intermediate_size"]
        yield Tensor(at + "mlp.gate.weight", "BF16", [experts, hidden])
        yield Tensor(at + "mlp.gate.e_score_correction_bias", "F32", [experts])
        for expert in range(experts):
            yield from mlp(f"{at}mlp.experts.{expert}", ffn, expert=(expert, experts))
        yield from mlp(at + "mlp.shared_experts", ffn * config["n_shared_experts"])

    yield [Tensor("model.embed_tokens.weight", "BF16", [vocabulary, hidden]),
           Tensor("lm_head.weight", "BF16", [vocabulary, hidden], "rows"), Tensor("model.norm.weight", "BF16", [hidden])]
    for i in range(layers):
        yield list(layer(i))
    if mtp:  # koho loads no part of it, so no rank's bytes are here
        at = f"model.layers.{layers}."
        rows = [Tensor(at + name, "BF16", [hidden]) for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")]
        rows.append(Tensor(at + "eh_proj.weight", "BF16", [hidden, 2 * hidden]))
        rows += [Tensor(at + name, "BF16", [vocabulary, hidden]) for name in ("embed_tokens.weight", "shared_head.head.weight")]
        rows += layer(layers)
        for tensor in rows:
            tensor.cut, tensor.expert = "none", None
        yield rows


def fill(file, begin, end):
    while begin < end:
        begin += os.pwrite(file, BLOCK[begin % (1 << 20):][:end - begin], begin)


def write(path, rows, ranks, filled, sliced):
    """One file; `filled` are the ranks whose parts are written, None for everything."""
    header, offset = {}, 0
    for tensor in rows:
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, offset + tensor.bytes]}
        offset += tensor.bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # data on a boundary of 64 bytes
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    try:
        start = 8 + len(text)
        os.truncate(file, start + offset)
        os.pwrite(file, struct.pack("<Q", len(text)) + text, 0)
        if filled is None:
            fill(file, start, start + offset)
        for tensor in rows if filled is not None else []:
            at = start + header[tensor.name]["data_offsets"][0]
            ranges = sorted({part for rank in filled for part in tensor.parts(ranks, rank, sliced)})
            for begin, end in ranges:
                fill(file, at + begin, at + end)
    finally:
        os.close(file)
    return offset


def held(folder):
    """Bytes that the files of a folder take."""
    return sum(path.stat().st_blocks * 512 for path in pathlib.Path(folder).iterdir() if path.is_file())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=0, help="of the config's; then without the MTP layer")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--fill", metavar="RANK,…", help="fill only what these ranks hold, or \"none\"; everything if left out")
    parser.add_argument("--experts", choices=["whole", "sliced"], default="whole")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="files at once")
    parser.add_argument("--held", type=pathlib.Path, metavar="DIR", help="print the bytes that a folder's files take, and no more")
    options = parser.parse_args()
    if options.held:
        return options
    if not options.config or not options.out:
        parser.error("--config and --out are needed")
    if options.fill is not None:
        options.fill = [] if options.fill == "none" else sorted({int(rank) for rank in options.fill.split(",")})
    if any(not 0 <= rank < options.ranks for rank in options.fill or []):
        parser.error(f"--fill names a rank outside 0..{options.ranks - 1}")
    return options


def check_divides(config, options):
    """The numbers that ranks divide; a cut that koho refuses is none to fill."""
    names = ["num_attention_heads", "num_key_value_heads", "vocab_size", "intermediate_size",
             "moe_intermediate_size" if options.experts == "sliced" else "n_routed_experts"]
    for name in names:
        if config[name] % options.ranks:
            sys.exit(f"{options.ranks} ranks do not divide {name}, {config[name]}")


def main():
    options = arguments()
    if options.held:
        print(held(options.held))
        return
    config = json.loads(options.config.read_text())
    layers = options.layers or config["num_hidden_layers"]
    mtp = layers == config["num_hidden_layers"] and config.get("num_nextn_predict_layers", 0) > 0
    config["num_hidden_layers"], config["num_nextn_predict_layers"] = layers, int(mtp)
    config["first_k_dense_replace"] = min(config["first_k_dense_replace"], layers)
    check_divides(config, options)
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "ignore": ["lm_head", f"model.layers.{layers}.eh_proj", f"model.layers.{layers}.shared_head.head"]
        + [f"model.layers.{i}.mlp.gate" for i in range(layers + 1)],
        "config_groups": {"group_0": {
            "targets": ["Linear"], "output_activations": None,
            "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token",
                                  "dynamic": True}}}}
    options.out.mkdir(parents=True, exist_ok=True)
    files = list(tensors(config, layers, mtp))
    names = [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    with concurrent.futures.ProcessPoolExecutor(options.workers) as pool:
        jobs = [pool.submit(write, options.out / name, rows, options.ranks, options.fill, options.experts == "sliced")
                for name, rows in zip(names, files)]
        total = sum(job.result() for job in jobs)
    index = {tensor.name: name for name, rows in zip(names, files) for tensor in rows}
    (options.out / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    (options.out / "config.json").write_text(json.dumps(config))
    print(f"{total / 1e9:.1f} GB in {len(files)} files, {held(options.out) / 1e9:.1f} GB of them filled")


if __name__ == "__main__":
    main()
