# SPDX-License-Identifier: Apache-2.0
"""Pages of the site that are made of the code: the flags that the program prints, include/koho/engine.h, python/koho, the errors
that src/ makes. Each function returns Markdown; none of it is committed."""

import ast
import collections
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Of the Python package, what `import koho` and its users meet.
PYTHON_MODULES = ("engine", "text", "sampling", "hub", "ray")
# Where src/ makes errors: the functions whose text is a message, up to the end of the statement.
ERROR_CALL = re.compile(r'\b(?:make_error|refuse|refused|wrong_field|fail)\((?P<arguments>(?:"(?:[^"\\]|\\.)*"|[^";])*)\);')
LITERALS = re.compile(r'(?:"(?:[^"\\]|\\.)*"\s*)+')


def cell(text):
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def code(text):
    return "`" + text.replace("|", "\\|") + "`" if text else ""


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def parse_serve_help(text):
    """Groups of (flags, value, help, default) of `koho serve --help`."""
    groups = collections.OrderedDict()
    group = None
    lines = text.splitlines()
    column = 40  # of the sentences, which begin a line of their own behind long flags
    for place, line in enumerate(lines):
        if re.fullmatch(r"[A-Z][\w ,]*:", line):
            group = groups.setdefault(line[:-1], []) if line != "Examples:" else None
        elif group is not None and line.startswith("  -"):
            alone = lines[place + 1].startswith(" " * column)
            head, words = (line, lines[place + 1]) if alone else (line[:column], line[column:])
            flags, _, value = head.strip().partition(" ")
            words, default = re.fullmatch(r"(.*?)(?: \[([^\]]*)\])?", words.strip()).groups()
            group.append((flags.split(","), value, words, default or ""))
    return groups


def serve_page(koho):
    out = ["# Flags of `koho serve`\n", "What `koho serve --help` prints. A flag `--some-name` is also the environment's `KOHO_SOME_NAME` and a line of the config "
           "file; [the server](../server.md#options) says what goes before what, [From vLLM and SGLang](../migration.md) what other engines' flags mean.\n"]
    for group, rows in parse_serve_help(koho("serve", "--help")).items():
        out.append(f"## {group}\n")
        out.append(table(("flag", "takes", "default", ""),
                         ([", ".join(map(code, flags)), code(value), code(default), cell(words)] for flags, value, words, default in rows)))
    return "\n".join(out)


def commands(koho):
    """The program's subcommands and their summaries."""
    text = koho("help").split("Subcommands:\n")[1].split("\n\n")[0]
    return [tuple(line.split(None, 1)) for line in text.splitlines()]


def commands_page(koho):
    out = ["# Commands\n", table(("command", ""), ([f"[`koho {name}`](#koho-{name})", cell(words)] for name, words in commands(koho)))]
    for name, _ in commands(koho):
        out += [f"## koho {name}\n", "[Its flags](serve.md).\n" if name == "serve" else f"```text\n{koho('help', name).strip()}\n```\n"]
    return "\n".join(out)


def parse_peer_flags(text):
    """(title, [(flags, values, sentence)]) of `koho help flags`."""
    parts = []
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if re.fullmatch(r"[A-Z].*:", line):
            parts.append((line[:-1], []))
        elif parts and line.startswith("  -"):
            flags, _, values = line.strip().partition(" ")
            parts[-1][1].append((flags.split(","), values, lines[place + 1].strip()))
    return parts


def verdicts(koho):
    """A function: flag of another engine -> what koho makes of it, in Markdown, or None for a flag that it does not know."""
    own = {flag: flags[0] for rows in parse_serve_help(koho("serve", "--help")).values() for flags, *_ in rows for flag in flags}
    (_, _), (_, accepted), (_, refused) = parse_peer_flags(koho("help", "flags"))
    rows = [(names, values, f"{word}: {cell(says)}") for word, table_rows in (("accepted", accepted), ("refused", refused))
            for names, values, says in table_rows]

    def verdict(flag):
        if flag in own:
            return "the same" if own[flag] == flag else code(own[flag])
        found = [(values, says) for names, values, says in rows if any(flag == name or (name.endswith("-") and flag.startswith(name)) for name in names)]
        return "; ".join(f"with {code(values)} {says}" if values not in ("", "VALUE") else says for values, says in found) or None
    return verdict


