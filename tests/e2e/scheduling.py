#!/usr/bin/python3
"""The daemon's scheduler from outside: what it loads ahead of requests, and gives up again."""

import sys
import time

from harness import MODELS, Daemon, check, equal, eventually, golden, main, test

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


if __name__ == "__main__":
    sys.exit(main("scheduling"))
