/* SPDX-License-Identifier: MIT */
/*
 * computron bench stage: a file, taken as one part, is staged into a frame of a pool by the
 * daemon's own stage, beside fio that reads the same file. Private to tools. One thread.
 */
#ifndef CTN_TOOLS_BENCH_STAGE_H
#define CTN_TOOLS_BENCH_STAGE_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "pool/pool.h"
#include "stage/stage.h"

/* ---- the file: bench_stage_file.c -------------------------------------------------------- */

/* A file as a checkpoint of one tensor in one part. Address-stable. */
struct ctn_stage_file {
	int fd;
	struct ctn_digest digest; /* of the part, by plain reads */
	struct ctn_checkpoint ckpt;
	struct ctn_file file;
	struct ctn_tensor tensor;
	struct ctn_run run;
	struct ctn_part_tensor part_tensor;
	struct ctn_part part;
};

/* The first `limit` bytes of a file at most; reads them for their digest. -ENODATA when the file
 * has holes: they are read without the disk. Close it when it is 0. */
int ctn_stage_file_open(const char *path, uint64_t limit, struct ctn_stage_file *f,
			struct ctn_err *err);
void ctn_stage_file_close(struct ctn_stage_file *f);

/* What the block layer has counted for the file's disk since it started. */
struct ctn_disk_counts {
	bool known; /* false: the file system has no block device of its own */
	uint64_t reads;
	uint64_t bytes;
	uint64_t read_ms; /* summed over the reads */
};

void ctn_disk_counts(const struct ctn_stage_file *f, struct ctn_disk_counts *counts);
struct ctn_disk_counts ctn_disk_counts_between(const struct ctn_disk_counts *before,
					       const struct ctn_disk_counts *after);

/* ---- runs: bench_stage_rig.c ------------------------------------------------------------- */

struct ctn_stage_rig_config {
	int method;           /* enum ctn_stage_method, -1: as the daemon would */
	const char *provider; /* of the pool; NULL: as the daemon would */
	uint32_t depth;
	bool cached; /* in the page cache before each run; else out of it */
};

/* A pool with one frame that has all its memory, and the stage that reads into it. */
struct ctn_stage_rig {
	const struct ctn_stage_rig_config *cfg;
	struct ctn_stage_file *file;
	struct ctn_pool *pool;
	struct ctn_frame_ref frame;
	const struct ctn_extent *extents;
	uint32_t extent_count;
	struct ctn_stage *stage;
	bool hash; /* whether the stage makes digests */
	/* For the whole pool; 0: it is not registered, for the kernel refuses. */
	double populate_s, register_s;
};

int ctn_stage_rig_open(struct ctn_stage_file *file, const struct ctn_stage_rig_config *cfg,
		       struct ctn_stage_rig *rig, struct ctn_err *err);
void ctn_stage_rig_close(struct ctn_stage_rig *rig);

/* bench_stage_memory.c: gives the frame its memory, and registers all segments with a ring and
 * takes that back; both timed. */
int ctn_stage_rig_commit(struct ctn_stage_rig *rig);
void ctn_stage_rig_register(struct ctn_stage_rig *rig);

/* What one run took; the figures of a peer's have no hash. */
struct ctn_stage_run {
	uint64_t bytes;
	double seconds;
	double cpu_s;            /* of the process, kernel time included */
	double hash_cpu_s;       /* of the stage's digest; not in cpu_s */
	double hash_alone_cpu_s; /* of the same digest with nothing else going on */
	uint64_t reads;          /* requests to the kernel */
	double depth;            /* of them in flight, mean over the time */
	struct ctn_disk_counts disk;
	enum ctn_stage_method method;
};

/*
 * Overwrites the frame, stages the file into it (timed) and verifies the digest of what is there.
 * -EBADMSG for other bytes. The first run with another `hash` opens a stage: its memory is
 * registered in that run.
 */
int ctn_stage_rig_run(struct ctn_stage_rig *rig, bool hash, struct ctn_stage_run *run,
		      struct ctn_err *err);
/* -EBADMSG unless the frame holds the bytes of the file. */
int ctn_stage_rig_verify(struct ctn_stage_rig *rig, double *cpu_s, struct ctn_err *err);

/* ---- the peer: bench_stage_fio.c --------------------------------------------------------- */

/* One run of fio over the same file: O_DIRECT, reads as long as ours, io_uring with fixed
 * buffers. -ENOENT when there is no fio. */
int ctn_stage_fio(const struct ctn_stage_file *file, uint32_t depth, struct ctn_stage_run *run,
		  struct ctn_err *err);

/* ---- figures: bench_stage_report.c ------------------------------------------------------- */

/* All of one pool and one method. peers: two a round, the one before and the one after. */
struct ctn_stage_samples {
	struct ctn_stage_run *ours, *peers, *hashed;
	uint32_t rounds, hash_rounds;
	bool with_peer;
	char method_why[256], pool_why[512];
	const char *provider;
	double huge_ratio;
	double populate_s, register_s; /* of a GiB; register_s 0: refused */
};

int ctn_stage_samples_init(struct ctn_stage_samples *s, uint32_t rounds, uint32_t hash_rounds);
void ctn_stage_samples_free(struct ctn_stage_samples *s);

/* Medians, of a run's seconds turned into rates first. */
struct ctn_stage_figures {
	double gb_per_s, cpu_s_per_gib;
	double hash_cpu_s_per_gib, hash_ratio; /* the ratio: to hashing alone */
	double hash_time_ratio; /* of a run with digests, to the slower of reading and hashing */
	double reads, read_bytes, depth;
	double disk_reads, disk_read_bytes, disk_depth; /* 0: not known */
	enum ctn_stage_method method;
	/* With a peer: */
	double peer_gb_per_s, peer_cpu_s_per_gib, ratio;
	double peer_variation; /* between the peers before and the peers after */
	double peer_reads, peer_read_bytes, peer_depth;
	double peer_disk_reads, peer_disk_read_bytes, peer_disk_depth;
	const char *verdict; /* pass, fail, inconclusive */
};

int ctn_stage_compute(const struct ctn_stage_samples *s, struct ctn_stage_figures *f);

int ctn_stage_report(const struct ctn_stage_file *file, const struct ctn_stage_rig_config *cfg,
		     const struct ctn_stage_samples *s, bool json, struct ctn_err *err);

/* A row of the table of all methods and providers. err: why there are no figures. */
struct ctn_stage_row {
	const char *method, *provider;
	struct ctn_err err;
	struct ctn_stage_figures figures;
	double huge_ratio, populate_s, register_s;
};

int ctn_stage_table(const struct ctn_stage_file *file, const struct ctn_stage_row *rows,
		    uint32_t count, bool json, struct ctn_err *err);

#endif
