#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a synthetic glm4moe model in Q8_0 for llama.cpp: random weights of the shape that
docs/performance.md measures koho on. Needs PyPI's gguf and numpy.

    make_gguf.py OUT.gguf
"""
import sys

import gguf
import numpy as np

HIDDEN, LAYERS, DENSE_LAYERS, DENSE_FFN = 2048, 14, 1, 6144
QUERY_HEADS, KV_HEADS, HEAD = 16, 4, 128
EXPERTS, CHOSEN, FFN, SHARED = 32, 4, 704, 1
VOCABULARY = 8192
CONTEXT = 131072


def q8_0(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Random Q8_0 blocks of a weight [..., rows, columns]: a half-precision scale, then 32 integers."""
    *rest, columns = shape
    blocks = columns // 32
    data = generator.integers(0, 256, size=(*rest, blocks, 34), dtype=np.uint8)
    scale = np.float16(1.0 / (74.0 * np.sqrt(columns)))
    data[..., :2] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
    return data.reshape(*rest, blocks * 34)


def write(path: str) -> None:
    generator = np.random.default_rng(7)
    out = gguf.GGUFWriter(path, "glm4moe")
    out.add_block_count(LAYERS)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(HIDDEN)
    out.add_feed_forward_length(DENSE_FFN)
    out.add_head_count(QUERY_HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_key_length(HEAD)
    out.add_value_length(HEAD)
    out.add_rope_dimension_count(HEAD // 2)
    out.add_rope_freq_base(1e6)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_expert_count(EXPERTS)
    out.add_expert_used_count(CHOSEN)
    out.add_expert_feed_forward_length(FFN)
    out.add_expert_shared_count(SHARED)
    out.add_leading_dense_block_count(DENSE_LAYERS)
    out.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    out.add_expert_weights_scale(2.5)
    out.add_expert_weights_norm(True)
    out.add_vocab_size(VOCABULARY)
    out.add_tokenizer_model("none")

    def matrix(name: str, *shape: int) -> None:
        out.add_tensor(f"{name}.weight", q8_0(generator, *shape),
                       raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    def vector(name: str, size: int, value: float = 1.0) -> None:
        out.add_tensor(name, np.full(size, value, dtype=np.float32))

    matrix("token_embd", VOCABULARY, HIDDEN)
    matrix("output", VOCABULARY, HIDDEN)
    vector("output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        vector(f"{at}.attn_norm.weight", HIDDEN)
        vector(f"{at}.post_attention_norm.weight", HIDDEN)
        vector(f"{at}.attn_q_norm.weight", HEAD)
        vector(f"{at}.attn_k_norm.weight", HEAD)
        for name, heads in (("q", QUERY_HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            matrix(f"{at}.attn_{name}", heads * HEAD, HIDDEN)
            vector(f"{at}.attn_{name}.bias", heads * HEAD, 0.0)
        matrix(f"{at}.attn_output", HIDDEN, QUERY_HEADS * HEAD)
        if layer < DENSE_LAYERS:
            matrix(f"{at}.ffn_gate", DENSE_FFN, HIDDEN)
            matrix(f"{at}.ffn_up", DENSE_FFN, HIDDEN)
            matrix(f"{at}.ffn_down", HIDDEN, DENSE_FFN)
            continue
        out.add_tensor(f"{at}.ffn_gate_inp.weight",
                       generator.standard_normal((EXPERTS, HIDDEN), dtype=np.float32) * 0.02)
        vector(f"{at}.exp_probs_b.bias", EXPERTS, 0.0)
        matrix(f"{at}.ffn_gate_exps", EXPERTS, FFN, HIDDEN)
        matrix(f"{at}.ffn_up_exps", EXPERTS, FFN, HIDDEN)
        matrix(f"{at}.ffn_down_exps", EXPERTS, HIDDEN, FFN)
        matrix(f"{at}.ffn_gate_shexp", SHARED * FFN, HIDDEN)
        matrix(f"{at}.ffn_up_shexp", SHARED * FFN, HIDDEN)
        matrix(f"{at}.ffn_down_shexp", HIDDEN, SHARED * FFN)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(sys.argv[1])
