// SPDX-License-Identifier: MIT
/*
 * The provider "hugetlb": pages of 2 MiB that were reserved for nothing else, behind a memfd a
 * segment. They are promised when the segment is mapped, all or none, so that no later fault lacks
 * one; they cannot be split, swapped or taken back.
 */
#include "pool/frames.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 0x0004U
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

#define COUNTS "/sys/kernel/mm/hugepages/hugepages-2048kB/"

static int make_memfd(void)
{
	int fd = memfd_create("computron-pool", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);

	return fd < 0 ? -errno : fd;
}

/* The mapping keeps the memory: the descriptor is not needed any more. */
static int map_hugetlb(uint64_t bytes, int node, struct ctn_memory *m, struct ctn_err *err)
{
	int fd = make_memfd(), rc = 0;

	if (fd < 0)
		return ctn_err_set(err, fd, "pool: memfd_create: %s", strerror(-fd));
	rc = ctn_memory_reserve(bytes, m, err);
	if (rc)
		goto close_fd;
	if (ftruncate(fd, (off_t)bytes) != 0 || mmap(m->addr, bytes, PROT_READ | PROT_WRITE,
						     MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		rc = ctn_err_set(err, -errno, "pool: %llu bytes of huge pages: %s",
				 (unsigned long long)bytes, strerror(errno));
		ctn_memory_unreserve(m);
		goto close_fd;
	}
	m->node = ctn_memory_bind(m->addr, bytes, node);
	madvise(m->addr, bytes, MADV_DONTFORK);
	madvise(m->addr, bytes, MADV_DONTDUMP);
close_fd:
	close(fd);
	return rc;
}

static uint64_t count(const char *path)
{
	uint64_t v = 0;
	char *text;

	if (ctn_read_text(path, &text) == 0) {
		v = strtoull(text, NULL, 10);
		free(text);
	}
	return v;
}

/* Which number would be enough: what is promised to others is free no more. */
static int explain_lack(uint64_t bytes, struct ctn_err *err)
{
	uint64_t need = (bytes + CTN_EXTENT_ALIGN - 1) / CTN_EXTENT_ALIGN;
	uint64_t reserved = count(COUNTS "nr_hugepages"),
		 free_pages = count(COUNTS "free_hugepages");
	uint64_t promised = count(COUNTS "resv_hugepages");
	uint64_t usable = free_pages > promised ? free_pages - promised : 0;

	return ctn_err_set(err, -ENOMEM, "%s (HugePages_Free %llu): sysctl vm.nr_hugepages=%llu",
			   reserved ? "too few huge pages reserved" : "no huge pages reserved",
			   (unsigned long long)usable,
			   (unsigned long long)(reserved + (need > usable ? need - usable : 0)));
}

static int hugetlb_available(char *why, size_t len)
{
	int fd = make_memfd();

	if (fd >= 0) {
		close(fd);
		return 0;
	}
	snprintf(why, len, "this kernel gives no huge pages of 2 MiB (memfd_create: %s)",
		 strerror(-fd));
	return -ENOTSUP;
}

static const struct ctn_memory_ops hugetlb = {map_hugetlb, ctn_memory_unreserve, ctn_populate};

static int hugetlb_open(const struct ctn_pool_config *cfg, struct ctn_pool **pool,
			struct ctn_err *err)
{
	int rc = ctn_frames_open(cfg, &hugetlb, pool, err);

	return rc == -ENOMEM ? explain_lack(cfg->bytes, err) : rc;
}

const struct ctn_pool_provider ctn_pool_provider_hugetlb = {"hugetlb", true, hugetlb_available,
							    hugetlb_open};
