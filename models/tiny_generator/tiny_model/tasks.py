# SPDX-License-Identifier: Apache-2.0
"""Single questions with their reasoning and answers: arithmetic, strings, facts, lists, small talk.

Every task is a function (rng, split) -> Task. Answers are functions of the question, so that the
trained model is sure of itself. `split` is "train" or "test": the two never share a content key.
"""

from typing import NamedTuple

from . import facts
from .small_talk import LISTS, TALK
from .words import ADJECTIVES, CITIES, NAMES, NOUNS, allowed, any_word, pseudo_word


class Task(NamedTuple):
    user: str
    think: str
    answer: str
    value: str  # what a right answer must contain


def _draw(rng, split, make):
    """Draws (key, value) until the key belongs to the split."""
    while True:
        key, value = make(rng)
        if allowed(key, split):
            return value


# ---- arithmetic ----------------------------------------------------------------------------------

ADD_FORMS = [
    ("What is {a} + {b}?", "{a} + {b} = {r}"),
    ("{a} + {b}", "{a} + {b} = {r}"),
    ("{a}+{b}", "{a} + {b} = {r}"),
    ("{a} + {b} =", "{a} + {b} = {r}"),
    ("{a}+{b}=", "{r}"),
    ("{a} + {b} = ?", "{r}"),
    ("What's {a} + {b}?", "{a} + {b} = {r}"),
    ("what is {a}+{b}?", "{a} + {b} = {r}"),
    ("Calculate {a} + {b}.", "{a} + {b} = {r}"),
    ("Compute {a} + {b}.", "{a} + {b} = {r}"),
    ("What is {a} plus {b}?", "{a} plus {b} is {r}."),
    ("How much is {a} plus {b}?", "{a} plus {b} is {r}."),
    ("How much is {a} + {b}?", "{a} + {b} = {r}"),
    ("Add {a} and {b}.", "The sum is {r}."),
    ("What is the sum of {a} and {b}?", "The sum is {r}."),
    ("sum of {a} and {b}", "The sum is {r}."),
    ("Please add {a} and {b}.", "The sum is {r}."),
    ("Tell me what {a} plus {b} is.", "{a} plus {b} is {r}."),
    ("What do you get when you add {a} to {b}?", "The sum is {r}."),
    ("Give me only the number: {a} + {b}", "{r}"),
    ("Answer with a number: what is {a} + {b}?", "{r}"),
    ("Can you add {a} and {b}?", "The sum is {r}."),
]
ADD_STORIES = [
    (
        "{name} has {a} {thing}s and gets {b} more. How many {thing}s does {name} have now?",
        "{name} has {r} {thing}s.",
    ),
    (
        "There are {a} {thing}s in one box and {b} {thing}s in another. How many {thing}s are there?",
        "There are {r} {thing}s.",
    ),
    ("I have {a} {thing}s and buy {b} more. How many {thing}s do I have?", "You have {r} {thing}s."),
]
SUB_FORMS = [
    ("What is {a} - {b}?", "{a} - {b} = {r}"),
    ("{a} - {b}", "{a} - {b} = {r}"),
    ("{a}-{b}", "{a} - {b} = {r}"),
    ("{a} - {b} =", "{a} - {b} = {r}"),
    ("{a}-{b}=", "{r}"),
    ("What's {a} - {b}?", "{a} - {b} = {r}"),
    ("Calculate {a} - {b}.", "{a} - {b} = {r}"),
    ("Compute {a} - {b}.", "{a} - {b} = {r}"),
    ("What is {a} minus {b}?", "{a} minus {b} is {r}."),
    ("How much is {a} minus {b}?", "{a} minus {b} is {r}."),
    ("Subtract {b} from {a}.", "The result is {r}."),
    ("Take {b} away from {a}.", "The result is {r}."),
    ("What is the difference between {a} and {b}?", "The difference is {r}."),
    ("Give me only the number: {a} - {b}", "{r}"),
]
SUB_STORIES = [
    (
        "{name} has {a} {thing}s and gives away {b}. How many {thing}s are left?",
        "{name} has {r} {thing}s left.",
    ),
    (
        "There were {a} {thing}s and {b} of them are gone. How many {thing}s are left?",
        "{r} {thing}s are left.",
    ),
]
MUL_FORMS = [
    ("What is {a} * {b}?", "{a} * {b} = {r}"),
    ("{a} * {b}", "{a} * {b} = {r}"),
    ("{a}*{b}", "{a} * {b} = {r}"),
    ("{a} * {b} =", "{a} * {b} = {r}"),
    ("{a}*{b}=", "{r}"),
    ("What is {a} times {b}?", "{a} times {b} is {r}."),
    ("How much is {a} times {b}?", "{a} times {b} is {r}."),
    ("Multiply {a} by {b}.", "The product is {r}."),
    ("Calculate {a} * {b}.", "{a} * {b} = {r}"),
    ("What is the product of {a} and {b}?", "The product is {r}."),
    ("Give me only the number: {a} * {b}", "{r}"),
]
THINGS = [n for n in NOUNS if n[-1] not in "sxhyfo"][:90]


