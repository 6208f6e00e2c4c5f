/* SPDX-License-Identifier: MIT */
/*
 * Private to stage/. A disk is one storage device with its I/O thread; a reader is a way to
 * have reads done (io_uring, or threads); a request is one read that the I/O thread has cut
 * off a job and that the reader works on.
 *
 *   submit -> committer -> disk.incoming -> disk.jobs -> requests -> reader
 *          -> ctn_disk_completed -> chunks -> hasher -> (the last of all) -> done
 *   check, compare -> chunks -> hasher -> (the last of all) -> done
 *
 * Jobs are committed one after the other, each by several threads of the pool if it is large,
 * while those before it are read. A chunk is hashed as soon as the reads that cover it have
 * completed, in whatever order they do.
 *
 * What belongs to the I/O thread needs no lock. ctn_stage.lock may be held while a disk's, the
 * worker's or the hasher's lock is taken, never the other way round; none is held when `done` is
 * called.
 */
#ifndef CTN_STAGE_PRIVATE_H
#define CTN_STAGE_PRIVATE_H

#include "stage/stage.h"

#include <pthread.h>
#include <stdatomic.h>

#define CTN_READ_BYTES       CTN_MIB /* longest read */
#define CTN_CHUNK_BYTES      CTN_MIB /* longest chunk of a digest */
#define CTN_MAX_STALLS       64      /* retries of one read without a byte of progress */
#define CTN_MAX_HASH_THREADS 4

struct disk;

struct job_file {
	int fd; /* -1: not open */
	bool direct;
};

/* A leaf of the digest tree: up to CTN_CHUNK_BYTES of one tensor. */
struct chunk {
	struct chunk *next; /* in hasher.head */
	struct ctn_stage_job *job;
	uint64_t frame_offset;
	uint32_t bytes;
	uint32_t missing; /* bytes that were not read yet; the I/O thread's */
	size_t index;     /* of its digest */
};

struct ctn_stage_job {
	/* Constant from submit on. */
	struct ctn_stage *stage;
	struct disk *disk;
	const struct ctn_checkpoint *ckpt;
	const struct ctn_part *part;
	const struct ctn_extent *extents;
	uint32_t extent_count;
	const struct ctn_extent *others; /* to be compared with; NULL: a job that reads */
	uint32_t other_count;
	ctn_stage_done_fn *done;
	void *arg;

	atomic_bool cancelled;

	/* The digest tree, made before the first read; none where nothing is hashed. A hash thread
	 * writes the digest of its chunk, whoever drops the last reference the rest. */
	struct chunk *chunks; /* ascending in frame_offset */
	size_t chunk_count;
	struct ctn_digest *digests;        /* of the chunks, in the order of the part's tensors */
	struct ctn_digest *tensor_digests; /* by tensor of the part */

	/* What keeps the job: the committer and the I/O thread together one reference, each chunk
	 * that is with the hasher another. */
	atomic_size_t refs;
	atomic_bool failed;            /* as result.rc, for the hash threads */
	atomic_bool skipped;           /* a chunk was not hashed, or not compared */
	atomic_bool differs;           /* from the others */
	atomic_uint_least64_t hash_ns; /* CPU time */

	/* The committer's, then the I/O thread's, and that of who drops the last reference. */
	uint32_t run;            /* what to cut off next: */
	uint64_t run_done;       /* bytes of that run that were cut off */
	uint32_t extent;         /* where the next byte goes */
	uint64_t extent_begin;   /* linear offset of that extent */
	struct job_file *files;  /* by file of the checkpoint */
	uint32_t in_flight;      /* requests of this job */
	uint64_t begun, ended;   /* first start, last completion */
	uint64_t reads, read_ns; /* that ended; the time of each, summed */
	struct ctn_stage_result result;

	struct ctn_stage_job *prev, *next; /* in worker.jobs, disk.incoming, disk.jobs */
};

