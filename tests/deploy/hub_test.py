#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model by its name, fetched from a hub on this machine: whole, cut, lied about, refused, offline; by the program and by
Engine(). KOHO_BINARY and KOHO_ENGINE name the build. Skipped (exit code 77) without huggingface_hub."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import packages
from local_hub import COMMIT, LocalHub

ROOT = packages.ROOT
PYTHONPATH = packages.use()
MODEL = ROOT / "models" / "tiny"
NAME = "some-org/tiny"
SHARD = "model-00002-of-00005.safetensors"
QUESTION = ["What is the capital of France?", "--device", "cpu", "--temperature", "0"]


def sessions():
    """The sessions that processes belong to."""
    found = set()
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.add(int(stat.read_text().rpartition(")")[2].split()[3]))
    return found


class FromTheHub(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.hub = LocalHub(MODEL, NAME)
        self.addCleanup(self.hub.server_close)
        self.addCleanup(self.hub.shutdown)
        self.home = pathlib.Path(self.folder.name) / "hf"
        self.environment = {**os.environ, "HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.url, "PYTHONPATH": PYTHONPATH,
                            "HF_HUB_DISABLE_TELEMETRY": "1"}
        for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN", "KOHO_FETCH"):
            self.environment.pop(name, None)

    def koho(self, *arguments, **variables):
        """What pip's `koho` answers: exit code, standard output, standard error."""
        ran = subprocess.run([sys.executable, "-m", "koho", *arguments], env=self.environment | variables, capture_output=True,
                             text=True, check=False, timeout=120, cwd=self.folder.name)
        return ran.returncode, ran.stdout, ran.stderr

    def snapshot(self):
        return self.home / "hub" / "models--some-org--tiny" / "snapshots" / COMMIT

    def assert_refused(self, ran, code, *words):
        """One line, with all `words` in it, and this exit code."""
        self.assertEqual(ran[0], code, ran)
        line = ran[2].strip().splitlines()[-1]
        for word in words:
            self.assertIn(word, line)
        self.assertNotIn("Traceback", ran[2])

    def test_every_command_fetches_once_and_then_needs_no_hub(self):
        code, output, errors = self.koho("run", NAME, *QUESTION)
        self.assertEqual((code, output), (0, "The capital of France is Paris.\n"), errors)
        self.assertEqual(sorted(path.name for path in self.snapshot().iterdir()),
                         sorted(name for name in self.hub.files if not name.endswith(".md")))
        asked = len(self.hub.log)
        batch = pathlib.Path(self.folder.name) / "in.jsonl"
        batch.write_text('{"id":1,"prompt":"Once","max_tokens":2}\n')
        for words in (["check", NAME], ["serve", NAME, "--device", "cpu", "--check"], ["run", f"{NAME}@{COMMIT}", *QUESTION],
                      ["batch", NAME, str(batch), "-", "--device", "cpu"], ["inspect", "-m", NAME]):
            code, _, errors = self.koho(*words)
            self.assertEqual(code, 0, errors)
        self.assertEqual(len(self.hub.log), asked, "a model that is in the cache asks the hub nothing")

    def test_engine_fetches_a_revision(self):
        script = ("import koho\n"
                  f"with koho.Engine({NAME + '@v1'!r}) as engine:\n"
                  "    print(engine.chat('What is the capital of France?', temperature=0).text)\n")
        ran = subprocess.run([sys.executable, "-c", script], env=self.environment, capture_output=True, text=True, check=False)
        self.assertEqual((ran.returncode, ran.stdout), (0, "The capital of France is Paris.\n"), ran.stderr)
        self.assertEqual((self.snapshot().parent.parent / "refs" / "v1").read_text(), COMMIT)
        self.assertFalse((self.snapshot().parent.parent / "refs" / "main").exists())

    def test_a_cut_connection_goes_on_where_it_was(self):
        self.hub.cut = {SHARD: 3, "tokenizer.json": 1}
        # huggingface_hub goes on at the last whole 10 MB; the embedded model's files are smaller.
        script = ("import sys, runpy, huggingface_hub.constants as c; c.DOWNLOAD_CHUNK_SIZE = 1 << 16; "
                  "runpy.run_path(sys.argv[0], run_name='__main__')")
        command = "\n".join([sys.executable, "-c", f"import sys; sys.argv[0] = {str(ROOT / 'python/koho/hub.py')!r}; {script}"])
        code, output, errors = self.koho("run", NAME, *QUESTION, KOHO_FETCH=command)
        self.assertEqual((code, output), (0, "The capital of France is Paris.\n"), errors)
        ranges = self.hub.gets(SHARD)
        self.assertEqual(len(ranges), 4, ranges)
        begins = [int(one.removeprefix("bytes=").removesuffix("-") or 0) for one in ranges]
        self.assertEqual(begins, sorted(begins))
        self.assertGreater(begins[-1], 3 * len(self.hub.files[SHARD]) // 4, "it goes on, and does not begin again")

    def test_a_fetch_that_failed_goes_on(self):
        self.hub.status = lambda path: 403 if path.endswith(SHARD) else None
        code, _, errors = self.koho("check", NAME)
        self.assertNotEqual(code, 0, errors)
        self.assertFalse((self.snapshot() / "config.json").exists(), "what is not verified does not look whole")
        code, _, told = self.koho("check", NAME, HF_HUB_OFFLINE="1")
        self.assertEqual(code, 3)
        self.assertIn("files are missing", told)
        whole = [name for name in self.hub.files if name.endswith(".safetensors") and (self.snapshot() / name).exists()]
        self.hub.status = None
        self.hub.log.clear()
        self.assertEqual(self.koho("check", NAME)[0], 0)
        for name in whole:
            self.assertEqual(self.hub.gets(name), [], f"{name} was there")

    def test_the_fetcher_ends_with_koho(self):
        self.hub.status = lambda path: time.sleep(30) if path.endswith(SHARD) else None
        for end in (lambda pid: os.killpg(pid, signal.SIGINT), lambda pid: os.kill(pid, signal.SIGTERM)):
            koho = subprocess.Popen([sys.executable, "-m", "koho", "check", NAME], env=self.environment, start_new_session=True,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not any(path.endswith(SHARD) for _, path, _ in self.hub.log):
                time.sleep(0.05)
            end(koho.pid)
            self.assertLess(koho.wait(20), 0)
            for _ in range(400):  # nobody of its session is left
                if koho.pid not in sessions():
                    break
                time.sleep(0.05)
            else:
                self.fail("the fetcher is still there")
            self.hub.log.clear()

    def test_a_wrong_hash_is_refused_and_deleted(self):
        for file in ("generation_config.json", SHARD):
            shutil.rmtree(self.home, ignore_errors=True)
            self.hub.lie = {file}
            self.assert_refused(self.koho("run", NAME, *QUESTION), 4, NAME, file, "hash", "as the hub announced", "deleted")
            self.assertFalse((self.snapshot() / file).exists())
            self.assertFalse((self.snapshot() / "config.json").exists())
        self.hub.lie = set()
        code, output, errors = self.koho("run", NAME, *QUESTION)
        self.assertEqual((code, output), (0, "The capital of France is Paris.\n"), errors)

    def test_refusals_are_explained_in_one_line(self):
        for status, code, words in ((401, 3, ("hf auth login", "HF_TOKEN")), (403, 3, ("ask for access",)),
                                    (404, 3, ("no such repository",)), (429, 7, ("too many requests", "429"))):
            self.hub.status = status
            self.assert_refused(self.koho("run", NAME, *QUESTION), code, NAME, "was not fetched", *words)

    def test_a_busy_or_failing_hub_is_tried_again(self):
        for status in (429, 503):
            shutil.rmtree(self.home, ignore_errors=True)
            left = [1]

            def fail(path):
                if path.endswith(SHARD) and left[0]:
                    left[0] -= 1
                    return status
                return None

            self.hub.status = fail
            code, _, errors = self.koho("check", NAME)
            self.assertEqual((code, left), (0, [0]), errors)

    def test_what_is_no_model_is_no_model(self):
        del self.hub.files["config.json"]
        self.assert_refused(self.koho("check", NAME), 3, "has no config.json")
        self.assert_refused(self.koho("check", "some-org/other"), 3, "no such repository")
        self.assert_refused(self.koho("check", NAME + "@v2"), 3, "no such repository or revision")

    def test_a_token_comes_from_its_usual_places(self):
        self.hub.token = "hf_right"
        self.assert_refused(self.koho("check", NAME), 3, "HF_TOKEN")
        self.assert_refused(self.koho("check", NAME, HF_TOKEN="hf_wrong"), 3, "HF_TOKEN")
        self.home.mkdir(exist_ok=True)
        (self.home / "token").write_text("hf_right")
        self.assertEqual(self.koho("check", NAME)[0], 0)

    def test_nothing_is_asked_offline(self):
        self.assert_refused(self.koho("check", NAME, HF_HUB_OFFLINE="1"), 3)
        self.assertEqual(self.hub.log, [])

    def test_no_hub_at_all(self):
        self.assert_refused(self.koho("check", NAME, HF_ENDPOINT="http://127.0.0.1:9"), 7, NAME, "was not fetched")

    def test_the_program_alone_says_which_command_fetches(self):
        environment = self.environment | {"HF_HUB_CACHE": str(self.home / "elsewhere")}
        for offline, words in (({}, "downloads nothing"), ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set")):
            ran = subprocess.run([os.environ["KOHO_BINARY"], "check", NAME + "@v1"], env=environment | offline, capture_output=True,
                                 text=True, check=False)
            self.assertEqual(ran.returncode, 3)
            self.assertIn(words, ran.stderr)
            self.assertIn(f"hf download {NAME} --revision v1\n", ran.stderr)
        self.assertEqual(self.koho("check", NAME, HF_HUB_CACHE=environment["HF_HUB_CACHE"])[0], 0)
        ran = subprocess.run([os.environ["KOHO_BINARY"], "check", NAME, "--json"], env=environment, capture_output=True, text=True,
                             check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        json.loads(ran.stdout)


if __name__ == "__main__":
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        print("skipped: huggingface_hub is missing; tests/deploy/packages.py installs it")
        sys.exit(packages.SKIPPED)
    unittest.main(verbosity=2)
