#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything outside the HTTP APIs against koho's table of sampling parameters (src/sampling/parameter_table.h), as
`koho serve --help-sampling` prints it: the page docs/sampling-parameters.md, flags, batch lines, the C struct and Python's.
src/api/sampling_fields_test.cpp holds the HTTP APIs to the same table. KOHO_BINARY names the program.

    tests/sampling/sampling_parameters_test.py --write      # writes the page's tables anew
"""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))
KOHO = os.environ.get("KOHO_BINARY", str(ROOT / "build" / "release" / "src" / "app" / "koho"))
PAGE = ROOT / "docs" / "sampling-parameters.md"
HEADER = ROOT / "include" / "koho" / "engine.h"
BEGIN = "<!-- printed by: koho serve --help-sampling -->\n"
END = "<!-- /printed -->\n"
# Fields of the C struct that say how another one is meant.
HELPERS = {"struct_size", "use_seed", "num_stop_token_ids", "stop_sequences", "num_stop_sequences", "logits_rows"}


def output_of(*command):
    return subprocess.run([KOHO, *command], capture_output=True, text=True, check=True, timeout=300).stdout


def names_of(column):
    """What the parameters are called in one interface; those that it does not offer are left out."""
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")]
            for line in output_of("serve", "--help-sampling").split("### Names")[1].split("### ")[0].splitlines()
            if line.startswith("|") and not line.startswith("|---")]
    at = rows[0].index(column)
    return {row[0]: row[0] if row[at] == "=" else row[at] for row in rows[1:] if row[at] != "–"}


def page_with(tables):
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + tables + END + rest.split(END)[1]


class SamplingParameters(unittest.TestCase):
    maxDiff = None

    def test_the_page_has_the_tables_of_the_program(self):
        self.assertEqual(PAGE.read_text(), page_with(output_of("serve", "--help-sampling")),
                         "run tests/sampling/sampling_parameters_test.py --write")

    def test_run_and_batch_have_a_flag_for_each_parameter_of_the_command_line_and_no_other(self):
        flags, all_names = names_of("flag"), names_of("parameter")
        for command in ("run", "batch"):
            text = output_of(command, "--help")
            for name in all_names:
                flag = "--" + name.replace("_", "-")
                self.assertEqual(re.search(re.escape(flag) + r"\b(?!-)", text) is not None, name in flags, (command, flag))

    def test_batch_lines_are_read_under_the_names_of_the_table(self):
        names = list(names_of("batch").values())
        with tempfile.TemporaryDirectory() as folder:
            given, answers = pathlib.Path(folder, "in.jsonl"), pathlib.Path(folder, "out.jsonl")
            # A value of no parameter's type: whoever reads the field refuses it by name.
            given.write_text("".join(json.dumps({"id": name, "prompt_ids": [1], "max_tokens": 1, name: {"x": "y"}}) + "\n"
                                     for name in names))
            subprocess.run([KOHO, "batch", str(given), str(answers), "--model", str(ROOT / "models" / "tiny")],
                           capture_output=True, check=False, timeout=300)
            refused = {line["id"]: line["error"]["message"] for line in map(json.loads, answers.read_text().splitlines())}
        self.assertEqual(sorted(refused), sorted(names))
        for name, message in refused.items():
            self.assertIn(name, message)

    def test_batch_help_names_every_field(self):
        text = output_of("batch", "--help")
        for name in names_of("batch").values():
            self.assertIn(f'"{name}"', text)

    def test_the_c_struct_has_the_parameters_that_the_table_offers_in_c_and_no_others(self):
        self.assertEqual({name for name, _ in header_fields()} - HELPERS, set(names_of("C").values()))

    def test_python_has_the_parameters_that_the_table_offers_in_python_and_no_others(self):
        from koho.sampling import SamplingParams

        fields = {field.name for field in dataclasses.fields(SamplingParams)}
        self.assertEqual(fields, set(names_of("Python").values()))

    def test_pythons_struct_is_the_headers(self):
        import ctypes

        from koho.sampling import SamplingParamsStruct

        types = {"uint32_t": ctypes.c_uint32, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "double": ctypes.c_double,
                 "const int64_t*": ctypes.POINTER(ctypes.c_int64), "float*": ctypes.POINTER(ctypes.c_float),
                 "uint64_t[2]": ctypes.c_uint64 * 2}
        self.assertEqual(list(SamplingParamsStruct._fields_), [(name, types[kind]) for name, kind in header_fields()])

    def test_what_generation_config_can_advise_is_none_in_python(self):
        from koho import sampling

        advised = [line.split("`")[1] for line in output_of("serve", "--help-sampling").splitlines()
                   if "or the model's advice" in line]
        self.assertEqual(sorted(sampling.ADVISED), sorted(advised))


def header_fields():
    """Name and type of each field of the header's SamplingParams, in order."""
    body = re.search(r"typedef struct SamplingParams \{(.*?)\} SamplingParams;", HEADER.read_text(), re.DOTALL).group(1)
    fields = re.findall(r"^\s+((?:const )?\w+\*?) (\w+)(\[\d+\])?;", body, re.MULTILINE)
    return [(name, kind + length) for kind, name, length in fields]


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page_with(output_of("serve", "--help-sampling")))
    else:
        unittest.main()