struct request {
	struct ctn_stage_job *job; /* NULL: spare */
	uint32_t file;
	int fd;
	bool direct; /* how that is open */
	uint64_t offset;
	uint64_t frame_offset;
	uint8_t *addr;
	size_t len;
	uint32_t segment;
	bool fixed;   /* its memory is registered */
	bool patient; /* was told to try again: may block now */
	bool in_reader;
	uint64_t started; /* when it was given to the reader */
	unsigned int stalls;
	ssize_t result;
	struct request *prev, *next; /* in disk.spare, disk.again, or a list of the reader */
};

/* All functions are called by the I/O thread of the disk. */
struct reader_ops {
	/* -ENOSYS, -EPERM ...: there is no such reader here; `err` says why. */
	int (*open)(struct disk *d, struct ctn_err *err);
	/* Nothing is in the reader. */
	void (*close)(struct disk *d);
	/* 1: the request's memory is registered; 0: it is not to be; negative errno: that
	 * was refused. NULL: this reader has no registered memory. */
	int (*prepare)(struct disk *d, struct request *r, struct ctn_err *err);
	/* Takes a request; its end is told by ctn_disk_completed, from wait. */
	void (*start)(struct disk *d, struct request *r);
	/* Sleeps until a request ended or the disk was woken. A negative errno: the reader
	 * does not work any more, and holds no read that could still write memory. */
	int (*wait)(struct disk *d);
};

extern const struct reader_ops ctn_reader_uring;
extern const struct reader_ops ctn_reader_threads;

struct disk {
	/* Constant. */
	struct ctn_stage *stage;
	uint64_t id; /* st_dev of its files */
	pthread_t thread;
	int wake_fd; /* eventfd, not blocking */
	uint32_t depth;
	struct request *requests; /* depth of them */
	struct disk *next;        /* in stage.disks, under stage.lock */

	pthread_mutex_t lock;
	struct ctn_stage_job *incoming;
	bool stop;

	/* The I/O thread's. */
	struct ctn_stage_job *jobs; /* in order of submission */
	struct request *spare;
	struct request *again; /* to be started once more */
	uint32_t in_reader;
	enum ctn_stage_method method; /* in force, or the one to change to: */
	bool changing;                /* when nothing is in the reader any more */
	bool direct;                  /* how files that are not cached are opened */
	const struct reader_ops *reader;
	void *reader_state;
};

/* A thread that does one step of each job that it is given, in order. */
struct worker {
	void (*step)(struct ctn_stage_job *job); /* passes the job on, or ends it */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct ctn_stage_job *jobs;
	bool stop;
};

/* Threads that hash, or compare, chunks in the order in which they came. */
struct hasher {
	pthread_t threads[CTN_MAX_HASH_THREADS];
	uint32_t count;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct chunk *head, **tail;
	bool stop;
};

struct ctn_stage {
	struct ctn_pool *pool;
	int forced; /* enum ctn_stage_method, or -1 */
	uint32_t queue_depth;
	struct ctn_stage_sys sys;

	pthread_mutex_t lock;
	struct disk *disks;
	uint32_t job_count;
	struct ctn_stage_stats stats;

	struct worker committer;
	bool hash;
	struct hasher hasher;
};

/* ---- stage.c --------------------------------------------------------------------------- */

/* Tells the caller of the job, and frees it. */
void ctn_stage_end_job(struct ctn_stage_job *job);
/* Why the best method is not used. */
void ctn_stage_note(struct ctn_stage *stage, const char *why);

/* ---- sys.c ----------------------------------------------------------------------------- */

/* `sys` with the real calls where it is NULL or has none. */
void ctn_sys_init(struct ctn_stage_sys *out, const struct ctn_stage_sys *sys);

/* ---- cached.c -------------------------------------------------------------------------- */

/* The real call behind sys.cached. */
int ctn_ask_cached(void *ctx, int fd, uint64_t offset, uint64_t bytes, uint64_t *cached);
/* Whether what the job wants of an open file is in the page cache. */
bool ctn_job_cached(const struct ctn_stage_job *job, uint32_t file, int fd);

