// SPDX-License-Identifier: MIT
/* A thread with a queue of jobs, for what would keep an I/O thread from its reads. */
#include "stage/private.h"

#include <utlist.h>

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct ctn_stage_job *job;

	for (;;) {
		pthread_mutex_lock(&w->lock);
		while (!w->jobs && !w->stop)
			pthread_cond_wait(&w->cond, &w->lock);
		job = w->jobs;
		if (job)
			DL_DELETE(w->jobs, job);
		pthread_mutex_unlock(&w->lock);
		if (!job)
			return NULL;
		w->step(job);
	}
}

int ctn_worker_open(struct worker *w, void (*step)(struct ctn_stage_job *job))
{
	int rc;

	w->step = step;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->cond, NULL);
	rc = -pthread_create(&w->thread, NULL, worker_main, w);
	if (rc) {
		pthread_cond_destroy(&w->cond);
		pthread_mutex_destroy(&w->lock);
	}
	return rc;
}

void ctn_worker_close(struct worker *w)
{
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->cond);
	pthread_mutex_destroy(&w->lock);
}

void ctn_worker_submit(struct worker *w, struct ctn_stage_job *job)
{
	pthread_mutex_lock(&w->lock);
	DL_APPEND(w->jobs, job);
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
}
