/* SPDX-License-Identifier: MIT */
/* What the tests of pool and stage both need. */
#ifndef CTN_POOL_FIXTURE_H
#define CTN_POOL_FIXTURE_H

#include "test.h"
#include "pool/pool.h"

#include <errno.h>
#include <sys/utsname.h>

/* The choice of a provider is that of a machine without the kernel module. */
static inline int ctn_test_no_module(void *ctx, const char *path)
{
	(void)ctx;
	(void)path;
	return -ENOENT;
}

static const struct ctn_kmod_sys ctn_test_no_kmod = {.open = ctn_test_no_module};

static inline struct ctn_pool *ctn_test_pool(const char *provider, uint64_t bytes, uint64_t segment,
					     bool poison)
{
	struct ctn_pool_config cfg = {.provider = provider,
				      .bytes = bytes,
				      .segment_bytes = segment,
				      .hot_bytes = UINT64_MAX,
				      .node = -1,
				      .poison = poison,
				      .kmod_sys = &ctn_test_no_kmod};
	struct ctn_err err = {0};
	struct ctn_pool *pool;

	if (ctn_pool_open(&cfg, &pool, &err) != 0) {
		fprintf(stderr, "%s\n", err.msg);
		exit(2);
	}
	return pool;
}

static inline struct ctn_frame_key ctn_test_key(unsigned int n)
{
	struct ctn_frame_key key = {{0}};

	memcpy(key.bytes, &n, sizeof(n));
	return key;
}

static inline int ctn_test_commit(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	const struct ctn_extent *extents;
	uint32_t count;
	int rc = ctn_pool_extents(pool, ref, &extents, &count);

	return rc ? rc : ctn_pool_commit(pool, extents, count);
}

/* A CLEAN frame without a lease. */
static inline struct ctn_frame_ref ctn_test_clean(struct ctn_pool *pool, unsigned int n,
						  uint64_t bytes)
{
	struct ctn_frame_key key = ctn_test_key(n);
	struct ctn_frame_ref ref = {0, 0};

	if (ctn_pool_alloc(pool, &key, bytes, -1, &ref) != 0 || ctn_test_commit(pool, ref) != 0 ||
	    ctn_pool_seal(pool, ref, NULL, NULL) != 0) {
		fprintf(stderr, "no frame of %llu bytes\n", (unsigned long long)bytes);
		exit(2);
	}
	ctn_pool_release(pool, ref);
	return ref;
}

/* Total = free + loading + clean, with the last two as the test expects them. */
static inline void ctn_test_books(struct ctn_pool *pool, uint64_t total, uint64_t loading,
				  uint64_t clean, uint64_t leased, uint64_t frames)
{
	struct ctn_pool_stats s;

	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_EQUAL(s.total_bytes, total);
	CU_ASSERT_EQUAL(s.free_bytes, total - loading - clean);
	CU_ASSERT_EQUAL(s.loading_bytes, loading);
	CU_ASSERT_EQUAL(s.clean_bytes, clean);
	CU_ASSERT_EQUAL(s.leased_bytes, leased);
	CU_ASSERT_EQUAL(s.frames, frames);
}

static inline bool ctn_test_kernel_at_least(int major, int minor)
{
	struct utsname u;
	int a = 0, b = 0;

	if (uname(&u) != 0 || sscanf(u.release, "%d.%d", &a, &b) != 2)
		return false;
	return a > major || (a == major && b >= minor);
}

#endif
