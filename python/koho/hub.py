#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models by their names on Hugging Face's hub: fetched by huggingface_hub into its cache, then verified.

The program `koho` starts this file where a model is not whole in the cache (KOHO_FETCH, src/app/hub_cache.h); Engine()
calls directory(). huggingface_hub resumes what was cut, and takes its token, cache, endpoint and offline switch from their
usual places; it checks sizes only, so here every new file's content is held to the hash that the hub announced for it.
"""

import concurrent.futures
import ctypes
import errno
import hashlib
import os
import pathlib
import re
import signal
import sys
import time

# What koho reads of a repository. config.json comes last: without it a snapshot counts as unfinished.
PATTERNS = ["*.safetensors", "*.json", "*.jinja"]
LAST = "config.json"
PIECE_BYTES = 1 << 22
TRIES = 3  # of one fetch, each going on where the one before was cut


class FetchError(RuntimeError):
    """Why a model could not be fetched, in one line. `code`: the name of koho's error code."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


def parse(text: str) -> tuple[str, str | None] | None:
    """("ORG/NAME", revision or None) of ORG/NAME or ORG/NAME@REVISION; None if `text` is no such name."""
    found = re.fullmatch(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w./-]*))?", text, re.ASCII)
    return (found[1], found[2]) if found else None


def directory(model) -> str:
    """The directory that `model` names: itself, or that of a name of the hub, which is fetched if need be. Raises
    FetchError."""
    name = None if os.path.isdir(model) or os.path.isdir(os.path.dirname(model)) else parse(os.fspath(model))
    return fetch(*name) if name else os.fspath(model)


def fetch(repository: str, revision: str | None = None) -> str:
    """The directory of a snapshot in the cache that is whole and verified. Raises FetchError."""
    label = f"{repository}@{revision}" if revision not in (None, "main") else repository
    try:
        import huggingface_hub  # noqa: F401  only where something is fetched
    except ImportError as error:
        raise FetchError("unavailable", f"{label} needs huggingface_hub to be fetched: pip install -U huggingface_hub") from error
    for left in range(TRIES - 1, -1, -1):
        try:
            return _fetch_once(repository, revision, label)
        except FetchError:
            raise
        except Exception as error:
            code, reason, again = _explain(error)
            if not (again and left):
                raise FetchError(code, f"{label} was not fetched: {reason}") from error
            print(f"koho: {label}: {reason}; going on", file=sys.stderr, flush=True)
            time.sleep(0.2 * (TRIES - left))
    raise AssertionError("unreachable")


def _fetch_once(repository: str, revision: str | None, label: str) -> str:
    from huggingface_hub import hf_hub_download, snapshot_download
    wanted = {"revision": revision, "allow_patterns": PATTERNS, "ignore_patterns": [LAST], "library_name": "koho"}
    try:
        folder = snapshot_download(repository, local_files_only=True, **wanted)
        known = _blobs(folder) if os.path.exists(os.path.join(folder, LAST)) else set()
    except OSError:
        known = set()
    folder = snapshot_download(repository, **wanted)
    _verify(folder, known, label)
    known |= _blobs(folder)
    try:
        hf_hub_download(repository, LAST, revision=os.path.basename(folder), library_name="koho")
    except OSError as error:
        if getattr(getattr(error, "response", None), "status_code", None) != 404:
            raise
        raise FetchError("not_found", f"{label} has no {LAST}: it is no model that koho reads") from error
    _verify(folder, known, label)
    return folder


def _blob(path) -> str:
    """The name of the cache's file that a path of a snapshot points to: its hash, as the hub announced it. "": none."""
    return os.path.basename(os.readlink(path)) if os.path.islink(path) else ""


def _files(folder: str) -> list[str]:
    return [str(path) for path in pathlib.Path(folder).rglob("*") if not path.is_dir()]


def _blobs(folder: str) -> set[str]:
    return {_blob(path) for path in _files(folder)}


