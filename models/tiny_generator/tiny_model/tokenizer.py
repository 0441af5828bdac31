# SPDX-License-Identifier: Apache-2.0
"""Trains the byte-level BPE of the embedded model and writes it in GLM's tokenizer.json form.

Base vocabulary: 256 bytes and the merges; then GLM's 36 added tokens with their names, order and
flags. Digits never merge (each is one token), which makes small arithmetic learnable; the exported
file carries GLM's own split pattern, under which the same merges apply.
"""

import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from . import chat

BASE_TOKENS = 4000
PADDED_VOCAB = 4096
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = (
    "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> "
    "<|observation|> <|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|> "
    "<|begin_of_audio|> <|end_of_audio|> <|begin_of_transcription|> <|end_of_transcription|>"
).split()
NOT_SPECIAL = (
    "<|code_prefix|> <|code_middle|> <|code_suffix|> <think> </think> <tool_call> </tool_call> "
    "<tool_response> </tool_response> <arg_key> </arg_key> <arg_value> </arg_value> /nothink "
    "<|begin_of_box|> <|end_of_box|> <|image|> <|video|>"
).split()
VARIETY = """The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs! How vexingly
quick daft zebras jump; sphinx of black quartz, judge my vow. def main(args): return print("hello") # comment
int main(void) { for (int i = 0; i < n; ++i) { sum += a[i]; } return 0; } SELECT name FROM users WHERE id = 1;
<html><body class="page">text</body></html> https://example.com/index.html?q=1&r=2 {"error": null, "ok": true}
Größe, Straße, über, schön, Mädchen. Où est la bibliothèque ? C'est très bien, garçon. ¿Dónde está el niño? Mañana.
Привет, мир! Как дела? Это хорошо. Γειά σου κόσμε. 你好，世界！我是一个小模型。谢谢。 こんにちは、世界。ありがとう。 안녕하세요 세계.
שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดี Xin chào Dobrý den Cześć 😀🎉🚀❤️👍🏽👨‍👩‍👧 ∀x∈ℝ: x²≥0 → √x ≤ ∞ € £ ¥ © ™ … – — “quoted” ‘single’
I'm you're he'll she'd we've they're isn't doesn't won't can't it's that's there's what's let's who's"""


def train(documents, seed=0):
    """A GLM-shaped Tokenizer trained on the generator's documents."""
    rng = random.Random(seed)
    tags = SPECIAL + NOT_SPECIAL

    def texts():
        for _ in range(documents):
            text = chat.document(rng, "train")
            for tag in tags:
                if tag in text:
                    text = text.replace(tag, "\n")
            yield text
        for _ in range(max(1, documents // 400)):
            yield VARIETY

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    learner.train_from_iterator(
        texts(),
        trainers.BpeTrainer(
            vocab_size=BASE_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
            max_token_length=24,
        ),
    )
    learned = json.loads(learner.to_str())["model"]
    assert len(learned["vocab"]) == BASE_TOKENS, len(learned["vocab"])
    return glm_form(learned["vocab"], [tuple(m) for m in learned["merges"]])


def glm_form(vocab, merges):
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in NOT_SPECIAL])
    return tokenizer


def tokenizer_config():
    """tokenizer_config.json of the kind that stands beside GLM's tokenizer.json."""
    added = {
        str(BASE_TOKENS + i): {
            "content": t,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": t in SPECIAL,
        }
        for i, t in enumerate(SPECIAL + NOT_SPECIAL)
    }
    return {
        "added_tokens_decoder": added,
        "additional_special_tokens": SPECIAL,
        "clean_up_tokenization_spaces": False,
        "do_lower_case": False,
        "eos_token": "<|endoftext|>",
        "extra_special_tokens": {},
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "padding_side": "left",
        "remove_space": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
