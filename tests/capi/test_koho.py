#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""engine.so and python/koho from Python. KOHO_ENGINE names the library, KOHO_BINARY the program; KOHO_TEST_GPUS, if set, how
many GPUs the engines take instead of the CPU."""

import contextlib
import functools
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import koho
from koho import EngineError, Info, SamplingParams, bench, library
from logits_requests import Logits  # noqa: F401  its tests run with these
from package_places import Places  # noqa: F401  its tests run with these
from ray_requests import Ray  # noqa: F401  its tests run with these
from text_requests import Text  # noqa: F401  its tests run with these

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "models" / "tiny"
GPUS = int(os.environ.get("KOHO_TEST_GPUS", "0"))
Engine = functools.partial(koho.Engine, num_gpus=GPUS)
# Where tokens of different forms are compared: a GPU gives all of them the same bits only on demand.
ExactEngine = functools.partial(Engine, deterministic=GPUS > 0)
LIBRARY = os.environ["KOHO_ENGINE"]
HEADER = (ROOT / "include" / "koho" / "engine.h").read_text()
PROMPTS = [[300 + 37 * which + 11 * i for i in range(12)] for which in range(6)]
GREEDY = SamplingParams(max_tokens=16, ignore_eos=True)


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Library(unittest.TestCase):
    def test_exports_the_functions_of_the_header_and_nothing_else(self):
        declared = set(re.findall(r"^KOHO_API .*?(\w+)\(", HEADER, re.MULTILINE))
        exported = {line.split()[-1] for line in output_of("nm", "-D", "--defined-only", LIBRARY).splitlines()}
        self.assertGreater(len(declared), 10)
        self.assertEqual(exported, declared)

    def test_needs_only_libraries_of_a_plain_debian(self):
        dynamic = output_of("readelf", "-d", LIBRARY)
        needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
        base = {"libpcre2-8.so.0", "libxxhash.so.0", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6",
                "ld-linux-x86-64.so.2", "libcublasLt.so.13"}
        self.assertLessEqual(needed, base)
        self.assertRegex(dynamic, r"RUNPATH.*\[\$ORIGIN")

    def test_loads_from_any_directory(self):
        with tempfile.TemporaryDirectory() as directory:
            copy = pathlib.Path(directory) / "engine.so"
            shutil.copy(LIBRARY, copy)
            # NOTE: of a given length: a sampled answer goes on to the end of the context once in a hundred.
            code = ("from koho import Engine, SamplingParams\n"
                    f"with Engine({str(MODEL)!r}, library={str(copy)!r}) as engine:\n"
                    "    print(len(engine.generate([300, 301], SamplingParams(max_tokens=8)).token_ids) > 0)\n")
            ran = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=False,
                                 env={"PYTHONPATH": str(ROOT / "python")})
            self.assertEqual((ran.stdout, ran.returncode), ("True\n", 0), ran.stderr)

    def test_the_options_are_the_headers(self):
        struct = re.search(r"typedef struct EngineOptions \{(.*?)\} EngineOptions;", HEADER, re.DOTALL).group(1)
        declared = re.findall(r"^\s+(?:u?int32_t|const int32_t\*|const char\*) (\w+);", struct, re.MULTILINE)
        self.assertEqual(declared, [name for name, _ in library.EngineOptionsStruct._fields_])

    def test_the_numbers_of_infos_are_the_headers(self):
        declared = {name: int(value) for name, value in re.findall(r"KOHO_INFO_(\w+) = (\d+)", HEADER)}
        self.assertEqual(declared, {info.name: info.value for info in Info})


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = ExactEngine(MODEL, max_batch=4, max_seq=256)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def test_all_forms_give_the_same_tokens(self):
        batch = [answer.token_ids for answer in self.engine.batch(PROMPTS, GREEDY)]
        self.assertEqual([self.engine.generate(prompt, GREEDY).token_ids for prompt in PROMPTS], batch)
        self.assertEqual([list(self.engine.stream(prompt, GREEDY)) for prompt in PROMPTS], batch)
        states = [self.engine.prefill(prompt, GREEDY) for prompt in PROMPTS]
        stepped = [[] for _ in PROMPTS]
        while not all(state.done for state in states):
            for ids, token in zip(stepped, self.engine.decode_batch(states)):
                ids.append(token)
        self.assertEqual(stepped, batch)
        for state in states:
            state.close()
        with self.engine.prefill(PROMPTS[0], GREEDY) as state:
            single = [state.step() for _ in range(16)]
            self.assertTrue(state.done)
            with self.assertRaises(EngineError) as caught:
                state.step()
            self.assertEqual(caught.exception.name, "invalid_argument")
        self.assertEqual(single, batch[0])
        self.assertEqual(self.engine.info(Info.REQUESTS_LIVE), 0)

    def test_streams_of_many_threads_do_not_mix(self):
        expected = [answer.token_ids for answer in self.engine.batch(PROMPTS, GREEDY)]
        found = [None] * len(PROMPTS)

        def read(which):
            found[which] = list(self.engine.stream(PROMPTS[which], GREEDY))

        threads = [threading.Thread(target=read, args=(which,)) for which in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, expected)

    def test_leaving_a_stream_withdraws_the_request(self):
        stream = self.engine.stream(PROMPTS[0], SamplingParams(max_tokens=240, ignore_eos=True))
        next(stream)
        stream.close()
        deadline = time.monotonic() + 120
        while self.engine.info(Info.REQUESTS_LIVE) > 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        self.assertEqual(self.engine.info(Info.REQUESTS_LIVE), 0)
        self.assertEqual(self.engine.generate(PROMPTS[0], GREEDY).finish_reason, "length")

    def test_a_seed_repeats_and_stop_tokens_stop(self):
        sampled = SamplingParams(max_tokens=16, ignore_eos=True, temperature=1.0, seed=3, logprobs=True)
        first, second = self.engine.batch([PROMPTS[0]] * 2, sampled)
        self.assertEqual(first, second)
        self.assertEqual(len(first.logprobs), 16)
        self.assertTrue(all(value <= 0 for value in first.logprobs))
        greedy = self.engine.generate(PROMPTS[1], GREEDY).token_ids
        stopping = SamplingParams(max_tokens=16, ignore_eos=True, stop_token_ids=[greedy[4]])
        stopped = self.engine.generate(PROMPTS[1], stopping)
        self.assertEqual(stopped.token_ids, greedy[:greedy.index(greedy[4]) + 1])
        self.assertEqual(stopped.finish_reason, "stop")
        pairs = list(zip(greedy, greedy[1:]))
        stopping.stop_token_ids = [greedy[4:6]]
        stopped = self.engine.generate(PROMPTS[1], stopping)
        self.assertEqual(stopped.token_ids, greedy[:pairs.index(pairs[4]) + 2])
        self.assertEqual(stopped.finish_reason, "stop")

    def test_more_prompts_than_the_queue_holds_are_all_answered(self):
        with ExactEngine(MODEL, max_batch=2, max_queue=1, max_seq=64) as engine:
            answers = engine.batch(PROMPTS * 3, GREEDY)
        expected = [answer.token_ids for answer in self.engine.batch(PROMPTS, GREEDY)]
        self.assertEqual([answer.token_ids for answer in answers], expected * 3)

    @unittest.skipIf(GPUS, "ranks of the CPU")
    def test_without_max_tokens_an_answer_has_what_its_pages_hold(self):
        for options in ({"kv_pages": 1}, {"kv_pages": 2, "num_ranks": 2, "dp_attention": 1}):
            with Engine(MODEL, max_batch=2, max_seq=128, **options) as engine:
                self.assertEqual(engine.info(Info.MAX_SEQ), 64)
                for params in (SamplingParams(ignore_eos=True), None):
                    answer = engine.generate(PROMPTS[0], params)
                    self.assertLessEqual(len(answer.token_ids), 64 - len(PROMPTS[0]))
                self.assertEqual(len(engine.generate(PROMPTS[0], SamplingParams(ignore_eos=True)).token_ids),
                                 64 - len(PROMPTS[0]))

    def test_equal_beginnings_are_found_computed(self):
        prompt = [500 + i % 90 for i in range(150)]
        self.engine.generate(prompt, GREEDY)
        self.assertEqual(self.engine.generate(prompt, GREEDY).cached_tokens, 128)
        salted = SamplingParams(max_tokens=2, cache_salt=1 << 100)
        self.assertEqual(self.engine.generate(prompt, salted).cached_tokens, 0)


class Errors(unittest.TestCase):
    def test_become_exceptions(self):
        with self.assertRaisesRegex(EngineError, "nowhere") as caught:
            Engine("nowhere")
        self.assertEqual((caught.exception.name, caught.exception.code), ("not_found", -2))
        with self.assertRaises(TypeError):
            Engine(MODEL, max_bach=3)
        with Engine(MODEL, max_batch=1, max_seq=64) as engine:
            for prompt in ([], [-1], [1 << 40], [300] * 64):
                with self.assertRaises(EngineError):
                    engine.generate(prompt, GREEDY)
            with self.assertRaisesRegex(EngineError, "temperature"):
                engine.generate([300], SamplingParams(temperature=99))
            with self.assertRaises(EngineError) as caught:
                engine.cancel(5)
            self.assertEqual(caught.exception.name, "not_found")
            with self.assertRaises(EngineError) as caught:
                engine.prefill([-1])
            self.assertEqual(caught.exception.name, "invalid_argument")
            state = engine.prefill([300], GREEDY)
        engine.close()
        with self.assertRaises(EngineError):
            state.step()
        with self.assertRaises(EngineError):
            engine.info(Info.STEPS)

    def test_a_failed_state_does_not_take_the_others_tokens(self):
        with ExactEngine(MODEL, max_batch=2, max_seq=64) as engine:
            expected = engine.generate(PROMPTS[1], SamplingParams(max_tokens=2, ignore_eos=True)).token_ids
            cancelled = engine.prefill(PROMPTS[0], GREEDY, request_id=5)
            other = engine.prefill(PROMPTS[1], SamplingParams(max_tokens=2, ignore_eos=True))
            first = engine.decode_batch([cancelled, other])
            engine.cancel(5)
            with self.assertRaises(EngineError) as caught:
                engine.decode_batch([cancelled, other])
            self.assertEqual(caught.exception.name, "cancelled")
            self.assertEqual([first[1], caught.exception.tokens[1]], expected)
            self.assertEqual((caught.exception.tokens[0], cancelled.done, other.done), (-1, True, True))
            with self.assertRaises(EngineError) as caught:
                engine.decode_batch([other, other])
            self.assertIsNone(caught.exception.tokens)

    def test_numbers_that_do_not_fit_are_refused(self):
        for options in ({"max_batch": 2**32 + 2}, {"max_seq": 2**31}, {"num_gpus": -2**31 - 1}):
            with self.assertRaises(OverflowError):
                Engine(MODEL, **options)
        with self.assertRaises(TypeError):
            Engine(MODEL, max_batch=2.5)
        for wrong in (SamplingParams(seed=2**70), SamplingParams(max_tokens=2**32 + 4), SamplingParams(cache_salt=1 << 128),
                      SamplingParams(cache_salt=-1), SamplingParams(stop_token_ids=[2**64 + 300])):
            with self.assertRaises(OverflowError):
                wrong.struct()
        with Engine(MODEL, max_batch=1, max_seq=64) as engine:
            for call in (lambda: engine.generate([2**64 + 300]), lambda: engine.prefill([300, 2**63]),
                         lambda: engine.add(2**64, [300]), lambda: engine.prefill([300], None, 2**64),
                         lambda: engine.cancel(2**64), lambda: engine.poll(2**32)):
                with self.assertRaises(OverflowError):
                    call()
            self.assertEqual(engine.info(Info.REQUESTS_LIVE), 0)

    def test_a_child_of_fork_gets_errors_and_does_not_hang(self):
        with Engine(MODEL, max_batch=1, max_seq=64) as engine:
            child = os.fork()
            if child == 0:
                try:
                    engine.generate([300], GREEDY)
                    os._exit(1)
                except EngineError as error:
                    os._exit(0 if error.name == "unavailable" else 2)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertTrue(engine.generate([300], GREEDY).token_ids)


class KvAccounting(unittest.TestCase):
    def inspect(self, *arguments):
        return json.loads(output_of(os.environ["KOHO_BINARY"], "inspect", *arguments, "--json"))

    def test_glm_4_7_takes_376832_bytes_a_token(self):
        report = self.inspect("--config", str(ROOT / "tests" / "data" / "configs" / "glm-4.7.json"))
        config = report["config"]
        self.assertEqual(report["kv_bytes_per_token"]["bf16"], 376832)
        self.assertEqual(2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 2, 376832)

    def test_what_inspect_prints_is_what_is_allocated(self):
        report = self.inspect("--model", str(MODEL))["kv_bytes_per_token"]
        for ranks in (1,) if GPUS else (1, 2):
            for fp8, printed in ((0, report["bf16"]), (1, report["fp8"])):
                with Engine(MODEL, max_batch=3, max_seq=100, kv_pages=37, num_ranks=ranks, kv_fp8=fp8) as engine:
                    self.assertEqual(engine.info(Info.KV_BYTES_PER_TOKEN), printed)
                    self.assertEqual(engine.info(Info.KV_BYTES), 37 * 64 * printed)

    def test_a_sequence_lies_on_one_rank_under_data_parallel_attention(self):
        config = str(ROOT / "tests" / "data" / "configs" / "glm-4.7.json")
        for attention, rank_tokens in (("tp", None), ("dp", 46016)):
            line = self.inspect("--config", config, "--gpu", "H200", "--gpus", "8", "--attention", attention)["plan"][0]
            longest = rank_tokens or line["kv_tokens"]
            self.assertEqual(line["kv_tokens_of_a_sequence_max"], longest)
            self.assertEqual(line["kv_tokens"], longest * (8 if rank_tokens else 1))
            self.assertEqual(line["sequences_of_context"], longest // 202752)


class Bench(unittest.TestCase):
    def test_counts_what_was_delivered(self):
        with Engine(MODEL, max_batch=4, max_seq=64) as engine:
            prompts = bench.cut_prompts(list(range(300, 1300)), 24, 0, 1)
            result = bench.run(engine, prompts, duration=1.0, concurrency=4, prompt_len=24, gen_len=16)
            self.assertEqual(engine.info(Info.REQUESTS_LIVE), 0)
        self.assertGreater(result["completed"], 0)
        self.assertGreaterEqual(result["total_output_tokens"], 16 * result["completed"])
        self.assertAlmostEqual(result["output_throughput"], result["total_output_tokens"] / result["duration"])
        self.assertLessEqual(result["average_batch"], result["largest_batch"])
        self.assertLessEqual(result["largest_batch"], 4)
        self.assertLessEqual(result["p50_itl_ms"], result["p99_itl_ms"])
        self.assertGreater(result["max_kv_cache_usage"], 0)
        self.assertIn("Output token throughput", bench.report(result))

    def test_ends_when_a_request_did_in_the_last_moment(self):
        duration = 0.3
        with Engine(MODEL, max_batch=2, max_seq=64) as engine:
            poll, begin, empty = engine.poll, [], 0

            def late(timeout_ms=-1):
                nonlocal empty
                events = poll(timeout_ms)
                if begin and any(event.finish != koho.Finish.NONE for event in events):
                    time.sleep(max(0, begin[0] + duration + 0.1 - time.monotonic()))  # the bench hears of it too late
                empty = 0 if events else empty + 1
                if empty > 1000:
                    raise AssertionError("the bench waits for an event that it has had")
                return events

            def prompts():
                for count in range(100):
                    if count == 2:  # the two of the warm-up have ended
                        begin.append(time.monotonic())
                    yield PROMPTS[count % len(PROMPTS)]

            with unittest.mock.patch.object(engine, "poll", late):
                result = bench.run(engine, prompts(), duration=duration, concurrency=2, prompt_len=12, gen_len=8)
            self.assertEqual(engine.info(Info.REQUESTS_LIVE), 0)
        self.assertEqual(result["completed"], 0)

    def test_the_thread_that_takes_the_times_reads_no_statistics(self):
        with Engine(MODEL, max_batch=2, max_seq=64) as engine:
            readers = []
            tell = engine.info

            def info(which):
                readers.extend([threading.current_thread()] if which == Info.PAGES_FREE else [])
                return tell(which)

            with unittest.mock.patch.object(engine, "info", info):
                bench.run(engine, bench.cut_prompts([300] * 100, 8, 0, 1), duration=1.2, concurrency=2, prompt_len=8, gen_len=8)
        self.assertEqual(readers.count(threading.current_thread()), 1)  # at the end
        self.assertGreater(len(readers), 1)

    def test_wrong_lengths_are_refused(self):
        for corpus, length, prefix in (([300], 0, 0), ([300], 4, 5), ([300], 4, -1), ([], 4, 0)):
            with self.assertRaises(ValueError):
                bench.cut_prompts(corpus, length, prefix, 0)
        right = {"duration": 0.1, "concurrency": 1, "prompt_len": 4, "gen_len": 4}
        for name in right:
            with self.assertRaisesRegex(ValueError, name):
                bench.run(None, None, **right | {name: 0})

    def test_percentiles_are_numpys(self):
        self.assertEqual(bench.percentile([4, 1, 3, 2], 50), 2.5)
        self.assertAlmostEqual(bench.percentile([1, 2, 3, 4], 99), 3.97)
        self.assertEqual(bench.percentile([7], 90), 7)


def link_model(directory, without):
    """The embedded model's files as links in `directory`, but those with `without` in their names."""
    folder = pathlib.Path(directory)
    for path in MODEL.iterdir():
        if without not in path.name:
            (folder / path.name).symlink_to(path)
    return folder


