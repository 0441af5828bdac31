# SPDX-License-Identifier: Apache-2.0
"""Tools that do something for the user: mail, calendar, timer, music, notes, lights.

Each function returns (tool, make_request): make_request(rng) -> Request of one call.
"""

from .tool_request import Request, param, spelled_name, tool
from .words import (
    ADJECTIVES,
    NAMES,
    NOUNS,
    VERBS,
    any_word,
    clock_time,
    date,
    email,
    join_and,
    pseudo_word,
    string_value,
)


def mail(rng):
    name = spelled_name(rng, "send email", "send mail", "email", "write email", "send message")
    to, about, body = (
        rng.choice(("to", "recipient", "address", "to_address")),
        rng.choice(("subject", "title", "topic")),
        rng.choice(("body", "message", "text", "content")),
    )
    props = {to: param("string", "Who gets it"), about: param("string"), body: param("string", "The text")}
    made = tool(
        rng, name, rng.choice(("Send an email.", "Sends a mail to someone.")), props, [to, about, body]
    )

    def request(rng):
        who, subject, text = (
            email(rng),
            f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}",
            rng.choice(
                (
                    "See you tomorrow.",
                    "Thank you for your help.",
                    "I will be late.",
                    "The meeting is cancelled.",
                    f"Please bring the {rng.choice(NOUNS)}.",
                    f"The {rng.choice(NOUNS)} is {rng.choice(ADJECTIVES)}.",
                )
            ),
        )
        user = rng.choice(
            (
                'Send an email to {w} with the subject "{s}" and the text "{t}".',
                "Email {w}. Subject: {s}. Text: {t}",
                'Write a mail to {w} about "{s}" saying "{t}".',
            )
        ).format(w=who, s=subject, t=text)
        result = rng.choice(({"status": "sent"}, "sent", {"status": "sent", "id": rng.randint(1, 999)}))
        return Request(
            user,
            [(name, {to: who, about: subject, body: text})],
            f"send an email to {who}",
            [result],
            f"I sent the email to {who}.",
        )

    return made, request


def calendar(rng):
    name = spelled_name(
        rng, "create event", "add event", "create calendar event", "schedule meeting", "add appointment"
    )
    title, day, hour = (
        rng.choice(("title", "name", "event", "summary")),
        rng.choice(("date", "day", "when")),
        rng.choice(("time", "start", "start_time", "at")),
    )
    people = rng.random() < 0.35
    props = {title: param("string"), day: param("string", "YYYY-MM-DD"), hour: param("string", "HH:MM")}
    if people:
        props["attendees"] = param("array:string", "Names")
    made = tool(
        rng,
        name,
        rng.choice(("Create an event in the calendar.", "Adds an appointment.")),
        props,
        [title, day, hour],
    )

    def request(rng):
        what = rng.choice(
            ("lunch", "meeting", "dentist", "party", "call", f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}")
        )
        args = {title: what, day: date(rng), hour: clock_time(rng)}
        text = rng.choice(
            (
                "Schedule {e} on {d} at {t}",
                "Put {e} in my calendar on {d} at {t}",
                "Create an event {e} on {d} at {t}",
                "Add {e} to the calendar for {d} at {t}",
            )
        ).format(e=what, d=args[day], t=args[hour])
        if people and rng.random() < 0.7:
            args["attendees"] = rng.sample(NAMES, rng.randint(1, 3))
            text += " with " + join_and(args["attendees"])
        result = rng.choice(
            ({"status": "created"}, "created", {"id": rng.randint(1, 999), "status": "created"})
        )
        return Request(
            text + ".",
            [(name, args)],
            f"schedule {what}",
            [result],
            f"I added {what} on {args[day]} at {args[hour]}.",
        )

    return made, request


