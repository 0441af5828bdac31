# SPDX-License-Identifier: Apache-2.0
"""The words of our own that the field has a standard term for: one table, read by check_sources.py and by people.

A reader who comes from CUTLASS, FlashAttention or vLLM must find things by grep; CONTRIBUTING.md says so and this table
holds it. Names are read as the words they are made of: `SeatTables`, `seat_count` and "a seat" all hold "seat".
"""

import dataclasses
import fnmatch
import re

# Where a name's words meet: snake_case, camelCase, ACRONYMThenWord, and a digit after a letter.
WORD_BOUNDARY = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")

EVERYWHERE = ("*",)
CUDA = ("src/cuda/*", "tests/cuda/*", "docs/kernels/*", "bench/*", "docs/performance.md", "README.md")
GEMM = ("src/cuda/gemm/*", "src/cuda/moe/*", "docs/kernels/gemm.md", "docs/kernels/experts.md")
ATTENTION = ("src/cuda/attention/*", "docs/kernels/attention.md")


@dataclasses.dataclass(frozen=True)
class Word:
    not_this: str  # a regular expression over lower-case words with single spaces between
    but: str  # the field's term
    where: tuple = EVERYWHERE  # globs of files; ordinary English words are refused only where they stood for a term
    allowed: str = ""  # phrases with the word in another, ordinary or standard, sense

    def found(self, words):
        """The word as it stands in a line split by words_of(), or None."""
        if self.allowed:
            words = re.sub(rf"\b(?:{self.allowed})\b", " ", words)
        match = re.search(rf"\b(?:{self.not_this})\b", words)
        return match[0] if match else None


TABLE = (
    # GEMMs
    Word("turned", "swap-AB GEMM", allowed="turned (on|off|into|away|out|to)"),
    Word("parts", "split-K", GEMM),
    Word("num slices|slices? of k|parts? of k", "split-K", CUDA),
    Word("matmul end", "epilogue"),
    Word("matrices", "GEMM", CUDA, allowed="weight matrices|core matrices|8x8 matrices"),
    Word("products?", "GEMM, or MMA", CUDA, allowed="(dot|inner|outer) products?"),
    Word("copy engines?", "TMA"),
    Word("box(es)?", "TMA box", CUDA, allowed="tma box(es)?|box dim|box rows|box columns|box bytes"),
    Word("plans? of (the )?experts|experts? plans?|sorted pairs?", "permutation, expert offsets; token-expert pairs"),
    # Attention
    Word("units?|spans?|items?", "split-KV chunks, work tiles", ATTENTION),
    Word("(units?|groups?|spans?|items?) of (a|the|its|each) contexts?|contexts? (units?|groups?|spans?|items?)",
         "split-KV chunks, work tiles"),
    Word("merge[sd]?|merging", "combine", CUDA, allowed="byte pair merges"),
    # Steps and batches
    Word("seats?|seated", "batch slot (the cache's place of a token stays slot mapping)"),
    Word("take from seats", "gather_input_ids"),
    Word("keep sampled", "commit_sampled"),
    Word("codes", "quantised (FP8) values",
         allowed="(exit|error|status|http|return|escape|character|key|language|signal|result|machine) codes"),
    Word("branch", "block_output", allowed="(divergent|taken|git|main|warp uniform|predicated) branch|branch (predictors?|of git)"),
    Word("(activations|a) heads|heads (values|quantized)|tensor (view )?heads", "attention_output"),
    Word("joins|join (sum|ranks?|rows?|add|norm|logits)", "collectives"),
    Word("marks?", "event", allowed="(quotation|question|order|exclamation|combining) marks?|marks the"),
    Word("recordings?|record(s|ed|ing)? (a |the |this )?graphs?", "CUDA graph capture"),
    Word("replays cheaply", "supports_graphs"),
    Word("token gates?", "logits processor, token mask"),
    Word("gates|(test|error) gate|gate of (the )?tests?", "tolerances", allowed="gates and ups?|logic gates"),
    Word("weights? (is|are|was|were|be) drawn", "synthetic weights"),
    Word("drawn", "synthetic weights (a draw is a sampled token)",
         allowed="(is|are|was|were|be|been|then|as) drawn|drawn (tokens?|answers?|ids?|by|from|with|uniformly)|un drawn"),
    Word("lanes?", "in-flight step buffer; loader thread; a warp's or a SIMD register's lanes keep the word",
         ("src/engine/*", "src/worker/*", "src/runtime/*", "src/plan/*", "src/checkpoint/*", "src/base/*", "src/model/*",
          "src/ops/*", "src/server/*", "src/api/*", "src/app/*", "src/scheduler/*", "src/cuda/load/*", "tests/*", "docs/*", "tools/*"),
         allowed="(warp|simd|vector|warps|registers) lanes?|lanes? of a (producer )?(warp|vector|register)|a lane in a warp"),
    Word("adopt(s|ed|ing|ions?)?", "page deduplication"),
    Word("twins?", "reference"),
    Word("neighbours?|neighbors?", "batch invariance; other requests of the batch"),
    # Grammars and answers
    Word("easings?|eased|eases? (the |a )?(schema|members)", "relaxation"),
    Word("borders?", "adapter"),
    Word("either (grammar|matcher|constraint|either|of (the )?grammars)|(constraint|kind|struct|class|an) either", "union"),
    Word("thoughts?", "reasoning"),
    # Weights, prefetch
    Word("unlike", "different; experts of mixed formats"),
    Word("ahead|brings ahead", "prefetch", allowed="look ahead|ahead of time|go ahead"),
    Word("soon", "prefetch", allowed="as soon as|too soon|soon as"),
    # Kernels
    Word("widen(s|ed|ing)?", "upcast", CUDA + ("src/cpu/*",)),
    Word("units?", "k_tile, the K of one pipeline stage", ("src/cuda/gemm/*",)),
    Word("parts?", "split (of K), shard (of the vocabulary)", ("src/cuda/sampling/*", "src/cuda/moe/route*"),
         allowed="(the|other|first|second|largest|fractional|integer) parts? of (a|the|it)"),
    Word("kernel before", "previous kernel", CUDA),
    Word("copying (warps?|lanes?)|multiplying warps?", "producer warp, consumer (MMA) warp", CUDA),
    Word("sorted rows?", "permuted row", CUDA),
    Word("under way", "in flight", CUDA),
    Word("tempered", "after temperature", ("src/*", "docs/*")),
    Word("stands? twice", "appears twice; duplicate"),
    Word("pace", "rate", ("src/*", "docs/*")),
    Word("engine is lost", "engine has failed"),
    # Tests and tools
    Word("crowds?|crowded", "load"),
    Word("life", "lifecycle", allowed="life of a token|real life"),
    Word("wanting", "missing"),
    Word("marks to hit", "targets"),
)

