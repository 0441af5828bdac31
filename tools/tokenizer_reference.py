#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares koho's tokenizer with its reference, Hugging Face tokenizers.

  tokenizer_reference.py differ --koho build/koho --model models/tiny --count 1000000
      encodes random strings and decodes random lists of ids with both, and prints the first differences
  tokenizer_reference.py golden --model models/tiny --out tests/tokenizer/data/golden.jsonl
      writes a small set of such strings and lists with the reference's results, for tests without Python packages
  tokenizer_reference.py train --out DIR --vocabulary 152000 FILE...
      trains a byte-level BPE with GLM's split pattern and added tokens on text files

Needs `tokenizers` from PyPI, and Python 3.10 or 3.11, whose Unicode 14 tables match PCRE2 10.42: the strings consist of
characters that Unicode 14 assigns.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import time
import unicodedata

import tokenizers

GLM_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
GLM_ADDED = """<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|>
<|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|> <|begin_of_audio|> <|end_of_audio|>
<|begin_of_transcription|> <|end_of_transcription|> <|code_prefix|> <|code_middle|> <|code_suffix|> <think> </think>
<tool_call> </tool_call> <tool_response> </tool_response> <arg_key> </arg_key> <arg_value> </arg_value> /nothink
<|begin_of_box|> <|end_of_box|> <|image|> <|video|>""".split()
GLM_SPECIAL = 18  # the first 18 have the special flag

BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u180e\u2000\u2003\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'vE", "'m", "'M", "'ll", "'Ll", "'LL", "'d", "'D",
                "'\u017f", "'\u212a", "'\u017fs", "\u2019s", "'", "''", "'l", "'r", "'v", "'\ufb06", "'st"]
