#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python wheel on fresh machines: root file systems by debootstrap with python3 and pip, nothing else. Needs root.

    ./run.py --wheel
    tools/wheel_check.py bookworm jammy noble         Debian 12, Ubuntu 22.04 and 24.04
    tools/wheel_check.py --json times.json bookworm

On each: pip install to `koho run`'s first answer in at most 60 s; ldd finds every library; `koho serve` answers PyPI's openai;
`import koho` chats; a model by its name comes from a hub on this machine; an upgrade keeps it; an uninstall leaves nothing.
Commands run as an ordinary user. The roots stay in --roots, what a check changed is thrown away. Exit code 1 on a failure.
"""
import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Suite -> its name, debootstrap's script where that of the suite may be missing, components.
SYSTEMS = {
    "bookworm": ("Debian 12", None, "main"),
    "trixie": ("Debian 13", None, "main"),
    "jammy": ("Ubuntu 22.04", None, "main,universe"),
    "noble": ("Ubuntu 24.04", "jammy", "main,universe"),
}
FIRST_ANSWER_S_MAX = 60.0
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
USER = 1000
HOME = "/home/user"
HUB_NAME = "some-org/tiny"
# So that the programs below find the registry and the network as this machine's do.
NETWORK_FILES = ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"]
NETWORK_VARIABLES = re.compile(r"^(https?_proxy|no_proxy|PIP_.*|SSL_CERT_\w+|REQUESTS_CA_BUNDLE)$", re.IGNORECASE)


class Failure(Exception):
    """A check failed; the message says which and why."""


# ---- outside

def make_root(suite, roots, mirror):
    """The suite's root file system, made by debootstrap if it is not there."""
    name, script, components = SYSTEMS[suite]
    root = roots / suite
    if (root / "usr/bin/pip3").exists():
        return root
    print(f"==> debootstrap {suite} ({name})", flush=True)
    roots.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root, ignore_errors=True)
    script_path = pathlib.Path("/usr/share/debootstrap/scripts") / suite
    command = ["debootstrap", "--variant=minbase", "--include=python3,python3-pip,ca-certificates", f"--components={components}", suite, str(root)]
    if name.startswith("Ubuntu") and not pathlib.Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg").exists():
        print("    Ubuntu's keyring is not installed: signatures are not checked", flush=True)
        command.insert(1, "--no-check-gpg")
    if mirror or script:
        # The script names several, in cases: of old releases, of this machine's processor, of others.
        defaults = re.findall(r"^\s*default_mirror (\S+)", script_path.with_name(script or suite).read_text(), re.MULTILINE)
        command.append(mirror or next(one for one in defaults if "old-releases" not in one))
    if script and not script_path.exists():
        command.append(str(script_path.with_name(script)))
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ran.returncode != 0:
        shutil.rmtree(root, ignore_errors=True)
        raise Failure(f"{' '.join(command)} failed:\n{ran.stdout[-1000:]}")
    return root


def with_version(wheel, version, folder):
    """The same wheel under another version: what a user upgrades to."""
    old = wheel.name.split("-")[1]
    made = folder / wheel.name.replace(f"-{old}-", f"-{version}-", 1)
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as target:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename.endswith(".dist-info/METADATA"):
                data = data.replace(f"\nVersion: {old}\n".encode(), f"\nVersion: {version}\n".encode(), 1)
            if entry.filename.endswith(".dist-info/RECORD"):
                # Without the hash of METADATA, which has changed; pip checks none at an installation.
                data = re.sub(rb"(METADATA),[^\n]*", rb"\1,,", data).replace(f"koho-{old}.dist-info".encode(), f"koho-{version}.dist-info".encode())
            entry.filename = entry.filename.replace(f"koho-{old}.dist-info", f"koho-{version}.dist-info")
            target.writestr(entry, data)
    return made


