# SPDX-License-Identifier: Apache-2.0
"""koho on Modal (pip install modal; modal setup).

    ./run.py --wheel --device cuda
    modal run deploy/modal_app.py             download, check, smoke, bench on GPU; prints JSON, fails below its floor
    modal deploy deploy/modal_app.py          the server: OpenAI's and Anthropic's APIs at the URL that is printed
    modal run deploy/modal_app.py::ask --prompt "Hello"

The environment variable KOHO_MODAL chooses another row of MACHINES. The weights live in the Volume "koho-models", where a
second run finds them; the record of the steps beside them lets an interrupted run go on. A private or gated model needs
the Secret "huggingface-secret" with HF_TOKEN.
"""
import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

import modal

# GPU -> model, ranks, longest context that fits beside the weights with BF16 keys and values, floor of tokens/s at 64 at
# once. A GPU of "H200:4" holds 89 GB of GLM-4.7-FP8's weights, of "H100:8" 45 GB.
MACHINES = {
    "B200:8": {"model": "zai-org/GLM-4.7-FP8", "ranks": 8, "context": 202752, "tokens_per_s_min": 3000.0},
    "H200:8": {"model": "zai-org/GLM-4.7-FP8", "ranks": 8, "context": 202752, "tokens_per_s_min": 0.0},
    "H200:4": {"model": "zai-org/GLM-4.7-FP8", "ranks": 4, "context": 202752, "tokens_per_s_min": 0.0},
    "H100:8": {"model": "zai-org/GLM-4.7-FP8", "ranks": 8, "context": 202752, "tokens_per_s_min": 0.0},
    "H200": {"model": "zai-org/GLM-4.5-Air-FP8", "ranks": 1, "context": 65536, "tokens_per_s_min": 0.0},
}
GPU = os.environ.get("KOHO_MODAL", "B200:8")
MACHINE = MACHINES[GPU]
REVISION = os.environ.get("KOHO_MODEL_REVISION")  # None: the newest

MINUTES = 60
PORT = 8000
MODELS = pathlib.Path("/models")
EXIT_GRACE_S = 25  # Modal waits so long after SIGTERM
CONCURRENCY = 256

here = pathlib.Path(__file__).resolve().parent
wheels = sorted((here.parent / "build" / "dist").glob("koho-*.whl")) if modal.is_local() else []
if modal.is_local() and not wheels:
    raise SystemExit("build/dist holds no wheel; make it with: ./run.py --wheel --device cuda")

image = modal.Image.debian_slim(python_version="3.12")
if wheels:
    image = image.add_local_file(wheels[-1], f"/wheel/{wheels[-1].name}", copy=True).run_commands(
        f"pip install '/wheel/{wheels[-1].name}[cuda]'")
image = image.env({"KOHO_MODAL": GPU, "NCCL_NVLS_ENABLE": "0", "PYTHONPATH": "/opt/koho"}).add_local_file(
    here / "pipeline.py", "/opt/koho/pipeline.py")

app = modal.App("koho", image=image)
volume = modal.Volume.from_name("koho-models", create_if_missing=True)
secrets = [modal.Secret.from_name("huggingface-secret")] if os.environ.get("KOHO_HF_SECRET") else []


def flags():
    return ["--device", "cuda", *(["--ranks", str(MACHINE["ranks"])] if MACHINE["ranks"] > 1 else [])]


def steps(names):
    """Runs steps of the pipeline and makes what they wrote durable after each."""
    import pipeline
    volume.reload()
    return pipeline.run(MACHINE["model"], REVISION, MODELS, MODELS / f"pipeline-{GPU.replace(':', 'x')}.json", flags(),
                        tokens_per_s_min=MACHINE["tokens_per_s_min"], steps=names, after=volume.commit)


# The download needs no GPU and may take long; it goes on where it ended.
@app.function(volumes={str(MODELS): volume}, secrets=secrets, timeout=4 * 60 * MINUTES, cpu=8, memory=16384,
              retries=modal.Retries(max_retries=3, initial_delay=10.0))
def download():
    return steps(["download", "check"])


@app.function(gpu=GPU, volumes={str(MODELS): volume}, timeout=60 * MINUTES)
def measure():
    """Smoke and bench on the GPUs. A figure below the machine's floor is a failure."""
    return steps(["smoke", "bench"])


@app.local_entrypoint()
def main(out: str = ""):
    """download -> check -> smoke -> bench."""
    results = download.remote() | measure.remote()
    text = json.dumps(results["bench"], indent=2)
    print(text)
    if out:
        pathlib.Path(out).write_text(text + "\n")


class Server:
    """`koho serve` as a child process of a container."""

    def __init__(self, command):
        self.command = command
        self.process = None

    def start(self, timeout_s):
        """Returns when the server is ready. Raises RuntimeError if it ends or is late."""
        self.process = subprocess.Popen(self.command)
        deadline = time.monotonic() + timeout_s
        while not self.ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"koho serve ended with exit code {self.process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"koho serve was not ready after {timeout_s} s")
            time.sleep(0.5)

    @staticmethod
    def ready():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def stop(self):
        """Drains: running requests end, new ones are refused; then the process ends."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    @staticmethod
    def call(path, body=None):
        """The answer of one endpoint, as JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


def serve_command(path):
    from pipeline import program
    return [program(), "serve", str(path), *flags(), "--host", "0.0.0.0", "--port", str(PORT),
            "--max-model-len", str(MACHINE["context"]), "--max-num-seqs", str(CONCURRENCY),
            "--served-model-name", MACHINE["model"], "--served-model-name", "llm",
            "--shutdown-timeout", str(EXIT_GRACE_S - 5), "--overload-status", "503"]


@app.cls(gpu=GPU, volumes={str(MODELS): volume}, timeout=60 * MINUTES, startup_timeout=20 * MINUTES,
         scaledown_window=15 * MINUTES)
@modal.concurrent(max_inputs=CONCURRENCY, target_inputs=CONCURRENCY // 2)
class Koho:
    """The server at a URL, and its methods for other Modal functions. koho tests its kernels before it is ready."""

    @modal.enter()
    def start(self):
        volume.reload()
        path = MODELS / MACHINE["model"].split("/")[-1]
        if not path.is_dir():
            raise RuntimeError(f"{path} is missing; fetch it with: modal run deploy/modal_app.py")
        self.server = Server(serve_command(path))
        self.server.start(20 * MINUTES)

    @modal.exit()
    def stop(self):
        self.server.stop()

    @modal.web_server(PORT, startup_timeout=20 * MINUTES)
    def web(self):
        """Requests go to the process that start() started."""

    @modal.method()
    def generate(self, messages: list, options: dict | None = None) -> dict:
        """One chat completion, as OpenAI's API answers it."""
        return self.server.call("/v1/chat/completions", {"messages": messages, "model": "llm", **(options or {})})

    @modal.method()
    def generate_batch(self, conversations: list, options: dict | None = None) -> list:
        """Chat completions of many conversations, computed together."""
        import concurrent.futures
        body = [{"messages": messages, "model": "llm", **(options or {})} for messages in conversations]
        with concurrent.futures.ThreadPoolExecutor(CONCURRENCY) as pool:
            return list(pool.map(lambda one: self.server.call("/v1/chat/completions", one), body))

    @modal.method()
    def get_stats(self) -> dict:
        """The server's own figures."""
        return self.server.call("/server_info")


@app.local_entrypoint()
def ask(prompt: str = "What is 2 + 3?"):
    """One question to the deployed class, or to a container that is started for it."""
    answer = Koho().generate.remote([{"role": "user", "content": prompt}])
    print(answer["choices"][0]["message"]["content"])
