/* SPDX-License-Identifier: MIT */
/*
 * pool: host memory for parts. Equal segments of huge pages, cut into extents of 2 MiB
 * multiples; a frame is a list of extents with one linear byte space.
 *
 * A frame goes LOADING -> CLEAN -> gone. While LOADING its owner commits memory to it and may
 * then write it; from seal on it is read-only, also to us. A CLEAN frame without a lease may vanish
 * at any moment (evicted here, or taken by the kernel's reclaim with the kmod provider): every call
 * takes (id, generation), and one that is gone answers -ESTALE. That is an ordinary drop.
 *
 * All functions may be called from any thread. Only ctn_pool_commit and ctn_pool_pin_segment
 * take long (a second for a GiB, or several), and no other call waits for them.
 */
#ifndef CTN_POOL_H
#define CTN_POOL_H

#include "base/base.h"
#include "checkpoint/checkpoint.h" /* struct ctn_frame_key */

struct ctn_pool;

#define CTN_EXTENT_ALIGN (2 * CTN_MIB)
#define CTN_OWNER_DATA   64

struct ctn_frame_ref {
	uint64_t id;
	uint64_t generation;
};

enum ctn_frame_state { CTN_FRAME_LOADING, CTN_FRAME_CLEAN };

struct ctn_frame_info {
	struct ctn_frame_ref ref;
	struct ctn_frame_key key;
	enum ctn_frame_state state;
	uint64_t bytes;   /* asked for */
	uint64_t charged; /* taken from the pool: a multiple of CTN_EXTENT_ALIGN */
	uint32_t leases;
	/* Of a CLEAN frame: what it was sealed with. The two are the name of its content. */
	struct ctn_digest digest;
	uint8_t owner[CTN_OWNER_DATA];
	bool has_digest; /* it was sealed with one */
};

/* A piece of a segment. Addresses are stable for the life of the pool. */
struct ctn_extent {
	uint8_t *addr;
	uint64_t bytes;
	uint32_t segment;
	uint64_t segment_offset;
};

struct ctn_segment {
	uint8_t *addr;
	uint64_t bytes;
	int node; /* NUMA node, -1 unknown */
	bool hot; /* to be registered for DMA */
};

/*
 * The seam for calls on the module's files: tests put a pretended module here. Each member behaves
 * like the call it is named after, but returns a negative errno. The descriptor of a pool can be
 * polled.
 */
struct ctn_kmod_sys {
	int (*open)(void *ctx, const char *path);
	int (*close)(void *ctx, int fd);
	int (*ioctl)(void *ctx, int fd, unsigned long request, void *arg);
	/* PROT_READ, MAP_SHARED, at `addr`. */
	int (*mmap)(void *ctx, void *addr, uint64_t bytes, int fd, uint64_t offset);
	ssize_t (*read)(void *ctx, int fd, void *buf, size_t len);
	void *ctx;
};

struct ctn_pool_config {
	const char *provider;   /* "kmod", "hugetlb", "thp", "plain", "lossy"; NULL: the best */
	const char *name;       /* kmod: the pool's name, NULL: "computron"; else NULL */
	bool temporary;         /* kmod: a pool of its own, which ends with ctn_pool_close */
	uint64_t bytes;         /* whole pool, rounded down to CTN_EXTENT_ALIGN */
	bool bytes_wished;      /* kmod: a pool that is there already is taken whatever its size */
	uint64_t hot_bytes;     /* whole segments that fit in it are hot; UINT64_MAX: as the
				 * provider has it: all, of kmod none */
	uint64_t floor_bytes;   /* kmod: CLEAN frames that the kernel leaves when memory is short */
	uint64_t segment_bytes; /* 0: 1 GiB */
	int node;               /* NUMA node, -1 any */
	bool poison;            /* fill with 0xdb on evict and abort (test builds; not kmod) */
	const struct ctn_kmod_sys *kmod_sys; /* NULL: the real calls */
};

