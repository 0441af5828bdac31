# SPDX-License-Identifier: Apache-2.0
"""Every table of measured figures in docs/ and README.md: which files it reads, its columns, its rows and how it rounds.

TABLES, at the end, is the list; result_tables.py writes what it says. A table reads the newest file of a machine and a name
in bench/results: ("h200", "operators"); h200 is the card that most figures come from, h200b another one, xeon two cores of
a shared Intel Xeon. A cell of an operator is "µs · rate · share of the floor".
"""
import dataclasses
import itertools
import statistics

import rank_tables
import speed_goals
from figures import milliseconds, number, percent, steps_of

H200, SECOND_H200, XEON = "h200", "h200b", "xeon"
FLOOR_NOTE = ("The floor is the bytes at 4.45 TB/s (a reading; long kernels reach 105 % of it) or the operations at the nominal 1,979 "
              "(FP8), 989 (BF16) TFLOP/s")
DECODE_TOKENS = (1, 16, 32, 64, 128)
CUBLASLT_TOKENS = (1, 16, 32, 64, 96, 128)
GEMM_TOKENS = (1, 16, 64, 128, 256, 512, 1024, 4096)
EXPERT_TOKENS = (1, 16, 64, 128, 256, 8192)
FORM_TOKENS = (128, 256, 512, 768, 1024)
ROWS_TOKENS = (1, 16, 64, 256, 8192)
LAYERS = {"qkv": "qkv", "o": "o", "dense": "dense gate and up", "head": "head, BF16"}
RANKS = {"tp1": "TP1", "tp4": "TP4", "tp8": "TP8", "air": "GLM-4.5-Air, TP1"}
SAMPLE_SHOWN = (1, 64, 256)
CLASSES = {"o (and dense down)": "o, and the dense layer's down", "dense gate_up": "the dense layer's gate and up",
           "norms": "norms, with FP8 quantisation", "rope, kv write": "rope and cache write"}


@dataclasses.dataclass(frozen=True)
class Table:
    reads: tuple  # (tag, name) of bench/results; ("peers", name) of bench/peers
    columns: tuple
    rows: object  # function of the records, in the order of `reads` -> rows of cells
    note: str = ""  # how to read a cell, without its full stop
    command: str = ""  # said instead of the files' own commands, where those are many
    optional: tuple = ()  # read too, where they are
    newest: bool = False  # of the files read, only the one with the latest date counts; the later in `reads` of one day


RATES = {"TB/s": lambda row: f"{row['bytes'] / row['us'] / 1e6:.2f}", "GB/s": lambda row: f"{row['bytes'] / row['us'] / 1e3:,.0f}",
         "TFLOP/s": lambda row: f"{row['flops'] / row['us'] / 1e6:,.0f}"}


def cell_of(unit):
    return lambda row: f"{number(row['us'])} · {RATES[unit](row)} · {percent(row['pct_of_floor'])}"


def microseconds(row):
    return number(row["us"])


def with_share(row):
    """For tables in which some columns are bound by bytes and others by operations."""
    return f"{number(row['us'])} · {percent(row['pct_of_floor'])}"


# Operators.

def by_tokens(op, cases, tokens, text):
    """Rows of a case each, a column for each number of tokens. `cases`: {case: what the row says first}."""
    def rows(*records):
        found = {(row.get("case"), row["shape"].get("tokens")): row for record in records for row in record.rows
                 if row["op"] == op and "form" not in row}
        return [[label, *(text(found[case, count]) if (case, count) in found else "" for count in tokens)]
                for case, label in cases.items() if any((case, count) in found for count in tokens)]
    return rows


def tokens_columns(first, tokens):
    return (first, *(f"{count:,} token{'s' if count > 1 else ''}" for count in tokens))


def operator_table(op, cases, tokens, unit, first="shape", file="operators", note=FLOOR_NOTE):
    return Table(((H200, file),), tokens_columns(first, tokens), by_tokens(op, cases, tokens, cell_of(unit)),
                 f"µs · {unit} · share of the floor. {note}")


