/* SPDX-License-Identifier: MIT */
/*
 * Private to stage/. A disk is one storage device with its I/O thread; a reader is a way to
 * have reads done (io_uring, or threads); a request is one read that the I/O thread has cut
 * off a job and that the reader works on.
 *
 *   submit -> committer -> disk.incoming -> disk.jobs -> requests -> reader
 *          -> ctn_disk_completed -> (all read) -> hasher -> done
 *
 * Jobs are committed one after the other, each by several threads of the pool if it is large,
 * while those before it are read.
 *
 * What belongs to the I/O thread needs no lock. ctn_stage.lock may be held while a disk's or a
 * worker's lock is taken, never the other way round; none is held when `done` is called.
 */
#ifndef CTN_STAGE_PRIVATE_H
#define CTN_STAGE_PRIVATE_H

#include "stage/stage.h"

#include <pthread.h>
#include <stdatomic.h>

#define CTN_READ_BYTES CTN_MIB /* longest read */
#define CTN_MAX_STALLS 64      /* retries of one read without a byte of progress */

struct disk;

struct job_file {
	int fd; /* -1: not open */
	bool direct;
};

struct ctn_stage_job {
	/* Constant from submit on. */
	struct ctn_stage *stage;
	struct disk *disk;
	const struct ctn_checkpoint *ckpt;
	const struct ctn_part *part;
	const struct ctn_extent *extents;
	uint32_t extent_count;
	ctn_stage_done_fn *done;
	void *arg;

	atomic_bool cancelled;

	/* The committer's, then the I/O thread's, and when all is read, the hasher's. */
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
	struct worker hasher;
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

/* ---- commit.c, hash.c, digest.c --------------------------------------------------------- */

/* The steps of the two workers. */
void ctn_commit_job(struct ctn_stage_job *job);
void ctn_hash_job(struct ctn_stage_job *job);
/* -ECANCELED when *stop (if not NULL) becomes true. */
int ctn_digest_part(const struct ctn_checkpoint *ckpt, const struct ctn_part *part,
		    const struct ctn_extent *extents, uint32_t extent_count,
		    const atomic_bool *stop, struct ctn_digest *digest);

#endif
