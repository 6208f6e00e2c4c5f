#!/usr/bin/python3
"""computron bench stage: its figures, its peer, its table."""

import contextlib
import json
import os
import shutil
import sys
import tempfile

from harness import Skip, check, equal, main, test, tool

MIB = 2**20
METHODS = ("uring-fixed", "uring", "pread", "buffered")

# What fio would print; the rate of a run stands in a list, which is gone through again and again.
FAKE_FIO = """#!/usr/bin/python3
import json, os, sys
turns, size = os.path.join(os.path.dirname(__file__), "turns"), {size}
assert "--filename={path}" in sys.argv and "--iodepth=8" in sys.argv and "--direct=1" in sys.argv, sys.argv
with open(turns, "a+") as f:
    turn = f.tell()
    f.write(".")
rate = {rates}[turn % len({rates})]
print("fio: a warning before the figures")
read = {{"io_bytes": size, "bw_bytes": rate, "total_ios": size // 2**20, "lat_ns": {{"mean": 8e9 * 2**20 / rate}}}}
print(json.dumps({{"jobs": [{{"read": read, "usr_cpu": 1.0, "sys_cpu": 3.0}}]}}))
"""


def ran(*args, status=0):
    run = tool("bench", "stage", *args)
    equal(run.returncode, status, f"bench stage {' '.join(args)}: {run.stdout}{run.stderr}; status")
    return run


@contextlib.contextmanager
def sample(size=8 * MIB + 777):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a:file")
        with open(path, "wb") as f:
            f.write(os.urandom(size))
            f.flush()
            os.fsync(f.fileno())
        yield path


@contextlib.contextmanager
def fake_fio(path, rates):
    """A peer that is as fast as the rates say."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "fio"), "w", encoding="utf-8") as f:
            f.write(FAKE_FIO.format(path=path.replace(":", "\\\\:"), rates=rates, size=os.path.getsize(path)))
        os.chmod(os.path.join(folder, "fio"), 0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = folder + os.pathsep + before
        try:
            yield
        finally:
            os.environ["PATH"] = before


@test
def figures_without_a_peer():
    with sample() as path:
        r = json.loads(ran(path, "--rounds", "3", "--json").stdout)
        for key in ("gb_per_s", "cpu_s_per_gib", "hash_cpu_s_per_gib", "hash_ratio", "hash_time_ratio"):
            check(r[key] > 0, key, r)
        check(r["method"] in METHODS, r)
        equal(r["bytes"], os.path.getsize(path))
        equal(r["requests"]["reads"], 9, "reads of a MiB")
        check("peer_gb_per_s" not in r and "verdict" not in r, r)
        text = ran(path, "--rounds", "1").stdout
        for word in ("gb_per_s", "cpu_s_per_gib", "hash_cpu_s_per_gib", r["method"], path):
            check(word in text, word, text)


@test
def method_and_provider_are_those_asked_for():
    with sample() as path:
        r = json.loads(ran(path, "--rounds", "1", "--method", "buffered", "--provider", "plain", "--json").stdout)
        equal((r["method"], r["provider"], r["huge_ratio"]), ("buffered", "plain", 0))
        r = json.loads(ran(path, "--rounds", "1", "--method", "buffered", "--cached", "--json").stdout)
        equal(r["requests"]["disk_reads"], 0, "a file in the page cache")


@test
def verdicts():
    slow, fast = 1000, 10**15
    cases = ([slow], "pass"), ([fast], "fail"), ([slow, slow * 2], "inconclusive"), ([fast, fast * 2], "inconclusive")
    with sample() as path:
        for rates, verdict in cases:
            with fake_fio(path, rates):
                r = json.loads(ran(path, "--peer", "fio", "--rounds", "3", "--depth", "8", "--json").stdout)
            equal(r["verdict"], verdict, r)
            check(abs(r["ratio"] / (r["gb_per_s"] / r["peer_gb_per_s"]) - 1) < 1e-6, r)
            if len(rates) == 1:
                check(abs(r["peer_gb_per_s"] / (rates[0] / 1e9) - 1) < 1e-6, r)
                equal(r["peer_variation"], 0)
            equal(round(r["peer_requests"]["depth"], 6), round(8 * 8 / (8 + 777 / MIB), 6), "by Little's law")
        with fake_fio(path, [slow, slow * 2]):
            text = ran(path, "--peer", "fio", "--rounds", "1", "--depth", "8").stdout
        for word in ("inconclusive", "requests", "KiB each", "depth", "peer_cpu_s_per_gib"):
            check(word in text, word, text)


@test
def the_real_fio():
    if not shutil.which("fio"):
        raise Skip("fio is not installed")
    with sample() as path:
        r = json.loads(ran(path, "--peer", "fio", "--rounds", "3", "--json").stdout)
        check(r["verdict"] in ("pass", "fail", "inconclusive"), r)
        check(r["peer_gb_per_s"] > 0 and r["ratio"] > 0, r)
        equal(r["peer_requests"]["reads"], 8, "whole blocks of a MiB")


@test
def a_peer_that_fails():
    with sample() as path, tempfile.TemporaryDirectory() as folder:
        before = os.environ["PATH"]
        os.environ["PATH"] = folder
        try:
            error = ran(path, "--peer", "fio", "--rounds", "1", status=1).stderr
            check("fio" in error and "No such file" in error, error)
            for script, word in (("exit 3", "failed"), ("echo '{\"jobs\": []}'", "JSON"), ("echo nothing", "JSON")):
                with open(os.path.join(folder, "fio"), "w", encoding="utf-8") as f:
                    f.write(f"#!/bin/sh\n{script}\n")
                os.chmod(f.name, 0o755)
                error = ran(path, "--peer", "fio", "--rounds", "1", status=1).stderr
                equal(len(error.splitlines()), 1, error)
                check("fio" in error and word in error, error)
        finally:
            os.environ["PATH"] = before


@test
def the_table_has_all_methods_and_providers():
    with sample() as path:
        rows = json.loads(ran(path, "--table", "--rounds", "1", "--json").stdout)["table"]
        providers = {r["provider"] for r in rows}
        check({"thp", "plain"} <= providers and "lossy" not in providers, providers)
        equal(
            sorted((r["method"], r["provider"]) for r in rows), sorted((m, p) for m in METHODS for p in providers)
        )
        for r in rows:
            check(r.get("gb_per_s", 0) > 0 if "why" not in r else r["why"], r)
            check("why" in r or (r["populate_s_per_gib"] > 0 and r["register_s_per_gib"] >= 0), r)
        check("gb_per_s" in [r for r in rows if (r["method"], r["provider"]) == ("buffered", "plain")][0], rows)
        text = ran(path, "--table", "--rounds", "1").stdout
        check(len(text.splitlines()) >= len(rows) + 2, text)


@test
def what_it_refuses():
    with sample() as path:
        cases = (
            ([], "usage", 2),
            ([path, path], "usage", 2),
            ([path, "--method", "telepathy"], "telepathy", 2),
            ([path, "--peer", "dd"], "dd", 2),
            ([path, "--rounds", "0"], "rounds", 2),
            ([path, "--peer", "fio", "--cached"], "cached", 2),
            ([path, "--table", "--peer", "fio"], "table", 2),
            ([path, "--provider", "marble"], "marble", 1),
            ([path + ".gone"], path + ".gone", 1),
        )
        for args, word, status in cases:
            error = ran(*args, status=status).stderr
            equal(len(error.splitlines()), 1, error)
            check(word in error, error)


if __name__ == "__main__":
    sys.exit(main("bench_stage"))
