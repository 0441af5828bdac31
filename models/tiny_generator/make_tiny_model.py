#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the embedded model models/tiny from nothing: corpus, tokenizer, training, FP8 export, evaluation.

  make_tiny_model.py corpus --count 20            # look at documents of the corpus
  make_tiny_model.py tokenizer                    # train models/tiny/tokenizer.json (CPU, seconds)
  make_tiny_model.py train --device cuda --seconds 780 --out run.pt
  make_tiny_model.py export --run run.pt          # FP8 shards, index and configs into models/tiny
  make_tiny_model.py evaluate --device cuda --json results.json
  make_tiny_model.py parity                       # float32 logits against transformers (CPU)
  make_tiny_model.py demonstrate                  # the prompts of models/tiny/prompts.json

Needs torch, tokenizers, jinja2, safetensors; `parity` needs transformers as well. Refuses to guess:
the chat template must stand in models/tiny before anything is rendered.
"""

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

MODEL_DIR = Path(__file__).resolve().parents[1] / "tiny"


def corpus(args):
    from tiny_model import chat

    rng = random.Random(args.seed)
    for _ in range(args.count):
        print(json.dumps(chat.document(rng, "train", args.long), ensure_ascii=False))


def tokenizer(args):
    from tiny_model import tokenizer as tok

    tok.train(args.documents, args.seed).save(str(args.model / "tokenizer.json"))


def load_tokenizer(args):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(args.model / "tokenizer.json"))


def train(args):
    from tiny_model import train as run

    run.train(
        load_tokenizer(args),
        args.out,
        args.seconds,
        args.device,
        args.seed,
        args.optimizer,
        args.lr,
        args.workers,
        args.max_steps,
    )


def export(args):
    from tiny_model import export as out, train as run

    model, saved = run.load(args.run)
    total = out.export(model, args.model)
    print(
        f"exported {total} bytes of tensors; trained {saved['steps']} steps, {saved['tokens']} tokens, "
        f"{saved['wall']} s on the clock, last {saved['log'][-1] if saved['log'] else 'no log'}"
    )


def load_model(args):
    from tiny_model import export as out

    return out.load_exported(args.model, args.device)


def evaluate(args):
    from tiny_model import evaluate as ev

    results = ev.evaluate(
        load_model(args), load_tokenizer(args), args.count, args.seed, not args.quick, args.show, args.only
    )
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


def parity(args):
    from tiny_model import evaluate as ev

    error = ev.parity(load_model(args))
    print(f"relative error of float32 logits against transformers: {error:.2e}")
    return 0 if error < 1e-5 else 1


def demonstrate(args):
    from tiny_model import evaluate as ev

    prompts = json.loads((args.model / "prompts.json").read_text("utf-8"))["prompts"]
    right = ev.demonstrate(load_model(args), load_tokenizer(args), prompts)
    print(f"{right} of {len(prompts)}")
    return 0 if right == len(prompts) else 1


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(function, **seed):
        sub = commands.add_parser(function.__name__)
        sub.set_defaults(function=function)
        sub.add_argument(
            "--model", type=Path, default=MODEL_DIR, help="the model directory (default models/tiny)"
        )
        sub.add_argument("--device", default="cpu")
        sub.add_argument("--seed", type=int, **(seed or {"default": 0}))
        return sub

    sub = command(corpus)
    sub.add_argument("--count", type=int, default=10)
    sub.add_argument("--long", action="store_true")
    sub = command(tokenizer)
    sub.add_argument("--documents", type=int, default=60000)
    sub = command(train, default=1)
    sub.add_argument("--seconds", type=float, default=780, help="training time, compilation not counted")
    sub.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    sub.add_argument("--lr", type=float, default=0.02)
    sub.add_argument("--workers", type=int, default=12)
    sub.add_argument("--max-steps", type=int, help="of each phase, for a trial; on the CPU rows are short")
    sub.add_argument("--out", default="tiny-run.pt")
    sub = command(export)
    sub.add_argument("--run", default="tiny-run.pt")
    sub = command(evaluate, default=7)
    sub.add_argument("--count", type=int, default=400)
    sub.add_argument("--quick", action="store_true", help="fewer kinds of string tasks")
    sub.add_argument("--show", type=int, default=2, help="wrong answers shown of each kind")
    sub.add_argument("--only", default="", help="a regular expression on the names of the kinds")
    sub.add_argument("--json")
    command(parity)
    command(demonstrate)
    args = parser.parse_args()
    if args.device == "cpu" and args.command in ("evaluate", "parity", "demonstrate"):
        import torch

        torch.set_num_threads(1)  # the tensors are tiny: more threads only wait for each other
    sys.exit(args.function(args))


if __name__ == "__main__":
    main()
