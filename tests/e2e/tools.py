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
    with Daemon(device="host,mem=32M") as d:
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


@test
def bench_swap():
    run = ran("bench", "swap", "--json", "--device", "host,mem=256M,link=200M", "--synthetic", "llama,bytes=32M")
    result = json.loads(run.stdout)
    for key in ("load_s", "speedup", "fraction_of_links", "overhead_s", "overhead_p95_s", "d2h_bytes"):
        check(isinstance(result[key], (int, float)), key, result)
    check(32 / 200 < result["load_s"] < 3 * 33.6 / 200, result)
    check(0.5 < result["fraction_of_links"] <= 1.05, result)
    equal(result["d2h_bytes"], 0)


@test
def usage():
    check("inspect" in ran("--help").stdout, "help")
    check(tool().returncode > 0, "no command")
    run = tool("frobnicate")
    check(run.returncode > 0 and "frobnicate" in run.stderr, run.stderr)


if __name__ == "__main__":
    sys.exit(main("tools"))
