#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From a model's name to a measured server, in steps that are timed and can go on where they ended: download, check, smoke,
bench. modal_app.py runs these functions on Modal's GPUs; the same file runs them on any machine:

    python3 deploy/pipeline.py models/tiny --record build/pipeline.json
    python3 deploy/pipeline.py zai-org/GLM-4.7-FP8 --folder /models --ranks 8 --tokens-per-s-min 3000

Needs the package koho (pip install koho), or KOHO_BINARY. Exit code 1 if a step fails, with its reason.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

STEPS = ["download", "check", "smoke", "bench"]


class StepFailed(Exception):
    """A step's reason, for its user."""


def program():
    """The program koho: what KOHO_BINARY names, else the installed package's, else the source tree's build."""
    named = os.environ.get("KOHO_BINARY")
    if named:
        return named
    try:
        from koho.program import path
        return str(path())
    except ImportError:
        return "koho"


def koho(*arguments, stdin=None):
    """Standard output of one command of the program. Its log goes to this process's standard error."""
    command = [program(), *map(str, arguments)]
    result = subprocess.run(command, input=stdin, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise StepFailed(f"{' '.join(command)} ended with exit code {result.returncode}")
    return result.stdout


def download(model, revision, folder):
    """The model's directory: `model` itself if it is one, else fetched from the Hugging Face hub into `folder`. What is
    there already is not fetched again."""
    if pathlib.Path(model).is_dir():
        return str(pathlib.Path(model).resolve())
    from huggingface_hub import snapshot_download
    target = pathlib.Path(folder) / model.split("/")[-1]
    return snapshot_download(model, revision=revision, local_dir=target,
                             allow_patterns=["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"])


def check(path):
    """Every tensor's name, type, shape and place."""
    return json.loads(koho("check", "--model", path, "--json"))


def smoke(path, flags):
    """One short greedy answer to each of five questions; none may be empty or fail."""
    questions = ["What is 2 + 3?", "Name the capital of France.", "Once upon a time", "Count from one to five.",
                 "Write the word hello."]
    answers = []
    for question in questions:
        line = koho("run", "--model", path, *flags, "--temperature", "0", "--max-tokens", "32", "--json", question)
        answer = json.loads(line.splitlines()[-1])
        if not answer["ids"]:
            raise StepFailed(f"the answer to {question!r} is empty")
        answers.append({"question": question, "text": answer.get("text", ""), "ids": answer["ids"]})
    return {"answers": answers}


def bench(path, flags, requests, concurrency, tokens, tokens_per_s_min, folder):
    """`requests` requests, `concurrency` at once, of `tokens` prompt tokens and as many generated ones."""
    out = pathlib.Path(folder) / "bench.json"
    koho("bench", "--model", path, *flags, "--requests", requests, "--concurrency", concurrency, "--prompt-len", tokens,
         "--gen-len", tokens, "--no-prefix-cache", "--json", out)
    result = json.loads(out.read_text())
    rate = result["output_throughput"]
    if rate < tokens_per_s_min:
        raise StepFailed(f"{rate:.0f} tokens/s at {concurrency} at once; {tokens_per_s_min:.0f} are expected of this machine")
    return result


class Record:
    """Results of the steps in one JSON file. A step that succeeded for the same key is not run again."""

    def __init__(self, path, key):
        self.path, self.key = pathlib.Path(path), key
        try:
            found = json.loads(self.path.read_text())
        except (OSError, ValueError):
            found = {}
        self.steps = found.get("steps", {}) if found.get("key") == key else {}

    def run(self, name, work, after=lambda: None):
        if self.steps.get(name, {}).get("ok"):
            print(f"==> {name}: done before, {self.steps[name]['seconds']:.1f} s", flush=True)
            return self.steps[name]["result"]
        print(f"==> {name}", flush=True)
        started = time.monotonic()
        entry = {"ok": False}
        try:
            entry |= {"result": work(), "ok": True}
            return entry["result"]
        except Exception as error:
            entry["error"] = str(error)
            raise
        finally:
            entry["seconds"] = round(time.monotonic() - started, 3)
            self.steps[name] = entry
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps({"key": self.key, "steps": self.steps}, indent=1))
            part.replace(self.path)
            after()
            print(f"    {'ok' if entry['ok'] else 'FAILED: ' + entry['error']}, {entry['seconds']:.1f} s", flush=True)


def run(model, revision, folder, record, flags=(), requests=256, concurrency=64, tokens=256, tokens_per_s_min=0.0,
        steps=tuple(STEPS), after=lambda: None):
    """The steps in order; returns their results by name. `after` is called when a step has been recorded."""
    version = koho("--version").strip()
    book = Record(record, {"model": model, "revision": revision, "koho": version, "flags": list(flags)})
    results = {}
    path = None
    for name in steps:
        if name == "download":
            path = results[name] = book.run(name, lambda: download(model, revision, folder), after)
            continue
        path = path or download(model, revision, folder)
        work = {"check": lambda: check(path), "smoke": lambda: smoke(path, flags),
                "bench": lambda: bench(path, flags, requests, concurrency, tokens, tokens_per_s_min,
                                       pathlib.Path(record).parent)}[name]
        results[name] = book.run(name, work, after)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model's directory, or its name on the Hugging Face hub")
    parser.add_argument("--revision", help="of the hub's repository")
    parser.add_argument("--folder", default="models", help="where a fetched model goes (%(default)s)")
    parser.add_argument("--record", default="build/pipeline.json", help="the steps' results and times (%(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="ranks (%(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")
    parser.add_argument("--requests", type=int, default=256, help="of the bench (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=64, help="of the bench (%(default)s)")
    parser.add_argument("--tokens", type=int, default=256, help="of a prompt and of an answer (%(default)s)")
    parser.add_argument("--tokens-per-s-min", type=float, default=0.0, help="a bench below it fails (%(default)s)")
    parser.add_argument("--steps", default=",".join(STEPS), help="comma-separated (%(default)s)")
    options = parser.parse_args()
    flags = ["--device", options.device, *(["--ranks", str(options.ranks)] if options.ranks > 1 else [])]
    try:
        results = run(options.model, options.revision, options.folder, options.record, flags, options.requests,
                      options.concurrency, options.tokens, options.tokens_per_s_min, options.steps.split(","))
    except (StepFailed, OSError) as error:
        sys.exit(f"pipeline: {error}")
    if "bench" in results:
        print(f"==> {results['bench']['output_throughput']:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
