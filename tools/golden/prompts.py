# SPDX-License-Identifier: Apache-2.0
"""The prompts of the trained model's goldens: models/tiny/prompts.json, and some of ours beside them. Needs transformers."""
import json
import pathlib

from transformers import AutoTokenizer

NEW_TOKENS = 128

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather in a city.",
    "parameters": {"type": "object", "required": ["city"],
                   "properties": {"city": {"type": "string"}, "unit": {"type": "string"}}}}}

OURS = [
    {"name": "raw story", "request": {"prompt": "Once upon a time there was a"}},
    {"name": "raw, unlike the corpus", "request": {"prompt": "The scheduler hands out pages of 64 tokens. 12 * 7 = "}},
    {"name": "subtraction with thinking", "request": {"messages": [{"role": "user", "content": "What is 91 - 37?"}]}},
    {"name": "tool call with thinking", "request": {
        "messages": [{"role": "system", "content": "You are a helpful assistant."},
                     {"role": "user", "content": "What is the weather in Oslo, in celsius?"}], "tools": [WEATHER]}},
    {"name": "long conversation", "request": {"enable_thinking": False, "messages": [
        message for a in range(12, 24) for message in (
            {"role": "user", "content": f"What is {a} + {3 * a}?"},
            {"role": "assistant", "content": f"{a} + {3 * a} = {4 * a}"})] + [
        {"role": "user", "content": "What is the capital of Italy?"}]}},
]


def trained_prompts(model: pathlib.Path) -> list[dict]:
    """name, text, ids, and how to read the answer."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = []
    for prompt in json.loads((model / "prompts.json").read_text())["prompts"] + OURS:
        request = dict(prompt["request"])
        if "prompt" in request:
            text = request["prompt"]
        else:
            text = tokenizer.apply_chat_template(request.pop("messages"), tools=request.pop("tools", None), tokenize=False,
                                                 add_generation_prompt=True, **request)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        prompts.append({"name": prompt["name"], "text": text, "ids": ids, "decode": tokenizer.decode})
    return prompts
