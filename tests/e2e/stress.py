#!/usr/bin/python3
"""Twelve models at four placements on four devices that hold three of them, 32 clients that stay, leave, stream and are late, and
a pool that loses frames, and less KV than they want: every answer is right, nothing is left afterwards, and no request waits
for nothing.

20 s long; 10 minutes in make check-long. STRESS_SUMMARY: a file to which the figures are written."""

import http.client
import json
import os
import random
import re
import sys
import threading
import time

from harness import LONG, MODELS, NAMES, SLOW, Daemon, check, commit_seed, equal, golden, main, parallel, test

SECONDS = 600 if LONG else 20
CLIENTS = 32
PLACEMENTS = ("devices={0}", "tp=2,devices=0,1", "pp=2,devices=2,3", "tp=2,pp=2")
BASES = {f"{name}.{i}": name for name in NAMES for i in range(len(PLACEMENTS))}
IDS = {name: golden(name)["greedy_ids_from_bos"] for name in NAMES}
LINE = re.compile(r"request of model (\S+): (\w+) after (\d+) tokens: ([\d.]+) ms: (.*)$", re.M)
PHASES = ("queue", "load", "compute", "unexplained")


def models():
    """--model of all of them: each sample at each placement, on one device each by turns."""
    for i, (alias, name) in enumerate(BASES.items()):
        yield from ("--model", f"{alias}={MODELS}/{name},{PLACEMENTS[i % len(PLACEMENTS)].format(i % 3)}")


def ids_of(reply, stream):
    """The token ids of an answer; None when a stream ended with an error."""
    if not stream:
        return reply.json["choices"][0]["token_ids"]
    ids = []
    for event in reply.body.decode().split("\n\n"):
        if event.startswith("data: {"):
            event = json.loads(event[6:])
            if "error" in event:
                return None
            ids += sum((choice.get("token_ids") or [] for choice in event["choices"]), [])
    return ids


def ask(d, rng, served):
    alias = rng.choice(list(BASES))
    known = IDS[BASES[alias]]
    start = rng.randrange(1, len(known))
    n = rng.randrange(0, min(60, len(known) - start))
    body = {"model": alias, "prompt": known[:start], "max_tokens": n, "temperature": 0, "return_token_ids": True}
    body.update(rng.choice(({}, {}, {"stream": True}, {"timeout": rng.choice((0.02, 0.5, 5))})))
    connection = d.connection(120)
    if rng.random() < 0.2:
        connection.request("POST", "/v1/completions", json.dumps(body))
        time.sleep(rng.random() * 0.2)
        connection.sock.close()
        return
    reply = d.request("POST", "/v1/completions", body, connection=connection)
    check(reply.status in (200, 429, 503, 504), f"{alias}: {reply.status} {reply.body[:200]!r}")
    served.append(reply.status)
    if reply.status != 200:
        return
    want = known[start : start + n]
    ids = ids_of(reply, body.get("stream"))
    if ids is None:
        return
    if "timeout" in body:
        want = want[: len(ids)]
    equal(ids, want, alias)


def client(d, rng, end, served):
    while time.time() < end:
        try:
            ask(d, rng, served)
        except (OSError, http.client.HTTPException) as e:
            check(d.process.poll() is None, f"the daemon has died: {e}")


def descriptors(d):
    return len(os.listdir(f"/proc/{d.process.pid}/fd"))


def memory(d):
    """Anonymous memory in MiB."""
    with open(f"/proc/{d.process.pid}/status", encoding="utf-8") as f:
        return int(re.search(r"RssAnon:\s+(\d+) kB", f.read())[1]) / 1024


def rest(d):
    """Nobody holds anything."""
    for alias in BASES:
        d.evict(alias)
    m = d.metrics()
    for tier in ("host", "device"):
        equal(m.sum("computron_bytes", tier=tier), m.sum("computron_bytes", tier=tier, state="free"), f"{tier}: used bytes")
    equal(m.sum("computron_queue_depth"), 0, "queue")
    equal(d.control("GET", "/status").json["ledger_errors"], 0, "counts that did not agree")


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


def figures(d, served, seconds):
    """Of the log's line of each request: milliseconds of each phase."""
    phases = {name: [] for name in PHASES}
    totals, outcomes = [], {}
    for _, outcome, _, total, rest_of_line in LINE.findall(d.log):
        took = {name: float(ms) for name, ms in (part.split(" ") for part in rest_of_line.split(", "))}
        check(abs(sum(took.values()) - float(total)) < 0.5, "phases and total of a request:", rest_of_line, total)
        totals.append(float(total))
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        for name in PHASES:
            phases[name].append(took[name])
    m = d.metrics()
    equal(m.sum("computron_request_phase_seconds_count", phase="queue"), len(totals), "requests in the log and in the metrics")
    lines = [f"{seconds:.0f} s, {len(totals)} requests ({', '.join(f'{n} {k}' for k, n in sorted(outcomes.items()))})"]
    lines += [f"{served.count(200)} answers, all right; {served.count(429) + served.count(503)} refused, {served.count(504)} late"]
    lines += [f"{'ms':>12} {'p50':>9} {'p95':>9} {'p99':>9} {'max':>9}"]
    for name, values in [*phases.items(), ("total", totals)]:
        row = [percentile(values, share) for share in (0.5, 0.95, 0.99, 1)]
        lines.append(f"{name:>12} " + " ".join(f"{v:9.1f}" for v in row))
    loads = int(m.sum("computron_moves_total", move="load", outcome="ok"))
    lines.append(f"{loads} device frames loaded, {int(m.sum('computron_move_bytes_total', move='stage'))} bytes staged")
    preemptions, tokens = (int(m.sum(f"computron_{name}_total")) for name in ("preemptions", "recomputed_tokens"))
    lines.append(f"{preemptions} pre-emptions, {tokens} tokens computed again")
    check(preemptions or not LONG, "nobody was pre-empted")
    return lines, phases["unexplained"]


@test
def twelve_models_in_the_memory_of_three():
    seed, served = commit_seed(), []
    with Daemon(*models(), models_dir=None, device="host:4,mem=4M,link=100M", pool="lossy:50,size=8M") as d:
        parallel(*(lambda name=name: d.ids(name, [1], 2) for name in BASES))
        before, mib = descriptors(d), memory(d)
        end = time.time() + SECONDS
        parallel(*(lambda i=i: client(d, random.Random(seed + i), end, served) for i in range(CLIENTS)))
        check(served.count(200) > SECONDS, f"{served.count(200)} answers of {len(served)}")
        rest(d)
        lines, unexplained = figures(d, served, SECONDS)
        lines.append(f"{memory(d) - mib:+.1f} MiB of anonymous memory, {descriptors(d) - before:+d} descriptors")
        for line in lines:
            print("# " + line)
        if os.environ.get("STRESS_SUMMARY"):
            with open(os.environ["STRESS_SUMMARY"], "w", encoding="utf-8") as f:
                f.write("\n".join([time.strftime("%Y-%m-%d"), *lines]) + "\n")
        check(descriptors(d) <= before + 2, "descriptors were left open")
        if not SLOW:  # the sanitizers keep what was freed, and are slow
            check(memory(d) - mib < 64, "memory has grown")
            check(percentile(unexplained, 0.99) <= 100, f"p99 of the unexplained: {percentile(unexplained, 0.99)} ms")
            check(max(unexplained) <= 1000, f"unexplained: {max(unexplained)} ms")


if __name__ == "__main__":
    sys.exit(main("stress"))
