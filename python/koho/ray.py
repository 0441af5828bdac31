# SPDX-License-Identifier: Apache-2.0
"""koho in Ray (pip install 'koho[ray]'): many prompts through Ray Data, the server's endpoints through Ray Serve.

    import ray
    from koho.ray import chat

    prompts = ray.data.read_json("prompts.jsonl")         # a row each: prompt (a text) or messages (a conversation)
    chat(prompts, "/models/GLM-4.7-FP8", engine={"num_gpus": 8}, replicas=4).write_json("answers")

    from ray import serve
    from koho.ray import deployment

    serve.run(deployment("/models/GLM-4.7-FP8", engine={"num_gpus": 8}, replicas=4), route_prefix="/")

An engine is an actor's, on one machine. Ray starts an actor that died anew and sends it what it had not answered: every
row is answered once, every HTTP request of which nothing was sent yet is tried again. No cluster code is here.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence

from koho.engine import Engine, EngineError, Info
from koho.text import AsyncEngine, RequestRefused, chat_answer, conversation

# What chat() adds to a row. tool_calls is JSON text, as Arrow has one type a column; error is empty for an answered row.
COLUMNS = ("answer", "reasoning", "tool_calls", "finish_reason", "prompt_tokens", "completion_tokens", "error")
TASKS = 4  # of Ray Data that an actor works on at once: while one's last answers end, the next fills the batch
ATTEMPTS = 4  # of an HTTP request whose replica died, and of a row while its engine is busy
PAUSE_S = 0.1  # before the first further attempt; then longer
BUSY = (429, 503)  # HTTP statuses that pass


def chat(dataset, model: str, *, replicas=1, batch_size: int = 64, engine: Mapping | None = None, actor: Mapping | None = None,
         **options):
    """The dataset with a chat's answer in COLUMNS of every row, computed by `replicas` actors (a number, or (least, most)).

    A row has `prompt`, a text, or `messages`, a list of role and content. `engine`: koho.Engine's options; its GPUs are asked
    of Ray. `actor`: further options of Ray's actors, such as num_cpus. `options`: fields of /v1/chat/completions, such as
    max_tokens; a row's column of the name `seed` wins. Rows without a seed get one made of their contents, so that a batch
    computed again has the same answers; equal rows have the same. A refused row has the reason in `error`, and does not
    stop the others; an engine that fails does: then the dataset raises, so that no row is lost in silence.
    """
    return dataset.map_batches(
        ChatStage, fn_constructor_args=(str(model), dict(engine or {}), options), batch_size=batch_size, concurrency=replicas,
        udf_modifying_row_count=False, **{"max_concurrency": TASKS} | _actor_options(engine, actor))


def deployment(model: str, *, name: str | None = None, replicas: int = 1, engine: Mapping | None = None,
               actor: Mapping | None = None, max_ongoing_requests: int = 256, frontends: int = 1, **settings):
    """An application for ray.serve.run(): the POST endpoints of `koho serve` and GET /v1/models, by `replicas` engines.

    `name`: of the model, in the API. `engine` and `actor`: as chat()'s. `settings`: further ones of the engines' deployment,
    such as autoscaling_config instead of replicas. `frontends` processes take the HTTP requests; they hold no engine.
    """
    from ray import serve
    from ray.exceptions import RayActorError

    if "autoscaling_config" not in settings:
        settings["num_replicas"] = replicas
    engines = serve.deployment(
        Replica, name="koho", max_ongoing_requests=max_ongoing_requests, ray_actor_options=_actor_options(engine, actor),
        **settings).bind(str(model), dict(engine or {}), max_ongoing_requests)
    front = serve.deployment(Frontend, name="koho-http", num_replicas=frontends,
                             max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0.1})
    return front.bind(engines, name or str(model).rstrip("/").split("/")[-1], (RayActorError, EngineError))


def _actor_options(engine: Mapping | None, actor: Mapping | None) -> dict:
    gpus = (engine or {}).get("num_gpus", 0)
    return {"num_gpus": gpus} | dict(actor or {}) if gpus else dict(actor or {})


def _plain(value):
    """A value of a batch as JSON has it: NumPy's arrays and numbers become Python's."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}  # Arrow fills fields in
    return [_plain(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else value


def seed_of(row: Mapping) -> int:
    """A seed that depends on the row's contents only."""
    text = json.dumps(row, sort_keys=True, default=str)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


class ChatStage:
    """The actor of chat(): a callable that Ray Data calls with batches, several at once, which the engine computes together."""

    def __init__(self, model: str, engine: dict, options: dict):
        self._chats = AsyncEngine(Engine(model, **engine))
        self._options = options

    async def __call__(self, batch: dict) -> dict:
        """The batch with COLUMNS, its rows in their order."""
        rows = [dict(zip(batch, values)) for values in zip(*map(_plain, batch.values()))]
        answers = await asyncio.gather(*map(self._answer, rows))
        return dict(batch) | {name: [answer[name] for answer in answers] for name in COLUMNS}

    async def _answer(self, row: dict) -> dict:
        body = {"seed": seed_of(row)} | self._options
        seed = row.get("seed")
        if seed is not None and seed == seed:  # a column of integers and nulls comes as floats and NaN
            body["seed"] = int(seed)
        try:
            body["messages"] = conversation(row["messages"] if row.get("messages") is not None else row["prompt"])
            answer = chat_answer(await self._ask(body))
        except (RequestRefused, KeyError, TypeError) as error:
            if isinstance(error, RequestRefused) and (error.status >= 500 or error.status in BUSY):
                raise  # not the row's fault
            reason = f"the row lacks {error}" if isinstance(error, KeyError) else str(error)
            return dict.fromkeys(COLUMNS, "") | {"prompt_tokens": 0, "completion_tokens": 0, "error": reason}
        return {"answer": answer.text, "reasoning": answer.reasoning, "tool_calls": json.dumps(answer.tool_calls),
                "finish_reason": answer.finish_reason, "prompt_tokens": answer.usage["prompt_tokens"],
                "completion_tokens": answer.usage["completion_tokens"], "error": ""}

    async def _ask(self, body: dict) -> dict:
        for attempt in range(1, ATTEMPTS):
            try:
                return await self._chats.request("/v1/chat/completions", body)
            except RequestRefused as error:
                if error.status not in BUSY:
                    raise
                await asyncio.sleep(PAUSE_S * 4**attempt)
        return await self._chats.request("/v1/chat/completions", body)


class Replica:
    """The actor of deployment() that holds an engine."""

    def __init__(self, model: str, engine: dict, concurrency: int):
        self._engine = Engine(model, **engine)
        self._chats = AsyncEngine(self._engine, concurrency)
        self._failure: EngineError | None = None

    async def answer(self, path: str, body: bytes) -> AsyncIterator[tuple[bytes, int]]:
        """Pieces of the answer of one POST endpoint (ApiRequests.post)."""
        pieces = self._chats.post(path, body)
        try:
            async for piece in pieces:
                yield piece
        except EngineError as error:
            if error.name != "not_found":
                self._failure = error
                raise
            yield _error(404, str(error)), 404
        finally:
            await pieces.aclose()

    def check_health(self) -> None:
        """Raises EngineError once the engine has failed: Serve then starts another replica."""
        if self._failure is not None:
            raise self._failure
        self._engine.info(Info.REQUESTS_LIVE)


class Frontend:
    """The actor of deployment() that speaks HTTP. `engines`: the handle of the replicas; `deaths`: the exceptions that tell
    that a replica or its engine died."""

    def __init__(self, engines, name: str, deaths: tuple):
        self._engines = engines.options(stream=True)
        self._name = name
        self._deaths = deaths

    async def __call__(self, request):
        """The answer to one HTTP request (starlette's)."""
        from starlette.responses import Response, StreamingResponse

        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        if request.method == "GET" and path == "/v1/models":
            model = {"id": self._name, "object": "model", "created": 0, "owned_by": "koho"}
            return Response(json.dumps({"object": "list", "data": [model]}), media_type="application/json")
        if request.method != "POST":
            return Response(_error(404, f"there is no endpoint {request.method} {path}"), 404,
                            media_type="application/json")
        body = await request.body()
        pieces = self.pieces(path, body)
        first, status = await anext(pieces)
        if not status and _streams(body):
            return StreamingResponse(_stream(first, pieces), media_type="text/event-stream")
        whole = [first]
        async for piece, status in pieces:
            whole.append(piece)
        kind = "text/event-stream" if status < 400 and _streams(body) else "application/json"
        return Response(b"".join(whole), status, media_type=kind)

    async def pieces(self, path: str, body: bytes) -> AsyncIterator[tuple[bytes, int]]:
        """Pieces of an answer. A request goes to another replica if its own died: of a stream before the first piece, else
        at any time."""
        stream = _streams(body)
        for attempt in range(1, ATTEMPTS + 1):
            whole = []
            answer = self._engines.answer.remote(path, body)
            try:
                async for piece in answer:
                    whole.append(piece)
                    if stream:
                        yield piece
                if not stream:
                    yield b"".join(piece for piece, _ in whole), whole[-1][1]
                return
            except self._deaths as error:
                if attempt == ATTEMPTS or (stream and whole):
                    yield _failed(stream and bool(whole), str(error)), 503
                    return
                await asyncio.sleep(PAUSE_S * attempt)
            finally:
                answer.cancel()


def _streams(body: bytes) -> bool:
    try:
        return json.loads(body).get("stream") is True
    except (ValueError, AttributeError):
        return False  # the engine answers what is wrong with it


async def _stream(first: bytes, pieces: AsyncIterator[tuple[bytes, int]]) -> AsyncIterator[bytes]:
    yield first
    async for piece, _ in pieces:
        yield piece


def _error(status: int, message: str) -> bytes:
    kind = "not_found_error" if status == 404 else "server_error"
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}}).encode()


def _failed(streaming: bool, reason: str) -> bytes:
    text = _error(503, f"the replica that answered died: {reason}")
    return b"data: " + text + b"\n\n" if streaming else text