# rows x columns of the weight, as gemm_bench and `koho bench ops` name their cases.
GEMM_SIZES = {"qkv_tp1": "14336x5120", "o_tp1": "5120x12288", "dense_tp1": "24576x5120", "qkv_tp4": "3584x5120", "o_tp4": "5120x3072",
              "dense_tp4": "6144x5120", "qkv_tp8": "1792x5120", "o_tp8": "5120x1536", "dense_tp8": "3072x5120",
              "qkv_air": "14336x4096", "o_air": "4096x12288"}
HEAD_SIZES = {"head_tp1": "151552x5120", "head_tp4": "37888x5120", "head_tp8": "18944x5120", "head_air": "151552x4096"}


def gemm_cases(sizes):
    return {f"linear_{name}": f"{size} ({LAYERS[name.split('_')[0]]}, {RANKS[name.split('_')[1]]})" for name, size in sizes.items()}


GEMM_CASES = gemm_cases(GEMM_SIZES)
DECODE_GEMM_CASES = {**GEMM_CASES, "linear_qkv_tp4_block": "3584x5120 (qkv, TP4, block scales)", **gemm_cases(HEAD_SIZES)}


def beside_cublaslt(tokens):
    def rows(*records):
        times = speed_goals.library_rows([row for record in records for row in record.rows])
        out = []
        for case, height, width in dict.fromkeys(key[:3] for key in times):
            cells = []
            for count in tokens:
                found = times.get((case, height, width, count))
                cells.append("" if found is None else " · ".join(
                    f"{found[form]:.1f}" for form in ("koho", "library", "library fast") if form in found))
            out.append([f"{height}x{width}" + (", BF16" if "head" in case else ""), *cells])
        return out
    return rows


def attention_rows(op, cases, *units):
    def rows(record):
        found = {row["case"]: row for row in record.rows if row["op"] == op}
        out = []
        for case in cases:
            row = found[f"{op}_{case}"]
            shape = row["shape"]
            size = f"{shape['sequences']} x {shape['context']:,}" if op == "attention_decode" else f"{shape['tokens']:,}"
            out.append([size, f"{shape['query_heads']} / {shape['kv_heads']}", "FP8" if shape["kv_bytes"] == 1 else "BF16",
                        number(row["us"]), *(RATES[unit](row) for unit in units), percent(row["pct_of_floor"])])
        return out
    return rows


def all_attention_rows(record):
    return [[f"{kind} {row[0]}", *row[1:]] for kind, op, cases in (("decode", "attention_decode", ATTENTION_DECODE),
                                                                    ("prompt of", "attention_prefill", ATTENTION_PREFILL))
            for row in attention_rows(op, cases, "TB/s", "TFLOP/s")(record)]


ATTENTION_DECODE = ("1x1k_tp1", "1x1k_tp1_e4m3", "4x1k_tp1", "16x1k_tp1", "64x1k_tp1", "64x548_tp1", "256x548_tp1", "256x548_tp1_e4m3", "64x8k_tp1", "64x8k_tp1_e4m3", "1x8k_tp4",
                    "1x128k_tp4", "64x1k_tp4", "64x8k_tp4", "64x8k_tp4_e4m3", "64x8k_tp8", "64x8k_tp8_e4m3")
ATTENTION_PREFILL = ("8k_tp1", "8k_tp1_e4m3", "4k_tp4", "4k_tp4_e4m3", "4k_tp8")
EXPERTS = {"experts_tp1": "160 x 1536, one GPU", "experts_ep4": "40 of 160 x 1536, EP4", "experts_ep8": "20 of 160 x 1536, EP8",
           "experts_tp4": "160 x 384, TP4", "experts_tp8": "160 x 192, TP8", "experts_air": "128 x 1408 and shared, GLM-4.5-Air"}
