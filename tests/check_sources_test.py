#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/check_sources.py finds unfinished words in names too, and reads files that git does not have yet."""

import importlib.util
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
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


if __name__ == "__main__":
    unittest.main()
