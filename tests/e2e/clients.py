#!/usr/bin/python3
"""Clients that go away, too many of them, and a daemon that has to end while they wait."""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time

from harness import NAMES, SLOW, Daemon, RawRequest, check, equal, eventually, golden, main, parallel, test

LLAMA, OPT = NAMES[0], NAMES[1]
IDS = golden(LLAMA)["greedy_ids_from_bos"]
NOTICED = 0.05 * (10 if SLOW else 1)  # seconds
SLOW_STEPS = "host,mem=64M,layer_ms=4"  # about 20 ms a token
SLOW_LOAD = "host,mem=64M,link=1M"  # a second a model


def cancelled(d):
    return d.metrics().sum("computron_requests_total", outcome="cancelled")


def unfinished(d):
    return sum(m["queued"] + m["running"] for m in d.control("GET", "/status").json["models"])


def idle(d):
    return unfinished(d) == 0


def time_to_notice(d, begin):
    """Seconds from the moment a client is gone to the moment its request counts as cancelled. The median of some tries:
    one alone could meet a slow check by luck, or a busy machine by bad luck."""
    took = []
    for _ in range(5):
        before = cancelled(d)
        gone = begin(d)
        gone()
        since = time.monotonic()
        eventually(lambda: cancelled(d) > before, "the request of a client that has gone counts as cancelled", 5)
        took.append(time.monotonic() - since)
        eventually(lambda: idle(d), "its work has ended", 5)
    print("# noticed after ms:", *(f"{t * 1e3:.0f}" for t in sorted(took)))
    check(statistics.median(took) < NOTICED, f"noticed after {took} s")


def running(stream):
    def begin(d):
        request = RawRequest(d, LLAMA, IDS[:1], 400, stream=stream, ignore_eos=True)
        if stream:
            check(b"200 OK" in request.read(), "a stream begins")
        else:
            eventually(lambda: not idle(d), "the request runs")
            time.sleep(0.05)
        return request.close

    return begin


@test
def disconnect_while_it_runs():
    with Daemon(device=SLOW_STEPS) as d:
        d.load(LLAMA)
        time_to_notice(d, running(stream=False))
        equal(d.ids(LLAMA, IDS[:1], 4), IDS[1:5], "after that")


@test
def disconnect_of_a_stream():
    with Daemon(device=SLOW_STEPS) as d:
        d.load(LLAMA)
        time_to_notice(d, running(stream=True))
        equal(d.ids(LLAMA, IDS[:1], 4), IDS[1:5], "after that")


@test
def disconnect_while_its_model_loads():
    def begin(d):
        d.evict(LLAMA)
        request = RawRequest(d, LLAMA, IDS[:1])
        check(not request.readable(0.3), "a model that takes a second to load answered at once")
        return request.close

    def begin_stream(d):
        d.evict(LLAMA)
        request = RawRequest(d, LLAMA, IDS[:1], stream=True)
        time.sleep(0.3)
        return request.close

    with Daemon(device=SLOW_LOAD) as d:
        time_to_notice(d, begin)
        time_to_notice(d, begin_stream)


@test
def client_that_only_ends_its_half():
    """It sends no more and waits for the answer: that is no leaving."""
    with Daemon(device=SLOW_STEPS) as d:
        for stream in (False, True):
            connection = d.connection()
            body = {"model": LLAMA, "prompt": IDS[:1], "max_tokens": 20, "temperature": 0, "return_token_ids": True}
            connection.request("POST", "/v1/completions", json.dumps(dict(body, stream=stream)))
            connection.sock.shutdown(socket.SHUT_WR)
            response = connection.getresponse()
            equal(response.status, 200)
            text = response.read().decode()
            if stream:
                events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                check(text.endswith("data: [DONE]\n\n"), text[-100:])
            else:
                events = [json.loads(text)]
            equal(sum((e["choices"][0]["token_ids"] for e in events), []), IDS[1:21])
        equal(cancelled(d), 0, "cancelled requests")


@test
def client_that_is_killed():
    with Daemon(device=SLOW_STEPS) as d:
        body = {"model": LLAMA, "prompt": IDS[:1], "max_tokens": 400, "stream": True, "ignore_eos": True}
        url = f"http://127.0.0.1:{d.port}/v1/completions"
        header = ["-H", "Content-Type: application/json"]
        curl = ["curl", "-sN", url, *header, "-d", json.dumps(body)]
        with subprocess.Popen(curl, stdout=subprocess.PIPE) as client:
            client.stdout.readline()
            client.send_signal(signal.SIGKILL)
        eventually(lambda: cancelled(d) == 1, "the request of a killed client counts as cancelled", 5)
        eventually(lambda: idle(d), "its work has ended", 5)
        equal(d.ids(LLAMA, IDS[:1], 4), IDS[1:5], "after that")


