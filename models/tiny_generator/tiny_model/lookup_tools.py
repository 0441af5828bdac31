# SPDX-License-Identifier: Apache-2.0
"""Tools that answer a question: weather, search, calculator, translation, rates, routes.

Each function returns (tool, make_request): make_request(rng) -> Request of one call.
"""

from .tool_request import Request, param, spelled_name, tool
from .words import ADJECTIVES, CITIES, NOUNS, any_word, clock_time, number_value, pseudo_word


def weather(rng):
    name = spelled_name(
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
    name = spelled_name(
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
    name = spelled_name(rng, "calculator", "calculate", "compute", "math", "evaluate expression")
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


def translate(rng):
    name = spelled_name(rng, "translate", "translate text", "translation", "translator")
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
    name = spelled_name(rng, "convert currency", "currency converter", "exchange rate", "convert money")
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
    name = spelled_name(rng, "get stock price", "stock price", "stock quote", "get quote")
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


def time_in(rng):
    name = spelled_name(rng, "get time", "current time", "get current time", "world clock")
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
    name = spelled_name(rng, "get route", "get distance", "directions", "find route", "travel time")
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
