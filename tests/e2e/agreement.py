#!/usr/bin/python3
"""The simulator and the daemon on the same trace: ten models on four devices with emulated links and emulated compute.

Five minutes in make check-long, where mean and p95 of the latencies have to agree within 10 %. Less than one in CI, where the few
requests and a machine that is busy with other things only allow to see that nothing is wrong by far."""

import contextlib
import json
import os
import random
import sys
import tempfile
import threading
import time

from harness import LONG, SLOW, Daemon, Skip, check, commit_seed, equal, generate, main, test, tool

MODELS, LAYERS, BYTES = 10, 10, 16 << 20
LINK, LAYER_MS = 20e6, 15  # a load of a whole model takes 0.42 s, a step 0.15 s: long beside what a busy machine adds
TOKENS, RATE = 3, 2.4
SECONDS, BARS = (300, (0.10, 0.10)) if LONG else (30, (0.35, 0.50))  # of mean and p95
POPULARITY = [1 / (k + 1) for k in range(MODELS)]
DEVICE = 22 << 20  # two models and what they need beside their weights; each device has ranks of five


def arrivals(rng):
    """Seconds and models: a Poisson process, models drawn by popularity 1/k."""
    at, trace = 0.5, []
    while at < SECONDS:
        trace.append((at, rng.choices(range(MODELS), POPULARITY)[0]))
        at += rng.expovariate(RATE)
    return trace


def play(d, trace, prompt):
    """Sends each request at its time; its latency. None: it failed."""
    latencies, begin = [None] * len(trace), time.monotonic()

    def one(i):
        at, model = trace[i]
        time.sleep(max(0, begin + at - time.monotonic()))
        since = time.monotonic()
        reply = d.completions(f"m{model}", prompt, max_tokens=TOKENS, ignore_eos=True, temperature=0)
        if reply.status == 200:
            latencies[i] = time.monotonic() - since

    # Threads a few seconds ahead of their time.
    threads = []
    for i in range(len(trace)):
        time.sleep(max(0, begin + trace[i][0] - 2 - time.monotonic()))
        threads.append(threading.Thread(target=one, args=(i,)))
        threads[-1].start()
    for t in threads:
        t.join()
    return latencies


def cluster(log, payload):
    """The daemon's devices and models for the simulator. Memory is charged in granules: a layer is as large as it is charged, and
    the links are as much faster."""
    with open(log, encoding="utf-8") as f:
        head = [json.loads(line) for line in (next(f) for _ in range(1 + MODELS))]
    config, rank = head[0]["config"], head[1]["model"]["ranks"][0]
    fields = {
        "devices": len(config["device_bytes"]),
        "link_bytes_per_s": int(LINK * rank["weight_bytes"] / payload),
        "load_overhead_s": 0.001,
        "batch_s": len(rank["layer_bytes"]) * LAYER_MS / 1e3,  # embedding and head are layers too
        "device_bytes": config["device_bytes"][0],
        "workspace_bytes": rank["workspace_bytes"],
        "kv_bytes": rank["kv_block_bytes"],
        "parallel_steps": "true",
    }
    return fields, f"bytes={2 * rank['weight_bytes']},layers={len(rank['layer_bytes'])}"


def simulate(folder, trace, fields, models):
    csv, yaml = os.path.join(folder, "trace.csv"), os.path.join(folder, "cluster.yaml")
    with open(csv, "w", encoding="utf-8") as f:
        f.writelines(f"{at:.6f},{model}\n" for at, model in trace)
    with open(yaml, "w", encoding="utf-8") as f:
        f.writelines(f"{key}: {value}\n" for key, value in fields.items())
    args = ("--cluster", yaml, "--model", models, "--tp", "2", "--pp", "1", "--max-batch", "16", "--tokens", str(TOKENS))
    run = tool("sim", *args, "--workload", f"csv:{csv}", "--policy", "default,lru,resident", "--json")
    equal(run.returncode, 0, run.stderr)
    return json.loads(run.stdout)["policies"]


def nearest_rank(values, share):
    values = sorted(values)
    return values[max(0, -int(-share * len(values) // 1) - 1)]


@test
def simulator_and_daemon_on_one_trace():
    if SLOW:
        raise Skip("what the sanitizers add is not simulated")
    rng = random.Random(commit_seed())
    trace = arrivals(rng)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        log = os.environ.get("AGREEMENT_LOG", os.path.join(folder, "decisions"))
        options = ["--decision-log", log]
        for m in range(MODELS):
            path = os.path.join(folder, f"m{m}")
            generate(path, "--family", "llama", "--dtype", "f32", "--bytes", BYTES, "--layers", LAYERS, "--hidden", 128, "--seed", m,
                     "--max-pos", 64)
            options += ["--model", f"m{m}={path},tp=2,devices={'0,1' if m % 2 == 0 else '2,3'}"]
        size = os.path.getsize(os.path.join(path, "model.safetensors"))
        device = f"host:4,mem={DEVICE},link={int(LINK)},layer_ms={LAYER_MS}"
        with Daemon(*options, models_dir=None, device=device, pool="plain,size=256M") as d:
            for m in reversed(range(MODELS)):
                d.load(f"m{m}")  # so that the pool has all of them
            before = d.metrics()
            latencies = play(d, trace, [1, 5, 7])
            m = d.metrics()
            loads = m.sum("computron_switch_seconds_count") - before.sum("computron_switch_seconds_count")
            moved = m.sum("computron_move_bytes_total", move="load") - before.sum("computron_move_bytes_total", move="load")
            ahead = {dict(k)["outcome"]: int(v) for k, v in m.find("computron_loads_ahead_total").items()}
        check(None not in latencies, f"{latencies.count(None)} requests failed")
        fields, models = cluster(log, size // 2)
        simulated = simulate(folder, trace, fields, models)
        replay = tool("sim", "--replay", log)
        equal(replay.returncode, 0, f"replay: {replay.stdout}{replay.stderr}")
        for line in replay.stdout.splitlines():
            print("# " + line)
    mean, p95 = sum(latencies) / len(latencies), nearest_rank(latencies, 0.95)
    print(f"# {len(trace)} requests in {SECONDS} s, models {models}, cluster {fields}")
    print(f"# {'':24} {'mean s':>8} {'p50 s':>8} {'p95 s':>8} {'loads':>7} {'MB':>8}")
    print(f"# {'daemon':24} {mean:8.3f} {nearest_rank(latencies, 0.5):8.3f} {p95:8.3f} {int(loads):7} {moved / 1e6:8.0f}  ahead {ahead}")
    for name, p in simulated.items():
        print(f"# {'simulator, ' + name:24} {p['mean_s']:8.3f} {p['p50_s']:8.3f} {p['p95_s']:8.3f} {p['swaps']:7} {p['bytes_loaded'] * 1e-6:8.0f}")
    p = simulated["default"]
    for what, real, said in (("mean", mean, p["mean_s"]), ("p95", p95, p["p95_s"])):
        print(f"# {what}: simulator / daemon {said / real:.3f}")
    off = [abs(said / real - 1) for real, said in ((mean, p["mean_s"]), (p95, p["p95_s"]))]
    check(off[0] <= BARS[0] and off[1] <= BARS[1], f"mean off by {off[0]:.1%}, p95 by {off[1]:.1%}; at most {BARS}")


if __name__ == "__main__":
    sys.exit(main("agreement"))
