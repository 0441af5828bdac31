# SPDX-License-Identifier: Apache-2.0
"""Writes the committed goldens: number formats, random checkpoints, the trained model. Needs torch and transformers."""
import json
import pathlib
import tempfile

import torch
import transformers
from safetensors.torch import save_file

from . import generator, reference, variants

MEDIAN_FACTOR, MEDIAN_SLACK = 1.35, 0.005  # the rule for every random checkpoint
ONE_LAYER_FACTOR, FORGOTTEN_FACTOR = 0.9, 1.05  # the rule for FP8 checkpoints of one layer


def make_codec(directory: pathlib.Path) -> int:
    """All bytes of E4M3 to f32, and every bf16 and f16 to E4M3 (clamped to ±448 first), as torch casts them."""
    words = torch.arange(65536, dtype=torch.int32).to(torch.uint16)

    def e4m3_bytes(values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.float32).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)

    e4m3 = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
    save_file({
        "e4m3_as_f32": e4m3.to(torch.float32),
        "e4m3_as_bf16": e4m3.to(torch.bfloat16),
        "e4m3_as_f16": e4m3.to(torch.float16),
        "bf16_as_e4m3": e4m3_bytes(words.view(torch.bfloat16)),
        "f16_as_e4m3": e4m3_bytes(words.view(torch.float16)),
    }, directory / "number_formats.safetensors")
    return 0


def greedy_golden(rounded, exact, ids: list[int], count: int) -> dict[str, torch.Tensor]:
    """The bfloat16 run's greedy continuation; of each step its two best tokens, and how far the float32 run, fed the
    same tokens, lies from it: the step's rounding noise, the largest difference over the vocabulary."""
    chosen, rows = reference.greedy(rounded, ids, count)
    rows = rows.to(torch.float32)
    exact_rows = reference.prefill_logits(exact, ids + chosen[:-1])[len(ids) - 1:]
    best = rows.topk(2, dim=-1)
    return {
        "greedy_ids": torch.tensor(chosen, dtype=torch.int32),
        "best_ids": best.indices.to(torch.int32),
        "best_logits": best.values,
        "rounding_noise": (rows - exact_rows).abs().amax(dim=-1),
    }


def checkpoint_golden(spec: dict, directory: pathlib.Path) -> tuple[dict[str, torch.Tensor], dict]:
    """Tensors and facts of one random checkpoint; the checkpoint's files are written below `directory`."""
    files = generator.make_files(spec)
    generator.write_files(files, directory / spec["name"])
    checkpoint = reference.Checkpoint(directory / spec["name"])
    ids = generator.prompt_ids(spec)
    exact, rounded = reference.load(checkpoint, torch.float32), reference.load(checkpoint, torch.bfloat16)
    exact_logits, rounded_logits = reference.prefill_logits(exact, ids), reference.prefill_logits(rounded, ids)
    tensors = {"ids": torch.tensor(ids, dtype=torch.int32), "bf16_run": rounded_logits,
               "f32_run": exact_logits.to(torch.float16)} | greedy_golden(rounded, exact, ids, spec["greedy_tokens"])
    noise = reference.median(reference.distance(rounded_logits, exact_logits))
    bound = MEDIAN_FACTOR * noise + MEDIAN_SLACK
    facts = {"files": generator.checksums(files), "noise": round(noise, 5), "forgotten": {}}
    for name, (edit, context) in variants.variants(spec).items():
        logits = variants.run_variant(checkpoint, edit, context, ids)
        facts["forgotten"][name] = round(reference.median(reference.distance(logits, exact_logits)) / bound, 3)
        if name == "no activation quantisation":
            facts["unquantized_to_bf16_run"] = round(
                reference.median(reference.distance(logits, rounded_logits)) / noise, 3)
    return tensors, facts


def is_one_layer_fp8(spec: dict) -> bool:
    """One layer, every linear of it FP8."""
    return (spec["num_hidden_layers"] == 1 and spec["quantization"] != "none"
            and all(scheme != "bf16" for _, scheme in spec["schemes"]))


def make_checkpoints(directory: pathlib.Path, specs: list[dict]) -> int:
    path = directory / "goldens.json"
    facts = json.loads(path.read_text()) if path.exists() else {"checkpoints": {}}
    facts |= {"torch": torch.__version__, "transformers": transformers.__version__}
    caught: dict[str, float] = {}
    for spec in specs:
        with tempfile.TemporaryDirectory() as scratch:
            tensors, found = checkpoint_golden(spec, pathlib.Path(scratch))
        if is_one_layer_fp8(spec) and found["unquantized_to_bf16_run"] < FORGOTTEN_FACTOR:
            print(f"{spec['name']}: forgetting to quantise activations is only {found['unquantized_to_bf16_run']} of "
                  f"the noise from the bfloat16 run; at least {FORGOTTEN_FACTOR} is needed to tell")
            return 1
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / f"{spec['name']}.safetensors")
        facts["checkpoints"][spec["name"]] = found
        for name, ratio in found["forgotten"].items():
            caught[name] = max(caught.get(name, 0), ratio)
        print(f"{spec['name']:24} noise {found['noise']:.4f}  {found['forgotten']}", flush=True)
    path.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    for name, ratio in caught.items():
        if ratio < 1 and name != "no activation quantisation":
            print(f"no checkpoint notices: {name} ({ratio})")
            return 1
    return 0


def make_trained(directory: pathlib.Path, model: pathlib.Path) -> int:
    from . import prompts
    checkpoint = reference.Checkpoint(model)
    exact, rounded = reference.load(checkpoint, torch.float32), reference.load(checkpoint, torch.bfloat16)
    tensors, lines = {}, []
    for index, prompt in enumerate(prompts.trained_prompts(model)):
        golden = greedy_golden(rounded, exact, prompt["ids"], prompts.NEW_TOKENS)
        golden["ids"] = torch.tensor(prompt["ids"], dtype=torch.int32)
        tensors |= {f"{index:02}.{name}": tensor.contiguous() for name, tensor in golden.items()}
        gaps = golden["best_logits"][:, 0] - golden["best_logits"][:, 1]
        close = int((gaps < golden["rounding_noise"]).sum())
        continuation = prompt["decode"](golden["greedy_ids"].tolist())
        lines.append({"name": prompt["name"], "text": prompt["text"], "continuation": continuation})
        print(f"{prompt['name']:28} {len(prompt['ids']):4} ids, {close:3} of {len(gaps)} choices within the noise: "
              f"{lines[-1]['continuation'][:70]!r}", flush=True)
    save_file(tensors, directory / "trained.safetensors")
    (directory / "trained.json").write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n")
    return 0
