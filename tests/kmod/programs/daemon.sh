#!/bin/busybox sh
# shellcheck shell=dash
# The daemon in the guest: mounts the system of image.py and the models, and runs daemon.py there.
set -e
mount -t ext4 -o ro /dev/drive1 /mnt
for folder in proc sys dev; do
	mount -o bind /$folder /mnt/$folder
done
mount -t tmpfs tmp /mnt/tmp
# Nothing is read ahead: what is read of the models is what was asked for.
echo 0 >"/sys/block/$(readlink /dev/drive2)/queue/read_ahead_kb"
mount -t ext4 -o ro,noatime /dev/drive2 /mnt/models
ip link set lo up
cd /mnt
export CTN_BUILD=/repo/build TMPDIR=/tmp PYTHONDONTWRITEBYTECODE=1
status=0
chroot /mnt /usr/bin/python3 /repo/tests/kmod/daemon.py || status=$?
cd /
umount /mnt/models /mnt/tmp /mnt/dev /mnt/sys /mnt/proc
umount /mnt
exit $status
