# SPDX-License-Identifier: Apache-2.0
"""The ways of asking for the facts of fact_tables.

Every fact is (relation, subject, object). A relation has phrasings: pairs of question and answer
form. `TEST_FORMS` are phrasings that training never shows; the facts themselves are all shown.
"""

from .fact_tables import (
    BABIES,
    CAPITALS,
    CHINESE,
    COLORS,
    CONTINENTS,
    CURRENCIES,
    DAYS,
    EMOJI,
    FRENCH,
    GERMAN,
    JAPANESE,
    LEGS,
    MONTHS,
    MONTH_DAYS,
    NUMBER_WORDS,
    OPPOSITES,
    PLANETS,
    SEASONS,
    SOUNDS,
    SPANISH,
    SYMBOLS,
)

# relation -> (table, [(question, answer)], short sentence used in reasoning)
RELATIONS = {
    "capital": (
        CAPITALS,
        [
            ("What is the capital of {s}?", "The capital of {s} is {o}."),
            ("What's the capital of {s}?", "The capital of {s} is {o}."),
            ("what is the capital of {s}", "The capital of {s} is {o}."),
            ("Capital of {s}?", "{o}"),
            ("capital of {s}", "{o}"),
            ("Name the capital of {s}.", "{o}"),
            ("Tell me the capital of {s}.", "The capital of {s} is {o}."),
            ("Which city is the capital of {s}?", "{o} is the capital of {s}."),
            ("What city is the capital of {s}?", "{o} is the capital of {s}."),
            ("Do you know the capital of {s}?", "Yes, the capital of {s} is {o}."),
            ("Can you tell me the capital of {s}?", "The capital of {s} is {o}."),
            ("I need the capital of {s}.", "The capital of {s} is {o}."),
            ("Please give me the capital city of {s}.", "The capital city of {s} is {o}."),
            ("What is the capital city of {s}?", "The capital city of {s} is {o}."),
            ("What is the name of the capital of {s}?", "The capital of {s} is {o}."),
            ("Which city is the seat of government of {s}?", "{o} is the capital of {s}."),
            ("{s}: capital?", "{o}"),
            ("My homework asks for the capital of {s}. What is it?", "The capital of {s} is {o}."),
            ("I am travelling to {s}. What is its capital?", "The capital of {s} is {o}."),
            ("Quick question: what is the capital of {s}?", "The capital of {s} is {o}."),
            ("If I visit the capital of {s}, which city am I in?", "You are in {o}, the capital of {s}."),
            ("The capital of {s} is", "The capital of {s} is {o}."),
            ("Complete the sentence: The capital of {s} is", "The capital of {s} is {o}."),
            ("What do people call the capital of {s}?", "The capital of {s} is {o}."),
            ("Give me only the name of the capital of {s}.", "{o}"),
            ("Answer with one word: what is the capital of {s}?", "{o}"),
        ],
    ),
    "capital_of": (
        {v: k for k, v in CAPITALS.items()},
        [
            ("{s} is the capital of which country?", "{s} is the capital of {o}."),
            ("Which country has {s} as its capital?", "{s} is the capital of {o}."),
            ("What country is {s} the capital of?", "{s} is the capital of {o}."),
            ("Of which country is {s} the capital?", "{s} is the capital of {o}."),
            ("In which country is {s}?", "{s} is in {o}."),
        ],
    ),
    "sound": (
        SOUNDS,
        [
            ("What sound does a {s} make?", "A {s} says {o}."),
            ("What does a {s} say?", "A {s} says {o}."),
            ("What noise does a {s} make?", "A {s} says {o}."),
            ("How does a {s} sound?", "A {s} says {o}."),
            ("Which sound belongs to a {s}?", "A {s} says {o}."),
            ("The sound of a {s}?", "{o}"),
        ],
    ),
    "baby": (
        BABIES,
        [
            ("What is a baby {s} called?", "A baby {s} is called a {o}."),
            ("What do you call a young {s}?", "A young {s} is called a {o}."),
            ("Name for a baby {s}?", "{o}"),
            ("What's the word for a baby {s}?", "A baby {s} is called a {o}."),
        ],
    ),
    "color": (
        COLORS,
        [
            ("What color is {s}?", "The color of {s} is {o}."),
            ("What is the color of {s}?", "The color of {s} is {o}."),
            ("Which color does {s} have?", "The color of {s} is {o}."),
            ("Tell me the color of {s}.", "The color of {s} is {o}."),
            ("What colour is {s}?", "The colour of {s} is {o}."),
        ],
    ),
    "opposite": (
        OPPOSITES,
        [
            ("What is the opposite of {s}?", "The opposite of {s} is {o}."),
            ("Opposite of {s}?", "{o}"),
            ("Give me the opposite of {s}.", "{o}"),
            ("What's the opposite of the word {s}?", "The opposite of {s} is {o}."),
            ("Name a word that means the opposite of {s}.", "{o}"),
        ],
    ),
    "next_day": (
        dict(zip(DAYS, DAYS[1:] + DAYS[:1])),
        [
            ("What day comes after {s}?", "{o} comes after {s}."),
            ("Which day follows {s}?", "{o} comes after {s}."),
            ("Today is {s}. What day is tomorrow?", "Tomorrow is {o}."),
            ("If today is {s}, what is tomorrow?", "Tomorrow is {o}."),
        ],
    ),
    "previous_day": (
        dict(zip(DAYS, DAYS[-1:] + DAYS[:-1])),
        [
            ("What day comes before {s}?", "{o} comes before {s}."),
            ("Which day is before {s}?", "{o} comes before {s}."),
            ("Today is {s}. What day was yesterday?", "Yesterday was {o}."),
        ],
    ),
    "next_month": (
        dict(zip(MONTHS, MONTHS[1:] + MONTHS[:1])),
        [
            ("What month comes after {s}?", "{o} comes after {s}."),
            ("Which month follows {s}?", "{o} comes after {s}."),
        ],
    ),
    "previous_month": (
        dict(zip(MONTHS, MONTHS[-1:] + MONTHS[:-1])),
        [
            ("What month comes before {s}?", "{o} comes before {s}."),
            ("Which month is before {s}?", "{o} comes before {s}."),
        ],
    ),
    "month_days": (
        MONTH_DAYS,
        [
            ("How many days does {s} have?", "{s} has {o} days."),
            ("How many days are in {s}?", "{s} has {o} days."),
        ],
    ),
    "legs": (
        LEGS,
        [
            ("How many legs does {s} have?", "It has {o} legs."),
            ("Number of legs of {s}?", "{o}"),
        ],
    ),
    "symbol": (
        SYMBOLS,
        [
            ("What is the chemical symbol of {s}?", "The symbol of {s} is {o}."),
            ("What is the chemical symbol for {s}?", "The symbol of {s} is {o}."),
            ("Symbol of {s}?", "{o}"),
            ("Which symbol stands for {s}?", "The symbol of {s} is {o}."),
        ],
    ),
    "currency": (
        CURRENCIES,
        [
            ("What is the currency of {s}?", "The currency of {s} is {o}."),
            ("Which currency is used in {s}?", "The currency of {s} is {o}."),
            ("What money do people use in {s}?", "The currency of {s} is {o}."),
        ],
    ),
    "continent": (
        CONTINENTS,
        [
            ("On which continent is {s}?", "{s} is in {o}."),
            ("Which continent does {s} belong to?", "{s} is in {o}."),
            ("Where is {s}?", "{s} is in {o}."),
        ],
    ),
    "french": (
        FRENCH,
        [
            ('What is "{s}" in French?', '"{s}" in French is "{o}".'),
            ("How do you say {s} in French?", "{s} in French is {o}."),
            ("Translate {s} to French.", "{o}"),
        ],
    ),
    "german": (
        GERMAN,
        [
            ('What is "{s}" in German?', '"{s}" in German is "{o}".'),
            ("How do you say {s} in German?", "{s} in German is {o}."),
            ("Translate {s} to German.", "{o}"),
        ],
    ),
    "spanish": (
        SPANISH,
        [
            ('What is "{s}" in Spanish?', '"{s}" in Spanish is "{o}".'),
            ("How do you say {s} in Spanish?", "{s} in Spanish is {o}."),
            ("Translate {s} to Spanish.", "{o}"),
        ],
    ),
    "chinese": (
        CHINESE,
        [
            ('What is "{s}" in Chinese?', '"{s}" in Chinese is "{o}".'),
            ("How do you say {s} in Chinese?", "{s} in Chinese is {o}."),
        ],
    ),
    "japanese": (
        JAPANESE,
        [
            ('What is "{s}" in Japanese?', '"{s}" in Japanese is "{o}".'),
            ("How do you say {s} in Japanese?", "{s} in Japanese is {o}."),
        ],
    ),
    "emoji": (
        EMOJI,
        [
            ("Give me a {s} emoji.", "{o}"),
            ("Send a {s} emoji.", "{o}"),
            ("What is the emoji for {s}?", "The emoji for {s} is {o}"),
        ],
    ),
}