class RunPy(unittest.TestCase):
    """What run.py says when it cannot, and its jobs on a given engine.so."""

    def last_line(self, *arguments, root=ROOT, job="--bench --device cpu --engine " + LIBRARY + " --duration 0.1"):
        spec = importlib.util.spec_from_file_location("run_py", ROOT / "run.py")
        run_py = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(run_py)
        run_py.ROOT = root
        command = ["run.py", *job.split(), *map(str, arguments)]
        said = io.StringIO()
        with unittest.mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(said), \
                contextlib.redirect_stderr(said):
            try:
                code = run_py.main()
            except SystemExit as error:
                code = error.code
        return code, said.getvalue().splitlines()[-1]

    def test_wrong_numbers_are_wrong_use(self):
        for flags in ("--prompt-len 0", "--gen-len 0", "--duration 0", "--duration nan", "--concurrency 0", "--gpus -1",
                      "--prompt-len 4 --prefix-len 5", "--concurrency many"):
            code, line = self.last_line(*flags.split())
            self.assertEqual(code, 2, line)
            self.assertRegex(line, "^run.py: error: .*" + flags.split()[-2])

    def test_a_flag_that_the_job_does_not_read_is_wrong_use(self):
        for flags in ("--serve --seed 3", "--serve --gpus 1", "--serve --json x", "--smoke --duration 3", "--build --model x",
                      "--bench --sanitize", "--test --threads 3"):
            code, line = self.last_line(job=flags)
            self.assertEqual(code, 2, line)
            self.assertRegex(line, f"^run.py: error: {flags.split()[1]} does nothing with {flags.split()[0]}, only with --")

    def test_smoke_asks_the_model_and_the_engine_that_it_is_given(self):
        job = "--smoke --device cpu --engine " + LIBRARY
        code, line = self.last_line(job=job)
        self.assertEqual(code, 0, line)
        self.assertIn("smoke passed: 12 prompts", line)
        self.assertEqual(self.last_line("--model", "/nonexistent", job=job)[0], 1)
        self.assertEqual(self.last_line(job="--smoke --device cpu --engine /nowhere/engine.so")[0], 1)
        with tempfile.TemporaryDirectory() as directory:
            other = link_model(directory, without="prompts.json")
            text = (MODEL / "prompts.json").read_text()
            (other / "prompts.json").write_text(text.replace("is Paris", "is Rome"))
            code, line = self.last_line("--model", other, job=job)
            self.assertEqual((code, line), (1, "run.py: 1 of 12 answers are wrong: capital"))

    def test_bench_samples_as_it_is_told(self):
        with tempfile.TemporaryDirectory() as directory:
            bare = link_model(directory, without="tokenizer")
            out = bare / "out.json"
            code, line = self.last_line("--model", bare, "--sampling", "brief", "--json", out, "--prompt-len", 8, "--gen-len", 4,
                                        "--concurrency", 2)
            self.assertEqual(code, 0, line)
            found = json.loads(out.read_text())
            self.assertEqual(found["sampling"], "brief")
            self.assertEqual(bench.SAMPLINGS["brief"], {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1})
            self.assertGreaterEqual(found["average_batch"], 1)

    def test_what_is_missing_is_one_line(self):
        with tempfile.TemporaryDirectory() as directory:
            bare = link_model(directory, without="tokenizer")  # so that the prompts are drawn, and no program is needed
            cases = [(("--model", "/nonexistent"), {}, "nonexistent"),
                     (("--model", bare, "--engine", "/nowhere/engine.so"), {}, "/nowhere/engine.so"),
                     ((), {"root": bare}, "--build"),  # no build/koho
                     (("--model", bare, "--concurrency", str(2**40)), {}, "max_batch")]
            if not any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
                cases.append((("--model", bare, "--gpus", "1"), {}, "CUDA"))
            for arguments, options, says in cases:
                code, line = self.last_line(*arguments, **options)
                self.assertEqual(code, 1, line)
                self.assertRegex(line, "^run.py: .*" + re.escape(says))


