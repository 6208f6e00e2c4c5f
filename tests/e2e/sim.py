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
LOAD_S = RANK / LINK + 0.001
QUANTUM_S = 4 * LOAD_S  # sched/room.c


def csv(folder, lines):
    path = os.path.join(folder, "trace.csv")
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(f"{line}\n" for line in lines)
    return f"csv:{path}"


def cluster(folder, *lines):
    """The one that is built in, and more."""
    path = os.path.join(folder, "cluster.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"devices: 4\nlink_bytes_per_s: 26G\nload_overhead_s: 0.001\nbatch_s: {BATCH_S}\n")
        f.writelines(f"{line}\n" for line in lines)
    return path


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
def nobody_runs_on_for_longer_than_a_quantum_while_others_wait():
    """On any seed and at any load: between loads, links stand idle for a quantum and the steps that end first, no longer. Speeds
    are measured on loads of parts too, whose overhead weighs more: 5 %."""
    seed = commit_seed() % 2**31
    for rates, load in (("1,0.02,0.02,0.02", 50), ("2,0.2,0.2,0.2,0.2", 20), ("20,1,1,1,1,1,1", 1)):
        args = ("--resident", "1" if load > 1 else "3", "--tokens", str(load), "--hours", "0.1", "--seed", str(seed))
        turn = figures("default", f"gamma:rates={rates}", *args)["default"]["turn_wait_max_s"]
        check(turn <= 1.05 * QUANTUM_S + 2 * BATCH_S, rates, turn)
    plain = figures("default", "gamma:rates=1,0.02,0.02,0.02", "--resident", "1", "--tokens", "50", "--hours", "0.5", "--without",
                    "pauses")["default"]
    check(plain["turn_wait_max_s"] > 2 * QUANTUM_S, "what is drained takes longer:", plain["turn_wait_max_s"])


@test
def whoever_was_loaded_runs_however_long_all_have_waited():
    """More is asked for than can be done, so that everybody waits for longer than patience: a model that has been loaded still keeps
    its place for a quantum, and a fifth of the time goes into loads."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "slow.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write("devices: 1\nlink_bytes_per_s: 100M\nbatch_s: 3\n")
        arrivals = csv(folder, [f"{20 * turn + i},{i}" for turn in range(4) for i in range(4)])
        args = ("--tp", "1", "--pp", "1", "--model", "bytes=1000000000,layers=1", "--resident", "1", "--tokens", "2", "--max-batch", "2")
        for policy in ("default", "clairvoyant"):
            run = figures(policy, arrivals, "--cluster", path, *args)[policy]
            # Eight batches of two steps, two for each model, behind eight loads at most.
            check(run["max_s"] <= 8 * (10 + 2 * 3), policy, run["max_s"])
    args = ("--resident", "1", "--tokens", "50", "--hours", "0.05", "--max-batch", "8")
    run = figures("default", "gamma:rates=0.4,0.4,0.4,0.4,0.4", *args)["default"]
    check(run["max_s"] > 20, "nobody waited for long:", run["max_s"])
    check(run["swaps"] * LOAD_S < 0.25 * (180 + run["max_s"]), run)


@test
def deadlines():
    """Ten models are asked for at once, within a second: three loads and a batch are what there is time for."""
    warm = [f"{5 * round + i / 2:g},{i}" for round in range(40) for i in range(10)]
    with tempfile.TemporaryDirectory() as folder:
        late = csv(folder, warm + [f"1000,{i}" for i in range(10)])
        run = figures("default", late, "--resident", "3")["default"]
        equal((run["refused"], run["requests"]), (0, 410))
        check(run["max_s"] > 6 * LOAD_S, "some wait for the loads of others:", run["max_s"])
        early = csv(folder, warm + [f"1000,{i},1" for i in range(10)])
        run = figures("default", early, "--resident", "3")["default"]
        equal(run["late"], 0)
        # Those of the three that are there, and three loads.
        check(4 <= run["refused"] <= 7, run["refused"])
        # The earliest is the first, though its request came last.
        order = csv(folder, ["0,0", "0.01,1", "0.02,2", "0.03,3,2"])
        most = figures("default", order, "--resident", "4")["default"]["max_s_by_model"]
        check(most[3] < most[1] < most[2], most)


@test
def priorities_and_pins():
    with tempfile.TemporaryDirectory() as folder:
        arrivals = csv(folder, ["0,0", "0.01,1", "0.02,2"])
        plain = figures("default", arrivals, "--resident", "3", "--cluster", cluster(folder))["default"]["max_s_by_model"]
        check(plain[1] < plain[2], plain)
        better = figures("default", arrivals, "--resident", "3", "--cluster", cluster(folder, "priorities: [0, 0, 1]"))
        most = better["default"]["max_s_by_model"]
        check(most[2] < most[1], most)
        # A pinned model is loaded once; the others take turns in the room for one.
        turns = csv(folder, [f"{2 * i},{(i // 3) % 3}" for i in range(90)])
        for lines, swaps in (((), 30), (("pinned: [0]",), 21)):
            run = figures("lru", turns, "--resident", "2", "--cluster", cluster(folder, *lines))["lru"]
            equal(run["swaps"], swaps, lines)


@test
def staging_ahead_of_requests():
    """Half of the models are in the pool; each is asked for every twelve seconds or so."""
    args = ("--model", "bytes=5000000000", "--resident", "3", "--host-bytes", "50%", "--hours", "0.5", "--seed", "3")
    workload = "gamma:models=12,rate=1,cv=0.25"
    ahead = figures("default", workload, *args)["default"]
    plain = figures("default", workload, *args, "--without", "stage-ahead")["default"]
    check(ahead["bytes_staged_ahead"] > 0.5 * ahead["bytes_staged"], ahead)
    equal(plain["bytes_staged_ahead"], 0)
    check(ahead["mean_s"] < 0.5 * plain["mean_s"], ahead["mean_s"], plain["mean_s"])
    # With everything in the pool there is nothing to stage.
    whole = figures("default", workload, *args[:4], "--hours", "0.1")["default"]
    equal(whole["bytes_staged"], 0)


@test
def a_decision_is_quick():
    """With 1,000 models and 10,000 requests, by processor time."""
    for pool in ((), ("--pool-unknown",)):
        run = tool("bench", "sched", "--decisions", "20000" if SLOW else "100000", "--json", *pool)
        equal(run.returncode, 0, run.stderr)
        figure = json.loads(run.stdout)
        # Of fewer decisions more are from while the queue grows.
        check(figure["models"] == 1000 and figure["queued_mean"] > (6000 if SLOW else 8000), figure)
        check(SLOW or figure["mean_us"] <= 50, figure)


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
        (("--workload", "gamma:rates=1,1,1", "--without", "luck", *THREE), "luck"),
        (("--workload", "gamma:rates=1,1,1", "--host-bytes", "10%", *THREE), "pool"),
        (("--workload", "gamma:rates=1,1,1", "--cluster", "/no/such/cluster", *THREE), "/no/such/cluster"),
        (("--workload", "gamma:rates=1,1,1", "--policy", ",", *THREE), "--policy"),
        (("--workload", "gamma:rates=1e6,1e6", *THREE), "arrivals"),
        (("--workload", "gamma:rates=1,1,1", "--model", "bytes=16000000T", *THREE), "1024T"),
    ):
        run = tool("sim", *args)
        check(run.returncode > 0, args)
        check(word in run.stderr, args, run.stderr)


@test
def lines_of_a_trace_are_taken_or_refused_by_number():
    """None is left out in silence: `what` is how many requests there are, or words of the error."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.csv")
        for text, what in (
            (b"seconds,model\r\n0,0\r\n1,1\r\n", 2),
            (b"\xef\xbb\xbfseconds,model\n0,0\n", 1),
            (b"\xef\xbb\xbf1,0\n2,0\n", 2),
            (b".5,0\n1,0\n", 2),
            (b" 0.5,0\n1,0", 2),
            (b"-5,0\n1,0\n", ":1:"),
            (b"nan,0\n1,0\n", ":1:"),
            (b"0,0\n\n\nx,0\n", ":4:"),
            (b"0,-18446744073709551615\n", ":1:"),
            (b"0,0\n1,0\n\0\n2,0\n", "NUL"),
            (b"0,0,9\r1,0,9\r2,0,9\r", ":1:"),
            (b"seconds,model\r\n0,0\r1,1\r\n", ":2:"),
            (b"seconds,model\r0,0\r1,1\r", ":1:"),
        ):
            with open(path, "wb") as f:
                f.write(text)
            run = tool("sim", "--workload", f"csv:{path}", "--resident", "1", "--policy", "lru", "--json")
            if isinstance(what, int):
                equal(run.returncode, 0, f"{text}: {run.stderr}; status")
                equal(json.loads(run.stdout)["policies"]["lru"]["requests"], what, text)
            else:
                check(run.returncode > 0 and what in run.stderr, text, run.stderr)


