#!/usr/bin/python3
"""Three models of 512 MiB each, in a memory cgroup that holds less than their sum: right answers, and bytes that move."""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time

from harness import BUILD, HERE, SLOW, Daemon, Skip, check, commit_seed, equal, generate, main, parallel, same_as_reference, test

MIB = 1 << 20
SIZE = 512 * MIB
DEVICE, POOL = 640 * MIB, 384 * MIB  # one model and its KV; three quarters of one
LIMIT = 1280 * MIB  # of the daemon, all of it; the models are 1536 MiB
MODELS = {"llama": "bf16", "opt": "f16", "gpt2": "f32"}
NEW = 8


class Cgroup:
    """A memory cgroup of either version. Skip when there is no right to make one."""

    def __init__(self, limit):
        name = f"computron-test-{os.getpid()}"
        with open("/proc/self/cgroup", encoding="utf-8") as f:
            own = dict((line.split(":", 2)[1], line.rstrip("\n").split(":", 2)[2]) for line in f)
        tries = []
        for controllers, path in own.items():
            if "memory" in controllers.split(","):
                tries.append((1, f"/sys/fs/cgroup/memory{path}"))
                tries.append((1, "/sys/fs/cgroup/memory"))
        if "" in own:
            # A v2 group with processes cannot have limited children: only an empty ancestor will do.
            at = own[""].rstrip("/")
            while at:
                at = os.path.dirname(at).rstrip("/")
                tries.append((2, f"/sys/fs/cgroup{at}"))
        for self.version, parent in tries:
            self.path = os.path.join(parent, name)
            try:
                os.mkdir(self.path)
            except OSError:
                continue
            try:
                for file, value in ((("memory.limit_in_bytes", limit),), (("memory.max", limit), ("memory.swap.max", 0)))[self.version - 1]:
                    if file == "memory.swap.max" and not os.path.exists(os.path.join(self.path, file)):
                        continue  # a machine without swap accounting
                    self.write(file, value)
                return
            except OSError:
                os.rmdir(self.path)
        raise Skip("no right to make a memory cgroup")

    def write(self, file, value):
        with open(os.path.join(self.path, file), "w", encoding="utf-8") as f:
            f.write(str(value))

    def read(self, file):
        with open(os.path.join(self.path, file), encoding="utf-8") as f:
            return f.read()

    def peak(self):
        file = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return int(self.read(file)) if os.path.exists(os.path.join(self.path, file)) else None

    def killed(self):
        file, key = ("memory.oom_control", "oom_kill") if self.version == 1 else ("memory.events", "oom_kill")
        return dict(line.split() for line in self.read(file).splitlines()).get(key, "0") != "0"

    def prefix(self):
        """Words in front of a command that make it run inside."""
        return ["/bin/sh", "-c", f'echo $$ >{self.path}/cgroup.procs && exec "$@"', "sh"]

    def close(self):
        for _ in range(100):
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
                return
            time.sleep(0.02)
        os.rmdir(self.path)


REFERENCE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import reference
model = reference.load(sys.argv[2])
print(json.dumps([model.greedy(ids, int(sys.argv[3])) for ids in json.loads(sys.argv[4])]))
"""


def right_answers(path, prompts):
    """Of the reference, in a process of its own: its widened weights are larger than the models."""
    ref = os.path.join(HERE, "..", "ref")
    run = [sys.executable, "-c", REFERENCE, ref, path, str(NEW), str(prompts)]
    import json

    return json.loads(subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout)


def forget_pages(path):
    """Out of the page cache, so that staging reads the disk."""
    for name in os.listdir(path):
        with open(os.path.join(path, name), "rb") as f:
            os.fdatasync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@test
def three_models_larger_than_memory():
    seed = commit_seed()
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        group = None
        if not SLOW:  # what the sanitizers keep beside each byte would count
            group = Cgroup(LIMIT)
            stack.callback(group.close)
        # Beside the binaries rather than in memory, where a /tmp may be.
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=BUILD))
        want = {}
        for i, (family, dtype) in enumerate(MODELS.items()):
            path = os.path.join(folder, family)
            generate(path, "--family", family, "--dtype", dtype, "--bytes", "512M", "--seed", (seed + i) % 2**32)
            size = sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))
            check(0.97 * SIZE < size < 1.03 * SIZE, f"{family}: {size} bytes")
            prompts = [[rng.randrange(3, 512) for _ in range(n)] for n in (1, 7)]
            want[family] = list(zip(prompts, right_answers(path, prompts)))
            forget_pages(path)
        d = stack.enter_context(
            Daemon(models_dir=folder, device=f"host,mem={DEVICE}", pool=f"plain,size={POOL}", prefix=group.prefix() if group else ())
        )

        def ask(family, which):
            prompt, (ids, gaps) = want[family][which]
            got = d.ids(family, prompt, NEW, ignore_eos=False)
            same_as_reference(got if len(got) == len(ids) else got + ids[-1:], ids, gaps, f"{family} after {prompt}")

        since = time.monotonic()
        order = list(MODELS) + [rng.choice(list(MODELS)) for _ in range(5)] + list(MODELS)
        if SLOW:  # the sanitizers' part is the way there and back, once
            order = [*MODELS, next(iter(MODELS))]
        for family in order:
            ask(family, 0)
            ask(family, 1)
        parallel(*(lambda f=f: ask(f, 0) for f in MODELS))
        print(f"# {len(order) + 3} turns in {time.monotonic() - since:.1f} s")

        m = d.metrics()
        changes = sum(a != b for a, b in zip(order, order[1:])) + 1
        for move in ("stage", "load"):
            moved = m.sum("computron_move_bytes_total", move=move)
            print(f"# {move}: {moved / MIB:.0f} MiB")
            check(moved >= 0.97 * SIZE * (changes if move == "load" else 3), f"{move} moved {moved} bytes in {changes} switches")
        equal(m.sum("computron_moves_total", outcome="failed"), 0, "failed moves")
        equal(d.control("GET", "/status").json["ledger_errors"], 0, "counts that did not agree")
        if group:
            with open(f"/proc/{d.process.pid}/status", encoding="utf-8") as f:
                high = next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))
            check(high < LIMIT, f"the daemon held {high} bytes")
            check(not group.killed(), "the kernel had to kill in the cgroup")
            print(f"# peak of the cgroup {(group.peak() or 0) / MIB:.0f} MiB, of the daemon's memory {high / MIB:.0f} MiB")
        d.stop()


if __name__ == "__main__":
    sys.exit(main("paging"))
