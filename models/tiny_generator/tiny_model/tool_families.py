# SPDX-License-Identifier: Apache-2.0
"""Tools that everybody offers (weather, search, calculator, ...), in many spellings.

Each family draws a tool with names and parameters of its own and returns it with a maker of requests:
what the user says, the calls that answer it, the tool's result and the final reply. Invented tools
and whole conversations are tool_tasks' business.
"""

from typing import NamedTuple

from .words import (
    ADJECTIVES,
    CITIES,
    NAMES,
    NOUNS,
    VERBS,
    any_word,
    clock_time,
    date,
    email,
    join_and,
    number_value,
    pseudo_word,
    string_value,
)


class Request(NamedTuple):
    user: str
    calls: list  # [(tool name, {argument: value})]
    goal: str  # what the reasoning says it wants
    results: list  # what the tools answer: str or dict
    reply: str  # the final answer


def param(kind, description=None, enum=None):
    node = {"type": kind.split(":")[0]}
    if kind.startswith("array"):
        node["items"] = {"type": kind.split(":")[1]}
    if description:
        node["description"] = description
    if enum:
        node["enum"] = enum
    return node


def tool(rng, name, description, props, required):
    parameters = {"type": "object", "properties": props}
    if required or rng.random() < 0.5:
        parameters["required"] = required
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def spelled(rng, words):
    """Several words as one identifier."""
    return "_".join(words) if rng.random() < 0.75 else words[0] + "".join(w.capitalize() for w in words[1:])


def _name(rng, *choices):
    return spelled(rng, rng.choice(choices).split())


# ---- families ------------------------------------------------------------------------------------
# Each returns (tool, make_request): make_request(rng) -> Request of one call.


def weather(rng):
    name = _name(
        rng,
        "get weather",
        "weather",
        "get current weather",
        "weather lookup",
        "fetch forecast",
        "current weather",
        "check weather",
        "get forecast",
    )
    city = rng.choice(("city", "city", "location", "place", "city_name", "town"))
    unit, days = rng.random() < 0.35, rng.random() < 0.25
    props = {
        city: param("string", rng.choice(("The city.", "Name of the city", "City name, e.g. Paris", None)))
    }
    if unit:
        props["unit"] = param("string", None, ["celsius", "fahrenheit"])
    if days:
        props["days"] = param("integer", "Number of days")
    made = tool(
        rng,
        name,
        rng.choice(
            (
                "Get the weather in a city.",
                "Returns the current weather for a place.",
                "Weather forecast",
                "Get current weather",
            )
        ),
        props,
        [city],
    )

    def request(rng):
        where = rng.choice(CITIES) if rng.random() < 0.75 else pseudo_word(rng).capitalize()
        args = {city: where}
        text = rng.choice(
            (
                "What is the weather in {c}",
                "What's the weather like in {c}",
                "How is the weather in {c}",
                "Tell me the weather in {c}",
                "Weather in {c}",
                "Is it raining in {c}",
                "How warm is it in {c}",
                "Check the weather in {c}",
                "What is the weather like in {c} today",
            )
        ).format(c=where)
        if days and rng.random() < 0.5:
            args["days"] = rng.randint(2, 10)
            text = f"What is the weather in {where} for the next {args['days']} days"
        if unit and rng.random() < 0.5:
            args["unit"] = rng.choice(("celsius", "fahrenheit"))
            text += f" in {args['unit']}"
        sky, degrees = rng.choice(
            ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear")
        ), rng.randint(-9, 38)
        shape = rng.randrange(3)
        result = [
            {"temperature": degrees, "condition": sky},
            {"city": where, "temp": degrees, "sky": sky},
            f"{sky}, {degrees} degrees",
        ][shape]
        return Request(
            text + rng.choice(("?", "?", "", ".")),
            [(name, args)],
            f"know the weather in {where}",
            [result],
            f"The weather in {where} is {sky} with {degrees} degrees.",
        )

    return made, request


