# SPDX-License-Identifier: Apache-2.0
"""koho from Python: engine.so through ctypes, with the standard library only.

    from koho import Engine, SamplingParams

    with Engine("models/tiny", max_batch=8) as engine:
        for token in engine.stream([504, 12, 99], SamplingParams(max_tokens=32)):
            print(token)

Token ids in, token ids out; nothing is computed here. include/koho/engine.h says what each call means.
"""

from koho.engine import Completion, Engine, EngineError, Finish, Info, SamplingParams, State, TokenEvent

__all__ = ["Completion", "Engine", "EngineError", "Finish", "Info", "SamplingParams", "State", "TokenEvent"]
