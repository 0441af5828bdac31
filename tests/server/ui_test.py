#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The dashboard in headless Chromium: clicks through a chat with a tool call, watches the numbers, takes screenshots.

  tests/server/ui_test.py [--screenshots docs/images]      needs Debian's package chromium; standard library only
"""
import argparse
import base64
import json
import pathlib
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

import clients

WAIT_S = 60


class WebSocket:
    """As much of RFC 6455 as the debugging protocol needs: text frames, one peer, no extensions."""

    def __init__(self, url):
        host, _, path = url.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self.socket = socket.create_connection((name, int(port)), timeout=WAIT_S)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.socket.sendall((f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.file = self.socket.makefile("rb")
        assert b" 101 " in self.file.readline()
        while self.file.readline().strip():
            pass

    def send(self, text):
        data, mask = text.encode(), secrets.token_bytes(4)
        size = len(data)
        head = bytes([0x81]) + (bytes([0x80 | size]) if size < 126 else
                                bytes([0x80 | 126]) + struct.pack(">H", size) if size < 65536 else
                                bytes([0x80 | 127]) + struct.pack(">Q", size))
        self.socket.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def receive(self):
        message = b""
        while True:
            first, size = self.file.read(2)
            size &= 0x7F
            if size == 126:
                size = struct.unpack(">H", self.file.read(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self.file.read(8))[0]
            data = self.file.read(size)
            if first & 0x0F in (0, 1):
                message += data
                if first & 0x80:
                    return message.decode()


class Page:
    """One tab of a headless Chromium."""

    def __init__(self, binary, folder):
        self.process = subprocess.Popen(
            [binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--remote-debugging-port=0", f"--user-data-dir={folder}", "--window-size=1360,860", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = pathlib.Path(folder) / "DevToolsActivePort"
        until(lambda: port.exists() and port.read_text().count("\n"), "Chromium did not start")
        listing = f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json/list"
        tabs = json.load(urllib.request.urlopen(listing, timeout=WAIT_S))
        self.socket = WebSocket(next(tab for tab in tabs if tab["type"] == "page")["webSocketDebuggerUrl"])
        self.number, self.errors = 0, []
        self.call("Runtime.enable")
        self.call("Page.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=1360, height=860, deviceScaleFactor=1, mobile=False)

    def close(self):
        self.process.terminate()
        self.process.wait(WAIT_S)

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"])
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]

    def js(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def click(self, selector):
        """A real click in the middle of the element."""
        box = self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView();"
                      "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def type(self, selector, text):
        self.click(selector)
        self.call("Input.insertText", text=text)

    def screenshot(self, path):
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        print(f"{path}: {len(data)} bytes")


def until(true, otherwise):
    end = time.monotonic() + WAIT_S
    while not true():
        if time.monotonic() > end:
            raise SystemExit(otherwise)
        time.sleep(0.1)


def walk(page, url, folder):
    def text(selector):
        return page.js(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent).join('|')")

    def shot(name):
        page.js("scrollTo(0, 0)")
        if folder:
            page.screenshot(folder / name)

    page.call("Page.navigate", url=url + "/ui?theme=light")
    until(lambda: text("#running").isdigit(), "no numbers came")
    page.js("document.querySelector('#temperature').value = '0'")
    page.click("#use-tools")
    page.type("#text", "What is the weather in Lisbon?")
    page.click("#send")
    until(lambda: page.js("document.querySelectorAll('.give').length") == 1, "the model called no tool: " + text("#log"))
    assert text(".call strong").strip() == "get_weather", text(".call")
    assert json.loads(text(".call code")) == {"city": "Lisbon"}, text(".call code")
    assert text(".think span"), "no thinking was shown"
    page.click(".give")
    until(lambda: "sunny with 24 degrees" in text(".answer"), "no answer: " + text("#log"))
    until(lambda: text("#send") == "send" and int(text("#done")) >= 2, "the numbers did not follow: " + text("#done"))
    until(lambda: "measured" in text("#ttft-note"), "no histogram")
    assert page.js("document.querySelectorAll('#steps rect').length") > 2
    page.js("for (let i = 0; i < 4; i++) fetch('/v1/completions', {method: 'POST', headers: {'Content-Type': "
            "'application/json'}, body: JSON.stringify({model: last.model, prompt: 'Once upon a time there was a fox ' "
            "+ i, max_tokens: 300, ignore_eos: true})}); 0")
    until(lambda: int(text("#running")) >= 1, "running requests are not shown")
    until(lambda: float(text("#rate")) > 0, "no rate is shown")
    shot("dashboard-light.png")
    page.click("#theme")
    assert page.js("document.documentElement.dataset.theme") == "dark"
    shot("dashboard-dark.png")
    assert not page.errors, page.errors
    external = page.js("performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin))")
    assert not external, external
    print("the dashboard works: thinking, a tool call, its result, the answer, numbers, both themes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--koho", default=str(clients.ROOT / "build/release/src/app/koho"))
    parser.add_argument("--model", default=str(clients.ROOT / "models/tiny"))
    parser.add_argument("--screenshots", type=pathlib.Path, help="a folder for the pictures of the documentation")
    args = parser.parse_args()
    if args.screenshots:
        args.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, clients.server(args.koho, args.model) as url:
        page = Page(args.chromium, folder)
        try:
            walk(page, url, args.screenshots)
        finally:
            page.close()


if __name__ == "__main__":
    sys.exit(main())
