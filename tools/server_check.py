#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts `koho serve`, streams completions from it with many clients at once, and counts what they get: tokens a second through
HTTP, or, with --faults, whether every answer is whole and the same while worker processes are ended. Standard library only.

    tools/server_check.py --koho build/koho --concurrency 64 --json server.json -- --model DIR --load-format dummy --device cuda --ranks 8
    tools/server_check.py --koho build/koho --faults 20 --concurrency 32 -- --model models/tiny --executor process --ranks 2 --deterministic

Prompts are random token ids, answers have exactly --generate tokens. --faults N first asks for all answers undisturbed, then again
and again while N times a worker is disturbed; the answers must be those of the first round. --kinds are taken in turn:

    kill     SIGKILL; now and then one of the workers that take its place too
    stop     SIGSTOP
    illegal  an illegal address in a kernel (--hook worker_fault_cuda.so), or in the process (worker_fault_cpu.so)
    hang     a kernel that never ends, or a main thread that does not go on, likewise; --step-deadline finds it

At the end a server's front gets SIGKILL while it answers: its workers must end within a second.

Exit code 1 if an answer is an error, has another number of tokens or other ones, if a worker is not noticed or not ready again
within the time of the first start and --recovery more, or if a process or memory of a GPU is left.
"""
import argparse
import asyncio
import json
import math
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import result_file

# What a worker gets. The last two do something only where the hook is loaded (tests/processes/worker_fault.cpp).
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "illegal": signal.SIGUSR1, "hang": signal.SIGUSR2}
HOOKED = ("illegal", "hang")
NOTICED_S = 60.0  # within which a fault must be noticed: longer than a worker may be silent
MEMORY_SLACK = 200 << 20  # of a GPU: less than one process' context takes
LEFT_S = 15.0  # until a GPU's memory must be free
ORPHANS_SEEN_S = 10.0  # how long workers are looked at that should have ended


def lives(pid):
    """Whether a process runs; what nobody has waited for yet does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gpu_memory():
    """Bytes in use on each GPU; empty without nvidia-smi."""
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True,
                               check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [int(line) << 20 for line in asked.stdout.split() if line.isdigit()]


def more_memory(now, before):
    """What is in use beyond `before`, in words; empty within the slack."""
    return ", ".join(f"GPU {gpu}: {used >> 20} MiB, {was >> 20} before" for gpu, (used, was) in enumerate(zip(now, before))
                     if used > was + MEMORY_SLACK)


class Server:
    """A server of its own on a free port."""

    def __init__(self, koho, flags, ready_s, environment=None):
        # A file, not a pipe: nobody reads while clients run, and a full pipe stops the server.
        self.log = tempfile.NamedTemporaryFile("r", encoding="utf-8")
        begin = time.monotonic()
        with open(self.log.name, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([koho, "serve", *flags, "--served-model-name", "model", "--host", "127.0.0.1", "--port", "0"], stderr=log,
                                            stdout=subprocess.DEVNULL, start_new_session=True, env={**os.environ, **(environment or {})})
        self.port = None
        said = ""
        while self.port is None and time.monotonic() - begin < ready_s and self.process.poll() is None:
            time.sleep(0.005)
            said += self.log.read()
            line = next((line for line in said.splitlines(keepends=True) if line.endswith("\n") and "ready: " in line), None)
            if line:
                self.port = int(line.split(" on 127.0.0.1:")[1].split(",")[0])
        self.ready_s = time.monotonic() - begin
        if self.port is None:
            self.end()
            sys.exit(f"FAILED: the server was not ready: {(said + self.log.read())[-600:]}")

    def workers(self):
        """The worker processes: the server's children."""
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in listed.stdout.split()]

    def end(self):
        """Returns what went wrong at the end, if anything."""
        workers = self.workers()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return "the server did not end within 60 s"
        time.sleep(1.5)
        left = [pid for pid in workers if lives(pid)]
        return f"workers are left: {left}" if left else None


