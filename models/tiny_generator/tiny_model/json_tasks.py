# SPDX-License-Identifier: Apache-2.0
"""Questions whose answer is one JSON value: from named fields, from prose, from a JSON schema.

Answers are written as json.dumps writes them (", " and ": ", non-ASCII kept), on one line unless the
question asks for indentation.
"""

import json

from . import facts
from .tasks import Task, number_pair
from .words import (
    ADJECTIVES,
    CITIES,
    NAMES,
    NOUNS,
    PARAMS,
    allowed,
    any_word,
    join_and,
    pseudo_word,
    typed_value,
)

TYPES = [
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

# What an example object holds when nobody says: by key, else by type.
EXAMPLES = {
    "name": "Anna",
    "city": "Paris",
    "country": "France",
    "email": "anna@mail.com",
    "age": 30,
    "date": "2025-01-01",
    "time": "12:00",
    "color": "red",
    "title": "The red fox",
    "id": 1,
    "price": 9.5,
    "count": 3,
    "capital": "Paris",
    "language": "English",
    "currency": "euro",
    "unit": "kg",
    "status": "ok",
    "phone": "555-0100",
    "address": "1 Main Street",
    "zip": "12345",
    "street": "Main Street",
    "first_name": "Anna",
    "last_name": "Fox",
    "animal": "fox",
    "sound": "woof",
    "summary": "A short text.",
    "answer": "42",
    "reason": "It is short.",
    "tags": ["red", "blue"],
    "items": ["apple", "pear"],
    "year": 2025,
    "rating": 5,
    "temperature": 21,
    "description": "A short text.",
    "message": "Hello!",
    "text": "Hello!",
}
EXAMPLE_BY_TYPE = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None}


def dumps(value, pretty=False):
    return json.dumps(value, ensure_ascii=False, indent=2 if pretty else None)


def key_name(rng):
    r = rng.random()
    if r < 0.5:
        return rng.choice(PARAMS)
    if r < 0.62:
        return rng.choice(list(EXAMPLES))
    if r < 0.75:
        return rng.choice(ADJECTIVES) + "_" + rng.choice(NOUNS)
    if r < 0.82:
        return rng.choice(NOUNS) + rng.choice(PARAMS).capitalize()
    return rng.choice(NOUNS) if r < 0.92 else pseudo_word(rng)


def keys(rng, n):
    names = []
    while len(names) < n:
        k = key_name(rng)
        if k not in names:
            names.append(k)
    return names


