#!/usr/bin/python3
"""What the process is given: few descriptors, none of the first three, little address space, a log that may not grow."""

import http.client
import os
import re
import socket
import subprocess
import sys
import time

from harness import NAMES, SLOW, Daemon, Skip, check, equal, eventually, golden, main, parallel, test

LLAMA = NAMES[0]
IDS = golden(LLAMA)["greedy_ids_from_bos"]
SMALL = {"device": "host,mem=8M", "pool": "plain,size=8M"}


def limited(**limits):
    return ["prlimit", *(f"--{name}={value}:{value}" for name, value in limits.items()), "--"]


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def answers(d):
    for name in NAMES:
        equal(d.ids(name, [1], 8), golden(name)["greedy_ids_from_bos"][1:9], name)


def cpu_seconds(d):
    with open(f"/proc/{d.process.pid}/stat", encoding="utf-8") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def served(d):
    """False when there are more connections than the daemon takes: it closes the rest."""
    try:
        answers(d)
    except ConnectionError:
        return False
    return True


def ask_for_many(d, statuses):
    try:
        reply = d.completions(LLAMA, [1], n=8, max_tokens=30, temperature=0, return_token_ids=True)
    except ConnectionError:
        return  # more connections than their share, with those that have just ended
    statuses.append(reply.status)
    check(reply.status in (200, 429, 503), f"{reply.status} {reply.body[:200]!r}")
    if reply.status == 200:
        for choice in reply.json["choices"]:
            equal(choice["token_ids"], IDS[1:31])
    else:
        check(int(reply.headers["Retry-After"]) >= 1, dict(reply.headers))


@test
def more_clients_than_descriptors():
    with Daemon(prefix=limited(nofile=64), **SMALL) as d:
        answers(d)
        clients = [socket.create_connection(("127.0.0.1", d.port), 60) for _ in range(100)]
        time.sleep(0.2)
        equal(d.control("GET", "/status").status, 200)
        before = cpu_seconds(d)
        time.sleep(1)
        check(cpu_seconds(d) - before < 0.3, "seconds of CPU in a second of waiting:", cpu_seconds(d) - before)
        for client in clients:
            client.close()
        eventually(lambda: served(d), "a client is served again")


@test
def more_requests_than_descriptors():
    with Daemon(prefix=limited(nofile=96), **SMALL) as d:
        statuses = []
        parallel(*(lambda: [ask_for_many(d, statuses) for _ in range(4)] for _ in range(8)))
        print("# statuses:", *sorted(statuses))
        check(200 in statuses, "nobody was served")
        eventually(lambda: served(d), "a client is served again")


@test
def the_soft_limit_is_raised():
    with Daemon(prefix=["prlimit", "--nofile=64:512", "--"], **SMALL) as d:
        with open(f"/proc/{d.process.pid}/limits", encoding="utf-8") as f:
            equal(re.search(r"Max open files +(\d+)", f.read())[1], "512")


@test
def standard_descriptors_closed():
    """What the daemon opens does not get their numbers: the log would be written into it."""
    d = Daemon(**SMALL)
    closing = ["/bin/sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh"]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        d.port = s.getsockname()[1]
    d.command[d.command.index("127.0.0.1:0")] = f"127.0.0.1:{d.port}"
    d.command = closing + d.command
    d.spawn()
    try:
        eventually(lambda: os.path.exists(d.socket), "the daemon has started")
        for number in range(3):
            equal(os.readlink(f"/proc/{d.process.pid}/fd/{number}"), "/dev/null", f"descriptor {number}")
        answers(d)
        d.stop()
    finally:
        d.kill()


@test
def little_address_space():
    """OpenBLAS never comes back when there is no room for its buffer. Either the daemon says at its start that there is too
    little, or what it accepts comes to an end."""
    if SLOW:
        raise Skip("sanitizers map more than any limit")
    enough = 0
    for mib in (150, 200, 250, 300, 400, 600):
        d = Daemon(prefix=limited(**{"as": mib << 20}), **SMALL)
        d.spawn()
        try:
            eventually(lambda: "listening on" in d.log or d.process.poll() is not None, "a start or an end")
            if d.process.poll() is not None:
                equal(d.process.returncode, 1, d.log)
                check(" error " in d.log.splitlines()[-1], d.log)
                continue
            d.port = int(re.search(r"listening on http://127\.0\.0\.1:(\d+)", d.log)[1])
            parallel(*(lambda: pressed(d) for _ in range(40)))
            enough += 1
            d.stop()
        finally:
            d.kill()
    check(enough, "no limit was enough")


def pressed(d):
    """A refusal and a connection that is closed for want of a thread are answers; silence is none."""
    try:
        body = {"model": LLAMA, "prompt": [1], "n": 16, "max_tokens": 30, "temperature": 0, "return_token_ids": True}
        reply = d.request("POST", "/v1/completions", body, connection=d.connection(20))
    except TimeoutError as e:
        raise AssertionError("no answer") from e
    except (OSError, http.client.HTTPException):
        return
    check(reply.status in (200, 429, 503), f"{reply.status} {reply.body[:200]!r}")
    if reply.status == 200:
        for choice in reply.json["choices"]:
            equal(choice["token_ids"], IDS[1:31])


@test
def log_that_may_not_grow():
    size = 64 << 20
    d = Daemon(prefix=limited(fsize=size), **SMALL)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        d.port = s.getsockname()[1]
    d.command[d.command.index("127.0.0.1:0")] = f"127.0.0.1:{d.port}"
    with open(d.log_path, "ab") as log:
        log.truncate(size)
        d.process = subprocess.Popen(d.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        # The log, which would say so, is full.
        eventually(lambda: d.process.poll() is not None or listens(d.port), "the daemon has started")
        equal(d.process.poll(), None, "exit status")
        answers(d)
        d.stop()
    finally:
        d.kill()
        os.unlink(d.log_path)


if __name__ == "__main__":
    sys.exit(main("limits"))
