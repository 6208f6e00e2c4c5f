"""From what a guest said to verdicts in the project's form (tests/run).

The report holds, per program, the lines of tests/kmod/init around its KTAP. Every program that was to run gives verdicts
SUITE/PROGRAM.TEST; what is wrong with it as a whole gives "not ok SUITE/PROGRAM". SUITE/kernel_log says whether the
kernel complained of anything.
"""

import re

BEGIN = re.compile(r"^# begin (\S+)$")
END = re.compile(r"^# end (\S+) (\S+) (.*)$")
PLAN = re.compile(r"^1\.\.(\d+)$")
LINE = re.compile(r"^(ok|not ok) \d+ (?:- )?(\S+)(?: # SKIP ?(.*))?$")
MARKER = re.compile(r"kmod-test: begin (\S+)")
# A kernel that is well never prints any of these.
COMPLAINTS = re.compile(
    r"\bBUG\b|\bWARNING\b|\bOops\b|general protection fault|Kernel panic|KASAN|UBSAN|KCSAN|[Bb]ad (page|rss|swap)|"
    r"possible (circular|recursive|irq|deadlock)|inconsistent lock state|suspicious RCU|lock held when returning|"
    r"held lock freed|sleeping function called|kmemleak: [1-9]\d* new|refcount_t|list_(add|del) corruption|"
    r"blocked for more than|DEBUG_LOCKS_WARN|stack-protector|page dumped because|use-after-free|scheduling while atomic"
)
# What kernels say about themselves at boot and what is no complaint.
HARMLESS = re.compile(r"Command line:|kernel command line|ACPI BIOS|Speculative|signature and/or required key missing")

PASS, FAIL, SKIP = 0, 1, 4


class Verdicts:
    def __init__(self):
        self.lines, self.failed = [], False

    def ok(self, name):
        self.lines.append(f"ok {name}")

    def skip(self, name, reason):
        self.lines.append(f"skip {name}: {reason}")

    def fail(self, name, *why):
        self.failed = True
        self.note(*why)
        self.lines.append(f"not ok {name}")

    def note(self, *texts):
        for text in texts:
            self.lines += [f"# {line}" for line in str(text).splitlines()]

    def add(self, others):
        self.lines += others.lines
        self.failed |= others.failed

    def count(self):
        return sum(not line.startswith("#") for line in self.lines)


class Run:
    """What one program left in the report."""

    def __init__(self):
        self.plan, self.results, self.notes, self.status, self.unload = None, [], [], None, None


def parse(report):
    """{program: Run}, and whether the guest came to its end."""
    runs, current = {}, None
    for line in report.splitlines():
        if found := BEGIN.match(line):
            current = runs[found[1]] = Run()
        elif found := END.match(line):
            runs.setdefault(found[1], Run()).status = found[2]
            runs[found[1]].unload = found[3]
            current = None
        elif current is not None:
            if found := PLAN.match(line):
                current.plan = int(found[1])
            elif found := LINE.match(line):
                current.results.append((found[2], FAIL if found[1] == "not ok" else SKIP if found[3] is not None else PASS, found[3]))
            elif not line.startswith("KTAP version"):
                current.notes.append(line)
    return runs, report.rstrip().endswith("# done")


def judge_program(name, run, verdicts):
    for note in run.notes:
        verdicts.note(note.removeprefix("# "))
    for test, verdict, reason in run.results:
        if verdict == PASS:
            verdicts.ok(f"{name}.{test}")
        elif verdict == SKIP:
            verdicts.skip(f"{name}.{test}", reason)
        else:
            verdicts.fail(f"{name}.{test}")
    kinds = {verdict for _, verdict, _ in run.results}
    expected = FAIL if FAIL in kinds else PASS if PASS in kinds else SKIP
    if run.status is None:
        verdicts.fail(name, "the guest ended while it ran")
    elif run.status == "137":
        verdicts.fail(name, "took too long and was killed, or was killed for memory")
    elif run.status != str(expected):
        verdicts.fail(name, f"exit status {run.status}, expected {expected} by its verdicts")
    elif not run.plan or run.plan != len(run.results):
        verdicts.fail(name, f"{len(run.results)} verdicts, planned: {run.plan}")
    if run.unload not in (None, "ok"):
        verdicts.fail(f"{name}.unload", f"the module could not be unloaded afterwards: {run.unload}")


def complaints(log):
    """(program, line) of what the kernel complained of."""
    found, program = [], "boot"
    for line in log.splitlines():
        if marker := MARKER.search(line):
            program = marker[1]
        elif COMPLAINTS.search(line) and not HARMLESS.search(line):
            found.append((program, line))
    return found


def begun(boot, programs):
    """Those of the programs that this boot came to."""
    runs, _ = parse(boot.report)
    return [name for name in programs if name in runs]


def judge(suite, programs, boot, verdicts, boots=1):
    """All verdicts of one boot that was to run these programs, in the form that tests/run reads. The kernel is named by how
    many boots there were before: 1 has no number."""
    runs, done = parse(boot.report)
    kernel = suite if boots == 1 else f"{suite}/boot{boots}"
    for name in programs:
        if name in runs:
            judge_program(f"{suite}/{name}", runs[name], verdicts)
        else:
            verdicts.fail(f"{suite}/{name}", "was not run")
    if boot.ended and done:
        verdicts.ok(f"{kernel}/guest_ended")
    else:
        verdicts.fail(f"{kernel}/guest_ended", f"the guest did not come to its end: {boot.said}", *boot.log.splitlines()[-40:])
    found = complaints(boot.log)
    if found:
        verdicts.fail(f"{kernel}/kernel_log", *(f"{program}: {line}" for program, line in found[:40]), *context(boot.log, found[0][1]))
    elif "Linux version" in boot.log:
        verdicts.ok(f"{kernel}/kernel_log")
    else:
        verdicts.fail(f"{kernel}/kernel_log", "there is no kernel log: what it says cannot be known")
    leaks = [line for line in boot.report.splitlines() if line.startswith("# kmemleak: ")]
    if leaks:
        verdicts.fail(f"{kernel}/kmemleak", *leaks[:80])


def context(log, line):
    """The lines around the first complaint."""
    lines = log.splitlines()
    at = lines.index(line)
    return ["around the first:", *lines[max(0, at - 3) : at + 45]]
