# SPDX-License-Identifier: Apache-2.0
"""Conversations with tools: schemas on offer, requests, calls, results and final answers.

Two kinds of tools: families that everybody offers (weather, search, calculator, ...), each with many
spellings of its names and parameters, and invented tools made of random words, so that the model
has to read the schema. A request becomes calls in the order in which it names them; arguments stand
in the order in which the request names them; parameters that it does not name are left out.
"""

import json

from .tool_families import FAMILIES
from .tool_request import Request, param, spelled, tool
from .words import (
    ADJECTIVES,
    CITIES,
    NOUNS,
    PARAMS,
    VERBS,
    allowed,
    any_word,
    join_and,
    pseudo_word,
    typed_value,
)

# ---- invented tools ------------------------------------------------------------------------------

TYPES = [
    "string",
    "string",
    "string",
    "string",
    "integer",
    "integer",
    "number",
    "boolean",
    "array:string",
    "array:integer",
]
FILLERS = ["", "", "Please ", "Can you ", "I want you to ", "Now ", "Could you please "]


def param_name(rng):
    r = rng.random()
    if r < 0.55:
        return rng.choice(PARAMS)
    if r < 0.70:
        return f"{rng.choice(ADJECTIVES)}_{rng.choice(PARAMS)}"
    if r < 0.80:
        return rng.choice(NOUNS) + rng.choice(PARAMS).capitalize()
    return rng.choice(NOUNS) if r < 0.90 else pseudo_word(rng)


def invented(rng, split, like=None):
    """A tool made of random words; `like` shares a word with another tool to be mistaken for."""
    while True:
        verb = rng.choice(VERBS) if rng.random() < 0.75 else pseudo_word(rng)
        noun = rng.choice(NOUNS) if rng.random() < 0.8 else pseudo_word(rng)
        if like and rng.random() < 0.5:
            verb, noun = rng.choice(((like[0], noun), (verb, like[1])))
        middle = [rng.choice(ADJECTIVES)] if rng.random() < 0.25 else []
        if allowed(f"tool:{verb},{noun}", split):
            break
    words = [verb, *middle, noun] if rng.random() < 0.85 else [*middle, noun, verb]
    name = spelled(rng, words)
    phrase = " ".join([verb, "the", *middle, noun])
    names = list(dict.fromkeys(param_name(rng) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3, 4)))))
    kinds = {n: rng.choice(TYPES) for n in names}
    describe = rng.random()
    props = {
        n: param(
            k,
            (
                f"The {n.replace('_', ' ')}" + rng.choice((".", "", " to use"))
                if rng.random() < describe
                else None
            ),
        )
        for n, k in kinds.items()
    }
    for n in names:
        if kinds[n] == "string" and rng.random() < 0.15:
            props[n]["enum"] = [any_word(rng) for _ in range(rng.randint(2, 4))]
    optional = [n for n in names if rng.random() < 0.2]
    made = tool(
        rng,
        name,
        phrase[0].upper() + phrase[1:] + rng.choice((".", "", ".")),
        props,
        [n for n in names if n not in optional],
    )

    def request(rng):
        given = [n for n in names if n not in optional or rng.random() < 0.5]
        if rng.random() < 0.3:
            rng.shuffle(given)
        args = {
            n: rng.choice(props[n]["enum"]) if "enum" in props[n] else typed_value(rng, kinds[n])
            for n in given
        }
        user = phrase_request(rng, name, phrase, args)
        results, reply = outcome(rng, noun)
        return Request(user, [(name, args)], phrase, [results], reply)

    return made, request, (verb, noun)


def said(rng, value, style):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        if style == "prose" and rng.random() < 0.6:
            return join_and(str(v) for v in value)
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and style == "quoted":
        return f'"{value}"'
    return str(value)


