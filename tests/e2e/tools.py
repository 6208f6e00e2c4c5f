#!/usr/bin/python3
"""The computron command."""

import json
import os
import sys
import tempfile

from harness import MODELS, NAMES, Daemon, check, equal, generate, golden, main, test, tool

LLAMA = NAMES[0]


def ran(*args, status=0):
    run = tool(*args)
    equal(run.returncode, status, f"computron {' '.join(args)}: {run.stdout}{run.stderr}; status")
    return run


@test
def inspect_a_checkpoint():
    for name, family in zip(NAMES, ("llama", "opt", "gpt2")):
        out = ran("inspect", os.path.join(MODELS, name)).stdout
        check(family in out.lower(), out)
    out = ran("inspect", os.path.join(MODELS, LLAMA, "model.safetensors")).stdout
    check("model.embed_tokens.weight" in out and "F32" in out, out)


@test
def inspect_shards():
    with tempfile.TemporaryDirectory() as folder:
        generate(folder, "--family", "llama", "--layers", 4)
        whole = ran("inspect", folder, "--tp", "1", "--pp", "1").stdout
        split = ran("inspect", folder, "--tp", "2", "--pp", "2").stdout
        check(len(split.splitlines()) > len(whole.splitlines()), "four ranks have more shards than one")
        check(ran("inspect", folder, "--tp", "3", status=1).stderr.strip(), "a tp that does not divide the heads")


@test
def inspect_what_is_not_there():
    for path in ("/no/such/folder", os.path.join(MODELS, LLAMA, "LICENSE"), "/dev/null"):
        run = tool("inspect", path)
        check(run.returncode > 0, path)
        equal(len(run.stderr.strip().splitlines()), 1, run.stderr)
        check(path in run.stderr, run.stderr)


@test
def status_load_evict_pin():
    def state(name):
        return {m["name"]: m for m in d.control("GET", "/status").json["models"]}[name]

    with Daemon() as d:
        out = d.tool("status")
        check(all(name in out for name in NAMES), out)
        d.tool("load", LLAMA)
        equal(state(LLAMA)["state"], "resident")
        check("resident" in d.tool("status"), d.tool("status"))
        d.tool("pin", LLAMA)
        equal(state(LLAMA)["pinned"], True)
        d.tool("unpin", LLAMA)
        equal(state(LLAMA)["pinned"], False)
        d.tool("evict", LLAMA)
        equal((state(LLAMA)["state"], state(LLAMA)["device_bytes"], state(LLAMA)["host_bytes"]), ("idle", 0, 0))
        check(tool("load", "no-such-model", "--socket", d.socket).returncode > 0, "load of an unknown model")
        ids = golden(LLAMA)["greedy_ids_from_bos"]
        equal(d.ids(LLAMA, ids[:1], 4), ids[1:5])
    run = tool("status", "--socket", d.socket)
    check(run.returncode > 0 and d.socket in run.stderr, run.stderr)


@test
def pinned_models_stay():
    with Daemon(device="host,mem=4M") as d:
        d.load(LLAMA)
        d.tool("pin", LLAMA)
        for name in NAMES[1:] * 2:
            d.completions(name, [1], max_tokens=2, timeout=2)  # may find no room
        status = {m["name"]: m for m in d.control("GET", "/status").json["models"]}
        equal(status[LLAMA]["state"], "resident", "the pinned one")
        d.tool("unpin", LLAMA)
        for name in NAMES[1:]:
            want = golden(name)["greedy_ids_from_bos"]
            equal(d.ids(name, want[:1], 4), want[1:5], name)


