# SPDX-License-Identifier: Apache-2.0
"""Accuracies of an exported checkpoint on held-out questions, greedy, with FP8 arithmetic emulated.

Also the acceptance of the MTP layer's first draft token, the share of sampled answers that end, and
the check against Hugging Face's Glm4MoeForCausalLM.
"""

import json
import random
import re

import torch

from . import chat, json_tasks, stories, tasks, tool_tasks

THINK_END = "</think>"


def chat_prompt(user, think, tools=None, system=None):
    messages = ([{"role": "system", "content": system}] if system else []) + [
        {"role": "user", "content": user}
    ]
    return chat.render(messages, tools, add_generation_prompt=True, enable_thinking=think)


def after_thinking(text, think):
    """The answer without reasoning and turn token; None if the reasoning never ends."""
    if think:
        if THINK_END not in text:
            return None
        text = text.split(THINK_END, 1)[1]
    return re.sub(r"<\|(user|observation|endoftext)\|>$", "", text)


def parse_calls(text):
    """[(name, {key: raw value})] of GLM-4.7's call format, or None if anything else is there."""
    calls = []
    rest = text
    for match in re.finditer(r"<tool_call>(.*?)</tool_call>", text, re.S):
        body = match.group(1)
        name = body.split("<arg_key>", 1)[0]
        pairs = re.findall(r"<arg_key>(.*?)</arg_key><arg_value>(.*?)</arg_value>", body, re.S)
        calls.append((name, dict(pairs)))
        rest = rest.replace(match.group(0), "", 1)
    return calls if calls and not rest.strip() else None


