# SPDX-License-Identifier: Apache-2.0
"""What `./run.py --smoke` asks a model, and the referees of its answers: the goldens of the embedded model, and transformers
where it is installed. Standard library only, but for the referees."""

import array
import importlib.util
import json
import os
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent
EMBEDDED = ROOT / "models" / "tiny"
# For a model that brings no prompts.json.
QUESTIONS = ["What is 2 + 3?", "What is the capital of France?", "List the days of the week.", "Write the word river in capital letters.",
             "Tell me a short story about a fox, a forest and a key."]
REFEREED, PREFIX = 5, 16  # prompts and tokens that transformers computes, too
# transformers holds the weights in BF16 and in F32 at once, FP8 ones in F32 both times.
BYTES_PER_WEIGHT_BYTE = 10


def prompts(model):
    """[{"name", "request" (a body's prompt or messages), "max_tokens", "expect" (text of the answer) or None}]."""
    own = model / "prompts.json"
    if own.exists():
        return json.loads(own.read_text())["prompts"]
    return [{"name": question, "request": {"messages": [{"role": "user", "content": question}]}, "max_tokens": 64, "expect": None}
            for question in QUESTIONS]


def question(case):
    """What a reader is shown of a prompt."""
    request = case["request"]
    return request["messages"][-1]["content"] if "messages" in request else request["prompt"]


def golden_answers():
    """name -> the reference implementation's greedy answer of the embedded model: tests/golden/trained.* (docs/goldens.md)."""
    folder = ROOT / "tests" / "golden"
    raw = (folder / "trained.safetensors").read_bytes()
    header_bytes = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + header_bytes])

    def numbers(name):
        entry = header[name]
        begin, end = entry["data_offsets"]
        values = array.array({"I32": "i", "F32": "f"}[entry["dtype"]])
        values.frombytes(raw[8 + header_bytes + begin:8 + header_bytes + end])
        return values.tolist()

    answers = {}
    for index, entry in enumerate(json.loads((folder / "trained.json").read_text())):
        best = numbers(f"{index:02}.best_logits")
        answers[entry["name"]] = {"prompt_ids": numbers(f"{index:02}.ids"), "ids": numbers(f"{index:02}.greedy_ids"),
                                  "gaps": [best[2 * i] - best[2 * i + 1] for i in range(len(best) // 2)],
                                  "noise": numbers(f"{index:02}.rounding_noise")}
    return answers


def agreement(found, reference):
    """Whether `found` is the beginning of the reference's ids, or the other way round, up to a first difference where the
    reference's own two best logits are closer than its rounding noise. Returns (agrees, words)."""
    for i, (ours, theirs) in enumerate(zip(found, reference["ids"])):
        if ours != theirs:
            near = reference["gaps"][i] < reference["noise"][i]
            return near, (f"equal up to token {i}, a near tie of the reference" if near else f"DIFFER at token {i}")
    return len(found) > 0, f"all {min(len(found), len(reference['ids']))} equal"


def missing_packages(*names):
    return [name for name in names if importlib.util.find_spec(name) is None]


def transformers_ids(model, cases):
    """The token ids of all prompts by transformers.AutoTokenizer and its chat template; or why there are none, as text."""
    if missing := missing_packages("transformers"):
        return f"{missing[0]} is not installed"
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    found = []
    for case in cases:
        request = dict(case["request"])
        text = request.get("prompt")
        if text is None:
            text = tokenizer.apply_chat_template(request.pop("messages"), tools=request.pop("tools", None), tokenize=False,
                                                 add_generation_prompt=True, **request)
        found.append(tokenizer.encode(text, add_special_tokens=False))
    return found


def transformers_answers(model, prompts_ids):
    """Transformers' greedy answers to prompts of token ids, PREFIX tokens each, as golden_answers() has them (FP8 as in
    tools/golden/reference.py); or why there are none, as text."""
    if missing := missing_packages("torch", "transformers", "numpy", "safetensors"):
        return f"{', '.join(missing)} not installed"
    need = BYTES_PER_WEIGHT_BYTE * sum(path.stat().st_size for path in model.glob("*.safetensors"))
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if need > have:
        return f"it would need {need / 2**30:.0f} GiB of memory, {have / 2**30:.0f} are free"
    import torch
    from golden import goldens, reference
    checkpoint = reference.Checkpoint(model)
    rounded, exact = (reference.load(checkpoint, dtype) for dtype in (torch.bfloat16, torch.float32))
    answers = []
    for ids in prompts_ids:
        golden = goldens.greedy_golden(rounded, exact, ids, PREFIX)
        best = golden["best_logits"].tolist()
        answers.append({"ids": golden["greedy_ids"].tolist(), "gaps": [first - second for first, second in best],
                        "noise": golden["rounding_noise"].tolist()})
    return answers
