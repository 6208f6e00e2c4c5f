#!/usr/bin/python3
"""The test runner and the check of the arrows find what they are there to find."""

import os
import subprocess
import sys
import tempfile

from harness import ROOT, check, equal, main, test


def run(*scripts, skips="", timeout="5"):
    """tests/run on shell scripts; (exit status, last line, output)."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, script in enumerate(scripts):
            paths.append(os.path.join(folder, f"program{i}"))
            with open(paths[-1], "w", encoding="utf-8") as f:
                f.write("#!/bin/sh\n" + script)
            os.chmod(paths[-1], 0o755)
        with open(os.path.join(folder, "skips"), "w", encoding="utf-8") as f:
            f.write(skips)
        command = [os.path.join(ROOT, "tests", "run"), "--timeout", timeout, "--skips", f.name, *paths]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.splitlines()[-1], done.stdout


def verdict(expected_status, expected_line, *scripts, said=None, **options):
    status, line, output = run(*scripts, **options)
    equal((status, line), (expected_status, expected_line), output)
    check(said is None or said in output, output)


@test
def passes():
    verdict(0, "2 passed, 0 failed, 0 skipped", "echo plan 2\necho ok a/b\necho ok a/c\n")


@test
def failure_is_counted_and_shown():
    script = "echo plan 2\necho ok a/b\necho why it failed\necho not ok a/c\nexit 1\n"
    verdict(1, "1 passed, 1 failed, 0 skipped", script, said="why it failed")


@test
def no_test_is_a_failure():
    verdict(1, "0 passed, 0 failed, 0 skipped", said="no test was run")
    verdict(1, "0 passed, 1 failed, 0 skipped", "exit 0\n")
    verdict(1, "0 passed, 1 failed, 0 skipped", "echo plan 0\n")


@test
def death_is_a_failure():
    verdict(1, "1 passed, 1 failed, 0 skipped", "echo plan 2\necho ok a/b\nkill -SEGV $$\n", said="died by SIGSEGV")
    verdict(1, "1 passed, 1 failed, 0 skipped", "echo plan 2\necho ok a/b\nexit 0\n", said="1 verdicts, planned: 2")
    verdict(1, "1 passed, 1 failed, 0 skipped", "echo plan 1\necho ok a/b\nexit 3\n", said="exit status 3")


@test
def hang_is_a_failure():
    verdict(1, "1 passed, 1 failed, 0 skipped", "echo plan 1\necho ok a/b\nsleep 60\n", said="still running", timeout="0.5")


@test
def process_left_behind_is_a_failure():
    verdict(1, "1 passed, 1 failed, 0 skipped", "echo plan 1\necho ok a/b\nsleep 60 &\nsleep 0.3\n", said="left behind: sleep")


@test
def skip_has_to_be_listed():
    script = "echo plan 2\necho ok a/b\necho 'skip a/c: no GPU'\n"
    verdict(0, "1 passed, 0 failed, 1 skipped", script, skips="# why\na/c: no GPU\n")
    verdict(1, "1 passed, 1 failed, 1 skipped", script, said="is not in tests/skips.list")
    verdict(1, "1 passed, 1 failed, 1 skipped", script, skips="a/c: another reason\n")


@test
def arrows_are_held():
    def arrows(path, line):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.dirname(os.path.join(folder, path)))
            with open(os.path.join(folder, path), "w", encoding="utf-8") as f:
                f.write(line + "\n")
            done = subprocess.run([os.path.join(ROOT, "tools", "arrows"), folder], capture_output=True, text=True)
        return done.returncode, done.stdout

    for path, line in (
        ("uruntime/sched/lru.c", '#include "pager/pager.h"'),
        ("uruntime/device/host.c", '#include "pool/pool.h"'),
        ("uruntime/pager/pager.c", '#include "engine/engine.h"'),
        ("uruntime/engine/engine.c", '#include "pager/table.h"'),
        ("uruntime/base/log.c", '#include "pool/pool.h"'),
        ("kernels/cpu/gemm.c", '#include "device/device.h"'),
        ("tools/main.c", '#include "engine/queue.h"'),
        ("uruntime/odd/odd.c", ""),
    ):
        status, output = arrows(path, line)
        check(status == 1 and path in output, path, line, output)
    for path, line in (
        ("uruntime/engine/engine.c", '#include "pool/pool.h"'),
        ("uruntime/sched/lru.c", '#include "base/base.h"'),
        ("tests/unit/test_pager.c", '#include "pager/pager.h"'),
    ):
        equal(arrows(path, line), (0, ""), f"{path} {line}")


if __name__ == "__main__":
    sys.exit(main("runner"))