async def answer(port, body):
    """Streams one completion: {"ids", "first_s", "seconds", "error"}."""
    begin = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)  # an event may hold the prompt's ids
    text = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                 b"Content-Length: " + str(len(text)).encode() + b"\r\n\r\n" + text)
    got = {"ids": [], "first_s": None, "error": None}
    finished = False
    async for line in reader:
        if not line.startswith(b"data: "):
            if line.startswith(b"HTTP/1.1 ") and b" 200 " not in line:
                got["error"] = line.decode().strip()
            elif got["error"] and line.startswith(b"{"):
                got["error"] += ": " + line.decode()[:200]
            continue
        if line.startswith(b"data: [DONE]"):
            finished = True
            continue
        event = json.loads(line[6:])
        if "error" in event:
            got["error"] = json.dumps(event["error"])
        for choice in event.get("choices", []):
            ids = choice.get("token_ids") or []
            if ids and got["first_s"] is None:
                got["first_s"] = time.monotonic() - begin
            got["ids"] += ids
    writer.close()
    if not finished and got["error"] is None:
        got["error"] = "the stream broke off"
    got["seconds"] = time.monotonic() - begin
    return got


def bodies(options):
    draw = random.Random(options.seed)
    extra = json.loads(options.body)
    return [{"model": "model", "prompt": [draw.randrange(options.vocabulary) for _ in range(options.prompt)], "max_tokens": options.generate,
             "ignore_eos": True, "stream": True, "return_token_ids": True, "seed": number, "temperature": 0, **extra}
            for number in range(options.requests or options.concurrency)]


async def run_all(server, requests, concurrency):
    """All answers, `concurrency` at a time, and the seconds that they took."""
    limit = asyncio.Semaphore(concurrency)

    async def one(body):
        async with limit:
            return await answer(server.port, body)
    begin = time.monotonic()
    answers = await asyncio.gather(*(one(body) for body in requests))
    return answers, time.monotonic() - begin


def faults_of(answers, options, expected=None):
    found = []
    for number, got in enumerate(answers):
        if got["error"]:
            found.append(f"answer {number}: {got['error']}")
        elif len(got["ids"]) != options.generate:
            found.append(f"answer {number}: {len(got['ids'])} tokens, {options.generate} were asked for")
        elif expected and got["ids"] != expected[number]["ids"]:
            first = next(i for i, (a, b) in enumerate(zip(got["ids"], expected[number]["ids"])) if a != b)
            found.append(f"answer {number}: token {first} differs from that of the undisturbed run")
    return found


async def health(server):
    """What /health says; {} while it says nothing."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = await reader.read()
        writer.close()
        return json.loads(text[text.index(b"{"):])
    except (OSError, ValueError):
        return {}


async def wait_until(server, condition, seconds):
    """Seconds until /health fulfils a condition; None if it does not, or the server has ended."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds and server.process.poll() is None:
        if condition(await health(server)):
            return time.monotonic() - begin
        await asyncio.sleep(0.01)
    return None


class Lost(Exception):
    """A worker that is not there, or does not come back: no further one can be disturbed."""


