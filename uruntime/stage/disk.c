// SPDX-License-Identifier: MIT
/*
 * The I/O thread of a storage device. It cuts reads off its jobs in the order of their
 * submission, keeps the reader filled up to the queue depth, and sleeps in the reader's wait.
 *
 * The method of a disk only ever gives way to a slower one, and is remembered. A change of
 * reader, or of how files are open, waits until nothing is in the reader; meanwhile nothing
 * is started.
 */
#include "stage/private.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <utlist.h>

/* ---- methods --------------------------------------------------------------------------- */

static const struct reader_ops *reader_of(enum ctn_stage_method method)
{
	return method <= CTN_STAGE_URING ? &ctn_reader_uring : &ctn_reader_threads;
}

static bool reads_directly(enum ctn_stage_method method)
{
	return method != CTN_STAGE_BUFFERED;
}

static void fail_all(struct disk *d, const struct ctn_err *why)
{
	struct ctn_stage_job *job;

	DL_FOREACH (d->jobs, job)
		ctn_job_fail(job, why->code, "%s", why->msg);
}

/* The method in force was refused: another one takes its place. A forced method has none. */
static void give_way(struct disk *d, enum ctn_stage_method to, const struct ctn_err *why)
{
	char msg[640];

	snprintf(msg, sizeof(msg), "device %u:%u: %s gave way to %s: %s", major(d->id),
		 minor(d->id), ctn_stage_method_name(d->method), ctn_stage_method_name(to),
		 why->msg);
	if (d->stage->forced >= 0) {
		struct ctn_err err;

		ctn_err_set(&err, why->code, "stage: method %s: %s",
			    ctn_stage_method_name(d->method), why->msg);
		fail_all(d, &err);
		return;
	}
	/* Several reads that were in flight together may bring the same news. */
	if (to <= d->method)
		return;
	d->changing = d->changing || reader_of(to) != d->reader || reads_directly(to) != d->direct;
	d->method = to;
	ctn_info("stage: %s", msg);
	ctn_stage_note(d->stage, msg);
}

static void close_reader(struct disk *d)
{
	if (d->reader)
		d->reader->close(d);
	d->reader = NULL;
}

/* Nothing is in the reader. Leaves a reader that works, or a method that gave way, or failed
 * jobs. */
static void change_reader(struct disk *d)
{
	const struct reader_ops *wanted = reader_of(d->method);
	struct ctn_stage_job *job;
	struct ctn_err err = {0};

	if (d->direct != reads_directly(d->method)) {
		DL_FOREACH (d->jobs, job)
			ctn_job_close_files(job);
		d->direct = reads_directly(d->method);
	}
	if (d->reader == wanted) {
		d->changing = false;
		return;
	}
	close_reader(d);
	if (wanted->open(d, &err) == 0) {
		d->reader = wanted;
		d->changing = false;
	} else if (wanted == &ctn_reader_uring) {
		give_way(d, CTN_STAGE_PREAD, &err);
	} else {
		/* It is tried again for the next job. */
		fail_all(d, &err);
	}
}

/* The reader gave up: what it was given goes back. */
static void reader_broke(struct disk *d, int rc)
{
	struct ctn_err err;

	ctn_err_set(&err, rc, "io_uring_enter: %s", strerror(-rc));
	for (uint32_t i = 0; i < d->depth; i++) {
		if (!d->requests[i].in_reader)
			continue;
		d->requests[i].in_reader = false;
		d->in_reader--;
		DL_APPEND(d->again, &d->requests[i]);
	}
	close_reader(d);
	d->changing = true;
	give_way(d, CTN_STAGE_PREAD, &err);
}

/* ---- requests -------------------------------------------------------------------------- */

static void drop_request(struct disk *d, struct request *r)
{
	r->job->in_flight--;
	r->job = NULL;
	DL_PREPEND(d->spare, r);
}

/* The request of a job that is not live any more: what it was to read is missing. */
static void abandon(struct disk *d, struct request *r)
{
	ctn_job_fail(r->job, -ECANCELED, "cancelled");
	drop_request(d, r);
}

