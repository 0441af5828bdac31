# SPDX-License-Identifier: Apache-2.0
"""Engine: one model behind engine.so. Errors of the C interface become EngineError."""

import array
import collections
import ctypes
import dataclasses
import enum
import itertools
import os
import threading
from collections.abc import Iterator, Sequence

from koho import c_values, hub
from koho import library as c
from koho.sampling import SamplingParams
from koho.text import ApiRequests


class EngineError(RuntimeError):
    """What a call refused or failed with. `code` is the KohoStatus, `name` its name. `tokens`: what decode_batch() brought
    in spite of it, else None."""

    NAMES = {-1: "invalid_argument", -2: "not_found", -3: "corrupt_data", -4: "unsupported", -5: "resource_exhausted",
             -6: "unavailable", -7: "cancelled", -8: "deadline_exceeded", -9: "io_error", -10: "device_error",
             -11: "internal"}

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code
        self.name = self.NAMES.get(code, "error")
        self.tokens: list[int] | None = None

    def __reduce__(self):
        return EngineError, (str(self), self.code)  # for pickle, between the processes of a pool


class Finish(enum.IntEnum):
    """KohoFinish."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    ERROR = 4


class Info(enum.IntEnum):
    """KohoInfo."""

    ABI_VERSION = 0
    NUM_LAYERS = 1
    HIDDEN_SIZE = 2
    VOCAB_SIZE = 3
    NUM_EXPERTS = 4
    EXPERTS_PER_TOKEN = 5
    NUM_RANKS = 6
    MAX_BATCH = 7
    MAX_SEQ = 8
    KV_BYTES_PER_TOKEN = 9
    KV_BYTES = 10
    PAGE_TOKENS = 11
    PAGES_TOTAL = 12
    PAGES_FREE = 13
    PAGES_CACHED = 14
    RUNNING = 15
    WAITING = 16
    REQUESTS_LIVE = 17
    STEPS = 18
    DECODE_STEPS = 19
    DECODE_ROWS = 20
    LARGEST_BATCH = 21
    PROMPT_TOKENS = 22
    CACHED_TOKENS = 23
    SAMPLED_TOKENS = 24
    PREEMPTIONS = 25
    LOAD_US = 26


@dataclasses.dataclass
class TokenEvent:
    """One token of an added request, or its end (`finish` is not NONE)."""

    request_id: int
    token: int  # -1: none
    finish: Finish
    status: int
    cached_tokens: int
    logprob: float
    logits: array.array | None = None  # [vocabulary] floats that the token was sampled from, if params asked


@dataclasses.dataclass
class Completion:
    """A whole answer."""

    token_ids: list[int]
    finish_reason: str  # "stop", "length" or "cancelled"
    cached_tokens: int
    logprobs: list[float] | None
    logits: list[array.array] | None = None  # [vocabulary] floats of each token, if params asked


class State:
    """A request of the synchronous form: its next token is computed when step() asks for it."""

    def __init__(self, engine: "Engine", handle: int, logits=None):
        self._engine = engine
        self._handle = handle
        self._logits = logits
        self.done = False

    @property
    def logits(self) -> array.array | None:
        """[vocabulary] floats that the latest token was sampled from, before the first step() the first token; None
        unless params asked for them."""
        return None if self._logits is None else array.array("f", self._logits)

    def step(self) -> int:
        """The next token; `done` tells whether it was the last."""
        token = ctypes.c_int64()
        status = self._engine.check(self._engine.library.decode_step(self._engine.handle, self._handle, token))
        self.done = status == 1
        return token.value

    def close(self) -> None:
        """Ends the request and gives its pages back. Again: nothing."""
        if self._handle:
            self._engine.library.free_request_state(self._engine.handle, self._handle)
        self._handle = 0

    def __enter__(self) -> "State":
        return self

    def __exit__(self, *unused) -> None:
        self.close()


class Engine(ApiRequests):
    """A model in memory and the threads that compute. Use as a context manager, or close() it.

    `model_dir`: its directory, or its name on Hugging Face's hub, ORG/NAME or ORG/NAME@REVISION, which is fetched if need
    be (FetchError). Any thread may call anything; generate(), stream() and batch() of several threads are computed
    together. The options are EngineOptions' fields by their names: num_gpus=1 computes on a GPU, 0 (the default) on the CPU;
    executor="process" or "thread"; devices=[0, 1], the GPUs of the ranks; worker, the program of worker processes (or
    the environment's KOHO_WORKER; else `koho` beside engine.so).
    """

    EXECUTORS = {"auto": 0, "process": 1, "thread": 2}

    def __init__(self, model_dir, *, library=None, **options):
        self.library = c.load(library)
        self.handle = None
        self._turn = threading.Lock()  # whose turn it is to poll
        self._routes_lock = threading.Lock()
        self._routes: dict[int, collections.deque] = {}  # events of stream() and batch(), by request
        self._next_id = itertools.count(1 << 62)  # far from the ids that callers of add() choose
        self._events = (c.TokenEventStruct * 256)()
        self._logits: dict[int, ctypes.Array] = {}  # where poll() finds them, by request
        known = {name for name, _ in c.EngineOptionsStruct._fields_[1:]} - {"num_devices"}
        if unknown := options.keys() - known:
            raise TypeError(f"no such option: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
        executor = options.get("executor", 0)
        if isinstance(executor, str):
            if executor not in self.EXECUTORS:
                raise ValueError(f"executor must be one of {', '.join(self.EXECUTORS)}, found {executor!r}")
            options["executor"] = self.EXECUTORS[executor]
        if (devices := options.pop("devices", None)) is not None:
            numbers = [c_values.fit("devices", device, ctypes.c_int32) for device in devices]
            options |= {"devices": (ctypes.c_int32 * len(numbers))(*numbers), "num_devices": len(numbers)}
        if worker := options.pop("worker", None) or os.environ.get("KOHO_WORKER"):
            options["worker"] = os.fsencode(worker)
        chosen = c_values.struct(c.EngineOptionsStruct, **options)
        self.model_dir = hub.directory(model_dir)
        self.handle = self.library.init_engine_ex(os.fsencode(self.model_dir), chosen)
        if not self.handle:
            raise self.error()

    def close(self) -> None:
        """Ends all requests and frees everything. Again: nothing."""
        if self.handle:
            self.library.free_engine(self.handle)
        self.handle = None

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *unused) -> None:
        self.close()

    def __del__(self):
        if getattr(self, "handle", None):
            self.close()

    def error(self) -> EngineError:
        """Of this thread's last failed call."""
        return EngineError(self.library.last_error().decode(errors="replace"), self.library.last_error_code())

    def check(self, status: int) -> int:
        """Raises EngineError for a negative status."""
        if status < 0:
            raise self.error()
        return status

    def info(self, which: Info) -> int:
        """One number about the engine."""
        return self.check(self.library.get_engine_info(self.handle, int(which)))

    def _struct(self, params: SamplingParams | None):
        """The C struct of params and where their logits go, or None and None."""
        if params is None:
            return None, None
        logits = (ctypes.c_float * self.info(Info.VOCAB_SIZE))() if params.logits else None
        return params.struct(logits), logits

    # ---- the synchronous form

    def prefill(self, token_ids: Sequence[int], params: SamplingParams | None = None, request_id: int = 0) -> State:
        """Computes a prompt. Without params: as the model advises."""
        struct, logits = self._struct(params)
        handle = self.library.prefill(self.handle, c_values.fit("request_id", request_id),
                                      c_values.ids(token_ids), len(token_ids), struct)
        if not handle:
            raise self.error()
        return State(self, handle, logits)

    def decode_batch(self, states: Sequence[State]) -> list[int]:
        """One step for all states together: their next tokens, -1 for those that had ended. If some requests fail, the
        error's `tokens` are the others', -1 in the place of those that failed, which are done."""
        count = len(states)
        handles = (ctypes.c_void_p * count)(*[state._handle for state in states])
        tokens = (ctypes.c_int64 * count)()
        untouched = 2
        done = (ctypes.c_uint8 * count)(*[untouched] * count)
        status = self.library.run_batch_decode(self.handle, handles, count, tokens, done)
        error = self.error() if status < 0 else None
        if error and untouched in done:
            raise error  # of the call: nothing was computed
        for state, flag in zip(states, done):
            state.done = bool(flag)
        if error:
            error.tokens = list(tokens)
            raise error
        return list(tokens)

    # ---- the asynchronous form

    def add(self, request_id: int, token_ids: Sequence[int], params: SamplingParams | None = None) -> None:
        """Submits a request; its tokens come out of poll()."""
        struct, logits = self._struct(params)
        request_id = c_values.fit("request_id", request_id)
        added = logits is not None and self._logits.setdefault(request_id, logits) is logits
        status = self.library.add_request(self.handle, request_id, c_values.ids(token_ids), len(token_ids), struct)
        if status < 0 and added:
            del self._logits[request_id]
        self.check(status)

    def cancel(self, request_id: int) -> None:
        """Cancels a request by its id."""
        self.check(self.library.cancel_request(self.handle, c_values.fit("request_id", request_id)))

    def poll(self, timeout_ms: int = -1) -> list[TokenEvent]:
        """Events of requests that add() submitted. Not beside stream() or batch(), which poll for themselves."""
        timeout_ms = c_values.fit("timeout_ms", timeout_ms, ctypes.c_int32)
        count = self.check(self.library.poll_requests(self.handle, self._events, len(self._events), timeout_ms))
        return [self._told(event) for event in self._events[:count]]

    def _told(self, event: c.TokenEventStruct) -> TokenEvent:
        # One event of a request with logits comes from each poll, as its memory has one row.
        logits = self._logits.get(event.request_id)
        if logits is not None and event.finish != Finish.NONE:
            del self._logits[event.request_id]
        return TokenEvent(event.request_id, event.token, Finish(event.finish), event.status, event.cached_tokens,
                          event.logprob, array.array("f", logits) if logits is not None and event.token >= 0 else None)

    # ---- whole answers

    def stream(self, token_ids: Sequence[int], params: SamplingParams | None = None) -> Iterator[int]:
        """Yields the tokens of one request as they come. Leaving the loop cancels the request."""
        events = self._follow([(token_ids, params)])
        try:
            for event in events:
                if event.token >= 0:
                    yield event.token
        finally:
            events.close()  # Python 3.12 leaves an inner generator open when the outer one is closed

    def generate(self, token_ids: Sequence[int], params: SamplingParams | None = None) -> Completion:
        """The answer to one prompt."""
        return self.batch([token_ids], params)[0]

    def batch(self, prompts: Sequence[Sequence[int]],
              params: SamplingParams | Sequence[SamplingParams] | None = None) -> list[Completion]:
        """The answers to many prompts, computed together as far as the batch holds them."""
        each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, {len(each)} params")
        answers = [Completion([], "", 0, [] if one and one.logprobs else None, [] if one and one.logits else None)
                   for one in each]
        places: dict[int, int] = {}
        for event in self._follow(list(zip(prompts, each)), places):
            answer = answers[places[event.request_id]]
            if event.token >= 0:
                answer.token_ids.append(event.token)
                if answer.logprobs is not None:
                    answer.logprobs.append(event.logprob)
                if answer.logits is not None:
                    answer.logits.append(event.logits)
            if event.finish != Finish.NONE:
                answer.finish_reason = event.finish.name.lower()
                answer.cached_tokens = event.cached_tokens
        return answers

    def _follow(self, requests, places: dict[int, int] | None = None) -> Iterator[TokenEvent]:
        """Submits requests and yields their events until all have ended; cancels what is left when it is left."""
        waiting = collections.deque(enumerate(requests))
        events: collections.deque = collections.deque()
        live: set[int] = set()
        try:
            while waiting or live:
                while waiting:
                    place, (prompt, params) = waiting[0]
                    name = next(self._next_id)
                    with self._routes_lock:
                        self._routes[name] = events
                    try:
                        self.add(name, prompt, params)
                    except Exception as error:
                        with self._routes_lock:
                            del self._routes[name]
                        if isinstance(error, EngineError) and error.name == "resource_exhausted" and live:
                            break  # the queue is full: some must end first
                        raise
                    waiting.popleft()
                    live.add(name)
                    if places is not None:
                        places[name] = place
                while not events:
                    self._route(events)
                event = events.popleft()
                if event.finish != Finish.NONE:
                    live.discard(event.request_id)
                if event.finish == Finish.ERROR:
                    raise EngineError(f"request failed: {EngineError.NAMES.get(event.status, 'error')}", event.status)
                yield event
        finally:
            for name in live:
                if self.handle:
                    self.library.cancel_request(self.handle, name)

    def _route(self, wanted: collections.deque) -> None:
        """One poll by whichever thread comes first; the events go to whom they belong."""
        with self._turn:
            if wanted:
                return  # another thread brought them meanwhile
            for event in self.poll(20):
                with self._routes_lock:
                    route = self._routes.get(event.request_id)
                    if event.finish != Finish.NONE:
                        self._routes.pop(event.request_id, None)
                if route is not None:
                    route.append(event)