ROPE = {f"rope_{ranks}{cache}": f"{heads} heads, {RANKS[ranks]}, {said}"
        for ranks, heads in (("tp1", "96 / 8"), ("tp4", "24 / 2"), ("tp8", "12 / 1"))
        for cache, said in (("", "BF16 cache"), ("_e4m3", "FP8 cache"), ("_quantized", "FP8 in and out"))}
# Operators of rows: (operator, {case: label}).
ROWS = (("rms_norm", {"rows_5120_norm": "`rms_norm`, 5120"}), ("add_rms_norm", {"rows_5120_norm": "`add_rms_norm`, 5120"}),
        ("qk_norm_rope_store_kv", {case: f"`qk_norm_rope_store_kv`, {label}" for case, label in ROPE.items()}),
        ("silu_mul", {"silu_mul_tp4": "`silu_mul`, 3072"}), ("embed", {"embed_tp4": "`embed`, 5120, TP4"}),
        ("gather_rows", {"gather_rows_5120": "`gather_rows`, 5120"}))
BATCH_SLOTS = (("gather_input_ids", {"gather_input_ids": "`gather_input_ids`"}), ("commit_sampled", {"commit_sampled": "`commit_sampled`"}),
               ("set_entries", {"set_entries": "`set_entries`"}), ("copy_pages", {"copy_pages_tp1": "`copy_pages`, TP1, BF16",
                                                                                  "copy_pages_tp1_e4m3": "`copy_pages`, TP1, FP8"}),
               ("reset_counts", {"reset_counts": "`reset_counts`"}))


def several(groups, tokens, text):
    return lambda *records: [row for op, cases in groups for row in by_tokens(op, cases, tokens, text)(*records)]


def sample_rows(record):
    found = {(row["shape"]["kind"], row["shape"]["tokens"]): row for row in record.rows if row["op"] == "sample"}
    return [[name, *(cell_of("GB/s")(found[kind, count]) for count in SAMPLE_SHOWN)] for kind, name in enumerate(speed_goals.SAMPLE_KINDS)
            if (kind, SAMPLE_SHOWN[0]) in found]


# GLM-4.5-Air on one GPU.

def floor_us(step):
    """The time in which the card reads what a decode step reads."""
    return sum(part["bound_us"] for part in step["classes"])


def with_floor(us, floor):
    return milliseconds(us) + (f" ({milliseconds(floor)})" if floor >= 5.0 else "")


def air_step_rows(record):
    steps = steps_of(record)
    out = [["**step**", *(f"**{with_floor(step['us'], floor_us(step))}**" for step in steps.values())]]
    names = sorted((part["class"] for part in steps[1]["classes"]),
                   key=lambda name: -next(part["us"] for part in steps[64]["classes"] if part["class"] == name))
    for name in names:
        parts = [next(part for part in step["classes"] if part["class"] == name) for step in steps.values()]
        out.append([CLASSES.get(name, name), *(with_floor(part["us"], part["bound_us"]) for part in parts)])
    return out


def air_prefill_rows(record):
    step = steps_of(record, "step_prefill")[8192]
    rows = [["**8,192 tokens**", f"**{milliseconds(step['us'])}**", f"{8192 / step['us'] * 1e3:.1f}k tok/s"]]
    rows += [[CLASSES.get(part["class"], part["class"]), milliseconds(part["us"]), f"{100 * part['us'] / step['us']:.1f} %"]
             for part in sorted(step["classes"], key=lambda part: -part["us"]) if part["us"] >= 0.01 * step["us"]]
    return rows


def air_variant_rows(plain, fp8, long_bf16, long_fp8):
    out = []
    for label, record in (("BF16 cache, as above", plain), ("FP8 cache (`--kv-dtype fp8`)", fp8),
                          ("context of 131,036, BF16 cache", long_bf16),
                          ("context of 131,036, FP8 cache", long_fp8)):
        steps, prompts = steps_of(record), steps_of(record, "step_prefill")
        out.append([label, *(milliseconds(steps[batch]["us"]) if batch in steps else "" for batch in (1, 16, 64)),
                    milliseconds(prompts[8192]["us"]) if 8192 in prompts else ""])
    return out


