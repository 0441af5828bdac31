# SPDX-License-Identifier: Apache-2.0
"""The C structs and prototypes of include/koho/engine.h for ctypes (SamplingParams: koho/sampling.py), and where engine.so is
found."""

import ctypes
import pathlib
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_uint8, c_uint32, c_void_p

from koho.places import find, let_programs_find_cuda
from koho.sampling import SamplingParamsStruct


class EngineOptionsStruct(ctypes.Structure):
    """EngineOptions."""

    _fields_ = [("struct_size", c_uint32)] + [(name, c_int32) for name in (
        "max_batch", "max_seq", "num_gpus", "num_ranks", "num_threads", "slice_experts", "dp_attention", "kv_pages",
        "kv_fp8", "no_prefix_cache", "prefill_chunk", "max_queue", "inter_token_ms_max",
        "deterministic", "executor")] + [
        ("devices", POINTER(c_int32)), ("num_devices", c_int32), ("step_deadline_ms", c_int32), ("worker", c_char_p)]


class TokenEventStruct(ctypes.Structure):
    """TokenEvent."""

    _fields_ = [("request_id", c_int64), ("token", c_int64), ("finish", c_int32), ("status", c_int32),
                ("cached_tokens", c_int32), ("logprob", c_float)]


_PROTOTYPES = {
    "init_engine": (c_void_p, [c_char_p, c_int32, c_int32, c_int32]),
    "init_engine_ex": (c_void_p, [c_char_p, POINTER(EngineOptionsStruct)]),
    "prefill": (c_void_p, [c_void_p, c_int64, POINTER(c_int64), c_int32, POINTER(SamplingParamsStruct)]),
    "decode_step": (c_int32, [c_void_p, c_void_p, POINTER(c_int64)]),
    "run_batch_decode": (c_int32, [c_void_p, POINTER(c_void_p), c_int32, POINTER(c_int64), POINTER(c_uint8)]),
    "free_request_state": (None, [c_void_p, c_void_p]),
    "add_request": (c_int32, [c_void_p, c_int64, POINTER(c_int64), c_int32, POINTER(SamplingParamsStruct)]),
    "poll_requests": (c_int32, [c_void_p, POINTER(TokenEventStruct), c_int32, c_int32]),
    "cancel_request": (c_int32, [c_void_p, c_int64]),
    "post_request": (c_int32, [c_void_p, c_int64, c_char_p, c_char_p, c_int64]),
    "read_response": (c_int64, [c_void_p, c_int64, c_char_p, c_int64, c_int32, POINTER(c_int32)]),
    "cancel_response": (c_int32, [c_void_p, c_int64]),
    "get_engine_info": (c_int64, [c_void_p, c_int32]),
    "free_engine": (None, [c_void_p]),
    "last_error": (c_char_p, []),
    "last_error_code": (c_int32, []),
}


def find_library():
    """engine.so (koho/places.py); KOHO_ENGINE names another."""
    return find("engine.so", "KOHO_ENGINE")


def load(path=None):
    """Opens engine.so and declares its functions."""
    # A library that is loaded is found by its name; LD_LIBRARY_PATH is for worker processes, this one read it at its start.
    for file in let_programs_find_cuda():
        ctypes.CDLL(str(file))
    library = ctypes.CDLL(str(pathlib.Path(path or find_library()).resolve()))
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
