#!/usr/bin/python3
"""Where checkpoints lie and what the process may do there: file systems, links, each method, the limits that refuse the best one.
Each time the right answers, and the method that the metric tells."""

import contextlib
import ctypes
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile

from harness import MODELS, NAMES, Daemon, Skip, check, equal, golden, main, test

METHODS = ("uring-fixed", "uring", "pread", "buffered")
DIRECT = METHODS[:3]
SMALL = {"device": "host,mem=8M", "pool": "plain,size=8M"}
LIBC = ctypes.CDLL(None, use_errno=True)


def methods(d):
    found = d.metrics().find("computron_stage_method")
    return [m for m in METHODS if found[frozenset({("method", m)})]]


def answers(d):
    for name in NAMES:
        equal(d.ids(name, [1], 8), golden(name)["greedy_ids_from_bos"][1:9], name)


def served(*args, models_dir=None, prefix=(), log=()):
    """Starts a daemon that has to answer rightly; the methods that it then tells. `log`: words that its log must hold."""
    with Daemon(*args, models_dir=models_dir, prefix=prefix, **SMALL) as d:
        answers(d)
        for word in log:
            check(word in d.log, f"expected {word!r} in:\n{d.log}")
        return methods(d)


def uncache(folder):
    """Stage would read files from the page cache that were written a moment ago."""
    for where, _, names in os.walk(folder):
        for name in names:
            fd = os.open(os.path.join(where, name), os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def copy_models(folder):
    for name in NAMES:
        shutil.copytree(os.path.join(MODELS, name), os.path.join(folder, name))
    uncache(folder)
    return folder


def takes_direct(folder):
    path = os.path.join(folder, NAMES[0], "model.safetensors")
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def local():
    with tempfile.TemporaryDirectory() as folder:
        yield copy_models(folder)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    equal(done.returncode, 0, f"{' '.join(command)}: {done.stderr}; status")


def own_mounts():
    """Mounts from here on are this process's and its children's, and go away with it."""
    with open("/proc/filesystems", encoding="ascii") as f:
        kinds = f.read().split()
    if LIBC.unshare(0x00020000) != 0:  # CLONE_NEWNS
        raise Skip("no right to mount")
    if subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode:
        raise Skip("no right to mount")
    return kinds


@contextlib.contextmanager
def mounted(kind, source, *options):
    with tempfile.TemporaryDirectory() as folder:
        run("mount", "-t", kind, *options, source, folder)
        try:
            yield folder
        finally:
            run("umount", folder)


# --- file systems -------------------------------------------------------------------------------------------------------


@test
def tmpfs():
    own_mounts()
    with mounted("tmpfs", "none", "-o", "size=64M") as folder:
        equal(served(models_dir=copy_models(folder)), ["buffered"], "what is memory is in the page cache")


@test
def overlayfs():
    """As the file system below it."""
    if "overlay" not in own_mounts():
        raise Skip("this kernel has no overlayfs")
    with tempfile.TemporaryDirectory() as base:
        for name in ("lower", "upper", "work"):
            os.mkdir(os.path.join(base, name))
        lower = copy_models(os.path.join(base, "lower"))
        expected = served(models_dir=lower)
        uncache(lower)
        layers = f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work"
        try:
            with mounted("overlay", "none", "-o", layers) as folder:
                equal(served(models_dir=folder), expected)
                # One that was written on top, beside two from below.
                shutil.rmtree(os.path.join(folder, NAMES[0]))
                shutil.copytree(os.path.join(MODELS, NAMES[0]), os.path.join(folder, NAMES[0]))
                uncache(os.path.join(base, "upper"))
                uncache(lower)
                equal(served(models_dir=folder), expected)
        finally:
            shutil.rmtree(os.path.join(base, "work"), ignore_errors=True)


@test
def squashfs():
    if "squashfs" not in own_mounts():
        raise Skip("this kernel has no squashfs")
    if not shutil.which("mksquashfs"):
        raise Skip("squashfs-tools is not installed")
    with local() as folder, tempfile.TemporaryDirectory() as other:
        image = os.path.join(other, "image")
        run("mksquashfs", folder, image, "-quiet", "-no-progress")
        with mounted("squashfs", image, "-o", "loop,ro") as mount:
            if takes_direct(mount):
                equal(served(models_dir=mount), ["buffered"])
            else:
                equal(served(models_dir=mount, log=["gave way to buffered", "O_DIRECT refused"]), ["buffered"])


# --- links --------------------------------------------------------------------------------------------------------------


def as_cache(folder, name):
    """A checkpoint as huggingface_hub keeps it: snapshots of links to blobs."""
    top = os.path.join(folder, f"models--someone--{name}")
    blobs, snapshot = os.path.join(top, "blobs"), os.path.join(top, "snapshots", "0a1b2c")
    os.makedirs(blobs)
    os.makedirs(snapshot)
    for number, file in enumerate(sorted(os.listdir(os.path.join(MODELS, name)))):
        blob = f"{number:040x}"
        shutil.copy(os.path.join(MODELS, name, file), os.path.join(blobs, blob))
        os.symlink(f"../../blobs/{blob}", os.path.join(snapshot, file))
    uncache(blobs)
    return snapshot


@test
def a_cache_of_links():
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as links, local() as plain:
        expected = served(models_dir=plain)
        snapshots = {name: as_cache(cache, name) for name in NAMES}
        named = [word for name, snapshot in snapshots.items() for word in ("--model", f"{name}={snapshot}")]
        equal(served(*named), expected)
        for name, snapshot in snapshots.items():
            os.symlink(snapshot, os.path.join(links, name))
            uncache(snapshot)
        equal(served(models_dir=links), expected, "a folder of links to snapshots")


# --- methods ------------------------------------------------------------------------------------------------------------


def has_uring():
    params = ctypes.create_string_buffer(120)
    fd = LIBC.syscall(425, 1, params)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


@test
def each_method():
    for method in reversed(METHODS):
        with local() as folder:
            if method in DIRECT and not takes_direct(folder):
                raise Skip("no O_DIRECT")
            if method in METHODS[:2] and not has_uring():
                raise Skip("no io_uring")
            if method == METHODS[0] and os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < 64 << 20:
                raise Skip("no io_uring with registered buffers: the limit on locked memory")
            equal(served("--stage-method", method, models_dir=folder), [method])


def without_uring(command):
    """Replaces this process by the command, to which io_uring_setup answers EPERM, as in a container."""
    # Load the number of the call; if it is 425, EPERM; else allow.
    program = ((0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    check(LIBC.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS")
    check(LIBC.prctl(22, 2, filter_, 0, 0) == 0, "PR_SET_SECCOMP")
    os.execv(command[0], command)


@test
def io_uring_forbidden():
    with local() as folder:
        if not takes_direct(folder):
            raise Skip("no O_DIRECT")
        prefix = [sys.executable, os.path.abspath(__file__), "--without-uring"]
        why = ["gave way to pread: io_uring_setup: Operation not permitted"]
        equal(served(models_dir=folder, prefix=prefix, log=why), ["pread"])


@test
def little_memory_to_lock():
    """An ordinary user who may lock 64 KiB."""
    if os.geteuid() != 0:
        raise Skip("only root can become an ordinary user")
    user = 100000 + os.getpid()  # the kernel counts what a user locks over all its processes
    limit = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "prlimit", "--memlock=65536:65536", "--"]
    with local() as folder, tempfile.TemporaryDirectory() as home:
        if not takes_direct(folder):
            raise Skip("no O_DIRECT")
        if not has_uring():
            raise Skip("no io_uring")
        os.chmod(folder, 0o755)
        os.chmod(home, 0o755)
        daemon = Daemon(models_dir=folder, **SMALL)
        # Where the user may not look, the sources and their build may lie.
        program = shutil.copy(daemon.command[0], home)
        daemon.command = [*limit, program, *daemon.command[1:]]
        os.chown(daemon.dir, user, user)
        with daemon as d:
            answers(d)
            equal(methods(d), ["uring"])
            why = "gave way to uring: the limit on locked memory (ulimit -l) is 65536 bytes"
            check(why in d.log, f"expected {why!r} in:\n{d.log}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--without-uring"]:
        without_uring(sys.argv[2:])
    sys.exit(main("storage"))
