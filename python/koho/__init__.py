# SPDX-License-Identifier: Apache-2.0
"""koho from Python: engine.so through ctypes, with the standard library only.

    import koho

    with koho.Engine("models/tiny") as engine:
        print(engine.chat("What is the capital of France?"))

chat(), chat_stream(), complete() and request() have text in them, as the endpoints of `koho serve` do; AsyncEngine is the same
for asyncio. With token ids:

    from koho import Engine, SamplingParams

    with Engine("models/tiny", max_batch=8) as engine:
        for token in engine.stream([504, 12, 99], SamplingParams(max_tokens=32)):
            print(token)

Nothing is computed here. include/koho/engine.h says what each call means.
"""

from koho.engine import Completion, Engine, EngineError, Finish, Info, SamplingParams, State, TokenEvent
from koho.hub import FetchError
from koho.text import AsyncEngine, ChatAnswer, RequestRefused

__all__ = ["AsyncEngine", "ChatAnswer", "Completion", "Engine", "EngineError", "FetchError", "Finish", "Info", "RequestRefused",
           "SamplingParams", "State", "TokenEvent"]