def migration_page(koho, run):
    engines = json.loads((ROOT / "tools/peer_flags.json").read_text())
    names = {"vllm": "vLLM", "sglang": "SGLang"}
    verdict = verdicts(koho)
    out = ["# From vLLM and SGLang\n",
           "`vllm serve` and `python -m sglang.launch_server` become `koho serve`; most command lines work as they are. Below is every flag of both, with what koho makes of "
           "it in the words of the program (`koho help flags`, which has llama.cpp's, too). *Accepted*: a line says why nothing changes.\n",
           "## A command line of vLLM\n", run("koho serve models/tiny --served-model-name glm --tensor-parallel-size 2 --enable-auto-tool-choice "
                                              "--tool-call-parser glm47 --reasoning-parser glm45 --max-num-seqs 32 --gpu-memory-utilization 0.5 --check"),
           "## A command line of SGLang\n", run("koho serve --model-path models/tiny --tp 2 --tool-call-parser glm47 --reasoning-parser glm45 "
                                                "--context-length 8192 --mem-fraction-static 0.5 --max-running-requests 32 --check"),
           "## What koho has not\n", run("koho serve models/tiny --speculative-config '{\"method\": \"mtp\"}'", expect=2), "## What differs beside flags\n",
           table(("", "vLLM, SGLang", "koho"), [
               ["metrics", "`vllm:…`, `sglang:…`", "vLLM's names where it has them, the rest `koho_…` ([metrics](metrics.md))"],
               ["a parameter nobody knows", "ignored", "ignored and counted, or refused (`--strict-params`)"],
               ["the context that fits", "vLLM: an error at start where it does not", "the longest that fits is taken and printed"],
               ["reasoning", "`reasoning_content` or `reasoning`", "both ([server](server.md))"],
               ["bits of an answer", "depend on the batch", "do not, on the CPU and on Hopper ([batch invariance](scheduling.md#batch-invariance-and-leaks))"]])]
    for engine, given in engines.items():
        known = [(flag, verdict(flag)) for flag in given["flags"]]
        unknown = [code(flag) for flag, words in known if words is None]
        out += [f"## Flags of {names[engine]} {given['version']}\n",
                f"koho knows {len(known) - len(unknown)} of {len(known)}; the others, listed below the table, end the start with exit code 2 and the flag's name.\n",
                table(("flag", "koho"), ([code(flag), words] for flag, words in known if words is not None)), f"Not known: {', '.join(unknown)}.\n"]
    return "\n".join(out)


def header_page():
    """include/koho/engine.h: each declaration with the comment above it."""
    text = (ROOT / "include/koho/engine.h").read_text()
    out = ["# include/koho/engine.h\n", "The C interface as its header documents it; [an example](../c-abi.md).\n"]
    comment, declaration, depth = [], [], 0
    for line in text.splitlines():
        if line.startswith("///") and not declaration:
            comment.append(line[4:])
        elif declaration or line.startswith(("typedef", "KOHO_API", "#define KOHO_ABI")):
            declaration.append(line)
            depth += line.count("{") - line.count("}")
            if depth == 0 and (";" in line or line.startswith("#define")):
                whole = "\n".join(declaration)
                name = re.search(r"#define (\w+)", whole) or re.search(r"(\w+);$", whole) or re.search(r"(\w+)\(", whole)
                out += [f"## {name[1]}\n", f"```c\n{whole}\n```\n", "\n".join(comment) + "\n"]
                comment, declaration = [], []
        elif not line.strip():
            comment = []
    return "\n".join(out)


def signature(node):
    text = ast.unparse(node).split("\n")[0 if not node.decorator_list else len(node.decorator_list)]
    return text.rstrip(":")