def check_on(root, wheel, newer, hub_url):
    """Runs this file inside a throw-away layer over `root`; returns its results."""
    with tempfile.TemporaryDirectory(dir=root.parent) as layer:
        work = pathlib.Path(layer)
        for name in ("upper", "work", "merged"):
            (work / name).mkdir()
        given = work / "upper" / "check"
        given.mkdir()
        shutil.copytree(ROOT / "models" / "tiny", given / "models" / "tiny")
        shutil.copy(__file__, given / "wheel_check.py")
        for path in (wheel, newer):
            shutil.copy(path, given / path.name)
        for name in NETWORK_FILES:
            if os.path.exists(name):
                target = work / "upper" / name.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(name, target)
        environment = {name: value for name, value in os.environ.items() if NETWORK_VARIABLES.match(name)}
        environment |= {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root",
                        "PIP_NO_CACHE_DIR": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        # The mounts belong to a namespace of their own, and go with it.
        script = ('set -e; mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/merged"; '
                  'mount -t proc proc "$2/merged/proc"; mount --rbind /dev "$2/merged/dev"; shift; top=$1; shift; '
                  'exec chroot "$top/merged" python3 /check/wheel_check.py --inside "$@"')
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", script, "sh", str(root), str(work),
                   f"/check/{wheel.name}", f"/check/{newer.name}", hub_url]
        ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        lines = ran.stdout.splitlines()
        results = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        if ran.returncode != 0:
            raise Failure(results.get("failure") or f"the check ended with exit code {ran.returncode}: {ran.stdout[-500:]}")
        return results


# ---- inside

def run(command, as_user=True, **options):
    """Standard output of a command; Failure if it fails."""
    who = {"user": USER, "group": USER, "extra_groups": []} if as_user else {}
    environment = os.environ | ({"HOME": HOME} if as_user else {}) | options.pop("environment", {})
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, env=environment,
                         cwd=options.pop("cwd", "/check"), **who, **options)
    if ran.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))} ended with exit code {ran.returncode}: {(ran.stderr or ran.stdout).strip()[-800:]}")
    return ran.stdout


def pip(*arguments):
    # A distribution's Python keeps pip out of its own packages unless told; this machine has no other use.
    managed = any(pathlib.Path("/usr/lib").glob("python3*/EXTERNALLY-MANAGED"))
    run([sys.executable, "-m", "pip", arguments[0], *(["--break-system-packages"] if managed else []), "--quiet", *arguments[1:]],
        as_user=False)


def expect(found, wanted, what):
    if wanted not in found:
        raise Failure(f"{what}: expected {wanted!r}, found {found[:500]!r}")


def files():
    """Every file of this machine, but for what only runs."""
    found = set()
    for folder, folders, names in os.walk("/"):
        if folder == "/":
            folders[:] = [name for name in folders if name not in ("proc", "dev", "sys", "tmp", "check")]
        found.update(os.path.join(folder, name) for name in names)
    return found


def libraries():
    """ldd over all programs and libraries of the package."""
    package = pathlib.Path(importlib.metadata.distribution("koho").locate_file("koho"))
    binaries = [path for folder in (package / "bin", package.with_name("koho.libs")) for path in folder.iterdir()]
    for path in binaries:
        for line in run(["ldd", str(path)]).splitlines():
            if "not found" in line:
                raise Failure(f"{path.name}: {line.strip()}")
    return len(binaries)


CLIENT = """
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
model = client.models.list().data[0].id
ask = dict(model=model, messages=[{"role": "user", "content": sys.argv[2]}], temperature=0)
print(client.chat.completions.create(**ask).choices[0].message.content)
print("".join(one.choices[0].delta.content or "" for one in client.chat.completions.create(**ask, stream=True) if one.choices))
"""
CHAT = """
import koho
engine = koho.Engine("models/tiny")
answer = engine.chat([{"role": "user", "content": "What is the capital of France?"}], temperature=0)
print(answer.text)
engine.close()
"""


