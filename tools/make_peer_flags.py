#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tools/peer_flags.json: the names of the flags of `vllm serve` and of SGLang's launch_server, read from the sources in
their wheels, which are not run. The migration page of the site says of each what koho makes of it.

    pip download --no-deps vllm sglang
    tools/make_peer_flags.py vllm-*.whl sglang-*.whl
"""

import argparse
import ast
import json
import pathlib
import zipfile

OUT = pathlib.Path(__file__).resolve().parent / "peer_flags.json"
# Engine -> (modules whose add_argument() calls count, (folder or module, end of the names of classes whose annotated fields are flags)).
SOURCES = {
    "vllm": (("engine/arg_utils", "entrypoints/common/cli_args", "entrypoints/cli/serve"), ("entrypoints/common/cli_args", "FrontendArgs")),
    "sglang": (("srt/server_args",), ("srt/arg_groups/fields/", "")),
}


def strings(node):
    return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def argument_flags(tree):
    """Flags of add_argument() calls: their positional strings."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument"]
    return {one.value for call in calls for one in call.args if isinstance(one, ast.Constant) and str(one.value).startswith("-")}


def field_flags(tree, suffix):
    """Flags of annotated fields of classes whose names end in `suffix`; Arg(no_cli=True) is none, Arg(aliases=[…]) are more."""
    found = set()
    for one in ast.walk(tree):
        if not (isinstance(one, ast.ClassDef) and one.name.endswith(suffix)):
            continue
        for field in one.body:
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)) or field.target.id.startswith("_"):
                continue
            options = {key.arg: key.value for call in ast.walk(field.annotation) if isinstance(call, ast.Call) for key in call.keywords}
            if "no_cli" in options:
                continue
            names = strings(options["cli_name"]) if "cli_name" in options else ["--" + field.target.id.replace("_", "-")]
            found |= set(names) | set(strings(options["aliases"]) if "aliases" in options else [])
    return found


def flags_of(engine, wheel):
    arguments, (folder, suffix) = SOURCES[engine]
    with zipfile.ZipFile(wheel) as archive:
        def tree(name):
            return ast.parse(archive.read(name).decode())
        found = set().union(*(argument_flags(tree(f"{engine}/{name}.py")) for name in arguments))
        for name in archive.namelist():
            if name.startswith(f"{engine}/{folder}") and name.endswith(".py"):
                found |= field_flags(tree(name), suffix)
    return sorted(flag for flag in found if flag.startswith("-"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=pathlib.Path)
    made = json.loads(OUT.read_text()) if OUT.exists() else {}
    for wheel in parser.parse_args().wheels:
        engine, version = wheel.name.split("-")[:2]
        made[engine] = {"version": version, "flags": flags_of(engine, wheel)}
        print(f"{engine} {version}: {len(made[engine]['flags'])} flags")
    OUT.write_text(json.dumps(made, indent=0) + "\n")


if __name__ == "__main__":
    main()