def python_members(node):
    """Public functions and classes of a module or class."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [one for one in node.body if isinstance(one, kinds) and not one.name.startswith("_")]


def python_page():
    import_text = ast.get_docstring(ast.parse((ROOT / "python/koho/__init__.py").read_text()))
    out = ["# The Python package\n", docstring(import_text)]
    for module in PYTHON_MODULES:
        text = (ROOT / f"python/koho/{module}.py").read_text()
        lines = text.splitlines()
        tree = ast.parse(text)
        out += [f"## koho.{module}\n", docstring(ast.get_docstring(tree))]
        for one in python_members(tree):
            out += [f"### {one.name}\n", f"```python\n{signature(one)}\n```\n", docstring(ast.get_docstring(one))]
            if not isinstance(one, ast.ClassDef):
                continue
            fields = [line.strip() for field in one.body if isinstance(field, (ast.AnnAssign, ast.Assign))
                      for line in lines[field.lineno - 1:field.end_lineno]]
            fields = [] if fields and fields[0].startswith("_") else fields
            if fields:
                out.append("```python\n" + "\n".join(fields) + "\n```\n")
            out += [f"`{signature(method)}`\n: {' '.join((ast.get_docstring(method) or '').split())}\n" for method in python_members(one)]
    return "\n".join(out)


def docstring(text):
    """A docstring as Markdown: indented examples are code, angle brackets are themselves."""
    return (text or "").replace("<", "&lt;") + "\n"


def error_messages(root=ROOT):
    """{folder of src: sorted [(message, code)]} of every error that src/ makes, but tests'."""
    found = collections.defaultdict(set)
    for path in sorted((root / "src").rglob("*.cpp")):
        if path.stem.endswith("_test"):
            continue
        for arguments in ERROR_CALL.findall(path.read_text()):
            kind = re.search(r"ErrorCode::(\w+)", arguments)
            texts = ["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', part)) for part in LITERALS.findall(arguments)]
            message = next((text for text in texts if " " in text.strip()), "").replace('\\"', '"').replace("\\n", " ")
            if message:
                found[path.relative_to(root / "src").parts[0]].add((re.sub(r"\{(:[^}]*)?\}", "…", message).strip(), kind[1] if kind else ""))
    return {folder: sorted(rows) for folder, rows in sorted(found.items())}


def error_codes():
    """(name, HTTP status, C status, exit code) of src/base/error.cpp."""
    return re.findall(r'\{ErrorCode::\w+, "(\w+)", (\d+), (-\d+), (\d+)\}', (ROOT / "src/base/error.cpp").read_text())


def troubleshooting_page(run):
    out = ["# Troubleshooting\n", "An error says what was expected, what was found and, where koho knows it, what to do. Search this page for the words of yours.\n", "## What people meet\n"]
    for title, advice, command, expect in TROUBLE:
        out += [f"### {title}\n", run(command, expect=expect), advice + "\n"]
    out += ["## Kinds of errors\n", "The kind decides the HTTP status, the C interface's status and the exit code.\n",
            table(("kind", "HTTP", "C", "exit code"), ([code(name), http, c, leave] for name, http, c, leave in error_codes()))]
    messages = error_messages()
    count = sum(map(len, messages.values()))
    out += ["## Every message\n", f"{count} messages of the sources, by folder; … stands for what differs.\n"]
    for folder, rows in messages.items():
        out += [f"### src/{folder}\n", table(("message", "kind"), ([cell(message), code(name)] for message, name in rows))]
    return "\n".join(out)


# (title, what to do, command, exit code)
TROUBLE = [
    ("The model's directory is not there", "Give a directory with `config.json`; a name is looked up in Hugging Face's cache.", "koho check models/none", 3),
    ("The model is another architecture", "koho runs `glm4_moe` only: [limits](limits.md).", "mkdir -p other && echo '{\"model_type\": \"llama\"}' > other/config.json && koho check other", 5),
    ("A flag is misspelt", "The message has the nearest flag.", "koho serve models/tiny --max-num-seq 4", 2),
    ("A flag of another engine has no counterpart", "`koho help flags` has all of them, and [From vLLM and SGLang](migration.md).", "koho serve models/tiny --enable-lora", 2),
    ("The port is in use", "Another `--port`, or end the other server.", "koho serve models/tiny --host 127.0.0.1 --port {port}", 10),
    ("There is no GPU", "`--device cpu`, or a build with CUDA on a machine with a GPU and its driver (`nvidia-smi`).", "koho run models/tiny --device cuda hello", None),
    ("The KV cache does not fit", "A larger share, more `--ranks`, a smaller `--max-model-len` or `--max-num-seqs`, or `--kv-cache-dtype fp8`.",
     "koho serve models/tiny --gpu-memory-utilization 0.00001 --check", 6),
    ("A request is refused", "`param` names the field.",
     "curl -s localhost:{port}/v1/chat/completions -H 'Content-Type: application/json' -d '{\"messages\": [], \"temperature\": 9}'", 0),
    ("A prompt is longer than the context", "A smaller prompt, `truncate_prompt_tokens`, or a larger `--max-model-len`.",
     "curl -s localhost:{port}/v1/completions -H 'Content-Type: application/json' -d '{\"prompt\": \"hello\", \"max_tokens\": 999999999}'", 0),
]
