/* SPDX-License-Identifier: MIT */
/* The body of POST /v1/completions, checked field by field. Private to server/. */
#ifndef CTN_SERVER_OPENAI_REQUEST_H
#define CTN_SERVER_OPENAI_REQUEST_H

#include "server/http.h"

#define CTN_MAX_STOPS   16
#define CTN_MAX_CHOICES 128 /* prompts times n */

struct ctn_stop {
	const char *text;
	size_t len;
};

struct ctn_prompt {
	const char *text; /* NULL: given as ids */
	size_t len;
	uint32_t *ids; /* malloc'ed; of a text once it was encoded */
	size_t count;
};

struct ctn_completion_request {
	json_t *json; /* owns the strings */
	const char *model;
	struct ctn_prompt *prompts;
	size_t prompt_count;
	struct ctn_stop stops[CTN_MAX_STOPS];
	size_t stop_count;
	uint32_t n;
	uint32_t max_tokens;
	struct ctn_sampling sampling;
	bool logprobs; /* sampling.logprobs says how many, which may be 0 */
	bool has_seed;
	bool echo;
	bool stream;
	bool include_usage;
	bool return_token_ids;
	bool ignore_eos;
	double timeout_s;
};

/* 0, or -1 with *e naming the field, what was expected and what was found. Free in both
 * cases. */
int ctn_completion_request_parse(const char *body, size_t len, struct ctn_completion_request *r,
				 struct ctn_api_error *e);
void ctn_completion_request_free(struct ctn_completion_request *r);

#endif
