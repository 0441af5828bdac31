# SPDX-License-Identifier: Apache-2.0
"""SamplingParams, and the C struct that it becomes. tests/sampling/sampling_parameters_test.py holds both to koho's table
of parameters."""

import ctypes
import dataclasses
import operator
from collections.abc import Sequence
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_uint32, c_uint64

from koho import c_values


class SamplingParamsStruct(ctypes.Structure):
    """SamplingParams."""

    _fields_ = [("struct_size", c_uint32), ("max_tokens", c_int32), ("min_tokens", c_int32), ("ignore_eos", c_int32),
                ("temperature", c_double), ("top_p", c_double), ("min_p", c_double), ("repetition_penalty", c_double),
                ("frequency_penalty", c_double), ("presence_penalty", c_double), ("top_k", c_int32),
                ("use_seed", c_int32), ("seed", c_int64), ("stop_token_ids", POINTER(c_int64)),
                ("num_stop_token_ids", c_int32), ("logprobs", c_int32), ("priority", c_int32),
                ("deadline_ms", c_int32), ("cache_salt", c_uint64 * 2), ("stop_sequences", POINTER(c_int64)),
                ("num_stop_sequences", c_int32), ("logits_rows", c_int32), ("logits", POINTER(c_float))]


# What generation_config.json can advise: None here, negative in C.
ADVISED = ("temperature", "top_p", "min_p", "top_k", "repetition_penalty")


@dataclasses.dataclass
class SamplingParams:
    """How tokens are sampled; docs/sampling-parameters.md says what each parameter does. The defaults are greedy decoding;
    None leaves a field to the model's generation_config.json."""

    max_tokens: int = 0  # 0: as many as the context holds
    min_tokens: int = 0
    ignore_eos: bool = False
    temperature: float | None = 0.0
    top_p: float | None = 1.0
    min_p: float | None = 0.0
    top_k: int | None = 0
    repetition_penalty: float | None = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    stop_token_ids: Sequence[int | Sequence[int]] = ()  # a sequence among them ends the answer by its order
    logprobs: bool = False
    logits: bool = False
    priority: int = 0
    deadline_ms: int = 0
    cache_salt: int = 0  # 128 bits

    def struct(self, logits=None) -> SamplingParamsStruct:
        """The C struct; it keeps the stop tokens alive. `logits`: a ctypes array of one row of the vocabulary."""

        stops = c_values.ids([item for item in self.stop_token_ids if not hasattr(item, "__len__")])
        sequences = [item for item in self.stop_token_ids if hasattr(item, "__len__")]
        words = c_values.ids([word for item in sequences for word in (len(item), *item)])
        salt = operator.index(self.cache_salt)
        if not 0 <= salt < 1 << 128:
            raise OverflowError(f"cache_salt must be in 0..2**128-1, found {salt}")
        # Every other field is one number under the same name in C.
        numbers = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)
                   if field.name not in ("seed", "stop_token_ids", "cache_salt", "logits")}
        for name, value in numbers.items():
            if value is None and name in ADVISED:
                numbers[name] = -1
        made = c_values.struct(
            SamplingParamsStruct, **numbers, use_seed=int(self.seed is not None), seed=self.seed or 0,
            stop_token_ids=stops, num_stop_token_ids=len(stops), stop_sequences=words, num_stop_sequences=len(sequences),
            logits=logits, logits_rows=int(logits is not None))
        made.cache_salt[0] = salt & (2**64 - 1)
        made.cache_salt[1] = salt >> 64
        return made
