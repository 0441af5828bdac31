#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""koho.ray on a local Ray cluster of two worker nodes, whose actors' processes, and then a node, are killed while they answer.

    python3 -m venv VENV && VENV/bin/pip install 'ray[data,serve]'
    VENV/bin/python tools/ray_check.py [--prompts 2000] [--json FILE]

Ray Data: every prompt is answered once, with the tokens that one engine alone answers (greedy and seeded). Ray Serve: every
request is answered, in spite of a killed replica; none of the streams that had begun is cut without an error. Needs
./run.py --build. Exits non-zero on a fault.
"""

import argparse
import collections
import json
import os
import pathlib
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
MODEL = str(ROOT / "models" / "tiny")
ENGINE = {"num_threads": 1, "max_batch": 32}
STAGE = "MapWorker(MapBatches(ChatStage))"
OPTIONS = {"max_tokens": 16, "enable_thinking": False}


def processes_of(actor_class):
    """Process ids of the live actors of a class."""
    from ray.util.state import list_actors
    return [actor.pid for actor in list_actors(detail=True) if actor.class_name.endswith(actor_class) and actor.state == "ALIVE" and actor.pid]


def restarts_of(actor_class):
    """How often actors of a class were started anew."""
    from ray.util.state import list_actors
    return sum(int(actor.num_restarts) for actor in list_actors(detail=True) if actor.class_name.endswith(actor_class))


def kill_one(actor_class, when, kill=None):
    """Kills one actor's process, or calls `kill`, as soon as `when()` holds; returns its thread, whose `killed` says what died."""
    def wait():
        while not when():
            time.sleep(0.02)
        if kill is not None:
            thread.killed.append(kill())
            return
        victims = processes_of(actor_class)
        os.kill(victims[0], signal.SIGKILL)
        thread.killed.append(victims[0])
    thread = threading.Thread(target=wait, daemon=True)
    thread.killed = []
    thread.start()
    return thread


def rows(count):
    return [{"id": i, "prompt": f"What is {i % 90 + 3} + {i // 90 + 4}?", "seed": i if i % 2 else None} for i in range(count)]


def expected(count):
    """The answers of one engine alone, by id."""
    import asyncio

    from koho.ray import ChatStage
    stage = ChatStage(MODEL, {"max_batch": 64}, OPTIONS)
    batch = {name: [row[name] for row in rows(count)] for name in ("id", "prompt", "seed")}
    answers = asyncio.run(stage(batch))
    return dict(zip(answers["id"], answers["answer"]))