struct ctn_pool_stats {
	const char *provider;
	const char *name; /* of the pool, of kmod; else NULL. It lives as long as the pool */
	char why[512];    /* why a better provider was not taken; empty: none better */
	uint64_t total_bytes;
	uint64_t free_bytes;    /* by the allocator */
	uint64_t loading_bytes; /* by a walk over the frames, as are the next two */
	uint64_t clean_bytes;
	uint64_t leased_bytes; /* included in clean_bytes */
	uint64_t held_bytes;   /* kmod, likewise by a walk: in LOADING frames of other processes,
				* and in what was given up while a device could still write to it */
	uint64_t frames;
	uint64_t resident_bytes; /* the kernel's own figures for these mappings: Rss and hugetlb, */
	uint64_t huge_bytes;     /* AnonHugePages, ShmemPmdMapped and hugetlb of /proc/self/smaps */
	uint64_t module_bytes;   /* kmod: what the module finds in the pool, mapped here or not, */
	uint64_t module_huge_bytes;   /* in huge pages, */
	uint64_t module_pinned_bytes; /* and pinned for DMA; with_proc only */
	uint64_t evictions;
	uint64_t refused_evictions;
	uint64_t losses; /* frames that were lost, see ctn_pool_next_loss */
};

/* The size of a pool that nobody sized: a quarter of the memory that can be had. */
uint64_t ctn_pool_default_bytes(void);

/*
 * "[PROVIDER[:NAME],]size=SIZE[,hot=SIZE][,floor=SIZE][,segment=SIZE]": sets what it names, and
 * leaves the rest of `cfg` as it is. Strings of `cfg` live in `opts`, which the caller frees in any
 * case. -EINVAL, -ERANGE, -ENOMEM.
 */
int ctn_pool_parse_spec(const char *spec, struct ctn_opts *opts, struct ctn_pool_config *cfg,
			struct ctn_err *err);

/* The providers that are tried when none is named, the best first; NULL behind the last. */
const char *ctn_pool_provider_name(uint32_t i);

/* What kernel module there is: for people who ask why, or why not. */
struct ctn_pool_module {
	char version[32];
	uint32_t abi;
	uint32_t pools;
	uint64_t total_bytes; /* of all pools, and their limit */
	uint64_t max_bytes;
};

/* -ENOTSUP with the reason where the provider "kmod" does not work. `sys` NULL: the real calls. */
int ctn_pool_ask_module(const struct ctn_kmod_sys *sys, struct ctn_pool_module *module,
			struct ctn_err *err);

/* Reserves addresses; memory is committed by ctn_pool_commit, and kept.
 * -EINVAL for a pool of less than one extent, -ENOENT for an unknown provider, -ENOTSUP for one
 * that does not work here, -ENOMEM. */
int ctn_pool_open(const struct ctn_pool_config *cfg, struct ctn_pool **pool, struct ctn_err *err);
/* No lease and no LOADING frame may be left. */
void ctn_pool_close(struct ctn_pool *pool);

/* A new LOADING frame of `bytes` bytes, owned by the caller until seal or abort. -ENOSPC when
 * there is no room, -EEXIST when a frame of that key is LOADING or CLEAN (*ref names it),
 * -EFBIG when it could never fit, -ENOMEM, -EINVAL for 0 bytes. `node` is a wish; -1 any. No
 * memory is touched: nobody may read or write its bytes before ctn_pool_commit. */
int ctn_pool_alloc(struct ctn_pool *pool, const struct ctn_frame_key *key, uint64_t bytes, int node,
		   struct ctn_frame_ref *ref);
/* Finds the memory for a LOADING frame, which is writable afterwards. `extents` are those of
 * ctn_pool_extents. For its owner, in any thread; there is neither seal nor abort meanwhile.
 * -ENOMEM: it is LOADING still and not to be written, and abort gives it up. -EINVAL when it
 * is CLEAN, -ESTALE. */
int ctn_pool_commit(struct ctn_pool *pool, const struct ctn_extent *extents, uint32_t count);
/* LOADING -> CLEAN, with one lease for the caller. The bytes are read-only from here on. Without a
 * `digest` (NULL) the frame is never found by its content.
 * -EINVAL when it is CLEAN already or was not committed, -ESTALE, -ENOMEM (it is LOADING
 * still). */