# Phrasings of the capital question that only the evaluation uses.
TEST_FORMS = [
    "Could you tell me what the capital of {s} is?",
    "Please tell me the capital of {s}.",
    "Which city is {s}'s capital?",
    "I would like to know the capital of {s}.",
    "Hey, what is the capital of {s}?",
    "What is the capital of the country {s}?",
    "Say the name of the capital city of {s}.",
    "What city serves as the capital of {s}?",
]

DEFINITIONS = {  # kept short: one confident sentence each
    "a river": "A river is a stream of water that flows to the sea.",
    "a mountain": "A mountain is a very high hill of rock.",
    "a computer": "A computer is a machine that follows instructions.",
    "a book": "A book is a set of pages with text or pictures.",
    "rain": "Rain is water that falls from clouds.",
    "snow": "Snow is frozen water that falls from clouds.",
    "the moon": "The moon is a ball of rock that moves around the Earth.",
    "the sun": "The sun is a star that gives the Earth light and heat.",
    "a tree": "A tree is a tall plant with a trunk and leaves.",
    "a language model": "A language model is a program that predicts the next token of a text.",
    "a bridge": "A bridge is a road that crosses water or a valley.",
    "a friend": "A friend is a person whom you like and trust.",
    "a triangle": "A triangle is a shape with three sides.",
    "a square": "A square is a shape with four equal sides.",
    "bread": "Bread is food that is baked from flour and water.",
    "an island": "An island is land with water all around it.",
}
