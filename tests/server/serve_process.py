# SPDX-License-Identifier: Apache-2.0
"""Servers as processes, for the Python tests of the server."""

import contextlib
import socket
import subprocess
import time
import urllib.request


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(url, ready, command, **options):
    """The process of `command`, which serves at `url`, from when it is ready (its path `ready` answers 200)."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        end = time.monotonic() + 240
        while time.monotonic() < end:
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command[:2])} ended with {process.returncode}")
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(url + ready, timeout=5).status == 200:
                    break
            time.sleep(0.1)
        else:
            raise SystemExit("the server was not ready within four minutes")
        yield url
    finally:
        process.terminate()
        process.wait(120)


def server(koho, model, *flags):
    port = free_port()
    return running(f"http://127.0.0.1:{port}", "/readyz", [koho, "serve", "--model", model, "--host", "127.0.0.1", "--port", str(port),
                                                           "--served-model-name", "tiny", *flags])