class Disturbance:
    """Disturbs workers, one after the other, while answers stream. Each fault: {"kind", "noticed_s", "ready_s"}."""

    def __init__(self, server, options):
        self.server, self.options = server, options
        self.faults, self.wrong = [], []
        self.memory = gpu_memory() if options.gpu_memory else []

    async def one(self, kind, draw):
        """Disturbs one worker; returns what is wrong, or None. Raises Lost."""
        restarts = (await health(self.server)).get("restarts", 0)
        try:
            os.kill(draw.choice(self.server.workers()), SIGNALS[kind])
        except (IndexError, ProcessLookupError):
            raise Lost(f"{kind}: there is no worker") from None
        noticed_s = await wait_until(self.server, lambda now: now.get("status") != "ready" or now.get("restarts", 0) > restarts, NOTICED_S)
        if noticed_s is None:
            raise Lost(f"{kind}: not noticed within {NOTICED_S:.0f} s" + (": is the hook loaded?" if kind in HOOKED else ""))
        again = kind == "kill" and draw.randrange(4) == 0
        if again:  # one of those that take its place
            await asyncio.sleep(draw.uniform(0.0, 0.3))
            for pid in self.server.workers()[:1]:
                os.kill(pid, signal.SIGKILL)
        ready_s = await wait_until(self.server, lambda now: now.get("status") == "ready" and now.get("restarts", 0) > restarts,
                                   self.options.ready)
        if ready_s is None:
            raise Lost(f"{kind}: not ready again within {self.options.ready:.0f} s")
        self.faults.append({"kind": "kill, kill" if again else kind, "noticed_s": round(noticed_s, 2), "ready_s": round(ready_s, 2)})
        if not again and ready_s > self.server.ready_s + self.options.recovery:
            return f"{kind}: ready again after {ready_s:.1f} s, {self.server.ready_s:.1f} + {self.options.recovery:g} are allowed"
        more = more_memory(gpu_memory(), self.memory) if self.memory else ""
        return f"{kind}: more memory in use than after the start: {more}" if more else None

    async def run(self):
        draw = random.Random(self.options.seed)
        kinds = self.options.kinds.split(",")
        for number in range(self.options.faults):
            await asyncio.sleep(draw.uniform(*self.options.every))
            try:
                wrong = await self.one(kinds[number % len(kinds)], draw)
            except Lost as lost:
                self.wrong.append(str(lost))
                return
            self.wrong += [wrong] if wrong else []


async def orphan(server, options):
    """Ends the front of a server while it answers."""
    asked = [asyncio.create_task(answer(server.port, body)) for body in bodies(options)]
    await asyncio.sleep(0.2)
    if options.hook and "hang" in options.kinds:
        for pid in server.workers()[:1]:
            os.kill(pid, SIGNALS["hang"])
    await asyncio.sleep(0.3)
    wrong = await asyncio.to_thread(orphans_of, server, options.orphans)
    await asyncio.gather(*asked, return_exceptions=True)
    return wrong


def orphans_of(server, allowed_s):
    """Ends the front with SIGKILL; returns what is wrong if a worker lives on for more than `allowed_s`."""
    workers = server.workers()
    server.process.kill()
    begin = time.monotonic()
    server.process.wait()
    ended = {}
    while len(ended) < len(workers) and time.monotonic() - begin < allowed_s + ORPHANS_SEEN_S:
        ended |= {pid: time.monotonic() - begin for pid in workers if pid not in ended and not lives(pid)}
        time.sleep(0.01)
    took = [f"{ended[pid]:.2f}" if pid in ended else "more" for pid in workers]
    print(f"workers without a front ended within {', '.join(took)} s")
    if not workers:
        return ["there were no workers to orphan"]
    late = any(ended.get(pid, math.inf) > allowed_s for pid in workers)
    return [f"workers outlive their front by more than {allowed_s:g} s: {', '.join(took)} s"] if late else []


async def with_faults(server, options):
    """Rounds of all requests until every fault is done; returns what is wrong, the rounds and the faults."""
    requests = bodies(options)
    expected, _ = await run_all(server, requests, options.concurrency)
    wrong = faults_of(expected, options)
    if wrong:
        return wrong, 0, []
    disturbance = Disturbance(server, options)
    running = asyncio.create_task(disturbance.run())
    rounds = 0
    while not wrong and not running.done():
        answers, _ = await run_all(server, requests, options.concurrency)
        wrong += faults_of(answers, options, expected)
        rounds += 1
    if running.done():
        running.result()
    else:
        running.cancel()
    return wrong + disturbance.wrong, rounds, disturbance.faults


def worst_of(faults):
    """{kind: the longest of its times}."""
    worst = {}
    for fault in faults:
        for name in ("noticed_s", "ready_s"):
            times = worst.setdefault(fault["kind"], {})
            times[name] = max(times.get(name, 0.0), fault[name])
    return worst