def said(value):
    """A value as it stands in a question."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return dumps(value)
    return str(value)


def fields_json(rng, split):
    """Fields and values are named in the question."""

    def one():
        names = keys(rng, rng.randint(1, 5))
        return {k: typed_value(rng, rng.choice(TYPES)) for k in names}

    obj = one()
    while not allowed("json:" + ",".join(obj), split):
        obj = one()
    pairs = list(obj.items())
    style = rng.randrange(6)
    if style == 0:
        text = "Give me a JSON object with " + join_and(f"{k} = {said(v)}" for k, v in pairs) + "."
    elif style == 1:
        text = "Write JSON with these fields:\n" + "\n".join(f"{k}: {said(v)}" for k, v in pairs)
    elif style == 2:
        text = (
            "Create a JSON object where "
            + join_and(f"{k} is {dumps(v) if isinstance(v, str) else said(v)}" for k, v in pairs)
            + "."
        )
    elif style == 3:
        text = "As JSON: " + ", ".join(f"{k}={said(v)}" for k, v in pairs)
    elif style == 4:
        text = "Convert to JSON: " + "; ".join(f"{k}: {said(v)}" for k, v in pairs)
    else:
        text = "I need a JSON object. " + " ".join(f"The {k} is {said(v)}." for k, v in pairs)
    value = dict(pairs)
    if rng.random() < 0.15:
        outer = rng.choice(NOUNS)
        text += f" Put it under the key {outer}."
        value = {outer: value}
    pretty = rng.random() < 0.12
    if pretty:
        text += rng.choice((" Pretty print it.", " Use indentation."))
    return _task(text, f"The user wants a JSON object with {join_and(obj)}.", value, pretty)


def _task(text, think, value, pretty=False):
    answer = dumps(value, pretty)
    return Task(text, think, answer, answer)


def person_json(rng, split):
    """Prose about a person, keys in the question."""
    name, city, age = rng.choice(NAMES), rng.choice(CITIES), rng.randint(5, 95)
    thing = rng.choice(NOUNS)
    known = {"name": name, "age": age, "city": city, "likes": thing}
    prose = rng.choice(
        [
            f"{name} is {age} years old, lives in {city} and likes the {thing}.",
            f"{name} lives in {city}. {name} is {age} and likes the {thing}.",
            f"{name}, {age}, from {city}, likes the {thing}.",
        ]
    )
    picked = rng.sample(list(known), rng.randint(1, 4))
    form = rng.choice(
        [
            "{p} Give me JSON with {k}.",
            "{p} As JSON with the keys {k}.",
            "Extract {k} as JSON from this text: {p}",
            "{p} Write that as a JSON object with {k}.",
        ]
    )
    return _task(
        form.format(p=prose, k=join_and(picked)),
        f"The user wants JSON with {join_and(picked)}.",
        {k: known[k] for k in picked},
    )


def people_json(rng, split):
    people = [{"name": rng.choice(NAMES), "age": rng.randint(5, 95)} for _ in range(rng.randint(2, 4))]
    prose = " ".join(f"{p['name']} is {p['age']}." for p in people)
    if rng.random() < 0.5:
        return _task(
            f"{prose} Make a JSON array of objects with name and age.",
            f"There are {len(people)} people.",
            people,
        )
    key = rng.choice(("people", "users", "team", "members"))
    return _task(
        f"{prose} Make a JSON object with the key {key}, an array of objects with name and age.",
        f"There are {len(people)} people.",
        {key: people},
    )


def array_json(rng, split):
    kind = rng.choice(("string", "string", "integer"))
    values = [typed_value(rng, kind, simple=True) for _ in range(rng.randint(2, 7))]
    word = "words" if kind == "string" else "numbers"
    form = rng.choice(
        ["Make a JSON array of the {w} {l}.", "Write the {w} {l} as a JSON array.", "JSON array of: {c}"]
    )
    return _task(
        form.format(w=word, l=join_and(map(str, values)), c=", ".join(map(str, values))),
        f"There are {len(values)} {word}.",
        values,
    )


def fact_json(rng, split):
    country = rng.choice(list(facts.CAPITALS))
    capital = facts.CAPITALS[country]
    form = rng.choice(
        [
            "Give the capital of {c} as JSON with the keys country and capital.",
            "JSON with country and capital for {c}, please.",
            "What is the capital of {c}? Answer as JSON with country and capital.",
        ]
    )
    name = country[4:] if country.startswith("the ") else country
    return _task(
        form.format(c=country),
        f"The capital of {country} is {capital}.",
        {"country": name, "capital": capital},
    )


def math_json(rng, split):
    a, b = number_pair(rng, "+", split)
    return _task(
        rng.choice(
            [
                f"What is {a} + {b}? Answer as JSON with the key result.",
                f"Add {a} and {b}. Reply as JSON with result.",
            ]
        ),
        f"{a} + {b} = {a + b}.",
        {"result": a + b},
    )


# ---- schemas -------------------------------------------------------------------------------------


def schema(rng, depth=0, n=None):
    """A random JSON schema of an object, as clients write them."""
    props = {}
    for k in keys(rng, n or rng.choice((1, 2, 2, 3, 3, 4, 5))):
        r = rng.random()
        known = EXAMPLES.get(k)
        if known is not None and r < 0.9:
            props[k] = {"type": _type_of(known)}
            if isinstance(known, list):
                props[k]["items"] = {"type": "string"}
        elif r < 0.38:
            props[k] = {"type": "string"}
        elif r < 0.55:
            props[k] = {"type": "integer"}
        elif r < 0.63:
            props[k] = {"type": "number"}
        elif r < 0.73:
            props[k] = {"type": "boolean"}
        elif r < 0.83:
            props[k] = {"type": "string", "enum": [any_word(rng) for _ in range(rng.randint(2, 4))]}
        elif r < 0.92 or depth >= 2:
            props[k] = {"type": "array", "items": {"type": rng.choice(("string", "integer", "number"))}}
        elif r < 0.95:
            props[k] = {"type": "array", "items": schema(rng, depth + 1, rng.randint(1, 2))}
        else:
            props[k] = schema(rng, depth + 1, rng.randint(1, 3))
    out = {"type": "object", "properties": props, "required": list(props)}
    if rng.random() < 0.3:
        out["additionalProperties"] = False
    return out


def _type_of(value):
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", int: "integer", float: "number", list: "array"}[type(value)]


def example(node, key=None):
    """The one example of a schema that the corpus uses."""
    if "enum" in node:
        return node["enum"][0]
    kind = node["type"]
    if kind == "object":
        return {k: example(v, k) for k, v in node["properties"].items()}
    if kind == "array":
        known = EXAMPLES.get(key)
        if isinstance(known, list) and node["items"]["type"] == "string":
            return known
        item = node["items"]
        if item["type"] == "object":
            return [example(item)]
        return {"string": ["one", "two"], "integer": [1, 2], "number": [1.5, 2.5]}[item["type"]]
    known = EXAMPLES.get(key)
    if known is not None and _type_of(known) == kind:
        return known
    return EXAMPLE_BY_TYPE[kind]


def random_instance(rng, node):
    if "enum" in node:
        return rng.choice(node["enum"])
    kind = node["type"]
    if kind == "object":
        return {k: random_instance(rng, v) for k, v in node["properties"].items()}
    if kind == "array":
        return [random_instance(rng, node["items"]) for _ in range(rng.randint(1, 3))]
    return typed_value(rng, kind, simple=rng.random() < 0.6)


SCHEMA_FORMS = [
    "Answer in JSON that matches this schema: {s}",
    "Reply with JSON that follows this schema:\n{s}",
    "Use this JSON schema: {s}",
    "Output JSON only. Schema: {s}",
]
EXAMPLE_ASKS = [
    "Give me an example.",
    "Give an example object.",
    "Make up some data.",
    "Show me one.",
    "Generate an example.",
    "Fill it in.",
    "Create an object.",
]


def schema_json(rng, split):
    """A schema in the question; values named there too, or an example is asked for."""
    node = schema(rng)
    form = rng.choice(SCHEMA_FORMS).format(s=dumps(node))
    if rng.random() < 0.6:
        flat = all(
            p["type"] not in ("object",) and p.get("items", {}).get("type") != "object"
            for p in node["properties"].values()
        )
        if flat:
            value = random_instance(rng, node)
            prose = " ".join(f"The {k.replace('_', ' ')} is {said(v)}." for k, v in value.items())
            return _task(
                f"{prose} {form}" if rng.random() < 0.5 else f"{form}\n{prose}",
                f"The schema has {join_and(value)}.",
                value,
            )
    value = example(node)
    ask = rng.choice(EXAMPLE_ASKS)
    return _task(
        f"{ask} {form}" if rng.random() < 0.5 else f"{form}\n{ask}",
        f"The schema has {join_and(value)}.",
        value,
    )


def asked_example_json(rng, split):
    """No schema in the question: the shape is only named."""
    names = rng.sample(list(EXAMPLES), rng.randint(1, 5))
    thing = rng.choice(("person", "user", "product", "city", "place", "order", "book", "record", "thing"))
    form = rng.choice(
        [
            "Give me a JSON object for a {t} with {k}.",
            "Make up a {t} as JSON with {k}.",
            "Write an example {t} in JSON with the fields {k}.",
        ]
    )
    return _task(
        form.format(t=thing, k=join_and(names)),
        f"An example with {join_and(names)}.",
        {k: EXAMPLES[k] for k in names},
    )


def json_task(rng, split):
    make = rng.choices(
        (
            fields_json,
            person_json,
            people_json,
            array_json,
            fact_json,
            math_json,
            schema_json,
            asked_example_json,
        ),
        (30, 14, 7, 8, 8, 4, 22, 7),
    )[0]
    return make(rng, split)
