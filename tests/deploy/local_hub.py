# SPDX-License-Identifier: Apache-2.0
"""A hub on this machine with one repository, for huggingface_hub through HF_ENDPOINT, which fails on demand."""

import hashlib
import http.server
import json
import pathlib
import re
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LocalHub(http.server.ThreadingHTTPServer):
    """Serves the files of `folder` as the repository `name`, at the revisions main, v1 and COMMIT.

    cut      file -> how many times its transfer ends in the middle
    lie      files whose hash is announced wrong
    status   the HTTP status of every answer, if not None: a number, or a function of the path that returns one or None
    token    what a client must have, if not None
    log      (method, path, range) of every request
    """

    daemon_threads = True

    def __init__(self, folder: pathlib.Path, name: str = "some-org/tiny"):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
        self.name = name
        self.cut: dict[str, int] = {}
        self.lie: set[str] = set()
        self.status = None
        self.token = None
        self.log: list[tuple[str, str, str]] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def announced(self, file: str) -> str:
        """The hash that the hub gives: of weights SHA-256, of other files git's."""
        data = self.files[file] + (b"?" if file in self.lie else b"")
        if file.endswith(".safetensors"):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def gets(self, file: str) -> list[str]:
        """The Range headers of all GETs of a file."""
        return [bytes_ for method, path, bytes_ in self.log if method == "GET" and path.endswith("/" + file)]

    def handle_error(self, request, client_address):
        pass  # a client that was cut says so itself


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *unused):
        pass

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_body):
        hub = self.server
        path = urllib.parse.unquote(self.path.split("?")[0])
        with hub.lock:
            hub.log.append((self.command, path, self.headers.get("Range", "")))
        status = hub.status(path) if callable(hub.status) else hub.status
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            status = 401
        revision = "main|v1|" + COMMIT
        if status is None and re.fullmatch(f"/api/models/{hub.name}(/revision/({revision}))?", path):
            return self.send_json({"id": hub.name, "modelId": hub.name, "sha": COMMIT, "private": False, "tags": [], "downloads": 0,
                                   "likes": 0, "siblings": [{"rfilename": file} for file in hub.files]}, with_body)
        if status is None and re.fullmatch(f"/api/models/{hub.name}/tree/({revision})", path):
            return self.send_json([self.tree_entry(file) for file in hub.files], with_body)
        found = re.fullmatch(f"/{hub.name}/resolve/({revision})/(.+)", path)
        if status is None and found and found[2] in hub.files:
            return self.send_file(found[2], with_body)
        self.send_error_answer(status or 404)

    def tree_entry(self, file):
        hub = self.server
        entry = {"type": "file", "path": file, "size": len(hub.files[file]), "oid": hub.announced(file)}
        if file.endswith(".safetensors"):
            entry |= {"oid": "0" * 40, "lfs": {"oid": hub.announced(file), "size": len(hub.files[file]), "pointerSize": 134}}
        return entry

    def send_json(self, value, with_body):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if with_body:
            self.wfile.write(data)

    def send_error_answer(self, status):
        code = {401: "RepoNotFound", 403: "GatedRepo", 404: "RepoNotFound"}.get(status)
        data = json.dumps({"error": f"status {status}"}).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def send_file(self, file, with_body):
        hub = self.server
        data = hub.files[file]
        begin = 0
        if given := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            begin = int(given[1])
        self.send_response(206 if begin else 200)
        self.send_header("ETag", f'"{hub.announced(file)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if file.endswith(".safetensors"):
            self.send_header("X-Linked-Etag", f'"{hub.announced(file)}"')
            self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        if not with_body:
            return
        with hub.lock:
            is_cut = hub.cut.get(file, 0) > 0
            if is_cut:
                hub.cut[file] -= 1
        self.wfile.write(data[begin:begin + (len(data) - begin) // 2] if is_cut else data[begin:])
        if is_cut:
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
