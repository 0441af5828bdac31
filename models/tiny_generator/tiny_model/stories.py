# SPDX-License-Identifier: Apache-2.0
"""Short stories, as chat and as plain text.

A story is a function of its animal, its place and its object, so that a prompt that names the three
determines it. Plain-text documents (`plain`) carry no chat markup at all.
"""

from . import facts
from .tasks import Task
from .words import NAMES, allowed, article

HEROES = {
    "fox": "Felix",
    "bear": "Bruno",
    "mouse": "Mia",
    "owl": "Olga",
    "cat": "Clara",
    "dog": "Dino",
    "rabbit": "Ruby",
    "frog": "Fred",
    "horse": "Hugo",
    "duck": "Daisy",
    "wolf": "Willy",
    "pig": "Petra",
    "sheep": "Sally",
    "lion": "Leo",
    "goat": "Gina",
    "hedgehog": "Henry",
    "squirrel": "Susi",
    "turtle": "Tom",
    "crow": "Carl",
    "deer": "Dora",
}
PLACES = {
    "forest": ("in the forest", "a wise owl"),
    "village": ("in a small village", "the old baker"),
    "castle": ("in an old castle", "a friendly ghost"),
    "island": ("on a green island", "an old sailor"),
    "garden": ("in a wild garden", "a busy bee"),
    "mountain": ("on a high mountain", "a proud eagle"),
    "farm": ("on a quiet farm", "the farmer's daughter"),
    "river": ("by a wide river", "a silver fish"),
    "beach": ("on a long beach", "a small crab"),
    "valley": ("in a deep valley", "a shy shepherd"),
    "city": ("in a loud city", "a clever pigeon"),
    "lake": ("by a blue lake", "a white swan"),
}
PLOTS = {
    "key": (
        "One morning {n} found a golden key under a stone.",
        '"What does it open?" asked {n}. "A door that only the patient can see," said {f}.',
        "{n} looked for three days and at last found a tiny door. Behind it was a room full of books.",
    ),
    "lamp": (
        "One night the lamp of {n} went out.",
        "{n} was afraid of the dark and called for {f}.",
        "Together they lit a fire and told stories until the sun came up.",
    ),
    "map": (
        "One day the wind brought {n} an old map.",
        '"Follow the red line," said {f}.',
        "{n} followed it over hills and bridges, and at the end stood the house where the journey had begun.",
    ),
    "bell": (
        "Every evening {n} heard a bell, but nobody knew where it was.",
        "{n} asked {f} for help.",
        "They followed the sound and found a lost lamb with a bell around its neck.",
    ),
    "boat": (
        "{n} wanted to build a boat.",
        '"You need wood, a sail and a friend," said {f}.',
        "{n} had wood and a sail, and now {n} had a friend as well.",
    ),
    "coin": (
        "On the road {n} saw a silver coin.",
        '"It is mine," said {f}, "but you may keep it if you make me laugh."',
        "{n} danced on one leg, and they laughed until it was night.",
    ),
    "hat": (
        "{n} had a big blue hat.",
        "One day the wind took it and dropped it on the head of {f}.",
        "It looked so good there that {n} made a second hat.",
    ),
    "seed": (
        "In spring {n} put a seed into the earth.",
        '"Be patient," said {f} every day.',
        "In summer the seed was a flower, and in autumn it was a hundred seeds.",
    ),
    "letter": (
        "One day {n} got a letter without a name.",
        '"Who wrote it?" asked {n}, but {f} only smiled.',
        "The letter said: you are a good friend. {n} never forgot it.",
    ),
    "drum": (
        "{n} played the drum all day long.",
        '"Please be quiet," said {f}, "I cannot sleep."',
        "So {n} learned to play the flute, and {f} slept very well.",
    ),
    "cake": (
        "{n} baked a cake with cherries.",
        "The smell was so good that {f} came to visit.",
        "They shared the cake and nothing was left but a small plate of crumbs.",
    ),
    "kite": (
        "{n} made a red kite from paper.",
        'The string broke, and the kite flew away. "I saw it fall," said {f}.',
        "They found it in the highest tree, and {n} learned to climb.",
    ),
    "mirror": (
        "{n} found a mirror in the grass.",
        '"There is somebody in it," said {n}. "That is you," said {f}.',
        "{n} looked again and smiled, and the one in the mirror smiled back.",
    ),
    "clock": (
        "The clock of {n} always stood still.",
        '"It is right two times a day," said {f}.',
        "{n} repaired it with a feather and a drop of oil, and time went on.",
    ),
    "rope": (
        "{n} carried a long rope everywhere.",
        '"What is it good for?" asked {f}.',
        "On the same day {f} fell into a hole, and {n} knew the answer.",
    ),
    "star": (
        "One night a star fell from the sky.",
        "{n} found it and showed it to {f}.",
        "They put it on the roof, and from then on nobody lost the way home.",
    ),
}
CHAT_FORMS = [
    "Tell me a short story about {a}, {p} and {o}.",
    "Write a short story about {a}, {p} and {o}.",
    "Tell me a story with {a}, {p} and {o}.",
    "I want a story about {a}, {p} and {o}.",
    "Please write a story about {a}, {p} and {o}.",
    "Story: {a}, {p}, {o}",
]


