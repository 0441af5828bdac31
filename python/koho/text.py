# SPDX-License-Identifier: Apache-2.0
"""Text and chats: the endpoints of `koho serve`, answered in this process. ApiRequests is a part of Engine; AsyncEngine is the
same for asyncio."""

import asyncio
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


def _conversation(messages) -> list[dict]:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)


class ApiRequests:
    """The requests of Engine that have text in them. Options are fields of the endpoint's body: max_tokens, temperature,
    tools, response_format, seed, … (docs/server.md)."""

    _request_ids = itertools.count(1)

    def chat(self, messages: str | Sequence[dict], **options) -> ChatAnswer:
        """The answer to a conversation: a user's text, or messages with role and content."""
        answer = self.request("/v1/chat/completions", {"messages": _conversation(messages), **options})
        choice = answer["choices"][0]
        message = choice["message"]
        kept = {name: message[name] for name in ("role", "content", "reasoning_content", "tool_calls") if message.get(name)}
        return ChatAnswer(message.get("content") or "", message.get("reasoning_content") or "", message.get("tool_calls") or [],
                          choice["finish_reason"], answer["usage"], kept)

    def chat_stream(self, messages: str | Sequence[dict], **options) -> Iterator[str]:
        """Yields the answer's text as it comes, without the reasoning. Leaving the loop cancels the request."""
        body = {"messages": _conversation(messages), **options}
        for event in self.request_stream("/v1/chat/completions", body):
            for choice in event["choices"]:
                if text := choice["delta"].get("content"):
                    yield text

    def complete(self, prompt: str, **options) -> str:
        """The text that follows `prompt`."""
        return self.request("/v1/completions", {"prompt": prompt, **options})["choices"][0]["text"]

    def request(self, path: str, body: dict) -> dict:
        """The answer of one POST endpoint of `koho serve`. Raises RequestRefused for an error."""
        pieces = []
        status = 0
        for piece, status in self._post(path, dict(body, stream=False)):
            pieces.append(piece)
        answer = json.loads(b"".join(pieces))
        if status >= 400:
            raise RequestRefused(status, answer.get("error", answer))
        return answer

    def request_stream(self, path: str, body: dict) -> Iterator[dict]:
        """The events of one POST endpoint, as they come. Leaving the loop cancels the request."""
        rest = b""
        events = self._post(path, dict(body, stream=True))
        try:
            for piece, status in events:
                if status >= 400:
                    answer = json.loads(rest + piece)
                    raise RequestRefused(status, answer.get("error", answer))
                *whole, rest = (rest + piece).split(b"\n\n")
                for event in whole:
                    data = b"".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:")).strip()
                    if not data or data == b"[DONE]":
                        continue
                    value = json.loads(data)
                    if "error" in value:
                        raise RequestRefused(500, value["error"])
                    yield value
        finally:
            events.close()

    def _post(self, path: str, body: dict) -> Iterator[tuple[bytes, int]]:
        """Pieces of an answer, each with 0, the last one with the HTTP status."""
        data = json.dumps(body).encode()
        name = next(self._request_ids)
        self.check(self.library.post_request(self.handle, name, path.encode(), data, len(data)))
        buffer = ctypes.create_string_buffer(1 << 16)
        status = ctypes.c_int32()
        try:
            while not status.value:
                count = self.library.read_response(self.handle, name, buffer, len(buffer), -1, status)
                yield buffer.raw[:self.check(count)], status.value
        finally:
            if not status.value and self.handle:
                self.library.cancel_response(self.handle, name)


class AsyncEngine:
    """An Engine for asyncio: the same methods, awaited. Its requests are computed together."""

    def __init__(self, engine):
        self.engine = engine

    async def chat(self, messages: str | Sequence[dict], **options) -> ChatAnswer:
        """As Engine.chat()."""
        return await asyncio.to_thread(self.engine.chat, messages, **options)

    async def complete(self, prompt: str, **options) -> str:
        """As Engine.complete()."""
        return await asyncio.to_thread(self.engine.complete, prompt, **options)

    async def request(self, path: str, body: dict) -> dict:
        """As Engine.request()."""
        return await asyncio.to_thread(self.engine.request, path, body)

    async def chat_stream(self, messages: str | Sequence[dict], **options) -> AsyncIterator[str]:
        """As Engine.chat_stream()."""
        pieces = self.engine.chat_stream(messages, **options)
        end = object()
        try:
            while (piece := await asyncio.to_thread(next, pieces, end)) is not end:
                yield piece
        finally:
            await asyncio.to_thread(pieces.close)
