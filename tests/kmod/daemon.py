#!/usr/bin/python3
"""Runs in the guest: the daemon serves the three models from a kmod pool; texts, restarts, losses.

The checkpoints lie on a drive of their own, whose reads the kernel counts. Prints KTAP.
"""

import glob
import json
import os
import signal
import struct
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))

import harness
import ktap
from harness import NAMES, TESTS, Daemon, Skip, check, equal, eventually, golden, test

harness.SLOW = True  # an emulated processor
MODELS = "/models"
DRIVE = os.readlink("/dev/drive2")
POOL = "e2e"
CYCLES = int(os.environ.get("CYCLES") or "10")
SYSFS = f"/sys/class/misc/computron/pools/{POOL}"
# What a restart may read of a drive: whole blocks of what it looks at, and the file system's own.
BLOCK = 4096
FILE_SYSTEM = 128 * 1024


def daemon(pool=os.environ.get("POOL_SPEC") or f"kmod:{POOL},size=64M,segment=16M", *args):
    return Daemon(*args, models_dir=MODELS, pool=pool)


def says_golden(d, name, n=12):
    """Greedy ids after BOS, and the text that they are."""
    want = golden(name)["greedy_ids_from_bos"]
    choice = d.complete(name, want[:1], n)
    equal(choice["token_ids"], want[1 : 1 + n], f"{name}: ids")
    check(golden(name)["text"].startswith(choice["text"]), f"{name}: {choice['text']!r}")


def whole_golden(d, name):
    want = golden(name)
    ids = want["greedy_ids_from_bos"]
    choice = d.complete(name, ids[:1], len(ids) - 1)
    equal(choice["token_ids"], ids[1:], f"{name}: ids")
    check(want["text"].startswith(choice["text"]), f"{name}: {choice['text']!r}")


def staged(d):
    return d.metrics().sum("computron_move_bytes_total", move="stage")


def counter(name):
    with open(os.path.join(SYSFS, name), encoding="utf-8") as f:
        return int(f.read())


def counters():
    """What has to be as it was after a restart."""
    return {name: counter(name) for name in ("used", "clean", "leased", "quarantined", "loading", "evictions", "refused")}


def bytes_read():
    with open(f"/sys/block/{DRIVE}/stat", encoding="utf-8") as f:
        return int(f.read().split()[2]) * 512


def rounded(size):
    return -(-size // BLOCK) * BLOCK


def may_read():
    """Headers, configs and tokenizers, in whole blocks."""
    total = FILE_SYSTEM
    for path in glob.glob(f"{MODELS}/*/*"):
        size = os.path.getsize(path)
        if path.endswith(".safetensors"):
            with open(path, "rb") as f:
                size = 8 + struct.unpack("<Q", f.read(8))[0]
        total += rounded(size)
    return total


def forget_pages():
    with open("/proc/sys/vm/drop_caches", "w", encoding="utf-8") as f:
        f.write("1")  # the page cache alone: 2 would call the module's shrinker


def kill(d):
    d.stopped = True
    d.process.send_signal(signal.SIGKILL)
    d.process.wait()


@test
def texts_from_a_kmod_pool():
    with daemon() as d:
        equal([dict(k)["provider"] for k in d.metrics().find("computron_pool_info")], ["kmod"], "provider")
        for name in NAMES:
            whole_golden(d, name)
        check(staged(d) > 2_000_000, f"{staged(d)} bytes were staged: not the models")
        check(counter("clean") > 0, "the pool of the kernel holds nothing")


@test
def killed_and_started_again():
    with daemon() as d:
        for name in NAMES:
            says_golden(d, name)
        before = None
        forget_pages()
        kill(d)
    budget = may_read()
    for cycle in range(CYCLES):
        forget_pages()
        read = bytes_read()
        since = time.monotonic()
        with daemon() as d:
            started = time.monotonic() - since
            for name in NAMES:
                says_golden(d, name)
            equal(staged(d), 0, f"cycle {cycle}: bytes staged after a restart")
            read = bytes_read() - read
            check(read <= budget, f"cycle {cycle}: {read} bytes were read, {budget} are headers, configs and tokenizers")
            check(read > 0, "nothing was read: the page cache was not empty, or this counts another drive")
            kill(d)
        now = counters()
        if before is None:
            before = now
            print(f"# started in {started:.2f} s, {read} of at most {budget} bytes read; {json.dumps(now)}")
        equal(now, before, f"cycle {cycle}: counters")
        equal(now["leased"], 0, f"cycle {cycle}: leased bytes of a dead daemon")


@test
def ended_well_and_started_again():
    with daemon() as d:
        for name in NAMES:
            says_golden(d, name)
    with daemon() as d:
        for name in NAMES:
            says_golden(d, name)
        equal(staged(d), 0, "bytes staged after a restart")


@test
def killed_while_staging():
    for cycle in range(5):
        with open("/proc/sys/vm/drop_caches", "w", encoding="utf-8") as f:
            f.write("3")
        with daemon() as d:
            pid = os.fork()
            if not pid:
                try:
                    d.load(NAMES[0])
                except BaseException:
                    pass
                os._exit(0)
            time.sleep(0.02 * cycle)
            kill(d)
            os.waitpid(pid, 0)
        equal(counter("leased"), 0, "leased bytes of a dead daemon")
        eventually(lambda: counter("quarantined") == 0, "what was quarantined comes back")
        equal(counter("used"), counter("clean"), "LOADING frames of a dead daemon")
    with daemon() as d:
        for name in NAMES:
            says_golden(d, name)


@test
def losses_are_drops():
    with daemon() as d:
        for name in NAMES:
            says_golden(d, name)
        for _ in range(3):
            for name in NAMES:
                d.evict(name)
            for _ in range(10):
                with open("/proc/sys/vm/drop_caches", "w", encoding="utf-8") as f:
                    f.write("2")
            check(counter("clean") < 3_000_000, "memory pressure took nothing")
            before = staged(d)
            for name in NAMES:
                says_golden(d, name)
            check(staged(d) > before, "what was lost was not staged again")


@test
def status_says_the_same():
    with daemon() as d:
        for name in NAMES:
            says_golden(d, name)
        said = d.tool("status")
        check("kmod" in said, f"computron status: {said}")


sys.exit(ktap.run(TESTS, Skip))
