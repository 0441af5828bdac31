# SPDX-License-Identifier: Apache-2.0
"""The logits of each step through python/koho; test_koho.py runs these tests."""

import array
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from koho import Engine, SamplingParams

MODEL = pathlib.Path(__file__).resolve().parent.parent.parent / "models" / "tiny"
PROMPTS = [[300 + 37 * which + 11 * i for i in range(12)] for which in range(6)]
PLAIN = SamplingParams(max_tokens=9, ignore_eos=True)


@unittest.skipIf(int(os.environ.get("KOHO_TEST_GPUS", "0")), "engine_test.c has those of GPUs")
class Logits(unittest.TestCase):
    """Of a CPU, whose bits do not depend on the batch."""

    def test_logits_are_those_of_koho_logits_bit_by_bit(self):
        asked = SamplingParams(max_tokens=9, ignore_eos=True, temperature=1.0, presence_penalty=1.5, seed=4, logits=True)
        for flags, options in (((), {}),
                               (("--ranks", "2"), {"num_ranks": 2, "executor": "thread"}),
                               (("--ranks", "4", "--experts", "sliced"),
                                {"num_ranks": 4, "slice_experts": 1, "executor": "process"})):
            with self.subTest(options), Engine(MODEL, max_batch=8, max_seq=64, **options) as engine:
                answers = engine.batch(PROMPTS, [PLAIN, asked, PLAIN, asked, asked, PLAIN])
                self.assertEqual([answer.logits is None for answer in answers], [True, False, True, False, False, True])
                for which in (1, 3, 4):
                    prompt, answer = PROMPTS[which], answers[which]
                    expected = self.logits_of(prompt + answer.token_ids[:-1], *flags)[len(prompt) - 1:]
                    self.assertTrue(answer.logits == expected, f"prompt {which}")

    def test_logits_come_from_the_rank_that_has_the_request(self):
        asked = SamplingParams(max_tokens=9, ignore_eos=True, logits=True)
        with Engine(MODEL, max_batch=8, max_seq=64, num_ranks=2, dp_attention=1, executor="process") as engine:
            answers = engine.batch(PROMPTS, asked)
            for answer in answers:
                self.assertEqual([max(range(len(logits)), key=logits.__getitem__) for logits in answer.logits],
                                 answer.token_ids)
            with engine.prefill(PROMPTS[1], asked) as state:
                self.assertTrue(state.logits == answers[1].logits[0])
                for token, logits in zip(answers[1].token_ids, answers[1].logits):
                    self.assertEqual(state.step(), token)
                    self.assertTrue(state.logits == logits)
            with engine.prefill(PROMPTS[0], PLAIN) as state:
                self.assertIsNone(state.logits)

    def logits_of(self, token_ids, *flags):
        """The rows that `koho logits` writes."""
        with tempfile.TemporaryDirectory() as folder:
            ids, out = pathlib.Path(folder, "ids.json"), pathlib.Path(folder, "logits.npy")
            ids.write_text(json.dumps(token_ids))
            subprocess.run([os.environ["KOHO_BINARY"], "logits", "--model", MODEL, "--ids", ids, "--out", out, *flags],
                           check=True, timeout=300)
            values = array.array("f", out.read_bytes()[128:])
        width = len(values) // len(token_ids)
        return [values[row * width:(row + 1) * width] for row in range(len(token_ids))]
