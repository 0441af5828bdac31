# SPDX-License-Identifier: Apache-2.0
"""Lengths of files and functions, and a ratchet that lets neither grow: at most FILE_LINES and FUNCTION_LINES, but for what
LONGER names with its length and a reason; an entry that is no longer needed is itself a breach."""

import ast
import re

FILE_LINES = 500
FUNCTION_LINES = 80
CPP_SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".c"}

# path, or path:function -> (lines it may have, why it is longer)
LONGER = {
    "src/cuda/attention/attention_decode_consumer.cuh:consume":
        (95, "a kernel's role: cutting further changes its machine code (tried piece by piece)"),
    "src/cuda/attention/attention_prefill.cu:attention_prefill_kernel":
        (103, "a kernel's role: cutting further changes its machine code (tried piece by piece)"),
    "src/cuda/attention/attention_wgmma_consumer.cuh:consume":
        (142, "a kernel's role: cutting further changes its machine code (tried piece by piece)"),
    "src/cuda/attention/attention_wgmma_producer.cuh:produce":
        (93, "a kernel's role: cutting further changes its machine code (tried piece by piece)"),
    "src/cuda/attention/rope_kv.cu:rope_kv_glm_kernel":
        (105, "a kernel's role: cutting further changes its machine code (tried piece by piece)"),
    "src/cuda/sampling/sample_gumbel_max.cu:scan":
        (87, "a kernel's role: cutting further changes its machine code (tried piece by piece)"),
    "src/cuda/sampling/sample_threshold_candidates.cuh:sample_candidates":
        (87, "a kernel's role: cutting further changes its machine code (tried piece by piece)"),
    "src/cuda/sampling/sample_threshold_histogram.cuh:add_tokens":
        (116, "a kernel's role: cutting further changes its machine code (tried piece by piece)"),
    "src/cuda/gemm/gemm_decode_swap_ab_sm90.cu:gemm_decode_swap_ab_kernel": (
        312, "as functions by role (mainloop, exchange of sums, epilogue) the kernel compiles to other machine code"),
    "src/cuda/gemm/gemm_decode_unswapped_sm90.cu:gemm_decode_unswapped_kernel": (
        365, "as functions by role (mainloop, epilogue) it compiles to other machine code, with waits that serialise wgmma"),
    "src/cuda/gemm/gemm_decode_unswapped_sm90_blocks.cuh:multiply_blocks": (
        96, "one loop whose lambdas share the accumulators, as in the kernel that calls it"),
    "src/cuda/gemm/gemm_prefill_sm90_mainloop.cuh:mma_warpgroups": (
        185, "one loop whose lambdas share the accumulators; functions by role gave both decode kernels other machine code"),
}

NO_FUNCTION = re.compile(r"^\s*(?:(?:inline )?namespace|extern \"C\"|enum|(?:template <.*> )?(?:class|struct|union)\b[^()]*\{)")
OPENS = re.compile(r"^( *)(\S.*)?\{$")
TEST = re.compile(r"\b(TEST(?:_F|_P)?)\((\w+), (\w+)\)")
NAME = re.compile(r"(?!__launch_bounds__|alignas|decltype|requires|__attribute__)(?<![\w:~])([~\w:]+)\(")


def cpp_functions(lines):
    """(name, first line, lines) of each function of a file as clang-format leaves it: its closing brace stands in the column
    of its first line. Lambdas count as part of their function."""
    found, number = [], 0
    while number < len(lines):
        opens = OPENS.match(lines[number])
        if not opens or not lines[number].strip():
            number += 1
            continue
        # The declaration's first line: back over wrapped parameters, which are indented deeper.
        first, indent = number, len(opens[1])
        text = lines[number]
        while first > 0 and (indent_of(lines[first]) > 2 or lines[first].lstrip().startswith((":", "{"))) and lines[first - 1].strip():
            if lines[first - 1].rstrip().endswith((";", "}", ":")) or lines[first - 1].lstrip().startswith("//"):
                break
            first -= 1
            text = lines[first] + " " + text.lstrip()
            indent = indent_of(lines[first])
        closing = " " * indent + "}"
        end = next((i for i in range(number + 1, len(lines)) if lines[i].startswith(closing) and not lines[i].startswith(closing + " else")), None)
        if end is None or NO_FUNCTION.match(text) or "(" not in text:
            number += 1
            continue
        test, name = TEST.search(text), NAME.search(text)
        found.append((f"{test[2]}.{test[3]}" if test else name[1] if name else "?", first + 1, end - first + 1))
        number = end + 1
    return found


def indent_of(line):
    return len(line) - len(line.lstrip(" "))


def python_functions(text):
    return [(node.name, node.lineno, node.end_lineno - node.lineno + 1) for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def breaches_of(name, suffix, text, longer=None):
    """What is too long in the file `name`, in words, and which entries of `longer` it used."""
    longer = LONGER if longer is None else longer
    lines = text.splitlines()
    if suffix not in CPP_SUFFIXES | {".py"}:
        return [], set()
    functions = python_functions(text) if suffix == ".py" else cpp_functions(lines)
    breaches, used = [], set()
    for key, what, place, length, limit in [
            (name, "the file", 1, len(lines), FILE_LINES),
            *((f"{name}:{function}", f"{function}()", first, length, FUNCTION_LINES) for function, first, length in functions)]:
        allowed = longer.get(key, (limit, ""))[0]
        if length > limit:
            used.add(key)
        if length > allowed:
            breaches.append(f"{name}:{place}: {what} has {length} lines, {allowed} are allowed: split it by role")
    return breaches, used
