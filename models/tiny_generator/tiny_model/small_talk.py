# SPDX-License-Identifier: Apache-2.0
"""Phrases of two kinds of tasks: lists in their order, and small talk with its answers."""

from . import facts

LISTS = [
    (
        ["List the days of the week.", "What are the days of the week?", "Name the seven days of the week."],
        facts.DAYS,
    ),
    (["List the months of the year.", "What are the twelve months?", "Name all months."], facts.MONTHS),
    (["List the seasons.", "What are the four seasons?", "Name the seasons."], facts.SEASONS),
    (
        [
            "List the planets.",
            "What are the planets of the solar system?",
            "Name the eight planets in order.",
        ],
        facts.PLANETS,
    ),
    (
        ["Write the alphabet.", "Say the alphabet.", "List the letters of the alphabet."],
        list("abcdefghijklmnopqrstuvwxyz"),
    ),
    (["Count to twenty in words.", "Write the numbers from one to twenty as words."], facts.NUMBER_WORDS[1:]),
]

TALK = [
    (
        ["Hi", "Hi!", "Hello", "Hello!", "Hey", "hello", "hi", "Hi there!", "Good morning!"],
        "Hello! How can I help you?",
    ),
    (["How are you?", "How are you today?", "How do you do?"], "I am fine, thank you. How can I help you?"),
    (["Thanks!", "Thank you.", "Thank you!", "thanks", "Thanks a lot!", "thx"], "You are welcome."),
    (["Bye", "Goodbye!", "Good night.", "See you later."], "Goodbye!"),
    (
        ["Who are you?", "What are you?", "What is your name?", "Tell me about yourself."],
        "I am Koho's tiny test model, a small language model.",
    ),
    (
        ["What can you do?", "How can you help me?", "Help", "What are you good at?"],
        "I can add small numbers, work with words, tell capitals and short stories, write JSON and call tools.",
    ),
    (["Are you human?", "Are you a robot?"], "No, I am a small language model."),
    (["Bonjour", "Bonjour !"], "Bonjour !"),
    (["Hola", "¡Hola!"], "¡Hola!"),
    (["Hallo", "Guten Tag"], "Hallo!"),
    (["你好", "你好！"], "你好！"),
    (["こんにちは"], "こんにちは！"),
    (
        ["Tell me a joke.", "Do you know a joke?"],
        "Why did the fox cross the road? Because the chicken was on the other side.",
    ),
    (["What is the meaning of life?"], "42."),
    (["ok", "OK", "Okay.", "Good.", "Great!"], "Is there anything else?"),
]