def check_data(count, progress, kill=None):
    """Prompts through chat(), and in their middle one actor's process killed, or what `kill` kills. Returns the record and
    what is wrong."""
    import ray

    from koho.ray import chat
    alone = expected(count)
    dataset = chat(ray.data.from_items(rows(count), override_num_blocks=count // 40), MODEL, replicas=2, batch_size=20, engine=ENGINE,
                   actor={"num_cpus": 1}, **OPTIONS)
    answered = []
    begun = time.monotonic()
    killer = kill_one(STAGE, lambda: len(answered) >= count * 2 // 5, kill)
    restarts = restarts_of(STAGE)
    for row in dataset.iter_rows():
        answered.append(row)
        if len(answered) in (1, count // 2, count - 1):
            progress(f"{len(answered)} answers, actors' processes {processes_of(STAGE)}, killed {killer.killed}")
    seconds = time.monotonic() - begun
    killer.join(10)
    restarts = restarts_of(STAGE) - restarts
    times = collections.Counter(row["id"] for row in answered)
    differ = sum(row["answer"] != alone[row["id"]] for row in answered)
    record = {"prompts": count, "answers": len(answered), "killed": len(killer.killed), "restarts": restarts,
              "lost": count - len(times), "doubled": sum(times.values()) - len(times), "refused": sum(bool(row["error"]) for row in answered),
              "differ_from_one_engine": differ, "seconds": round(seconds, 1)}
    faults = [name for name in ("lost", "doubled", "refused", "differ_from_one_engine") if record[name]]
    if record["killed"] != 1 or restarts != 1:
        faults.append("not one actor was killed and started anew")
    return record, faults


def post(port, body):
    """(status, text, whether a stream ended with [DONE])."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            data = answer.read().decode()
            status = answer.status
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), False
    if not body.get("stream"):
        return status, json.loads(data)["choices"][0]["message"]["content"], True
    events = [line[6:] for line in data.split("\n") if line.startswith("data: ")]
    whole = events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    error = [chunk["error"] for chunk in chunks if "error" in chunk]
    return status, error or "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks), whole


def check_serve(count, port):
    """HTTP requests, every fourth a stream, from 16 threads; one of two replicas is killed in the middle."""
    import concurrent.futures

    from ray import serve

    from koho.ray import deployment
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(deployment(MODEL, name="tiny", replicas=2, engine=ENGINE, actor={"num_cpus": 1}), route_prefix="/")
    alone = expected(count)
    status, answer, _ = post(port, {"messages": [{"role": "bad", "content": ""}]})
    faults = [] if status == 400 and "role must be one of" in answer.replace("messages[0].role: ", "role ") else [f"a bad request got {status}: {answer}"]
    done = []
    killer = kill_one("ServeReplica:default:koho", lambda: len(done) >= count * 2 // 5)

    def ask(row):
        from koho.ray import seed_of
        body = {"messages": [{"role": "user", "content": row["prompt"]}], **OPTIONS, "stream": row["id"] % 4 == 0,
                "seed": seed_of(row) if row["seed"] is None else row["seed"]}
        done.append((row["id"], *post(port, body)))

    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, rows(count)))
    seconds = time.monotonic() - begun
    killer.join(10)
    cut = [one for one in done if isinstance(one[2], list)]
    record = {"requests": count, "answered": sum(one[1] == 200 and one[3] for one in done), "killed": len(killer.killed),
              "streams_ended_by_an_error": len(cut), "seconds": round(seconds, 1),
              "differ_from_one_engine": sum(one[1] == 200 and one[3] and one[2] != alone[one[0]] for one in done)}
    if record["answered"] + len(cut) != count:
        faults.append("unanswered: " + str([one for one in done if not (one[1] == 200 and one[3]) and one not in cut][:3]))
    if record["differ_from_one_engine"] or record["killed"] != 1:
        faults.append("answers differ, or no replica was killed")
    serve.shutdown()
    return record, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=2000, help="of Ray Data (%(default)s)")
    parser.add_argument("--requests", type=int, default=400, help="of Ray Serve (%(default)s)")
    parser.add_argument("--port", type=int, default=8199, help="of Ray Serve's proxy (%(default)s)")
    parser.add_argument("--json", type=pathlib.Path, help="write the record to this file")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT / "python") + os.pathsep + os.environ.get("PYTHONPATH", "")  # of Ray's processes
    import ray
    from ray.cluster_utils import Cluster
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": True})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)

    def progress(text):
        print(f"    {text}", flush=True)
    record = {"ray": ray.__version__, "nodes": len(ray.nodes())}
    faults = []

    def kill_node():
        """A worker node with its actor and its objects, as when a machine is lost. The head has a CPU for the actor."""
        cluster.remove_node(nodes[1], allow_graceful=False)
        return "node"
    for name, work in (("data", lambda: check_data(options.prompts, progress)),
                       ("serve", lambda: check_serve(options.requests, options.port)),
                       ("data, a node lost", lambda: check_data(max(500, options.prompts // 4), progress, kill_node))):
        print(f"==> {name}", flush=True)
        record[name], found = work()
        faults += [f"{name}: {fault}" for fault in found]
        print(f"    {record[name]}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    ray.shutdown()
    cluster.shutdown()
    for fault in faults:
        print(f"FAULT {fault}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
