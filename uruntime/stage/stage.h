/* SPDX-License-Identifier: MIT */
/*
 * stage: the bytes of a part, disk -> host frame. One I/O thread per storage device; aligned
 * O_DIRECT reads by io_uring into registered buffers where that is allowed, fall-backs chosen
 * by errno where it is not. The frame's memory is committed, and the digest of the part made,
 * on the way: threads of their own hash what was read while the rest is being read.
 */
#ifndef CTN_STAGE_H
#define CTN_STAGE_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "pool/pool.h"

struct ctn_stage;
struct ctn_stage_job;

/* In order of preference. A method that is refused by errno gives way to the next. A file that
 * lies in the page cache is read from there, unless a method is forced: told as buffered. */
enum ctn_stage_method {
	CTN_STAGE_URING_FIXED, /* O_DIRECT, registered buffers */
	CTN_STAGE_URING,       /* O_DIRECT, unregistered */
	CTN_STAGE_PREAD,       /* O_DIRECT, threads */
	CTN_STAGE_BUFFERED,    /* through the page cache */
	CTN_STAGE_METHODS
};

const char *ctn_stage_method_name(enum ctn_stage_method method);
/* -ENOENT. */
int ctn_stage_method_parse(const char *name, enum ctn_stage_method *method);

/*
 * The seam for system calls: tests put refusals, short reads, EINTR, EAGAIN and EIO here.
 * Each member behaves like the call it is named after, but returns a negative errno. One that
 * is NULL is the real call.
 */
struct ctn_stage_sys {
	int (*open)(void *ctx, const char *path, int flags);
	ssize_t (*pread)(void *ctx, int fd, void *buf, size_t len, uint64_t offset);
	/* How many of these bytes of a file are in the page cache (cachestat, mincore). */
	int (*cached)(void *ctx, int fd, uint64_t offset, uint64_t bytes, uint64_t *cached);
	/* Before the ring is made; a negative errno stands for a kernel that refuses. */
	int (*uring_setup)(void *ctx, unsigned int entries, unsigned int flags);
	int (*uring_register)(void *ctx, unsigned int buffers);
	/* The result of a completed ring read of `len` bytes; returns what the caller sees. */
	int (*uring_result)(void *ctx, int result, size_t len);
	void *ctx;
};

struct ctn_stage_config {
	struct ctn_pool *pool;           /* of the frames; outlives the stage */
	int method;                      /* enum ctn_stage_method to force one, -1: choose */
	uint32_t queue_depth;            /* 0: 16 */
	bool hash;                       /* make digests (default of the daemon: true) */
	const struct ctn_stage_sys *sys; /* NULL: the real calls */
};

struct ctn_stage_result {
	int rc; /* 0, -ECANCELED, or what went wrong */
	struct ctn_err err;
	bool has_digest;                         /* rc is 0 and hashing is on */
	struct ctn_digest digest;                /* of the part */
	const struct ctn_digest *tensor_digests; /* has_digest: of each tensor of the part alone;
						  * valid until `done` returns */
	bool equal;                              /* of a comparison */
	uint64_t bytes;                          /* read from files, alignment included */
	uint64_t nanoseconds; /* from the first submission to the last completion */
	enum ctn_stage_method method;
};

/* Called once for each job, from a thread of the stage, when no I/O is in flight for it any
 * more. It must not block, nor close the stage. */
typedef void ctn_stage_done_fn(void *arg, const struct ctn_stage_result *result);

struct ctn_stage_stats {
	uint64_t jobs[CTN_STAGE_METHODS];
	uint64_t bytes[CTN_STAGE_METHODS];
	uint64_t nanoseconds;
	uint64_t reads;                /* requests to the kernel, repeated ones included */
	uint64_t read_nanoseconds;     /* that each of them took, summed */
	uint64_t hash_cpu_nanoseconds; /* CPU time of all digests and comparisons */
	char why[256];                 /* why the best method was not taken, empty if it was */
};

int ctn_stage_open(const struct ctn_stage_config *cfg, struct ctn_stage **stage,
		   struct ctn_err *err);
/* No job may be left. */
void ctn_stage_close(struct ctn_stage *stage);

/*
 * -EINVAL when runs or extents are not aligned to CTN_IO_ALIGN or do not fit, -ENOMEM, -EAGAIN
 * (no thread to be had): `done` does not come then.
 *
 * Starts to read `part` of `ckpt` into the frame that `extents` describe (a LOADING frame of
 * the caller's in the stage's pool; both arrays and the checkpoint stay valid until `done`).
 * Never blocks on I/O, nor on memory: the frame is committed first, by a thread of the stage,
 * and a frame that cannot be fails the job with -ENOMEM. Files whose identity is not the
 * checkpoint's any more, or that end early, fail the job with their name; so do bytes that are
 * not those of the manifest (-EBADMSG, with part and tensor), unless hashing is off. Any thread.
 * The job handle is valid until `done` was called.
 */
int ctn_stage_submit(struct ctn_stage *stage, const struct ctn_checkpoint *ckpt,
		     const struct ctn_part *part, const struct ctn_extent *extents,
		     uint32_t extent_count, ctn_stage_done_fn *done, void *arg,
		     struct ctn_stage_job **job, struct ctn_err *err);
/*
 * Compares the bytes of the part's tensors in two frames of its layout, and tells it by
 * result.equal: for parts whose digests are equal. Both frames are leased or owned, and the arrays
 * stay valid, until `done`. -EINVAL when hashing is off, or the part has no bytes; else as above.
 */
int ctn_stage_compare(struct ctn_stage *stage, const struct ctn_checkpoint *ckpt,
		      const struct ctn_part *part, const struct ctn_extent *extents,
		      uint32_t extent_count, const struct ctn_extent *others, uint32_t other_count,
		      ctn_stage_done_fn *done, void *arg, struct ctn_stage_job **job,
		      struct ctn_err *err);
/*
 * Makes the digest of a part whose bytes lie in a frame already, and holds it against the manifest,
 * as a job that reads nothing. The frame is leased, and the array stays valid, until `done`.
 * -EINVAL when hashing is off, or the part has no bytes; else as above.
 */
int ctn_stage_check(struct ctn_stage *stage, const struct ctn_checkpoint *ckpt,
		    const struct ctn_part *part, const struct ctn_extent *extents,
		    uint32_t extent_count, ctn_stage_done_fn *done, void *arg,
		    struct ctn_stage_job **job, struct ctn_err *err);
/* Asks for an early end: `done` still comes, with -ECANCELED unless it was complete. */
void ctn_stage_cancel(struct ctn_stage *stage, struct ctn_stage_job *job);

void ctn_stage_get_stats(struct ctn_stage *stage, struct ctn_stage_stats *stats);

/*
 * The digest of a part whose bytes lie in the given extents: XXH3-128 over the ordered
 * XXH3-128 digests of its tensors' 1 MiB chunks; chunks restart at each tensor. Any thread.
 */
void ctn_part_digest(const struct ctn_checkpoint *ckpt, const struct ctn_part *part,
		     const struct ctn_extent *extents, uint32_t extent_count,
		     struct ctn_digest *digest);
#endif
