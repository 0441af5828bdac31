#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""packages.nix, flake.nix and replit.nix: parsed and evaluated by nix over tests/nix, and held to packages.txt. Skipped, with a
message, where nix is missing (Debian's nix-bin has it)."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import run  # noqa: E402

FILES = ("packages.nix", "flake.nix", "replit.nix")
SET = f'import {ROOT}/tests/nix {{ system = "x86_64-linux"; config.allowUnfree = true; '
ENVIRONMENT = {"CC": "/nix/store/gcc/bin/gcc", "CXX": "/nix/store/gcc/bin/g++", "CUDA_HOME": "/nix/store/cudatoolkit",
               "CUDACXX": "/nix/store/cudatoolkit/bin/nvcc",
               "LD_LIBRARY_PATH": "/nix/store/gcc-lib/lib:/nix/store/cudatoolkit/lib:/nix/store/nccl/lib:/run/opengl-driver/lib"}


@unittest.skipUnless(shutil.which("nix-instantiate"), "nix is not installed: apt-get install nix-bin")
class Nix(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.environment = dict(os.environ, HOME=str(self.folder), NIX_STATE_DIR=str(self.folder / "var"),
                                NIX_STORE_DIR=str(self.folder / "store"))

    def nix(self, *arguments):
        return subprocess.run(["nix-instantiate", *arguments], env=self.environment, capture_output=True, text=True, check=False)

    def evaluate(self, expression):
        result = self.nix("--eval", "--strict", "--json", "-E", expression)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def copy(self, name, old, new):
        """The folder with `old` in the file `name` replaced."""
        for file in FILES:
            shutil.copy(ROOT / file, self.folder / file)
        text = (ROOT / name).read_text()
        self.assertIn(old, text)
        (self.folder / name).write_text(text.replace(old, new))
        return self.folder

    def missing(self, folder=ROOT, packages=None):
        """Packages of one list that the other lacks."""
        names = set(self.evaluate(f"builtins.attrNames (import {folder}/packages.nix ({SET}}})).by_debian_name"))
        return names ^ set(packages or run.packages())

    def test_parses(self):
        for file in (*FILES, "tests/nix/default.nix"):
            result = self.nix("--parse", str(ROOT / file))
            self.assertEqual(result.returncode, 0, result.stderr)
        broken = self.nix("--parse", str(self.copy("flake.nix", "in\n", "\n") / "flake.nix"))
        self.assertNotEqual(broken.returncode, 0)

    def test_has_every_debian_package_and_no_other(self):
        self.assertEqual(self.missing(), set())
        self.assertEqual(self.missing(packages=[*run.packages(), "libnew-dev"]), {"libnew-dev"})
        self.assertEqual(self.missing(self.copy("packages.nix", "ccache = pkgs.ccache;", "")), {"ccache"})

    def test_names_only_what_nixpkgs_has(self):
        folder = self.copy("packages.nix", "pkgs.cli11", "pkgs.cli-eleven")
        result = self.nix("--eval", "--strict", "-E", f"(import {folder}/packages.nix ({SET}}})).packages")
        self.assertIn("cli-eleven", result.stderr)

    def test_flake_and_replit_have_the_same_packages_and_environment(self):
        shell = self.evaluate(f'''let shell = ((import {ROOT}/flake.nix).outputs {{ self = {{ }}; nixpkgs = {{ outPath = {ROOT}/tests/nix; }}; }}
            ).devShells.x86_64-linux.default;
            in {{ packages = map (one: one.name) shell.packages; environment = removeAttrs shell [ "packages" "type" ]; }}''')
        replit = self.evaluate(f"let made = import {ROOT}/replit.nix {{ pkgs = {SET}}}; }}; "
                               "in { packages = map (one: one.name) made.deps; environment = made.env; }")
        self.assertEqual(shell, replit)
        prefixes = shell["environment"].pop("CMAKE_PREFIX_PATH").split(":")
        self.assertEqual(shell["environment"], ENVIRONMENT)
        self.assertEqual(len(prefixes), 2 * len(shell["packages"]))
        self.assertLess({"/nix/store/libedit/", "/nix/store/libedit-dev/", "/nix/store/boost181-dev/", "/nix/store/nccl-dev/"}, set(prefixes))
        self.assertEqual(len(shell["packages"]), len(run.packages()) + 2)
        self.assertLess({"cudatoolkit", "nccl", "python3", "gcc", "spdlog-with-fmt_9"}, set(shell["packages"]))

    def test_a_package_set_without_cuda_13_builds_for_the_cpu(self):
        made = self.evaluate(f"(import {ROOT}/packages.nix ({SET} cuda = false; }})).environment")
        self.assertEqual(set(ENVIRONMENT) - set(made), {"CUDA_HOME", "CUDACXX"})
        self.assertNotIn("cuda", made["LD_LIBRARY_PATH"])

    def test_cuda_is_asked_for_as_unfree(self):
        folder = self.copy("flake.nix", "config.allowUnfree = true;", "config = { };")
        result = self.nix("--eval", "--strict", "-E", f"(((import {folder}/flake.nix).outputs {{ self = {{ }}; nixpkgs = "
                          f"{{ outPath = {ROOT}/tests/nix; }}; }}).devShells.x86_64-linux.default).CUDA_HOME")
        self.assertNotEqual(result.returncode, 0)


class Replit(unittest.TestCase):
    def test_runs_the_front_door_on_the_port_that_it_opens(self):
        settings = tomllib.loads((ROOT / ".replit").read_text())
        command = settings["run"]
        self.assertTrue((ROOT / command[0]).is_file())
        self.assertEqual(command[command.index("--port") + 1], str(settings["ports"][0]["localPort"]))
        self.assertTrue((ROOT / settings["entrypoint"]).is_file())
        flake = (ROOT / "flake.nix").read_text()
        release = re.search(r"nixos-(\d\d)\.(\d\d)", flake)
        self.assertEqual(settings["nix"]["channel"], f"stable-{release[1]}_{release[2]}")


if __name__ == "__main__":
    unittest.main()