EMOJI = ["😀", "👨\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "👍🏽", "🇭🇺", "🇫🇷🇩🇪", "1\ufe0f\u20e3", "❤\ufe0f", "❤\ufe0f\u200d🔥", "🎉",
         "👩🏿\u200d🚀", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\u200d", "\ufe0f", "🏽"]
WORDS = """the of and to in a is that it was for on as with his they be at one have this from or had by hot but some what
there we can out other were all your when up use word how said an each she which do their time if will way about many
then them would write like so these her long make thing see him two has look more day could go come did my sound no most
number who over know water than call first people may down side been now find any new work part take get place made live
where after back little only round man year came show every good me give our under name very through just form much great
think say help low line before turn cause same mean differ move right boy old too does tell sentence set three want air
well also play small end put home read hand port large spell add even land here must big high such follow act why ask men
Hungarian kohó smelting FURNACE Straße naïve Ελλάδα Москва 東京 서울 עברית العربية हिन्दी ไทย""".split()


class Generator:
    """Random texts and id lists, a function of the seed."""

    def __init__(self, seed, added):
        assert unicodedata.unidata_version == "14.0.0", "needs Unicode 14 tables: Python 3.11 or 3.10"
        self.random = random.Random(seed)
        self.added = added
        assigned = [chr(c) for c in range(0x110000)
                    if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
        self.assigned = assigned
        # 64 adjacent code points mostly belong to one script.
        self.starts = [i for i in range(0, len(assigned) - 64, 16)]
        self.by_category = {}
        for c in assigned:
            self.by_category.setdefault(unicodedata.category(c), []).append(c)
        self.categories = sorted(self.by_category)

    def part(self):
        r = self.random
        kind = r.randrange(16)
        if kind == 0:  # anything assigned
            return "".join(r.choices(self.assigned, k=r.randint(1, 8)))
        if kind == 1:  # adjacent code points: mostly one script
            start = r.choice(self.starts)
            return "".join(r.choices(self.assigned[start:start + 64], k=r.randint(1, 12)))
        if kind == 2:  # one random category per character
            return "".join(r.choice(self.by_category[r.choice(self.categories)]) for _ in range(r.randint(1, 8)))
        if kind == 3:
            return "".join(r.choices(BLANKS, k=r.randint(1, 6)))
        if kind == 4:
            return r.choice([" ", "\n", "\r\n", "  ", "\n\n", "\t", " \n", "\n ", "   "]) * r.randint(1, 4)
        if kind == 5:
            return r.choice(WORDS) + r.choice(CONTRACTIONS) + r.choice(["", " ", "x", "é"])
        if kind == 6:
            return "".join(r.choices(EMOJI, k=r.randint(1, 4)))
        if kind == 7:
            return str(r.randrange(10 ** r.randint(1, 12))) + r.choice(["", ".", ",", " ", "²", "٣", "Ⅻ"])
        if kind == 8:  # letters with combining marks
            marks = self.by_category["Mn"]
            return "".join(r.choice("aeioucnyκשक") + "".join(r.choices(marks, k=r.randint(0, 3)))
                           for _ in range(r.randint(1, 6)))
        if kind == 9:  # controls
            return "".join(r.choices([chr(c) for c in range(0x20)] + [chr(c) for c in range(0x7F, 0xA0)],
                                     k=r.randint(1, 4)))
        if kind == 10:
            return "".join(r.choices("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", k=r.randint(1, 6)))
        if kind == 11:  # a long run
            return r.choice([r.choice(self.assigned), "a", " ", "\n", "=", "0", "ab", "é", "哈"]) * r.randint(8, 120)
        if kind == 12:  # added tokens, whole and in pieces
            token = r.choice(self.added) if self.added else "<|user|>"
            cut = r.randint(0, len(token))
            return r.choice([token, token, token[:cut], token[cut:], token[:cut] + token, token.upper()])
        if kind == 13:
            return r.choice(["{\"a\": ", "});\n", "    return x;\n", "http://a.b/c?d=e", "\\n", "## ", "```py\n", "<tag>"])
        words = [r.choice(WORDS) for _ in range(r.randint(1, 6))]
        return r.choice([" ", " ", " ", "  ", "\n", "_", "-"]).join(
            [w if r.randrange(4) else r.choice([w.upper(), w.title(), w + ","]) for w in words])

    def text(self):
        return "".join(self.part() for _ in range(self.random.randint(1, 7)))

    def ids(self, size):
        r = self.random
        if r.randrange(3) == 0:  # mostly single bytes: parts of characters
            return [r.randrange(min(300, size)) for _ in range(r.randint(0, 12))]
        top = size + (40 if r.randrange(4) == 0 else 0)  # some ids are not tokens
        return [r.randrange(max(0, size - 60), top) if r.randrange(5) == 0 else r.randrange(top)
                for _ in range(r.randint(0, 12))]


class ReferenceTokenizer:
    def __init__(self, model):
        text = (pathlib.Path(model) / "tokenizer.json").read_text()
        self.special = tokenizers.Tokenizer.from_str(text)
        data = json.loads(text)
        self.added = [token["content"] for token in data["added_tokens"]]
        data["added_tokens"] = []
        self.plain = tokenizers.Tokenizer.from_str(json.dumps(data))
        self.size = self.special.get_vocab_size()

    def encode(self, texts, special):
        tokenizer = self.special if special else self.plain
        return [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, lists, skip):
        return [self.special.decode(ids, skip_special_tokens=skip) for ids in lists]


def koho(binary, model, lines, *flags):
    result = subprocess.run([binary, "tokenize", "--model", model, "--jsonl", *flags],
                            input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True, text=True,
                            encoding="utf-8", check=False)
    if result.returncode != 0:
        sys.exit(f"koho tokenize failed: {result.stderr}")
    answers = [json.loads(line) for line in result.stdout.split("\n")[:-1]]
    assert len(answers) == len(lines), (len(answers), len(lines))
    return answers


def differ(args):
    reference = ReferenceTokenizer(args.model)
    generator = Generator(args.seed, reference.added)
    started = time.monotonic()
    differences = {"encode": 0, "encode with added tokens": 0, "decode": 0, "decode, special skipped": 0}
    shown = 0
    characters = set()
    done = 0

    def compare(what, inputs, expected, found):
        nonlocal shown
        for given, want, got in zip(inputs, expected, found):
            if want != got:
                differences[what] += 1
                if shown < 20:
                    shown += 1
                    print(f"{what}: {given!r}\n  Hugging Face {want!r}\n  koho         {got!r}")

    while done < args.count:
        count = min(args.batch, args.count - done)
        texts = [generator.text() for _ in range(count)]
        lists = [generator.ids(reference.size) for _ in range(count)]
        # Half of the lists: real encodings, rotated, so that characters are cut.
        for i, ids in enumerate(reference.encode(texts[:count // 2], False)):
            cut = generator.random.randint(0, len(ids))
            lists[i] = ids[cut:] + ids[:cut]
        for text in texts:
            characters.update(text)
        compare("encode", texts, reference.encode(texts, False), koho(args.koho, args.model, texts))
        compare("encode with added tokens", texts, reference.encode(texts, True),
                koho(args.koho, args.model, texts, "--allow-special"))
        compare("decode", lists, reference.decode(lists, False), koho(args.koho, args.model, lists, "--decode"))
        compare("decode, special skipped", lists, reference.decode(lists, True),
                koho(args.koho, args.model, lists, "--decode", "--skip-special"))
        done += count
        print(f"{done} strings and id lists, {differences}, {time.monotonic() - started:.0f} s", flush=True)
    if args.exhaustive:
        texts = [before + c + after for c in generator.assigned for before, after in (("a", "b"), (" ", "1"), ("!", " "))]
        characters.update(generator.assigned)
        compare("encode", texts, reference.encode(texts, False), koho(args.koho, args.model, texts))
        print(f"every assigned character in 3 contexts: {len(texts)} strings")
    print(f"tokenizers {tokenizers.__version__}, seed {args.seed}: {done} strings over {len(characters)} of "
          f"{len(generator.assigned)} assigned characters; differences: {differences}")
    return 1 if any(differences.values()) else 0


def golden(args):
    reference = ReferenceTokenizer(args.model)
    generator = Generator(args.seed, reference.added)
    texts = [""] + [generator.text() for _ in range(args.count - 1)]
    lists = [generator.ids(reference.size) for _ in range(args.count)]
    with open(args.out, "w", encoding="utf-8") as out:
        for text, plain, special in zip(texts, reference.encode(texts, False), reference.encode(texts, True)):
            line = {"text": text, "ids": plain}
            if special != plain:
                line["ids_with_special"] = special
            out.write(json.dumps(line, separators=(",", ":")) + "\n")
        for ids, text, skipped in zip(lists, reference.decode(lists, False), reference.decode(lists, True)):
            line = {"decode": ids, "text": text}
            if skipped != text:
                line["text_without_special"] = skipped
            out.write(json.dumps(line, separators=(",", ":")) + "\n")
    return 0


def train(args):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(GLM_PATTERN), "isolated")
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=args.vocabulary, min_frequency=1, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train(args.files, trainer)
    for i, content in enumerate(GLM_ADDED):
        token = tokenizers.AddedToken(content, special=i < GLM_SPECIAL, normalized=False)
        tokenizer.add_special_tokens([token]) if i < GLM_SPECIAL else tokenizer.add_tokens([token])
    pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(pathlib.Path(args.out) / "tokenizer.json"))
    print(f"{tokenizer.get_vocab_size()} tokens")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("differ")
    one.add_argument("--koho", default="build/koho")
    one.add_argument("--model", default="models/tiny")
    one.add_argument("--count", type=int, default=1_000_000)
    one.add_argument("--batch", type=int, default=50_000)
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--exhaustive", action="store_true", help="also encode every assigned character")
    one.set_defaults(run=differ)
    one = commands.add_parser("golden")
    one.add_argument("--model", default="models/tiny")
    one.add_argument("--out", required=True)
    one.add_argument("--count", type=int, default=400)
    one.add_argument("--seed", type=int, default=47)
    one.set_defaults(run=golden)
    one = commands.add_parser("train")
    one.add_argument("--out", required=True)
    one.add_argument("--vocabulary", type=int, default=4000)
    one.add_argument("files", nargs="+")
    one.set_defaults(run=train)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