def raw(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def question(make, think, right=None):
    """A case factory: (rng) -> (prompt, check(answer))."""

    def case(rng):
        task = make(rng, "test")
        return chat_prompt(task.user, think), (
            (lambda a: right(a, task)) if right else (lambda a: a == task.answer)
        )

    return case


def number_right(answer, task):
    numbers = re.findall(r"-?\d+", answer)
    return bool(numbers) and numbers[-1] == task.value or answer == task.answer


def tool_case(think, invented_share, several=False):
    def case(rng):
        tools, makers = tool_tasks.offer(rng, "test", invented_share=invented_share)
        request = rng.choice(makers)(rng)
        if several:
            request = tool_tasks.both(request, rng.choice(makers)(rng))
        goal = [(n, {k: raw(v) for k, v in args.items()}) for n, args in request.calls]
        return chat_prompt(request.user, think, tools), lambda a: parse_calls(a) == goal

    return case


def reply_case(think):
    """The final answer after a tool's result."""

    def case(rng):
        tools, makers = tool_tasks.offer(rng, "test", invented_share=0.6)
        request = rng.choice(makers)(rng)
        messages = [{"role": "user", "content": request.user}] + tool_tasks.round_trip(rng, request, think)[
            :-1
        ]
        prompt = chat.render(messages, tools, add_generation_prompt=True, enable_thinking=think)
        return prompt, lambda a: a == request.reply

    return case


def valid_json(answer, task):
    try:
        json.loads(answer)
    except ValueError:
        return False
    return True


def plain_story(rng):
    a, p, o = stories.draw(rng, "test")
    text = stories.story(a, p, o)
    head = ". ".join(text.split(". ")[:2]) + "."
    return head, lambda answer: (head + answer) == text


def recall(turns):
    def case(rng):
        messages = []
        told, reply, asks, answer, draw = rng.choice(chat.REMEMBER)
        v = draw(rng)
        at = rng.randint(0, turns // 2)
        for i in range(turns):
            if i == at:
                messages += [
                    {"role": "user", "content": told.format(v=v)},
                    {"role": "assistant", "content": reply.format(v=v)},
                ]
            task = chat.any_task(rng, "train", chat.SHORT)
            messages += [
                {"role": "user", "content": task.user},
                {"role": "assistant", "content": task.answer},
            ]
        messages.append({"role": "user", "content": rng.choice(asks)})
        return chat.render(
            messages, None, add_generation_prompt=True, enable_thinking=False
        ), lambda a: a == answer.format(v=v)

    return case


def strings(kind, think):
    return question(lambda rng, split: tasks.string_task(rng, split, kind), think)


def cases(full):
    """name -> (case factory, think, answers of at most so many tokens)."""
    table = {}
    for think in (False, True):
        mode = "thinking" if think else "direct"
        table[f"two-digit addition, {mode}"] = question(tasks.addition, think, number_right), think, 80
        table[f"two-digit subtraction, {mode}"] = question(tasks.subtraction, think, number_right), think, 80
        table[f"multiplication, {mode}"] = question(tasks.multiplication, think, number_right), think, 80
        table[f"capitals, unseen phrasings, {mode}"] = (
            question(lambda rng, split: tasks.fact(rng, split, "capital"), think, lambda a, t: t.value in a),
            think,
            60,
        )
        table[f"all facts, {mode}"] = question(lambda rng, split: tasks.fact(rng, "train"), think), think, 60
        table[f"tool call, invented tools, {mode}"] = tool_case(think, 1.0), think, 200
        table[f"tool call, known families, {mode}"] = tool_case(think, 0.0), think, 200
        table[f"two tool calls in one turn, {mode}"] = tool_case(think, 0.6, True), think, 300
        table[f"answer after a tool result, {mode}"] = reply_case(think), think, 120
        table[f"JSON exact, {mode}"] = question(json_tasks.json_task, think), think, 250
        table[f"JSON valid, {mode}"] = question(json_tasks.json_task, think, valid_json), think, 250
        table[f"story from a prompt, {mode}"] = question(stories.chat_story, think), think, 250
        for kind in tasks.STRING_TASKS if full else ("reverse", "upper"):
            table[f"string task {kind}, {mode}"] = strings(kind, think), think, 100
    table["small talk, direct"] = question(tasks.small_talk, False), False, 60
    table["lists and counting, direct"] = question(tasks.listing, False), False, 300
    table["plain-text story continued"] = plain_story, False, 200
    table["recall after 8 turns"] = recall(8), False, 40
    table["recall after 60 turns"] = recall(60), False, 40
    return table


class Judge:
    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model.eval(), tokenizer
        self.stops = {tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|user|>", "<|observation|>")}
        self.real = tokenizer.get_vocab_size()

    def generate(self, prompts, max_tokens, batch=128, **sampling):
        ids = [self.tokenizer.encode(p, add_special_tokens=False).ids for p in prompts]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        out = [None] * len(ids)
        for at in range(0, len(order), batch):
            part = order[at : at + batch]
            for i, o in zip(
                part,
                self.model.generate([ids[i] for i in part], max_tokens, self.stops, self.real, **sampling),
            ):
                out[i] = o
        return ids, out

    def text(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    @torch.no_grad()
    def acceptance(self, prompts, outputs):
        """Drafts that equal what the main model said next: (accepted, drafted)."""
        device, accepted, drafted = self.model.embed.device, 0, 0
        for p, o in zip(prompts, outputs):
            if len(o) < 2:
                continue
            tokens = torch.tensor([p + o], device=device)
            states, _ = self.model.hidden(tokens)
            drafts, _ = self.model.draft(states, tokens.roll(-1, 1))
            guess = drafts[0, len(p) - 1 : -2, : self.real].float().argmax(-1)
            accepted += (guess == tokens[0, len(p) + 1 :]).sum().item()
            drafted += len(guess)
        return accepted, drafted


def evaluate(model, tokenizer, count=400, seed=7, full=True, show=2, only="", log=print):
    judge, results = Judge(model, tokenizer), {}
    accepted = drafted = 0
    for name, (make, think, longest) in cases(full).items():
        if not re.search(only, name):
            continue
        rng = random.Random(f"{seed} {name}")
        n = max(20, count // 8) if "60 turns" in name else count // 2 if "string" in name else count
        made = [make(rng) for _ in range(n)]
        ids, outputs = judge.generate([p for p, _ in made], longest, batch=16 if "60 turns" in name else 128)
        right, wrong = 0, []
        for (prompt, check), o in zip(made, outputs):
            text = judge.text(o)
            answer = after_thinking(text, think)
            ok = answer is not None and o[-1] in judge.stops and bool(check(answer))
            right += ok
            if not ok:
                wrong.append((prompt[-160:], text))
        a, d = judge.acceptance(ids[:40], outputs[:40])
        accepted, drafted = accepted + a, drafted + d
        results[name] = {
            "right": right,
            "of": n,
            "percent": round(100 * right / n, 1),
            "draft_accepted": round(a / max(1, d), 3),
        }
        log(f"{results[name]['percent']:6.1f} %  {right}/{n}  drafts {a / max(1, d):.3f}  {name}", flush=True)
        for p, t in wrong[:show]:
            log(f"          {p!r} -> {t!r}", flush=True)
    results["draft token 1 accepted"] = {
        "right": accepted,
        "of": drafted,
        "percent": round(100 * accepted / drafted, 1),
    }
    log(
        f"{results['draft token 1 accepted']['percent']:6.1f} %  draft token 1 accepted ({accepted}/{drafted})",
        flush=True,
    )
    return results


# ---- demonstration prompts -----------------------------------------------------------------------


def request_prompt(request):
    if "prompt" in request:
        return request["prompt"], False
    flags = {k: request[k] for k in ("enable_thinking", "clear_thinking") if k in request}
    return (
        chat.render(request["messages"], request.get("tools"), add_generation_prompt=True, **flags),
        request.get("enable_thinking", True),
    )


def demonstrate(model, tokenizer, prompts, log=print):
    """Runs prompts.json; returns the number of answers that contain what they must."""
    judge, right = Judge(model, tokenizer), 0
    for item in prompts:
        prompt, _ = request_prompt(item["request"])
        _, outputs = judge.generate([prompt], item.get("max_tokens", 256))
        text = judge.text(outputs[0])
        ok = item["expect"] in text
        right += ok
        log(
            f"{'ok  ' if ok else 'FAIL'} {item['name']}: {text!r}"
            + ("" if ok else f" (expected {item['expect']!r})"),
            flush=True,
        )
    return right


# ---- parity with transformers --------------------------------------------------------------------


@torch.no_grad()
def parity(model, tokens=96, seed=3):
    """Relative error of float32 logits against Glm4MoeForCausalLM with the same unquantised weights."""
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM
    from .export import config_json, hf_state

    facts = config_json(model)
    facts.pop("quantization_config")
    theirs = Glm4MoeForCausalLM(Glm4MoeConfig(**facts)).float().eval()
    state, experts = hf_state(model), {}
    own = theirs.state_dict()
    if "model.layers.1.mlp.experts.gate_up_proj" in own:  # transformers 5 stacks the experts
        for i in range(model.config["first_k_dense_replace"], model.config["num_hidden_layers"]):
            p = f"model.layers.{i}.mlp.experts."
            n = model.config["n_routed_experts"]
            experts[p + "gate_up_proj"] = torch.stack(
                [
                    torch.cat([state.pop(f"{p}{e}.gate_proj.weight"), state.pop(f"{p}{e}.up_proj.weight")])
                    for e in range(n)
                ]
            )
            experts[p + "down_proj"] = torch.stack([state.pop(f"{p}{e}.down_proj.weight") for e in range(n)])
    missing, extra = theirs.load_state_dict({**state, **experts}, strict=False)
    assert not missing and not extra, (missing, extra)
    dtype, quant, exact = model.mode
    model.dtype, model.quant, model.exact = torch.float32, False, False
    ids = torch.randint(0, 4000, (2, tokens), generator=torch.Generator().manual_seed(seed))
    a, b = model.logits(model.hidden(ids)[0]), theirs(ids).logits
    model.dtype, model.quant, model.exact = dtype, quant, exact
    return ((a - b).norm() / b.norm()).item()
