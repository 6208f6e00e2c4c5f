#!/usr/bin/python3
"""Runs in the guest: programs of tests/unit, their verdicts as KTAP."""

import glob
import os
import re
import subprocess
import sys

UNIT = os.path.join(os.environ["CTN_BUILD"], "tests", "unit")


def main():
    number, failed = 0, False
    print("KTAP version 1", flush=True)
    for program in sorted(glob.glob(UNIT + "/*")):
        run = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        lines = run.stdout.splitlines()
        verdicts = [v.groups() for v in (re.match(r"(ok|not ok|skip) ([^\s:]+)(?:: (.*))?$", line) for line in lines) if v]
        plan = next((int(line[5:]) for line in lines if re.match(r"plan \d+$", line)), 0)
        bad = any(v[0] == "not ok" for v in verdicts)
        if bad or run.returncode or plan != len(verdicts):
            print("".join(f"# {line}\n" for line in lines[-80:]))
        for verdict, name, reason in verdicts:
            number += 1
            said = f" # SKIP {reason}" if verdict == "skip" else ""
            print(f"{'not ok' if verdict == 'not ok' else 'ok'} {number} {name.replace('/', '.')}{said}", flush=True)
        if not bad and (run.returncode or plan != len(verdicts) or not plan):
            number += 1
            print(f"# {os.path.basename(program)}: exit status {run.returncode}, {len(verdicts)} verdicts of {plan}")
            print(f"not ok {number} {os.path.basename(program)}")
            bad = True
        failed |= bad
    print(f"1..{number}")
    sys.exit(failed or not number)


main()
