#!/usr/bin/python3
"""Everything at once, seeded: clients that stay, leave, are late, stream; garbage on the wire; models loaded, evicted, pinned and
unpinned from the side. Every answer is right or a clean refusal, and afterwards nothing is held by anybody."""

import http.client
import json
import random
import socket
import sys
import threading
import time

from harness import LONG, MODELS, NAMES, Daemon, check, commit_seed, equal, eventually, golden, main, test

SECONDS = 60 if LONG else 5
GARBAGE = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{",
    b"\x00\xff\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n\r\n",
)
IDS = {name: golden(name)["greedy_ids_from_bos"] for name in NAMES}


def random_body(rng):
    name, start, n = rng.choice(NAMES), rng.randrange(1, 60), rng.randrange(0, 40)
    body = {"model": name, "prompt": IDS[name][:start], "max_tokens": n, "temperature": 0, "return_token_ids": True}
    body.update(rng.choice(({}, {}, {"n": 3}, {"stream": True}, {"timeout": rng.choice((0.001, 0.05, 1))})))
    return body, IDS[name][start : start + n]


def streamed_ids(data):
    """The ids of a stream, or None when it ended with an error."""
    ids = []
    for event in data.decode().split("\n\n"):
        if event.startswith("data: {"):
            event = json.loads(event[6:])
            if "error" in event:
                return None
            ids += sum((choice.get("token_ids") or [] for choice in event["choices"]), [])
    return ids


def ask(d, rng, served):
    body, want = random_body(rng)
    connection = d.connection(60)
    if rng.random() < 0.25:
        connection.request("POST", "/v1/completions", json.dumps(body))
        time.sleep(rng.random() * 0.03)
        connection.sock.close()
        return
    reply = d.request("POST", "/v1/completions", body, connection=connection)
    check(reply.status in (200, 429, 503, 504), f"{reply.status} {reply.body[:200]!r}")
    if reply.status == 200 and body.get("stream"):
        ids = streamed_ids(reply.body)
        check(ids is None or ids == want, f"stream {ids}, expected {want}")
    elif reply.status == 200:
        for choice in reply.json["choices"]:
            equal(choice["token_ids"], want, body["model"])
    served.append(reply.status)


def client(d, rng, end, served):
    while time.time() < end:
        if rng.random() < 0.05:
            with socket.create_connection(("127.0.0.1", d.port)) as s:
                s.sendall(rng.choice(GARBAGE))
                time.sleep(rng.random() * 0.05)
            continue
        try:
            ask(d, rng, served)
        except (OSError, http.client.HTTPException) as e:
            check(d.process.poll() is None, f"the daemon has died: {e}")


def controller(d, rng, end):
    while time.time() < end:
        verb = rng.choice(("load", "evict", "evict", "pin", "unpin", "unpin"))
        reply = d.control("POST", f"/models/{rng.choice(NAMES)}/{verb}")
        check(reply.status in (200, 204, 409, 507), f"{verb}: {reply.status} {reply.body[:200]!r}")
        time.sleep(rng.random() * 0.02)


def rest(d):
    """Nobody holds anything: no bytes but free ones, no request."""
    for name in NAMES:
        d.control("POST", f"/models/{name}/unpin")
        eventually(lambda: d.control("POST", f"/models/{name}/evict").status in (200, 204), f"{name} can be evicted")
    m = d.metrics()
    for tier in ("host", "device"):
        equal(m.sum("computron_bytes", tier=tier), m.sum("computron_bytes", tier=tier, state="free"), f"{tier}: used bytes")
    equal(m.sum("computron_queue_depth"), 0, "queue")


def storm(*args, **options):
    seed, served, failures = commit_seed(), [], []
    with Daemon(*args, **options) as d:
        end = time.time() + SECONDS

        def guarded(fn, *args):
            try:
                fn(*args)
            except Exception as e:  # told by the main thread
                failures.append(e)

        threads = [
            threading.Thread(target=guarded, args=(client, d, random.Random(seed + i), end, served)) for i in range(8)
        ]
        threads.append(threading.Thread(target=guarded, args=(controller, d, random.Random(seed - 1), end)))
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if failures:
            raise failures[0]
        check(served.count(200) > 10, f"{served.count(200)} answers of {len(served)}")
        rest(d)


@test
def a_device_for_one_model():
    storm(device="host,mem=4M", pool="plain,size=64M")


@test
def a_slow_link_and_a_pool_for_two():
    storm(device="host,mem=4M,link=20M", pool="plain,size=4M")


@test
def short_queues():
    storm("--max-queue", "3", device="host,mem=4M,link=20M", pool="plain,size=8M")


@test
def four_ranks_a_model():
    models = sum((["--model", f"{name}={MODELS}/{name},tp=2,pp=2"] for name in NAMES), [])
    storm(*models, models_dir=None, device="host:4,mem=3M,link=20M", pool="plain,size=8M")


if __name__ == "__main__":
    sys.exit(main("chaos"))