def children():
    """The living processes that this one has started."""
    found = []
    for place in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = place.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state not in "ZX":
                found.append(int(place.parent.name))
    return found


@unittest.skipIf(GPUS, "on the CPU, where the tests know the answers of threads")
class WorkerProcesses(unittest.TestCase):
    def start(self, **options):
        return Engine(MODEL, max_batch=4, max_seq=128, **options)

    def test_answers_are_those_of_threads_and_outlive_a_killed_worker(self):
        with self.start(num_ranks=2) as engine:
            expected = [completion.token_ids for completion in engine.batch(PROMPTS, GREEDY)]
        with self.start(num_ranks=2, executor="process", worker=os.environ["KOHO_BINARY"]) as engine:
            workers = children()
            self.assertEqual(len(workers), 2)
            self.assertEqual([completion.token_ids for completion in engine.batch(PROMPTS, GREEDY)], expected)
            stream = engine.stream(PROMPTS[0], GREEDY)
            answer = [next(stream)]
            os.kill(workers[1], signal.SIGKILL)
            self.assertEqual(answer + list(stream), expected[0])
            self.assertEqual([completion.token_ids for completion in engine.batch(PROMPTS, GREEDY)], expected)
            self.assertFalse(set(workers) & set(children()))
        self.assertEqual(children(), [])

    def test_a_worker_outlives_the_thread_that_started_it(self):
        made = []
        thread = threading.Thread(
            target=lambda: made.append(self.start(executor="process", worker=os.environ["KOHO_BINARY"])))
        thread.start()
        thread.join()
        with made[0] as engine:
            workers = children()
            self.assertEqual(len(engine.generate(PROMPTS[0], GREEDY).token_ids), 16)
            time.sleep(0.7)
            self.assertEqual(children(), workers)

    def test_options_that_make_no_sense_are_errors(self):
        with self.assertRaises(ValueError):
            self.start(executor="fibre")
        for options in ({"executor": 7}, {"devices": [0]}, {"executor": "process", "worker": "/nowhere/koho"}):
            with self.assertRaises(EngineError):
                self.start(**options)
        self.assertEqual(children(), [])


if __name__ == "__main__":
    unittest.main()
