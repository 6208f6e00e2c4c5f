// SPDX-License-Identifier: MIT
/* Calls on the files of the module, through the seam. */
#include "pool/kmod.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static int real_open(void *ctx, const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	(void)ctx;
	return fd < 0 ? -errno : fd;
}

static int real_close(void *ctx, int fd)
{
	(void)ctx;
	return close(fd) < 0 ? -errno : 0;
}

static int real_ioctl(void *ctx, int fd, unsigned long request, void *arg)
{
	int rc = ioctl(fd, request, arg);

	(void)ctx;
	return rc < 0 ? -errno : rc;
}

static int real_mmap(void *ctx, void *addr, uint64_t bytes, int fd, uint64_t offset)
{
	(void)ctx;
	return mmap(addr, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED
		       ? -errno
		       : 0;
}

static ssize_t real_read(void *ctx, int fd, void *buf, size_t len)
{
	ssize_t n = read(fd, buf, len);

	(void)ctx;
	return n < 0 ? -errno : n;
}

const struct ctn_kmod_sys ctn_kmod_real_sys = {
	.open = real_open,
	.close = real_close,
	.ioctl = real_ioctl,
	.mmap = real_mmap,
	.read = real_read,
};

int ctn_kmod_call(const struct ctn_kmod_sys *sys, int fd, unsigned long request, void *arg,
		  uint32_t size)
{
	memcpy(arg, &size, sizeof(size));
	return sys->ioctl(sys->ctx, fd, request, arg);
}