@test
def clients_of_any_line_end():
    """Windows are counted as they are split."""
    with tempfile.TemporaryDirectory() as folder:
        counts = []
        for end in ("\n", "\r\n", "\r"):
            with open(os.path.join(folder, "chunk-0.csv"), "w", encoding="utf-8", newline="") as f:
                f.write("".join(f"{i},1,1,Gamma,1,1{end}" for i in range(5000)))
            run = tool("sim", "--workload", f"servegen:{folder},rate=0.1", "--resident", "1", "--policy", "lru", "--json")
            equal(run.returncode, 0, f"{end!r}: {run.stderr}; status")
            counts.append(json.loads(run.stdout)["policies"]["lru"]["requests"])
        check(counts[0] > 0 and counts == counts[:1] * 3, counts)


@test
def clusters_that_cannot_be():
    """One line each, soon, and no figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "cluster.yaml")
        for text, word in (
            (b"", "mapping"),
            (b"%Y\xc0\xb2\xb3\xdf4.9\n-f-\na: b\n", "UTF-8"),
            (b"devices: 4\nlink_bytes_per_s: 26G\nbatch_s: 1\n---\ndevices: 3\n", "one YAML document"),
            (b'devices: "4\\0"\nlink_bytes_per_s: 26G\nbatch_s: 1\n', "plain"),
            (b"devices: 4\ndevices: 4\n", ":2: duplicate key"),
            (b"devices: 4\nlink_bytes_per_s: 26G\nbatch_s: 1e-300\n", "batch_s"),
            (b"devices: 4\nlink_bytes_per_s: 1\nbatch_s: 1\n", "to load"),
        ):
            with open(path, "wb") as f:
                f.write(text)
            run = tool("sim", "--cluster", path, "--workload", "gamma:rates=1,1,1", "--hours", "0.01", "--policy", "lru", *THREE)
            check(run.returncode > 0 and run.stdout == "", text, run.stdout)
            check(word in run.stderr and run.stderr.count("\n") == 1, text, run.stderr)


@test
def figures_that_are_not_written_are_an_error():
    command = [os.path.join(BUILD, "computron"), "sim"]
    for args in (("--calibrate",), ("--workload", "gamma:rates=1,1,1", "--hours", "0.01", *THREE)):
        with open("/dev/full", "w", encoding="utf-8") as full:
            run = subprocess.run([*command, *args], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        check(run.returncode > 0 and "output" in run.stderr, args, run.stderr)


if __name__ == "__main__":
    sys.exit(main("sim"))
