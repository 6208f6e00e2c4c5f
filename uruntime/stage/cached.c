// SPDX-License-Identifier: MIT
/*
 * How much of a file is in the page cache. Two calls can tell: cachestat (Linux 6.5), else
 * mincore over a mapping, which says "all of it" to those who may not write the file.
 */
#include "stage/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The same number on every architecture; the headers of older systems lack it. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

#define WINDOW (256 * CTN_MIB) /* that is mapped at a time */

struct cachestat_range {
	uint64_t offset, bytes;
};

struct cachestat {
	uint64_t cached, dirty, writeback, evicted, recently_evicted; /* pages */
};

static bool may_write(int fd)
{
	char path[32];
	struct stat st;

	if (fstat(fd, &st) == 0 && st.st_uid == geteuid())
		return true;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

/* Adds the cached bytes of a window. */
static int count_window(int fd, uint64_t offset, uint64_t bytes, uint64_t page, uint8_t *resident,
			uint64_t *cached)
{
	void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)offset);
	int rc = 0;

	if (map == MAP_FAILED)
		return -errno;
	if (mincore(map, bytes, resident) != 0)
		rc = -errno;
	munmap(map, bytes);
	for (uint64_t i = 0; i * page < bytes && rc == 0; i++)
		*cached += resident[i] & 1 ? page : 0;
	return rc;
}

static int ask_mincore(int fd, uint64_t offset, uint64_t bytes, uint64_t page, uint64_t *cached)
{
	uint8_t *resident;
	int rc = 0;

	if (!may_write(fd))
		return -EPERM;
	resident = malloc(WINDOW / page);
	if (!resident)
		return -ENOMEM;
	*cached = 0;
	for (uint64_t at = 0; at < bytes && rc == 0; at += WINDOW)
		rc = count_window(fd, offset + at, CTN_MIN(bytes - at, WINDOW), page, resident,
				  cached);
	free(resident);
	return rc;
}

int ctn_ask_cached(void *ctx, int fd, uint64_t offset, uint64_t bytes, uint64_t *cached)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t begin = ctn_align_down(offset, page);
	struct cachestat_range range = {begin, ctn_align_up(offset + bytes, page) - begin};
	struct cachestat stat;

	(void)ctx;
	if (syscall(SYS_cachestat, fd, &range, &stat, 0) == 0) {
		*cached = stat.cached * page;
		return 0;
	}
	/* Whoever is refused an answer would get a false one from mincore. */
	return errno == ENOSYS ? ask_mincore(fd, range.offset, range.bytes, page, cached) : -errno;
}

bool ctn_job_cached(const struct ctn_stage_job *job, uint32_t file, int fd)
{
	const struct ctn_stage_sys *sys = &job->stage->sys;
	uint64_t wanted = 0, cached = 0;

	for (uint32_t i = 0; i < job->part->run_count; i++) {
		const struct ctn_run *run = &job->part->runs[i];
		uint64_t left = job->ckpt->files[file].bytes - run->file_offset;
		uint64_t bytes = CTN_MIN(run->bytes, left), n = 0;

		if (run->file != file)
			continue;
		if (sys->cached(sys->ctx, fd, run->file_offset, bytes, &n) != 0)
			return false;
		wanted += bytes;
		cached += CTN_MIN(n, bytes);
	}
	/* Nine tenths: the rest comes from the disk through the cache, which costs little. */
	return wanted > 0 && cached >= wanted - wanted / 10;
}
