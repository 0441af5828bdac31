# SPDX-License-Identifier: Apache-2.0
"""What a family of tools is made of: a tool's definition in a spelling of its own, and a request for it."""

from typing import NamedTuple


class Request(NamedTuple):
    user: str
    calls: list  # [(tool name, {argument: value})]
    goal: str  # what the reasoning says it wants
    results: list  # what the tools answer: str or dict
    reply: str  # the final answer


def param(kind, description=None, enum=None):
    node = {"type": kind.split(":")[0]}
    if kind.startswith("array"):
        node["items"] = {"type": kind.split(":")[1]}
    if description:
        node["description"] = description
    if enum:
        node["enum"] = enum
    return node


def tool(rng, name, description, props, required):
    parameters = {"type": "object", "properties": props}
    if required or rng.random() < 0.5:
        parameters["required"] = required
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def spelled(rng, words):
    """Several words as one identifier."""
    return "_".join(words) if rng.random() < 0.75 else words[0] + "".join(w.capitalize() for w in words[1:])


def spelled_name(rng, *choices):
    return spelled(rng, rng.choice(choices).split())
