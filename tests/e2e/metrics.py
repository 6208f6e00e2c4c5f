#!/usr/bin/python3
"""/metrics and /status: the pinned names, and a ledger that adds up whatever was done."""

import random
import sys

from harness import NAMES, Daemon, RawRequest, check, commit_seed, equal, eventually, golden, main, test

MIB = 1 << 20
PINNED = {
    "computron_bytes": ("gauge", {"tier", "device", "state"}),
    "computron_frames": ("gauge", {"tier", "state"}),
    "computron_moves_total": ("counter", {"move", "outcome"}),
    "computron_move_bytes_total": ("counter", {"move"}),
    "computron_move_seconds_total": ("counter", {"move"}),
    "computron_d2h_bytes_total": ("counter", set()),
    "computron_requests_total": ("counter", {"model", "outcome"}),
    "computron_queue_depth": ("gauge", {"model"}),
    "computron_pool_info": ("gauge", {"provider"}),
    "computron_pool_huge_ratio": ("gauge", set()),
    "computron_stage_method": ("gauge", {"method"}),
    "computron_ttft_seconds": ("histogram", {"model"}),
    "computron_switch_seconds": ("histogram", {"model"}),
    "computron_request_phase_seconds": ("histogram", {"phase"}),
    "computron_pauses_total": ("counter", set()),
    "computron_staged_ahead_bytes_total": ("counter", set()),
    "computron_preemptions_total": ("counter", set()),
    "computron_recomputed_tokens_total": ("counter", set()),
}


@test
def pinned_names_and_labels():
    with Daemon() as d:
        for name in NAMES:
            d.ids(name, [1], 2)
        m = d.metrics()
        for name, (kind, labels) in PINNED.items():
            equal(m.types.get(name), kind, f"type of {name}")
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            for suffix in suffixes:
                samples = m.find(name + suffix)
                check(samples, f"{name}{suffix} has no sample")
                for found in samples:
                    want = labels | ({"le"} if suffix == "_bucket" else set())
                    equal({k for k, _ in found}, want, f"labels of {name}{suffix}")
        for name in NAMES:
            equal(m.sum("computron_requests_total", model=name, outcome="ok"), 1, name)
            equal(m.sum("computron_ttft_seconds_count", model=name), 1, name)
            buckets = sorted((float(dict(k)["le"]), v) for k, v in m.find("computron_ttft_seconds_bucket", model=name).items())
            equal([v for _, v in buckets], sorted(v for _, v in buckets), "buckets are cumulative")
            equal(buckets[-1], (float("inf"), 1.0))
        equal(m.find("computron_pool_info"), {frozenset({("provider", "plain")}): 1.0})
        equal(m.sum("computron_stage_method") >= 1, True, "a method of staging")


def adds_up(d, device, pool, rest=False):
    """Every byte of every tier is in one state; at rest none moves."""
    m = d.metrics()
    for tier, total in (("device", device), ("host", pool)):
        equal(m.sum("computron_bytes", tier=tier), total, f"bytes of the {tier} tier in all states: {m.find('computron_bytes')}")
    status = d.control("GET", "/status").json
    equal(status["ledger_errors"], 0, "counts that did not agree")
    if rest:
        for state in ("loading", "draining", "staging"):
            equal(m.sum("computron_bytes", state=state), 0, state)
            equal(m.sum("computron_frames", state=state), 0, state)
    return m, status


@test
def ledger_after_random_sequences():
    rng = random.Random(commit_seed())
    # Room for two of three models on the device, and in the pool.
    device, pool = 6 * MIB, 4 * MIB
    with Daemon(device=f"host,mem={device}", pool=f"plain,size={pool}") as d:
        adds_up(d, device, pool, rest=True)
        open_requests = []
        for _ in range(150):
            name = rng.choice(NAMES)
            what = rng.randrange(8)
            if what < 3:
                want = golden(name)["greedy_ids_from_bos"]
                equal(d.ids(name, want[:1], 6), want[1:7], name)
            elif what == 3:
                d.control("POST", f"/models/{name}/evict")  # may be busy
            elif what == 4:
                d.control("POST", f"/models/{name}/load")  # may find no room
            elif what == 5:
                # One pinned model leaves room for another.
                d.control("POST", f"/models/{NAMES[0]}/{rng.choice(('pin', 'unpin'))}")
            elif what == 6:
                open_requests.append(RawRequest(d, name, [1], 200, stream=bool(rng.randrange(2)), ignore_eos=True))
            elif open_requests:
                open_requests.pop(rng.randrange(len(open_requests))).close()
            adds_up(d, device, pool)
        for request in open_requests:
            request.close()

        def quiet():
            return all(m["queued"] + m["running"] == 0 for m in d.control("GET", "/status").json["models"])

        eventually(quiet, "the last requests end")
        d.control("POST", f"/models/{NAMES[0]}/unpin")
        for name in NAMES:
            d.evict(name)
        m, status = adds_up(d, device, pool, rest=True)
        equal(m.sum("computron_bytes", tier="host", state="free"), pool, "the pool is empty")
        equal(m.sum("computron_bytes", tier="device", state="resident"), 0, "the device is empty")
        equal([x["host_bytes"] + x["device_bytes"] for x in status["models"]], [0, 0, 0])
        # A load copies what it needs over the link, a drop copies nothing back.
        loaded = m.sum("computron_move_bytes_total", move="load")
        equal(sum(x["bytes_loaded"] for x in status["models"]), loaded, "bytes loaded, by model and by move")


@test
def bytes_of_moves_are_those_of_the_files():
    with Daemon() as d:
        for name in NAMES:
            before = d.metrics()
            d.load(name)
            status = {x["name"]: x for x in d.control("GET", "/status").json["models"]}[name]
            after = d.metrics()
            for move, key in (("stage", "checkpoint_bytes"), ("load", "device_total")):
                moved = after.sum("computron_move_bytes_total", move=move) - before.sum("computron_move_bytes_total", move=move)
                check(status[key] <= moved <= 1.02 * status[key] + 4096 * 40, f"{name}: {move} moved {moved}, {key} {status[key]}")
            d.evict(name)


if __name__ == "__main__":
    sys.exit(main("metrics"))
