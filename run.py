#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The front door of koho: sets up a machine, builds, and runs the main jobs. Standard library only.

    ./run.py --smoke          set up, build, answer the embedded model's demonstration prompts (or ask --model), check every answer
    ./run.py --test           set up, build, pass all tests of the program as users have it; --sanitize: under ASan and UBSan;
                              --sanitize threads: those of what runs on several threads, under ThreadSanitizer
    ./run.py --build          set up and build only; leaves build/koho and build/engine.so
    ./run.py --bench          set up, build, measure throughput and latencies through engine.so
    ./run.py --wheel          set up, build, leave the Python wheel in build/dist (pip install build/dist/koho-*.whl)
    ./run.py --serve          set up, build, serve the embedded model; further flags are koho serve's (--model, --port)
    ./run.py --device cpu     build without CUDA on a machine that has an NVIDIA GPU

Exits non-zero with the reason when anything fails.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tools")]

import smoke_cases  # noqa: E402
from koho import Engine, EngineError, FetchError, Info, RequestRefused, SamplingParams, hub  # noqa: E402
from koho import bench as loop  # noqa: E402

PACKAGES_FILE = ROOT / "packages.txt"
CUDA_PACKAGES_FILE = ROOT / "third_party" / "cuda-requirements.txt"
MODEL = smoke_cases.EMBEDDED
JOBS = ("smoke", "test", "build", "wheel", "bench", "serve")


class Failure(Exception):
    """A step failed; the message says which and why."""


def say(text):
    print(text, flush=True)


def step(title, command, quiet=True, **options):
    """Runs one step, showing its time; on failure shows the end of its output."""
    say(f"==> {title}")
    started = time.monotonic()
    log = ROOT / "build" / "log" / (title.split(" (")[0].replace(" ", "-").replace("/", "-") + ".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    if quiet:
        with open(log, "wb") as output:
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, **options).returncode
    else:
        code = subprocess.run(command, **options).returncode
    seconds = time.monotonic() - started
    if code != 0:
        if quiet:
            tail = log.read_text(errors="replace").splitlines()[-40:]
            say("\n".join("    " + line for line in tail))
            say(f"    (whole log: {log.relative_to(ROOT)})")
        raise Failure(f"{title} failed with exit code {code} after {seconds:.0f} s: {' '.join(map(str, command))}")
    say(f"    done in {seconds:.1f} s")


def packages():
    """The Debian packages koho needs, from the one list."""
    lines = PACKAGES_FILE.read_text().splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


def missing_packages():
    if shutil.which("dpkg-query") is None:
        return []  # not a Debian system: CMake names what it does not find
    result = subprocess.run(["dpkg-query", "-W", "-f", "${binary:Package} ${db:Status-Status}\n"],
                            capture_output=True, text=True, check=False)
    installed = {line.split()[0].split(":")[0] for line in result.stdout.splitlines() if line.endswith(" installed")}
    return [name for name in packages() if name not in installed]


def set_up():
    """Installs what is missing, or says which command would."""
    missing = missing_packages()
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.geteuid() != 0:
        raise Failure("packages are missing; install them with:\n    sudo apt-get update && sudo " + " ".join(command))
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    step("update the package lists", ["apt-get", "update"], env=environment)
    step(f"install packages ({len(missing)} missing)", command, env=environment)


def has_nvidia_gpu():
    return any(pathlib.Path("/dev").glob("nvidia[0-9]*"))


def find_cuda_compiler():
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def cuda_toolkit():
    """A CUDA toolkit of PyPI's packages in a folder of the build, laid out as NVIDIA's own; its folder."""
    packages_text = CUDA_PACKAGES_FILE.read_bytes()
    folder = ROOT / "build" / "cuda-toolkit"
    toolkit = folder / "nvidia" / "cu13"
    stamp = folder / "complete"
    wanted = hashlib.sha256(packages_text).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        step("fetch CUDA's compiler (PyPI)", [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder),
                                              "-r", str(CUDA_PACKAGES_FILE)])
        (toolkit / "lib64").symlink_to("lib")
        for part, pattern in (("include", "*.h"), ("lib", "*.so.*")):
            for path in (folder / "nvidia" / "nccl" / part).glob(pattern):
                (toolkit / part / path.name).symlink_to(os.path.relpath(path, toolkit / part))
        for library in (toolkit / "lib").glob("*.so.*"):  # as the linker looks for them
            plain = library.with_name(library.name.split(".so.")[0] + ".so")
            if not plain.exists():
                plain.symlink_to(library.name)
        stamp.write_text(wanted)
    return toolkit


