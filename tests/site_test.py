#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The generated pages of the site against what they are made of, and the check of its links. The whole site is built where
tools/make_site.py has fetched MkDocs (CI does).

    tests/site_test.py --koho build/koho [unittest's arguments]
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "python")]
import make_site  # noqa: E402
import site_pages  # noqa: E402
import site_ways  # noqa: E402


def koho(*arguments):
    return subprocess.run([KOHO, *arguments], capture_output=True, text=True, check=True).stdout


class Pages(unittest.TestCase):
    def test_flags_of_serve_are_all_there(self):
        text = koho("serve", "--help")
        rows = [row for group in site_pages.parse_serve_help(text).values() for row in group]
        shown = {flag for flags, *_ in rows for flag in flags}
        self.assertEqual(shown, set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*(?=[, \n])", "\n".join(line for line in text.splitlines() if line.startswith("  -")))))
        by_name = {flags[0]: (value, words, default) for flags, value, words, default in rows}
        self.assertEqual(by_name["--device"], ("DEVICE", "auto, cpu or cuda", "auto"))
        self.assertTrue(all(words for _, _, words, _ in rows))
        page = site_pages.serve_page(koho)
        self.assertEqual([flag for flag in shown if f"`{flag}`" not in page], [])

    def test_every_flag_of_other_engines_is_in_the_migration_page(self):
        text = koho("help", "flags")
        parts = site_pages.parse_peer_flags(text)
        self.assertEqual(len(parts), 3)
        self.assertEqual(sum(len(rows) for _, rows in parts), len(re.findall(r"^  -", text, re.MULTILINE)))
        self.assertTrue(all(words for _, rows in parts for _, _, words in rows))
        page = site_pages.migration_page(koho, lambda command, expect=0: "")
        given = json.loads((ROOT / "tools/peer_flags.json").read_text())
        self.assertEqual([flag for engine in given.values() for flag in engine["flags"] if f"`{flag}`" not in page], [])
        self.assertGreater(min(len(engine["flags"]) for engine in given.values()), 300)

    def test_the_migration_page_says_what_serve_does(self):
        """By running it: each flag alone, so that a value which it lacks, or a missing file, is not what is refused."""
        verdict = site_pages.verdicts(koho)
        for flag, words, value, said in (("--max-num-seqs", "the same", "4", "valid"), ("--tp", "`--tensor-parallel-size`", "1", "valid"),
                                         ("--swap-space", "accepted: a preempted", "4", "has no effect"), ("--lora-dtype", "refused: koho has no LoRA", "auto", "no LoRA"),
                                         ("--enable-deterministic-inference", "`--deterministic`", None, "valid"), ("--hicache-ratio", "refused: weights and KV", "2", "never a part"),
                                         ("--numa-bind", None, None, "unknown flag --numa-bind")):
            self.assertTrue((verdict(flag) or "none").startswith(words or "none"), flag)
            made = subprocess.run([KOHO, "serve", str(ROOT / "models/tiny"), "--check", flag, *([value] if value else [])], capture_output=True, text=True, check=False)
            self.assertIn(said, made.stdout + made.stderr, flag)

    def test_commands_are_the_programs(self):
        names = [name for name, _ in site_pages.commands(koho)]
        self.assertLess({"run", "serve", "batch", "bench"}, set(names))
        page = site_pages.commands_page(koho)
        self.assertTrue(all(f"## koho {name}\n" in page for name in names))

    def test_the_header_has_every_declaration_with_its_comment(self):
        header = (ROOT / "include/koho/engine.h").read_text()
        names = re.findall(r"^(?:KOHO_API [^(]*?(\w+)\(|typedef (?:enum|struct) (\w+))", header, re.MULTILINE)
        sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", site_pages.header_page(), re.MULTILINE | re.DOTALL))
        self.assertEqual({one or other for one, other in names} - set(sections), set())
        self.assertIn("Submits a prompt of n tokens and waits", sections["prefill"])
        self.assertIn("KOHO_FINISH_LENGTH = 2", sections["KohoFinish"])

    def test_python_has_what_the_package_exports(self):
        import koho as package
        page = site_pages.python_page()
        self.assertEqual([name for name in package.__all__ if f"### {name}\n" not in page], [])
        self.assertIn("def chat(self, messages: str | Sequence[dict], **options) -> ChatAnswer", page)
        self.assertIn("def deployment(", page)

    def test_errors_are_found_with_their_kinds(self):
        messages = site_pages.error_messages()
        self.assertGreater(sum(map(len, messages.values())), 500)
        self.assertIn(("model_type '…' is not supported; koho serves glm4_moe (GLM-4.5, 4.5-Air, 4.6, 4.7)", ""), messages["model"])
        self.assertIn(("weight_map appears twice", "corrupt_data"), messages["checkpoint"])
        self.assertEqual(len(site_pages.error_codes()), 11)

    def test_commands_run_and_their_exit_codes_are_held(self):
        with tempfile.TemporaryDirectory() as folder:
            console = site_ways.Console(pathlib.Path(KOHO).resolve(), folder)
            block = console.run(f"koho tokenize --model models/tiny hello; echo {folder}/x {ROOT}/y {{port}}")
            self.assertTrue(block.startswith("```console\n$ koho tokenize"))
            self.assertIn("\nx y 8000\n", block)
            self.assertIn("[exit code 3]", console.run("koho check nowhere", expect=3))
            with self.assertRaisesRegex(RuntimeError, "exit code 3, expected 0"):
                console.run("koho check nowhere")
            self.assertIn("it had no no-such-program", console.run("no-such-program", needs=("bash", "no-such-program")))

    def test_ways_show_files_that_are_there(self):
        for way in site_ways.WAYS.values():
            for name in way.files:
                self.assertGreater(len(site_ways.head_of(name)), 40, name)
            self.assertTrue(all((ROOT / name).is_file() for name in way.listed))
        text = (ROOT / "mkdocs.yml").read_text()
        self.assertEqual(set(re.findall(r"ways/([\w-]+)\.md", text)), set(site_ways.WAYS))


class Links(unittest.TestCase):
    def test_links_lead_to_pages_and_names_of_other_files_stay_words(self):
        pages = {"README.md": "index.md", "docs/a.md": "a.md", "docs/decisions/index.md": "decisions/index.md", "docs/kernels/k.md": "kernels/k.md"}
        for place, text, expected in (
                ("README.md", "[A](docs/a.md#x) [D](docs/decisions) [L](LICENSE)", "[A](a.md#x) [D](decisions/index.md) L (`LICENSE`)"),
                ("docs/kernels/k.md", "[A](../a.md) [`t.h`](../../src/t.h) [W](https://a.b/)", "[A](../a.md) `t.h` [W](https://a.b/)"),
                ("docs/a.md", "![I](images/i.png) [R](../README.md)", "![I](images/i.png) [R](index.md)")):
            self.assertEqual(make_site.relinked(text, place, pages), expected)

    def test_the_check_finds_what_leads_nowhere_and_what_another_host_is_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            site = pathlib.Path(folder)
            (site / "a.html").write_text('<h1 id="top">A</h1><a href="#top">1</a><a href="b.html#x">2</a><a href="https://elsewhere/">3</a><img src="data:,">')
            (site / "b.html").write_text('<p id="x">B</p>')
            self.assertEqual(make_site.check(site), ([], 2))
            (site / "a.html").write_text('<a href="c.html"></a><a href="b.html#y"></a><script src="https://cdn/x.js"></script><img src="none.png">')
            (site / "s.css").write_text("@import url(https://fonts/f.css)")
            faults, _ = make_site.check(site)
            self.assertEqual(len(faults), 5, faults)


@unittest.skipUnless((ROOT / "build/site-tools/bin/mkdocs").exists(), "tools/make_site.py has not fetched MkDocs")
class Site(unittest.TestCase):
    def test_is_built_without_a_warning(self):
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run([sys.executable, ROOT / "tools/make_site.py", "--out", folder], capture_output=True, text=True, check=False,
                                  env=dict(os.environ, KOHO_BINARY=KOHO))
            self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
            self.assertIn(", 0 faults", made.stdout)
            page = (pathlib.Path(folder) / "quick-start.html").read_text()
            self.assertIn("37 + 48 = 85", page)


if __name__ == "__main__":
    KOHO = os.path.abspath(sys.argv[sys.argv.index("--koho") + 1])
    del sys.argv[sys.argv.index("--koho"):sys.argv.index("--koho") + 2]
    unittest.main()