def think_add(a, b):
    if a < 10 and b < 10:
        return f"{a} + {b} = {a + b}."
    a0, b0 = a % 10, b % 10
    text = f"{a0} + {b0} = {a0 + b0}"
    carry = (a0 + b0) // 10
    text += f", write {(a0 + b0) % 10}, carry {carry}. " if carry else ", no carry. "
    tens = f"{a // 10} + {b // 10}" + (" + 1" if carry else "")
    return text + f"{tens} = {a // 10 + b // 10 + carry}. So {a} + {b} = {a + b}."


def think_sub(a, b):
    if a < b:
        return f"{a} is less than {b}. {b} - {a} = {b - a}. So {a} - {b} = {a - b}."
    if a < 10:
        return f"{a} - {b} = {a - b}."
    a0, b0, a1, b1 = a % 10, b % 10, a // 10, b // 10
    if a0 < b0:
        return (
            f"{a0} is less than {b0}, borrow. 1{a0} - {b0} = {a0 + 10 - b0}. "
            f"{a1} - 1 - {b1} = {a1 - 1 - b1}. So {a} - {b} = {a - b}."
        )
    return f"{a0} - {b0} = {a0 - b0}. {a1} - {b1} = {a1 - b1}. So {a} - {b} = {a - b}."


def think_mul(a, b):
    if a > 10 and b < 10 and a % 10:
        return (
            f"{a // 10 * 10} * {b} = {a // 10 * 10 * b}. {a % 10} * {b} = {a % 10 * b}. "
            f"{a // 10 * 10 * b} + {a % 10 * b} = {a * b}."
        )
    return f"{a} * {b} = {a * b}."


def number(rng):
    return rng.randint(0, 9) if rng.random() < 0.15 else rng.randint(10, 99)


def addition(rng, split):
    a, b = number_pair(rng, "+", split)
    form = rng.choice(ADD_FORMS if rng.random() < 0.85 else ADD_STORIES)
    return _arithmetic(rng, form, a, b, a + b, think_add(a, b))


def number_pair(rng, sign, split):
    """Only pairs of two-digit numbers are ever held out: the small table must be whole."""
    while True:
        a, b = number(rng), number(rng)
        if min(a, b) > 9 and allowed(f"{a}{sign}{b}", split):
            return a, b
        if min(a, b) < 10 and split == "train":
            return a, b


def _arithmetic(rng, form, a, b, result, think):
    fill = dict(a=a, b=b, r=result, name=rng.choice(NAMES), thing=rng.choice(THINGS))
    return Task(form[0].format(**fill), think, form[1].format(**fill), str(result))


def subtraction(rng, split):
    a, b = number_pair(rng, "-", split)
    if a < b and rng.random() < 0.7 and allowed(f"{b}-{a}", split):
        a, b = b, a
    form = rng.choice(SUB_FORMS if rng.random() < 0.85 or a < b else SUB_STORIES)
    if "difference" in form[0] and a < b:
        form = SUB_FORMS[0]
    return _arithmetic(rng, form, a, b, a - b, think_sub(a, b))


def multiplication(rng, split):
    if rng.random() < 0.6:
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        if a > 10 and b > 10:
            b = 10
    else:
        a, b = _draw(
            rng, split, lambda r: (lambda x, y: (f"{x}*{y}", (x, y)))(r.randint(11, 99), r.randint(2, 9))
        )
    return _arithmetic(rng, rng.choice(MUL_FORMS), a, b, a * b, think_mul(a, b))


def compare(rng, split):
    a, b = number(rng), number(rng)
    if a == b:
        b += 1
    form = rng.choice(
        ["Which is larger, {a} or {b}?", "Which number is bigger: {a} or {b}?", "Is {a} greater than {b}?"]
    )
    user = form.format(a=a, b=b)
    if form.startswith("Is"):
        answer = f"Yes, {a} is greater than {b}." if a > b else f"No, {a} is less than {b}."
        return Task(user, f"{a} {'>' if a > b else '<'} {b}.", answer, answer[:3].strip(","))
    return Task(
        user, f"{max(a, b)} > {min(a, b)}.", f"{max(a, b)} is larger than {min(a, b)}.", f"{max(a, b)} is"
    )


# ---- strings -------------------------------------------------------------------------------------


def task_word(rng):
    r = rng.random()
    if r < 0.45:
        return rng.choice((rng.choice(NOUNS), rng.choice(ADJECTIVES)))
    if r < 0.6:
        return rng.choice(NAMES[:60]).lower()
    return pseudo_word(rng, rng.choice((1, 2, 2)))


