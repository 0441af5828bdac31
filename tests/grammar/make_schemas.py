#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/grammar/data/schemas.json: 200 random schemas from one seed, nested and recursive, with enums, patterns,
Unicode, $ref and bounds. With --check ANSWERS (lines of {"schema": n, "text": ...}) validates answers with the jsonschema
package."""

import argparse
import json
import pathlib
import random
import sys

FILE = pathlib.Path(__file__).resolve().parent / "data" / "schemas.json"

WORDS = ["name", "age", "city", "größe", "価格", "id", "tags", "note", "e-mail", "first name", "a\"b", "état", "ключ", "x", "y"]
VALUES = ["red", "green", "dark blue", "ä", "日本", "a\"q\"", "line\nbreak", "", "0", "true", "😀"]
PATTERNS = ["^[A-Z]{2}-[0-9]{3}$", "^[a-z]+$", "^(yes|no)$", "^\\d{4}$", "^[^ ]{1,8}$", "^#[0-9a-f]{6}$", "^v\\d+\\.\\d+$", "^[äöü]{2,4}$"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email", "unknown-format"]


def leaf(draw):
    kind = draw.randrange(14)
    if kind == 0:
        return {"type": "string"}
    if kind == 1:
        return {"type": "string", "maxLength": draw.randint(0, 12)}
    if kind == 2:
        low = draw.randint(0, 4)
        return {"type": "string", "minLength": low, "maxLength": low + draw.randint(0, 6)}
    if kind == 3:
        return {"type": "string", "pattern": draw.choice(PATTERNS)}
    if kind == 4:
        return {"type": "string", "format": draw.choice(FORMATS)}
    if kind == 5:
        low = draw.randint(-200, 200)
        return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 300)}
    if kind == 6:
        return {"type": "integer", draw.choice(["exclusiveMinimum", "minimum"]): draw.randint(-5, 5)}
    if kind == 7:
        low = draw.randint(-10, 10)
        return {"type": "number", "minimum": low, "maximum": low + draw.choice([1, 2.5, 100])}
    if kind == 8:
        return {"type": draw.choice(["boolean", "null"])}
    if kind == 9:
        return {"enum": draw.sample(VALUES, draw.randint(1, 5))}
    if kind == 10:
        return {"enum": [1, "one", None, True, 2.5, {"k": [1]}][: draw.randint(1, 6)]}
    if kind == 11:
        return {"const": draw.choice(VALUES + [3, False])}
    if kind == 12:
        return {"type": ["integer", "null"], "description": "perhaps"}
    return {"type": "string", "enum": ["a", "b", 3]}


def schema(draw, depth):
    if depth == 0 or draw.random() < 0.3:
        return leaf(draw)
    kind = draw.randrange(7)
    if kind <= 2:
        names = draw.sample(WORDS, draw.randint(1, 4))
        made = {"type": "object", "properties": {name: schema(draw, depth - 1) for name in names}}
        made["required"] = draw.sample(names, draw.randint(1, len(names)))
        if draw.random() < 0.4:
            made["additionalProperties"] = draw.choice([False, True, {"type": "integer"}])
        return made
    if kind == 3:
        low = draw.randint(0, 2)
        return {"type": "array", "items": schema(draw, depth - 1), "minItems": low, "maxItems": low + draw.randint(0, 3)}
    if kind == 4:
        return {"type": "array", "prefixItems": [schema(draw, depth - 1) for _ in range(draw.randint(1, 3))], "items": False}
    if kind == 5:
        return {"anyOf": [schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]}
    return {"type": "object", "additionalProperties": leaf(draw), "maxProperties": draw.randint(1, 3)}


def recursive(draw):
    """A list or tree by $ref, of which the recursion is optional."""
    value = leaf(draw)
    kind = draw.randrange(4)
    if kind == 0:
        return {"$defs": {"node": {"type": "object", "properties": {"value": value, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
                                   "required": ["value", "next"]}}, "$ref": "#/$defs/node"}
    if kind == 1:
        return {"type": "object", "properties": {"value": value, "left": {"$ref": "#"}}, "required": ["value"]}
    if kind == 2:
        return {"definitions": {"item": value, "list": {"type": "array", "items": {"$ref": "#/definitions/item"}, "maxItems": 3}},
                "type": "object", "properties": {"a": {"$ref": "#/definitions/list"}, "b": {"allOf": [{"$ref": "#/definitions/item"}], "title": "B"}},
                "required": ["a", "b"]}
    return {"$defs": {"tree": {"type": "object", "properties": {"label": value, "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}}},
                               "required": ["label"]}}, "type": "object", "properties": {"root": {"$ref": "#/$defs/tree"}}, "required": ["root"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", type=pathlib.Path)
    options = parser.parse_args()
    if options.check:
        import jsonschema
        schemas = json.loads(FILE.read_text())
        bad = count = 0
        for line in options.check.read_text().splitlines():
            answer = json.loads(line)
            count += 1
            try:
                jsonschema.Draft202012Validator(schemas[answer["schema"]]).validate(json.loads(answer["text"]))
            except (jsonschema.ValidationError, json.JSONDecodeError) as error:
                bad += 1
                print(answer["schema"], str(error).splitlines()[0], answer["text"][:200])
        print(f"{count} answers, {bad} not valid")
        return 1 if bad or not count else 0
    draw = random.Random(5)
    made = [schema(draw, 1 + index % 3) if index % 4 else recursive(draw) for index in range(200)]
    FILE.write_text("[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in made) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
