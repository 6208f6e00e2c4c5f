"""A copy of the source tree, in which faults are planted and built; for the programs that look whether a fault is found."""

import os
import shutil
import subprocess
import tempfile

TESTS = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(TESTS)
COPIED = ("Makefile", "uruntime", "kernels", "kmod", "tools", "tests")
# The variables of a calling make are not for this tree.
FOREIGN = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "BUILD_ROOT", "CTN_BUILD", "CTN_TESTS_DIR")


def run(*command, cwd=ROOT, **env):
    """(status, output) of a command, with these variables besides our own."""
    clean = {k: v for k, v in os.environ.items() if k not in FOREIGN}
    done = subprocess.run(
        command, cwd=cwd, env={**clean, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    return done.returncode, done.stdout


def make(target, variant, cwd=ROOT, *variables):
    return run("make", "--no-print-directory", f"-j{os.cpu_count()}", f"VARIANT={variant}", *variables, target, cwd=cwd)


class Scratch:
    """The copy; a context. What is built already is built the same there: paths are relative, and times are kept. So a
    patch costs the build of what it touches."""

    def __init__(self, variant):
        self.tree = tempfile.mkdtemp(prefix="scratch-")
        for name in COPIED:
            copy = shutil.copytree if os.path.isdir(os.path.join(ROOT, name)) else shutil.copy2
            copy(os.path.join(ROOT, name), os.path.join(self.tree, name))
        built = os.path.join(os.environ.get("BUILD_ROOT", "build"), variant)
        if os.path.isdir(os.path.join(ROOT, built)):
            shutil.copytree(os.path.join(ROOT, built), os.path.join(self.tree, "build", variant))
        self.variant = variant

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.tree)

    def run(self, *command, **env):
        return run(*command, cwd=self.tree, **env)

    def make(self, target):
        return make(target, self.variant, self.tree)

    def plant(self, patch):
        """None, or why the patch cannot be planted."""
        status, output = self.run("patch", "-p1", "--no-backup-if-mismatch", "-i", patch)
        return f"the patch does not apply:\n{output}" if status else None

    def remove(self, patch):
        self.run("patch", "-R", "-p1", "--no-backup-if-mismatch", "-i", patch)


def report(name, wrong):
    """Prints a verdict; True when it is a good one."""
    # In one piece: several threads may report.
    why = "".join(f"# {line}\n" for line in wrong.splitlines()[-40:]) if wrong else ""
    print(f"{why}{'not ok' if wrong else 'ok'} {name}\n", end="", flush=True)
    return not wrong