def spell(word):
    return " ".join(word)


STRING_TASKS = {
    "reverse": (
        [
            "Reverse the word {w}.",
            'Reverse "{w}".',
            "Write {w} backwards.",
            "Spell {w} backwards.",
            "What is {w} spelled backwards?",
            "reverse: {w}",
        ],
        "{r}",
    ),
    "upper": (
        [
            "Write {w} in uppercase.",
            'Uppercase "{w}".',
            "Write the word {w} in capital letters.",
            "Convert {w} to upper case.",
            "uppercase: {w}",
        ],
        "{r}",
    ),
    "count": (
        [
            "How many letters does the word {w} have?",
            "Count the letters in {w}.",
            'How many letters are in "{w}"?',
            "How long is the word {w}?",
        ],
        "The word {w} has {r} letters.",
    ),
    "first": (
        ["What is the first letter of {w}?", 'First letter of "{w}"?', "Which letter does {w} start with?"],
        "The first letter is {r}.",
    ),
    "last": (
        ["What is the last letter of {w}?", 'Last letter of "{w}"?', "Which letter does {w} end with?"],
        "The last letter is {r}.",
    ),
    "spell": (
        ["Spell the word {w}.", 'Spell "{w}".', "How do you spell {w}?", "List the letters of {w}."],
        "{r}",
    ),
    "repeat": (["Repeat the word {w} {n} times.", "Say {w} {n} times.", 'Write "{w}" {n} times.'], "{r}"),
    "letter": (
        [
            "How many times does the letter {c} occur in {w}?",
            'Count the letter {c} in "{w}".',
            "How many {c}'s are in {w}?",
        ],
        "The letter {c} occurs {r} times in {w}.",
    ),
    "capital": (["Capitalize the word {w}.", "Write {w} with a capital first letter."], "{r}"),
    "join": (["Join the words {w} and {v}.", 'Concatenate "{w}" and "{v}".'], "{r}"),
    "sort": (["Sort these words: {ws}.", "Put these words in alphabetical order: {ws}."], "{r}"),
}
TIMES = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def string_task(rng, split, kind=None):
    kind = kind or rng.choice(list(STRING_TASKS))
    forms, answer = STRING_TASKS[kind]
    w = _draw(rng, split, lambda r: (lambda x: (f"{kind}:{x}", x))(task_word(r)))
    n, c, v = rng.randint(2, 6), rng.choice(w if rng.random() < 0.8 else "aeiourst"), task_word(rng)
    ws = sorted({w, v, task_word(rng), task_word(rng)})
    shuffled = rng.sample(ws, len(ws))
    result, think = {
        "reverse": (w[::-1], f"{spell(w)} reversed is {spell(w[::-1])}."),
        "upper": (w.upper(), f"{spell(w)} in capitals is {spell(w.upper())}."),
        "count": (str(len(w)), ", ".join(f"{ch} {i}" for i, ch in enumerate(w, 1)) + "."),
        "first": (w[0], f"{spell(w)}. It starts with {w[0]}."),
        "last": (w[-1], f"{spell(w)}. It ends with {w[-1]}."),
        "spell": ("-".join(w), f"The letters are {spell(w)}."),
        "repeat": (" ".join([w] * n), f"I write {w} {n} times."),
        "letter": (str(w.count(c)), f"{spell(w)}. I see {c} {w.count(c)} times."),
        "capital": (w.capitalize(), f"The first letter becomes {w[0].upper()}."),
        "join": (w + v, f"{spell(w)} and {spell(v)}."),
        "sort": (", ".join(ws), "The first letters are " + " ".join(x[0] for x in ws) + "."),
    }[kind]
    fill = dict(w=w, r=result, n=rng.choice((n, TIMES[n])), c=c, v=v, ws=", ".join(shuffled))
    text = answer.format(**fill)
    if kind == "letter" and result == "1":
        text = text.replace("1 times", "1 time")
    return Task(rng.choice(forms).format(**fill), think, text, result)


# ---- facts ---------------------------------------------------------------------------------------


def _cap(text):
    return text[0].upper() + text[1:]


def fact(rng, split, relation=None):
    if relation is None:
        relation = "capital" if rng.random() < 0.33 else rng.choice(list(facts.RELATIONS))
    table, forms = facts.RELATIONS[relation]
    s = rng.choice(list(table))
    question, answer = rng.choice(forms)
    if split == "test" and relation == "capital":
        question, answer = rng.choice(facts.TEST_FORMS), "The capital of {s} is {o}."
    o = str(table[s])
    full = forms[0][1].format(s=s, o=o)
    return Task(
        _cap(question.format(s=s, o=o)) if rng.random() < 0.95 else question.format(s=s, o=o),
        _cap(full),
        _cap(answer.format(s=s, o=o)),
        o,
    )


