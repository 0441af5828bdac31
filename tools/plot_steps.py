#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/air-steps.svg: GLM-4.5-Air's decode step on one H200 beside its floor and vLLM's, from bench/results and
bench/peers. Standard library only.

    tools/plot_steps.py            draws it
    tools/plot_steps.py --check    exit code 1 if the file is stale
"""
import argparse
import sys
from xml.sax.saxutils import escape

import result_file
import table_definitions

IMAGE = result_file.ROOT / "docs" / "images" / "air-steps.svg"
BATCHES = (1, 16, 64)
WIDTH, LEFT, RIGHT, TOP, BAR, GAP, GROUP_GAP = 760, 140, 90, 74, 20, 4, 22
# Readable on a light page and on a dark one: the card has its own background.
STYLE = """
    .card { fill: #ffffff; stroke: #d8d4cc; } .text { fill: #22211f; } .quiet { fill: #6b675f; }
    .koho { fill: #c8501f; } .peer { fill: #8a8f98; } .floor { fill: #2f6f8f; } .line { stroke: #d8d4cc; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #1c1b1a; stroke: #43403b; } .text { fill: #f0ede7; } .quiet { fill: #a8a399; }
      .koho { fill: #e8743f; } .peer { fill: #7d828b; } .floor { fill: #5ba3c6; } .line { stroke: #43403b; }
    }
    text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 13px; }
    .title { font-size: 16px; font-weight: 600; } .value { font-weight: 600; } .small { font-size: 11px; }
"""


def figures(latency, peer):
    """{batch: [(class of the bar, label, ms)]}"""
    steps = table_definitions.steps_of(latency)
    theirs = {row["batch"]: row["peer"] for row in peer.rows if "batch" in row}
    return {batch: [("floor", "floor", table_definitions.floor_us(steps[batch]) / 1e3), ("koho", "koho", steps[batch]["us"] / 1e3),
                    ("peer", peer.data["peer"], theirs[batch])] for batch in BATCHES}


def draw(latency, peer):
    groups = figures(latency, peer)
    most = max(ms for bars in groups.values() for _, _, ms in bars)
    scale = (WIDTH - LEFT - RIGHT) / most
    group_height = 3 * (BAR + GAP) + GROUP_GAP
    bottom = TOP + len(groups) * group_height
    height = bottom + 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
           'aria-label="Time of a decode step of GLM-4.5-Air-FP8 on one H200: floor, koho and vLLM">', f"  <style>{STYLE}  </style>",
           f'  <rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
           '  <text class="text title" x="20" y="30">GLM-4.5-Air-FP8 on one H200: ms a decode step</text>',
           '  <text class="quiet" x="20" y="50">1k context, BF16 cache, synthetic weights, uniform routing. '
           'Floor: each byte read once, 4.45 TB/s.</text>',
           f'  <line class="line" x1="{LEFT}" y1="{TOP - 6}" x2="{LEFT}" y2="{bottom - GROUP_GAP + 4}"/>']
    y = TOP
    for batch, bars in groups.items():
        middle = y + 1.5 * (BAR + GAP)
        out.append(f'  <text class="text value" x="20" y="{middle + 2:.0f}">B = {batch}</text>')
        for kind, label, ms in bars:
            out.append(f'  <text class="quiet small" x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>')
            out.append(f'  <rect class="{kind}" x="{LEFT}" y="{y}" width="{ms * scale:.1f}" height="{BAR}" rx="2"/>')
            out.append(f'  <text class="text{" value" if kind == "koho" else ""}" x="{LEFT + ms * scale + 8:.1f}" y="{y + 15}">'
                       f"{table_definitions.milliseconds(1e3 * ms)}</text>")
            y += BAR + GAP
        y += GROUP_GAP
    said = f"koho {latency.data['commit']}, {latency.data['date']}; {peer.data['peer']}, {peer.data['date']}. Conditions: docs/performance.md"
    out += [f'  <text class="quiet small" x="20" y="{height - 16}">{escape(said)}</text>', "</svg>", ""]
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    latency = result_file.newest()[table_definitions.H200, "air-latency"]
    peer = next(record for (_, name), record in result_file.newest(result_file.PEERS).items() if name == "vllm")
    image = draw(latency, peer)
    if not options.check:
        IMAGE.write_text(image)
        return 0
    if not IMAGE.exists() or IMAGE.read_text() != image:
        print(f"{IMAGE.relative_to(result_file.ROOT)} is stale: run tools/plot_steps.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