@test
def deadline():
    with Daemon(device=SLOW_STEPS) as d:
        since = time.monotonic()
        reply = d.completions(LLAMA, IDS[:1], max_tokens=500, temperature=0, ignore_eos=True, timeout=0.5)
        equal(reply.status, 504, reply.body[:200])
        check(reply.error["message"], reply.body)
        check(time.monotonic() - since < 2 * (5 if SLOW else 1), "a deadline of 0.5 s took long")
        eventually(lambda: idle(d), "its work has ended", 5)


@test
def full_queue_is_429():
    with Daemon("--max-queue", "2", device=SLOW_LOAD) as d:
        first = [RawRequest(d, LLAMA, IDS[:1], 4) for _ in range(2)]
        eventually(lambda: unfinished(d) == 2, "two requests are there")
        reply = d.completions(LLAMA, IDS[:1], max_tokens=4)
        equal(reply.status, 429, reply.body[:200])
        check(int(reply.headers["Retry-After"]) >= 1, dict(reply.headers))
        check(reply.error["message"], reply.body)
        equal(d.metrics().sum("computron_requests_total", model=LLAMA, outcome="refused"), 1)
        for request in first:
            check(request.readable(60) and b"200 OK" in request.read(), "those that wait are served")
            request.close()


@test
def no_room_beside_a_pinned_model_is_503():
    with Daemon(device="host,mem=4M") as d:
        equal(d.control("POST", f"/models/{LLAMA}/pin").status, 200)
        equal(d.ids(LLAMA, IDS[:1], 4), IDS[1:5])
        other = next(name for name in NAMES if name != LLAMA)
        reply = d.completions(other, IDS[:1], max_tokens=4)
        equal(reply.status, 503, reply.body[:200])
        check(int(reply.headers["Retry-After"]) >= 1, dict(reply.headers))
        check("pinned" in reply.error["message"], reply.body)
        equal(d.control("POST", f"/models/{LLAMA}/unpin").status, 200)
        equal(d.completions(other, IDS[:1], max_tokens=4).status, 200)


@test
def more_kv_than_the_device_has_is_400():
    with Daemon(device="host,mem=64M") as d:
        d.load(LLAMA)
        m = d.metrics()
        need = sum(m.sum("computron_bytes", tier="device", state=state) for state in ("resident", "workspace"))
    with Daemon(device=f"host,mem={int(need) + 131072}") as d:
        reply = d.completions(LLAMA, IDS[:1], max_tokens=400)
        equal(reply.status, 400, reply.body[:200])
        equal(reply.error["param"], "max_tokens")
        equal(d.ids(LLAMA, IDS[:1], 8), IDS[1:9])


@test
def slow_reader_does_not_stop_the_others():
    with Daemon() as d:
        slow = [RawRequest(d, LLAMA, IDS[:1], 400, stream=True, ignore_eos=True, logprobs=5) for _ in range(4)]
        for _ in range(3):
            equal(d.ids(LLAMA, IDS[:1], 20), IDS[1:21])
        for request in slow:
            request.close()


@test
def many_clients_at_once():
    with Daemon() as d:
        def client(i):
            for _ in range(4):
                equal(d.ids(NAMES[i % 3], [1], 20), golden(NAMES[i % 3])["greedy_ids_from_bos"][1:21])

        parallel(*(lambda i=i: client(i) for i in range(24)))
        equal(d.metrics().sum("computron_requests_total", outcome="ok"), 96)


@test
def term_while_loading():
    with Daemon(device=SLOW_LOAD) as d:
        request = RawRequest(d, LLAMA, IDS[:1])
        check(not request.readable(0.3), "a model that takes a second to load answered at once")
        since = time.monotonic()
        d.stop()
        check(time.monotonic() - since < 5 * (4 if SLOW else 1), "the end took", time.monotonic() - since, "s")


@test
def term_while_streaming():
    with Daemon(device=SLOW_STEPS) as d:
        streams = [RawRequest(d, name, [1], 400, stream=True, ignore_eos=True) for name in (LLAMA, LLAMA, OPT)]
        for request in streams:
            check(b"200 OK" in request.read(), "a stream begins")
        d.stop()
        for request in streams:
            text = b""
            while True:
                piece = request.read()
                if not piece:
                    break
                text += piece
            check(b"[DONE]" not in text or b"error" in text, "a stream that was cut off says that it is whole", text[-200:])


@test
def second_term_and_int():
    with Daemon(device=SLOW_LOAD) as d:
        request = RawRequest(d, LLAMA, IDS[:1])
        check(not request.readable(0.2), "a model that takes a second to load answered at once")
        for number in (signal.SIGINT, signal.SIGTERM):
            if d.process.poll() is None:
                os.kill(d.process.pid, number)
        equal(d.wait(10), 0, "exit status")
        d.stopped = True
        check(not os.path.exists(d.socket), "the control socket is still there")
        request.close()


if __name__ == "__main__":
    sys.exit(main("clients"))
