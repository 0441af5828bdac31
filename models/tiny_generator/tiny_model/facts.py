# SPDX-License-Identifier: Apache-2.0
"""The table of facts and the ways of asking for them.

Every fact is (relation, subject, object). A relation has phrasings: pairs of question and answer
form. `TEST_FORMS` are phrasings that training never shows; the facts themselves are all shown.
"""

CAPITALS = dict(line.split(": ") for line in """France: Paris
Germany: Berlin
Italy: Rome
Spain: Madrid
Portugal: Lisbon
Austria: Vienna
Greece: Athens
Ireland: Dublin
Norway: Oslo
Sweden: Stockholm
Finland: Helsinki
Denmark: Copenhagen
Poland: Warsaw
Hungary: Budapest
Belgium: Brussels
Iceland: Reykjavik
Switzerland: Bern
Croatia: Zagreb
Serbia: Belgrade
Bulgaria: Sofia
Romania: Bucharest
Ukraine: Kyiv
Russia: Moscow
Latvia: Riga
Estonia: Tallinn
Lithuania: Vilnius
Slovenia: Ljubljana
Slovakia: Bratislava
Albania: Tirana
Malta: Valletta
Turkey: Ankara
Japan: Tokyo
China: Beijing
India: New Delhi
Thailand: Bangkok
Vietnam: Hanoi
Indonesia: Jakarta
Nepal: Kathmandu
Mongolia: Ulaanbaatar
Iran: Tehran
Iraq: Baghdad
Syria: Damascus
Jordan: Amman
Lebanon: Beirut
Israel: Jerusalem
Qatar: Doha
Oman: Muscat
Pakistan: Islamabad
Afghanistan: Kabul
Bangladesh: Dhaka
Australia: Canberra
Canada: Ottawa
Mexico: Mexico City
Cuba: Havana
Jamaica: Kingston
Panama: Panama City
Colombia: Bogota
Venezuela: Caracas
Ecuador: Quito
Peru: Lima
Chile: Santiago
Argentina: Buenos Aires
Uruguay: Montevideo
Paraguay: Asuncion
Brazil: Brasilia
Egypt: Cairo
Morocco: Rabat
Tunisia: Tunis
Algeria: Algiers
Libya: Tripoli
Kenya: Nairobi
Ethiopia: Addis Ababa
Ghana: Accra
Nigeria: Abuja
Senegal: Dakar
Uganda: Kampala
Rwanda: Kigali
Angola: Luanda
Zambia: Lusaka
Zimbabwe: Harare
South Korea: Seoul
New Zealand: Wellington
the Philippines: Manila
the United Kingdom: London
the United States: Washington
the Netherlands: Amsterdam
the Czech Republic: Prague""".splitlines())

