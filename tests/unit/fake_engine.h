/* SPDX-License-Identifier: MIT */
/*
 * A test double of the engine: it implements engine/engine.h with scripted behaviour, so that
 * the server is tested against delays, refusals and ends that a real engine gives rarely. The
 * programs tests/unit/test_server* have this one instead of the library's.
 */
#ifndef CTN_FAKE_ENGINE_H
#define CTN_FAKE_ENGINE_H

#include "engine/engine.h"

/* What the requests of a model do. Each has a thread of its own. */
struct fake_script {
	const uint32_t *tokens; /* given one after the other, then the end */
	uint32_t count;
	bool endless;           /* from the start again, until cancelled */
	bool hold;              /* nothing comes until cancelled: it waits for its model */
	uint32_t delay_ms;      /* in front of each token and of the end; endless: at least 1 */
	enum ctn_finish finish; /* of a request that is not cut off; STOP by default */
	int refuse;             /* what submit answers: a negative errno */
	bool control_waits;     /* ctn_engine_control returns only when the engine stops */
	int control;            /* else what it answers */
};

struct fake_model {
	const char *name;
	const char *dir;    /* see fake_tokenizer.h */
	const char *reason; /* of one that is not served */
	struct fake_script script;
};

/* The models, and their scripts and what they point to, outlive the engine; a script may be
 * changed between requests. */
struct ctn_engine *fake_engine_new(struct fake_model *models, uint32_t count);

/* Handles that were not released. */
uint32_t fake_engine_live(struct ctn_engine *engine);
/* Requests that were cancelled before their end, ever. */
uint32_t fake_engine_cancelled(struct ctn_engine *engine);
uint32_t fake_engine_submitted(struct ctn_engine *engine);
/* Waits, 10 s at most, until none is live. */
bool fake_engine_drained(struct ctn_engine *engine);
/* What the last submit was given; the prompt is a copy of its first 64 ids. */
struct fake_submit {
	struct ctn_request_params params;
	uint32_t prompt[64];
};
struct fake_submit fake_engine_last(struct ctn_engine *engine);

/*
 * The scores of generated token `id`: logprob -0.5, and of the k-th likely one, which is
 * id + k, -0.5 * (k + 1). Of prompt token i >= 1: -(i + 1), with id the likeliest.
 * The result: 1000 bytes staged, 2000 loaded, 1, 2, 3 and 4 ms.
 * The snapshot: see fake_engine.c; every number in it is another one.
 */

#endif
