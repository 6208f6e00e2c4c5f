"""Kernels, initramfs and QEMU: boots a real kernel, runs test programs in it, brings back what they and it said."""

import os
import random
import re
import shutil
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.abspath(os.environ.get("CTN_BUILD", os.path.join(ROOT, "build", "debug")))
PROGRAMS = os.path.join(BUILD, "tests", "kmod")

# Loaded by the guest before anything else, where the kernel does not have them built in.
DRIVERS = ("crc32c_generic", "nvme", "ext4")
# TCG: there may be no KVM, and everybody gets the same. Anything that goes wrong ends the guest.
QEMU = (
    "qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -accel tcg,thread=multi -cpu max -smp 2"
).split()
COMMAND_LINE = "console=ttyS0 panic=-1 oops=panic loglevel=7 nokaslr watchdog_thresh=60 mitigations=off random.trust_cpu=on"


class Failure(Exception):
    """The harness could not do its part; the text says why."""


def run(command, what, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)
    if done.returncode:
        raise Failure(f"{what}: {done.stdout[-6000:]}")
    return done.stdout


class Kernel:
    """An unpacked kernel: see tests/kmod/kernels."""

    def __init__(self, series, release, folder, root):
        self.series, self.release, self.folder, self.root = series, release, folder, root
        self.image = os.path.join(folder, "vmlinuz")
        # Of another distribution: built there, with its compiler.
        self.headers = os.path.join(folder, "build") if root == "/" else f"/usr/src/linux-headers-{release}"
        self.modules = {}

    def drivers(self):
        """Paths of the modules that DRIVERS come to, in the order in which they can be loaded."""
        base = os.path.join(self.folder, "modules")
        depends = {}
        try:
            with open(os.path.join(base, "modules.dep"), encoding="utf-8") as f:
                for line in f:
                    path, _, needs = line.partition(":")
                    depends[path] = needs.split()
        except OSError:
            return []
        paths = {os.path.basename(p).split(".")[0].replace("-", "_"): p for p in depends}
        order = []
        for name in filter(paths.get, DRIVERS):
            for path in [*reversed(depends[paths[name]]), paths[name]]:
                if path not in order:
                    order.append(path)
        return [os.path.join(base, path) for path in order]

    def build_modules(self, source, make=()):
        """Builds a folder of modules for this kernel, out of the source tree; keeps the paths of what came out."""
        name = os.path.relpath(source, ROOT).replace("/", "-")
        target = os.path.join(PROGRAMS, self.release, name) if self.root == "/" else os.path.join(self.root, "modules", name)
        # Only what changed is written, so that make builds only that.
        for folder, _, files in os.walk(source):
            into = os.path.join(target, os.path.relpath(folder, source))
            os.makedirs(into, exist_ok=True)
            for file in files:
                old, new = os.path.join(into, file), os.path.join(folder, file)
                with open(new, "rb") as f:
                    content = f.read()
                if not os.path.exists(old) or open(old, "rb").read() != content:
                    with open(old, "wb") as f:
                        f.write(content)
        command = ["make", "-C", self.headers, f"M={target}", "W=1", "modules", *make]
        if self.root != "/":
            # objtool reads /proc; the mount is gone with the command.
            enter = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
            command = ["unshare", "-m", "sh", "-c", enter, self.root, "make", "-C", self.headers, f"M=/modules/{name}", *command[4:]]
        said = run(command, f"building {os.path.relpath(source, ROOT)} for {self.release}", env=clean_environment())
        for file in os.listdir(target):
            if file.endswith(".ko"):
                self.modules[file] = os.path.join(target, file)
        return said


def clean_environment():
    """Without what a calling make hands down."""
    return {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "CC", "VARIANT")}


class Absent(Exception):
    """There are no kernels here: this is no Debian."""


def find_kernels(series):
    """Unpacks the newest kernel of each series."""
    with open("/etc/os-release", encoding="utf-8") as f:
        if not re.search(r"^ID=\"?debian\"?$", f.read(), re.M):
            raise Absent
    lines = run([os.path.join(HERE, "kernels"), *series], "kernels", env=clean_environment()).splitlines()
    return [Kernel(*line.split()) for line in lines if len(line.split()) == 4 and not line.startswith("kernels:")]


def make_initramfs(kernel, programs, tmp, module=True):
    """An initramfs of busybox, the drivers, the modules and (path, seconds) of the programs; returns its path."""
    root = os.path.join(tmp, f"root-{kernel.release}")
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "proc", "sys", "dev", "tmp", "modules", "tests", "mnt"):
        os.makedirs(os.path.join(root, name))
    shutil.copy(shutil.which("busybox"), os.path.join(root, "bin"))
    shutil.copy(os.path.join(HERE, "init"), root)
    shutil.copy(os.path.join(HERE, "in-system"), os.path.join(root, "bin"))
    with open(os.path.join(root, "modules", "order"), "w", encoding="utf-8") as order:
        for path in kernel.drivers():
            shutil.copy(path, os.path.join(root, "modules"))
            print(os.path.basename(path), file=order)
    for name, path in kernel.modules.items():
        if module or name != "computron.ko":
            run(["strip", "--strip-debug", "-o", os.path.join(root, "modules", name), path], "strip")
    with open(os.path.join(root, "tests", "list"), "w", encoding="utf-8") as wanted:
        for path, seconds in programs:
            name = os.path.basename(path).removesuffix(".sh")
            shutil.copy(path, os.path.join(root, "tests", name))
            print(name, seconds, file=wanted)
    target = root + ".cpio"
    names = subprocess.run(["find", ".", "-print0"], cwd=root, stdout=subprocess.PIPE, check=True).stdout
    with open(target, "wb") as f:
        subprocess.run(["cpio", "--null", "--quiet", "-o", "-H", "newc"], cwd=root, input=names, stdout=f, check=True)
    shutil.rmtree(root)
    return target


def random_drive(tmp, mib=16):
    """A drive of bytes that are no others' (a fixed seed); its path."""
    path = os.path.join(tmp, "random.img")
    with open(path, "wb") as f:
        f.write(random.Random(1).randbytes(mib << 20))
    return path


class Boot:
    """One life of a guest. `report` is what the programs said, `log` what the kernel said."""

    def __init__(self, kernel, initramfs, tmp, seconds, memory="1G", drives=(), append="", qemu=()):
        self.seconds = seconds
        self.report_path, self.log_path = (os.path.join(tmp, f"{kernel.release}.{name}") for name in ("report", "log"))
        self.command = [*QEMU, "-m", memory, "-kernel", kernel.image, "-initrd", initramfs]
        self.command += ["-append", f"{COMMAND_LINE} {append}"]
        self.command += ["-serial", f"file:{self.log_path}", "-serial", f"file:{self.report_path}", *qemu]
        for i, drive in enumerate(drives):
            self.command += ["-drive", f"file={drive},if=none,id=drive{i},format=raw,snapshot=on"]
            self.command += ["-device", f"nvme,serial=computron{i},drive=drive{i}"]
        self.ended = False

    def run(self):
        since = time.monotonic()
        child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            self.said = child.communicate(timeout=self.seconds)[0].decode(errors="replace")
            self.ended = True
        except subprocess.TimeoutExpired:
            self.said = f"still running after {self.seconds} s"
        finally:
            child.kill()
            child.wait()
        self.wall = time.monotonic() - since
        if self.ended and child.returncode:
            raise Failure(f"QEMU: {self.said}")
        self.report, self.log = (self._read(path) for path in (self.report_path, self.log_path))
        return self

    @staticmethod
    def _read(path):
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read().replace("\r\n", "\n")
