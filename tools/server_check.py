#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts `koho serve`, streams completions from it with many clients at once, and counts what they get: tokens a second through
HTTP, or, with --kill, whether every answer is whole and the same while worker processes are ended. Standard library only.

    tools/server_check.py --koho build/koho --concurrency 64 --json server.json -- --model DIR --load-format dummy --device cuda --ranks 8
    tools/server_check.py --koho build/koho --kill 20 --concurrency 32 -- --model models/tiny --executor process --ranks 2 --deterministic

Prompts are random token ids, answers have exactly --generate tokens. --kill N first asks for all answers undisturbed, then again
and again while N times a worker gets SIGKILL or SIGSTOP; the answers must be those of the first round. Exit code 1 if an answer
is an error, has another number of tokens or other ones, or a process is left behind.
"""
import argparse
import asyncio
import json
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


class Server:
    """A server of its own on a free port."""

    def __init__(self, koho, flags, ready_s):
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8")
        self.process = subprocess.Popen([koho, "serve", *flags, "--served-model-name", "model", "--host", "127.0.0.1", "--port", "0"], stderr=subprocess.PIPE,
                                        stdout=subprocess.DEVNULL, text=True, start_new_session=True)
        self.port = None
        begin = time.monotonic()
        for line in self.process.stderr:
            self.log.write(line)
            if '"ready:' in line or "ready: " in line:
                self.port = int(line.split(" on 127.0.0.1:")[1].split(",")[0])
                break
            if time.monotonic() - begin > ready_s:
                break
        self.ready_s = time.monotonic() - begin
        if self.port is None:
            self.log.seek(0)
            said = self.log.read()[-600:]
            self.end()
            sys.exit(f"FAILED: the server was not ready: {said}")
        os.set_blocking(self.process.stderr.fileno(), False)

    def workers(self):
        """The worker processes: the server's children."""
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in listed.stdout.split()]

    def drain_log(self):
        """Takes what the server has logged, so that its pipe does not fill."""
        try:
            text = self.process.stderr.read()
        except (BlockingIOError, TypeError):
            return
        self.log.write(text or "")

    def end(self):
        """Returns what went wrong at the end, if anything."""
        workers = self.workers()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return "the server did not end within 60 s"
        finally:
            self.drain_log()
            self.log.close()
        time.sleep(1.5)
        left = [pid for pid in workers if pathlib.Path(f"/proc/{pid}").exists()]
        return f"workers are left: {left}" if left else None


async def answer(port, body):
    """Streams one completion: {"ids", "first_s", "seconds", "error"}."""
    begin = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
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
    server.drain_log()
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


async def disturb(server, options):
    """Ends or stops workers, one after the other, while answers stream; returns how many."""
    draw = random.Random(options.seed)
    for number in range(options.kill):
        await asyncio.sleep(draw.uniform(*options.kill_every))
        for _ in range(600):  # workers that are being started are not there yet
            workers = server.workers()
            if workers:
                break
            await asyncio.sleep(0.05)
        else:
            return number
        try:
            os.kill(draw.choice(workers), signal.SIGKILL if number % 2 == 0 else signal.SIGSTOP)
        except ProcessLookupError:
            continue
    return options.kill


async def with_kills(server, options):
    """Rounds of all requests until every kill is done."""
    requests = bodies(options)
    expected, _ = await run_all(server, requests, options.concurrency)
    found = faults_of(expected, options)
    if found:
        return found, 0
    kills = asyncio.create_task(disturb(server, options))
    rounds = 0
    while not found and (rounds == 0 or not kills.done()):
        answers, _ = await run_all(server, requests, options.concurrency)
        found += faults_of(answers, options, expected)
        rounds += 1
    if not kills.done():
        kills.cancel()
    elif kills.result() < options.kill:
        found.append(f"only {kills.result()} of {options.kill} workers could be ended: none came back")
    return found, rounds


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
    parser.add_argument("--kill", type=int, default=0, metavar="N")
    parser.add_argument("--kill-every", type=float, nargs=2, default=(0.5, 3.0), metavar="S", help="least and most seconds between two")
    parser.add_argument("--ready", type=float, default=300.0, help="seconds until the server must be ready")
    result_file.add_options(parser)
    at = given.index("--") if "--" in given else len(given)
    return parser.parse_args(given[:at]), given[at + 1:]


def main():
    options, flags = arguments(sys.argv[1:])
    server = Server(options.koho, flags, options.ready)
    print(f"ready after {server.ready_s:.1f} s", flush=True)
    row = {"op": "server", "concurrency": options.concurrency, "prompt": options.prompt, "generate": options.generate}
    try:
        if options.kill:
            found, rounds = asyncio.run(with_kills(server, options))
            row.update(kills=options.kill, rounds=rounds, seconds=0.0, tokens=rounds * options.concurrency * options.generate)
            print(f"{options.kill} workers ended or stopped in {rounds} rounds of {options.concurrency} answers")
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
    for fault in found[:20]:
        print(f"FAILED: {fault}")
    given = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    result_file.write(options, result_file.command_of("tools/server_check.py", given, flags), [{**row, "faults": len(found)}])
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
