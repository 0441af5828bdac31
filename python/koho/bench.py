# SPDX-License-Identifier: Apache-2.0
"""The throughput bench over the C interface: a closed loop of equal requests, measured at the reader.

`concurrency` requests are always under way; one that ends is replaced at once. Warm-up (the same number of short
requests, to their end) is not measured. The measurement then lasts `duration` seconds and counts what was delivered in
them; what is still under way at its end is cancelled. Names and formulas are vLLM's, where it has them:
    ttft   submission to first token, of requests whose first token came in time
    itl    between two tokens of one request, all gaps together
    tpot   (last token - first token) / (tokens - 1), of requests that ended in time
    e2el   submission to last token, of these
"""

import math
import random
import statistics
import threading
import time

from koho.engine import Engine, EngineError, Finish, Info, SamplingParams


def percentile(values, percent):
    """As numpy's default: linear between the two nearest. 0 of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def summarise(name, seconds):
    """mean, median, deviation and percentiles in milliseconds."""
    ms = [1000 * value for value in seconds]
    made = {f"mean_{name}_ms": statistics.fmean(ms) if ms else 0.0, f"median_{name}_ms": percentile(ms, 50),
            f"std_{name}_ms": statistics.pstdev(ms) if ms else 0.0}
    return made | {f"p{percent}_{name}_ms": percentile(ms, percent) for percent in (50, 90, 99)}


def cut_prompts(corpus, length, prefix_length, seed):
    """Endless prompts of `length` tokens, cut from `corpus` at random; the first `prefix_length` tokens are shared."""
    if length < 1 or not 0 <= prefix_length <= length:
        raise ValueError(f"a prompt must have 1 token or more, found {length}, and as many as its prefix, found {prefix_length}")
    if not corpus:
        raise ValueError("there is no text to cut prompts from")
    return _cut(corpus, length, prefix_length, seed)


def _cut(corpus, length, prefix_length, seed):
    draw = random.Random(seed)
    while len(corpus) < 2 * length:
        corpus = corpus + corpus
    prefix = corpus[:prefix_length]
    while True:
        begin = draw.randrange(len(corpus) - length)
        yield prefix + corpus[begin:begin + length - prefix_length]


class KvUse:
    """The share of the cache's pages in use, read twice a second while the context lasts. By a thread of its own: a reading
    waits for the step under way, and the thread that takes the times of tokens must not."""

    def __init__(self, engine):
        self.values = []
        self._engine = engine
        self._pages = engine.info(Info.PAGES_TOTAL)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def look(self):
        """One reading now, by the caller."""
        idle = self._engine.info(Info.PAGES_FREE) + self._engine.info(Info.PAGES_CACHED)
        self.values.append(1 - idle / self._pages)

    def _watch(self):
        try:
            while not self._end.wait(0.5):
                self.look()
        except EngineError:
            pass  # whoever waits for tokens hears of it

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._end.set()
        self._thread.join()


class Flight:
    """One request under way."""

    def __init__(self):
        self.submitted = time.monotonic()
        self.first = None
        self.last = None
        self.tokens = 0


# Sampling by name: fields of SamplingParams.
SAMPLINGS = {"greedy": {}, "brief": {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1}}


def run(engine: Engine, prompts, *, duration, concurrency, prompt_len, gen_len, sampling=None):
    """Runs the bench; returns its numbers under vLLM's names. `sampling`: fields of SamplingParams (greedy)."""
    for name, value in (("duration", duration), ("concurrency", concurrency), ("prompt_len", prompt_len),
                        ("gen_len", gen_len)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0, found {value}")
    _warm_up(engine, prompts, concurrency, min(gen_len, 16))
    params = SamplingParams(max_tokens=gen_len, ignore_eos=True, **(sampling or {}))
    watched = (Info.DECODE_STEPS, Info.DECODE_ROWS, Info.PROMPT_TOKENS, Info.CACHED_TOKENS, Info.PREEMPTIONS)
    before = {which: engine.info(which) for which in watched}
    flights, next_id = {}, 0
    ttft, itl, tpot, e2el = [], [], [], []
    input_tokens = output_tokens = completed = 0

    def submit():
        nonlocal next_id
        flights[next_id] = Flight()
        engine.add(next_id, next(prompts), params)
        next_id += 1

    start = time.monotonic()
    end = start + duration
    for _ in range(concurrency):
        submit()
    with KvUse(engine) as kv_use:
        while (now := time.monotonic()) < end:
            events = engine.poll(timeout_ms=max(1, min(100, int(1000 * (end - now)))))
            now = time.monotonic()
            if now >= end:  # too late to count, but what has ended has no event left for _cancel_all to wait for
                for event in events:
                    if event.finish != Finish.NONE:
                        del flights[event.request_id]
                break
            for event in events:
                if event.finish == Finish.ERROR:
                    raise EngineError(f"request {event.request_id} failed", event.status)
                flight = flights[event.request_id]
                if flight.first is None:
                    flight.first = now
                    ttft.append(now - flight.submitted)
                    input_tokens += prompt_len
                else:
                    itl.append(now - flight.last)
                flight.last = now
                flight.tokens += 1
                output_tokens += 1
                if event.finish == Finish.NONE:
                    continue
                completed += 1
                e2el.append(now - flight.submitted)
                if flight.tokens > 1:
                    tpot.append((flight.last - flight.first) / (flight.tokens - 1))
                del flights[event.request_id]
                submit()
        seconds = time.monotonic() - start
    # Each number is read alone while steps go on: in reverse, so that no average is made larger than it was.
    grown = {which: engine.info(which) - before[which] for which in reversed(watched)}
    kv_use.look()
    _cancel_all(engine, flights)
    result = {
        "duration": seconds, "max_concurrency": concurrency, "random_input_len": prompt_len,
        "random_output_len": gen_len, "completed": completed, "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens, "request_throughput": completed / seconds,
        "output_throughput": output_tokens / seconds,
        "total_token_throughput": (input_tokens + output_tokens) / seconds,
        "average_batch": grown[Info.DECODE_ROWS] / max(1, grown[Info.DECODE_STEPS]),
        "largest_batch": engine.info(Info.LARGEST_BATCH),
        "mean_kv_cache_usage": statistics.fmean(kv_use.values), "max_kv_cache_usage": max(kv_use.values),
        "prefix_cache_hit_rate": grown[Info.CACHED_TOKENS] / max(1, grown[Info.PROMPT_TOKENS]),
        "num_preemptions": grown[Info.PREEMPTIONS],
        "warm_up": f"{concurrency} requests of {min(gen_len, 16)} tokens before, not measured",
    }
    for name, values in (("ttft", ttft), ("tpot", tpot), ("itl", itl), ("e2el", e2el)):
        result |= summarise(name, values)
    return result


def _warm_up(engine, prompts, concurrency, tokens):
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    engine.batch([next(prompts) for _ in range(concurrency)], params)


def _cancel_all(engine, flights):
    left = set(flights)
    for request_id in list(left):
        try:
            engine.cancel(request_id)
        except EngineError:
            pass  # it has just ended: its last event comes all the same
    while left:
        left -= {event.request_id for event in engine.poll(1000) if event.finish != Finish.NONE}


def report(result):
    """The text of a result, in vLLM's layout."""
    line = "{:<40} {:<10}".format

    def number(key):
        value = result[key]
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    lines = ["{:=^50}".format(" koho bench "), f"(warm-up: {result['warm_up']})"]
    for title, key in (
            ("Successful requests:", "completed"), ("Maximum request concurrency:", "max_concurrency"),
            ("Benchmark duration (s):", "duration"), ("Total input tokens:", "total_input_tokens"),
            ("Total generated tokens:", "total_output_tokens"), ("Request throughput (req/s):", "request_throughput"),
            ("Output token throughput (tok/s):", "output_throughput"),
            ("Total Token throughput (tok/s):", "total_token_throughput"), ("Average batch:", "average_batch"),
            ("Largest batch:", "largest_batch"), ("Preemptions:", "num_preemptions")):
        lines.append(line(title, number(key)))
    for title, key in (("KV cache usage, mean:", "mean_kv_cache_usage"), ("KV cache usage, max:", "max_kv_cache_usage"),
                       ("Prefix cache hit rate:", "prefix_cache_hit_rate")):
        lines.append(line(title, f"{100 * result[key]:.1f}%"))
    for title, name in (("Time to First Token", "ttft"), ("Time per Output Token (excl. 1st token)", "tpot"),
                        ("Inter-token Latency", "itl"), ("End-to-end Latency", "e2el")):
        lines.append("{:-^50}".format(title))
        for word, key in (("Mean", "mean"), ("P50", "p50"), ("P90", "p90"), ("P99", "p99")):
            lines.append(line(f"{word} {name.upper()} (ms):", number(f"{key}_{name}_ms")))
    lines.append("=" * 50)
    return "\n".join(lines)
