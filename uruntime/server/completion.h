/* SPDX-License-Identifier: MIT */
/* The state of one POST /v1/completions, and its JSON. Private to server/. */
#ifndef CTN_SERVER_COMPLETION_H
#define CTN_SERVER_COMPLETION_H

#include "server/choice.h"

/* Belongs to the thread of its connection; once it streams, to the response. */
struct ctn_completion {
	struct ctn_server *server;
	struct MHD_Connection *conn;
	int sock;
	bool http11;
	bool half_closed; /* the client sends no more; it may still read */
	bool streams;     /* the answer has begun, as a stream */
	struct ctn_completion_request r;
	uint32_t model;
	struct ctn_model_info info;
	const struct ctn_text_model *text;
	char id[48];
	int64_t created;
	struct ctn_choice *choices; /* of prompt p: p * n .. p * n + n - 1 */
	uint32_t count;             /* submitted */
	uint32_t unfinished;
	struct ctn_api_error error;
	struct {
		uint64_t completion_tokens;
		uint64_t bytes_staged, bytes_loaded;
		uint64_t queue_ns, load_ns, first_token_ns, total_ns;
	} stats;
	struct ctn_buf out; /* of a stream: events that the library has not taken yet */
	size_t out_sent;
	bool ended; /* the last event is in `out` */
};

/* A choice has ended: its part of the sums. Bytes and times are the largest of all choices,
 * which share one load; the first token is that of the first choice that had one. */
void ctn_completion_add_stats(struct ctn_completion *c, const struct ctn_choice *ch);

/* All return NULL when out of memory. */
json_t *ctn_completion_body(struct ctn_completion *c);
/* What choice `ch` has to send; `last`: no chunk follows. */
json_t *ctn_completion_chunk(struct ctn_completion *c, struct ctn_choice *ch, bool last);
json_t *ctn_completion_usage_chunk(struct ctn_completion *c);

/* Server-sent events, sse.c. Takes `json` over; without one `out` fails. */
void ctn_sse_event(struct ctn_buf *out, json_t *json);
/* What clients skip. */
void ctn_sse_comment(struct ctn_buf *out);
void ctn_sse_done(struct ctn_buf *out);

#endif
