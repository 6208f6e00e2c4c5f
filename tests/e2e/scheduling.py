#!/usr/bin/python3
"""The daemon's scheduler from outside: what it loads ahead of requests, and gives up again."""

import os
import sys
import tempfile
import time

from harness import MODELS, SLOW, Daemon, check, equal, eventually, generate, golden, main, test, tool

HOT, OTHER, THIRD = "llama-stories260k", "gpt2-tinystories", "opt-tinystories"
IDS = {name: golden(name)["greedy_ids_from_bos"] for name in (HOT, OTHER, THIRD)}


def ask(d, model):
    equal(d.ids(model, IDS[model][:4], 2), IDS[model][4:6], model)


def outcomes(d):
    m = d.metrics()
    return {key: m.sum("computron_loads_ahead_total", outcome=key) for key in ("hit", "cancelled", "dropped")}


def state(d, model):
    return next(m["state"] for m in d.control("GET", "/status").json["models"] if m["name"] == model)


def make_hot(d):
    """Requests of one model so often and so evenly that the next one is expected at any time."""
    end = time.monotonic() + 9
    for i in range(10000):
        ask(d, HOT)
        if time.monotonic() > end and i > 600:
            break
        time.sleep(0.005)


@test
def what_is_loaded_ahead_is_used_or_given_up():
    with Daemon(models_dir=MODELS, device="host,mem=3M,link=10M") as d:
        for model in (OTHER, THIRD):
            ask(d, model)
        make_hot(d)
        tries = 0
        while not (outcomes(d)["hit"] and outcomes(d)["cancelled"]) and tries < 20:
            # Takes the room of the hot one. Nobody waits for the link any more: that one comes back unasked.
            tries += 1
            d.load(OTHER)
            eventually(lambda: state(d, HOT) in ("loading", "resident"), f"{HOT} is loaded ahead")
            ask(d, THIRD if tries % 2 else HOT)
            for _ in range(100):
                ask(d, HOT)
        print(f"# {outcomes(d)} after {tries} tries")
        check(outcomes(d)["hit"], "no request found its model loaded ahead")
        check(outcomes(d)["cancelled"], "no load ahead made way")
        equal(d.control("GET", "/status").json["ledger_errors"], 0, "counts that did not agree")


def status(d, model):
    return next(m for m in d.control("GET", "/status").json["models"] if m["name"] == model)


def pin(d, model, on=True):
    check(d.control("POST", f"/models/{model}/{'pin' if on else 'unpin'}").status in (200, 204), model)


def staged(d):
    return d.metrics().sum("computron_move_bytes_total", move="stage")


def room_in_the_pool(folder, on):
    """Two models fit the pool, and what rounding to 2 MiB adds to their parts, but not three; one fits each of the two devices. A model
    loses its place in both to another that stays; then there is room in the pool again, and none on its device."""
    options = ["--decision-log", os.path.join(folder, "decisions"), *(() if on else ("--stage-ahead", "off"))]
    for i, name in enumerate(("lost", "other", "beside")):
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            generate(path, "--family", "llama", "--hidden", 512, "--layers", 4, "--seed", i)
        options += ["--model", f"{name}={path},devices={int(name == 'beside')}"]
    size = os.path.getsize(os.path.join(folder, "lost", "model.safetensors"))
    with Daemon(*options, models_dir=None, device=f"host:2,mem={size * 3 // 2}", pool=f"plain,size={size * 3}") as d:
        pin(d, "beside")
        pin(d, "other")
        for model in ("beside", "lost", "other"):
            d.load(model)
        check(status(d, "lost")["host_bytes"] < status(d, "lost")["host_total"], "nothing was lost")
        pin(d, "beside", False)
        d.evict("beside")
        if on:
            eventually(lambda: status(d, "lost")["host_bytes"] == status(d, "lost")["host_total"], "all of it is there again")
        else:
            time.sleep(0.5)
        ahead, before = d.metrics().sum("computron_staged_ahead_bytes_total"), staged(d)
        pin(d, "other", False)
        d.load("lost")
        equal(d.control("GET", "/status").json["ledger_errors"], 0, "counts that did not agree")
        return ahead, staged(d) - before


@test
def what_the_pool_has_lost_is_staged_ahead():
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "decisions")
        for on in (True, False):
            ahead, read = room_in_the_pool(folder, on)
            check((ahead > 0) == on and (read == 0) == on, f"{ahead} bytes staged ahead, {read} by the load")
            with open(log, encoding="utf-8") as f:
                text = f.read()
            equal([f'"type":"{what}"' in text for what in ("stage", "stage_done")], [on, on], "in the log of decisions")
            replay = tool("sim", "--replay", log)
            equal(replay.returncode, 0, f"replay: {replay.stdout}{replay.stderr}")


@test
def what_would_come_too_late_is_refused_at_once():
    with Daemon("--model", f"first={MODELS}/{HOT},priority=3", models_dir=MODELS, device="host,mem=3M,link=2M") as d:
        for _ in range(2):
            for model in IDS:
                ask(d, model)  # how long loads and steps take is known after that
        d.evict(HOT)
        since = time.monotonic()
        reply = d.completions(HOT, IDS[HOT][:4], max_tokens=2, timeout=0.1)  # a load takes half a second
        took = time.monotonic() - since
        equal(reply.status, 429, reply.body)
        equal(reply.error["code"], "too_late", "code")
        equal(reply.error["type"], "rate_limit_error", "type")
        check(int(reply.headers["Retry-After"]) >= 1, reply.headers["Retry-After"])
        check(took < 0.1 or SLOW, f"refused after {took:.3f} s")
        equal(d.metrics().sum("computron_requests_total", model=HOT, outcome="refused"), 1, "refused")
        equal(d.completions(HOT, IDS[HOT][:4], max_tokens=2, timeout=30).status, 200, "with time enough")
        ask(d, HOT)


if __name__ == "__main__":
    sys.exit(main("scheduling"))
