#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/haproxy/haproxy.cfg before two replicas of the embedded model: sessions stick; one replica killed under load loses no
request that had not begun to stream; a rolling restart drops nothing. KOHO_BINARY names the program. Skipped (exit code 77)
without haproxy."""

import collections
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import packages

CONFIG = packages.ROOT / "deploy" / "haproxy" / "haproxy.cfg"
MODEL = packages.ROOT / "models" / "tiny"
CLIENTS = 8
TOKENS = 48
LONG_TOKENS = 1000  # of a stream that goes on longer than HAProxy's checks need to see that a replica drains
CHECK_MS = 200  # between HAProxy's checks: sooner than in the file, so that the test is short
PADDING = " " * 50_000  # makes a body larger than HAProxy's usual buffer


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def get(port, path):
    """The status of a GET, 0 where nobody answers."""
    try:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status
    except OSError:
        return 0


def until(condition, what, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


class Replica:
    """`koho serve`; the name of its model tells who answered."""

    def __init__(self, name, port):
        self.name, self.port, self.process = name, port, None
        self.start()

    def start(self):
        self.process = subprocess.Popen([os.environ["KOHO_BINARY"], "serve", str(MODEL), "--device", "cpu", "--threads", "1", "--port",
                                         str(self.port), "--served-model-name", self.name, "--max-num-seqs", "16", "--log-level", "error"],
                                        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def wait_ready(self):
        until(lambda: get(self.port, "/readyz") == 200, f"{self.name} is ready")

    def stop(self, number):
        self.process.send_signal(number)
        return self.process.wait(120)


class Answer:
    def __init__(self):
        self.model = self.text = self.error = None
        self.began = False  # a byte of the answer has come


def ask(port, session, prompt, stream, padding="", tokens=TOKENS):
    """One completion through HAProxy. Errors are in the answer."""
    answer = Answer()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": stream}
        connection.request("POST", "/v1/completions", json.dumps(body) + padding, {"Content-Type": "application/json", "X-Session-Id": session})
        response = connection.getresponse()
        answer.began = response.status == 200
        data = b""
        while piece := response.read1(65536):
            data += piece
        if response.status != 200:
            raise ValueError(f"status {response.status}: {data[:200]!r}")
        if stream:
            events = [line[6:] for line in data.decode().split("\n\n") if line.startswith("data: ")]
            if not events or events[-1] != "[DONE]":
                raise ValueError("the stream was cut")
            values = [json.loads(event) for event in events[:-1]]
            answer.text = "".join(choice["text"] for value in values for choice in value["choices"])
            answer.model = values[0]["model"]
        else:
            value = json.loads(data)
            answer.text, answer.model = value["choices"][0]["text"], value["model"]
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return answer


class Load:
    """Clients that ask one request after another, each with its session, until stop() or for `turns` turns."""

    def __init__(self, port, clients=CLIENTS, turns=1 << 30, tokens=TOKENS, name="session"):
        self.answers, self.ended, self.lock = [], threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self.client, args=(port, f"{name}-{which}", which, turns, tokens), daemon=True)
                        for which in range(clients)]
        for thread in self.threads:
            thread.start()

    def client(self, port, session, which, turns, tokens):
        for turn in range(turns):
            if self.ended.is_set():
                break
            prompt = f"{session} tells a story:"
            stream = (which + turn) % 2 == 0
            answer = ask(port, session, prompt, stream, PADDING if which < CLIENTS // 2 else "", tokens)
            with self.lock:
                self.answers.append((session, prompt, stream, answer))

    def count(self):
        with self.lock:
            return len(self.answers)

    def join(self):
        for thread in self.threads:
            thread.join(120)
        return self.answers

    def stop(self):
        self.ended.set()
        return self.join()


class BehindHaproxy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.port, *ports = free_ports(3)
        cls.replicas = [Replica(f"replica{number}", port) for number, port in enumerate(ports, 1)]
        text = CONFIG.read_text()
        for usual, own in ((":8080", f"127.0.0.1:{cls.port}"), ("127.0.0.1:8001", f"127.0.0.1:{ports[0]}"),
                           ("127.0.0.1:8002", f"127.0.0.1:{ports[1]}"), ("check inter 1s", f"check inter {CHECK_MS}ms")):
            assert text.count(usual) == 1, usual
            text = text.replace(usual, own)
        config = pathlib.Path(cls.folder.name) / "haproxy.cfg"
        config.write_text(text)
        cls.log = open(pathlib.Path(cls.folder.name) / "haproxy.log", "w+", encoding="utf-8")
        cls.haproxy = subprocess.Popen(["haproxy", "-db", "-f", str(config)], stdout=cls.log, stderr=subprocess.STDOUT)
        for replica in cls.replicas:
            replica.wait_ready()
        until(lambda: get(cls.port, "/readyz") == 200, "HAProxy is ready")
        cls.wait_balanced()

    @classmethod
    def tearDownClass(cls):
        for process in (cls.haproxy, *(replica.process for replica in cls.replicas)):
            process.kill()
            process.wait()
        cls.log.close()
        cls.folder.cleanup()

    @classmethod
    def wait_balanced(cls):
        """Until both replicas get requests."""
        names = set()

        def look():
            for number in range(8):
                names.add(ask(cls.port, f"look-{number}-{time.monotonic()}", "a", False).model)
            return {replica.name for replica in cls.replicas} <= names

        until(look, "both replicas answer")

    def test_1_the_configuration_is_valid_without_a_warning(self):
        ran = subprocess.run(["haproxy", "-c", "-f", str(CONFIG)], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertNotIn("WARNING", (ran.stdout + ran.stderr).upper())

    def test_2_sessions_stick(self):
        seen = collections.defaultdict(set)
        for turn in range(3):
            for session in range(15):  # odd: turns would not alternate with the replicas
                answer = ask(self.port, f"stick-{session}", f"turn {turn}", False)
                self.assertIsNone(answer.error)
                seen[session].add(answer.model)
        self.assertEqual({len(models) for models in seen.values()}, {1}, dict(seen))
        self.assertEqual(set.union(*seen.values()), {"replica1", "replica2"}, "both have sessions")

    def check_texts(self, answers):
        """Greedy answers to one prompt are equal, whoever gave them."""
        texts = collections.defaultdict(set)
        for _, prompt, _, answer in answers:
            if answer.error is None:
                texts[prompt].add(answer.text)
        self.assertEqual({len(found) for found in texts.values()}, {1})

    def test_3_a_killed_replica_loses_only_what_it_had_begun_to_stream(self):
        load = Load(self.port)
        self.addCleanup(load.ended.set)
        until(lambda: load.count() >= 2 * CLIENTS, "the load runs")
        self.replicas[0].stop(signal.SIGKILL)
        killed_at = load.count()
        until(lambda: load.count() >= killed_at + 3 * CLIENTS, "the load goes on")
        answers = load.stop()
        lost = [(which, stream, answer.error) for which, _, stream, answer in answers if answer.error and not (stream and answer.began)]
        self.assertEqual(lost, [])
        self.check_texts(answers)
        self.assertTrue(any(answer.model == "replica1" for *_, answer in answers), "the killed replica had answered")
        self.replicas[0].start()
        self.replicas[0].wait_ready()
        self.wait_balanced()

    def test_4_a_rolling_restart_drops_nothing(self):
        answers = []
        load = Load(self.port)
        self.addCleanup(load.ended.set)
        for replica in self.replicas:
            begin = load.count()
            until(lambda: load.count() >= begin + CLIENTS, "the load runs")  # noqa: B023
            own = [name for name in map("long-{}".format, range(12)) if ask(self.port, name + "-0", "a", False, tokens=1).model == replica.name]
            long_streams = [Load(self.port, clients=1, turns=1, tokens=LONG_TOKENS, name=name) for name in own[:3]]
            time.sleep(0.5)
            started = time.monotonic()
            self.assertEqual(replica.stop(signal.SIGTERM), 0)
            self.assertGreater(time.monotonic() - started, 4 * CHECK_MS / 1000, "the replica drained while HAProxy knew")
            answers += [answer for stream in long_streams for answer in stream.join()]
            replica.start()
            replica.wait_ready()
            self.wait_balanced()
        answers += load.stop()
        self.assertEqual([(which, stream, answer.error) for which, _, stream, answer in answers if answer.error], [])
        self.check_texts(answers)


if __name__ == "__main__":
    if shutil.which("haproxy") is None:
        print("skipped: haproxy is not installed (Debian's package haproxy)")
        sys.exit(packages.SKIPPED)
    unittest.main(verbosity=2, failfast=True)
