# SPDX-License-Identifier: Apache-2.0
"""The counter-based generator of random glm4_moe checkpoints, and their files.

Element i of tensor `name` under `seed` is a pure function of (seed, name, i) in 64-bit integer arithmetic, so the same
checkpoint comes out of any machine. tests/support/random_checkpoint.cpp is this file's reference in C++: byte-equal files,
held by tests/golden. Needs numpy only. Refuses nothing: a spec (tests/golden/checkpoints.json) is taken as it is.
"""
import json
import math
import pathlib
import zlib

import numpy as np

GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
BLOCK = 128  # rows and columns that share a scale in block FP8

# ---------------------------------------------------------------------------------------------------- draws


def fnv1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def mix(z: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def draw(seed: int, name: str, count: int) -> np.ndarray:
    """`count` 64-bit integers."""
    with np.errstate(over="ignore"):
        key = mix(np.array([(seed + fnv1a(name)) & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))
        return mix(key + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN_RATIO)


def bell(bits: np.ndarray) -> np.ndarray:
    """Sum of the four 16-bit fields, centred: int64 within ±131070, standard deviation 37837 = 1.155 * 2^15."""
    low = np.uint64(0xFFFF)
    fields = sum(((bits >> np.uint64(shift)) & low).astype(np.int64) for shift in (0, 16, 32, 48))
    return fields - 131070


def inverse_root(width: int) -> int:
    """floor(256 / sqrt(width))."""
    return math.isqrt(65536 // width)


# ---------------------------------------------------------------------------------------------------- number formats


def scaled(integers: np.ndarray, exponent: int) -> np.ndarray:
    """integers * 2^exponent as f32: one rounding (to nearest even), then an exact scaling."""
    return np.ldexp(integers.astype(np.float32), exponent).astype(np.float32)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """f32 to the bits of bf16, to nearest even; finite values only."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """f32 to bytes of E4M3, to nearest even, saturating; finite values only."""
    bits = values.astype(np.float32).view(np.uint32)
    sign = ((bits >> np.uint32(24)) & np.uint32(0x80)).astype(np.uint8)
    absolute = bits & np.uint32(0x7FFFFFFF)
    magnitude = absolute.view(np.float32)
    normal = ((absolute + np.uint32(0x7FFFF) + ((absolute >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)).astype(
        np.int64) - (120 << 3)
    denormal = np.rint(np.ldexp(np.minimum(magnitude, np.float32(1)), 9)).astype(np.int64)
    code = np.where(magnitude < 2.0**-6, denormal, normal)
    code = np.where(magnitude >= 448, 0x7E, code)
    return code.astype(np.uint8) | sign


# ---------------------------------------------------------------------------------------------------- tensors

# Gains of the weights, in eighths of 1/sqrt(fan-in), by the last part of the module's name: every block moves the
# residual stream, attention prefers some tokens, router scores spread over (0, 1).
GAINS = {"lm_head": 16, "gate": 12, "q_proj": 5, "k_proj": 5, "o_proj": 8, "down_proj": 8}
SCALE_EXPONENTS = (1, 1, 0, 2)  # powers of two by which the scales of channels differ, at random


def gain_of(spec: dict, module: str) -> int:
    part = module.rsplit(".", 1)[-1]
    return spec["gains"].get(part, GAINS.get(part, 10))


def scheme_of(spec: dict, module: str) -> str:
    """The first rule whose text occurs in the module's name decides; without one a linear stays bf16."""
    for text, scheme in spec["schemes"]:
        if text in module:
            return scheme
    return "bf16"


class Tensors:
    """The tensors of one checkpoint in file order: (name, dtype, shape, bytes)."""

    def __init__(self, spec: dict):
        self.spec = spec
        self.seed = spec["seed"]
        self.list: list[tuple[str, str, list[int], bytes]] = []

    def bits(self, name: str, shape: list[int]) -> np.ndarray:
        return draw(self.seed, name, math.prod(shape))

    def add_f32(self, name: str, shape: list[int], values: np.ndarray):
        self.list.append((name, "F32", shape, values.astype("<f4").tobytes()))

    def add_bf16(self, name: str, shape: list[int], values: np.ndarray):
        self.list.append((name, "BF16", shape, to_bf16(values).astype("<u2").tobytes()))

    def norm(self, name: str, width: int):
        """Around 1, from 0 to 2; every 31st channel of the hidden state four times that."""
        integers = bell(self.bits(name, [width])) + (1 << 17)
        if width == self.spec["hidden_size"]:
            integers[7::31] *= 4
        self.add_bf16(name, [width], scaled(integers, -17))

    def bias(self, name: str, width: int):
        self.add_bf16(name, [width], scaled(bell(self.bits(name, [width])), -16))

    def embedding(self, name: str, rows: int, width: int):
        """Standard deviation about 1; every 29th channel six times that."""
        integers = bell(self.bits(name, [rows, width])).reshape(rows, width)
        integers[:, 5::29] *= 6
        self.add_bf16(name, [rows, width], scaled(integers.ravel(), -15))

    def correction_bias(self, name: str, experts: int):
        integers = bell(self.bits(name, [experts])) + self.spec["correction_bias_shift"] * (1 << 18)
        self.add_f32(name, [experts], scaled(integers, -18))

    def plain(self, module: str, rows: int, columns: int):
        """An unquantised matrix, standard deviation about gain / sqrt(columns)."""
        name = module + ".weight"
        integers = bell(self.bits(name, [rows, columns])) * (inverse_root(columns) * gain_of(self.spec, module))
        self.add_bf16(name, [rows, columns], scaled(integers, -26))

    def linear(self, module: str, rows: int, columns: int):
        scheme = scheme_of(self.spec, module)
        if scheme == "bf16":
            self.plain(module, rows, columns)
            return
        # FP8 values have standard deviation 129 and reach ±448; scales bring the matrix to that of `plain`.
        name = module + ".weight"
        quantized = to_e4m3(scaled(bell(self.bits(name, [rows, columns])) * 7, -11))
        self.list.append((name, "F8_E4M3", [rows, columns], quantized.tobytes()))
        kind, dtype, form = scheme.split("_")
        blocks = [(rows + BLOCK - 1) // BLOCK, (columns + BLOCK - 1) // BLOCK]
        shape = {"n1": [rows, 1], "n": [rows], "scalar": [], "one": [1], "block": blocks, "inv": blocks}[form]
        name = module + (".weight_scale_inv" if form == "inv" else ".weight_scale")
        bits = self.bits(name, shape)
        fraction = (bits & np.uint64(0xFFFF)).astype(np.int64) + (1 << 15)
        doubling = np.array(SCALE_EXPONENTS)[((bits >> np.uint64(16)) & np.uint64(3)).astype(np.int64)]
        integers = (fraction << doubling) * (inverse_root(columns) * gain_of(self.spec, module))
        add = self.add_bf16 if dtype == "bf16" else self.add_f32
        add(name, shape, scaled(integers, -35))


def mlp(tensors: Tensors, prefix: str, hidden: int, width: int):
    tensors.linear(prefix + ".gate_proj", width, hidden)
    tensors.linear(prefix + ".up_proj", width, hidden)
    tensors.linear(prefix + ".down_proj", hidden, width)


def decoder_layer(tensors: Tensors, spec: dict, index: int, dense: bool):
    prefix = f"model.layers.{index}"
    hidden, head = spec["hidden_size"], spec["head_dim"]
    query, key = spec["num_attention_heads"] * head, spec["num_key_value_heads"] * head
    tensors.norm(prefix + ".input_layernorm.weight", hidden)
    for projection, rows in (("q_proj", query), ("k_proj", key), ("v_proj", key)):
        tensors.linear(f"{prefix}.self_attn.{projection}", rows, hidden)
        if spec["attention_bias"]:
            tensors.bias(f"{prefix}.self_attn.{projection}.bias", rows)
    if spec["use_qk_norm"]:
        tensors.norm(prefix + ".self_attn.q_norm.weight", head)
        tensors.norm(prefix + ".self_attn.k_norm.weight", head)
    tensors.linear(prefix + ".self_attn.o_proj", hidden, query)
    tensors.norm(prefix + ".post_attention_layernorm.weight", hidden)
    if dense:
        mlp(tensors, prefix + ".mlp", hidden, spec["intermediate_size"])
        return
    tensors.plain(prefix + ".mlp.gate", spec["n_routed_experts"], hidden)
    tensors.correction_bias(prefix + ".mlp.gate.e_score_correction_bias", spec["n_routed_experts"])
    width = spec["moe_intermediate_size"]
    for expert in range(spec["n_routed_experts"]):
        mlp(tensors, f"{prefix}.mlp.experts.{expert}", hidden, width)
    mlp(tensors, prefix + ".mlp.shared_experts", hidden, width * spec["n_shared_experts"])


def make_tensors(spec: dict) -> list[tuple[str, str, list[int], bytes]]:
    tensors = Tensors(spec)
    hidden, vocabulary, layers = spec["hidden_size"], spec["vocab_size"], spec["num_hidden_layers"]
    tensors.embedding("model.embed_tokens.weight", vocabulary, hidden)
    for index in range(layers):
        decoder_layer(tensors, spec, index, index < spec["first_k_dense_replace"])
    tensors.norm("model.norm.weight", hidden)
    tensors.plain("lm_head", vocabulary, hidden)
    if spec["num_nextn_predict_layers"]:
        prefix = f"model.layers.{layers}"
        tensors.norm(prefix + ".enorm.weight", hidden)
        tensors.norm(prefix + ".hnorm.weight", hidden)
        tensors.plain(prefix + ".eh_proj", hidden, 2 * hidden)
        if spec["mtp_embeddings"]:
            tensors.embedding(prefix + ".embed_tokens.weight", vocabulary, hidden)
            tensors.plain(prefix + ".shared_head.head", vocabulary, hidden)
        tensors.norm(prefix + ".shared_head.norm.weight", hidden)
        decoder_layer(tensors, spec, layers, False)
    return tensors.list


def prompt_ids(spec: dict) -> list[int]:
    return (draw(spec["seed"], "prompt", spec["prompt_tokens"]) % np.uint64(spec["vocab_size"])).astype(int).tolist()


# ---------------------------------------------------------------------------------------------------- files


def quantization_config(spec: dict) -> dict | None:
    """What a quantiser would have written. Each tensor's own header decides; this is the summary beside it."""
    kind = spec["quantization"]
    if kind == "none":
        return None
    if kind == "fp8":
        return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
    weights = {"dynamic": False, "num_bits": 8, "strategy": kind, "symmetric": True, "type": "float"}
    inputs = {"dynamic": True, "num_bits": 8, "strategy": "token", "symmetric": True, "type": "float"}
    if kind == "block":
        weights["block_structure"] = [128, 128]
        inputs |= {"group_size": 128, "strategy": "group"}
    group = {"input_activations": inputs, "targets": ["Linear"], "weights": weights}
    linears = [name.removesuffix(".weight") for name, dtype, shape, _ in make_tensors(spec)
               if name.endswith(".weight") and dtype == "BF16" and len(shape) == 2]
    return {"config_groups": {"group_0": group}, "format": "float-quantized", "ignore": linears, "kv_cache_scheme": None,
            "quant_method": "compressed-tensors", "quantization_status": "compressed"}


def model_config(spec: dict) -> dict:
    keys = ("attention_bias", "first_k_dense_replace", "head_dim", "hidden_size", "intermediate_size",
            "moe_intermediate_size", "n_group", "n_routed_experts", "n_shared_experts", "norm_topk_prob",
            "num_attention_heads", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads",
            "num_nextn_predict_layers", "routed_scaling_factor", "topk_group", "use_qk_norm", "vocab_size")
    config = {key: spec[key] for key in keys}
    config |= {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_dropout": 0.0,
               "eos_token_id": [1, 3, 5], "pad_token_id": 1, "hidden_act": "silu", "initializer_range": 0.02,
               "max_position_embeddings": 4096, "rms_norm_eps": 0.00001, "tie_word_embeddings": False,
               "use_cache": True}
    theta, partial = spec["rope_theta"], spec["partial_rotary_factor"]
    if spec["config_form"] == "v5":
        config |= {"dtype": "bfloat16", "transformers_version": "5.0.0", "bos_token_id": None,
                   "rope_parameters": {"partial_rotary_factor": partial, "rope_theta": theta, "rope_type": "default"}}
    else:
        config |= {"torch_dtype": "bfloat16", "transformers_version": "4.54.0", "rope_theta": theta,
                   "rope_scaling": None, "partial_rotary_factor": partial}
    if (quantization := quantization_config(spec)) is not None:
        config["quantization_config"] = quantization
    return config


def safetensors_bytes(tensors: list) -> bytes:
    header, offset = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps({"__metadata__": {"format": "pt"}} | header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for *_, data in tensors)


def make_files(spec: dict) -> dict[str, bytes]:
    """Every file of the checkpoint: name to bytes."""
    tensors, shards = make_tensors(spec), spec["shards"]
    files = {"config.json": json.dumps(model_config(spec), sort_keys=True, separators=(",", ":")).encode() + b"\n"}
    if shards == 1:
        files["model.safetensors"] = safetensors_bytes(tensors)
        return files
    weight_map, parts = {}, [[] for _ in range(shards)]
    for index, tensor in enumerate(tensors):
        shard = index * shards // len(tensors)
        parts[shard].append(tensor)
        weight_map[tensor[0]] = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
    for shard, part in enumerate(parts):
        files[f"model-{shard + 1:05}-of-{shards:05}.safetensors"] = safetensors_bytes(part)
    index = {"metadata": {"total_size": sum(len(tensor[3]) for tensor in tensors)}, "weight_map": weight_map}
    files["model.safetensors.index.json"] = json.dumps(index, separators=(",", ":")).encode()
    return files


def write_files(files: dict[str, bytes], directory: pathlib.Path):
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)


def checksums(files: dict[str, bytes]) -> dict[str, list[int]]:
    """Per file: length and CRC-32."""
    return {name: [len(data), zlib.crc32(data)] for name, data in sorted(files.items())}