def two_facts(rng, split):
    a, b = rng.sample(list(facts.CAPITALS), 2)
    ca, cb = facts.CAPITALS[a], facts.CAPITALS[b]
    form = rng.choice(
        [
            "What are the capitals of {a} and {b}?",
            "Name the capitals of {a} and {b}.",
            "Tell me the capitals of {a} and {b}.",
        ]
    )
    text = f"The capital of {a} is {ca} and the capital of {b} is {cb}."
    return Task(form.format(a=a, b=b), text, text, cb)


def definition(rng, split):
    s = rng.choice(list(facts.DEFINITIONS))
    form = rng.choice(["What is {s}?", "Explain what {s} is.", "Tell me what {s} is.", "Define {s}."])
    d = facts.DEFINITIONS[s]
    return Task(form.format(s=s), f"The user asks what {s} is.", d, d)


# ---- lists ---------------------------------------------------------------------------------------

def listing(rng, split):
    r = rng.random()
    if r < 0.4:
        forms, items = rng.choice(LISTS)
        answer = ", ".join(items)
        return Task(rng.choice(forms), f"There are {len(items)} items.", answer, answer)
    if r < 0.6:
        a = rng.randint(0, 60)
        b = a + rng.randint(2, 30)
        form = rng.choice(
            [
                "Count from {a} to {b}.",
                "Write the numbers from {a} to {b}.",
                "List all numbers from {a} to {b}.",
            ]
        )
        answer = ", ".join(str(i) for i in range(a, b + 1))
        return Task(form.format(a=a, b=b), f"I start at {a} and stop at {b}.", answer, answer)
    if r < 0.75:
        n = rng.randint(2, 12)
        form = rng.choice(
            [
                "Write the multiplication table of {n}.",
                "Show me the {n} times table.",
                "Times table of {n}, please.",
            ]
        )
        answer = "\n".join(f"{i} * {n} = {i * n}" for i in range(1, 11))
        return Task(form.format(n=n), f"I multiply 1 to 10 by {n}.", answer, answer)
    if r < 0.85:
        n, step = rng.randint(3, 12), rng.choice((2, 3, 5, 10))
        answer = ", ".join(str(step * i) for i in range(1, n + 1))
        return Task(f"List the first {n} multiples of {step}.", f"I add {step} each time.", answer, answer)
    a = rng.randint(3, 30)
    answer = ", ".join(str(i) for i in range(a, -1, -1))
    form = rng.choice(["Count down from {a}.", "Count backwards from {a} to 0."])
    return Task(form.format(a=a), f"I start at {a} and stop at 0.", answer, answer)


# ---- small talk and copying ----------------------------------------------------------------------

def small_talk(rng, split):
    forms, answer = rng.choice(TALK)
    return Task(rng.choice(forms), "This is small talk. I answer politely.", answer, answer)


def copying(rng, split):
    words = [any_word(rng) for _ in range(rng.randint(1, 6))]
    text = " ".join(words)
    form = rng.choice(
        ["Repeat after me: {t}", "Say: {t}", "Copy this text: {t}", "Write exactly this: {t}", 'Echo "{t}"']
    )
    return Task(form.format(t=text), "I repeat the text.", text, text)


def choose(rng, split):
    """Small questions about a list in the prompt."""
    items = list(
        dict.fromkeys(
            rng.choice((rng.choice(NOUNS), rng.choice(CITIES), pseudo_word(rng)))
            for _ in range(rng.randint(3, 6))
        )
    )
    i = rng.randrange(len(items))
    kind = rng.randrange(3)
    if kind == 0:
        return Task(
            f"How many items are in this list: {', '.join(items)}?",
            ", ".join(f"{x} {k}" for k, x in enumerate(items, 1)) + ".",
            f"There are {len(items)} items.",
            str(len(items)),
        )
    ordinal = ["first", "second", "third", "fourth", "fifth", "sixth"][i]
    if kind == 1:
        return Task(
            f"What is the {ordinal} item of this list: {', '.join(items)}?",
            ", ".join(f"{x} {k}" for k, x in enumerate(items, 1)) + ".",
            f"The {ordinal} item is {items[i]}.",
            items[i],
        )
    people = rng.sample(NAMES, len(items))
    story = " ".join(f"{p} has the {x}." for p, x in zip(people, items))
    if rng.random() < 0.5:
        return Task(
            f"{story} Who has the {items[i]}?",
            f"I look for {items[i]}.",
            f"{people[i]} has the {items[i]}.",
            people[i],
        )
    return Task(
        f"{story} What does {people[i]} have?",
        f"I look for {people[i]}.",
        f"{people[i]} has the {items[i]}.",
        items[i],
    )
