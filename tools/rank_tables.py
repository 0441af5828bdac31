# SPDX-License-Identifier: Apache-2.0
"""The rows of tables about several ranks: one rank alone and what follows for a replica; workers, servers and loading on GPUs, from
the files that tools/gpu_check_ranks.py writes."""
from figures import milliseconds, steps_of

MEMORY = {"H100": 3.35, "H200": 4.8, "B200": 8.0}  # nominal TB/s of a GPU
PROJECTED = {4: ("H200", "B200"), 8: ("H100", "H200", "B200")}  # a rank of 4 has 89 GB of weights, of 8 45
PLACES = ("2on1", "4on1", "8on1", "2gpus", "4gpus", "8gpus")  # as gpu_check_ranks.py names them


def on_gpus(*names):
    """Files of whichever GPU has been measured."""
    return tuple((tag, name) for name in names for tag in ("h100", "h200", "b200"))


RANK_FILES = on_gpus(*(f"rank{ranks}-{cut}" for ranks in PROJECTED for cut in ("whole", "sliced")))


def gpu_of(record):
    return record.data["machine"].split()[1]  # "NVIDIA H100 80GB HBM3"


def alone_us(row):
    """A rank's step with the wait for the rank whose experts were chosen most."""
    return row["us"] + row["waiting_us"]


def rank_steps(records):
    """{(ranks, GPU): {cut: {("decode", sequences) or ("prefill", tokens): row}}} of what one rank alone took."""
    found = {}
    for record in records:
        steps = {("decode", count): row for count, row in steps_of(record).items()}
        steps.update({("prefill", tokens): row for tokens, row in steps_of(record, "step_prefill").items()})
        found.setdefault((record.data["ranks"], gpu_of(record)), {})[record.data["experts"]] = steps
    return found


def projected(rows, measured_on, gpu, tokens):
    """tok/s of a replica from its rank's faster cut, and what of it is measured."""
    scale = MEMORY[measured_on] / MEMORY[gpu]
    row = min(rows, key=alone_us)
    links_measured = "corrected" not in row["links_source"] and gpu in row["links_source"]
    return (f"{tokens / (alone_us(row) * scale + row['links_us']) * 1e6:,.0f} *{'m' if gpu == measured_on else 's'} "
            f"{'m' if links_measured else 'c'}*")


def projection_rows(*records):
    """A row for each number of GPUs and sequences: a rank's step with either cut of the experts, what links add, tok/s."""
    by_rank, out = rank_steps(records), []
    for ranks, gpus in PROJECTED.items():
        measured = [gpu for gpu in gpus if (ranks, gpu) in by_rank]
        if not measured:
            out.append([str(ranks), "any", "not measured", "", "", *("not known" if gpu in gpus else "does not fit" for gpu in MEMORY)])
            continue
        shown = measured[-1]
        for kind, tokens in next(iter(by_rank[ranks, shown].values())):
            rows = {cut: steps[kind, tokens] for cut, steps in by_rank[ranks, shown].items() if (kind, tokens) in steps}
            cells = []
            for gpu in MEMORY:
                near = gpu if gpu in measured else shown
                at = [steps[kind, tokens] for steps in by_rank[ranks, near].values() if (kind, tokens) in steps]
                known = at and (near == gpu or kind == "decode")  # a prompt's time does not follow the memory
                cells.append("does not fit" if gpu not in gpus else projected(at, near, gpu, tokens) if known else "not known")
            out.append([str(ranks), f"{tokens:,}" if kind == "decode" else f"prompt of {tokens:,}",
                        *(milliseconds(alone_us(rows[cut])) if cut in rows else "" for cut in ("whole", "sliced")),
                        milliseconds(next(iter(rows.values()))["links_us"]), *cells])
    return out