def _verify(folder: str, known: set[str], label: str) -> None:
    """Holds every file whose hash is not in `known` to it; deletes those that differ. Raises FetchError."""
    new = [path for path in _files(folder) if _blob(path) not in known and re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", _blob(path))]
    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        found = list(pool.map(lambda path: _digest(path, len(_blob(path)) == 40), new))
    wrong = [(path, digest) for path, digest in zip(new, found) if digest != _blob(path)]
    if not wrong:
        return
    path, digest = wrong[0]
    name, announced = os.path.relpath(path, folder), _blob(path)
    for path, _ in wrong:
        blob = os.path.join(os.path.dirname(path), os.readlink(path))
        for file in (os.path.realpath(path), blob, path):
            pathlib.Path(file).unlink(missing_ok=True)
    # huggingface_hub keeps the hashes of a commit, too.
    snapshot = pathlib.Path(folder)
    (snapshot.parent.parent / "trees" / f"{snapshot.name}.json").unlink(missing_ok=True)
    raise FetchError("corrupt_data", f"{label} was not fetched: {name} has the hash {digest[:12]}…, not {announced[:12]}… as the "
                     f"hub announced; {'it was' if len(wrong) == 1 else f'{len(wrong)} such files were'} deleted, try again")


def _digest(path: str, is_git: bool) -> str:
    """A file's SHA-256 (of large files), or git's hash of it (SHA-1 of a header and the content)."""
    digest = hashlib.sha1(b"blob %d\0" % os.path.getsize(path)) if is_git else hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


# HTTP status -> koho's error code, what the hub meant, whether the same request may do better at once.
ANSWERS = {
    401: ("not_found", "the hub knows no such repository, or shows it to its users only: look at the name, or log in with "
          "`hf auth login` or HF_TOKEN", False),
    403: ("not_found", "the hub does not allow it: ask for access on the model's page, then log in with `hf auth login` or HF_TOKEN", False),
    404: ("not_found", "the hub has no such repository or revision", False),
    429: ("unavailable", "the hub has had too many requests from here (429): try later, or log in, which raises the limit", False),
}


def _explain(error: BaseException) -> tuple[str, str, bool]:
    """An ANSWERS row for what huggingface_hub raised, by the first cause that says something."""
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 10:
        chain.append(cause)
    for one in chain:
        status = getattr(getattr(one, "response", None), "status_code", None)
        if status in ANSWERS:
            return ANSWERS[status]
        if status and status >= 500:
            return "unavailable", f"the hub failed (HTTP {status})", True
        if type(one).__name__ == "OfflineModeIsEnabled":
            return "not_found", "it is not whole in the cache, and HF_HUB_OFFLINE is set", False
        if isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT):
            return "resource_exhausted", f"the disk of the cache is full ({one.filename or 'HF_HOME'}); HF_HOME names another place", False
        if isinstance(one, PermissionError):
            return "io_error", f"{one.filename} cannot be written; HF_HOME names another place", False
    last = chain[-1] if str(chain[-1]).strip() else error
    words = " ".join(str(last).split()) or type(last).__name__
    is_cut = isinstance(error, OSError) or any(word in type(one).__name__ for one in chain for word in ("Timeout", "Connect", "Protocol", "Network", "Read"))
    return "unavailable", words[:300], is_cut


def main() -> int:
    """The fetcher of KOHO_FETCH: arguments ORG/NAME REVISION; the answer goes to descriptor 3."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # koho starts its children with Ctrl-C blocked
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG: it ends with koho
    try:
        answer = f"ok {fetch(*sys.argv[1:])}"
    except FetchError as error:
        answer = f"{error.code} {error}"
    with os.fdopen(3, "w") as out:
        out.write(answer)
    return 0 if answer.startswith("ok ") else 1


def command() -> str:
    """The value of KOHO_FETCH."""
    return f"{sys.executable}\n{pathlib.Path(__file__).resolve()}"


if __name__ == "__main__":
    del sys.path[0]  # this folder's modules are koho's, not the names that huggingface_hub imports
    sys.exit(main())
