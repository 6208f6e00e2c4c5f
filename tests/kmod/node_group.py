#!/usr/bin/python3
"""Runs in the guest: udev, the rule and the group that `dkms/install` delivers. Prints KTAP."""

import grp
import os
import stat
import subprocess
import sys

import ktap
from ktap import Skip

DEVICE = "/dev/computron"
UDEVD = "/usr/lib/systemd/systemd-udevd"
UDEVADM = "/usr/bin/udevadm"
GROUP = "computron"
# in-system changes the root, where udevadm does nothing unless told so.
os.environ["SYSTEMD_IGNORE_CHROOT"] = "1"


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def run_udev():
    """udev gives the node to the group; the kernel alone does not."""
    if not os.path.exists(UDEVD):
        raise Skip("there was no udev to put into this system")
    if not os.path.exists("/proc/sys/fs/inotify"):
        raise Skip("this kernel has no inotify, without which udev does not start")
    check(os.stat(DEVICE).st_gid == 0, "the node has a group already")
    subprocess.run([UDEVD, "--daemon"], check=True)
    subprocess.run([UDEVADM, "trigger", "--settle", "--action=add", "/sys/class/misc/computron"], check=True)


def group_and_mode():
    run_udev()
    found = os.stat(DEVICE)
    check(found.st_gid == grp.getgrnam(GROUP).gr_gid, f"group {found.st_gid}, not that of {GROUP}")
    check(found.st_gid != 0, "the group is root's")
    check(stat.S_IMODE(found.st_mode) == 0o660, f"mode {stat.S_IMODE(found.st_mode):o}")


def opens(gids):
    """Whether an ordinary user with these groups opens the device."""
    pid = os.fork()
    if not pid:
        try:
            os.setgroups(gids)
            os.setgid(1000)
            os.setuid(1000)
            os.open(DEVICE, os.O_RDWR)
        except PermissionError:
            os._exit(1)
        except OSError:
            os._exit(2)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    check(status in (0, 1), f"status {status}")
    return status == 0


def only_members_open_it():
    if not os.path.exists("/run/udev"):
        raise Skip("udev did not run")
    check(opens([grp.getgrnam(GROUP).gr_gid]), "a member of the group does not open it")
    check(not opens([]), "who is no member opens it")


status = ktap.run((group_and_mode, only_members_open_it))
if os.path.exists("/run/udev"):
    subprocess.run([UDEVADM, "control", "--exit"], check=False)
sys.exit(status)
