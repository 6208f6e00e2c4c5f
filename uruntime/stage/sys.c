// SPDX-License-Identifier: MIT
/* The real calls behind the seam. */
#include "stage/private.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static int real_open(void *ctx, const char *path, int flags)
{
	int fd = open(path, flags);

	(void)ctx;
	return fd < 0 ? -errno : fd;
}

static ssize_t real_pread(void *ctx, int fd, void *buf, size_t len, uint64_t offset)
{
	ssize_t n = pread(fd, buf, len, (off_t)offset);

	(void)ctx;
	return n < 0 ? -errno : n;
}

static int real_uring_setup(void *ctx, unsigned int entries, unsigned int flags)
{
	(void)ctx;
	(void)entries;
	(void)flags;
	return 0;
}

static int real_uring_register(void *ctx, unsigned int buffers)
{
	(void)ctx;
	(void)buffers;
	return 0;
}

static int real_uring_result(void *ctx, int result, size_t len)
{
	(void)ctx;
	(void)len;
	return result;
}

void ctn_sys_init(struct ctn_stage_sys *out, const struct ctn_stage_sys *sys)
{
	static const struct ctn_stage_sys none;

	*out = sys ? *sys : none;
	if (!out->open)
		out->open = real_open;
	if (!out->pread)
		out->pread = real_pread;
	if (!out->cached)
		out->cached = ctn_ask_cached;
	if (!out->uring_setup)
		out->uring_setup = real_uring_setup;
	if (!out->uring_register)
		out->uring_register = real_uring_register;
	if (!out->uring_result)
		out->uring_result = real_uring_result;
}
