#!/usr/bin/python3
"""Runs in the guest, when asked for by name: what memory of each provider costs, and what a restart does. Prints KTAP.

All is emulated here, so only ratios say something: each figure is also told as a multiple of that of `plain`.
"""

import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))

from harness import NAMES, Daemon, golden

PROVIDERS = ("kmod", "hugetlb", "thp", "plain")
TOOL = "/repo/build/computron"
BYTES = 32 << 20
POOL = 64 << 20
FIGURES = (
    ("populate_s_per_gib", "populate, s/GiB"),
    ("register_s_per_gib", "register, s/GiB"),
    ("gb_per_s", "stage, GB/s"),
    ("huge_ratio", "in huge pages"),
    ("start_s", "start to first token, s"),
    ("restart_s", "after kill -9, s"),
    ("restart_bytes", "bytes staged then"),
)


def sample():
    """A file on the drive."""
    path = "/tmp/sample.bin"
    with open(path, "wb") as f:
        f.write(os.urandom(BYTES))
        os.fsync(f.fileno())
    return path


def bench(path, provider):
    done = subprocess.run(
        [TOOL, "bench", "stage", path, "--provider", provider, "--rounds", "3", "--json"], capture_output=True, text=True
    )
    if done.returncode:
        print(f"# bench stage, {provider}: {done.stderr.strip()}")
        return {}
    return json.loads(done.stdout)


def first_token(spec, keep):
    """Seconds from the start of the daemon until each model has said something, and the bytes that were staged."""
    since = time.monotonic()
    with Daemon(models_dir="/models", pool=spec) as d:
        for name in NAMES:
            d.complete(name, golden(name)["greedy_ids_from_bos"][:1], 1)
        took = time.monotonic() - since
        staged = d.metrics().sum("computron_move_bytes_total", move="stage")
        if not keep:
            d.stopped = True
            d.process.send_signal(signal.SIGKILL)
            d.process.wait()
    return took, staged


def measure(path, provider):
    row = bench(path, provider)
    spec = f"{provider}{':table' if provider == 'kmod' else ''},size={POOL >> 20}M"
    row["start_s"], _ = first_token(spec, keep=False)
    row["restart_s"], row["restart_bytes"] = first_token(spec, keep=True)
    return row


def cell(row, plain, key):
    if key not in row:
        return "-"
    if key in ("huge_ratio", "restart_bytes") or not plain.get(key):
        return f"{row[key]:.6g}"
    return f"{row[key]:.3g} ({row[key] / plain[key]:.2f})"


def main():
    with open("/proc/sys/vm/nr_hugepages", "w", encoding="utf-8") as f:
        f.write(str((POOL >> 21) + 8))
    path = sample()
    rows = {provider: measure(path, provider) for provider in PROVIDERS}
    print("# " + " | ".join(["", *PROVIDERS]))
    for key, title in FIGURES:
        print("# " + " | ".join([title, *(cell(rows[p], rows["plain"], key) for p in PROVIDERS)]))
    complete = all(rows[p].get("populate_s_per_gib") for p in PROVIDERS)
    unread = rows["kmod"]["restart_bytes"] == 0 and all(rows[p]["restart_bytes"] > 0 for p in PROVIDERS[1:])
    print("KTAP version 1\n1..2")
    print(f"{'ok' if complete else 'not ok'} 1 every_provider_has_its_figures")
    print(f"{'ok' if unread else 'not ok'} 2 only_the_pool_that_stayed_is_not_read_again")
    sys.exit(not (complete and unread))


main()
