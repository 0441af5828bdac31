#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/check_sources.py finds unfinished words in names too, reads files that git does not have yet, and refuses results
of benches that lack something."""

import copy
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
spec = importlib.util.spec_from_file_location("check_sources", ROOT / "tools" / "check_sources.py")
check_sources = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_sources)


class Unfinished(unittest.TestCase):
    def test_words_and_parts_of_names(self):
        for text in ["// TODO: later", "stub_backend", "MockClock", "StubExecutor executor;", "todo_later", "todo2",
                     "src/model/stub_thing.cpp", "HTTPMock", "kPlaceholder", '"not implemented"', "kNotImplemented",
                     "not_implemented()", "is unimplemented"]:
            self.assertTrue(check_sources.unfinished(text), text)

    def test_other_words(self):
        for text in ["stubborn", "mockingbird", "XXH3_64bits", "mastodon", "xxHash", "not yet, implemented elsewhere"]:
            self.assertFalse(check_sources.unfinished(text), text)


class ErrorText(unittest.TestCase):
    def breaches(self, name, line):
        found = []
        check_sources.check_file(pathlib.Path(name), "// SPDX-License-Identifier: Apache-2.0\n" + line + "\n", found)
        return found

    def test_a_search_in_an_errors_text_is_refused(self):
        for line in ['if (error.message.find("greater than") != npos) return;', 'status.error().message.starts_with("x")',
                     'std::string_view(error.what()).find("x")', 'std::string(e.what()).contains("x")', 'message.rfind("x", 0)',
                     'code.message().ends_with("x")', 'if (std::strstr(error.what(), "x") != nullptr)',
                     'if (error.message == "queue full")', 'error.message.find_first_of("x")']:
            with self.subTest(line):
                self.assertIn("searches an error's text", "".join(self.breaches("src/api/x.cpp", line)))

    def test_other_uses_and_tests_pass(self):
        for line in ['make_error(code, "{}", error.message);', "message.insert(0, context);", 'log("error.message.find(x)");',
                     'json.find("message");', "// error.message.find(x)", "error.reason == ErrorReason::numerical"]:
            with self.subTest(line):
                self.assertEqual(self.breaches("src/api/x.cpp", line), [])
        self.assertEqual(self.breaches("src/api/x_test.cpp", 'EXPECT_NE(error.message.find("x"), npos);'), [])


class Vocabulary(unittest.TestCase):
    """Each word of the table, planted where it stood for a term: as a name, in a comment, on a page."""
    PLANTED = [("turned product", "swap-AB"), ("slices of k", "split-K"), ("parts", "split-K"), ("spans", "split-KV"), ("units", "split-KV"),
               ("items of a context", "split-KV"), ("merge", "combine"), ("matrices", "GEMM"), ("product", "GEMM"), ("matmul end", "epilogue"),
               ("copy engine", "TMA"), ("box", "TMA box"), ("plan of experts", "permutation"), ("sorted pairs", "token-expert pairs"),
               ("seat", "batch slot"), ("take from seats", "gather_input_ids"), ("keep sampled", "commit_sampled"), ("codes", "quantised"),
               ("branch", "block_output"), ("joins", "collectives"), ("mark", "event"), ("recording", "CUDA graph"),
               ("replays cheaply", "supports_graphs"), ("token gate", "token mask"), ("gates", "tolerances"), ("drawn weights", "synthetic"),
               ("lane", "in-flight step buffer"), ("adoption", "page deduplication"), ("twin", "reference"), ("neighbours", "batch invariance"),
               ("easing", "relaxation"), ("border", "adapter"), ("kind either", "union"), ("unlike experts", "different"), ("ahead", "prefetch"),
               ("soon", "prefetch"), ("thoughts", "reasoning"), ("crowd", "load"), ("life", "lifecycle"), ("wanting", "missing"),
               ("marks to hit", "targets")]
    # A file for words that are refused in some folders alone.
    IN = {"parts": ("src/cuda/gemm/x.cu", "docs/kernels/gemm.md"), "spans": ("src/cuda/attention/x.cu", "docs/kernels/attention.md"),
          "units": ("src/cuda/attention/x.cu", "docs/kernels/attention.md"), "lane": ("src/engine/x.cpp", "docs/scheduling.md")}
    ELSEWHERE = ("src/cuda/moe/x.cu", "docs/kernels/experts.md")

    def test_each_is_refused_and_the_standard_term_named(self):
        for phrase, term in self.PLANTED:
            source, page = self.IN.get(phrase, self.ELSEWHERE)
            name = "".join(word.capitalize() for word in phrase.split())
            for path, line in [(source, f"struct {name} {{"), (source, f"int {phrase.replace(' ', '_')} = 0;"),
                               (source, f"// The {phrase} of the step."), (page, f"The {phrase} of the step."),
                               (page, f"The {phrase.replace(' ', '-')} of the step.")]:
                refused = check_sources.vocabulary.refused(check_sources.vocabulary.table_for(path), line)
                self.assertTrue(any(term in instead for _, instead in refused), f"{path}: {line}: {refused}")

    def test_a_phrase_over_two_lines_of_a_comment_is_refused(self):
        words = check_sources.vocabulary.table_for("src/cuda/moe/x.cu")
        self.assertTrue(check_sources.vocabulary.refused_across(words, "// loaded by the copy", "// engine of the card"))
        self.assertFalse(check_sources.vocabulary.refused_across(words, "// loaded by TMA,", "// a box a stage"))

    def test_words_in_their_own_sense_pass(self):
        for path, line in [("src/app/x.cpp", "// exit codes"), ("src/cuda/moe/x.cu", "const int lane = threadIdx.x % 32;  // a warp's"),
                           ("src/chat/x.cpp", "// a quotation mark"), ("src/cuda/gemm/x.cu", "// one TMA box a stage"),
                           ("docs/server.md", "The answer is drawn from the allowed tokens as soon as there are some.")]:
            self.assertEqual(check_sources.vocabulary.refused(check_sources.vocabulary.table_for(path), line), [], line)


class Lengths(unittest.TestCase):
    def breaches(self, name, text):
        return check_sources.code_lengths.breaches_of(name, pathlib.Path(name).suffix, text, {})[0]

    def test_files(self):
        self.assertEqual(self.breaches("src/x.cpp", "int a;\n" * 500), [])
        self.assertTrue(self.breaches("src/x.cpp", "int a;\n" * 501))
        self.assertTrue(self.breaches("tools/x.py", "a = 1\n" * 501))

    def test_functions(self):
        body = "  a();\n"
        for opening, closing in [("void f() {\n", "}\n"), ("struct S f() {\n", "}\n"), ("  int f(int a,\n        int b) {\n", "  }\n"),
                                 ("__global__ void __launch_bounds__(128)\n    f(const __grid_constant__ P p) {\n", "}\n"),
                                 ("TEST(Suite, Name) {\n", "}\n")]:
            lines = opening.count("\n") + 1
            self.assertEqual(self.breaches("src/x.cu", opening + body * (80 - lines) + closing), [], opening)
            self.assertTrue(self.breaches("src/x.cu", opening + body * (81 - lines) + closing), opening)

    def test_an_exception_holds_to_its_length(self):
        longer = {"src/x.cpp": (510, "a table")}
        self.assertEqual(check_sources.code_lengths.breaches_of("src/x.cpp", ".cpp", "int a;\n" * 510, longer), ([], {"src/x.cpp"}))
        self.assertTrue(check_sources.code_lengths.breaches_of("src/x.cpp", ".cpp", "int a;\n" * 511, longer)[0])


@unittest.skipIf(shutil.which("git") is None, "needs git")
class Sources(unittest.TestCase):
    def test_files_not_added_yet_are_read_and_ignored_ones_not(self):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            subprocess.run(["git", "init", "-q"], cwd=root, check=True)
            (root / ".gitignore").write_text("/build/\n")
            (root / "build").mkdir()
            (root / "build" / "left.cpp").touch()
            (root / "added.cpp").touch()
            (root / "new.cpp").touch()
            subprocess.run(["git", "add", "added.cpp"], cwd=root, check=True)
            self.assertEqual({str(path) for path in check_sources.sources(root)}, {".gitignore", "added.cpp", "new.cpp"})


class Results(unittest.TestCase):
    NAME = "2026-11-24-h200-operators.json"
    GOOD = {"machine": "NVIDIA H200", "driver": "580.159.04", "commit": "0123abc", "date": "2026-11-24",
            "command": "koho bench ops",
            "rows": [{"op": "attention_decode", "shape": {"tokens": 1, "context": 1024}, "us": 3.5, "bytes": 4194304,
                      "flops": 0, "pct_of_bandwidth": 26.9, "pct_of_floor": 26.9},
                     {"op": "linear", "form": "a kernel", "shape": {"tokens": 1}, "us": 3.5},
                     {"op": "step_decode", "shape": {"tokens": 1}, "us": 4000},
                     {"op": "batch", "requests": 256, "answers": 256, "faults": 0, "seconds": 20.5},
                     {"op": "load", "bytes": 21500000000, "us": 800000, "gb_per_s": 27.0}]}

    def faults(self, name=NAME, change=lambda result: None):
        result = copy.deepcopy(self.GOOD)
        change(result)
        return check_sources.check_result(name, json.dumps(result), check_sources.operators())

    def test_operators_are_those_of_the_interface(self):
        ops = check_sources.operators()
        self.assertLessEqual({"linear", "experts", "attention", "sample", "gather_input_ids", "reset_counts"}, ops)
        self.assertNotIn("do_linear", ops)
        self.assertNotIn("upload", ops)

    def test_whole_results_pass(self):
        self.assertEqual(self.faults(), [])
        self.assertEqual(self.faults(change=lambda result: result.update(driver=None)), [])
        self.assertEqual(self.faults(change=lambda result: result["rows"][0].update(pct_of_floor=None)), [])
        self.assertEqual(self.faults(change=lambda result: result.update(commit="0123abc-dirty", note="a table")), [])
        report = {key: value for key, value in self.GOOD.items() if key != "rows"}
        report |= {"completed": 192, "duration": 60.5, "output_throughput": 2000.5}
        self.assertEqual(check_sources.check_result(self.NAME, json.dumps(report), set()), [])

    def test_each_member_is_missed(self):
        for member in self.GOOD:
            self.assertNotEqual(self.faults(change=lambda result, member=member: result.pop(member)), [], member)
        for member in self.GOOD["rows"][0]:
            self.assertNotEqual(self.faults(change=lambda result, member=member: result["rows"][0].pop(member)), [], member)
        for member in ("tokens", "context"):
            self.assertNotEqual(
                self.faults(change=lambda result, member=member: result["rows"][0]["shape"].pop(member)), [], member)
        for member in ("op", "shape", "us"):
            for row in (1, 2):
                self.assertNotEqual(
                    self.faults(change=lambda result, member=member, row=row: result["rows"][row].pop(member)), [], member)

        for row in (3, 4):
            for member in self.GOOD["rows"][row]:
                self.assertNotEqual(
                    self.faults(change=lambda result, member=member, row=row: result["rows"][row].pop(member)), [], member)

    def test_wrong_values_are_refused(self):
        for change in [lambda result: result.update(commit="a tree before it"),
                       lambda result: result.update(commit="0123abc-dirty"),
                       lambda result: result.update(date="2026-11-25"),
                       lambda result: result.update(rows=[]),
                       lambda result: result["rows"][0].update(op="attention"),
                       lambda result: result["rows"][0].update(us=0),
                       lambda result: result["rows"][0].update(bytes="4 MB"),
                       lambda result: result["rows"][0]["shape"].update(tokens="1")]:
            self.assertNotEqual(self.faults(change=change), [])
        for name in ("operators.json", "2026-11-24-operators.json", "2026-13-24-h200-operators.json"):
            self.assertNotEqual(self.faults(name=name), [], name)
        self.assertNotEqual(check_sources.check_result(self.NAME, "{", set()), [])

    def test_earlier_results_need_machine_date_and_command(self):
        name = "2026-11-23-h200-operators.json"
        early = {"machine": "NVIDIA H200", "date": "2026-11-23", "command": "op_bench"}
        self.assertEqual(check_sources.check_result(name, json.dumps(early), set()), [])
        for member in early:
            some = {key: value for key, value in early.items() if key != member}
            self.assertNotEqual(check_sources.check_result(name, json.dumps(some), set()), [], member)


if __name__ == "__main__":
    unittest.main()