def phrase_request(rng, name, phrase, args):
    plain = {n: n.replace("_", " ") if rng.random() < 0.6 else n for n in args}
    style = rng.randrange(7)
    filler = rng.choice(FILLERS)
    start = filler + (phrase if filler else phrase[0].upper() + phrase[1:])
    end = "?" if filler.startswith(("Can", "Could")) else "."
    if not args:
        return rng.choice((start + end, f"Call {name}.", f"Use {name}.", f"Run {name} now."))
    if style == 0:
        mode = rng.choice(("prose", "quoted"))
        return start + " with " + join_and(f"{plain[n]} {said(rng, v, mode)}" for n, v in args.items()) + end
    if style == 1:
        return (
            start
            + end
            + " "
            + " ".join(
                f"{plain[n][0].upper() + plain[n][1:]}: {said(rng, v, 'prose')}." for n, v in args.items()
            )
        )
    if style == 2:
        return (
            f"Call {name} with "
            + join_and(f"{n}={said(rng, v, rng.choice(('plain', 'quoted')))}" for n, v in args.items())
            + "."
        )
    if style == 3:
        return (
            start
            + end
            + " "
            + " ".join(
                f"The {plain[n]} is {said(rng, v, rng.choice(('prose', 'quoted')))}." for n, v in args.items()
            )
        )
    if style == 4:
        return (
            start
            + end
            + " Use "
            + join_and(f"{said(rng, v, 'quoted')} as the {plain[n]}" for n, v in args.items())
            + "."
        )
    if style == 5:
        return (
            f"Use {name}: "
            + ", ".join(f"{plain[n]} is {said(rng, v, 'plain')}" for n, v in args.items())
            + "."
        )
    return start + " (" + ", ".join(f"{n}: {said(rng, v, 'plain')}" for n, v in args.items()) + ")" + end


def outcome(rng, noun):
    """What a tool answers and what is said about it: every key but a plain status is reported."""
    r = rng.random()
    if r < 0.2:
        return rng.choice(({"status": "ok"}, "ok", {"status": "done"}, {"success": True})), "Done."
    if r < 0.3:
        why = rng.choice(
            (
                f"{noun} not found",
                "permission denied",
                "timeout",
                f"no {noun}",
                "out of memory",
                f"unknown {any_word(rng)}",
            )
        )
        return rng.choice(({"error": why}, {"status": "error", "error": why})), f"The call failed: {why}."
    if r < 0.45:
        text = rng.choice(
            (
                f"The {noun} is {rng.choice(ADJECTIVES)}.",
                f"{rng.randint(2, 99)} {noun}s found.",
                f"The {noun} is in {rng.choice(CITIES)}.",
            )
        )
        return text, text
    if r < 0.6:
        value = typed_value(rng, rng.choice(("string", "integer", "number")), simple=True)
        return {"result": value}, f"The result is {value}."
    names = list(dict.fromkeys(param_name(rng) for _ in range(rng.randint(1, 3))))
    value = {
        n: typed_value(rng, rng.choice(("string", "string", "integer", "number")), simple=True) for n in names
    }
    text = join_and(f"the {n.replace('_', ' ')} is {v}" for n, v in value.items()) + "."
    return ({"status": "ok", **value} if rng.random() < 0.3 else value), text[0].upper() + text[1:]


# ---- conversations -------------------------------------------------------------------------------


def offer(rng, split, invented_share=0.6, n=None):
    """Tools on offer and the request makers of those that can be asked for."""
    n = n or rng.choice((1, 1, 2, 2, 3, 3, 4, 5))
    tools, makers, names, like = [], [], set(), None
    families = rng.sample(range(1, len(FAMILIES)), n)
    while len(tools) < n:
        if rng.random() < invented_share:
            made, request, like = invented(rng, split, like)
        else:
            made, request = FAMILIES[families[len(tools)]](rng)
        if made["function"]["name"] in names:
            continue
        names.add(made["function"]["name"])
        tools.append(made)
        makers.append(request)
    return tools, makers


def call_message(request, think):
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": n, "arguments": a}} for n, a in request.calls
        ],
    }
    if think:
        message["reasoning_content"] = call_reasoning(request)
    return message


def call_reasoning(request):
    return f"The user wants to {request.goal}. I call {join_and(n for n, _ in request.calls)}."


def both(a, b):
    second = b.user if b.user[:2] == "I " or b.user[:1].isdigit() else b.user[0].lower() + b.user[1:]
    first = a.user.rstrip(".?")
    return Request(
        f"{first}{'?' if a.user.endswith('?') else '.'} Also, {second}",
        a.calls + b.calls,
        f"{a.goal} and {b.goal}",
        a.results + b.results,
        f"{a.reply if a.reply[-1] in '.!?' else a.reply + '.'} {b.reply}",
    )


def ask(rng, makers):
    request = rng.choice(makers)(rng)
    if rng.random() < 0.15:
        request = both(request, rng.choice(makers)(rng))
    return request


def result_text(result):
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def round_trip(rng, request, think):
    """The messages from the call to the final answer."""
    messages = [call_message(request, think)]
    messages += [{"role": "tool", "content": result_text(r)} for r in request.results]
    answer = {"role": "assistant", "content": request.reply}
    if think:
        answer["reasoning_content"] = (
            "The tool has answered." if len(request.calls) == 1 else "The tools have answered."
        )
    return messages + [answer]
