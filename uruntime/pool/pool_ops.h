/* SPDX-License-Identifier: MIT */
/*
 * Private to pool/: what stands behind struct ctn_pool. A provider that keeps its frames in
 * this process uses frames.c over a memory of memory.h; one that keeps them elsewhere (a
 * kernel module) or wraps another pool (lossy.c) brings its own table of operations. A new
 * provider is a new file and a row in pool.c.
 */
#ifndef CTN_POOL_OPS_H
#define CTN_POOL_OPS_H

#include "pool/pool.h"

/* Each member behaves as the function of the same name in pool.h. Those marked optional may
 * be NULL: pool.c then gives the answer of a provider that never loses or exports frames. */
struct ctn_pool_ops {
	void (*close)(struct ctn_pool *pool);
	int (*alloc)(struct ctn_pool *pool, const struct ctn_frame_key *key, uint64_t bytes,
		     int node, struct ctn_frame_ref *ref);
	int (*commit)(struct ctn_pool *pool, const struct ctn_extent *extents, uint32_t count);
	int (*seal)(struct ctn_pool *pool, struct ctn_frame_ref ref,
		    const struct ctn_digest *digest, const uint8_t owner[CTN_OWNER_DATA]);
	int (*abort)(struct ctn_pool *pool, struct ctn_frame_ref ref);
	int (*lookup)(struct ctn_pool *pool, const struct ctn_frame_key *key,
		      struct ctn_frame_info *info);
	int (*lookup_content)(struct ctn_pool *pool, const struct ctn_digest *digest,
			      const uint8_t owner[CTN_OWNER_DATA], struct ctn_frame_info *info);
	size_t (*list)(struct ctn_pool *pool, struct ctn_frame_info *infos, size_t max);
	int (*lease)(struct ctn_pool *pool, struct ctn_frame_ref ref);
	void (*release)(struct ctn_pool *pool, struct ctn_frame_ref ref);
	int (*evict)(struct ctn_pool *pool, struct ctn_frame_ref ref);
	int (*extents)(struct ctn_pool *pool, struct ctn_frame_ref ref,
		       const struct ctn_extent **extents, uint32_t *count);
	int (*event_fd)(struct ctn_pool *pool);                               /* optional */
	bool (*next_loss)(struct ctn_pool *pool, struct ctn_frame_ref *ref);  /* optional */
	int (*export_frame)(struct ctn_pool *pool, struct ctn_frame_ref ref); /* optional */
	uint32_t (*segment_count)(struct ctn_pool *pool);
	void (*segment)(struct ctn_pool *pool, uint32_t i, struct ctn_segment *segment);
	void (*set_hot)(struct ctn_pool *pool, uint32_t i, bool hot);
	int (*pin_segment)(struct ctn_pool *pool, uint32_t i, ctn_pool_pin_fn *pin, void *arg);
	void (*get_stats)(struct ctn_pool *pool, bool with_proc, struct ctn_pool_stats *stats);
};

struct ctn_pool_provider {
	const char *name;
	bool automatic; /* may be chosen when the caller names none */
	/* 0, or -ENOTSUP with the reason, in words for a user. */
	int (*available)(char *why, size_t len);
	int (*open)(const struct ctn_pool_config *cfg, struct ctn_pool **pool, struct ctn_err *err);
};

/* The first member of every implementation. `ops` is set by the provider's open, the rest by
 * ctn_pool_open. */
struct ctn_pool {
	const struct ctn_pool_ops *ops;
	const struct ctn_pool_provider *provider;
	char why[512];
};

extern const struct ctn_pool_provider ctn_pool_provider_kmod;
extern const struct ctn_pool_provider ctn_pool_provider_hugetlb;
extern const struct ctn_pool_provider ctn_pool_provider_thp;
extern const struct ctn_pool_provider ctn_pool_provider_plain;
extern const struct ctn_pool_provider ctn_pool_provider_lossy;

#endif