def form_rows(record):
    times = {(row["case"], row["shape"]["tokens"], row["form"]): row["us"] for row in record.rows}
    return [[name, *(" · ".join(f"{times[case, tokens, form]:,.0f}" for form in ("decode", "prefill")) for tokens in FORM_TOKENS)]
            for case, name in EXPERTS.items() if (case, FORM_TOKENS[0], "decode") in times]


def before_after_rows(record):
    """What was timed before and after a change: a row each, in µs."""
    found = {}
    for row in record.rows:
        kind = row["op"].removeprefix("step_")
        name = {"decode": "a step of {batch}", "prefill": "a prompt of {tokens}"}.get(kind, f"{row.get('case')} at {{tokens}}")
        found.setdefault(name.format(**row["shape"]), {})[row["form"]] = row["us"]
    return [[name, f"{times['before']:,.1f}", f"{times['after']:,.1f}", f"{100 * (times['after'] / times['before'] - 1):+.1f} %"]
            for name, times in found.items() if "before" in times]


def air_prompt_rows(record):
    """Prompts by length, and beside them decode steps by sequences."""
    prompts, decodes = (sorted(steps_of(record, op).items()) for op in ("step_prefill", "step_decode"))
    rows = []
    for prompt, decode in itertools.zip_longest(prompts, decodes):
        left = [f"{prompt[0]:,}", milliseconds(prompt[1]["us"]), f"{prompt[0] / prompt[1]['us'] * 1e3:.1f}k"] if prompt else ["", "", ""]
        rows.append(left + ([str(decode[0]), milliseconds(decode[1]["us"])] if decode else ["", ""]))
    return rows


def soak_rows(*records):
    """What was loaded: engine and server over ranks that compute nothing, or the whole program on a device."""
    def after_and_end(values):
        return f"{values[0]} · {values[-1]}" if values else ""
    return [[f"`koho serve`, {row['device']}" if "device" in row else "paced ranks", f"{row['requests']:,}", f"{row['seconds']:.0f}", f"{row['left']:,}",
             f"{row['limited']:,}", after_and_end(row["resident_mb"]), after_and_end(row.get("gpu_mb", row.get("gpu_mb_of_all"))), str(row["threads"]),
             str(row["unaccounted"])] for record in records for row in record.rows]


def busy_rows(record):
    """Tokens a second beside each load, and of two threads the share of what they do alone."""
    two = [f"{row['two_threads']:,.0f}" + (f" ({row['kept']:.0%})".replace("%", " %") if row["case"] != "nothing" else "") for row in record.rows]
    return [["2", *two], ["1", *(f"{row['one_thread']:,.0f}" for row in record.rows)]]


def prefill_rows(*records):
    """By long prompts at once: what they and short requests beside them cost each other."""
    def seconds(times):
        return f"{statistics.median(times):.2f} ({', '.join(f'{time:.2f}' for time in times)})"
    return [[f"{row['long']} of {row['tokens']:,} tokens" if "tokens" in row else str(row["long"]), seconds(row["alone_s"]), seconds(row["beside_s"]),
             f"{100 * row['kept']:.1f} %", f"{row['short_p50_ms']:.0f}", f"{row['short_p99_ms']:.0f}", f"{3 * row['step_ms'] + row['own_ms']:.0f}"] for record in records for row in record.rows]