def use_cuda(is_for_here=True):
    """Tells CMake of the CUDA compiler: the machine's, else PyPI's. Returns CMake variables: where the latter is, and where a
    program that is built for here finds its libraries."""
    compiler = find_cuda_compiler()
    variables = []
    if compiler is None:
        toolkit = cuda_toolkit()
        compiler = str(toolkit / "bin" / "nvcc")
        variables.append(f"-DCUDAToolkit_ROOT={toolkit}")
        if is_for_here:
            flags = f"-Wl,-rpath,{toolkit / 'lib'}"
            variables += [f"-DCMAKE_EXE_LINKER_FLAGS={flags}", f"-DCMAKE_SHARED_LINKER_FLAGS={flags}"]
    os.environ["CUDACXX"] = compiler
    return variables


def choose_preset(device):
    """The CMake preset for this machine, and its variables: CUDA wherever there is a GPU, unless --device cpu asks otherwise."""
    if device == "cpu" or (device == "auto" and not has_nvidia_gpu()):
        return "release", []
    return "cuda", use_cuda()


def jobs():
    """Parallel compilers: one a core, but at most one for every 1.5 GiB of memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, int(memory / (1.5 * 2**30))))


def configure_and_build(preset, targets=(), variables=()):
    step(f"configure {preset}", ["cmake", "--preset", preset, *variables], cwd=ROOT)
    command = ["cmake", "--build", "--preset", preset, "-j", str(jobs())]
    if targets:
        command += ["--target", *targets]
    step(f"build {preset} (first time: minutes)", command, cwd=ROOT)


def build(device, everything=False):
    """Builds the product, or everything, and leaves build/koho and build/engine.so."""
    preset, variables = choose_preset(device)
    configure_and_build(preset, () if everything else ["koho", "engine_so"], variables)
    for name, made in {"koho": f"{preset}/src/app/koho", "engine.so": f"{preset}/src/capi/engine.so"}.items():
        link = ROOT / "build" / name
        link.unlink(missing_ok=True)
        link.symlink_to(made)
    return preset


def wheel(device):
    """Builds the program without its tests, with the CUDA backend where a GPU or a compiler for it is, and packs the wheel."""
    has_cuda = device == "cuda" or (device == "auto" and (has_nvidia_gpu() or find_cuda_compiler() is not None))
    # The wheel's libraries are the PyPI packages of whoever installs it (tools/make_wheel.py), not this machine's.
    variables = use_cuda(is_for_here=False) if has_cuda else []
    say(f"==> wheel {'with' if has_cuda else 'without'} the CUDA backend")
    configure_and_build("wheel", ["koho", "engine_so"], [*variables, f"-DKOHO_CUDA={'ON' if has_cuda else 'OFF'}"])
    step("pack the wheel", [sys.executable, str(ROOT / "tools" / "make_wheel.py"), "--build", str(ROOT / "build" / "wheel")])
    made = next((ROOT / "build" / "dist").glob("koho-*.whl"))
    say(f"==> {made.relative_to(ROOT)} is ready, {made.stat().st_size / 1e6:.1f} MB")


def run_koho(arguments, stdin=None):
    result = subprocess.run([str(ROOT / "build" / "koho"), *arguments], capture_output=True, text=True, input=stdin,
                            check=False)
    if result.returncode != 0:
        raise Failure(f"koho {' '.join(arguments)} failed with exit code {result.returncode}: {result.stderr.strip()}")
    return result.stdout


def gpus_of(options):
    return options.gpus if options.gpus is not None else int(options.device != "cpu" and has_nvidia_gpu())


def smoke(options):
    """Asks a model: the text is tokenised by koho, and by transformers where that is installed; each prompt is answered alone, all
    together, and step by step, through engine.so. The embedded model is also asked through the program; its text must have
    what a right answer has, its ids must be the reference implementation's. Where torch is installed, the first ids must be
    those of transformers."""
    started = time.monotonic()
    engine_path = options.engine
    if engine_path is None:
        build(options.device)
        engine_path = ROOT / "build" / "engine.so"
    try:
        with Engine(options.model, max_batch=16, num_gpus=gpus_of(options), num_threads=options.threads, library=engine_path) as engine:
            words = ask(engine, pathlib.Path(engine.model_dir), options)
    except (EngineError, FetchError, RequestRefused, OSError) as error:
        raise Failure(str(error)) from error
    say(f"==> smoke passed: {words}, {time.monotonic() - started:.0f} s in all")


def ask(engine, model, options):
    """smoke()'s questions. Returns what was found, in words."""
    embedded = model.resolve() == MODEL
    cases = smoke_cases.prompts(model)
    say(f"==> tokenise {len(cases)} prompts")
    ids = [engine.request("/tokenize", case["request"])["tokens"] for case in cases]
    goldens = smoke_cases.golden_answers() if embedded else {}
    for case, ours in zip(cases, ids):
        if case["name"] in goldens and ours != goldens[case["name"]]["prompt_ids"]:
            raise Failure(f"{case['name']}: the prompt's ids are not the reference's")
    theirs = smoke_cases.transformers_ids(model, cases)
    if isinstance(theirs, str):
        say(f"    not compared with transformers.AutoTokenizer: {theirs}")
    else:
        for case, one, other in zip(cases, ids, theirs):
            if one != other:
                raise Failure(f"{case['name']}: the tokenizers differ: koho {one[:20]}…, transformers {other[:20]}…")
        say(f"    ok       {sum(map(len, ids))} ids as transformers.AutoTokenizer's")

    say("==> ask the model" + (" through koho run" if embedded and options.engine is None else ""))
    each = [SamplingParams(max_tokens=min(case["max_tokens"], len(goldens[case["name"]]["ids"])) if embedded else case["max_tokens"])
            for case in cases]
    if embedded and options.engine is None:
        alone = [ask_program(prompt, params.max_tokens) for prompt, params in zip(ids, each)]
    else:
        alone = [engine.generate(prompt, params).token_ids for prompt, params in zip(ids, each)]
    wrong = []
    for case, answer in zip(cases, alone):
        text = engine.request("/detokenize", {"tokens": answer})["prompt"]
        agrees, words = smoke_cases.agreement(answer, goldens[case["name"]]) if embedded else (len(answer) > 0, f"{len(answer)} tokens")
        right = case["expect"] is None or re.sub(r"<\|\w+\|>$", "", case["expect"]) in text
        say("    prompt   " + str(smoke_cases.question(case)).strip().replace("\n", "\n             "))
        say("    answer   " + text.strip().replace("\n", "\n             "))
        say(f"    {'ok' if agrees and right else 'WRONG'}       {'ids against the reference: ' if embedded else ''}{words}"
            f"{'' if case['expect'] is None else '; right' if right else '; should contain ' + repr(case['expect'])}\n")
        if not (agrees and right):
            wrong.append(case["name"])
    if wrong:
        raise Failure(f"{len(wrong)} of {len(cases)} answers are wrong: {'; '.join(wrong)}")

    say("==> ask again, all prompts together")
    together = [answer.token_ids for answer in engine.batch(ids, each)]
    states = [engine.prefill(prompt, params) for prompt, params in zip(ids, each)]
    stepped = [[] for _ in cases]
    while not all(state.done for state in states):
        for tokens, token in zip(stepped, engine.decode_batch(states)):
            tokens += [token] if token >= 0 else []
    for form, answers in (("add_request and poll_requests", together), ("prefill and run_batch_decode", stepped)):
        checked = [smoke_cases.agreement(found, goldens[case["name"]]) for found, case in zip(answers, cases)] if embedded else []
        wrong = [f"{case['name']} ({words})" for case, (agrees, words) in zip(cases, checked) if not agrees]
        if wrong:
            raise Failure(f"{form}: {len(wrong)} of {len(cases)} answers are wrong: {'; '.join(wrong)}")
        # On the CPU a request's tokens do not depend on what else is in the batch (batch invariance).
        if not gpus_of(options) and answers != alone:
            raise Failure(f"{form}: the answers are not those given one by one")
        say(f"    ok       {form}: {len(cases)} answers{' as the reference' if embedded else ''}")

    say("==> compare with transformers' greedy answers")
    few = smoke_cases.REFEREED
    references = smoke_cases.transformers_answers(model, ids[:few])
    if isinstance(references, str):
        say(f"    not compared: {references}")
        return f"{len(cases)} prompts answered" + (" as the reference implementation answers them" if embedded else "")
    for case, answer, reference in zip(cases, alone, references):
        agrees, words = smoke_cases.agreement(answer, reference)
        say(f"    {'ok' if agrees else 'WRONG'}       {case['name']}: {words}")
        if not agrees:
            raise Failure(f"{case['name']}: the answer is not transformers': {words}")
    return f"{len(cases)} prompts answered, {len(references)} of them compared with transformers"


