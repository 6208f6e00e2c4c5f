/* SPDX-License-Identifier: MIT */
/*
 * choice: one engine request on its way to the client. Takes the tokens, makes text of them,
 * looks for stop strings, and keeps what was not yet sent. Private to server/; belongs to
 * one thread.
 */
#ifndef CTN_SERVER_CHOICE_H
#define CTN_SERVER_CHOICE_H

#include "server/openai_request.h"

/* A token with its score, for "logprobs". */
struct ctn_score {
	struct ctn_sample sample;
	bool scored;     /* false: the first token of a prompt, which nothing precedes */
	uint64_t offset; /* code points of the choice's text in front of it */
};

struct ctn_choice {
	const struct ctn_completion_request *r;
	const struct ctn_prompt *prompt;
	const struct ctn_tokenizer *tok; /* NULL: the text stays empty */
	uint32_t index;
	struct ctn_request *req;
	struct ctn_detok *detok;
	struct ctn_buf held; /* text that may turn out to be part of a stop string */
	struct ctn_buf text; /* to be sent */
	uint64_t chars;      /* code points that ever went to `text` */
	uint64_t held_chars;
	uint32_t *ids; /* of the text, and with echo of the prompt */
	size_t id_count, id_room, ids_sent;
	struct ctn_score *scores;
	size_t score_count, score_room, scores_sent;
	uint32_t generated; /* tokens taken */
	bool begun;         /* the first token or the end has come */
	bool stopped;       /* a stop string was found */
	bool cancelled;     /* by us */
	bool done;          /* `result` is there */
	bool failed;        /* out of memory */
	bool finish_sent;
	struct ctn_request_result result;
};

/* Takes a submitted request over. -ENOMEM. Free in any case. */
int ctn_choice_init(struct ctn_choice *c, const struct ctn_completion_request *r,
		    const struct ctn_prompt *prompt, const struct ctn_tokenizer *tok,
		    uint32_t index, struct ctn_request *req);
/* Gives the request back, which cancels it if it runs. */
void ctn_choice_free(struct ctn_choice *c);

/* Takes all that has come. 0; -ENOMEM; -EINVAL for an id that the tokenizer has not, which
 * *e tells. */
int ctn_choice_advance(struct ctn_choice *c, struct ctn_err *e);

/* True when there is something to send. */
bool ctn_choice_has_news(const struct ctn_choice *c);
/* What was not yet sent, as an element of "choices", and marks it sent. NULL: out of memory. */
json_t *ctn_choice_json(struct ctn_choice *c);

#endif