int ctn_pool_seal(struct ctn_pool *pool, struct ctn_frame_ref ref, const struct ctn_digest *digest,
		  const uint8_t owner[CTN_OWNER_DATA]);
/* LOADING -> gone. No I/O may be in flight into it. -EINVAL when it is CLEAN, -ESTALE. */
int ctn_pool_abort(struct ctn_pool *pool, struct ctn_frame_ref ref);

/* The frame of a key. -ENOENT. It may be stale when you use it. */
int ctn_pool_lookup(struct ctn_pool *pool, const struct ctn_frame_key *key,
		    struct ctn_frame_info *info);
/* A CLEAN frame, of whatever key, that was sealed with this digest and this owner data: where these
 * tell the bytes and their places, its content is equal. -ENOENT: none is known. */
int ctn_pool_lookup_content(struct ctn_pool *pool, const struct ctn_digest *digest,
			    const uint8_t owner[CTN_OWNER_DATA], struct ctn_frame_info *info);
/* Up to `max` frames into `infos` (NULL with max 0 counts). Returns how many there are. */
size_t ctn_pool_list(struct ctn_pool *pool, struct ctn_frame_info *infos, size_t max);

/* One more lease on a CLEAN frame. -ESTALE when it is gone, -EBUSY while it is LOADING. */
int ctn_pool_lease(struct ctn_pool *pool, struct ctn_frame_ref ref);
void ctn_pool_release(struct ctn_pool *pool, struct ctn_frame_ref ref);
/* CLEAN and unleased -> gone. -EBUSY (leased or LOADING), -ESTALE. Moves no bytes. */
int ctn_pool_evict(struct ctn_pool *pool, struct ctn_frame_ref ref);

/* The extents of a frame, in linear order. They stay valid while the caller owns it (LOADING)
 * or holds a lease; -ESTALE. The array belongs to the pool. */
int ctn_pool_extents(struct ctn_pool *pool, struct ctn_frame_ref ref,
		     const struct ctn_extent **extents, uint32_t *count);

/* Readable when frames were lost that the caller did not evict. -1: this provider never does. */
int ctn_pool_event_fd(struct ctn_pool *pool);
/* The next such loss; false when there is none. */
bool ctn_pool_next_loss(struct ctn_pool *pool, struct ctn_frame_ref *ref);

/* A descriptor through which another process can map the frame read-only; -ENOTSUP when the
 * provider has none. The caller closes it. */
int ctn_pool_export(struct ctn_pool *pool, struct ctn_frame_ref ref);

uint32_t ctn_pool_segment_count(struct ctn_pool *pool);
void ctn_pool_segment(struct ctn_pool *pool, uint32_t i, struct ctn_segment *segment);
void ctn_pool_set_hot(struct ctn_pool *pool, uint32_t segment, bool hot);

/*
 * Calls `pin` with a segment all of whose bytes are writable and committed, as the kernel
 * demands of memory that it is to pin for DMA (io_uring, CUDA). CLEAN frames in it, also those
 * that were sealed meanwhile, are read-only afterwards. Several threads may pin one segment.
 * Returns what `pin` returned, or -ENOMEM.
 */
typedef int ctn_pool_pin_fn(void *arg, const struct ctn_segment *segment);
int ctn_pool_pin_segment(struct ctn_pool *pool, uint32_t segment, ctn_pool_pin_fn *pin, void *arg);

/* The kernel's figures are read from /proc only with `with_proc` (slow). */
void ctn_pool_get_stats(struct ctn_pool *pool, bool with_proc, struct ctn_pool_stats *stats);

/* Test provider "lossy": gives up about one unleased CLEAN frame in every `one_in` calls to
 * lookup (of either kind) or lease, chosen by `seed`, with a loss event. 0 turns it off; it starts
 * off, but for "lossy:ONE_IN", whose seed is 0. */
void ctn_pool_lossy_set(struct ctn_pool *pool, uint64_t seed, uint32_t one_in);

#endif