/* One that is to be started once more, else the next of the first job that has one. */
static struct request *next_request(struct disk *d)
{
	struct request *r = d->again;
	struct ctn_stage_job *job;

	if (r) {
		DL_DELETE(d->again, r);
		return r;
	}
	if (!d->spare)
		return NULL;
	DL_FOREACH (d->jobs, job) {
		if (!ctn_job_live(job) || ctn_job_cut(job))
			continue;
		r = d->spare;
		DL_DELETE(d->spare, r);
		ctn_job_next(job, r);
		job->in_flight++;
		return r;
	}
	return NULL;
}

/* Whether the request's memory is registered; a refusal makes the method give way. */
static int prepare(struct disk *d, struct request *r, enum ctn_stage_method *used)
{
	struct ctn_err err = {0};
	int rc;

	*used = d->method;
	r->fixed = false;
	if (d->method != CTN_STAGE_URING_FIXED)
		return 0;
	rc = d->reader->prepare(d, r, &err);
	if (rc > 0) {
		r->fixed = true;
		return 0;
	}
	*used = CTN_STAGE_URING;
	if (rc < 0)
		give_way(d, CTN_STAGE_URING, &err);
	else if (d->stage->forced >= 0)
		ctn_job_fail(r->job, err.code, "stage: method %s: %s",
			     ctn_stage_method_name(d->method), err.msg);
	else if (r->job->result.method < *used)
		ctn_stage_note(d->stage, err.msg);
	return ctn_job_live(r->job) ? 0 : -ECANCELED;
}

static void start(struct disk *d, struct request *r)
{
	struct ctn_stage_job *job = r->job;
	const struct job_file *file;
	enum ctn_stage_method used;
	struct ctn_err err = {0};
	int rc;

	/* It may have failed since the request was cut off. */
	if (!ctn_job_live(job)) {
		abandon(d, r);
		return;
	}
	rc = ctn_job_file(job, r->file, d->direct, &file, &err);
	if (rc == -EINVAL && d->direct) {
		ctn_err_prefix(&err, "O_DIRECT refused");
		give_way(d, CTN_STAGE_BUFFERED, &err);
		DL_PREPEND(d->again, r);
		return;
	}
	if (rc) {
		ctn_job_fail(job, rc, "%s", err.msg);
		drop_request(d, r);
		return;
	}
	r->fd = file->fd;
	r->direct = file->direct;
	if (prepare(d, r, &used) != 0) {
		abandon(d, r);
		return;
	}
	if (!r->direct)
		used = CTN_STAGE_BUFFERED;
	job->result.method = CTN_MAX(job->result.method, used);
	r->started = ctn_now_ns();
	if (!job->begun)
		job->begun = r->started;
	r->in_reader = true;
	d->in_reader++;
	d->reader->start(d, r);
}

/* ---- results --------------------------------------------------------------------------- */

static void stalled(struct disk *d, struct request *r, const char *what)
{
	if (++r->stalls <= CTN_MAX_STALLS) {
		DL_APPEND(d->again, r);
		return;
	}
	ctn_job_fail(r->job, -EIO, "%s: read of %zu bytes at %llu makes no progress: %s",
		     r->job->ckpt->files[r->file].path, r->len, (unsigned long long)r->offset,
		     what);
	drop_request(d, r);
}

/* A file that is shorter than it was has ended early. */
static bool ended_early(struct request *r, uint64_t offset)
{
	const struct ctn_file *file = &r->job->ckpt->files[r->file];
	off_t size = lseek(r->fd, 0, SEEK_END);

	if (size < 0 || (uint64_t)size >= file->bytes)
		return false;
	ctn_job_fail(r->job, -ENODATA, "%s: ends at byte %llu, expected %llu bytes (read at %llu)",
		     file->path, (unsigned long long)size, (unsigned long long)file->bytes,
		     (unsigned long long)offset);
	return true;
}

