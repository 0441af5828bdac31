#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds results of the benches on one H200 to the goals that koho has there, and prints their tables. Standard library only.

    tools/speed_goals.py bench/results/*-h200-*-4afd30f.json     every goal: measured, reached or by how much not
    tools/speed_goals.py --table FILE...                          the tables of docs/kernels/README.md

Reads what `koho bench ops`, `gemm_bench`, `koho bench latency`, `koho bench` and the step "loading" of tools/gpu_check.py
record. Of rows that several files have, the last file's count. Exit code 1 if a goal is missed, else 2 if one has no measurement.
"""
import argparse
import collections
import json
import pathlib
import sys

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


def rows_of(paths):
    """All files' rows, once each, with `portable`; and figures that are no rows: tok/s of the offline bench, GB/s of loading, a step's
    kernels, prompts' linear layers once the power limit has lowered the clock."""
    rows = {}
    figures = {}
    for path in paths:
        if not path.exists():
            print(f"no such file: {path}")
            continue
        record = json.loads(path.read_text())
        command = record.get("command", "")
        if "output_throughput" in record:
            figures["throughput"] = record["output_throughput"]
        for row in record.get("rows", []):
            if "gb_per_s" in row:
                figures["load"] = min(figures.get("load", row["gb_per_s"]), row["gb_per_s"])
            if not {"op", "shape", "us"} <= row.keys():  # of other benches
                continue
            if "--sustained" in command:
                if row["op"] == "linear":
                    figures.setdefault("sustained", []).append(row[FLOOR])
                continue
            if "--deterministic" in command or row["op"].startswith("step") and (
                    "--kv-dtype fp8" in command or "--context 1024" not in command or record.get("layers") != AIR_LAYERS):
                continue
            if row["op"] == "step_decode" and row["shape"]["batch"] == 1 and row.get("kernels"):
                figures["kernels"] = {**row["kernels"], US: row[US]}
            key = (row["op"], row.get("case"), tuple(sorted(row["shape"].items())), "--portable" in command, row.get("form"))
            rows[key] = {**row, "portable": "--portable" in command}
    return list(rows.values()), figures


def name_of(row):
    shape = dict(row["shape"])
    kind = f" {SAMPLE_KINDS[shape.pop('kind')]}" if "kind" in shape else ""
    own = row.get("case") or " ".join(f"{key} {value}" for key, value in shape.items() if key != "tokens")
    return own + (f" {row['op']}" if row["op"] in ("rms_norm", "add_rms_norm") else "") + kind


def library_rows(rows):
    """Of each linear shape and number of tokens: koho's time and cuBLASLt's in its scalar mode and with fast sums."""
    found = collections.defaultdict(dict)
    for row in rows:
        if "form" not in row or "chosen" not in row or row["op"] != "linear":
            continue
        key = (row["case"], row["shape"]["rows"], row["shape"]["columns"], row["shape"]["tokens"])
        if row.get("chosen"):
            found[key]["koho"] = row["us"]
        elif row["form"] == "cuBLASLt, one scale":
            found[key]["library"] = row["us"]
        elif row["form"] == "cuBLASLt, one scale, fast accumulation":
            found[key]["fast"] = row["us"]
    return {key: times for key, times in found.items() if "koho" in times and "library" in times}


def without(missing):
    """A line for each case, of those (case, tokens) that were not measured."""
    return "".join(f"\n    not measured: {case}, {', '.join(str(tokens) for at, tokens in missing if at == case)} tokens"
                   for case in dict.fromkeys(case for case, _ in missing))


def judge(rows, figures):
    """(name, what was measured, True, False or None for no measurement) of each goal."""
    out = []
    for goal in goals():
        found = goal.rows(rows)
        unit = " us" if goal.member == US else " %"
        name = f"{goal.name}: {'at most' if goal.most else 'at least'} {goal.bound:g}{unit}"
        missing = [key for key in goal.wanted() if key not in found]
        worst = (max if goal.most else min)(found.values(), key=lambda row: row[goal.member], default=None)

        def said(row):
            case = f"{row['case']}, " if row.get("case") else ""
            return f"{row[goal.member]:g}{unit} ({case}{row['shape'].get('tokens')} tokens)"
        missed = [row for row in found.values() if (row[goal.member] > goal.bound if goal.most else row[goal.member] < goal.bound)]
        text = "not measured"
        if found:
            text = f"{said(worst)}, of {len(found)} rows" if len(found) > 1 else said(worst)
            text += "".join(f"\n    {said(row)}" for row in missed if row is not worst)
            text += without(missing)
        if goal.name == PROMPTS and "sustained" in figures:
            text += "; at the power limit {:.1f} to {:.1f} %, no goal".format(min(figures["sustained"]), max(figures["sustained"]))
        out.append((name, text, False if missed else None if missing else True))
    library = {key: times for key, times in library_rows(rows).items() if key[3] <= 128}
    there = {(key[0], key[3]) for key in library}
    missing = [key for key in beside_library() if key not in there]
    slower = [(key, times) for key, times in sorted(library.items()) if times["koho"] > times["library"]]
    text = f"{len(library) - len(slower)} of {len(library)} rows"
    text += "".join(f"\n    {key[0]}, {key[3]} tokens: {times['koho']:g} us, cuBLASLt {times['library']:g}" for key, times in slower)
    text += without(missing)
    out.append(("linear, 1 to 128 tokens: no slower than cuBLASLt's scalar mode without fast accumulation", text if library else "not measured",
                False if slower else None if missing else True))
    name = "a step less its kernels' times, batch 1: at most 8 %"
    if "kernels" in figures:
        kernels = figures["kernels"]
        step = kernels[US]
        beside = 100 * max(kernels["idle_us"], step - kernels["busy_us"], step - kernels["classes_us"]) / step
        out.append((name, f"{beside:.1f} % (the largest of its three readings)", beside <= 8))
    else:
        out.append((name, "not measured", None))
    for key, name, bound, unit in (("throughput", "256 + 256 tokens, 64 at once", 1800, "tok/s"),
                                   ("load", "loading from the page cache", 15, "GB/s")):
        value = figures.get(key)
        out.append((f"{name}: at least {bound} {unit}", "not measured" if value is None else f"{value:.4g} {unit}",
                    None if value is None else value >= bound))
    return out


def number(value):
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}"


def print_tables(rows, judged):
    print("| goal | measured | |\n|---|---|---|")
    for name, text, reached in judged:
        print(f"| {name} | {text.replace(chr(10) + '    ', '; ')} | {'' if reached is None else 'reached' if reached else '**missed**'} |")
    print()
    groups = collections.defaultdict(list)
    for row in rows:
        if "form" not in row and "class" not in row and not row["op"].startswith("step"):
            groups[(row["op"], name_of(row), row["portable"])].append(row)
    print("| operator | case | tokens | µs | % of bandwidth | % of the floor |\n|---|---|---|---|---|---|")
    for (op, name, portable), group in groups.items():
        group.sort(key=lambda row: row["shape"].get("tokens", 0))

        def column(text):
            return " / ".join(text(row) for row in group)
        counts = column(lambda row: format(row["shape"].get("tokens", 0), ","))
        percent = {member: column(lambda row: "–" if row[member] is None else f"{row[member]:.0f}") for member in (BANDWIDTH, FLOOR)}
        print(f"| {op} | {name}{' (portable form)' if portable else ''} | {counts} "
              f"| {column(lambda row: number(row[US]))} | {percent[BANDWIDTH]} "
              f"| {'the same' if percent[FLOOR] == percent[BANDWIDTH] else percent[FLOOR]} |")
    library = library_rows(rows)
    counts = sorted({key[3] for key in library})
    if not library:
        return
    print("\n| rows x columns | " + " | ".join(str(count) for count in counts) + " |\n" + "|---" * (len(counts) + 1) + "|")
    for case, height, width in dict.fromkeys(key[:3] for key in library):
        cells = []
        for count in counts:
            times = library.get((case, height, width, count))
            if times is None:
                cells.append("")
                continue
            own = f"{times['koho']:.1f}"
            cells.append(" · ".join([f"**{own}**" if times["koho"] > times["library"] else own, f"{times['library']:.1f}"]
                                    + ([f"{times['fast']:.1f}"] if times.get("fast") else [])))
        print(f"| {height}x{width}{' bf16' if 'head' in case else ''} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the results as Markdown instead")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    rows, figures = rows_of(arguments.files)
    judged = judge(rows, figures)
    if arguments.table:
        print_tables(rows, judged)
        return 0
    for name, text, reached in judged:
        print(f"{'no figure' if reached is None else 'reached  ' if reached else 'MISSED   '} {name}: {text}")
    if any(reached is False for _, _, reached in judged):
        return 1
    return 2 if any(reached is None for _, _, reached in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
