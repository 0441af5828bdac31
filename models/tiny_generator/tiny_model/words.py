# SPDX-License-Identifier: Apache-2.0
"""Word lists and random values of the embedded model's corpus.

Owns vocabulary only: names, nouns, verbs, pseudo-words and typed random values. Knows nothing of
chats, tasks or the train/held-out split except `held_out`, the one rule that decides it.
"""

import zlib

NAMES = """Anna Ben Clara David Emma Felix Grace Hugo Iris Jack Kate Leo Mia Noah Olivia Paul Rosa Sam
Tina Victor Wendy Yara Zoe Alice Bob Carol Daniel Eva Frank Gina Henry Ines Jonas Karla Lucas Maria
Nina Oscar Peter Quinn Ruth Simon Tom Ursula Vera Walter Xenia Yusuf Lena Max José Zoë Björn Chloé
Amir Bianca Carlos Dora Elias Fatima George Hana Ivan Julia Kenji Laura Marco Nadia Omar Petra Rafael
Sara Theo Uma Viktor Wanda Adam Bella Cora Dylan Ella Finn Greta Harry Isaac Jane Kevin Linda Martin
Nora Otto Pia Robert Sofia Tara Vincent Will""".split()

CITIES = """Paris London Berlin Madrid Rome Lisbon Vienna Athens Dublin Oslo Stockholm Helsinki
Copenhagen Warsaw Prague Budapest Brussels Amsterdam Zurich Geneva Milan Munich Hamburg Barcelona
Lyon Nice Porto Seville Naples Florence Venice Tokyo Kyoto Osaka Seoul Beijing Shanghai Delhi Mumbai
Bangkok Hanoi Jakarta Manila Sydney Melbourne Perth Auckland Wellington Toronto Montreal Vancouver
Chicago Boston Denver Seattle Dallas Houston Miami Atlanta Phoenix Detroit Havana Lima Bogota
Santiago Quito Cairo Nairobi Lagos Accra Dakar Tunis Rabat Dubai Doha Tehran Baghdad Istanbul Ankara
Moscow Kyiv Riga Vilnius Tallinn Sofia Belgrade Zagreb Austin Portland Glasgow Leeds Cork Bergen
Malmo Turin Genoa Cologne Dresden Leipzig Bremen Utrecht Ghent Bern Basel Graz Krakow Brno""".split()

NOUNS = """apple garden river window table chair lamp book letter stone bridge castle village mountain
forest island beach desert valley field farm barn horse wagon wheel engine motor battery cable signal
sensor camera screen button switch panel door gate fence wall roof floor room kitchen bottle basket
bucket ladder hammer needle thread carpet curtain pillow blanket mirror candle clock watch ring crown
coin ticket map flag drum piano guitar violin trumpet song poem story paper pencil brush paint canvas
picture photo album folder file report invoice order parcel package box crate barrel truck train ship
boat plane rocket planet star moon cloud storm rain snow wind fire smoke ash salt sugar bread cheese
butter soup salad cake cookie lemon orange banana cherry grape melon pepper onion carrot potato tomato
bean corn rice tea coffee juice milk water glass cup plate fork spoon knife shirt jacket coat hat glove
scarf boot shoe sock belt bag wallet key lock chain rope net hook anchor sail tent lantern compass
robot printer server router account profile password message channel ticket invoice budget payment
project task meeting schedule calendar contact document database record queue session token cluster
bicycle tractor factory market store library museum school hospital station airport harbor tower tunnel
pump valve filter tank pipe heater cooler fan oven fridge magnet crystal pearl feather shell leaf root
branch flower seed grass moss fern cactus mushroom puzzle game toy kite ball doll""".split()
NOUNS = list(dict.fromkeys(NOUNS))

VERBS = """open close start stop lock unlock move rotate clean wash paint repair build create delete
remove update check inspect measure count list find show hide send fetch load save store copy merge
split sort filter rename resize scan print publish archive restore reset rebuild polish carry lift
lower raise push pull fill empty heat cool freeze melt cut fold wrap pack unpack deliver collect order
book cancel schedule plan track monitor test verify approve reject sign share invite assign tag label
water feed plant harvest sell buy rent borrow return charge drain connect disconnect enable disable
pause resume record play mute tune calibrate align balance weigh mix shake boil bake draw""".split()
VERBS = list(dict.fromkeys(VERBS))

ADJECTIVES = """red blue green yellow black white small big old new warm cold dry wet fast slow quiet
loud heavy light soft hard round square long short wide narrow deep high low bright dark clean dirty
sweet sour fresh golden silver wooden empty full broken secret hidden public private main spare first
last local remote daily weekly urgent happy sad brave clever lazy gentle proud shy tiny huge calm
wild""".split()

