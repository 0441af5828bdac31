#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a tokenizer.json from the vocabulary of a GGUF file (byte-level BPE): real vocabularies of 150,000 tokens for benchmarks and
the differential fuzz, without a checkpoint. PyPI's source distribution of llama-cpp-python holds such files:

    pip download --no-binary :all: --no-deps llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz
    tools/gguf_tokenizer.py llama_cpp_python-*/vendor/llama.cpp/models/ggml-vocab-qwen2.gguf qwen2.json

The tags of GLM's tool calls take the ids of the last padding tokens, so that tool calls can be constrained.
"""

import argparse
import json
import pathlib
import struct

TAGS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
NORMAL = 1  # token_type
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 4

    def scalar(self, kind):
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def value(self, kind):
        if kind == STRING:
            size = self.scalar("Q")
            self.at += size
            return self.data[self.at - size:self.at].decode()
        if kind == ARRAY:
            of, count = self.scalar("I"), self.scalar("Q")
            return [self.value(of) for _ in range(count)]
        return self.scalar(SCALARS[kind])


def read_metadata(path):
    data = path.read_bytes()
    if data[:4] != b"GGUF":
        raise SystemExit(f"{path} is no GGUF file")
    reader = Reader(data)
    reader.scalar("I")  # version
    reader.scalar("Q")  # tensors
    return {reader.value(STRING): reader.value(reader.scalar("I")) for _ in range(reader.scalar("Q"))}


def tokenizer_json(metadata):
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    if metadata["tokenizer.ggml.model"] != "gpt2":
        raise SystemExit("the vocabulary is no byte-level BPE")
    tokens = list(tokens)
    if not set(TAGS) <= set(tokens):
        tokens[-len(TAGS):] = TAGS
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": token not in TAGS}
                         for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != NORMAL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}, level]},
        "post_processor": level, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == NORMAL},
                  "merges": metadata["tokenizer.ggml.merges"]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("tokenizer_json", type=pathlib.Path)
    options = parser.parse_args()
    made = tokenizer_json(read_metadata(options.gguf))
    options.tokenizer_json.write_text(json.dumps(made, ensure_ascii=False))
    print(f"{options.tokenizer_json}: {len(made['model']['vocab']):,} tokens and {len(made['added_tokens'])} added ones")


if __name__ == "__main__":
    main()
