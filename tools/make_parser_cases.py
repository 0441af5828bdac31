#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Model outputs and what they mean: the corpus of the output parser's tests.

Every expectation is written down or follows from the answer that the text was made of; none comes from koho.
The first line holds the tools, each further line one case.

  tools/make_parser_cases.py > tests/chat/data/parser_cases.jsonl
"""
import itertools
import json
import random


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


TYPED = {
    "type": "object",
    "$defs": {"day": {"type": "integer"}, "label": {"type": "string"}, "tree": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]},
              "a/b~c": {"type": "string"}},
    "properties": {
        "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"}, "z": {"type": "null"},
        "a": {"type": "array", "items": {"type": "integer"}}, "o": {"type": "object"},
        "sn": {"type": ["string", "null"]}, "si": {"type": ["string", "integer"]}, "sa": {"anyOf": [{"type": "string"}, {"type": "array"}]},
        "in": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "on": {"oneOf": [{"type": "number"}, {"type": "boolean"}]},
        "al": {"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]},
        "ns": {"type": "string", "nullable": True}, "es": {"enum": ["low", "1", "true"]}, "ei": {"enum": [1, 2, 3]}, "em": {"enum": ["a", 1, None]},
        "cs": {"const": "7"}, "ci": {"const": 7}, "es2": {"type": "string", "enum": ["a", "b"]},
        "rd": {"$ref": "#/$defs/day"}, "rl": {"$ref": "#/$defs/label", "description": "d"}, "rt": {"$ref": "#/$defs/tree"},
        "re": {"$ref": "#/$defs/a~1b~0c"}, "rx": {"$ref": "#/$defs/none"}, "any": {}, "d": {"description": "no type"}, "t": True,
        "w": {"type": "weird"}, "con": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": ["string", "null"]}}}}},
    {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "write_file", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}}}}},
    {"type": "function", "name": "flat", "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "k": {"type": "integer"}}}},
    {"name": "anthropic", "input_schema": {"type": "object", "properties": {"q": {"type": "string"}, "k": {"type": "integer"}}}},
    {"type": "function", "function": {"name": "typed", "parameters": TYPED}},
    {"type": "function", "function": {"name": "open", "parameters": {
        "type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": {"type": "string"}}}},
    {"type": "function", "function": {"name": "None", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "split", "parameters": {
        "allOf": [{"properties": {"p": {"type": "string"}}}, {"$ref": "#/$defs/more"}], "$defs": {"more": {"properties": {"r": {"type": "integer"}}}}}}},
]

# (argument of `typed`, text the model wrote, JSON that reaches the client)
VALUES = [
    # a declared string is verbatim
    *[("s", t, dumps(t)) for t in [
        "12345", "true", "[1,2]", "{\"a\": 1}", "\"quoted\"", "'single'", "\n  indented\n", "", " ", "null", "None", "1.5", "007", "-0", "1e5",
        "a<b && c>d", "if x < 3:\n\treturn \"y\"\n", "C:\\path\\new", "\\n", "\\", "naïve 北京 🎉 e\u0301", "\t\r\n", "\u2028\u0085", "\x00\x01\x1f\x7f",
        "<b>bold</b>", "<think", "<tool_call", "</arg_valu", "<", "<<<", "</", "<arg_key", "a</arg_value", "{{ x }}", "<|user|>", "/nothink", "x" * 300]],
    ("es", "low", '"low"'), ("es", "1", '"1"'), ("es", "true", '"true"'), ("es2", " a", '" a"'), ("cs", "7", '"7"'),
    ("rl", "5", '"5"'), ("re", "null", '"null"'),
    # integers
    ("i", "3", "3"), ("i", " 3\n", "3"), ("i", "-12", "-12"), ("i", "0", "0"), ("i", "1.5", '"1.5"'), ("i", "3.0", "3"), ("i", "-2.0", "-2"), ("i", "007", '"007"'),
    ("i", "NaN", '"NaN"'), ("i", "Infinity", '"Infinity"'), ("i", "", '""'), ("i", "three", '"three"'), ("i", "123456789012345678901234567890", "123456789012345678901234567890"),
    ("i", "null", "null"), ("i", "None", "null"), ("i", "\"5\"", '"5"'), ("i", "1_000", '"1_000"'), ("i", "0x10", '"0x10"'), ("i", "+5", "5"), ("i", "3 4", '"3 4"'),
    ("rd", "4", "4"), ("rd", "4.5", '"4.5"'), ("ei", "2", "2"), ("ci", "7", "7"), ("al", "5", "5"), ("al", "x", '"x"'),
    # numbers
    ("n", "3", "3"), ("n", "1.5", "1.5"), ("n", "3.0", "3.0"), ("n", "1e5", "100000.0"), ("n", "1E-7", "1e-07"), ("n", "-0.0", "-0.0"), ("n", "1e16", "1e+16"), ("n", ".5", "0.5"),
    ("n", "5.", "5.0"), ("n", "1e999", "1e999"), ("n", "01", '"01"'), ("n", "-", '"-"'), ("n", "1,5", '"1,5"'), ("n", "true", "true"),
    # booleans and null
    ("b", "true", "true"), ("b", "false", "false"), ("b", " true ", "true"), ("b", "True", "true"), ("b", "False", "false"), ("b", "TRUE", '"TRUE"'), ("b", "yes", '"yes"'),
    ("b", "1", "1"), ("z", "null", "null"), ("z", "None", "null"), ("z", "nil", '"nil"'),
    # arrays and objects
    ("a", "[1, 2, 3]", "[1, 2, 3]"), ("a", "[1,2,3]", "[1, 2, 3]"), ("a", "[]", "[]"), ("a", "['a', 'b']", '["a", "b"]'), ("a", "(1, 2)", "[1, 2]"), ("a", "(1,)", "[1]"), ("a", "(1)", "1"),
    ("a", "[1, 2", '"[1, 2"'), ("a", "[True, None]", "[true, null]"), ("a", "[1,,2]", '"[1,,2]"'), ("a", "1, 2", '"1, 2"'), ("a", "[\"北京\"]", '["北京"]'), ("a", "\n[\n 1\n]\n", "[1]"),
    ("a", "[" * 64 + "]" * 64, dumps("[" * 64 + "]" * 64)), ("a", "[" * 63 + "]" * 63, "[" * 63 + "]" * 63), ("a", "[" * 63 + "'a'" + "]" * 63, "[" * 63 + '"a"' + "]" * 63),
    ("a", "['a', " + "[" * 63 + "]" * 64, dumps("['a', " + "[" * 63 + "]" * 64)),
    ("o", "{\"b\":1,\"a\":{\"c\":[]}}", '{"b": 1, "a": {"c": []}}'), ("o", "{}", "{}"), ("o", "{'x': True, 'y': None, 'z': 'it\\'s'}", '{"x": true, "y": null, "z": "it\'s"}'),
    ("o", "{'a': 1,}", '{"a": 1}'), ("o", "{\"a\": 1,}", '{"a": 1}'), ("o", "{a: 1}", '"{a: 1}"'), ("o", "{1: 2}", '"{1: 2}"'), ("o", "{\"a\":1,\"a\":2}", '{"a": 2}'),
    ("o", "{'s': '\\u00e9\\x41\\n\\t\\\\'}", '{"s": "éA\\n\\t\\\\"}'), ("o", "{'s': '\\q'}", '{"s": "\\\\q"}'), ("o", "{\"k\": \"}</x>{\"}", '{"k": "}</x>{"}'),
    # unions
    ("sn", "null", "null"), ("sn", "x", '"x"'), ("sn", "", '""'), ("sn", "None", '"None"'), ("sn", "5", '"5"'), ("sn", "\"null\"", '"\\"null\\""'), ("sn", " x ", '" x "'), ("ns", "null", "null"), ("ns", "nul", '"nul"'),
    ("si", "5", "5"), ("si", "5.5", '"5.5"'), ("si", "five", '"five"'), ("si", "true", '"true"'), ("si", "\"5\"", '"\\"5\\""'), ("sa", "[1, 2]", "[1, 2]"), ("sa", "[1", '"[1"'), ("sa", "{\"a\": 1}", '"{\\"a\\": 1}"'),
    ("in", "5", "5"), ("in", "null", "null"), ("in", "None", "null"), ("in", "x", '"x"'), ("on", "1.5", "1.5"), ("on", "true", "true"), ("on", "False", "false"), ("em", "a", '"a"'), ("em", "1", "1"), ("em", "null", "null"),
    # nothing declared
    *[(key, text, want) for key in ("any", "d", "t", "w", "con", "rx", "rt", "undeclared") for text, want in [
        ("5", "5"), ("word", '"word"'), ("[1, 2]", "[1, 2]"), ("\"quoted\"", '"\\"quoted\\""'), ("true", "true")]],
    ("any", "None", "null"), ("any", "['a']", '["a"]'), ("any", "'a'", '"\'a\'"'), ("any", "{\"a\": \"b\"}", '{"a": "b"}'), ("any", " two words ", '" two words "'), ("any", "007", '"007"'),
]


def call_text(name, pairs, style):
    nl = "\n" if style == "glm-4.6" else ""
    text = f"<tool_call>{name}{nl}"
    for key, value in pairs:
        text += f"<arg_key>{key}</arg_key>{nl}<arg_value>{value}</arg_value>{nl}"
    return text + "</tool_call>"


def case(name, text, reasoning="", content="", calls=(), style="glm-4.7", thinking=True, tools=True, end="finished"):
    """calls: (name, arguments as JSON text, complete)"""
    full = [call if len(call) == 3 else (*call, True) for call in calls]
    return {"name": name, "style": style, "thinking": thinking, "tools": tools, "end": end, "text": text,
            "expect": {"reasoning": reasoning, "content": content, "calls": [list(call) for call in full]}}


def value_cases():
    for number, (key, text, want) in enumerate(VALUES):
        yield case(f"value {number}: {key}", call_text("typed", [(key, text)], "glm-4.7"), thinking=False,
                   calls=[("typed", "{" + dumps(key) + ": " + want + "}")])


WEATHER = '<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>'
WEATHER_CALL = ("get_weather", '{"city": "Paris"}')
NOW = "<tool_call>now</tool_call>"
NOW_CALL = ("now", "{}")


def reasoning_cases():
    yield case("reasoning, then an answer", "I think.</think>Paris.", "I think.", "Paris.")
    yield case("thinking off", "Paris.", "", "Paris.", thinking=False)
    yield case("blanks stay in the answer", " a </think>\n\n b \n", " a ", "\n\n b \n")
    yield case("blank reasoning is none", "\n \u3000</think>x", "", "x")
    yield case("blank answer is none", "r</think> \n", "r", "")
    yield case("empty answer", "", "", "")
    yield case("cut within reasoning", "I think", "I think", "", end="cut_off")
    yield case("finished within reasoning: given as content too", "Paris is the capital.", "Paris is the capital.", "Paris is the capital.")
    yield case("<think> again in reasoning", "<think>a<think>b</think>c", "ab", "c")
    yield case("second </think> is swallowed", "a</think>b</think>c", "a", "bc")
    yield case("</think> first, thinking off", "</think>b", "", "b", thinking=False)
    yield case("<think> opens reasoning in an answer", "<think>a</think>b", "a", "b", thinking=False)
    yield case("reasoning between calls", "a</think>" + NOW + "<think>b</think>c", "ab", "c", [NOW_CALL])
    yield case("half a tag stays text", "a</thin k></think></th", "a</thin k>", "</th")
    yield case("half a tag at the end", "a</think>b</think", "a", "b</think")
    yield case("a tag begun twice", "a<</think>b<<tool_call", "a<", "b<<tool_call")
    yield case("no reasoning before </think>", "</think>x", "", "x")
    yield case("other tags in reasoning are text", "a<arg_key>b</arg_value></tool_call></think>c", "a<arg_key>b</arg_value></tool_call>", "c")
    yield case("other tags in an answer are text", "a<arg_key>b</arg_value>", "", "a<arg_key>b</arg_value>", thinking=False)
    yield case("a stray </tool_call> is swallowed", "a</tool_call>b", "", "ab", thinking=False)
    yield case("cut reasoning after an answer", "a</think>b<think>c", "ac", "b")


def glm_4_6_cases():
    yield case("4.6: reasoning and answer", "\n<think>I think.</think>\nParis.", "I think.", "Paris.", style="glm-4.6", thinking=False)
    yield case("4.6: empty reasoning", "\n<think></think>\nParis.", "", "Paris.", style="glm-4.6", thinking=False)
    yield case("4.6: no reasoning", "\nParis.\n", "", "Paris.\n", style="glm-4.6", thinking=False)
    yield case("4.6: indentation stays", "\n<think>r</think>\n\n    code", "r", "    code", style="glm-4.6", thinking=False)
    yield case("4.6: call", "\n<think>r</think>\n" + call_text("get_weather", [("city", "Paris"), ("days", "3")], "glm-4.6"), "r", "",
               [("get_weather", '{"city": "Paris", "days": 3}')], style="glm-4.6", thinking=False)
    yield case("4.6: text and two calls", "\n<think>r</think>\nLet me look.\n" + call_text("now", [], "glm-4.6") + "\n" + call_text("now", [], "glm-4.6"),
               "r", "Let me look.\n", [NOW_CALL, NOW_CALL], style="glm-4.6", thinking=False)
    yield case("4.6: value keeps its newlines", "\n<tool_call>get\n<arg_key>path</arg_key>\n<arg_value>\n a\n</arg_value>\n</tool_call>", "", "",
               [("get", '{"path": "\\n a\\n"}')], style="glm-4.6", thinking=False)


def call_cases():
    yield case("one call", "r</think>" + WEATHER, "r", "", [WEATHER_CALL])
    yield case("zero arguments", "r</think>" + NOW, "r", "", [NOW_CALL])
    yield case("zero arguments, newline after the name", "r</think><tool_call>now\n</tool_call>", "r", "", [NOW_CALL])
    yield case("zero arguments of a tool that has some", "</think><tool_call>get_weather</tool_call>", "", "", [("get_weather", "{}")])
    yield case("text before a call", "</think>Let me look." + WEATHER, "", "Let me look.", [WEATHER_CALL])
    yield case("text between and after calls", "</think>a" + NOW + "b" + WEATHER + "c", "", "abc", [NOW_CALL, WEATHER_CALL])
    yield case("blanks between calls", "</think>\n" + NOW + "\n\n" + NOW + "\n", "", "", [NOW_CALL, NOW_CALL])
    yield case("three calls at once", "</think>" + NOW * 3, "", "", [NOW_CALL] * 3)
    yield case("a call ends the reasoning", "I must look" + WEATHER, "I must look", "", [WEATHER_CALL])
    yield case("a call in reasoning, </think> after it", "r" + NOW + "</think>x", "r", "x", [NOW_CALL])
    yield case("blanks around the name", "</think><tool_call> \n get_weather \n <arg_key>city</arg_key><arg_value>x</arg_value></tool_call>", "", "",
               [("get_weather", '{"city": "x"}')])
    yield case("the name is the first line", "</think><tool_call>\nget_weather\nof a city<arg_key>city</arg_key><arg_value>x</arg_value></tool_call>", "", "",
               [("get_weather", '{"city": "x"}')])
    yield case("backslash-n after the name", "</think><tool_call>now\\n</tool_call>", "", "", [NOW_CALL])
    yield case("backslash-n between tags", "</think><tool_call>get_weather\\n<arg_key>city</arg_key>\\n<arg_value>x</arg_value>\\n<arg_key>days</arg_key>\n\\n <arg_value>2</arg_value>\\n\\n</tool_call>",
               "", "", [("get_weather", '{"city": "x", "days": 2}')])
    yield case("blanks around the key", "</think><tool_call>get<arg_key> path\n</arg_key><arg_value> v </arg_value></tool_call>", "", "", [("get", '{"path": " v "}')])
    yield case("a tool called None", "</think><tool_call>None<arg_key>a</arg_key><arg_value>None</arg_value></tool_call>", "", "", [("None", '{"a": "None"}')])
    yield case("the longer of two names", "</think><tool_call>get_weather</tool_call><tool_call>get</tool_call>", "", "", [("get_weather", "{}"), ("get", "{}")])
    yield case("flat tool", "</think><tool_call>flat<arg_key>q</arg_key><arg_value>1</arg_value><arg_key>k</arg_key><arg_value>1</arg_value></tool_call>", "", "",
               [("flat", '{"q": "1", "k": 1}')])
    yield case("tool with input_schema", "</think><tool_call>anthropic<arg_key>q</arg_key><arg_value>1</arg_value><arg_key>k</arg_key><arg_value>1</arg_value></tool_call>",
               "", "", [("anthropic", '{"q": "1", "k": 1}')])
    yield case("additionalProperties types other keys", "</think><tool_call>open<arg_key>y</arg_key><arg_value>5</arg_value></tool_call>", "", "", [("open", '{"y": "5"}')])
    yield case("properties behind allOf and $ref", "</think><tool_call>split<arg_key>p</arg_key><arg_value>5</arg_value><arg_key>r</arg_key><arg_value>5</arg_value></tool_call>",
               "", "", [("split", '{"p": "5", "r": 5}')])
    yield case("a tool without parameters, given one", "</think><tool_call>now<arg_key>tz</arg_key><arg_value>UTC</arg_value></tool_call>", "", "", [("now", '{"tz": "UTC"}')])
    yield case("key with quotes", "</think><tool_call>now<arg_key>a\"b\\</arg_key><arg_value>x</arg_value></tool_call>", "", "", [("now", '{"a\\"b\\\\": "x"}')])
    yield case("a repeated key: the first counts", "</think><tool_call>get<arg_key>path</arg_key><arg_value>a</arg_value><arg_key>path</arg_key><arg_value>b</arg_value></tool_call>",
               "", "", [("get", '{"path": "a"}')])


def no_call_cases():
    yield case("no tools: tags are text", "r</think>a" + WEATHER, "r", "a" + WEATHER, tools=False)
    yield case("no tools: in reasoning too", "r" + NOW + "s</think>b", "r" + NOW + "s", "b", tools=False)
    yield case("unknown tool stays text", "</think>a<tool_call>nope<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>b", "",
               "a<tool_call>nope<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>b")
    yield case("unknown tool without arguments", "</think><tool_call>nope</tool_call>" + NOW, "", "<tool_call>nope</tool_call>", [NOW_CALL])
    yield case("unknown tool, prefix of a known one", "</think><tool_call>get_wea</tool_call>", "", "<tool_call>get_wea</tool_call>")
    yield case("unknown tool, unfinished", "</think><tool_call>nope", "", "<tool_call>nope")
    yield case("JSON in place of a call", "</think><tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", "",
               "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>")
    yield case("nameless call is dropped", "</think>a<tool_call></tool_call>b", "", "ab")
    yield case("nameless call with arguments is dropped", "</think>a<tool_call>\n<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>b", "", "ab")


def damaged_call_cases():
    yield case("missing </arg_value>", "</think><tool_call>get<arg_key>path</arg_key><arg_value>/tmp</tool_call>x", "", "x", [("get", '{"path": "/tmp"}')])
    yield case("missing <arg_value>", "</think><tool_call>get<arg_key>path</arg_key>/tmp/x y</arg_value></tool_call>", "", "", [("get", '{"path": "/tmp/x y"}')])
    yield case("missing <arg_value> and value", "</think><tool_call>get<arg_key>path</arg_key></arg_value></tool_call>", "", "", [("get", '{"path": ""}')])
    yield case("missing <arg_value>, integer", "</think><tool_call>get_weather<arg_key>days</arg_key> 3</arg_value></tool_call>", "", "", [("get_weather", '{"days": 3}')])
    yield case("missing <arg_key>", "</think><tool_call>get_weathercity</arg_key><arg_value>x</arg_value></tool_call>", "", "", [("get_weather", '{"city": "x"}')])
    yield case("missing <arg_key>, blank between", "</think><tool_call>get_weather city</arg_key><arg_value>x</arg_value><arg_key>days</arg_key><arg_value>1</arg_value></tool_call>",
               "", "", [("get_weather", '{"city": "x", "days": 1}')])
    yield case("missing <arg_key> and </arg_key>", "</think><tool_call>get\npath<arg_value>x</arg_value></tool_call>", "", "", [("get", '{"path": "x"}')])
    yield case("missing <arg_key>, unknown tool", "</think><tool_call>nopecity</arg_key><arg_value>x</arg_value></tool_call>", "",
               "<tool_call>nopecity</arg_key><arg_value>x</arg_value></tool_call>")
    yield case("missing </arg_key>", "</think><tool_call>get<arg_key>path<arg_value>x</arg_value></tool_call>", "", "", [("get", '{"path": "x"}')])
    yield case("doubled </arg_key>", "</think><tool_call>get<arg_key>path</arg_key></arg_key><arg_value>x</arg_value></tool_call>", "", "", [("get", '{"path": "x"}')])
    yield case("doubled <arg_key>", "</think><tool_call>get<arg_key><arg_key>path</arg_key><arg_value>x</arg_value></tool_call>", "", "", [("get", '{"path": "x"}')])
    yield case("doubled <tool_call>", "</think><tool_call>\n<tool_call>now</tool_call>", "", "", [NOW_CALL])
    yield case("key without a value", "</think><tool_call>get_weather<arg_key>city</arg_key><arg_key>days</arg_key><arg_value>1</arg_value></tool_call>", "", "", [("get_weather", '{"days": 1}')])
    yield case("last key without a value", "</think><tool_call>get<arg_key>path</arg_key></tool_call>", "", "", [("get", "{}")])
    yield case("key not ended", "</think><tool_call>get<arg_key>path</tool_call>x", "", "x", [("get", "{}")])
    yield case("missing </tool_call>, another call", "</think><tool_call>get<arg_key>path</arg_key><arg_value>x</arg_value><tool_call>now</tool_call>", "", "", [("get", '{"path": "x"}'), NOW_CALL])
    yield case("a name cut by another call stays text", "</think><tool_call>get<tool_call>now</tool_call>", "", "<tool_call>get", [NOW_CALL])


def tags_in_values_cases():
    yield case("</arg_value> within a value", "</think><tool_call>get<arg_key>path</arg_key><arg_value>use </arg_value> in docs</arg_value></tool_call>", "", "",
               [("get", '{"path": "use </arg_value> in docs"}')])
    yield case("</arg_value> twice", "</think><tool_call>get<arg_key>path</arg_key><arg_value>a</arg_value></arg_value></tool_call>", "", "", [("get", '{"path": "a</arg_value>"}')])
    yield case("<arg_key> and <tool_call> within a value", "</think><tool_call>get<arg_key>path</arg_key><arg_value><tool_call>f<arg_key>k</arg_key><arg_value></arg_value></tool_call>",
               "", "", [("get", '{"path": "<tool_call>f<arg_key>k</arg_key><arg_value>"}')])
    yield case("think tags within a value", "</think><tool_call>get<arg_key>path</arg_key><arg_value><think>a</think></arg_value></tool_call>", "", "", [("get", '{"path": "<think>a</think>"}')])
    yield case("text after a value's end tag", "</think><tool_call>get<arg_key>path</arg_key><arg_value>a</arg_value>\n\\ b</arg_value>\n</tool_call>", "", "",
               [("get", '{"path": "a</arg_value>\\n\\\\ b"}')])
    yield case("a think tag after a value's end tag", "</think><tool_call>get<arg_key>path</arg_key><arg_value>a</arg_value> </think>b</arg_value></tool_call>", "", "",
               [("get", '{"path": "a</arg_value> </think>b"}')])


def end_cases():
    yield case("cut in a string value", "</think><tool_call>get<arg_key>path</arg_key><arg_value>/tm", "", "", [("get", '{"path": "/tm', False)], end="cut_off")
    yield case("cut in an integer value", "</think><tool_call>get_weather<arg_key>days</arg_key><arg_value>1", "", "", [("get_weather", '{"days": ', False)], end="cut_off")
    yield case("cut in a name", "</think>a<tool_call>get_wea", "", "a", end="cut_off")
    yield case("cut in a key", "</think><tool_call>get<arg_key>pa", "", "", [("get", "", False)], end="cut_off")
    yield case("cut after a call", "</think>" + NOW + "abc", "", "abc", [NOW_CALL], end="cut_off")
    yield case("cut within half a tag", "</think><tool_call>get<arg_key>path</arg_key><arg_value>a</arg_va", "", "", [("get", '{"path": "a</arg_va', False)], end="cut_off")
    yield case("finished after a name", "</think><tool_call>now", "", "", [NOW_CALL])
    yield case("finished after a value", "</think><tool_call>get<arg_key>path</arg_key><arg_value>a</arg_value>", "", "", [("get", '{"path": "a"}')])
    yield case("finished within a value", "</think><tool_call>get<arg_key>path</arg_key><arg_value>a", "", "", [("get", '{"path": "a"}')])
    yield case("finished within a number", "</think><tool_call>get_weather<arg_key>days</arg_key><arg_value>1", "", "", [("get_weather", '{"days": 1}')])
    yield case("finished after <tool_call>", "</think>a<tool_call>", "", "a")
    yield case("finished within reasoning after a call", NOW + "<think>r", "r", "", [NOW_CALL])


def odd_cases():
    return itertools.chain(reasoning_cases(), glm_4_6_cases(), call_cases(), no_call_cases(), damaged_call_cases(), tags_in_values_cases(), end_cases())


def random_cases(count):
    r = random.Random(7)
    words = ["Paris", "北京", "a < b", "it's", "\"q\"", "line\nnext", "  indented", "\\n", "🎉", "x</b>", "{", "}", "naïve", "1 2", "tab\t", "%d", "</", "end"]

    def prose(low):
        return " ".join(r.choices(words, k=r.randint(low, 6)))

    for number in range(count):
        style = r.choice(["glm-4.7", "glm-4.7", "glm-4.6"])
        old = style == "glm-4.6"
        reasoning = r.choice(["", "I " + prose(0)])
        content = r.choice(["", "A " + prose(0)])
        text = ("\n<think>" if old else "") + reasoning + "</think>" + ("\n" if old else "") + content
        calls = []
        for _ in range(r.randint(0, 3)):
            name = r.choice(["get_weather", "write_file", "flat", "now"])
            arguments, pairs = {}, []
            fields = {"get_weather": [("city", str), ("days", int), ("units", None)], "write_file": [("path", str), ("content", str), ("mode", int)],
                      "flat": [("q", str), ("k", int)], "now": []}[name]
            for key, kind in r.sample(fields, r.randint(0, len(fields))):
                if kind is int:
                    value = r.randint(-10, 10 ** r.randint(1, 20))
                    pairs.append((key, str(value)))
                elif kind is None and r.random() < 0.5:
                    value = None
                    pairs.append((key, "null"))
                else:
                    value = prose(1)
                    pairs.append((key, value))
                arguments[key] = value
            # A value that ends in the beginning of a tag would run into the end tag's text.
            calls.append((name, dumps(arguments)))
            text += ("\n" if old else "") + call_text(name, pairs, style)
        if old and content and calls:
            content += "\n"
        yield case(f"random {number}", text, reasoning, content, calls, style=style, thinking=not old)


def main():
    print(dumps({"tools": TOOLS}))
    for group in (value_cases(), odd_cases(), random_cases(120)):
        for one in group:
            print(json.dumps(one, ensure_ascii=True))


if __name__ == "__main__":
    main()