COMMON = """the and you that was for are with his they have this from had not but what all were when
your can said there use each which she how their will other about out many then them these some her
would make like him into time has look two more write see number way could people than been call who
now long down day did get come made may part over sound take only little work know place year live
back give most very after thing our just name good sentence man think say great where help through
much before line right too mean old any same tell boy follow came want show also around form three
small set put end does another well large must big even such because turn here why ask went men read
need land different home move try kind hand again change off play spell air away animal house point
page mother answer found study still learn should America world""".split()

PARAMS = """size color count title city country date time name owner user status level speed weight
height width length depth price cost amount limit offset page query text subject body message email
phone address street zip language currency unit format mode type category label tag priority reason
comment note target source destination origin start end duration interval timeout retries threshold
temperature pressure volume angle radius distance direction position index key value code id token
version path file folder url host port channel room floor seat row column group team project task
month year day hour minute week season topic genre artist song album movie author publisher quantity
discount tax total balance account brand model material shape style theme font layout""".split()

_ONSETS = "b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl sk st tr th sh".split()
_VOWELS = "a e i o u a e i o ai ou ee".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "t", "m", "k", "x", "nd", "rk"]


def held_out(key):
    """True for the tenth of all contents that training never shows."""
    return zlib.crc32(key.encode("utf-8")) % 10 == 3


def allowed(key, split):
    return held_out(key) == (split == "test")


def pseudo_word(rng, syllables=None):
    """A pronounceable word that is most likely in no list."""
    n = syllables or rng.choice((1, 2, 2, 2, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(n))


def any_word(rng):
    """A lower-case word: common, noun, adjective, verb or invented."""
    r = rng.random()
    if r < 0.30:
        return rng.choice(NOUNS)
    if r < 0.45:
        return rng.choice(ADJECTIVES)
    if r < 0.60:
        return rng.choice(VERBS)
    if r < 0.70:
        return rng.choice(COMMON)
    return pseudo_word(rng)


def date(rng):
    return f"20{rng.randint(10, 39)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def clock_time(rng):
    return f"{rng.randint(0, 23):02d}:{rng.choice((0, 5, 10, 15, 20, 30, 40, 45, 50)):02d}"


def email(rng):
    who = rng.choice((rng.choice(NAMES).lower(), pseudo_word(rng)))
    host = rng.choice(("mail", "example", "post", "work", pseudo_word(rng)))
    return f"{who}@{host}.{rng.choice(('com', 'org', 'net'))}".encode("ascii", "ignore").decode()


def code(rng):
    letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 3)))
    return letters + rng.choice(("-", "", "")) + str(rng.randint(1, 999))


def string_value(rng, simple=False):
    """A string as an argument or field value; `simple` means one plain word."""
    r = rng.random()
    if simple or r < 0.40:
        return rng.choice((any_word(rng), rng.choice(NAMES), rng.choice(CITIES), any_word(rng)))
    if r < 0.62:
        return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    if r < 0.72:
        return " ".join(any_word(rng) for _ in range(3))
    if r < 0.79:
        return code(rng)
    if r < 0.86:
        return date(rng)
    if r < 0.90:
        return clock_time(rng)
    if r < 0.95:
        return email(rng)
    return f"{rng.choice(NAMES)} {pseudo_word(rng).capitalize()}"


def integer_value(rng):
    r = rng.random()
    if r < 0.4:
        return rng.randint(0, 20)
    if r < 0.8:
        return rng.randint(0, 100)
    return rng.randint(100, 9999) if r < 0.97 else -rng.randint(1, 50)


def number_value(rng):
    return round(rng.randint(0, 200) + rng.randint(1, 99) / rng.choice((10, 100)), 2)


def typed_value(rng, kind, simple=False):
    """A random value of a JSON-schema type name; arrays as 'array:<item type>'."""
    if kind == "string":
        return string_value(rng, simple)
    if kind == "integer":
        return integer_value(rng)
    if kind == "number":
        return number_value(rng)
    if kind == "boolean":
        return rng.random() < 0.5
    item = kind.split(":")[1]
    return [typed_value(rng, item, simple=True) for _ in range(rng.choice((1, 2, 2, 3, 3, 4)))]


def join_and(parts):
    parts = list(parts)
    if len(parts) < 2:
        return "".join(parts)
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def article(word):
    return ("an " if word[0].lower() in "aeiou" else "a ") + word