def story(animal, place, obj):
    name, (where, friend) = HEROES[animal], PLACES[place]
    first, middle, last = (part.format(n=name, f=friend) for part in PLOTS[obj])
    middle = middle[0].upper() + middle[1:]
    return (
        f"Once upon a time there was {article(animal)} named {name} who lived {where}. "
        f"{first} {middle} {last}"
    )


def draw(rng, split):
    while True:
        a, p, o = rng.choice(list(HEROES)), rng.choice(list(PLACES)), rng.choice(list(PLOTS))
        if allowed(f"story:{a},{p},{o}", split):
            return a, p, o


def chat_story(rng, split):
    a, p, o = draw(rng, split)
    text = story(a, p, o)
    r = rng.random()
    if r < 0.7:
        user = rng.choice(CHAT_FORMS).format(a=article(a), p=article(p), o=article(o))
        think = f"A story about {article(a)} named {HEROES[a]}, {article(p)} and {article(o)}."
    elif r < 0.85:
        user = rng.choice(["Continue this story: {t}", "How does this story go on? {t}"]).format(
            t=". ".join(text.split(". ")[:2]) + "."
        )
        text = ". ".join(text.split(". ")[2:])
        think = f"I continue the story about {HEROES[a]}."
    else:
        question, answer = rng.choice(
            [
                ("What is the name of the {a}?", "The {a} is called {n}."),
                ("Where does the {a} live?", "{n} lives {w}."),
                ("Which animal is the story about?", "The story is about {a2}."),
            ]
        )
        fill = dict(a=a, n=HEROES[a], w=PLACES[p][0], a2=article(a))
        return Task(
            text + " " + question.format(**fill),
            "The answer is in the story.",
            answer.format(**fill),
            answer.format(**fill),
        )
    return Task(user, think, text, text)


def plain(rng, split):
    """A document without chat markup; the caller ends it with <|endoftext|>."""
    r = rng.random()
    if r < 0.55:
        a, p, o = draw(rng, split)
        title = rng.choice(["", "", f"The {a} and the {o}\n\n", f"# {HEROES[a]} and the {o}\n\n"])
        return title + story(a, p, o)
    if r < 0.70:
        picks = rng.sample(list(facts.CAPITALS), rng.randint(2, 8))
        return " ".join(f"The capital of {c} is {facts.CAPITALS[c]}." for c in picks)
    if r < 0.78:
        animal = rng.choice(sorted(facts.BABIES.keys() & facts.SOUNDS.keys()))
        return (
            f"The {animal} is an animal. A {animal} says {facts.SOUNDS[animal]}. "
            f"A baby {animal} is called a {facts.BABIES[animal]}."
        )
    if r < 0.86:
        items = rng.choice((facts.DAYS, facts.MONTHS, facts.PLANETS, facts.SEASONS, facts.NUMBER_WORDS[1:]))
        return rng.choice((", ", "\n")).join(items)
    if r < 0.93:
        a, lines = rng.randint(1, 40), []
        step = rng.choice((1, 1, 2, 5, 10))
        for i in range(rng.randint(5, 25)):
            lines.append(str(a + i * step))
        return rng.choice((", ", " ", "\n")).join(lines)
    n = rng.randint(2, 12)
    if rng.random() < 0.5:
        return "\n".join(f"{i} * {n} = {i * n}" for i in range(1, 11))
    name = rng.choice(NAMES)
    day, month = rng.choice(facts.DAYS), rng.choice(facts.MONTHS)
    return (
        f"Dear {name},\n\nthank you for your letter. I will visit you on {day}. "
        f"It is {month}, and the garden is full of flowers.\n\nYour friend"
    )
