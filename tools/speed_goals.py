#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds results of the benches on one H200 to the goals that koho has there, and prints their tables. Standard library only.

    tools/speed_goals.py bench/results/2026-11-24-h200-*.json     every goal: measured, reached or by how much not
    tools/speed_goals.py --table FILE...                          the tables of docs/kernels/README.md

Reads what `koho bench ops`, `matmul_forms`, `koho bench latency`, `koho bench` and the step "loading" of tools/gpu_check.py
record. Of rows that several files have, the last file's count. Exit code 1 if a goal is missed, 2 if one has no measurement.
"""
import argparse
import collections
import json
import pathlib
import sys

# What a row of `sample` asks for: `kind` in its shape.
SAMPLE_KINDS = ["greedy", "temperature", "top-k", "top-p", "penalties", "raising penalties"]
AIR_LAYERS = 46
US, BANDWIDTH, FLOOR = "us", "pct_of_bandwidth", "pct_of_floor"


class Goal:
    """`member` of each row of `op` in one of `cases` (none: any) whose shape lies within `where` is at most, or at least, `bound`."""

    def __init__(self, name, op, cases, where, member, bound, most=True, portable=False):
        self.name, self.op, self.cases, self.where = name, op, cases, where
        self.member, self.bound, self.most, self.portable = member, bound, most, portable

    def chooses(self, row):
        return (row["op"] == self.op and row["portable"] == self.portable and "form" not in row
                and (not self.cases or row.get("case") in self.cases)
                and all(low <= row["shape"].get(key, -1) <= high for key, (low, high) in self.where.items()))


def tokens(low, high=None):
    return {"tokens": (low, high or low)}


def goals():
    whole = ("experts_ep4", "experts_ep8", "experts_tp1", "experts_air")
    every = [Goal(f"linear 3584x5120, {name} tokens", "linear", ("linear_qkv_tp4",), {**tokens(*count), "rows": (3584, 3584)}, US, bound)
             for name, count, bound in (("1 to 8", (1, 8), 7.0), ("16", (16,), 7.4))]
    for count, bound in ((16, 85), (64, 88), (256, 80)):
        every.append(Goal(f"experts, whole, {count} tokens", "experts", whole, tokens(count), BANDWIDTH, bound, most=False))
    for count in (16, 64):
        every.append(Goal(f"experts, sliced, {count} tokens", "experts", ("experts_tp4", "experts_tp8"), tokens(count), BANDWIDTH, 80,
                          most=False))
    every.append(Goal("experts, portable form, 16 tokens", "experts", ("experts_ep4",), tokens(16), BANDWIDTH, 80, most=False, portable=True))
    every.append(Goal("attention, 64 sequences of 8k", "attention_decode", (), {"sequences": (64, 64), "context": (8192, 8192),
                                                                                  "kv_bytes": (2, 2)}, BANDWIDTH, 85, most=False))
    for op in ("rms_norm", "add_rms_norm", "qk_norm_rope_store_kv", "route"):
        every.append(Goal(f"{op}, 1 to 64 tokens", op, (), tokens(1, 64), US, 3.0))
    every.append(Goal("linear, prompts of 4k and more", "linear", (), tokens(4096, 1 << 30), FLOOR, 65, most=False))
    every.append(Goal("attention, prompts of 4k and more", "attention_prefill", (), {**tokens(4096, 1 << 30), "kv_bytes": (2, 2)}, FLOOR, 55,
                      most=False))
    for name, kinds, bound in (("greedy, temperature", (0, 1), 60), ("top-k, top-p, penalties", (2, 5), 100)):
        every.append(Goal(f"sample, 256 rows, {name}", "sample", (), {**tokens(256), "kind": kinds}, US, bound))
    for batch, bound in ((1, 4400), (16, 21000), (64, 32000)):
        every.append(Goal(f"GLM-4.5-Air, a step of {batch}, 1k context", "step_decode", (), {"batch": (batch, batch), "context": (1024, 2048)},
                          US, bound))
    every.append(Goal("GLM-4.5-Air, a prompt of 8,192 (20,000 tok/s)", "step_prefill", (), tokens(8192), US, 8192 / 20e3 * 1e6))
    return every


def rows_of(paths):
    """All files' rows, once each, with `portable`; and figures that are no rows: tok/s of the offline bench, GB/s of loading."""
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
                figures["load"] = max(figures.get("load", 0), row["gb_per_s"])
            if not {"op", "shape", "us"} <= row.keys():  # of other benches
                continue
            if "--deterministic" in command or row["op"].startswith("step") and (
                    "--kv-dtype fp8" in command or record.get("layers") != AIR_LAYERS):
                continue
            row = {**row, "portable": "--portable" in command}
            key = (row["op"], row.get("case"), tuple(sorted(row["shape"].items())), row["portable"], row.get("form"))
            rows[key] = {**rows.get(key, {}), **row}
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


def judge(rows, figures):
    """(name, what was measured, True, False or None for no measurement) of each goal."""
    out = []
    for goal in goals():
        chosen = [row for row in rows if goal.chooses(row) and row.get(goal.member) is not None]
        unit = " us" if goal.member == US else " %"
        name = f"{goal.name}: {'at most' if goal.most else 'at least'} {goal.bound:g}{unit}"
        if not chosen:
            out.append((name, "not measured", None))
            continue
        worst = (max if goal.most else min)(chosen, key=lambda row: row[goal.member])
        missed = [row for row in chosen if (row[goal.member] > goal.bound if goal.most else row[goal.member] < goal.bound)]
        text = f"{len(chosen)} rows, worst {worst[goal.member]:g}{unit} ({name_of(worst)}, {worst['shape'].get('tokens')} tokens)"
        text += "".join(f"\n    {row[goal.member]:g}{unit}  {name_of(row)}, {row['shape'].get('tokens')} tokens" for row in missed)
        out.append((name, text, not missed))
    library = {key: times for key, times in library_rows(rows).items() if key[3] <= 128}
    slower = [(key, times) for key, times in sorted(library.items()) if times["koho"] > times["library"]]
    text = f"{len(library)} rows" + "".join(f"\n    {key[0]}, {key[3]} tokens: {times['koho']:g} us, cuBLASLt {times['library']:g}"
                                            for key, times in slower)
    out.append(("linear, 1 to 128 tokens: no slower than cuBLASLt's scalar mode", text if library else "not measured",
                not slower if library else None))
    recorded = [row["kernels"] for row in rows if row["op"] == "step_decode" and row["shape"]["batch"] == 1 and row.get("kernels")]
    for kernels in recorded[-1:]:
        graph = kernels["graph_us"]
        beside = 100 * max(kernels["idle_us"], graph - kernels["busy_us"], graph - kernels["classes_us"]) / graph
        out.append(("a step less its kernels' times, batch 1: at most 8 %", f"{beside:.1f} % (the largest of its three readings)", beside <= 8))
    if not recorded:
        out.append(("a step less its kernels' times, batch 1: at most 8 %", "not measured", None))
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
