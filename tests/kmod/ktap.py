"""The loop of the guest's test programs in Python: runs tests, prints KTAP (ktap.c is that of those in C)."""

import time
import traceback

PASS, FAIL, SKIP = 0, 1, 4


class Skip(Exception):
    """The test cannot run here; the text says why."""


def run(tests, skip=Skip):
    """Runs functions as tests and returns the exit status; one that raises `skip` is skipped."""
    print(f"KTAP version 1\n1..{len(tests)}", flush=True)
    kinds = set()
    for number, test in enumerate(tests, 1):
        since = time.monotonic()
        try:
            test()
        except skip as e:
            kinds.add(SKIP)
            print(f"ok {number} {test.__name__} # SKIP {e}", flush=True)
        except Exception:
            kinds.add(FAIL)
            print("".join("# " + line for line in traceback.format_exc().splitlines(True)))
            print(f"not ok {number} {test.__name__}", flush=True)
        else:
            kinds.add(PASS)
            print(f"# {time.monotonic() - since:.1f} s\nok {number} {test.__name__}", flush=True)
    return FAIL if FAIL in kinds else PASS if PASS in kinds else SKIP