def serve_and_ask():
    """`koho serve` answers the OpenAI client, whole and streamed. Returns the seconds until it was ready."""
    pip("install", "--target", "/tmp/openai", "openai")
    started = time.monotonic()
    server = subprocess.Popen(["koho", "serve", "models/tiny", "--device", "cpu", "--port", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True, cwd="/check", user=USER, group=USER, env=os.environ | {"HOME": HOME})
    try:
        port = next((found[1] for line in server.stderr if (found := re.search(r"ready: .* on [\d.]+:(\d+)", line))), None)
        if port is None:
            raise Failure("koho serve was not ready")
        ready = time.monotonic() - started
        said = run([sys.executable, "-c", CLIENT, f"http://127.0.0.1:{port}/v1", QUESTION], environment={"PYTHONPATH": "/tmp/openai"})
        expect(said, f"{ANSWER}\n{ANSWER}", "the openai client")
    finally:
        server.terminate()
        code = server.wait(30)
    if code != 0:
        raise Failure(f"koho serve ended with exit code {code} after SIGTERM")
    return ready


def inside(wheel, newer, hub_url):
    """All checks on this machine; prints one JSON object."""
    times = {}

    @contextlib.contextmanager
    def timed(what):
        begin = time.monotonic()
        yield
        times[what] = round(time.monotonic() - begin, 2)

    os.makedirs(HOME)
    os.chown(HOME, USER, USER)
    before = files()
    ask = ["koho", "run", "models/tiny", QUESTION, "--device", "cpu", "--temperature", "0"]
    with timed("install_to_first_answer_s"):
        with timed("install_s"):
            pip("install", wheel)
        expect(run(ask), ANSWER, "koho run")
    if times["install_to_first_answer_s"] > FIRST_ANSWER_S_MAX:
        raise Failure(f"{times['install_to_first_answer_s']} s from pip install to the first answer; at most {FIRST_ANSWER_S_MAX:.0f} are allowed")
    binaries = libraries()
    times["serve_ready_s"] = round(serve_and_ask(), 2)
    with timed("import_and_chat_s"):
        expect(run([sys.executable, "-c", CHAT]), ANSWER, "import koho")
    by_name = ["koho", "run", HUB_NAME, *ask[3:]]
    with timed("by_name_s"):
        expect(run(by_name, environment={"HF_ENDPOINT": hub_url}), ANSWER, "a model by its name")
    with timed("upgrade_s"):
        pip("install", "--upgrade", newer)
    expect(run(["koho", "--version"]), "koho", "koho --version")
    expect(importlib.metadata.version("koho"), newer.split("-")[1], "the version after the upgrade")
    expect(run(by_name, environment={"HF_ENDPOINT": "http://127.0.0.1:9"}), ANSWER, "the same model after the upgrade, without the hub")
    pip("uninstall", "--yes", "koho")
    others = {os.path.normpath(str(one.locate_file(path))) for one in importlib.metadata.distributions() for path in one.files or ()}
    left = [path for path in sorted(files() - before) if path not in others and not path.startswith(f"{HOME}/.cache/huggingface/")
            and os.path.normpath(re.sub(r"__pycache__/(.*?)\.cpython-\d+(\.opt-\d)?\.pyc$", r"\1.py", path)) not in others]
    if left:
        raise Failure(f"the uninstall left {len(left)} files, first {left[0]}")
    if not os.path.exists(f"{HOME}/.cache/huggingface/hub/models--{HUB_NAME.replace('/', '--')}"):
        raise Failure("the uninstall took the cache along")
    return {"python": sys.version.split()[0], "binaries": binaries} | times


def main():
    if sys.argv[1:2] == ["--inside"]:
        try:
            print(json.dumps(inside(*sys.argv[2:])))
            return 0
        except Failure as failure:
            print(json.dumps({"failure": str(failure)}))
            return 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", choices=sorted(SYSTEMS), help="the machines")
    parser.add_argument("--wheel", type=pathlib.Path, help="(the one in build/dist)")
    parser.add_argument("--roots", type=pathlib.Path, default=ROOT / "build" / "roots", help="where root file systems are kept (%(default)s)")
    parser.add_argument("--mirror", help="of the packages (debootstrap's for the suite)")
    parser.add_argument("--json", type=pathlib.Path, help="write the results there")
    options = parser.parse_args()
    wheel = options.wheel or next(iter((ROOT / "build" / "dist").glob("koho-*.whl")), None)
    if wheel is None:
        parser.error("build/dist has no wheel: ./run.py --wheel makes it")
    sys.path.insert(0, str(ROOT / "tests" / "deploy"))
    from local_hub import LocalHub
    results, failed = {}, False
    with tempfile.TemporaryDirectory() as folder:
        newer = with_version(wheel, "99.0", pathlib.Path(folder))
        for suite in options.suites:
            hub = LocalHub(ROOT / "models" / "tiny", HUB_NAME)
            try:
                results[suite] = check_on(make_root(suite, options.roots.resolve(), options.mirror), wheel, newer, hub.url)
                print(f"{SYSTEMS[suite][0]}: " + ", ".join(f"{name} {value}" for name, value in results[suite].items()), flush=True)
            except Failure as failure:
                failed = True
                results[suite] = {"failure": str(failure)}
                print(f"{SYSTEMS[suite][0]}: FAILED: {failure}", flush=True)
            hub.shutdown()
    if options.json:
        options.json.write_text(json.dumps({"wheel": wheel.name, "bytes": wheel.stat().st_size, "systems": results}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