/* Fewer bytes than there should be: go on behind them, at an offset that O_DIRECT takes. */
static void fell_short(struct disk *d, struct request *r, size_t got)
{
	size_t kept = r->direct ? ctn_align_down(got, CTN_IO_ALIGN) : got;

	if (ended_early(r, r->offset + got)) {
		drop_request(d, r);
		return;
	}
	if (kept == 0) {
		stalled(d, r, "fewer bytes than asked for");
		return;
	}
	r->job->result.bytes += kept;
	ctn_hash_arrived(r->job, r->frame_offset, kept);
	r->offset += kept;
	r->frame_offset += kept;
	r->addr += kept;
	r->len -= kept;
	r->stalls = 0;
	DL_APPEND(d->again, r);
}

static void read_failed(struct disk *d, struct request *r, int rc)
{
	const struct ctn_file *file = &r->job->ckpt->files[r->file];
	struct ctn_err err;

	if (rc == -EINTR || rc == -EAGAIN) {
		r->patient = rc == -EAGAIN;
		stalled(d, r, strerror(-rc));
		return;
	}
	ctn_err_set(&err, rc, "%s: read of %zu bytes at %llu: %s", file->path, r->len,
		    (unsigned long long)r->offset, strerror(-rc));
	if ((rc == -EINVAL || rc == -EOPNOTSUPP) && r->direct) {
		give_way(d, CTN_STAGE_BUFFERED, &err);
		DL_APPEND(d->again, r);
		return;
	}
	ctn_job_fail(r->job, rc, "%s", err.msg);
	drop_request(d, r);
}

void ctn_disk_completed(struct disk *d, struct request *r, ssize_t result)
{
	struct ctn_stage_job *job = r->job;
	uint64_t want = CTN_MIN(r->len, job->ckpt->files[r->file].bytes - r->offset);

	CTN_ASSERT(r->in_reader && d->in_reader > 0);
	r->in_reader = false;
	d->in_reader--;
	job->ended = ctn_now_ns();
	job->reads++;
	job->read_ns += job->ended - r->started;
	if (!ctn_job_live(job)) {
		abandon(d, r);
	} else if (result < 0) {
		read_failed(d, r, (int)result);
	} else if ((uint64_t)result < want) {
		fell_short(d, r, (size_t)result);
	} else {
		job->result.bytes += CTN_MIN((size_t)result, r->len);
		ctn_hash_arrived(job, r->frame_offset, r->len);
		drop_request(d, r);
	}
}

/* ---- jobs ------------------------------------------------------------------------------ */

static void finish(struct disk *d, struct ctn_stage_job *job)
{
	struct ctn_stage *stage = d->stage;
	struct ctn_err err;
	int rc;

	DL_DELETE(d->jobs, job);
	if (!ctn_job_cut(job))
		ctn_job_fail(job, -ECANCELED, "cancelled");
	rc = job->result.rc ? 0 : ctn_job_recheck(job, &err);
	if (rc)
		ctn_job_fail(job, rc, "%s", err.msg);
	ctn_job_close_files(job);
	job->result.nanoseconds = job->ended - job->begun;
	if (job->part->run_count == 0)
		job->result.method = d->method;
	if (job->result.rc == 0) {
		pthread_mutex_lock(&stage->lock);
		stage->stats.jobs[job->result.method]++;
		stage->stats.bytes[job->result.method] += job->result.bytes;
		stage->stats.nanoseconds += job->result.nanoseconds;
		stage->stats.reads += job->reads;
		stage->stats.read_nanoseconds += job->read_ns;
		pthread_mutex_unlock(&stage->lock);
	}
	ctn_job_release(job, 1);
}

/* Ends what has nothing in flight and nothing to start. True if any did. */
static bool finish_jobs(struct disk *d)
{
	struct ctn_stage_job *job, *next;
	bool any = false;

	DL_FOREACH_SAFE (d->jobs, job, next) {
		if (job->in_flight || (ctn_job_live(job) && !ctn_job_cut(job)))
			continue;
		finish(d, job);
		any = true;
	}
	return any;
}

static bool any_live(const struct disk *d)
{
	const struct ctn_stage_job *job;

	DL_FOREACH (d->jobs, job) {
		if (ctn_job_live(job))
			return true;
	}
	return false;
}

