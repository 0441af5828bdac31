# SPDX-License-Identifier: Apache-2.0
"""The ways to run koho, a page of the site each: what the files of deploy/ and python/ say of themselves at their head, and
commands with the output that they really had where the site was made. A command whose programs are missing there is shown
without output, and the page says so."""

import ast
import dataclasses
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINES_MAX = 40  # of an output; the rest is cut in the middle


@dataclasses.dataclass(frozen=True)
class Run:
    """A shell command. `needs`: programs and files without which it is shown only; `expect`: its exit code, None: any;
    `why_not`: why it is shown only, wherever the page is made."""

    command: str
    needs: tuple[str, ...] = ()
    expect: int | None = 0
    why_not: str = ""


@dataclasses.dataclass(frozen=True)
class Way:
    title: str
    about: str
    files: tuple[str, ...] = ()  # whose heads are shown
    runs: tuple[Run, ...] = ()
    listed: tuple[str, ...] = ()  # that are shown whole


class Console:
    """Runs commands in a folder that looks like a user's: models/tiny in it, koho on the PATH, a server at the port that
    stands for 8000."""

    def __init__(self, koho, folder):
        self.folder = pathlib.Path(folder)
        self.not_run = []
        tools = self.folder / "bin"
        tools.mkdir(parents=True)
        (tools / "koho").symlink_to(koho)
        for name in ("models", "deploy", "run.py", "tools", "tests", "build"):
            (self.folder / name).symlink_to(ROOT / name)
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.environment = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}", PYTHONPATH=str(ROOT / "python"), PYTHONDONTWRITEBYTECODE="1",
                                KOHO_BINARY=str(koho), HF_HOME=str(self.folder / "hf"), HF_HUB_OFFLINE="1", KOHO_LOG_FORMAT="text")
        self.server = None

    def start_server(self):
        """`koho serve models/tiny`; its first lines are the quick start's."""
        self.log = self.folder / "serve.log"
        with open(self.log, "w") as log:
            self.server = subprocess.Popen(["koho", "serve", "models/tiny", "--port", str(self.port)], cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz")
                return
            except (OSError, urllib.error.URLError):
                if self.server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"koho serve did not get ready: {self.log.read_text()}") from None
                time.sleep(0.1)

    def stop_server(self):
        if self.server is not None:
            self.server.terminate()
            self.server.wait()

    def clean(self, text):
        """An output as a user would see it: without colours, this machine's folders and its free port."""
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        for folder in (self.folder, ROOT):
            text = text.replace(f"{folder}/", "").replace(str(folder), ".")
        text = text.replace(str(self.port), "8000")
        lines = [line[-1000:].split("\r")[-1] for line in text.rstrip().split("\n")]
        if len(lines) > LINES_MAX:
            lines[LINES_MAX // 2:len(lines) - LINES_MAX // 2] = [f"[{len(lines) - LINES_MAX} lines]"]
        return "\n".join(line.rstrip() for line in lines)

    def run(self, command, expect=0, needs=(), why_not=""):
        """The command and its output as a block of Markdown. Raises RuntimeError if its exit code is not as expected."""
        shown = command.replace("{port}", "8000")
        missing = [name for name in needs if not (shutil.which(name) or any(ROOT.glob(name)))]
        if why_not or missing:
            reason = why_not or "it had no " + ", no ".join(missing)
            self.not_run.append((shown, reason))
            return f"```console\n$ {shown}\n```\n\n*Not run where this page was made: {reason}.*\n"
        result = subprocess.run(["bash", "-o", "pipefail", "-c", command.replace("{port}", str(self.port))], cwd=self.folder, env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, check=False)
        if expect is not None and result.returncode != expect:
            raise RuntimeError(f"{shown}: exit code {result.returncode}, expected {expect}:\n{result.stdout}")
        output = self.clean(result.stdout)
        fence = "````" if "```" in output else "```"
        code = f"\n[exit code {result.returncode}]" if result.returncode else ""
        return f"{fence}console\n$ {shown}\n{output}{code}\n{fence}\n"


def head_of(name):
    """What a file says of itself: a module's docstring, else the comment at its top."""
    text = (ROOT / name).read_text()
    if name.endswith(".py"):
        return "```text\n" + ast.get_docstring(ast.parse(text)) + "\n```\n"
    lines = []
    for line in text.splitlines():
        if line.startswith("#!") or "SPDX-License-Identifier" in line:
            continue
        if not line.startswith("#"):
            break
        lines.append(line[1:].removeprefix(" "))
    return "```text\n" + "\n".join(lines) + "\n```\n"


def page(way, console):
    out = [f"# {way.title}\n", way.about + "\n"]
    for name in way.files:
        out += [f"`{name}`:\n", head_of(name)]
    for run in way.runs:
        out.append(console.run(run.command, run.expect, run.needs, run.why_not))
    for name in way.listed:
        kind = {"yaml": "yaml", "nix": "nix", "cfg": "text", "service": "ini"}.get(name.rsplit(".", 1)[-1], "text")
        out += [f"## {name}\n", f"```{kind}\n{(ROOT / name).read_text().strip()}\n```\n"]
    return "\n".join(out)


CHAT = """python3 - <<'END'
import koho
with koho.Engine("models/tiny") as engine:
    answer = engine.chat("What is the capital of France?", temperature=0)
    print(answer.text, answer.usage)
END"""
CURL = """curl -s localhost:{port}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "What is 37 + 48?"}], "temperature": 0, "enable_thinking": false}'"""
REQUESTS = """printf '%s\\n' '{"id": 1, "messages": [{"role": "user", "content": "What is 2 + 3?"}]}' \\
    '{"id": 2, "prompt": "Once upon a time", "max_tokens": 8}' '{"id": 3}' > requests.jsonl
koho batch models/tiny requests.jsonl answers.jsonl --temperature 0; cat answers.jsonl"""
WAYS = {
    "pip": Way("Python package", "The wheel has the program, engine.so and their C++ libraries; `koho[cuda]` adds what a GPU needs beside its driver. It needs no "
               "compiler. [The package's functions](../reference/python.md).", ("python/koho/__init__.py",), (
                   Run("./run.py --wheel", why_not="it builds for minutes"),
                   Run("python3 -m venv fresh && fresh/bin/pip install -q --no-deps build/dist/koho-*.whl && env -u PYTHONPATH -u KOHO_BINARY fresh/bin/koho --version",
                       ("build/dist/koho-*.whl",)),
                   Run(CHAT))),
    "model-name": Way("A model by its name", "A directory, or a name on the Hugging Face hub. `koho inspect` says what fits where; `koho check` reads every "
                      "header before a GPU is asked for anything.", (), (
                          Run("koho inspect --config tests/data/configs/glm-4.7-fp8.json --gpu H200 | sed -n '/^size/,/^outside/p' | head -n -2"), Run("koho check models/tiny"), Run("koho check zai-org/GLM-4.7-FP8", (), None))),
    "source": Way("From the sources", "`run.py` sets a machine up, builds and runs the main jobs. It needs Python only.", ("run.py",), (
        Run("./run.py --help"), Run("koho run models/tiny 'What is the capital of France?'"), Run("koho --version"))),
    "modal": Way("Modal", "Download, check, smoke and bench on the GPUs, then a server at a URL. The steps are `deploy/pipeline.py`'s, which run anywhere.",
                 ("deploy/modal_app.py", "deploy/pipeline.py"), (
                     Run("modal run deploy/modal_app.py", why_not="it needs an account and GPUs"),
                     Run("python3 deploy/pipeline.py models/tiny --record record.json --requests 8 --concurrency 4 --tokens 16"))),
    "docker": Way("Container", "One image: the program and its run-time libraries, as a user without rights, healthy when it is ready.", ("deploy/Dockerfile",), (
        Run("docker build -f deploy/Dockerfile -t koho .", why_not="it builds for minutes"),), ("deploy/Dockerfile",)),
    "compose": Way("Compose, Prometheus, Grafana", "koho with its [metrics](../metrics.md) in Prometheus, alerts, and a dashboard in Grafana.", ("deploy/compose/compose.yaml",), (
        Run("promtool check config deploy/compose/prometheus.yaml", ("promtool",)), Run("curl -s localhost:{port}/metrics | grep -E '^vllm:(num|kv|gen)'")),
        ("deploy/compose/compose.yaml", "deploy/compose/prometheus.yaml", "deploy/compose/rules.yaml")),
    "systemd": Way("systemd", "A hardened service that says when it is ready and that it is alive.", ("deploy/systemd/koho.service",), (
        Run("systemd-analyze security --offline=true deploy/systemd/koho.service | tail -n 1", ("systemd-analyze",), None),), ("deploy/systemd/koho.service", "deploy/systemd/koho.env")),
    "kubernetes": Way("Kubernetes", "A Helm chart: a replica is a pod with all GPUs of a model; probes, drain before the end, autoscaling on waiting requests.",
                      ("deploy/kubernetes/koho/values.yaml",), (Run("helm install glm deploy/kubernetes/koho --set replicas=2", why_not="it needs a cluster"),), ("deploy/kubernetes/koho/values.yaml",)),
    "haproxy": Way("HAProxy", "Sessions stick to the replica whose prefix cache knows them.", ("deploy/haproxy/haproxy.cfg",), (
        Run("haproxy -c -f deploy/haproxy/haproxy.cfg", ("haproxy",)),), ("deploy/haproxy/haproxy.cfg",)),
    "ray": Way("Ray", "Many machines by Ray Data and Ray Serve: [koho.ray](../reference/python.md#kohoray).", ("python/koho/ray.py", "tools/ray_check.py"), (
        Run("python3 tools/ray_check.py --prompts 400 --requests 80 --port 8199 2>/dev/null | grep -E '^(==>|    [0-9{])'", ("ray",)),)),
    "batch": Way("A file of requests", "[Its lines, resuming, exit codes](../batch.md).", (), (Run(REQUESTS),)),
    "bench": Way("Benchmarks", "`koho bench` measures an engine of its own; [performance](../performance.md) has what was recorded.", (), (
        Run("koho bench models/tiny --requests 16 --concurrency 8 --prompt-len 64 --gen-len 32"),)),
    "nix": Way("Nix and Replit", "One list of packages for both.", ("packages.nix", "flake.nix", "replit.nix"), (
        Run("nix develop -c ./run.py --smoke", why_not="it fetches nixpkgs and builds"), Run("python3 tests/nix_test.py", ("nix-instantiate",))), ("packages.nix", ".replit")),
}


def quick_start(console):
    """From the sources to an answer."""
    log = console.clean(console.log.read_text())
    return "\n".join([
        "# Quick start\n", "On a Debian 12 machine; [other ways](ways/pip.md) need less, or more.\n",
        "```console\n$ ./run.py --build\n```\n", "It leaves `build/koho`, which the pages call `koho`. The model of this page is the one in the tree, which answers on any "
        "CPU in milliseconds; [GLM-4.7-FP8 and Air](index.md) take its place by their directory.\n",
        "## Ask\n", console.run("koho run models/tiny 'What is the capital of France?'"),
        "## Serve\n", f"```console\n$ koho serve models/tiny\n{log}\n```\n", "In another terminal:\n", console.run(CURL),
        "`http://localhost:8000/ui` is a page to chat with; every client of OpenAI's or Anthropic's API works ([clients](clients.md)).\n",
        "## From Python\n", console.run(CHAT),
        "## Then\n", "- [What fits on which GPUs](ways/model-name.md), [flags](reference/serve.md), [coming from vLLM or SGLang](migration.md)\n"
        "- [Errors and what to do](troubleshooting.md)\n"])