def client_rows(*records):
    """Of `koho bench serve` and vLLM's the ratios of throughput and times, their means and medians; where both ran at once the
    median ratio of the same request's. A load is requests at once, or a second of each client."""
    out = []
    for record in records:
        ratios = {row["form"]: row["ratio"] for row in record.rows}
        flags = record.command.split()
        load = f"both, {flags[flags.index('--request-rate') + 1]} a s" if record.has("--together") else f"{flags[-1]} at once"
        values = [ratios["output_throughput"]]
        for metric in ("ttft", "tpot", "itl", "e2el"):
            values += [ratios[f"mean_{metric}_ms"], ratios.get(f"paired_{metric}", ratios[f"median_{metric}_ms"])]
        out.append([load, *(f"{value:.3f}" for value in values)])
    return out


def loading_rows(*records):
    out = []
    for record in records:
        times = ["first read", "second"]
        out += [[record.data["commit"], f"{row['bytes'] / 1e9:.1f}", times[min(number_, 1)], f"{row['us'] / 1e6:.2f}", f"{row['gb_per_s']:.1f}"]
                for number_, row in enumerate(record.rows)]
    return out


def batch_rows(*records):
    return [[record.data["commit"], str(row["requests"]), str(row["answers"]), str(row["faults"]), f"{row['prompt_tokens']:,}",
             f"{row['cached_tokens']:,}", f"{row['completion_tokens']:,}", f"{row['seconds']:.1f}"]
            for record in records for row in record.rows]


def long_context_rows(record):
    return [["yes" if row["deterministic"] else "no", f"{row['chunk']:,}" if row["chunk"] else "default", f"{row['cached_tokens']:,}",
             f"{row['prompt_seconds']:.1f}"] for row in record.rows]


def true_widths_rows(*records):
    newest = {(row["chunk"], row["deterministic"]): (record, row) for record in records for row in record.rows}
    return [[f"{chunk:,}", "yes" if deterministic else "no", f"{row['distance']:.3f}", f"{row['distance'] / record.data['noise']:.2f}",
             f"{row['bound']:.3f}", f"{100 * row['same_best_token']:.1f} %"]
            for (chunk, deterministic), (record, row) in sorted(newest.items())]


# Goals.

GOAL_FILES = ("operators", "experts-portable", "linear", "linear-head", "air-kernels", "air-latency", "air-throughput", "loading")


def goal_rows(*records):
    """How many goals each card reached, and which it missed; the first one's sampling was measured again since."""
    by_date = sorted(records, key=lambda record: record.data["date"])  # the last one's rows count
    out = []
    for label, tag in (("one H200", H200), ("another", SECOND_H200)):
        verdicts = speed_goals.judge(*speed_goals.rows_of([record for record in by_date if record.tag == tag]))
        missed = [f"{verdict.name} ({verdict.worst})" for verdict in verdicts if not verdict.reached]
        out.append([label, f"{len(verdicts) - len(missed)} of {len(verdicts)}", "; ".join(missed) or "none"])
    return out


# Beside others.

def peer_rows(record):
    out = []
    for row in record.rows:
        ours = row["koho"]
        both = f"{ours[0]:,}" if ours[0] == ours[-1] else f"{ours[0]:,} – {ours[-1]:,}"
        middle = sum(ours) / len(ours)
        ratio = middle / row["peer"] if row["unit"] == "tok/s" else row["peer"] / middle
        out.append([row["what"], row["unit"], f"{row['peer']:,}", both, f"{ratio:.3g}" if ratio >= 1 else f"**{ratio:.2f}: behind**"])
    return out


def llama_rows(*records):
    def row(record):
        figures = record.data["medians"]
        read = [percent(100 * figures[share]) for share in ("decode_share_of_bandwidth", "decode_share_of_pages_side_by_side")]
        batch = f"{figures['decode_16_over_1']:.1f}" if "decode_16_over_1" in figures else ""
        return [(record.rows or record.data["rounds"])[0]["koho"]["backend"].split()[1],
                *(cell for kind, digits in (("decode", 1), ("prefill", 0))
                  for cell in (f"{figures[kind + '_tok_s']:.{digits}f}", f"{figures[kind + '_peer_tok_s']:.{digits}f}", f"{figures[kind + '_ratio']:.2f}")),
                " · ".join(read), batch]
    return [row(record) for record in records]


