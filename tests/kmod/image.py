"""An ext4 image with what the daemon and its end-to-end tests need in a guest: no distribution, only the files that
`ldd` and the Python modules in use come to."""

import glob
import os
import re
import shutil
import subprocess

import guest

PYTHON = "/usr/bin/python3"
# Of the standard library, what nobody imports here.
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "pydoc_data", "turtledemo", "__pycache__", "distutils"}

# Unit tests that also run on the real module.
UNIT_PROGRAMS = ("test_pool_kmod", "test_pool_kmod_open", "test_pager_kmod")


def libraries(path):
    """What a program or a library is linked with, the dynamic loader included."""
    said = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", said)


def put(root, path, to=None):
    """Copies a file to the same place below root."""
    target = os.path.join(root, (to or path).lstrip("/"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if not os.path.exists(target):
        shutil.copy(path, target)  # what a symbolic link points to


def put_program(root, path, to=None):
    put(root, path, to)
    for library in libraries(path):
        put(root, library)


def put_python(root):
    put_program(root, os.path.realpath(PYTHON), PYTHON)
    said = subprocess.run([PYTHON, "-Sc", "import os; print(os.path.dirname(os.__file__))"], capture_output=True, text=True)
    folder = said.stdout.strip()
    shutil.copytree(folder, os.path.join(root, folder.lstrip("/")), ignore=lambda _, names: LEFT_OUT & set(names))
    for extension in glob.glob(os.path.join(folder, "lib-dynload", "*.so")):
        for needed in libraries(extension):
            put(root, needed)


def make(folder, image, mib):
    """An ext4 file system of a folder."""
    with open(image, "wb") as f:
        f.truncate(mib << 20)
    guest.run(["mke2fs", "-q", "-t", "ext4", "-F", "-d", folder, image], "mke2fs", env={**os.environ, "PATH": os.environ["PATH"] + ":/sbin:/usr/sbin"})
    return image


def put_udev(root):
    """udev, where there is one, and what is delivered for it: the rule and its group."""
    udevadm = shutil.which("udevadm", path=os.environ["PATH"] + ":/sbin:/usr/sbin")
    if udevadm and shutil.which("systemd-sysusers"):
        put_program(root, udevadm, "/usr/bin/udevadm")
        os.makedirs(os.path.join(root, "usr/lib/systemd"), exist_ok=True)
        os.symlink("/usr/bin/udevadm", os.path.join(root, "usr/lib/systemd/systemd-udevd"))
        guest.run([os.path.join(guest.ROOT, "dkms", "install"), root], "dkms/install")
        guest.run(["systemd-sysusers", f"--root={root}", "computron.conf"], "systemd-sysusers")


def root_image(tmp):
    """The system of the guest: Python, the daemon, the tool, the tests."""
    root = os.path.join(tmp, "system")
    shutil.rmtree(root, ignore_errors=True)
    for name in ("proc", "sys", "dev", "tmp", "run", "models", "etc", "repo/build"):
        os.makedirs(os.path.join(root, name))
    put_python(root)
    put_udev(root)
    for name in ("computrond", "computron"):
        put_program(root, os.path.join(guest.BUILD, name), f"/repo/build/{name}")
    for name in UNIT_PROGRAMS:
        put_program(root, os.path.join(guest.BUILD, "tests", "unit", name), f"/repo/build/tests/unit/{name}")
    for folder in ("tests/e2e", "tests/kmod", "tests/models"):
        ignore = shutil.ignore_patterns("*.safetensors", "__pycache__")
        shutil.copytree(os.path.join(guest.ROOT, folder), os.path.join(root, "repo", folder), ignore=ignore)
    image = make(root, os.path.join(tmp, "system.img"), 512)
    shutil.rmtree(root)
    return image


def models_image(tmp):
    """The checkpoints on a drive of their own, so that what is read of them can be counted."""
    return make(os.path.join(guest.ROOT, "tests", "models"), os.path.join(tmp, "models.img"), 32)