def ask_program(prompt_ids, max_tokens):
    """The embedded model's greedy answer through `koho run`."""
    ids_file = ROOT / "build" / "smoke-ids.json"
    ids_file.write_text(json.dumps(prompt_ids))
    line = run_koho(["run", "--model", str(MODEL), "--prompt-ids", str(ids_file), "--temperature", "0", "--max-tokens",
                     str(max_tokens), "--json"])
    return json.loads(line.splitlines()[-1])["ids"]


def tokenizer_corpus(model, koho, referee):
    """Token ids of koho's own documentation, to cut prompts from. With `referee` ("transformers") the same texts are
    encoded by AutoTokenizer, too; any difference is a failure."""
    if not koho.exists():
        raise Failure(f"{koho}, which encodes the prompts, is missing; ./run.py --build makes it")
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [part for path in files for part in path.read_text().split("\n\n") if part.strip()]
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    command = [str(koho), "tokenize", "--model", str(model), "--jsonl", "--allow-special"]
    result = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Failure(f"{' '.join(command)} failed: {result.stderr.strip()}")
    encoded = [json.loads(line) for line in result.stdout.splitlines()]
    if referee == "transformers":
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise Failure("--tokenizer transformers needs the Python package: pip install transformers") from error
        theirs = AutoTokenizer.from_pretrained(str(model))
        for text, ours in zip(texts, encoded):
            expected = theirs.encode(text, add_special_tokens=False)
            if ours != expected:
                raise Failure(f"the tokenizers differ on {text[:80]!r}: koho {ours[:20]}…, transformers {expected[:20]}…")
        say(f"    {len(texts)} texts, {sum(map(len, encoded))} tokens: koho and transformers agree on every id")
    return [token for ids in encoded for token in ids]


