// SPDX-License-Identifier: MIT
/*
 * The reader that works everywhere: a few threads that call pread, with O_DIRECT or through
 * the page cache as the files were opened. The I/O thread sleeps on the disk's wake_fd, which
 * the workers write as well.
 */
#include "stage/private.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define WORKERS 4

struct threads {
	struct disk *disk;
	pthread_t workers[WORKERS];
	uint32_t count;

	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct request *todo;
	struct request *ended;
	bool stop;
};

static void *worker_main(void *arg)
{
	struct threads *t = arg;
	const struct ctn_stage_sys *sys = &t->disk->stage->sys;
	struct request *r;

	pthread_mutex_lock(&t->lock);
	for (;;) {
		while (!t->todo && !t->stop)
			pthread_cond_wait(&t->cond, &t->lock);
		r = t->todo;
		if (!r)
			break;
		DL_DELETE(t->todo, r);
		pthread_mutex_unlock(&t->lock);
		r->result = sys->pread(sys->ctx, r->fd, r->addr, r->len, r->offset);
		pthread_mutex_lock(&t->lock);
		DL_APPEND(t->ended, r);
		ctn_disk_wake(t->disk);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

static void threads_close(struct disk *d)
{
	struct threads *t = d->reader_state;

	pthread_mutex_lock(&t->lock);
	t->stop = true;
	pthread_cond_broadcast(&t->cond);
	pthread_mutex_unlock(&t->lock);
	for (uint32_t i = 0; i < t->count; i++)
		pthread_join(t->workers[i], NULL);
	pthread_cond_destroy(&t->cond);
	pthread_mutex_destroy(&t->lock);
	free(t);
	d->reader_state = NULL;
}

/* Fewer threads than wished are slower, none is an error. */
static int threads_open(struct disk *d, struct ctn_err *err)
{
	struct threads *t = calloc(1, sizeof(*t));
	int rc = 0;

	if (!t)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	t->disk = d;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->cond, NULL);
	d->reader_state = t;
	while (t->count < WORKERS && rc == 0) {
		rc = pthread_create(&t->workers[t->count], NULL, worker_main, t);
		if (rc == 0)
			t->count++;
	}
	if (t->count == 0) {
		threads_close(d);
		return ctn_err_set(err, -rc, "cannot start a thread: %s", strerror(rc));
	}
	return 0;
}

static void threads_start(struct disk *d, struct request *r)
{
	struct threads *t = d->reader_state;

	pthread_mutex_lock(&t->lock);
	DL_APPEND(t->todo, r);
	pthread_cond_signal(&t->cond);
	pthread_mutex_unlock(&t->lock);
}

static int threads_wait(struct disk *d)
{
	struct pollfd p = {.fd = d->wake_fd, .events = POLLIN};
	struct threads *t = d->reader_state;
	struct request *ended, *r, *next;

	if (poll(&p, 1, -1) < 0 && errno != EINTR)
		ctn_warn("stage: poll: %s", strerror(errno));
	ctn_disk_clear_wake(d);
	pthread_mutex_lock(&t->lock);
	ended = t->ended;
	t->ended = NULL;
	pthread_mutex_unlock(&t->lock);
	DL_FOREACH_SAFE (ended, r, next) {
		DL_DELETE(ended, r);
		ctn_disk_completed(d, r, r->result);
	}
	return 0;
}

const struct reader_ops ctn_reader_threads = {
	.open = threads_open,
	.close = threads_close,
	.start = threads_start,
	.wait = threads_wait,
};
