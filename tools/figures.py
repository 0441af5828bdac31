# SPDX-License-Identifier: Apache-2.0
"""How figures are rounded in tables, and the steps of a record by their size."""


def number(value):
    """Three digits or more: 5.6, 106, 1,477."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}"


def percent(value):
    return "–" if value is None else f"{value:.0f} %"


def milliseconds(us):
    return f"{us / 1e3:,.0f}" if us >= 99.5e3 else f"{us / 1e3:.1f}" if us >= 9.95e3 else f"{us / 1e3:.2f}"


def steps_of(record, op="step_decode"):
    return {row["shape"]["batch" if op == "step_decode" else "tokens"]: row for row in record.rows if row["op"] == op}