def bench(options):
    """Measures the engine through engine.so with a closed loop of equal requests (python/koho/bench.py)."""
    try:
        measure(options)
    except (EngineError, FetchError, OSError, ValueError, OverflowError) as error:
        raise Failure(str(error)) from error


def measure(options):
    """bench(), with errors as they come."""
    import random

    engine_path = options.engine
    if engine_path is None:
        build(options.device)
        engine_path = ROOT / "build" / "engine.so"
    gpus = gpus_of(options)
    say(f"==> bench {options.model} ({options.duration:g} s, {options.concurrency} requests at a time)")
    model = pathlib.Path(hub.directory(options.model))
    if (model / "tokenizer.json").exists():
        corpus = tokenizer_corpus(model, ROOT / "build" / "koho", options.tokenizer)
    elif options.tokenizer:
        raise Failure(f"{options.model} has no tokenizer.json to compare")
    else:
        corpus = None
    with Engine(model, library=engine_path, max_batch=options.concurrency, num_gpus=gpus,
                max_seq=options.prompt_len + options.gen_len, num_threads=options.threads) as engine:
        if corpus is None:
            draw = random.Random(options.seed)
            corpus = [draw.randrange(engine.info(Info.VOCAB_SIZE)) for _ in range(1 << 16)]
        prompts = loop.cut_prompts(corpus, options.prompt_len, options.prefix_len, options.seed)
        result = loop.run(engine, prompts, duration=options.duration, concurrency=options.concurrency,
                          prompt_len=options.prompt_len, gen_len=options.gen_len, sampling=loop.SAMPLINGS[options.sampling])
        result |= {"sampling": options.sampling, "model_id": options.model, "num_gpus": gpus,
                   "load_time_s": engine.info(Info.LOAD_US) / 1e6}
    say(loop.report(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
        say(f"written to {options.json}")


# The tests of what runs on several threads. All others under ThreadSanitizer: tools/nightly.py.
THREADED_TESTS = ("src/engine/engine_test", "tests/server/server_test")


def test_threads():
    """Builds the tests of engine and server under ThreadSanitizer, and runs them."""
    configure_and_build("tsan", [pathlib.Path(program).name for program in THREADED_TESTS])
    for program in THREADED_TESTS:
        step(f"{program} (tsan)", [str(ROOT / "build" / "tsan" / program), "--gtest_brief=1"], cwd=ROOT)


def test(device, sanitize):
    """Builds and runs every test: as users have the program, or, but for those about time and memory, under AddressSanitizer
    and UndefinedBehaviorSanitizer."""
    if sanitize == "threads":
        return test_threads()
    preset = "dev" if sanitize else build(device, everything=True)
    if sanitize:
        configure_and_build(preset)
    step(f"tests ({preset})", ["ctest", "--test-dir", f"build/{preset}", "--output-on-failure", "-j", str(jobs())],
         quiet=False, cwd=ROOT)


def serve(device, flags):
    """Builds, and becomes the server: what is not a flag of run.py goes to `koho serve`."""
    build(device)
    program = ROOT / "build" / "koho"
    say(f"==> koho serve {' '.join(flags)}")
    sys.stdout.flush()
    os.execv(program, [str(program), "serve", *flags])


def number(kind, least=None):
    """A flag's type: a number, `least` or more, or any finite one above 0."""
    def read(text):
        value = kind(text)
        if value < least if least is not None else not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be {'above 0' if least is None else f'{least} or more'}, found {text}")
        return value
    read.__name__ = kind.__name__
    return read


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    job = parser.add_mutually_exclusive_group(required=True)
    job.add_argument("--smoke", action="store_true", help="set up, build, run the embedded model and check its answers")
    job.add_argument("--test", action="store_true", help="set up, build and pass all tests")
    job.add_argument("--build", action="store_true", help="set up and build")
    job.add_argument("--wheel", action="store_true", help="set up, build and pack the Python wheel")
    job.add_argument("--bench", action="store_true", help="set up, build and measure")
    job.add_argument("--serve", action="store_true", help="set up, build and serve; takes koho serve's flags")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto",
                        help="what to build for: auto takes CUDA where there is an NVIDIA GPU")
    flags = parser.add_argument_group("with some of the above, as each says")
    flag = flags.add_argument
    flag("--sanitize", nargs="?", const="memory", choices=["memory", "threads"],
         help="--test: under AddressSanitizer and UndefinedBehaviorSanitizer, or the tests of what runs on several threads "
              "under ThreadSanitizer")
    flag("--model", default=str(MODEL), help="--smoke, --bench, --serve: a model's directory or name (the embedded model)")
    flag("--engine", type=pathlib.Path, help="--smoke, --bench: an engine.so that is built already (build/engine.so)")
    flag("--gpus", type=number(int, 0),
         help="--smoke, --bench: 1: the GPU, 0: the CPU (1 where there is a GPU); koho runs on one GPU")
    flag("--threads", type=number(int, 0), default=0, help="--smoke, --bench, --serve: CPU threads (one a core)")
    flag("--duration", type=number(float), default=60, help="--bench: seconds that are measured (%(default)s)")
    flag("--concurrency", type=number(int, 1), default=64, help="--bench: requests under way at once (%(default)s)")
    flag("--prompt-len", type=number(int, 1), default=256, help="--bench: tokens of a prompt (%(default)s)")
    flag("--gen-len", type=number(int, 1), default=256, help="--bench: tokens of an answer (%(default)s)")
    flag("--prefix-len", type=number(int, 0), default=0, help="--bench: tokens that all prompts begin with (%(default)s)")
    flag("--sampling", choices=sorted(loop.SAMPLINGS), default="greedy",
         help="--bench: greedy, or brief: temperature 0.8, top-p 0.95, repetition penalty 1.1 (%(default)s)")
    flag("--tokenizer", choices=["transformers"],
         help="--bench: encode the prompts' texts with this Python package as well; a difference is a failure")
    flag("--seed", type=int, default=0, help="--bench: of the choice of prompts (%(default)s)")
    flag("--json", type=pathlib.Path, metavar="FILE", help="--bench: write the numbers there, too")
    options, further = parser.parse_known_args()
    job = next(name for name in JOBS if getattr(options, name))
    if further and job != "serve":
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    # A flag that the job does not read is a mistake of its user.
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    given = vars(parser.parse_known_args()[0])
    for action in flags._group_actions:
        users = re.findall(r"--(\w+)", action.help.split(":")[0])
        if action.dest in given and job not in users:
            parser.error(f"{action.option_strings[0]} does nothing with --{job}, only with --{', --'.join(users)}")
    if options.prefix_len > options.prompt_len:
        parser.error(f"--prefix-len ({options.prefix_len}) must not be above --prompt-len ({options.prompt_len})")
    if not smoke_cases.missing_packages("huggingface_hub"):
        os.environ.setdefault("KOHO_FETCH", hub.command())
    try:
        if not options.engine:
            set_up()
        if options.smoke:
            smoke(options)
        elif options.test:
            test(options.device, options.sanitize)
        elif options.wheel:
            wheel(options.device)
        elif options.bench:
            bench(options)
        elif options.serve:
            threads = ["--threads", str(options.threads)] if options.threads else []
            serve(options.device, ["--model", options.model, "--device", options.device, *threads, *further])
        else:
            build(options.device)
            say("==> build/koho and build/engine.so are ready")
    except Failure as failure:
        say(f"run.py: {failure}")
        return 1
    except KeyboardInterrupt:
        say("run.py: interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
