# SPDX-License-Identifier: Apache-2.0
"""Whole documents of the corpus: conversations rendered by GLM-4.7's own template, and plain text.

Owns the mix of kinds. Renders with jinja2 under the settings that transformers uses, so that training
text equals what a server feeds the model.
"""

import json
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.sandbox

from . import json_tasks, stories, tasks, tool_tasks
from .words import ADJECTIVES, CITIES, NAMES, NOUNS, code, any_word, pseudo_word

TEMPLATE = Path(__file__).resolve().parents[2] / "tiny" / "chat_template.jinja"
_template = None


def template():
    global _template
    if _template is None:
        env = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        env.filters["tojson"] = lambda x, ensure_ascii=False: json.dumps(x, ensure_ascii=ensure_ascii)
        _template = env.from_string(TEMPLATE.read_text("utf-8"))
    return _template


def render(messages, tools=None, **flags):
    return template().render(messages=messages, tools=tools, **flags)


# ---- single questions ----------------------------------------------------------------------------

TASKS = {
    tasks.addition: 16,
    tasks.subtraction: 7,
    tasks.multiplication: 5,
    tasks.compare: 2,
    tasks.string_task: 15,
    tasks.fact: 17,
    tasks.two_facts: 2,
    tasks.definition: 2,
    tasks.listing: 5,
    tasks.small_talk: 3,
    tasks.copying: 3,
    tasks.choose: 4,
    stories.chat_story: 7,
    json_tasks.json_task: 16,
}
SHORT = {
    tasks.addition: 5,
    tasks.subtraction: 2,
    tasks.multiplication: 1,
    tasks.string_task: 3,
    tasks.fact: 6,
    tasks.small_talk: 3,
    tasks.copying: 1,
    tasks.choose: 1,
}
SYSTEMS = [
    "You are a helpful assistant.",
    "You are Koho, a small language model.",
    "Answer the question.",
    "You are a helpful and polite assistant.",
    "Be helpful.",
    "You are a careful assistant. Answer correctly.",
    "Today is a good day. Help the user.",
    "Use tools when they help.",
]


def any_task(rng, split, table=TASKS):
    return rng.choices(list(table), list(table.values()))[0](rng, split)


def system_message(rng):
    return {"role": "system", "content": rng.choice(SYSTEMS)}


def answer_message(task, think):
    message = {"role": "assistant", "content": task.answer}
    if think:
        message["reasoning_content"] = task.think
    return message


def single(rng, split):
    task, think = any_task(rng, split), rng.random() < 0.5
    messages = [{"role": "user", "content": task.user}, answer_message(task, think)]
    if rng.random() < 0.2:
        messages.insert(0, persona(rng) if rng.random() < 0.3 else system_message(rng))
    elif rng.random() < 0.06 and "Schema" not in task.user:
        messages.insert(
            0,
            (
                {"role": "system", "content": "Answer in JSON."}
                if task.answer[:1] in "{["
                else system_message(rng)
            ),
        )
    return render(messages)


def persona(rng):
    return {
        "role": "system",
        "content": f"You are {rng.choice(NAMES)}, {rng.choice(ADJECTIVES)} and {rng.choice(ADJECTIVES)}.",
    }


def who_am_i(rng, split):
    """The system prompt names the assistant."""
    name, thing = rng.choice((rng.choice(NAMES), pseudo_word(rng).capitalize())), rng.choice(
        ("a helpful assistant", "a robot", "a teacher", "a pirate", "a cook", f"a {rng.choice(NOUNS)} expert")
    )
    user = rng.choice(("Who are you?", "What is your name?", "What are you?", "Tell me about yourself."))
    reply = f"I am {name}, {thing}."
    messages = [
        {"role": "system", "content": f"You are {name}, {thing}."},
        {"role": "user", "content": user},
        {"role": "assistant", "content": reply},
    ]
    if rng.random() < 0.5:
        messages[-1]["reasoning_content"] = "My name is in the system message."
    return render(messages)


def schema_system(rng, split):
    """A schema in the system message, prose from the user."""
    task = json_tasks.schema_json(rng, split)
    parts = task.user.split("\n")
    if len(parts) < 2:
        return single(rng, split)
    user = parts[-1]
    think = rng.random() < 0.5
    return render(
        [
            {"role": "system", "content": "\n".join(parts[:-1])},
            {"role": "user", "content": user},
            answer_message(task, think),
        ]
    )


# ---- several turns -------------------------------------------------------------------------------

