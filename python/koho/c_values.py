# SPDX-License-Identifier: Apache-2.0
"""Python values as C values: nothing is cut off on the way."""

import array
import ctypes
import operator
from collections.abc import Sequence


def fit(name: str, value, kind=ctypes.c_int64) -> int:
    """`value`, if it is an integer that a `kind` holds: ctypes would cut off the bits above without a word."""
    number = operator.index(value)
    if kind(number).value != number:
        raise OverflowError(f"{name} does not fit into {8 * ctypes.sizeof(kind)} bits: {number}")
    return number


def ids(token_ids: Sequence[int]):
    """As a C array. An id that does not fit is an OverflowError."""
    numbers = array.array("q", token_ids)
    return (ctypes.c_int64 * len(numbers)).from_buffer(numbers)


def struct(kind, **values):
    """A C struct of these fields, each of which must fit; struct_size is filled in."""
    kinds = dict(kind._fields_)
    for name, value in values.items():
        if kinds[name] in (ctypes.c_int32, ctypes.c_int64):
            values[name] = fit(name, value, kinds[name])
    return kind(struct_size=ctypes.sizeof(kind), **values)