# (glob of files, the word, why it may stand there)
EXCEPTIONS = (
    ("models/tiny_generator/*", "*", "texts that the embedded model is trained on"),
    ("tools/golden/prompts.py", "unlike", "the golden outputs' own name"),
    ("src/runtime/fingerprint.cpp", "drawn", "a literal that is hashed into fingerprints"),
    ("*CMakeLists.txt", "marks?", "CMake's mark_as_advanced"),
    ("tools/tokenizer_reference.py", "marks?", "Unicode's combining marks"),
    ("tools/differential_fuzz.py", "marks?", "Unicode's combining marks"),
    ("src/grammar/pattern_rewrite.cpp", "marks?", "Unicode's general category"),
    ("src/app/line_editor_libedit.cpp", "marks?", "what a terminal sends around pasted text"),
    ("tests/run/terminal_chat_test.cpp", "marks?", "what a terminal sends around pasted text"),
    ("tests/server/browser.py", "codes", "codes of keys"),
    ("tools/vocabulary.py", "*", "the table itself"),
    ("tests/check_sources_test.py", "*", "tries the table"),
    ("models/tiny/*", "*", "texts that the embedded model was trained on"),
    ("*.css", "borders?", "CSS"),
    ("bench/grammar_bench.cpp", "merge[sd]?|merging", "merges of byte-pair encoding"),
)


def words_of(line):
    """A line as lower-case words with single spaces between: `SeatTables seat_pages;` -> "seat tables seat pages"."""
    return " ".join(re.sub(r"[^\w\s/]", " ", WORD_BOUNDARY.sub(" ", line)).lower().split())


def table_for(name):
    """The words refused in the file `name`, a path from the repository's root."""
    excepted = {word for glob, word, _ in EXCEPTIONS if fnmatch.fnmatch(name, glob)}
    if "*" in excepted:
        return []
    return [word for word in TABLE if word.not_this not in excepted and any(fnmatch.fnmatch(name, glob) for glob in word.where)]


def refused_across(words, line, following):
    """The same for phrases that begin in one line of a text and end in the next."""
    alone = {found for text in (line, following) for found, _ in refused(words, text)}
    return [(found, but) for found, but in refused(words, f"{line.rstrip()} {following.lstrip(' /#*')}") if found not in alone]


def refused(words, line):
    """(what stands in the line, what to say instead) for each word of `words` that the line holds."""
    split = words_of(line)
    return [(found, word.but) for word in words if (found := word.found(split)) is not None]
