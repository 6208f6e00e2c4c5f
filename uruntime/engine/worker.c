// SPDX-License-Identifier: MIT
/* The thread of a rank: takes step messages, runs the decoder, samples on the last stage. */
#include "engine/state.h"

#include <errno.h>
#include <string.h>

/* Where a rank waits for its weights: the pager knows when they may be read. */
static int wait_layer(void *arg, uint32_t layer, struct ctn_stream *stream)
{
	struct rank_worker *w = arg;
	struct engine_model *m = w->model;

	return ctn_pager_wait_layer(m->engine->pager, m->pager_id, w->rank, layer, stream);
}

static void sample_rows(struct rank_worker *w, struct step_job *job)
{
	uint32_t vocab = w->model->ckpt->arch.vocab;

	for (uint32_t i = 0; i < job->step->rows; i++) {
		struct step_row *row = &job->rows[i];
		const float *logits = w->logits + (size_t)i * vocab;

		if (row->score)
			row->rc = ctn_score_token(logits, vocab, row->id, row->sampling.logprobs,
						  w->scratch, &row->sample);
		else
			row->rc = ctn_sample_token(logits, vocab, &row->sampling, row->position,
						   w->scratch, &row->sample);
	}
}

static void run(struct rank_worker *w, struct step_job *job)
{
	struct engine_model *m = w->model;
	struct ctn_engine *e = m->engine;
	struct ctn_err err = {0};
	int rc, none = 0;

	rc = ctn_decoder_forward(w->decoder, w->stream, job->step, wait_layer, w, w->logits, &err);
	if (rc == 0 && w->logits)
		sample_rows(w, job);
	if (rc && atomic_compare_exchange_strong(&job->rc, &none, rc)) {
		job->err = err;
		job->err.code = rc;
		/* Ranks that wait for this one must not wait for ever. */
		for (uint32_t i = 0; i < m->group_count; i++)
			ctn_comm_abort(m->groups[i].group, rc);
	}
	if (atomic_fetch_sub(&job->ranks_left, 1) == 1)
		ctn_mailbox_post(&e->mail, &job->mail);
}

static void *worker_main(void *arg)
{
	struct rank_worker *w = arg;

	for (;;) {
		struct step_job *job;

		pthread_mutex_lock(&w->lock);
		while (!w->job && !w->quit)
			pthread_cond_wait(&w->changed, &w->lock);
		job = w->job;
		w->job = NULL;
		pthread_mutex_unlock(&w->lock);
		if (!job)
			return NULL;
		run(w, job);
	}
}

int worker_start(struct rank_worker *w)
{
	int rc;

	if (w->started)
		return 0;
	rc = -pthread_create(&w->thread, NULL, worker_main, w);
	w->started = rc == 0;
	return rc;
}

void worker_give(struct rank_worker *w, struct step_job *job)
{
	pthread_mutex_lock(&w->lock);
	CTN_ASSERT(w->started && !w->job);
	w->job = job;
	pthread_cond_signal(&w->changed);
	pthread_mutex_unlock(&w->lock);
}

void worker_stop(struct rank_worker *w)
{
	if (!w->started)
		return;
	pthread_mutex_lock(&w->lock);
	w->quit = true;
	pthread_cond_signal(&w->changed);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
	w->started = false;
}