def search(rng):
    name = _name(
        rng,
        "search",
        "web search",
        "search web",
        "google search",
        "find information",
        "lookup",
        "internet search",
    )
    query, limit = (
        rng.choice(("query", "query", "q", "text", "keywords", "search_query")),
        rng.random() < 0.35,
    )
    limit_name = rng.choice(("limit", "max_results", "count", "num_results"))
    props = {query: param("string", rng.choice(("What to search for.", "The search query", None)))}
    if limit:
        props[limit_name] = param("integer", "Number of results")
    made = tool(
        rng,
        name,
        rng.choice(("Search the web.", "Searches the internet for a query.", "Find pages about a topic.")),
        props,
        [query],
    )

    def request(rng):
        topic = rng.choice(
            (
                f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}",
                rng.choice(NOUNS),
                pseudo_word(rng),
                f"{any_word(rng)} {any_word(rng)} {any_word(rng)}",
                f"{rng.choice(NOUNS)} in {rng.choice(CITIES)}",
            )
        )
        args = {query: topic}
        text = rng.choice(
            (
                "Search for {t}",
                "Search the web for {t}",
                "Find pages about {t}",
                "Look up {t}",
                "Search the internet for {t}",
                "Please search for {t}",
                "Google {t}",
            )
        ).format(t=topic)
        if limit and rng.random() < 0.6:
            args[limit_name] = rng.randint(1, 20)
            text += f" and show {args[limit_name]} results"
        title = f"{rng.choice(('All about', 'The book of', 'News about'))} {topic}"
        result = rng.choice(
            (
                {"results": [{"title": title, "url": f"https://{pseudo_word(rng)}.com"}]},
                {"title": title},
                title,
            )
        )
        return Request(text + ".", [(name, args)], f"search for {topic}", [result], f"I found this: {title}.")

    return made, request


def calculator(rng):
    name = _name(rng, "calculator", "calculate", "compute", "math", "evaluate expression")
    expression = rng.choice(("expression", "expression", "expr", "formula", "input"))
    made = tool(
        rng,
        name,
        rng.choice(
            ("Evaluate an arithmetic expression.", "Calculates the value of an expression.", "A calculator.")
        ),
        {expression: param("string", rng.choice(("The expression", "e.g. 2 + 3", None)))},
        [expression],
    )

    def request(rng):
        a, b, sign = rng.randint(2, 999), rng.randint(2, 999), rng.choice("+-*/")
        value = {"+": a + b, "-": a - b, "*": a * b, "/": round(a / b, 2)}[sign]
        text = f"{a} {sign} {b}"
        user = rng.choice(
            ("What is {t}?", "Calculate {t}.", "Compute {t}.", "How much is {t}?", "{t}", "{t} = ?")
        ).format(t=text)
        result = rng.choice(({"result": value}, str(value), {"value": value}))
        return Request(user, [(name, {expression: text})], f"compute {text}", [result], f"{text} = {value}")

    return made, request


