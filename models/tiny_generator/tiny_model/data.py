# SPDX-License-Identifier: Apache-2.0
"""Turns documents into training batches: token rows [B, T] and a loss weight for every token.

Rows hold whole documents, the last one cut at the row's end. What the model must produce weighs 1;
what it only reads (users, systems, tools, tool results) weighs a little.
"""

import random

import numpy as np
import torch
from torch.utils.data import IterableDataset

from . import chat

READ_WEIGHT = 0.08


class Batches(IterableDataset):
    """An endless stream of (tokens, weights), different in every worker."""

    def __init__(self, tokenizer, rows, length, seed, long):
        self.tokenizer, self.rows, self.length, self.seed, self.long = tokenizer, rows, length, seed, long
        ids = {
            t: tokenizer.token_to_id(t)
            for t in (
                "[gMASK]",
                "<|assistant|>",
                "<|user|>",
                "<|observation|>",
                "<|system|>",
                "<|endoftext|>",
            )
        }
        self.ids = ids
        self.roles = np.array(sorted(ids.values()))

    def weights(self, tokens):
        """Weight of predicting each token of one document."""
        marks = np.flatnonzero(np.isin(tokens, self.roles))
        assistant = self.ids["<|assistant|>"]
        if not (tokens == assistant).any():
            w = np.ones(len(tokens), np.float32)
            w[0] = 0.0
            return w
        w = np.full(len(tokens), READ_WEIGHT, np.float32)
        w[0] = 0.0
        for i, m in enumerate(marks):
            if tokens[m] == assistant:
                end = marks[i + 1] if i + 1 < len(marks) else len(tokens) - 1
                w[m + 2 : end + 1] = 1.0
        return w

    def documents(self, rng):
        while True:
            texts = [chat.document(rng, "train", self.long) for _ in range(256)]
            for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=False):
                tokens = np.array(encoding.ids, np.int64)
                yield tokens, self.weights(tokens)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rng = random.Random(self.seed * 1000 + (info.id if info else 0))
        source, pool = self.documents(rng), []
        while True:
            tokens = np.zeros((self.rows, self.length), np.int64)
            weights = np.zeros((self.rows, self.length), np.float32)
            for row in range(self.rows):
                at = 0
                while at < self.length:
                    while len(pool) < 48:
                        pool.append(next(source))
                    room = self.length - at
                    pick = next((i for i in range(len(pool)) if len(pool[i][0]) <= room), 0)
                    ids, w = pool.pop(pick)
                    n = min(len(ids), room)
                    tokens[row, at : at + n], weights[row, at : at + n] = ids[:n], w[:n]
                    at += n
            yield torch.from_numpy(tokens), torch.from_numpy(weights)
