// SPDX-License-Identifier: MIT
/*
 * The providers over anonymous memory: "thp" asks for transparent huge pages, "plain" for
 * none. Anonymous, because io_uring and CUDA can pin it on every kernel.
 */
#include "pool/frames.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define THP_DIR "/sys/kernel/mm/transparent_hugepage/"

/* Not inherited over fork (a child's copy would have to duplicate pinned pages), and left out of
 * core dumps. */
static int map_anon(uint64_t bytes, int node, int huge_advice, struct ctn_memory *m,
		    struct ctn_err *err)
{
	int rc = ctn_memory_reserve(bytes, m, err);

	if (rc)
		return rc;
	if (mprotect(m->addr, bytes, PROT_READ | PROT_WRITE) != 0) {
		rc = -errno;
		ctn_memory_unreserve(m);
		return ctn_err_set(err, rc, "pool: cannot map a segment of %llu bytes: %s",
				   (unsigned long long)bytes, strerror(-rc));
	}
	m->node = ctn_memory_bind(m->addr, bytes, node);
	/* Advice: a kernel that does not know it serves as well, only slower or fatter. */
	madvise(m->addr, bytes, huge_advice);
	madvise(m->addr, bytes, MADV_DONTFORK);
	madvise(m->addr, bytes, MADV_DONTDUMP);
	return 0;
}

static int map_thp(uint64_t bytes, int node, struct ctn_memory *m, struct ctn_err *err)
{
	return map_anon(bytes, node, MADV_HUGEPAGE, m, err);
}

static int map_plain(uint64_t bytes, int node, struct ctn_memory *m, struct ctn_err *err)
{
	return map_anon(bytes, node, MADV_NOHUGEPAGE, m, err);
}

/* Faults fall back to small pages when no huge one is free at once; collapse (Linux 6.1)
 * compacts and tries again, and does nothing where the page is huge already. */
static int populate_thp(uint8_t *addr, uint64_t bytes)
{
	int rc = ctn_populate(addr, bytes);

	if (rc == 0)
		madvise(addr, bytes, MADV_COLLAPSE);
	return rc;
}

/* True when the selected word of a file like "always [madvise] never" is `word`. */
static bool selected(const char *path, const char *word)
{
	char want[32], *text;
	bool yes;

	if (ctn_read_text(path, &text) != 0)
		return false;
	snprintf(want, sizeof(want), "[%s]", word);
	yes = strstr(text, want) != NULL;
	free(text);
	return yes;
}

static int thp_available(char *why, size_t len)
{
	static const char *const files[] = {
		THP_DIR "enabled", THP_DIR "hugepages-2048kB/enabled", /* from Linux 6.8 */
	};

	if (access(files[0], R_OK) != 0) {
		snprintf(why, len, "this kernel has no transparent huge pages");
		return -ENOTSUP;
	}
	for (size_t i = 0; i < CTN_ARRAY_LEN(files); i++) {
		if (selected(files[i], "never")) {
			snprintf(why, len, "transparent huge pages are off (never in %s)",
				 files[i]);
			return -ENOTSUP;
		}
	}
	if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) {
		snprintf(why, len, "transparent huge pages are disabled for this process");
		return -ENOTSUP;
	}
	return 0;
}

static int plain_available(char *why, size_t len)
{
	(void)why;
	(void)len;
	return 0;
}

static const struct ctn_memory_ops thp = {map_thp, ctn_memory_unreserve, populate_thp};
static const struct ctn_memory_ops plain = {map_plain, ctn_memory_unreserve, ctn_populate};

static int thp_open(const struct ctn_pool_config *cfg, struct ctn_pool **pool, struct ctn_err *err)
{
	return ctn_frames_open(cfg, &thp, pool, err);
}

static int plain_open(const struct ctn_pool_config *cfg, struct ctn_pool **pool,
		      struct ctn_err *err)
{
	return ctn_frames_open(cfg, &plain, pool, err);
}

const struct ctn_pool_provider ctn_pool_provider_thp = {"thp", true, thp_available, thp_open};
const struct ctn_pool_provider ctn_pool_provider_plain = {"plain", true, plain_available,
							  plain_open};