def mail(rng):
    name = _name(rng, "send email", "send mail", "email", "write email", "send message")
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
    name = _name(
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
    name = _name(rng, "set timer", "start timer", "set alarm", "timer", "create reminder", "set reminder")
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


def translate(rng):
    name = _name(rng, "translate", "translate text", "translation", "translator")
    text_name, language = rng.choice(("text", "text", "sentence", "input")), rng.choice(
        ("language", "target_language", "to", "target")
    )
    props = {text_name: param("string", "The text"), language: param("string", "Target language")}
    made = tool(rng, name, "Translate text into another language.", props, [text_name, language])

    def request(rng):
        source = rng.choice(
            (
                f"the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}",
                rng.choice(NOUNS),
                f"good {rng.choice(('morning', 'night', 'luck'))}",
            )
        )
        to = rng.choice(("French", "German", "Spanish", "Italian", "Polish", "Chinese", "Japanese", "Dutch"))
        foreign = " ".join(pseudo_word(rng) for _ in range(rng.randint(1, 3)))
        user = rng.choice(
            ('Translate "{s}" into {l}.', "Translate {s} to {l}.", 'How do I say "{s}" in {l}?')
        ).format(s=source, l=to)
        return Request(
            user,
            [(name, {text_name: source, language: to})],
            f"translate {source} into {to}",
            [rng.choice(({"translation": foreign}, foreign))],
            f"In {to} it is: {foreign}",
        )

    return made, request


def currency(rng):
    name = _name(rng, "convert currency", "currency converter", "exchange rate", "convert money")
    amount, source, target = rng.choice(("amount", "value", "sum")), *rng.choice(
        (("from", "to"), ("from_currency", "to_currency"), ("source", "target"))
    )
    number = rng.choice(("number", "integer"))
    props = {amount: param(number), source: param("string", "e.g. USD"), target: param("string", "e.g. EUR")}
    made = tool(
        rng, name, "Convert an amount of money into another currency.", props, [amount, source, target]
    )

    def request(rng):
        a, b = rng.sample(("USD", "EUR", "GBP", "JPY", "CHF", "PLN", "SEK", "CAD", "AUD", "CNY"), 2)
        n, out = rng.randint(1, 500), number_value(rng)
        user = rng.choice(
            ("Convert {n} {a} to {b}.", "How much is {n} {a} in {b}?", "Exchange {n} {a} into {b}.")
        ).format(n=n, a=a, b=b)
        return Request(
            user,
            [(name, {amount: n, source: a, target: b})],
            f"convert {n} {a} to {b}",
            [rng.choice(({"result": out}, str(out), {"amount": out, "currency": b}))],
            f"{n} {a} is {out} {b}.",
        )

    return made, request


def stock(rng):
    name = _name(rng, "get stock price", "stock price", "stock quote", "get quote")
    symbol = rng.choice(("symbol", "ticker", "company", "stock"))
    made = tool(rng, name, "Get the price of a stock.", {symbol: param("string", "Ticker symbol")}, [symbol])

    def request(rng):
        s = rng.choice(
            (
                "AAPL",
                "MSFT",
                "NVDA",
                "TSLA",
                "AMZN",
                "".join(rng.choice("ABCDEFGHKLMNOPRSTUVX") for _ in range(rng.randint(2, 4))),
            )
        )
        price = number_value(rng)
        user = rng.choice(
            (
                "What is the stock price of {s}?",
                "How much is {s} stock?",
                "Get the price of {s}.",
                "What does a share of {s} cost?",
            )
        ).format(s=s)
        return Request(
            user,
            [(name, {symbol: s})],
            f"know the stock price of {s}",
            [rng.choice(({"price": price}, str(price), {"symbol": s, "price": price}))],
            f"The stock price of {s} is {price}.",
        )

    return made, request


def music(rng):
    name = _name(rng, "play music", "play song", "play", "start music")
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


def time_in(rng):
    name = _name(rng, "get time", "current time", "get current time", "world clock")
    place = rng.choice(("city", "timezone", "location", "place"))
    made = tool(rng, name, "Get the current time in a place.", {place: param("string")}, [place])

    def request(rng):
        where, t = rng.choice(CITIES), clock_time(rng)
        user = rng.choice(
            ("What time is it in {c}?", "Tell me the time in {c}.", "What is the current time in {c}?")
        ).format(c=where)
        return Request(
            user,
            [(name, {place: where})],
            f"know the time in {where}",
            [rng.choice(({"time": t}, t))],
            f"It is {t} in {where}.",
        )

    return made, request


def route(rng):
    name = _name(rng, "get route", "get distance", "directions", "find route", "travel time")
    a, b = rng.choice((("from", "to"), ("origin", "destination"), ("start", "end"), ("from_city", "to_city")))
    mode = rng.random() < 0.4
    props = {a: param("string"), b: param("string")}
    if mode:
        props["mode"] = param("string", None, ["car", "train", "bike", "walk"])
    made = tool(rng, name, "Find the way and the distance between two places.", props, [a, b])

    def request(rng):
        x, y = rng.sample(CITIES, 2)
        args = {a: x, b: y}
        text = rng.choice(
            (
                "How far is it from {x} to {y}",
                "Find a route from {x} to {y}",
                "How do I get from {x} to {y}",
                "What is the distance from {x} to {y}",
            )
        ).format(x=x, y=y)
        if mode and rng.random() < 0.6:
            args["mode"] = rng.choice(("car", "train", "bike", "walk"))
            text += f" by {args['mode']}"
        km = rng.randint(20, 3000)
        return Request(
            text + "?",
            [(name, args)],
            f"travel from {x} to {y}",
            [rng.choice(({"distance_km": km}, f"{km} km"))],
            f"It is {km} km from {x} to {y}.",
        )

    return made, request


def note(rng):
    name = _name(rng, "create note", "add note", "save note", "add todo", "add task")
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
    name = _name(rng, "set light", "control light", "switch light", "turn light")
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


FAMILIES = [
    weather,
    weather,
    search,
    calculator,
    mail,
    calendar,
    timer,
    translate,
    currency,
    stock,
    music,
    time_in,
    route,
    note,
    light,
]