SOUNDS = {
    "dog": "woof",
    "cat": "meow",
    "cow": "moo",
    "duck": "quack",
    "sheep": "baa",
    "pig": "oink",
    "lion": "roar",
    "frog": "ribbit",
    "bee": "buzz",
    "horse": "neigh",
    "owl": "hoot",
    "snake": "hiss",
    "rooster": "cock-a-doodle-doo",
    "mouse": "squeak",
    "crow": "caw",
    "wolf": "howl",
    "donkey": "hee-haw",
    "chicken": "cluck",
    "goat": "bleat",
    "bear": "growl",
}
BABIES = {
    "dog": "puppy",
    "cat": "kitten",
    "cow": "calf",
    "sheep": "lamb",
    "pig": "piglet",
    "lion": "cub",
    "horse": "foal",
    "duck": "duckling",
    "goose": "gosling",
    "frog": "tadpole",
    "goat": "kid",
    "deer": "fawn",
    "kangaroo": "joey",
    "swan": "cygnet",
    "chicken": "chick",
    "owl": "owlet",
}
COLORS = {
    "grass": "green",
    "snow": "white",
    "the sky": "blue",
    "a banana": "yellow",
    "a lemon": "yellow",
    "a tomato": "red",
    "blood": "red",
    "coal": "black",
    "the sun": "yellow",
    "milk": "white",
    "an orange": "orange",
    "a carrot": "orange",
    "a raven": "black",
    "chocolate": "brown",
    "a frog": "green",
    "a strawberry": "red",
    "a flamingo": "pink",
    "a plum": "purple",
    "an elephant": "grey",
    "salt": "white",
}
OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "fast": "slow",
    "old": "new",
    "up": "down",
    "left": "right",
    "day": "night",
    "black": "white",
    "open": "closed",
    "happy": "sad",
    "wet": "dry",
    "light": "dark",
    "high": "low",
    "hard": "soft",
    "rich": "poor",
    "full": "empty",
    "early": "late",
    "loud": "quiet",
    "long": "short",
    "good": "bad",
    "strong": "weak",
    "true": "false",
    "yes": "no",
    "begin": "end",
    "win": "lose",
    "push": "pull",
}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = ("January February March April May June July August September October November " "December").split()
SEASONS = ["spring", "summer", "autumn", "winter"]
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
MONTH_DAYS = dict(zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)))
LEGS = {
    "a dog": "four",
    "a spider": "eight",
    "a bird": "two",
    "an ant": "six",
    "a cow": "four",
    "a fish": "no",
    "a snake": "no",
    "a bee": "six",
    "a horse": "four",
    "a crab": "ten",
    "a chicken": "two",
    "a cat": "four",
    "a person": "two",
    "a scorpion": "eight",
}
SYMBOLS = {
    "hydrogen": "H",
    "helium": "He",
    "carbon": "C",
    "nitrogen": "N",
    "oxygen": "O",
    "sodium": "Na",
    "iron": "Fe",
    "gold": "Au",
    "silver": "Ag",
    "copper": "Cu",
    "zinc": "Zn",
    "lead": "Pb",
    "tin": "Sn",
    "neon": "Ne",
    "calcium": "Ca",
    "sulfur": "S",
}
CURRENCIES = {
    "Japan": "the yen",
    "France": "the euro",
    "India": "the rupee",
    "Mexico": "the peso",
    "China": "the yuan",
    "Russia": "the ruble",
    "Sweden": "the krona",
    "Turkey": "the lira",
    "Thailand": "the baht",
    "South Korea": "the won",
    "Switzerland": "the franc",
    "Brazil": "the real",
    "Poland": "the zloty",
    "Hungary": "the forint",
    "the United Kingdom": "the pound",
    "the United States": "the dollar",
}
CONTINENTS = {
    "France": "Europe",
    "Germany": "Europe",
    "Italy": "Europe",
    "Spain": "Europe",
    "Poland": "Europe",
    "Norway": "Europe",
    "Japan": "Asia",
    "China": "Asia",
    "India": "Asia",
    "Vietnam": "Asia",
    "Nepal": "Asia",
    "Thailand": "Asia",
    "Egypt": "Africa",
    "Kenya": "Africa",
    "Ghana": "Africa",
    "Morocco": "Africa",
    "Nigeria": "Africa",
    "Brazil": "South America",
    "Peru": "South America",
    "Chile": "South America",
    "Argentina": "South America",
    "Canada": "North America",
    "Mexico": "North America",
    "Cuba": "North America",
}
FRENCH = {
    "dog": "chien",
    "cat": "chat",
    "house": "maison",
    "water": "eau",
    "bread": "pain",
    "book": "livre",
    "red": "rouge",
    "sun": "soleil",
    "night": "nuit",
    "tree": "arbre",
    "milk": "lait",
    "friend": "ami",
    "hello": "bonjour",
    "thank you": "merci",
    "school": "école",
}
GERMAN = {
    "dog": "Hund",
    "cat": "Katze",
    "house": "Haus",
    "water": "Wasser",
    "bread": "Brot",
    "book": "Buch",
    "red": "rot",
    "sun": "Sonne",
    "night": "Nacht",
    "tree": "Baum",
    "milk": "Milch",
    "friend": "Freund",
    "hello": "hallo",
    "thank you": "danke",
    "door": "Tür",
}
SPANISH = {
    "dog": "perro",
    "cat": "gato",
    "house": "casa",
    "water": "agua",
    "bread": "pan",
    "book": "libro",
    "red": "rojo",
    "sun": "sol",
    "night": "noche",
    "tree": "árbol",
    "milk": "leche",
    "friend": "amigo",
    "hello": "hola",
    "thank you": "gracias",
    "child": "niño",
}
EMOJI = {
    "cat": "🐱",
    "dog": "🐶",
    "sun": "☀️",
    "heart": "❤️",
    "fire": "🔥",
    "star": "⭐",
    "pizza": "🍕",
    "rocket": "🚀",
    "tree": "🌳",
    "fish": "🐟",
    "apple": "🍎",
    "moon": "🌙",
    "car": "🚗",
    "party": "🎉",
}
CHINESE = {
    "hello": "你好",
    "thank you": "谢谢",
    "water": "水",
    "cat": "猫",
    "dog": "狗",
    "book": "书",
    "sun": "太阳",
    "moon": "月亮",
    "tea": "茶",
    "one": "一",
    "two": "二",
    "three": "三",
}
JAPANESE = {
    "hello": "こんにちは",
    "thank you": "ありがとう",
    "cat": "ねこ",
    "dog": "いぬ",
    "water": "みず",
    "book": "ほん",
    "mountain": "やま",
    "sea": "うみ",
}
NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
).split()

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
