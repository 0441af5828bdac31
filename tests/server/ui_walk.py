# SPDX-License-Identifier: Apache-2.0
"""What the scenes of ui_test.py share: opening the page, talking to the model, axe-core; and how Chromium and axe-core come."""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
import zipfile

import clients
from browser import until

SIZES = {"phone": (390, 844), "laptop": (1360, 860), "desktop": (1920, 1080)}
AXE = clients.ROOT / "build" / "axe" / "axe.min.js"
COLOUR_RULES = ("color-contrast", "link-in-text-block")  # all that other colours can break; on a long page most of axe-core's time
COLOURS = {"runOnly": COLOUR_RULES}
NO_COLOURS = {"rules": {rule: {"enabled": False} for rule in COLOUR_RULES}}
QUESTION = "What is the weather in Lisbon?"


class Walk:
    """One server, one tab, and what every scene needs."""

    def __init__(self, args, page, url, folder):
        self.args, self.page, self.url, self.folder = args, page, url, folder
        self.axe_text = AXE.read_text() if AXE.exists() else None

    def open(self, tab="chat", theme="light"):
        self.page.open("about:blank")
        self.page.open(f"{self.url}/ui?theme={theme}#/{tab}")
        self.ready()

    def ready(self):
        until(lambda: self.page.text("#state") == "ready", lambda: f"not ready: {self.page.text('#state')} {self.page.errors}")

    def fresh(self):
        """A browser that has never seen the page."""
        self.page.open(self.url + "/ui")
        self.page.js("localStorage.clear(); sessionStorage.clear(); 0")
        self.page.open("about:blank")
        self.open()
        self.page.js("settings.sampling.temperature = 0; 0")

    def ask(self, text, tokens=None):
        """Sends a message; an answer of `tokens` tokens, where so many are given."""
        self.page.js(f"settings.sampling.min_tokens = {json.dumps(tokens)} ?? 0; settings.sampling.max_tokens = {json.dumps(tokens)} ?? 400; 0")
        self.page.type("#text", text)
        self.page.press("Enter")

    def answered(self):
        until(lambda: self.page.text("#send") == "Send" and not self.page.count(".running"), lambda: "no end of " + self.page.text("#log"))

    def weather(self):
        """The conversation with a tool call; returns the answer's text."""
        if not self.page.js("document.querySelector('#use-tools').checked"):
            self.page.click("#use-tools")
        self.ask(QUESTION)
        until(lambda: self.page.shown(".give"), lambda: "the model called no tool: " + self.page.text("#log"))
        self.page.click(".give")
        self.answered()
        return self.page.text(".message:last-child .markdown")

    def expect_errors(self, *parts):
        """The console has exactly these entries, or none."""
        for part in parts:
            until(lambda part=part: self.page.js("1") and any(part in error for error in self.page.errors), lambda part=part: f"no {part}: {self.page.errors}")
        left = [error for error in self.page.errors if not any(part in error for part in parts)]
        assert not left, left
        self.page.errors.clear()

    def axe(self, where, options=None):
        """axe-core finds nothing serious in what is shown."""
        if self.axe_text is None:
            return
        self.page.js(self.axe_text + "; 0")
        found = self.page.js(f"axe.run(document, {json.dumps({'resultTypes': ['violations']} | (options or {}))})"
                             ".then(r => r.violations.map(v => ({id: v.id, impact: v.impact, help: v.help, "
                             "nodes: v.nodes.slice(0, 3).map(n => n.target.join(' ') + ': ' + n.failureSummary)})))")
        serious = [violation for violation in found if violation["impact"] in ("serious", "critical")]
        assert not serious, f"{where}: {json.dumps(serious, indent=1)}"
        for violation in found:
            print(f"    axe, {violation['impact']}: {where}: {violation['id']}: {violation['nodes']}")

    def shot(self, name):
        if self.args.screenshots:
            self.page.screenshot(self.args.screenshots / f"{name}.png")


def load(url, requests, tokens):
    """Starts requests of so many tokens, without waiting for them: they outlive what the tab does."""
    def ask(i):
        body = {"model": "tiny", "prompt": f"Once upon a time there was a fox {i}", "max_tokens": tokens, "ignore_eos": True}
        with contextlib.suppress(OSError):  # the server may end first
            urllib.request.urlopen(urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})).read()
    for i in range(requests):
        threading.Thread(target=ask, args=(i,), daemon=True).start()


def install():
    """Chromium from Debian, as root, and axe-core from PyPI's wheel, of which no code runs."""
    if shutil.which("chromium") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"]):
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    if AXE.exists():
        return
    AXE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
                        "--require-hashes", "-r", str(pathlib.Path(__file__).with_name("axe-requirements.txt")), "-d", folder], check=True)
        wheel = zipfile.ZipFile(next(pathlib.Path(folder).glob("*.whl")))
        AXE.write_bytes(wheel.read(next(name for name in wheel.namelist() if name.endswith("/axe.min.js"))))