FAULT_FILES = on_gpus("faults", *(f"{place}-faults" for place in PLACES))
SERVER_FILES = on_gpus(*(f"{ranks}gpus-server-{clients}-{body}" for ranks in (2, 4, 8) for clients in (64, 256) for body in ("greedy", "sampled")))
RANK_LOADING_FILES = on_gpus("rank8-loading", "rank4-loading", "2gpus-loading", "4gpus-loading", "8gpus-loading")
STEP_FILES = on_gpus(*(f"{ranks}gpus-{what}-{cut}" for ranks in (2, 4, 8) for what in ("steps", "prompt") for cut in ("whole", "sliced")))
TRUE_WIDTHS_FILES = on_gpus(*(f"true-widths-{place}" for place in PLACES))


def ranks_of(record):
    """"2 on one GPU", "2" or "1", as the name of a file of gpu_check_ranks.py says."""
    place = record.name.removeprefix("true-widths-").split("-")[0]
    if place.startswith("rank"):
        return f"one of {place[4:]}"
    return f"{place[0]} on one GPU" if place.endswith("on1") else place[0] if place[0].isdigit() else "1"


FAULT_KINDS = ("kill", "illegal", "hang", "stop", "kill, kill")


def fault_rows(*records):
    """A row for each run: of each kind the longest times until it was noticed, and from then on until steps could run."""
    return [[ranks_of(record), gpu_of(record), *(f"{times['noticed_s']:.2f} + {times['ready_s']:.2f}" if (times := row["times"].get(kind)) else ""
                                                 for kind in FAULT_KINDS), str(row["faults"])] for record in records for row in record.rows]


def executor_rows(*records):
    out = []
    for record in records:
        times = {(row["shape"]["batch"], row["form"]): row["us"] for row in record.rows}
        out += [[record.data["machine"], str(batch), milliseconds(times[batch, "thread"]), milliseconds(times[batch, "process"]),
                 f"{100 * (times[batch, 'process'] / times[batch, 'thread'] - 1):+.2f} %"] for batch in dict.fromkeys(key[0] for key in times)]
    return out


def server_rows(*records):
    return [[ranks_of(record), record.data["machine"], str(row["concurrency"]), record.name.rpartition("-")[2], f"{row['tok_per_s']:,.0f}",
             f"{row['first_token_ms']:.0f}"] for record in records for row in record.rows]


def gpu_step_rows(*records):
    """A row for each step of ranks on GPUs of their own, with either cut of the experts."""
    found = {}
    for record in records:
        for op in ("step_decode", "step_prefill"):
            for size, row in sorted(steps_of(record, op).items()):
                place = f"{record.data['ranks']} x {gpu_of(record)}", str(record.data["layers"]), op, size
                found.setdefault(place, {}).setdefault(record.data["experts"], milliseconds(row["us"]))
    return [[gpus, layers, f"{size:,}" if op == "step_decode" else f"prompt of {size:,}", by_cut.get("whole", ""), by_cut.get("sliced", "")]
            for (gpus, layers, op, size), by_cut in found.items()]


def rank_loading_rows(*records):
    """A row for each load: of all ranks together the bytes and the slowest time; then until steps can run."""
    out = []
    for record in records:
        loads = [row for row in record.rows if row["op"] == "load"]
        ready = [row for row in record.rows if row["op"] == "ready"]
        ranks = max(1, len({row.get("rank") for row in loads}))
        for number_, row in enumerate(ready):
            mine = loads[number_ * ranks:(number_ + 1) * ranks]
            out.append([ranks_of(record), record.data["machine"], f"{sum(load['bytes'] for load in mine) / 1e9:.1f}",
                        f"{max(load['us'] for load in mine) / 1e6:.2f}", f"{row['us'] / 1e6:.1f}"])
    return out


def rank_widths_rows(*records):
    return [[ranks_of(record), record.data["machine"], row["experts"], f"{row['chunk']:,}", "yes" if row["deterministic"] else "no",
             f"{row['distance']:.3f}", f"{row['bound']:.3f}", f"{100 * row['same_best_token']:.1f} %"]
            for record in records for row in record.rows]
