#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/make_shaped_checkpoint.py writes what koho calls good, and fills a rank's part and no more: koho agrees on where that is.
KOHO_BINARY names the program."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "make_shaped_checkpoint.py"
CONFIG = {"hidden_size": 512, "head_dim": 64, "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 1024,
          "num_hidden_layers": 3, "first_k_dense_replace": 1, "intermediate_size": 1024, "moe_intermediate_size": 256,
          "n_routed_experts": 16, "num_experts_per_tok": 4, "max_position_embeddings": 4096, "eos_token_id": [1], "pad_token_id": 1}


def make(folder, *flags):
    config = json.loads((ROOT / "tests" / "data" / "configs" / "glm-4.7-fp8.json").read_text())
    config.update(CONFIG)
    del config["quantization_config"]
    (folder / "wanted.json").write_text(json.dumps(config))
    ran = subprocess.run([sys.executable, TOOL, "--config", folder / "wanted.json", "--out", folder / "model", *flags],
                         capture_output=True, text=True, check=False)
    return ran, folder / "model"


def koho(*arguments):
    ran = subprocess.run([os.environ["KOHO_BINARY"], *arguments], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout, ran.stderr


def zeros(path):
    """The bytes of a file's tensors that are zeros."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    return data[start:].count(0), len(data) - start


class ShapedCheckpoint(unittest.TestCase):
    def test_a_whole_one_is_good_and_has_no_zeros(self):
        with tempfile.TemporaryDirectory() as name:
            ran, model = make(pathlib.Path(name), "--workers", "2")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            code, out, err = koho("check", model, "--values", "--json")
            self.assertEqual(code, 0, err)
            self.assertTrue(json.loads(out)["mtp"])
            self.assertEqual(sum(zeros(path)[0] for path in model.glob("*.safetensors")), 0)

    def test_a_ranks_part_is_as_large_as_koho_says(self):
        for experts in ("whole", "sliced"):
            with self.subTest(experts), tempfile.TemporaryDirectory() as name:
                ran, model = make(pathlib.Path(name), "--workers", "2", "--ranks", "4", "--fill", "3", "--experts", experts)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                code, out, err = koho("check", model, "--ranks", "4", "--rank", "3", "--experts", experts, "--json")
                self.assertEqual(code, 0, err)
                [rank] = json.loads(out)["ranks"]
                empty, everything = (sum(counts) for counts in zip(*(zeros(path) for path in model.glob("*.safetensors"))))
                filled = everything - empty
                # Rows of a down or o projection that are shorter than a page are filled whole.
                config = json.loads((model / "config.json").read_text())
                hidden, layers = config["hidden_size"], config["num_hidden_layers"]
                whole = layers * hidden * config["num_attention_heads"] * config["head_dim"]
                whole += hidden * config["intermediate_size"] + (layers - 1) * hidden * config["moe_intermediate_size"]
                if experts == "sliced":
                    whole += (layers - 1) * config["n_routed_experts"] * hidden * config["moe_intermediate_size"]
                self.assertEqual(filled, rank["weight_bytes"] + whole * 3 // 4)

    def test_a_broken_part_is_found_by_its_rank_alone(self):
        with tempfile.TemporaryDirectory() as name:
            ran, model = make(pathlib.Path(name), "--workers", "2")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            index = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
            tensor = "model.layers.1.mlp.experts.13.up_proj.weight"  # of rank 3 of 4
            path = model / index[tensor]
            data = bytearray(path.read_bytes())
            start = 8 + int.from_bytes(data[:8], "little")
            data[start + json.loads(data[8:start])[tensor]["data_offsets"][0] + 700] = 0x7F  # NaN in E4M3
            path.write_bytes(data)
            for rank in range(4):
                code, _, err = koho("check", model, "--ranks", "4", "--rank", str(rank), "--values")
                self.assertEqual(code == 0, rank != 3, err)
                if rank == 3:
                    self.assertIn(tensor, err)
                    self.assertIn("at element 700", err)

    def test_a_cut_that_is_none_is_refused(self):
        with tempfile.TemporaryDirectory() as name:
            for flags, said in ((("--ranks", "3", "--fill", "1"), "do not divide"), (("--ranks", "2", "--fill", "2"), "outside 0..1")):
                ran, _ = make(pathlib.Path(name), *flags)
                self.assertNotEqual(ran.returncode, 0)
                self.assertIn(said, ran.stderr)


if __name__ == "__main__":
    unittest.main()
