#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds results of the benches on one H200 to the goals that koho has there. Standard library only.

    tools/speed_goals.py bench/results/*-h200-*-4afd30f.json     every goal: measured, reached or by how much not

Reads what `koho bench ops`, `gemm_bench`, `koho bench latency`, `koho bench` and the step "loading" of tools/gpu_check.py
record. Of rows that several files have, the last file's count. Exit code 1 if a goal is missed, else 2 if one has no
measurement. docs/kernels/README.md has the newest verdicts as a table (result_tables.py).
"""
import argparse
import collections
import dataclasses
import pathlib
import sys

import result_file

# What a row of `sample` asks for: `kind` in its shape. The first ones have goals.
SAMPLE_KINDS = ["greedy", "temperature", "top-k", "top-p", "penalties", "raising penalties", "min-p", "all of these",
                "top-p and a penalty", "top-p and a mask"]
SAMPLE_GOALS = 6
AIR_LAYERS = 46
US, BANDWIDTH, FLOOR = "us", "pct_of_bandwidth", "pct_of_floor"


class Goal:
    """`member` of the row of `op` in each of `cases` at each of `tokens` is at most, or at least, `bound`. One that lacks is no
    measurement of the whole. `shape` tells apart what a case has several rows of."""

    def __init__(self, name, op, cases, tokens, member, bound, most=True, portable=False, shape=None):
        self.name, self.op, self.cases, self.tokens = name, op, cases, tokens
        self.member, self.bound, self.most, self.portable, self.shape = member, bound, most, portable, shape or {}

    def wanted(self):
        return [(case, tokens) for case in self.cases for tokens in self.tokens]

    def rows(self, rows):
        """{(case, tokens): row}"""
        return {(row.get("case"), row["shape"].get("tokens")): row for row in rows
                if row["op"] == self.op and row["portable"] == self.portable and "form" not in row
                and (row.get("case"), row["shape"].get("tokens")) in self.wanted()
                and all(row["shape"].get(key) == value for key, value in self.shape.items())
                and row.get(self.member) is not None}


FEW = (1, 8, 16, 32, 64)
PROMPTS = "linear, prompts, from rest"
LINEAR = [f"linear_{layer}_{ranks}" for ranks in ("tp1", "tp4", "tp8") for layer in ("qkv", "o", "dense")]


def goals():
    whole = ("experts_ep4", "experts_ep8", "experts_tp1", "experts_air")
    every = [Goal("linear 3584x5120, 1 and 8 tokens", "linear", ("linear_qkv_tp4",), (1, 8), US, 7.0),
             Goal("linear 3584x5120, 16 tokens", "linear", ("linear_qkv_tp4",), (16,), US, 7.4)]
    for count, bound in ((16, 85), (64, 88), (256, 80)):
        every.append(Goal(f"experts, whole, {count} tokens", "experts", whole, (count,), BANDWIDTH, bound, most=False))
    for count in (16, 64):
        every.append(Goal(f"experts, sliced, {count} tokens", "experts", ("experts_tp4", "experts_tp8"), (count,), BANDWIDTH, 80, most=False))
    every.append(Goal("experts, portable form, whole, 16 tokens", "experts", whole, (16,), BANDWIDTH, 80, most=False, portable=True))
    every.append(Goal("attention, 64 sequences of 8k, bf16 pages", "attention_decode",
                      [f"attention_decode_64x8k_{ranks}" for ranks in ("tp1", "tp4", "tp8")], (64,), BANDWIDTH, 85, most=False))
    for op, cases, counts in (("rms_norm", ("rows_5120_norm",), FEW), ("add_rms_norm", ("rows_5120_norm",), FEW),
                              ("route", ("rows_5120_route",), FEW),
                              ("qk_norm_rope_store_kv", [f"rope_{ranks}{form}" for ranks in ("tp1", "tp4", "tp8") for form in ("", "_e4m3")]
                               + ["rope_tp1_quantized", "rope_tp4_quantized"], (1, 16, 64))):
        every.append(Goal(f"{op}, 1 to 64 tokens", op, cases, counts, US, 3.0))
    every.append(Goal(PROMPTS, "linear", LINEAR + ["linear_qkv_air", "linear_o_air"], (4096, 8192), FLOOR, 65, most=False))
    every.append(Goal("attention, prompts of 4k, bf16 pages", "attention_prefill", ("attention_prefill_4k_tp4", "attention_prefill_4k_tp8"),
                      (4096,), FLOOR, 55, most=False))
    every.append(Goal("attention, prompts of 8k, bf16 pages", "attention_prefill", ("attention_prefill_8k_tp1",), (8192,), FLOOR, 55,
                      most=False))
    for kind, name in enumerate(SAMPLE_KINDS[:SAMPLE_GOALS]):
        every.append(Goal(f"sample, 256 rows, {name}", "sample", ("sample",), (256,), US, 60 if kind < 2 else 100, shape={"kind": kind}))
    for batch, bound in ((1, 4400), (16, 21000), (64, 32000)):
        every.append(Goal(f"GLM-4.5-Air, a step of {batch}, 1k context", "step_decode", (None,), (batch,), US, bound, shape={"context": 1060}))
    every.append(Goal("GLM-4.5-Air, a prompt of 8,192 (20,000 tok/s)", "step_prefill", (None,), (8192,), US, 8192 / 20e3 * 1e6))
    return every


def beside_library():
    """Rows in which koho and cuBLASLt have to be timed in one call."""
    cases = LINEAR + ["linear_head_whole", "linear_head_tp4", "linear_head_tp8"]
    every = [(case, tokens) for case in cases for tokens in (1, 8, 16, 32, 64, 128)]
    return every + [(case, tokens) for case in cases if case != "linear_head_whole" for tokens in (48, 65, 80, 96, 112)]


def rows_of(records):
    """All records' rows, once each, with `portable`; and figures that are no rows: tok/s of the offline bench, GB/s of loading, a
    step's kernels, prompts' linear layers once the power limit has lowered the clock."""
    rows = {}
    figures = {}
    for record in records:
        if "output_throughput" in record.data:
            figures["throughput"] = record.data["output_throughput"]
        for row in record.rows:
            if "gb_per_s" in row and "rank" not in row:  # ranks that load at once share the host's memory
                figures["load"] = min(figures.get("load", row["gb_per_s"]), row["gb_per_s"])
            if not {"op", "shape", "us"} <= row.keys():  # of other benches
                continue
            if record.has("--sustained"):
                if row["op"] == "linear":
                    figures.setdefault("sustained", []).append(row[FLOOR])
                continue
            if record.has("--deterministic") or row["op"].startswith("step") and not is_product_step(record):
                continue
            if row["op"] == "step_decode" and row["shape"]["batch"] == 1 and row.get("kernels"):
                figures["kernels"] = {**row["kernels"], US: row[US]}
            key = (row["op"], row.get("case"), tuple(sorted(row["shape"].items())), record.has("--portable"), row.get("form"))
            rows[key] = {**row, "portable": record.has("--portable")}
    return list(rows.values()), figures


def is_product_step(record):
    """Whether a record's steps are those that have goals: all layers, contexts of 1,024, the default cache."""
    return "--kv-dtype fp8" not in record.command and "--context 1024" in record.command and record.data.get("layers") == AIR_LAYERS


def library_rows(rows):
    """{(case, rows, columns, tokens): {"koho": µs, "library": µs, "library fast": µs}} of what gemm_bench timed side by side."""
    found = collections.defaultdict(dict)
    for row in rows:
        form = result_file.library_form(row)
        if form is not None and row["op"] == "linear":
            found[row["case"], row["shape"]["rows"], row["shape"]["columns"], row["shape"]["tokens"]][form] = row["us"]
    return {key: times for key, times in found.items() if "koho" in times and "library" in times}


def without(missing):
    """A line for each case, of those (case, tokens) that were not measured."""
    return "".join(f"\n    not measured: {case}, {', '.join(str(tokens) for at, tokens in missing if at == case)} tokens"
                   for case in dict.fromkeys(case for case, _ in missing))


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`worst` says the figure that decides, `details` lists every row that misses. `reached` is None without a measurement."""
    name: str
    worst: str
    details: str
    reached: bool | None

    @property
    def text(self):
        return self.worst + self.details


def judge_rows(goal, rows, figures):
    found = goal.rows(rows)
    unit = " us" if goal.member == US else " %"
    missing = [key for key in goal.wanted() if key not in found]
    worst = (max if goal.most else min)(found.values(), key=lambda row: row[goal.member], default=None)
    missed = [row for row in found.values() if (row[goal.member] > goal.bound if goal.most else row[goal.member] < goal.bound)]

    def said(row):
        case = f"{row['case']}, " if row.get("case") else ""
        return f"{row[goal.member]:g}{unit} ({case}{row['shape'].get('tokens')} tokens)"
    text, details = "not measured", ""
    if found:
        text = f"{said(worst)}, of {len(found)} rows" if len(found) > 1 else said(worst)
        details = "".join(f"\n    {said(row)}" for row in missed if row is not worst) + without(missing)
    if goal.name == PROMPTS and "sustained" in figures:
        details += "\n    at the power limit {:.1f} to {:.1f} %, no goal".format(min(figures["sustained"]), max(figures["sustained"]))
    return Verdict(f"{goal.name}: {'at most' if goal.most else 'at least'} {goal.bound:g}{unit}", text, details,
                   False if missed else None if missing else True)


def judge_library(rows):
    library = {key: times for key, times in library_rows(rows).items() if key[3] <= 128}
    there = {(key[0], key[3]) for key in library}
    missing = [key for key in beside_library() if key not in there]
    slower = [(key, times) for key, times in sorted(library.items()) if times["koho"] > times["library"]]
    details = "".join(f"\n    {key[0]}, {key[3]} tokens: {times['koho']:g} us, cuBLASLt {times['library']:g}" for key, times in slower)
    return Verdict("linear, 1 to 128 tokens: no slower than cuBLASLt's scalar mode without fast accumulation",
                   f"{len(library) - len(slower)} of {len(library)} rows" if library else "not measured",
                   details + without(missing) if library else "", False if slower else None if missing else True)


def judge_steps(rows):
    """What steps of one kind are to each other, where both were timed: a longer prompt takes longer, and a step of decodes and a
    prompt no longer than a step of each."""
    prompts = {row["shape"]["tokens"]: row[US] for row in rows if row["op"] == "step_prefill"}
    decodes = {row["shape"]["batch"]: row[US] for row in rows if row["op"] == "step_decode"}
    lengths = sorted(prompts)
    if len(lengths) > 1:
        pairs = list(zip(lengths, lengths[1:]))
        worst = min(pairs, key=lambda pair: prompts[pair[1]] / prompts[pair[0]])
        yield Verdict("a longer prompt takes longer", "{1} tokens {2:.2f} times as long as {0}".format(*worst, prompts[worst[1]] / prompts[worst[0]]),
                      "", all(prompts[shorter] < prompts[longer] for shorter, longer in pairs))
    shares = {}
    for row in rows:
        if row["op"] == "step_mixed":
            batch = row["shape"]["batch"] - 1
            parts = decodes.get(batch), prompts.get(row["shape"]["tokens"] - batch)
            if None not in parts:
                shares[batch, row["shape"]["tokens"] - batch] = row[US] / sum(parts)
    if shares:
        worst = max(shares, key=shares.get)
        yield Verdict("decodes and a prompt in one step: no longer than in two",
                      "{:.2f} of the two ({} decodes, {} tokens)".format(shares[worst], *worst), "", shares[worst] <= 1)


def judge_figures(figures):
    name = "a step less its kernels' times, batch 1: at most 8 %"
    if "kernels" in figures:
        kernels = figures["kernels"]
        step = kernels[US]
        beside = 100 * max(kernels["idle_us"], step - kernels["busy_us"], step - kernels["classes_us"]) / step
        yield Verdict(name, f"{beside:.1f} % (the largest of its three readings)", "", beside <= 8)
    else:
        yield Verdict(name, "not measured", "", None)
    for key, name, bound, unit in (("throughput", "256 + 256 tokens, 64 at once", 1800, "tok/s"),
                                   ("load", "loading one GPU from the page cache", 15, "GB/s")):
        value = figures.get(key)
        yield Verdict(f"{name}: at least {bound} {unit}", "not measured" if value is None else f"{value:.4g} {unit}", "",
                      None if value is None else value >= bound)


def judge(rows, figures):
    """A Verdict of each goal."""
    return [*(judge_rows(goal, rows, figures) for goal in goals()), judge_library(rows), *judge_steps(rows), *judge_figures(figures)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    records = []
    for path in arguments.files:
        if path.exists():
            records.append(result_file.read(path))
        else:
            print(f"no such file: {path}")
    judged = judge(*rows_of(records))
    for verdict in judged:
        reached = verdict.reached
        print(f"{'no figure' if reached is None else 'reached  ' if reached else 'MISSED   '} {verdict.name}: {verdict.text}")
    if any(verdict.reached is False for verdict in judged):
        return 1
    return 2 if any(verdict.reached is None for verdict in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
