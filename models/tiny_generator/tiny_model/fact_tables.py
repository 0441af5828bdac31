# SPDX-License-Identifier: Apache-2.0
"""What the embedded model is taught as facts: tables of subject and object, and lists in order.

How the facts are asked for is facts' business.
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