/* ---- disk.c ---------------------------------------------------------------------------- */

int ctn_disk_open(struct ctn_stage *stage, uint64_t id, struct disk **disk, struct ctn_err *err);
/* No job is left. Waits for the thread. */
void ctn_disk_close(struct disk *d);
void ctn_disk_submit(struct disk *d, struct ctn_stage_job *job);
/* Any thread. */
void ctn_disk_wake(struct disk *d);
/* Takes the wake-ups that have come in. */
void ctn_disk_clear_wake(struct disk *d);
/* The readers' report: bytes read or a negative errno. */
void ctn_disk_completed(struct disk *d, struct request *r, ssize_t result);

/* ---- job.c ----------------------------------------------------------------------------- */

int ctn_job_new(struct ctn_stage *stage, const struct ctn_checkpoint *ckpt,
		const struct ctn_part *part, const struct ctn_extent *extents,
		uint32_t extent_count, struct ctn_stage_job **job, struct ctn_err *err);
void ctn_job_free(struct ctn_stage_job *job);
/* Neither failed nor cancelled. */
bool ctn_job_live(const struct ctn_stage_job *job);
/* Keeps the first failure. */
void ctn_job_fail(struct ctn_stage_job *job, int rc, const char *fmt, ...) CTN_PRINTF(3, 4);
/* Everything was cut off. */
bool ctn_job_cut(const struct ctn_stage_job *job);
/* Cuts the next read off a job that has one. */
void ctn_job_next(struct ctn_stage_job *job, struct request *r);
/* A file, opened and identified when it is first needed. */
int ctn_job_file(struct ctn_stage_job *job, uint32_t file, bool direct, const struct job_file **out,
		 struct ctn_err *err);
/* The files that were read are still those of the checkpoint. */
int ctn_job_recheck(struct ctn_stage_job *job, struct ctn_err *err);
void ctn_job_close_files(struct ctn_stage_job *job);

/* ---- worker.c -------------------------------------------------------------------------- */

int ctn_worker_open(struct worker *w, void (*step)(struct ctn_stage_job *job));
/* No job is left. Waits for the thread. */
void ctn_worker_close(struct worker *w);
void ctn_worker_submit(struct worker *w, struct ctn_stage_job *job);

/* ---- commit.c -------------------------------------------------------------------------- */

/* The step of the committer. */
void ctn_commit_job(struct ctn_stage_job *job);

/* ---- hash.c ---------------------------------------------------------------------------- */

int ctn_hasher_open(struct hasher *h);
/* No job is left. Waits for the threads. */
void ctn_hasher_close(struct hasher *h);
/* Makes the job's tree. -ENOMEM: it has none. */
int ctn_hash_prepare(struct ctn_stage_job *job);
/* Bytes of the frame were read; each is told of once. The I/O thread's. */
void ctn_hash_arrived(struct ctn_stage_job *job, uint64_t frame_offset, uint64_t bytes);
/* Gives all chunks to the hasher, as if they had arrived. */
void ctn_hash_all(struct ctn_stage_job *job);
/* Drops references; with the last one the job ends. */
void ctn_job_release(struct ctn_stage_job *job, size_t refs);

/* ---- digest.c, compare.c --------------------------------------------------------------- */

/* Where linear offset `at` lies: the address, and how many bytes follow it there. */
const uint8_t *ctn_locate(const struct ctn_extent *extents, uint32_t count, uint64_t at,
			  uint64_t *left);
/* The digest of up to CTN_CHUNK_BYTES of a frame. */
void ctn_digest_chunk(const struct ctn_extent *extents, uint32_t count, uint64_t at, uint64_t bytes,
		      struct ctn_digest *digest);
/* Of a part, or a tensor, by the digests of its chunks. */
void ctn_digest_root(const struct ctn_digest *chunks, size_t count, struct ctn_digest *digest);
/* Whether a chunk of a job is the same in its two frames. */
bool ctn_chunk_equal(const struct ctn_stage_job *job, const struct chunk *c);

#endif