def arguments(given):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--koho", type=pathlib.Path, default=result_file.ROOT / "build" / "koho")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--requests", type=int, default=0, help="as many as --concurrency if left out")
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--generate", type=int, default=256, help="tokens")
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--body", default="{}", help="more members of each request, as JSON")
    parser.add_argument("--faults", type=int, default=0, metavar="N", help="so many workers are disturbed")
    parser.add_argument("--kinds", default="kill,stop", help=f"of {','.join(SIGNALS)}")
    parser.add_argument("--hook", type=pathlib.Path, help="the library that makes workers fail from within, for illegal and hang")
    parser.add_argument("--every", type=float, nargs=2, default=(0.2, 1.5), metavar="S", help="least and most seconds between two faults")
    parser.add_argument("--recovery", type=float, default=3.0, help="seconds beyond those of the start until workers must be ready again")
    parser.add_argument("--orphans", type=float, default=1.0, help="seconds until workers must have ended after their front")
    parser.add_argument("--gpu-memory", action="store_true", help="the GPUs' memory must be what it was, after each fault and at the end")
    parser.add_argument("--ready", type=float, default=300.0, help="seconds until the server must be ready")
    result_file.add_options(parser)
    options = parser.parse_args(given)
    kinds = options.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in SIGNALS]:
        parser.error(f"--kinds: no such kind: {', '.join(unknown)}")
    if options.faults and not options.hook and any(kind in HOOKED for kind in kinds):
        parser.error("illegal and hang need --hook: build worker_fault_cpu or worker_fault_cuda")
    return options


def hook_environment(options, flags):
    """What loads the hook into the workers, and tells it their GPUs."""
    if not options.hook:
        return {}
    devices = flags[flags.index("--devices") + 1] if "--devices" in flags else ""
    return {"LD_PRELOAD": str(options.hook.resolve()), "KOHO_FAULT_DEVICES": devices}


def main():
    own, flags = result_file.own_and_flags(sys.argv[1:])
    options = arguments(own)
    if options.faults:
        flags = [*flags, "--max-device-failures", "0"]  # those are counted here
    memory = gpu_memory() if options.gpu_memory else []
    server = Server(options.koho, flags, options.ready, hook_environment(options, flags))
    print(f"ready after {server.ready_s:.1f} s", flush=True)
    row = {"op": "server", "concurrency": options.concurrency, "prompt": options.prompt, "generate": options.generate}
    begin = time.monotonic()
    try:
        if options.faults:
            found, rounds, faults = asyncio.run(with_faults(server, options))
            row.update(disturbed=len(faults), rounds=rounds, seconds=round(time.monotonic() - begin, 1), first_start_s=round(server.ready_s, 2),
                       tokens=rounds * options.concurrency * options.generate, times=worst_of(faults))
            print(f"{len(faults)} of {options.faults} workers ended, stopped or broken in {rounds} rounds of {options.concurrency} answers")
            for kind, times in worst_of(faults).items():
                print(f"{kind}: noticed after {times['noticed_s']:.2f} s, ready {times['ready_s']:.2f} s later, at most")
        else:
            requests = bodies(options)
            asyncio.run(run_all(server, requests[:options.concurrency], options.concurrency))  # the first one warms up
            answers, seconds = asyncio.run(run_all(server, requests, options.concurrency))
            found = faults_of(answers, options)
            tokens = sum(len(got["ids"]) for got in answers)
            first = [got["first_s"] for got in answers if got["first_s"]]
            row.update(tokens=tokens, seconds=round(seconds, 4), tok_per_s=round(tokens / seconds, 1),
                       first_token_ms=round(1e3 * statistics.median(first), 1) if first else None)
            print(f"{tokens} tokens in {seconds:.2f} s: {tokens / seconds:.0f} tok/s; first token {row['first_token_ms']} ms (median)")
    finally:
        left = server.end()
    found += [left] if left else []
    if options.faults and not found:  # and while steps run, some that never end where there is a hook
        server = Server(options.koho, flags, options.ready, hook_environment(options, flags))
        found += asyncio.run(orphan(server, options))
    end = time.monotonic() + LEFT_S
    while (more := more_memory(gpu_memory(), memory) if memory else "") and time.monotonic() < end:
        time.sleep(0.5)
    found += [f"memory of a GPU is left: {more}"] if more else []
    for fault in found[:20]:
        print(f"FAILED: {fault}")
    result_file.write(options, result_file.command_of("tools/server_check.py", own, flags), [{**row, "faults": len(found)}])
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
