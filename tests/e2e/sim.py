#!/usr/bin/python3
"""computron sim: the bars of the scheduler in a short form, and what the simulator itself promises."""

import json
import os
import subprocess
import sys
import tempfile
import time
import xml.dom.minidom

from harness import BUILD, ROOT, SLOW, check, commit_seed, equal, main, test, tool

BATCH_S = 0.0574  # a batch of OPT-13B at tp=2 pp=2 on the cluster
LINK = 26e9
RANK = 6.83e9
THREE = ("--resident", "2", "--max-batch", "8")


def sim(*args):
    run = tool("sim", *args)
    equal(run.returncode, 0, f"sim {' '.join(args)}: {run.stderr}; status")
    return run.stdout


def figures(policies, workload, *args):
    return json.loads(sim("--policy", policies, "--workload", workload, "--json", *args))["policies"]


@test
def bars():
    """Shorter hours, fewer seeds; at length by make sim-report."""
    hours, seeds = (0.05, 1) if SLOW else (0.25, 3)
    command = [os.path.join(ROOT, "tools/sim-report"), "--build", BUILD, "--short", "--json", "--hours", str(hours)]
    command += ["--seeds", str(seeds), "--hash", f"{commit_seed():x}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    check(run.stdout, run.stderr)
    missed = [b for b in json.loads(run.stdout) if not b["holds"]]
    check(SLOW or not missed, missed)


@test
def an_hour_of_fifty_models_is_quick():
    start = time.monotonic()
    run = figures("default", "gamma:models=50,rate=20,zipf=1", "--resident", "10", "--hours", "0.1" if SLOW else "1")
    took = time.monotonic() - start
    check(run["default"]["requests"] > 20 * 360 * 0.9, run)
    check(took < 5 or SLOW, f"{took:.1f} s")


@test
def arrivals_of_a_trace_and_a_cluster_of_a_file():
    """The same arrivals in both forms of a trace; a batch takes what the file says."""
    with tempfile.TemporaryDirectory() as folder:
        csv, azure, cluster = (os.path.join(folder, name) for name in ("trace.csv", "azure.csv", "cluster.yaml"))
        with open(csv, "w", encoding="utf-8") as f:
            f.write("seconds,model\n0,0\n2.5,0\n63,0\n")
        with open(azure, "w", encoding="utf-8") as f:
            f.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
            f.writelines(f"2023-11-16 18:{at}00000,10,20\n" for at in ("15:46.00", "15:48.50", "16:49.00"))
        with open(cluster, "w", encoding="utf-8") as f:
            f.write("devices: 4\nlink_bytes_per_s: 10G\nbatch_s: 0.125\n")
        runs = [figures("lru,resident", w, "--cluster", cluster, "--resident", "1") for w in (f"csv:{csv}", f"azure:{azure},models=1")]
    equal(runs[0], runs[1])
    equal(runs[0]["resident"]["requests"], 3)
    equal(round(runs[0]["resident"]["mean_s"], 9), 0.125)


@test
def a_request_by_itself():
    """By arithmetic: a batch where the model is there; behind a load otherwise, whose first layers run early."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "one.csv")
        with open(path, "w", encoding="utf-8") as f:
            f.write("seconds,model\n1.0,0\n5.0,0\n")
        for policy in ("lru", "default"):
            run = figures(f"{policy},resident", f"csv:{path}", "--resident", "1")
            equal(round(run["resident"]["mean_s"], 6), BATCH_S)
            equal(round(run[policy]["p50_s"], 6), BATCH_S, policy)
            load = RANK / LINK + 0.001
            check(load < run[policy]["max_s"] < load + BATCH_S, policy, run[policy]["max_s"])
            check(abs(run[policy]["bytes_loaded"] / (4 * RANK) - 1) < 0.001, run[policy]["bytes_loaded"])
            equal(run[policy]["swaps"], 1)


@test
def the_same_seed_gives_the_same_figures():
    args = ("lru,default,computron2023-c,computron2023-s,clairvoyant,resident", "gamma:rates=10,1,1,cv=4", *THREE)
    first = figures(*args, "--seed", "7", "--hours", "0.05")
    equal(figures(*args, "--seed", "7", "--hours", "0.05"), first)
    equal(len({p["requests"] for p in first.values()}), 1, "all policies see the same arrivals")
    check(figures(*args, "--seed", "8", "--hours", "0.05") != first)
    for name, p in first.items():
        check(p["mean_s"] >= first["resident"]["mean_s"], name, p["mean_s"])
        check(p["p50_s"] <= p["p95_s"] <= p["p99_s"] <= p["max_s"], name, p)
        check(0 < p["fairness"] <= 1, name, p)


@test
def calibration():
    """The published load times at (1,1), (2,1), (2,2) within 12 ms."""
    rows = [line.split() for line in sim("--calibrate").splitlines()[1:]]
    bound = [r for r in rows if r[0] in ("1,1", "2,1", "2,2")]
    equal(len(bound), 6)
    for r in bound:
        check(abs(float(r[4])) <= 12, r)


@test
def a_picture():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "cdf.svg")
        text = sim("--workload", "gamma:rates=1,1,1", "--hours", "0.02", "--svg", path, *THREE)
        check("share of requests over latency" in text, text)
        equal(len(xml.dom.minidom.parse(path).getElementsByTagName("path")) > 3, True)


@test
def what_is_wrong_is_said():
    for args, word in (
        (("--workload", "gamma:rates=1,x", *THREE), "rates"),
        (("--workload", "csv:/no/such/file", *THREE), "/no/such/file"),
        (("--workload", "gamma:rates=1,1,1"), "--resident"),
        (("--workload", "gamma:rates=1,1,1", "--policy", "fortune", *THREE), "fortune"),
        (("--workload", "gamma:rates=1,1,1", "--cluster", "/no/such/cluster", *THREE), "/no/such/cluster"),
    ):
        run = tool("sim", *args)
        check(run.returncode > 0, args)
        check(word in run.stderr, args, run.stderr)


if __name__ == "__main__":
    sys.exit(main("sim"))
