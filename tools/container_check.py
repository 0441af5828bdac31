#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds deploy/Dockerfile with Debian's buildah and runs what it made. Needs root, buildah and debootstrap; no daemon, no registry.

    tools/container_check.py                     base: a Debian 12 root by debootstrap, imported as an image
    tools/container_check.py --ccache DIR        objects that this machine has compiled before

The container then runs as its image says, but with a read-only root, /tmp in memory, no capabilities and the embedded model at
/model: it must not be root, be healthy by its own HEALTHCHECK, answer, refuse to write, and end in order on SIGTERM.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import wheel_check
from wheel_check import ANSWER, NETWORK_FILES, NETWORK_VARIABLES, QUESTION, ROOT, Failure

BASE, IMAGE = "localhost/koho-base", "localhost/koho"
READY_S_MAX = 60


class Buildah:
    """buildah with its storage below `folder`, chroot isolation."""

    def __init__(self, folder):
        self.command = ["buildah", "--root", str(folder / "storage"), "--runroot", str(folder / "run"), "--storage-driver", "overlay"]

    def __call__(self, *arguments):
        ran = subprocess.run([*self.command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if ran.returncode != 0:
            raise Failure(f"buildah {' '.join(map(str, arguments))} failed: {ran.stdout[-1500:]}")
        return ran.stdout.strip()


def import_base(buildah, root, ccache):
    """The root file system as an image, with this machine's way to the network and to its compiler cache."""
    container = buildah("from", "scratch")
    place = pathlib.Path(buildah("mount", container))
    subprocess.run(["cp", "-a", f"{root}/.", str(place)], check=True)
    for name in NETWORK_FILES:
        if os.path.exists(name) and name.startswith("/etc/") and name not in ("/etc/resolv.conf", "/etc/hosts"):
            (place / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, place / name.lstrip("/"))
    settings = {name: value for name, value in os.environ.items() if NETWORK_VARIABLES.match(name) and name != "PIP_FIND_LINKS"}
    if ccache:
        settings |= {"CCACHE_DIR": "/ccache", "CCACHE_NOHASHDIR": "true", "CCACHE_BASEDIR": "/src"}
    for name, value in settings.items():
        buildah("config", "--env", f"{name}={value}", container)
    buildah("umount", container)
    buildah("commit", "--rm", container, BASE)


def build(buildah, ccache):
    """The image of deploy/Dockerfile."""
    # Only Docker's format of images has a health check.
    arguments = ["build", "--isolation", "chroot", "--format", "docker", "--layers=false", "--ignorefile", ROOT / "deploy" / "Dockerfile.dockerignore",
                 "--build-arg", f"BASE={BASE}", "-f", ROOT / "deploy" / "Dockerfile", "-t", IMAGE]
    if ccache:
        arguments += ["-v", f"{ccache}:/ccache"]
    buildah(*arguments, ROOT)


def start(place, image, port_flags):
    """The image's entry point in `place`, hardened; the process."""
    settings = image["OCIv1"]["config"]
    user = settings["User"]
    environment = dict(one.split("=", 1) for one in settings["Env"])
    script = ('set -e; mount --make-rprivate /; mount --bind "$1" "$1"; mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; '
              'mount -t tmpfs tmpfs "$1/tmp"; mkdir -p "$1/model"; mount --bind -o ro "$2" "$1/model"; mount -o remount,bind,ro "$1"; '
              'place=$1; user=$3; shift 3; exec chroot "$place" setpriv --reuid "$user" --regid "$user" --clear-groups --bounding-set=-all --inh-caps=-all '
              '--no-new-privs "$@"')
    command = ["unshare", "--mount", "/bin/sh", "-c", script, "sh", str(place), str(ROOT / "models" / "tiny"), user, *settings["Entrypoint"],
               "/model", *port_flags]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True), settings, environment


def inside(process, environment, command):
    """A command beside the running one: in its namespace, as its user. Exit code and output."""
    ids = (pathlib.Path("/proc") / str(process.pid) / "status").read_text()
    user = re.search(r"^Uid:\s+(\d+)", ids, re.MULTILINE)[1]
    ran = subprocess.run(["nsenter", "--target", str(process.pid), "--mount", "--root", "setpriv", "--reuid", user, "--regid", user, "--clear-groups",
                          "--no-new-privs", *command], env=environment, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def check(place, image):
    """Runs the container and asks it."""
    began = time.monotonic()
    process, settings, environment = start(place, image, ["--device", "cpu"])
    try:
        command = image["Docker"]["config"]["Healthcheck"]["Test"][1:]
        while inside(process, environment, command)[0] != 0:
            if process.poll() is not None or time.monotonic() - began > READY_S_MAX:
                raise Failure(f"the container was not healthy: {process.stderr.read()[-500:] if process.poll() is not None else 'late'}")
            time.sleep(0.2)
        ready = time.monotonic() - began
        status = (pathlib.Path("/proc") / str(process.pid) / "status").read_text()
        if re.search(r"^Uid:\s+0\b", status, re.MULTILINE) or not re.search(r"^CapEff:\s+0+$", status, re.MULTILINE):
            raise Failure("the server is root, or has capabilities")
        for folder in ("/", "/opt/koho", "/etc", "/model"):
            if inside(process, environment, ["touch", f"{folder}/written"])[0] == 0:
                raise Failure(f"{folder} can be written to")
        body = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}).encode()
        request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = json.load(answer)["choices"][0]["message"]["content"]
        if text != ANSWER:
            raise Failure(f"the container answered {text!r}")
        process.send_signal(getattr(signal, image["OCIv1"]["config"].get("StopSignal", "SIGTERM")))
        if (code := process.wait(40)) != 0:
            raise Failure(f"the server ended with exit code {code}")
        return {"user": settings["User"], "healthy_s": round(ready, 2)}
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roots", type=pathlib.Path, default=ROOT / "build" / "roots", help="where root file systems are kept (%(default)s)")
    parser.add_argument("--mirror", help="of the packages (debootstrap's)")
    parser.add_argument("--ccache", type=pathlib.Path, help="a compiler cache that the build may use")
    options = parser.parse_args()
    if missing := [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]:
        parser.error(f"{', '.join(missing)} not installed: apt-get install {' '.join(missing)}")
    buildah = Buildah(ROOT / "build" / "containers")
    try:
        import_base(buildah, wheel_check.make_root("bookworm", options.roots.resolve(), options.mirror), options.ccache)
        began = time.monotonic()
        build(buildah, options.ccache)
        seconds = time.monotonic() - began
        image = json.loads(buildah("inspect", "--type", "image", IMAGE))
        container = buildah("from", "--pull-never", IMAGE)
        place = pathlib.Path(buildah("mount", container))
        size = sum(path.lstat().st_size for path in place.rglob("*") if not path.is_dir())
        try:
            found = check(place, image)
        finally:
            buildah("umount", container)
            buildah("rm", container)
        print(f"built in {seconds:.0f} s, {size / 1e6:.0f} MB; runs as {found['user']}, healthy after {found['healthy_s']} s, answers, "
              "writes nowhere, ends in order")
    except Failure as failure:
        print(f"container_check: FAILED: {failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