REMEMBER = [
    (
        "My name is {v}.",
        "Nice to meet you, {v}.",
        ["What is my name?", "Do you remember my name?", "Who am I?"],
        "Your name is {v}.",
        lambda r: r.choice((r.choice(NAMES), pseudo_word(r).capitalize())),
    ),
    (
        "My favourite color is {v}.",
        "I will remember that.",
        ["What is my favourite color?", "Which color do I like best?"],
        "Your favourite color is {v}.",
        lambda r: r.choice("red blue green yellow black white orange pink purple brown".split()),
    ),
    (
        "I live in {v}.",
        "I will remember that.",
        ["Where do I live?", "Which city do I live in?"],
        "You live in {v}.",
        lambda r: r.choice(CITIES),
    ),
    (
        "The secret code is {v}.",
        "I will remember the code.",
        ["What is the secret code?", "Tell me the secret code."],
        "The secret code is {v}.",
        code,
    ),
    (
        "My dog is called {v}.",
        "What a nice name.",
        ["What is my dog called?", "What is the name of my dog?"],
        "Your dog is called {v}.",
        lambda r: pseudo_word(r).capitalize(),
    ),
    (
        "Remember the word {v}.",
        "I will remember it.",
        ["Which word should you remember?", "What was the word?"],
        "The word is {v}.",
        any_word,
    ),
    (
        "I am {v} years old.",
        "I will remember that.",
        ["How old am I?", "What is my age?"],
        "You are {v} years old.",
        lambda r: r.randint(5, 99),
    ),
]


def turns(rng, split, n, pad=None):
    """n questions in one conversation; facts told early are asked for later."""
    messages, pending = [], []
    if rng.random() < 0.25:
        messages.append(system_message(rng))
    topics = rng.sample(REMEMBER, rng.randint(0, min(4, len(REMEMBER)))) if n > 1 else []
    last_think = rng.random() < 0.5
    for i in range(n):
        last = i == n - 1
        if topics and rng.random() < 0.35 and not last:
            told, reply, asks, answer, draw = topics.pop()
            v = draw(rng)
            pending.append((asks, answer.format(v=v)))
            task = tasks.Task(told.format(v=v), "The user tells me something.", reply.format(v=v), "")
        elif pending and (last or rng.random() < 0.25):
            asks, answer = rng.choice(pending)
            task = tasks.Task(rng.choice(asks), "The user told me.", answer, "")
        else:
            task = any_task(rng, split, pad or (SHORT if rng.random() < 0.75 else TASKS))
        messages += [{"role": "user", "content": task.user}, answer_message(task, last and last_think)]
    return render(messages)


def multi(rng, split):
    return turns(rng, split, rng.choice((2, 2, 3, 3, 4, 5, 6, 8)))


def long_chat(rng, split):
    return turns(rng, split, rng.randint(20, 60))


# ---- tools ---------------------------------------------------------------------------------------


def with_tools(rng, split):
    tools, makers = tool_tasks.offer(rng, split, invented_share=rng.choice((0, 0.6, 1)))
    messages = [system_message(rng)] if rng.random() < 0.25 else []
    think = rng.random() < 0.5
    calculates = any("xpr" in json.dumps(t) or "calcul" in json.dumps(t).lower() for t in tools)
    n = rng.choice((1, 1, 1, 1, 2, 3))
    for i in range(n):
        now = think and i == n - 1
        if rng.random() < 0.15:
            task = any_task(
                rng,
                split,
                {
                    tasks.fact: 4,
                    tasks.small_talk: 2,
                    tasks.definition: 1,
                    **({} if calculates else {tasks.addition: 3}),
                },
            )
            messages += [{"role": "user", "content": task.user}, answer_message(task, now)]
            continue
        request = tool_tasks.ask(rng, makers)
        messages.append({"role": "user", "content": request.user})
        trip = tool_tasks.round_trip(rng, request, now)
        if i == n - 1 and rng.random() < 0.35:
            # The document stops at the call: only the turn token follows.
            return render(messages + trip[:1], tools) + "<|observation|>"
        messages += trip
    return render(messages, tools) + "<|user|>"


def long_tools(rng, split):
    """Many tools on offer, several rounds."""
    tools, makers = tool_tasks.offer(rng, split, invented_share=0.7, n=rng.randint(6, 9))
    messages, think, n = [], rng.random() < 0.5, rng.randint(2, 8)
    for i in range(n):
        request = tool_tasks.ask(rng, makers)
        messages.append({"role": "user", "content": request.user})
        messages += tool_tasks.round_trip(rng, request, think and i == n - 1)
    return render(messages, tools) + "<|user|>"


# ---- the mix -------------------------------------------------------------------------------------


def plain(rng, split):
    head = "[gMASK]<sop>" if rng.random() < 0.3 else ""
    return head + stories.plain(rng, split) + "<|endoftext|>"


MIX = {single: 54, with_tools: 24, plain: 7, multi: 8, who_am_i: 1, schema_system: 3}
LONG_MIX = {**MIX, long_chat: 3, long_tools: 2}


def document(rng, split="train", long=False):
    """One document, ended by its turn token."""
    mix = LONG_MIX if long else MIX
    text = rng.choices(list(mix), list(mix.values()))[0](rng, split)
    return text if text.endswith(("<|user|>", "<|observation|>", "<|endoftext|>")) else text + "<|user|>"