/* Starts what can be started. True if anything happened. */
static bool start_requests(struct disk *d)
{
	struct request *r, *next;
	bool any = false;

	DL_FOREACH_SAFE (d->again, r, next) {
		if (ctn_job_live(r->job))
			continue;
		DL_DELETE(d->again, r);
		abandon(d, r);
		any = true;
	}
	if (!any_live(d))
		return any;
	if (d->changing) {
		if (d->in_reader)
			return any;
		change_reader(d);
		return true;
	}
	while (!d->changing && (r = next_request(d)) != NULL) {
		start(d, r);
		any = true;
	}
	return any;
}

/* False when the thread is to end. */
static bool collect_jobs(struct disk *d)
{
	bool stop;

	pthread_mutex_lock(&d->lock);
	DL_CONCAT(d->jobs, d->incoming);
	d->incoming = NULL;
	stop = d->stop;
	pthread_mutex_unlock(&d->lock);
	return d->jobs || !stop;
}

static void sleep_on_wake(struct disk *d)
{
	struct pollfd p = {.fd = d->wake_fd, .events = POLLIN};

	if (poll(&p, 1, -1) < 0 && errno != EINTR)
		ctn_warn("stage: poll: %s", strerror(errno));
	ctn_disk_clear_wake(d);
}

static void *disk_main(void *arg)
{
	struct disk *d = arg;

	while (collect_jobs(d)) {
		bool moved;
		int rc = 0;

		/* Either may make room for the other. */
		do {
			moved = start_requests(d);
			moved = finish_jobs(d) || moved;
		} while (moved);
		if (d->reader)
			rc = d->reader->wait(d);
		else
			sleep_on_wake(d);
		if (rc)
			reader_broke(d, rc);
	}
	close_reader(d);
	return NULL;
}

/* ---- open, close, wake ----------------------------------------------------------------- */

void ctn_disk_wake(struct disk *d)
{
	uint64_t one = 1;

	/* It can only fail when the counter is full, and then it is readable already. */
	while (write(d->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void ctn_disk_clear_wake(struct disk *d)
{
	uint64_t count;

	while (read(d->wake_fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

void ctn_disk_submit(struct disk *d, struct ctn_stage_job *job)
{
	pthread_mutex_lock(&d->lock);
	DL_APPEND(d->incoming, job);
	pthread_mutex_unlock(&d->lock);
	ctn_disk_wake(d);
}

int ctn_disk_open(struct ctn_stage *stage, uint64_t id, struct disk **out, struct ctn_err *err)
{
	struct disk *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return ctn_err_set(err, -ENOMEM, "stage: out of memory");
	d->stage = stage;
	d->id = id;
	d->depth = stage->queue_depth;
	d->method = stage->forced >= 0 ? (enum ctn_stage_method)stage->forced : 0;
	d->direct = reads_directly(d->method);
	d->changing = true; /* from no reader to the first */
	d->requests = calloc(d->depth, sizeof(*d->requests));
	if (!d->requests) {
		rc = ctn_err_set(err, -ENOMEM, "stage: out of memory");
		goto free_disk;
	}
	for (uint32_t i = 0; i < d->depth; i++)
		DL_APPEND(d->spare, &d->requests[i]);
	d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (d->wake_fd < 0) {
		rc = ctn_err_set(err, -errno, "stage: eventfd: %s", strerror(errno));
		goto free_disk;
	}
	pthread_mutex_init(&d->lock, NULL);
	rc = -pthread_create(&d->thread, NULL, disk_main, d);
	if (rc) {
		ctn_err_set(err, rc, "stage: cannot start an I/O thread: %s", strerror(-rc));
		goto destroy_lock;
	}
	*out = d;
	return 0;

destroy_lock:
	pthread_mutex_destroy(&d->lock);
	close(d->wake_fd);
free_disk:
	free(d->requests);
	free(d);
	return rc;
}

void ctn_disk_close(struct disk *d)
{
	pthread_mutex_lock(&d->lock);
	d->stop = true;
	pthread_mutex_unlock(&d->lock);
	ctn_disk_wake(d);
	pthread_join(d->thread, NULL);
	pthread_mutex_destroy(&d->lock);
	close(d->wake_fd);
	free(d->requests);
	free(d);
}
