# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium under Python, by its debugging protocol; standard library only. It remembers what the page logged."""
import base64
import json
import pathlib
import secrets
import socket
import struct
import subprocess
import time
import urllib.request

WAIT_S = 300


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
             "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = pathlib.Path(folder) / "DevToolsActivePort"
        until(lambda: port.exists() and port.read_text().count("\n"), "Chromium did not start")
        listing = f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json/list"
        tabs = json.load(urllib.request.urlopen(listing, timeout=WAIT_S))
        self.socket = WebSocket(next(tab for tab in tabs if tab["type"] == "page")["webSocketDebuggerUrl"])
        self.number, self.errors = 0, []
        for domain in ("Runtime", "Page", "Log", "DOM", "Performance"):
            self.call(f"{domain}.enable")
        self.size(1360, 860)

    def close(self):
        self.process.terminate()
        self.process.wait(WAIT_S)

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.receive())
            self.note(message.get("method"), message.get("params"))
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]

    def note(self, method, params):
        """Keeps exceptions, errors and warnings of the console, and what the page's policy refused."""
        if method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description") or params["exceptionDetails"]["text"])
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(f"{params['type']}: {params['args']}")
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['source']}: {params['entry']['text']} {params['entry'].get('url', '')}")

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def dark(self, wanted):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}])

    def open(self, url):
        self.call("Page.navigate", url=url)
        until(lambda: self.js("document.readyState") == "complete", f"{url} did not load")

    def reload(self):
        self.js("window.old = true")
        self.call("Page.reload")
        until(lambda: self.js("!window.old && document.readyState === 'complete'"), "the page did not load again")

    def js(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def thread_seconds(self):
        """Processor time of the page's main thread: what else runs on the machine does not count."""
        return next(metric["value"] for metric in self.call("Performance.getMetrics")["metrics"] if metric["name"] == "ThreadTime")

    def text(self, selector):
        return self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent).join('|')")

    def count(self, selector):
        return self.js(f"document.querySelectorAll({json.dumps(selector)}).length")

    def shown(self, selector):
        """Whether there is such an element that a user can see."""
        return self.js(f"[...document.querySelectorAll({json.dumps(selector)})].some(e => e.checkVisibility() && e.getClientRects().length > 0)")

    def click(self, selector, held_s=0.0):
        """A real click in the middle of the element, where it must be on top; the button is held down for so long."""
        x, y, on_top = self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'nearest'}});"
                               "const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2, top = document.elementFromPoint(x, y);"
                               "return [x, y, e === top || e.contains(top) || top?.closest('label')?.control === e]; })()")
        assert on_top, f"{selector} is covered, or outside the window"
        for kind, then_s in (("mousePressed", held_s), ("mouseReleased", 0.0)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
            time.sleep(then_s)

    def point_at(self, selector, share=0.5):
        """Moves the pointer over the element, `share` of its width from its left."""
        x, y = self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
                       f"const r = e.getBoundingClientRect(); return [r.x + r.width * {share}, r.y + r.height / 2]; }})()")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def type(self, selector, text):
        self.click(selector)
        self.call("Input.insertText", text=text)

    def replace(self, selector, text):
        self.click(selector)
        self.js("document.activeElement.select()")
        self.call("Input.insertText", text=text)

    def press(self, key, shift=False):
        key_codes = {"Enter": 13, "Escape": 27, "Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key)
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=key_codes[key], modifiers=8 if shift else 0, **more)

    def choose_files(self, selector, paths):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def until(true, otherwise, seconds=WAIT_S):
    """Waits for something; `otherwise` says what did not come, a text or a function that makes one."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise AssertionError(otherwise if isinstance(otherwise, str) else otherwise())
        time.sleep(0.05)