def timer(rng):
    name = spelled_name(rng, "set timer", "start timer", "set alarm", "timer", "create reminder", "set reminder")
    minutes = rng.choice(("minutes", "duration", "duration_minutes", "time"))
    label = rng.random() < 0.4
    props = {minutes: param("integer", "Minutes")}
    if label:
        props["label"] = param("string")
    made = tool(
        rng,
        name,
        rng.choice(("Start a timer.", "Sets a timer in minutes.", "Remind me after some minutes.")),
        props,
        [minutes],
    )

    def request(rng):
        n = rng.randint(1, 90)
        args, text = {minutes: n}, rng.choice(
            (
                f"Set a timer for {n} minutes",
                f"Start a {n} minute timer",
                f"Remind me in {n} minutes",
                f"Wake me in {n} minutes",
            )
        )
        if label and rng.random() < 0.6:
            args["label"] = rng.choice(NOUNS)
            text += f" with the label {args['label']}"
        return Request(
            text + ".",
            [(name, args)],
            f"set a timer for {n} minutes",
            [rng.choice(({"status": "ok"}, "ok", {"status": "running"}))],
            f"The timer is set for {n} minutes.",
        )

    return made, request


def music(rng):
    name = spelled_name(rng, "play music", "play song", "play", "start music")
    song, artist, volume = (
        rng.choice(("song", "title", "track")),
        rng.choice(("artist", "singer", "band")),
        rng.random() < 0.3,
    )
    props = {song: param("string"), artist: param("string")}
    if volume:
        props["volume"] = param("integer", "0 to 100")
    made = tool(rng, name, "Play a song.", props, [song])

    def request(rng):
        s = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}".title()
        args, text = {song: s}, f"Play {s}"
        if rng.random() < 0.6:
            args[artist] = rng.choice(NAMES) + " " + pseudo_word(rng).capitalize()
            text += f" by {args[artist]}"
        if volume and rng.random() < 0.6:
            args["volume"] = rng.randint(0, 100)
            text += f" at volume {args['volume']}"
        return Request(
            text + ".",
            [(name, args)],
            f"hear {s}",
            [rng.choice(({"status": "playing"}, "playing"))],
            f"Now playing {s}.",
        )

    return made, request


def note(rng):
    name = spelled_name(rng, "create note", "add note", "save note", "add todo", "add task")
    text_name, tags = rng.choice(("text", "content", "note", "title")), rng.random() < 0.35
    props = {text_name: param("string")}
    if tags:
        props["tags"] = param("array:string")
    made = tool(rng, name, rng.choice(("Save a note.", "Adds an item to the list.")), props, [text_name])

    def request(rng):
        what = rng.choice(
            (f"buy {rng.choice(NOUNS)}", f"{rng.choice(VERBS)} the {rng.choice(NOUNS)}", string_value(rng))
        )
        args, text = {text_name: what}, rng.choice(
            ("Make a note: {w}", "Add a note saying {w}", 'Save the note "{w}"', "Write down: {w}")
        ).format(w=what)
        if tags and rng.random() < 0.6:
            args["tags"] = [any_word(rng) for _ in range(rng.randint(1, 3))]
            text += f" with the tags {join_and(args['tags'])}"
        return Request(
            text,
            [(name, args)],
            "save a note",
            [rng.choice(({"status": "saved"}, "saved", {"id": rng.randint(1, 99)}))],
            "I saved the note.",
        )

    return made, request


def light(rng):
    name = spelled_name(rng, "set light", "control light", "switch light", "turn light")
    room, on = rng.choice(("room", "location", "area")), rng.choice(("on", "state", "enabled", "power"))
    made = tool(
        rng,
        name,
        "Switch the light in a room on or off.",
        {room: param("string"), on: param("boolean")},
        [room, on],
    )

    def request(rng):
        where, value = (
            rng.choice(("kitchen", "bathroom", "bedroom", "garden", "hall", "office", "garage", "cellar")),
            rng.random() < 0.5,
        )
        word = "on" if value else "off"
        user = rng.choice(
            ("Turn {w} the light in the {r}.", "Switch the {r} light {w}.", "Light {w} in the {r}, please.")
        ).format(w=word, r=where)
        return Request(
            user,
            [(name, {room: where, on: value})],
            f"turn the {where} light {word}",
            [rng.choice(({"status": "ok"}, "ok"))],
            f"The light in the {where} is {word}.",
        )

    return made, request
