#!/usr/bin/python3
"""The three models of tests/models say what golden.json beside them says, whatever moved in between."""

import random
import sys

from harness import NAMES, Daemon, check, commit_seed, equal, golden, main, parallel, test

ONE = "host,mem=4M"  # a device that holds one of them: with its KV and workspace each takes about 2.6 MiB
PROMPT = "Once upon a time"  # how each golden text begins


def bos_continues(d, name):
    """Greedy ids and text after BOS."""
    want = golden(name)
    ids = want["greedy_ids_from_bos"]
    choice = d.complete(name, ids[:1], len(ids) - 1)
    equal(choice["token_ids"], ids[1:], f"{name}: ids")
    # The text of one file goes a word further than its ids.
    if choice["text"] != want["text"]:
        choice = d.complete(name, ids[:1], len(ids))
    equal(choice["text"], want["text"], f"{name}: text")


@test
def greedy_after_bos():
    with Daemon() as d:
        for name in NAMES:
            bos_continues(d, name)


@test
def greedy_after_text():
    with Daemon() as d:
        for name in NAMES:
            want = golden(name)
            reply = d.completions(name, PROMPT, max_tokens=64, temperature=0, return_token_ids=True)
            equal(reply.status, 200, name)
            choice, usage = reply.json["choices"][0], reply.json["usage"]
            check(want["text"].startswith(PROMPT + choice["text"]), f"{name}: {choice['text']!r}")
            given = usage["prompt_tokens"]
            equal(choice["token_ids"], want["greedy_ids_from_bos"][given : given + 64], f"{name}: ids")


@test
def evicted_and_loaded_a_hundred_times():
    rng = random.Random(commit_seed())
    rounds = list(NAMES) * 100
    rng.shuffle(rounds)
    with Daemon() as d:
        for i, name in enumerate(rounds):
            want = golden(name)["greedy_ids_from_bos"]
            if rng.random() < 0.5:
                d.load(name)
            # Whole texts are long: each round looks at a stretch of its own.
            start, n = rng.randrange(1, 60), 8
            equal(d.ids(name, want[:start], n), want[start : start + n], f"round {i}, {name} from {start}")
            d.evict(name)
        moved = d.metrics()
        for move in ("stage", "load"):
            check(moved.sum("computron_moves_total", move=move, outcome="ok") >= 300, f"{move}s of 300 rounds")
        for name in NAMES:
            bos_continues(d, name)


@test
def four_clients_and_a_device_for_one():
    seed = commit_seed()

    def client(d, number):
        rng = random.Random(seed + number)
        for _ in range(12):
            name = rng.choice(NAMES)
            want = golden(name)["greedy_ids_from_bos"]
            start = rng.randrange(1, 40)
            n = rng.randrange(1, len(want) - start)
            equal(d.ids(name, want[:start], n), want[start : start + n], f"client {number}, {name} from {start}")

    with Daemon(device=ONE) as d:
        parallel(*(lambda i=i: client(d, i) for i in range(4)))
        drops = d.metrics().sum("computron_moves_total", move="drop_device", outcome="ok")
        check(drops > 0, "the device was to hold one of them, and nothing was dropped")


if __name__ == "__main__":
    sys.exit(main("goldens"))
