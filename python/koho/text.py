# SPDX-License-Identifier: Apache-2.0
"""Text and chats: the endpoints of `koho serve`, answered in this process. ApiRequests is a part of Engine; AsyncEngine is the
same for asyncio."""

import asyncio
import concurrent.futures
import ctypes
import dataclasses
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence


@dataclasses.dataclass
class ChatAnswer:
    """A whole answer to a conversation. `message` is what belongs into the history for the next turn."""

    text: str
    reasoning: str
    tool_calls: list[dict]  # as OpenAI has them
    finish_reason: str  # "stop", "length" or "tool_calls"
    usage: dict
    message: dict

    def __str__(self) -> str:
        return self.text


class RequestRefused(ValueError):
    """What an endpoint answered instead of a completion. `status`: the HTTP status; `error`: OpenAI's error object."""

    def __init__(self, status: int, error: dict):
        super().__init__(error.get("message", "refused"))
        self.status = status
        self.error = error

    def __reduce__(self):
        return RequestRefused, (self.status, self.error)  # for pickle, between the processes of a pool


def chat_answer(answer: dict) -> ChatAnswer:
    choice = answer["choices"][0]
    message = choice["message"]
    kept = {name: message[name] for name in ("role", "content", "reasoning_content", "tool_calls") if message.get(name)}
    return ChatAnswer(message.get("content") or "", message.get("reasoning_content") or "", message.get("tool_calls") or [],
                      choice["finish_reason"], answer["usage"], kept)


def _texts(events: Sequence[dict]) -> list[str]:
    """What streamed events of a chat add to the answer's text."""
    return [text for event in events for choice in event["choices"] if (text := choice["delta"].get("content"))]


def conversation(messages) -> list[dict]:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)


class ApiRequests:
    """The requests of Engine that have text in them. Options are fields of the endpoint's body: max_tokens, temperature,
    tools, response_format, seed, … (docs/server.md)."""

    _request_ids = itertools.count(1)

    def chat(self, messages: str | Sequence[dict], **options) -> ChatAnswer:
        """The answer to a conversation: a user's text, or messages with role and content."""
        return chat_answer(self.request("/v1/chat/completions", {"messages": conversation(messages), **options}))

    def chat_stream(self, messages: str | Sequence[dict], **options) -> Iterator[str]:
        """Yields the answer's text as it comes, without the reasoning. Leaving the loop cancels the request."""
        body = {"messages": conversation(messages), **options}
        for event in self.request_stream("/v1/chat/completions", body):
            yield from _texts([event])

    def complete(self, prompt: str, **options) -> str:
        """The text that follows `prompt`."""
        return self.request("/v1/completions", {"prompt": prompt, **options})["choices"][0]["text"]

    def request(self, path: str, body: dict) -> dict:
        """The answer of one POST endpoint of `koho serve`. Raises RequestRefused for an error."""
        return _whole_answer(list(self.post(path, _encoded(body, stream=False))))

    def request_stream(self, path: str, body: dict) -> Iterator[dict]:
        """The events of one POST endpoint, as they come. Leaving the loop cancels the request."""
        rest = b""
        pieces = self.post(path, _encoded(body, stream=True))
        try:
            for piece, status in pieces:
                events, rest = _whole_events(rest + piece, status)
                yield from events
        finally:
            pieces.close()

    def post(self, path: str, body: bytes) -> Iterator[tuple[bytes, int]]:
        """Pieces of the answer of one POST endpoint as its client gets them, each with 0, the last one with the HTTP status.
        Leaving the loop cancels the request."""
        posted = Posted(self, path, body)
        try:
            while not posted.status:
                yield posted.read(), posted.status
        finally:
            posted.cancel()


class Posted:
    """One request to a POST endpoint. One thread at a time may read(), any may cancel()."""

    def __init__(self, engine: ApiRequests, path: str, body: bytes):
        self.status = 0  # the HTTP status, once all is read
        self._engine = engine
        self._name = next(engine._request_ids)
        self._buffer = ctypes.create_string_buffer(1 << 16)
        engine.check(engine.library.post_request(engine.handle, self._name, path.encode(), body, len(body)))

    def read(self) -> bytes:
        """The next piece of the answer. Raises EngineError if the request has been cancelled."""
        status = ctypes.c_int32()
        count = self._engine.library.read_response(self._engine.handle, self._name, self._buffer, len(self._buffer), -1, status)
        self._engine.check(count)
        self.status = status.value
        return self._buffer.raw[:count]

    def cancel(self) -> None:
        """Cancels what is not answered yet. Again, or after the end: nothing."""
        if not self.status and self._engine.handle:
            self._engine.library.cancel_response(self._engine.handle, self._name)


def _encoded(body: dict, stream: bool) -> bytes:
    return json.dumps(dict(body, stream=stream)).encode()


def _whole_answer(pieces: list[tuple[bytes, int]]) -> dict:
    answer = json.loads(b"".join(piece for piece, _ in pieces))
    status = pieces[-1][1]
    if status >= 400:
        raise RequestRefused(status, answer.get("error", answer))
    return answer


def _whole_events(data: bytes, status: int) -> tuple[list[dict], bytes]:
    """The whole server-sent events that `data` begins with, and the rest."""
    if status >= 400:
        answer = json.loads(data)
        raise RequestRefused(status, answer.get("error", answer))
    *whole, rest = data.split(b"\n\n")
    events = []
    for event in whole:
        text = b"".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:")).strip()
        if text and text != b"[DONE]":
            events.append(json.loads(text))
            if "error" in events[-1]:
                raise RequestRefused(500, events[-1]["error"])
    return events, rest


class AsyncEngine:
    """An Engine for asyncio: the same methods, awaited. Its requests are computed together, `concurrency` of them at once."""

    def __init__(self, engine, concurrency: int = 256):
        self.engine = engine
        self._threads = concurrent.futures.ThreadPoolExecutor(concurrency, "koho")  # each waits for one request

    async def chat(self, messages: str | Sequence[dict], **options) -> ChatAnswer:
        """As Engine.chat()."""
        return chat_answer(await self.request("/v1/chat/completions", {"messages": conversation(messages), **options}))

    async def complete(self, prompt: str, **options) -> str:
        """As Engine.complete()."""
        return (await self.request("/v1/completions", {"prompt": prompt, **options}))["choices"][0]["text"]

    async def request(self, path: str, body: dict) -> dict:
        """As Engine.request(). Cancelling the task cancels the request."""
        return _whole_answer([item async for item in self.post(path, _encoded(body, stream=False))])

    async def chat_stream(self, messages: str | Sequence[dict], **options) -> AsyncIterator[str]:
        """As Engine.chat_stream()."""
        rest = b""
        pieces = self.post("/v1/chat/completions", _encoded({"messages": conversation(messages), **options}, stream=True))
        try:
            async for piece, status in pieces:
                events, rest = _whole_events(rest + piece, status)
                for text in _texts(events):
                    yield text
        finally:
            await pieces.aclose()

    async def post(self, path: str, body: bytes) -> AsyncIterator[tuple[bytes, int]]:
        """As Engine.post(). Leaving the loop or cancelling the task cancels the request."""
        posted = Posted(self.engine, path, body)
        try:
            while not posted.status:
                piece = await self._run(posted.read)
                yield piece, posted.status
        finally:
            posted.cancel()

    def _run(self, work):
        return asyncio.get_running_loop().run_in_executor(self._threads, work)