def bench(name, *args):
    """The figures of a short run."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        result = json.loads(ran("bench", name, "--json", *args).stdout)
        del os.environ["XDG_CACHE_HOME"]
    return result


def bench_swap(*args):
    result = bench("swap", *args)
    for key in ("load_s", "speedup", "fraction_of_links", "overhead_s", "overhead_p95_s", "d2h_bytes"):
        check(isinstance(result[key], (int, float)), key, result)
    equal(result["d2h_bytes"], 0)
    return result


@test
def bench_swap_one_device():
    result = bench_swap("--device", "host,mem=256M,link=200M", "--synthetic", "llama,bytes=32M", "--rounds", "8")
    bound = result["bytes"] / 200e6
    check(0.98 * 32 * 2**20 < result["bytes"] < 1.02 * 32 * 2**20, result)
    check(bound < result["load_s"] < 3 * bound, result)
    check(abs(result["fraction_of_links"] - bound / result["load_s"]) < 1e-6, result)
    equal(result["speedup"], 1)


@test
def bench_swap_four_ranks():
    device = ("--device", "host:4,mem=64M,link=50M")
    result = bench_swap(*device, "--synthetic", "gpt2,bytes=16M", "--tp", "2", "--pp", "2", "--rounds", "4")
    bound = max(result["rank_bytes"]) / 50e6
    equal(len(result["rank_bytes"]), 4)
    check(bound < result["load_s"] < 3 * bound, result)
    check(abs(result["fraction_of_links"] - bound / result["load_s"]) < 1e-6, result)
    check(1 < result["speedup"] < 6, result)
    check(result["watched_pieces"] > 0 and len(result["rank_s"]) == 4, result)
    equal(result["published_2023"]["load_s"], 0.4231)


@test
def bench_swap_over_shared_uplinks():
    device = ("--device", "host:4,mem=64M,link=50M,uplink=0-1:60M,2-3:60M")
    result = bench_swap(*device, "--synthetic", "opt,bytes=16M", "--tp", "4", "--rounds", "4")
    ranks = result["rank_bytes"]
    bound = max(sum(ranks[:2]), sum(ranks[2:])) / 60e6
    check(abs(result["fraction_of_links"] - bound / result["load_s"]) < 1e-6, result)
    check(bound < result["load_s"] < 3 * bound, result)
    # A busy machine may start the ranks one after the other: who is alone on an uplink is faster then.
    check(0.3 < result["fair_share"] < 1.3, result)
    for pair in (result["rank_s"][:2], result["rank_s"][2:]):
        check(max(pair) < 1.6 * min(pair), "ranks with equal bytes and an uplink in common end together", result)


@test
def bench_swap_of_real_models():
    model = os.path.join(MODELS, LLAMA)
    table = ran("bench", "swap", "--device", "host,mem=32M", "--model", model, "--model", model, "--rounds", "2").stdout
    check("load_s" in table and "bare copy" in table and "link= is not set" in table, table)
    other = os.path.join(MODELS, NAMES[1])
    error = ran("bench", "swap", "--device", "host,mem=32M", "--model", model, "--model", other, status=1).stderr
    check("equal bytes" in error, error)
    check("swap" in ran("bench", "frob", status=2).stderr, "the benchmarks there are")


@test
def bench_ttft():
    device = ("--device", "host:2,mem=128M,link=40M,layer_ms=10")
    result = bench("ttft", *device, "--synthetic", "opt,bytes=32M", "--tp", "2", "--pp", "1", "--rounds", "3")
    starts = ("cold", "warm", "partial")
    equal(sorted(result), sorted(s + o for s in starts for o in ("", "_no_overlap")))
    for name, case in result.items():
        check(abs(case["ratio"] - case["ttft_s"] / case["bound_s"]) < 1e-6, name, case)
        # What the link and the emulated layers cannot do faster, and what a busy machine may add.
        check(case["load_s"] > (32 if "partial" not in name else 12) * 0.98 * 2**20 / 2 / 40e6, name, case)
        check(case["compute_s"] > 0.08 and case["ttft_s"] > max(case["load_s"], case["compute_s"]) * 0.9, name, case)
        check(0.7 < case["ratio"] < 1.6, name, case)
    for start in starts:
        with_overlap, without = result[start]["ttft_s"], result[start + "_no_overlap"]["ttft_s"]
        check(with_overlap < without, f"{start}: the overlap gains nothing:", with_overlap, without)
    check(result["partial"]["ttft_s"] < result["warm"]["ttft_s"], result)


@test
def doctor():
    run = ran("doctor", "--models-dir", MODELS, "--pool", "size=64M")
    check("io_uring" in run.stdout and "blocked" in run.stdout.splitlines()[-1], run.stdout)
    found = json.loads(ran("doctor", "--models-dir", MODELS, "--pool", "size=64M", "--json").stdout)
    equal(found["blocked"], 0)
    equal(found["ok"] + found["worse"], len(found["findings"]))
    for f in found["findings"]:
        equal(f["why"] is None and f["mend"] is None, f["state"] == "ok", f)
        check(f["name"] in run.stdout and f["asked"] and f["got"], f)
    run = ran("doctor", "--models-dir", "/no/such/folder", status=1)
    check("blocked" in run.stdout and "/no/such/folder" in run.stdout, run.stdout)
    for args in (["--frob"], ["x"], ["--pool", "size=lots"]):
        error = ran("doctor", *args, status=2).stderr
        equal(len(error.splitlines()), 1, error)


@test
def usage():
    check("inspect" in ran("--help").stdout, "help")
    check(tool().returncode > 0, "no command")
    for name in ("inspect", "status", "load", "verify", "doctor", "bench", "sim"):
        said = ran(name, "--help").stdout
        check(said.startswith(f"  {name} "), said)
        equal(said, ran("help", name).stdout, name)
    for name in ("stage", "swap", "ttft"):
        check(f"bench {name}" in ran("bench", "-h").stdout, name)
    run = tool("help", "frobnicate")
    check(run.returncode > 0 and "frobnicate" in run.stderr, run.stderr)
    run = tool("frobnicate")
    check(run.returncode > 0 and "frobnicate" in run.stderr, run.stderr)


if __name__ == "__main__":
    sys.exit(main("tools"))