# What programs say of themselves in words: the row's members, in this order.

def members(*names):
    return lambda *records: [[str(row[name]) if isinstance(row[name], str) else f"{row[name]:,}" for name in names]
                             for record in records for row in record.rows]


MODEL_STEPS = "the model's timing steps of `tools/gpu_check.py`"

TABLES = {
    # The GEMMs' page: one table of all, or one for decode and one for prompts
    "gemm": Table(((H200, "operators"),), tokens_columns("weight, N x K", GEMM_TOKENS),
                  by_tokens("linear", DECODE_GEMM_CASES, GEMM_TOKENS, with_share), f"µs · share of the floor. {FLOOR_NOTE}"),
    "gemm-decode": operator_table("linear", DECODE_GEMM_CASES, DECODE_TOKENS, "TB/s", "weight, N x K"),
    "gemm-prefill": operator_table("linear", GEMM_CASES, (256, 512, 1024, 4096, 8192), "TFLOP/s", "weight, N x K",
                                   note=FLOOR_NOTE + "; each call from rest"),
    "gemm-sustained": operator_table("linear", GEMM_CASES, (4096, 8192), "TFLOP/s", "weight, N x K", "prompts-sustained",
                                     "At the clock that the card's power limit leaves"),
    "gemm-cublaslt": Table(((H200, "linear"), (H200, "linear-head")), tokens_columns("weight, N x K", CUBLASLT_TOKENS),
                           beside_cublaslt(CUBLASLT_TOKENS),
                           "µs: koho · cuBLASLt, one scale · the same with fast accumulation, each the best of its six algorithms"),
    # The attention page
    "attention": Table(((H200, "operators"),), ("", "q / kv heads", "pages", "µs", "TB/s", "TFLOP/s", "of the floor"), all_attention_rows,
                       FLOOR_NOTE),
    "attention-decode": Table(((H200, "operators"),), ("sequences x context", "q / kv heads", "pages", "µs", "TB/s", "of the floor"),
                              attention_rows("attention_decode", ATTENTION_DECODE, "TB/s")),
    "attention-prefill": Table(((H200, "operators"),), ("tokens", "q / kv heads", "pages", "µs", "TFLOP/s", "of the floor"),
                               attention_rows("attention_prefill", ATTENTION_PREFILL, "TFLOP/s")),
    # The experts' page
    "experts": Table(((H200, "operators"),), tokens_columns("experts x FFN", EXPERT_TOKENS),
                     by_tokens("experts", EXPERTS, EXPERT_TOKENS, with_share), f"µs · share of the floor. {FLOOR_NOTE}"),
    "experts-decode": operator_table("experts", EXPERTS, (*DECODE_TOKENS, 256), "TB/s", "experts x FFN"),
    "experts-prefill": operator_table("experts", EXPERTS, (8192,), "TFLOP/s", "experts x FFN"),
    "experts-portable": operator_table("experts", EXPERTS, (16, 64, 256), "TB/s", "experts x FFN", "experts-portable"),
    # The pages of the router, rows and sampling
    "router": operator_table("route", {"rows_5120_route": "160 experts, H = 5120"}, (1, 8, 16, 32, 64, 256, 8192), "GB/s"),
    "rows": Table(((H200, "operators"),), tokens_columns("operator", ROWS_TOKENS), several(ROWS, ROWS_TOKENS, cell_of("GB/s")),
                  "µs · GB/s · share of 4.45 TB/s"),
    "batch-slots": Table(((H200, "operators"),), tokens_columns("operator", (1, 64, 256, 1024, 8192)),
                         several(BATCH_SLOTS, (1, 64, 256, 1024, 8192), microseconds), "µs"),
    "sampling": Table(((H200, "operators"), (H200, "sampling")), ("row asks for", *(f"{count} row{'s' if count > 1 else ''}" for count in SAMPLE_SHOWN)), sample_rows,
                      "µs · GB/s · share of the time in which the card reads the logits; 151,552 tokens", newest=True),
    # docs/kernels/README.md
    "experts-forms": Table((("h100", "experts-forms"),), tokens_columns("experts x FFN", FORM_TOKENS), form_rows, "µs: decode · prefill"),
    "goals": Table((*((H200, name) for name in (*GOAL_FILES, "prompts-sustained", "sampling")), *((SECOND_H200, name) for name in GOAL_FILES)),
                   ("card", "goals reached", "missed"), goal_rows,
                   command="the timing steps of `tools/gpu_check.py`"),
    "air-steps": Table(((H200, "air-latency"),), ("ms (floor)", "B = 1", "B = 16", "B = 64"), air_step_rows,
                       "The floor is the time in which the card reads what the step reads", command=MODEL_STEPS),
    "air-prefill": Table(((H200, "air-latency"),), ("prompt", "ms", "share"), air_prefill_rows, command=MODEL_STEPS),
    "air-variants": Table(((H200, "air-latency"), (H200, "air-latency-e4m3"), (H200, "air-long-bf16"),
                           (H200, "air-long-fp8")), ("ms", "B = 1", "B = 16", "B = 64", "prompt of 8,192"), air_variant_rows,
                          command=MODEL_STEPS),
    "short-prompts": Table((("h100", "short-prompts"),), ("", "before", "after", ""), before_after_rows, "µs; steps of GLM-4.5-Air's shape, 20 layers"),
    "air-prompts": Table(((H200, "air-prompts"),), ("prompt, tokens", "ms", "tok/s", "sequences", "decode step, ms"), air_prompt_rows,
                         command=MODEL_STEPS),
    "loading": Table(((H200, "loading"),), ("commit", "GB", "page cache", "s", "GB/s"), loading_rows),
    "batch": Table(((H200, "air-batch"), (SECOND_H200, "air-batch")),
                   ("commit", "requests", "right answers", "faults", "prompt tokens", "of them cached", "generated", "s"), batch_rows),
    "long-context": Table(((H200, "long-context"),), ("deterministic", "prompt tokens a step", "cached before", "prompt, s"), long_context_rows),
    "true-widths": Table(((H200, "true-widths"), (H200, "true-widths-1")),
                         ("tokens a step", "deterministic", "distance", "of the noise", "bound", "same best token"), true_widths_rows,
                         "Distance: relative L2 of the logits from the float32 run's; the noise is that of the reference's own BF16 run"),
    "projection": Table((), ("GPUs", "sequences", "experts whole, ms", "sliced, ms", "links, ms", *(f"tok/s, {gpu}" for gpu in rank_tables.MEMORY)),
                        rank_tables.projection_rows,
                        "Of one rank alone, the wait for the slowest rank in it. A cell's step, then its links: *m* measured; *s* scaled by the "
                        "memories' nominal rates, 3.35 / 4.8 / 8 TB/s; *c* corrected: 184 all-reduces as measured among 4 H200s, with the "
                        "bytes of so many ranks. A part of the links is in the step already", optional=rank_tables.RANK_FILES,
                        command="`tools/gpu_check.py --gpus 4 (and 8) --shared-gpu --only 'one rank of'`"),
    # Of ranks and their processes on GPUs: on a page once a file is there
    "faults": Table((), ("ranks", "GPU", *rank_tables.FAULT_KINDS, "wrong"), rank_tables.fault_rows,
                    "The longest of a kind, s: until noticed + until steps can run again", optional=rank_tables.FAULT_FILES,
                    command="`tools/gpu_check.py --only broken`, with `--gpus 4` for ranks"),
    "executors": Table((), ("GPU", "sequences", "a token, thread, ms", "process, ms", ""), rank_tables.executor_rows, optional=rank_tables.on_gpus("executors")),
    "gpu-steps": Table((), ("GPUs", "layers", "sequences", "experts whole, ms", "sliced, ms"), rank_tables.gpu_step_rows, "Links are in it", optional=rank_tables.STEP_FILES,
                       command="`tools/gpu_check.py --gpus 4 --only steps`"),
    "servers": Table((), ("GPUs", "", "requests at once", "sampling", "tok/s", "first token p50, ms"), rank_tables.server_rows, optional=rank_tables.SERVER_FILES,
                     command="`tools/gpu_check.py --gpus 4 --only server`; prompts and answers of 256 tokens"),
    "rank-loading": Table((), ("ranks", "GPU", "GB", "on the device, s", "ready, s"), rank_tables.rank_loading_rows, optional=rank_tables.RANK_LOADING_FILES,
                          command="`tools/gpu_check.py --gpus 8 --shared-gpu --only loading`"),
    "rank-widths": Table((), ("ranks", "GPU", "experts", "tokens a step", "deterministic", "distance", "bound", "same best token"), rank_tables.rank_widths_rows,
                         optional=rank_tables.TRUE_WIDTHS_FILES),
    "soak": Table((("xeon", "soak"),), ("", "requests", "s", "clients that left", "at a limit", "resident MB after 5 % · at the end", "GPU's", "threads",
                                        "left over"), soak_rows, optional=rank_tables.on_gpus("soak"), command="`server_load … soak`"),
    "busy-cores": Table((("epyc", "busy-cores"),), ("threads", "alone", "one on core 0", "one", "one on each core"), busy_rows,
                        command="`tools/busy_cores.py`"),
    "serve-clients": Table((("xeon", "clients-1"), ("epyc", "clients-6"), ("epyc", "clients-both")),
                           ("", "tok/s", "TTFT", "p50", "TPOT", "p50", "ITL", "p50", "E2EL", "p50"), client_rows, command="`tools/bench_serve_check.py`"),
    # docs/performance.md: beside others
    "peer-vllm": Table((("peers", "vllm"),), ("GLM-4.5-Air-FP8, one H200", "unit", "vLLM 0.26.0", "koho", "ratio"), peer_rows),
    "cpu-llama": Table((("spr", "2core-cpu-model"), ("epyc", "cpu-model"), ("epyc", "cpu-model-avx2")),
                       ("", "decode, tok/s", "llama.cpp, Q8_0", "ratio", "prompt of 512", "llama.cpp", "ratio", "of read rate", "16 at once / 1"), llama_rows,
                       note="Read rate: in order · by pages",
                       command="`tools/llama_cpp_bench/compare.py`"),
    # docs/decisions
    "fair-prefill": Table((("epyc", "prefill"), ("epyc", "prefill-64"), (H200, "prefill"), (H200, "prefill-64")), ("long prompts", "alone, s", "beside short requests, s", "throughput kept", "first token of short ones, ms: p50", "p99", "bound"),
                          prefill_rows, "Medians of the rounds, and all rounds. The bound: three of the largest steps and a short request's own time"),
    "schema-suite": Table((("epyc", "schema-suite"),), ("seventh", "schemas", "refused", "as the suite", "valid, excluded", "invalid, allowed", "tokens", "p50, µs", "p99", "p99.9", "most"),
                          members("from", "schemas", "refused", "right", "narrower", "wrong", "tokens", "p50_us", "p99_us", "p999_us", "most_us"),
                          "Host time a token (`accept` and `fill_mask`)"),
    # docs/grammar.md
    "grammar-tokens": Table(((XEON, "grammar"),), ("grammars", "refused", "to compile, mean", "tokens", "mean", "p50", "p99", "most"),
                            members("grammars", "refused", "compile_mean", "tokens", "mean_us", "p50_us", "p99_us", "most_us"),
                            "Host time a token (`accept` and `fill_mask`), µs"),
}
