// SPDX-License-Identifier: MIT
/*
 * POST /v1/completions. The thread of the connection submits one engine request a choice and
 * then waits by poll() for the engine, the client's going, and the server's stop.
 */
#include "server/choice.h"
#include "server/completion.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

/* ---- making it ------------------------------------------------------------------------- */

static int fail_stopping(struct ctn_api_error *e)
{
	return ctn_api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, "stopping", NULL,
			    "the server is stopping");
}

static int find_model(struct ctn_completion *c, struct ctn_api_error *e)
{
	int model = ctn_engine_find_model(c->server->engine, c->r.model);

	if (model < 0)
		return ctn_api_fail(e, MHD_HTTP_NOT_FOUND, "model_not_found", "model",
				    "model: there is no model \"%.200s\"", c->r.model);
	c->model = (uint32_t)model;
	ctn_engine_model(c->server->engine, c->model, &c->info);
	if (c->info.reason)
		return ctn_api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, "model_not_servable", "model",
				    "model %s cannot be served: %s", c->r.model, c->info.reason);
	c->text = &c->server->models[c->model];
	return 0;
}

/* A text without a token of its own starts from BOS, where the model has one. */
static int use_bos(struct ctn_completion *c, struct ctn_prompt *p, struct ctn_api_error *e)
{
	if (c->info.arch->bos < 0)
		return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "invalid_value", "prompt",
				    "prompt: expected a text of at least one token");
	free(p->ids);
	p->ids = malloc(sizeof(*p->ids));
	if (!p->ids)
		return ctn_api_fail_no_room(e, "out of memory");
	p->ids[0] = (uint32_t)c->info.arch->bos;
	p->count = 1;
	return 0;
}

static int encode(struct ctn_completion *c, struct ctn_prompt *p, struct ctn_api_error *e)
{
	struct ctn_err err = {0};
	int rc;

	if (!p->text)
		return 0;
	if (!c->text->tok)
		return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "no_tokenizer", "prompt",
				    "prompt: model %s takes token ids alone: %s", c->r.model,
				    c->text->why.msg);
	rc = ctn_tokenizer_encode(c->text->tok, p->text, p->len, true, &p->ids, &p->count, &err);
	if (rc == -ENOMEM)
		return ctn_api_fail_no_room(e, "out of memory");
	if (rc)
		return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "invalid_value", "prompt",
				    "prompt: %s", err.msg);
	return p->count ? 0 : use_bos(c, p, e);
}

static int encode_prompts(struct ctn_completion *c, struct ctn_api_error *e)
{
	if (c->r.stop_count && !c->text->tok)
		return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "no_tokenizer", "stop",
				    "stop: model %s gives token ids alone: %s", c->r.model,
				    c->text->why.msg);
	for (size_t i = 0; i < c->r.prompt_count; i++) {
		if (encode(c, &c->r.prompts[i], e))
			return -1;
	}
	return 0;
}

static int submit_failed(int rc, uint32_t retry_after_s, const struct ctn_err *err,
			 struct ctn_api_error *e)
{
	switch (rc) {
	case -EAGAIN:
		e->retry_after_s = CTN_MAX(retry_after_s, 1u);
		return ctn_api_fail(e, MHD_HTTP_TOO_MANY_REQUESTS, "queue_full", NULL, "%s",
				    err->msg);
	case -ESHUTDOWN:
		return fail_stopping(e);
	case -EMFILE:
	case -ENFILE:
	case -ENOMEM:
		return ctn_api_fail_no_room(e, err->msg);
	case -EINVAL:
		return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "invalid_value", "prompt", "%s",
				    err->msg);
	case -ENODEV:
		return ctn_api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, "model_not_servable", "model",
				    "%s", err->msg);
	case -ENOENT:
		return ctn_api_fail(e, MHD_HTTP_NOT_FOUND, "model_not_found", "model", "%s",
				    err->msg);
	default:
		return ctn_api_fail(e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL, "%s", err->msg);
	}
}

static int submit(struct ctn_completion *c, uint32_t index, struct ctn_api_error *e)
{
	const struct ctn_prompt *p = &c->r.prompts[index / c->r.n];
	struct ctn_request_params params = {
		.model = c->model,
		.prompt = p->ids,
		.prompt_len = (uint32_t)p->count,
		.max_tokens = c->r.max_tokens,
		.sampling = c->r.sampling,
		.ignore_eos = c->r.ignore_eos,
		.prompt_logprobs = c->r.echo && c->r.logprobs,
		.timeout_s = c->r.timeout_s,
	};
	uint32_t retry_after_s = 0;
	struct ctn_request *req;
	struct ctn_err err = {0};
	int rc;

	/* The choices of one prompt differ by their seed; the first has the one that was given. */
	params.sampling.seed += index % c->r.n;
	rc = ctn_engine_submit(c->server->engine, &params, &req, &retry_after_s, &err);
	if (rc)
		return submit_failed(rc, retry_after_s, &err, e);
	c->count++;
	c->unfinished++;
	if (ctn_choice_init(&c->choices[index], &c->r, p, c->text->tok, index, req))
		return ctn_api_fail_no_room(e, "out of memory");
	return 0;
}

static int submit_all(struct ctn_completion *c, struct ctn_api_error *e)
{
	uint32_t total = (uint32_t)c->r.prompt_count * c->r.n;

	c->choices = calloc(total, sizeof(*c->choices));
	if (!c->choices)
		return ctn_api_fail_no_room(e, "out of memory");
	for (uint32_t i = 0; i < total; i++) {
		if (submit(c, i, e))
			return -1;
	}
	return 0;
}

static int random_bytes(void *data, size_t len, struct ctn_api_error *e)
{
	if (getrandom(data, len, 0) == (ssize_t)len)
		return 0;
	return ctn_api_fail(e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL, "getrandom: %s",
			    strerror(errno));
}

static int name_it(struct ctn_completion *c, struct ctn_api_error *e)
{
	uint64_t name[2];

	if (random_bytes(name, sizeof(name), e))
		return -1;
	snprintf(c->id, sizeof(c->id), "cmpl-%016llx%016llx", (unsigned long long)name[0],
		 (unsigned long long)name[1]);
	c->created = (int64_t)time(NULL);
	return c->r.has_seed ? 0 : random_bytes(&c->r.sampling.seed, sizeof(uint64_t), e);
}

static void completion_free(struct ctn_completion *c)
{
	/* All are told first, so that they end together. */
	for (uint32_t i = 0; i < c->count; i++) {
		if (!c->choices[i].done)
			ctn_request_cancel(c->choices[i].req);
	}
	for (uint32_t i = 0; i < c->count; i++)
		ctn_choice_free(&c->choices[i]);
	free(c->choices);
	ctn_completion_request_free(&c->r);
	ctn_buf_free(&c->out);
	free(c);
}

static int completion_start(struct ctn_completion *c, struct ctn_exchange *x,
			    struct ctn_api_error *e)
{
	if (ctn_completion_request_parse(x->body.data, x->body.len, &c->r, e) || find_model(c, e) ||
	    encode_prompts(c, e) || name_it(c, e))
		return -1;
	return submit_all(c, e);
}

/* ---- waiting for it -------------------------------------------------------------------- */

#define GONE (POLLHUP | POLLERR | POLLNVAL)

/*
 * The client sends no more. Either it has closed the half through which it would ask more, and
 * reads on, or it is gone; a socket says the same of both until something is sent: who is gone
 * answers with a reset. So it is sent what every client skips: of a stream a comment, before that
 * an interim answer (RFC 9110, 15.2), which HTTP/1.0 has not.
 */
static void probe(struct ctn_completion *c)
{
	static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";

	c->half_closed = true;
	if (c->streams)
		ctn_sse_comment(&c->out);
	else if (c->http11 &&
		 send(c->sock, interim, sizeof(interim) - 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		ctn_debug("client: %s", strerror(errno)); /* the next poll tells */
}

/* Until something has come for a choice, or is to be sent. -EPIPE: the client is gone.
 * -ESHUTDOWN. */
static int wait_for_news(struct ctn_completion *c)
{
	struct pollfd fds[2 + CTN_MAX_CHOICES] = {
		{.fd = c->sock, .events = c->half_closed ? 0 : POLLRDHUP},
		{.fd = c->server->stop_fd, .events = POLLIN}};
	nfds_t n = 2;
	int rc;

	for (uint32_t i = 0; i < c->count; i++) {
		if (!c->choices[i].done)
			fds[n++] = (struct pollfd){.fd = ctn_request_fd(c->choices[i].req),
						   .events = POLLIN};
	}
	ctn_exchange_idle_timeout(c->server, c->conn, false);
	do {
		rc = poll(fds, n, -1);
	} while (rc < 0 && errno == EINTR);
	ctn_exchange_idle_timeout(c->server, c->conn, true);
	if (rc < 0)
		return -errno;
	if (fds[0].revents & GONE)
		return -EPIPE;
	if (fds[0].revents & POLLRDHUP)
		probe(c);
	return fds[1].revents ? -ESHUTDOWN : 0;
}

/* The engine ended the request: the client's fault, the moment's, or ours. */
static void engine_failed(const struct ctn_request_result *r, struct ctn_api_error *e)
{
	const struct ctn_err *err = &r->err;

	if (r->retry_after_s) {
		e->retry_after_s = r->retry_after_s;
		ctn_api_fail(e, MHD_HTTP_TOO_MANY_REQUESTS, "too_late", "timeout", "%s", err->msg);
		return;
	}
	switch (err->code) {
	case -E2BIG:
		ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "context_too_large", "max_tokens", "%s",
			     err->msg);
		break;
	case -EAGAIN:
	case -EMFILE:
	case -ENFILE:
	case -ENOMEM:
	case -ENOSPC:
	case -ENODEV:
		ctn_api_fail_no_room(e, err->msg);
		break;
	default:
		ctn_api_fail(e, MHD_HTTP_INTERNAL_SERVER_ERROR, "engine_error", NULL, "%s",
			     err->msg);
		break;
	}
}

/* An end that is none of the completion's own. */
static void check_finish(struct ctn_completion *c, const struct ctn_choice *ch)
{
	struct ctn_api_error *e = &c->error;

	if (e->status || ch->cancelled)
		return;
	switch (ch->result.finish) {
	case CTN_FINISH_TIMEOUT:
		ctn_api_fail(e, MHD_HTTP_GATEWAY_TIMEOUT, "timeout", "timeout",
			     "the timeout of %g s is over", c->r.timeout_s);
		break;
	case CTN_FINISH_CANCELLED:
		fail_stopping(e);
		break;
	case CTN_FINISH_ERROR:
		engine_failed(&ch->result, e);
		break;
	default:
		break;
	}
}

static void advance(struct ctn_completion *c)
{
	for (uint32_t i = 0; i < c->count && !c->error.status; i++) {
		struct ctn_choice *ch = &c->choices[i];
		struct ctn_err err = {0};
		bool was_done = ch->done;

		if (ctn_choice_advance(ch, &err)) {
			ctn_api_fail(&c->error, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL, "%s",
				     err.msg);
			return;
		}
		if (ch->done && !was_done) {
			c->unfinished--;
			ctn_completion_add_stats(c, ch);
			check_finish(c, ch);
		}
	}
}

/* ---- streaming ------------------------------------------------------------------------- */

/* True when no choice behind number i, which has something to send, has. */
static bool is_last(const struct ctn_completion *c, uint32_t i)
{
	if (c->unfinished || c->r.include_usage)
		return false;
	while (++i < c->count) {
		if (ctn_choice_has_news(&c->choices[i]))
			return false;
	}
	return true;
}

static void write_events(struct ctn_completion *c)
{
	for (uint32_t i = 0; i < c->count && !c->error.status; i++) {
		struct ctn_choice *ch = &c->choices[i];

		/* The last event tells what the request has cost. */
		if (ctn_choice_has_news(ch))
			ctn_sse_event(&c->out, ctn_completion_chunk(c, ch, is_last(c, i)));
	}
	if (!c->error.status && c->unfinished)
		return;
	if (c->error.status)
		ctn_sse_event(&c->out, ctn_api_error_json(&c->error));
	else if (c->r.include_usage)
		ctn_sse_event(&c->out, ctn_completion_usage_chunk(c));
	ctn_sse_done(&c->out);
	c->ended = true;
}

static ssize_t stream_read(void *cls, uint64_t pos, char *data, size_t max)
{
	struct ctn_completion *c = cls;
	size_t n;

	while (c->out_sent == c->out.len) {
		if (c->ended)
			return MHD_CONTENT_READER_END_OF_STREAM;
		ctn_buf_reset(&c->out);
		c->out_sent = 0;
		if (wait_for_news(c))
			return MHD_CONTENT_READER_END_WITH_ERROR;
		advance(c);
		write_events(c);
		if (c->out.failed)
			return MHD_CONTENT_READER_END_WITH_ERROR;
	}
	n = CTN_MIN(max, c->out.len - c->out_sent);
	memcpy(data, c->out.data + c->out_sent, n);
	c->out_sent += n;
	return (ssize_t)n;
}

static void stream_free(void *cls)
{
	completion_free(cls);
}

/* Takes `c` over in any case. */
static enum MHD_Result stream(struct ctn_exchange *x, struct ctn_completion *c)
{
	struct MHD_Response *response;
	enum MHD_Result rc;

	c->streams = true;
	write_events(c);
	response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 32 * 1024, stream_read, c,
						     stream_free);
	if (!response) {
		completion_free(c);
		return MHD_NO;
	}
	rc = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
	if (rc == MHD_YES)
		rc = MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
	if (rc == MHD_YES)
		rc = MHD_queue_response(x->conn, MHD_HTTP_OK, response);
	MHD_destroy_response(response);
	return rc;
}

/* ---- the handler ----------------------------------------------------------------------- */

static bool any_begun(const struct ctn_completion *c)
{
	for (uint32_t i = 0; i < c->count; i++) {
		if (c->choices[i].begun)
			return true;
	}
	return false;
}

/* To the end; for a stream until there is something to send, so that an error that comes
 * before it still has a status of its own. -EPIPE: the client is gone. */
static int wait_for_answer(struct ctn_completion *c)
{
	while (c->unfinished && !c->error.status && !(c->r.stream && any_begun(c))) {
		int rc = wait_for_news(c);

		if (rc == -ESHUTDOWN) {
			fail_stopping(&c->error);
			return 0;
		}
		if (rc)
			return rc;
		advance(c);
	}
	return 0;
}

enum MHD_Result ctn_handle_completions(struct ctn_exchange *x)
{
	struct ctn_completion *c = calloc(1, sizeof(*c));
	enum MHD_Result result;
	int rc = 0;

	if (!c)
		return MHD_NO;
	c->server = x->server;
	c->conn = x->conn;
	c->sock = x->sock;
	c->http11 = x->http11;
	if (atomic_load(&x->server->refusing))
		fail_stopping(&c->error);
	else if (completion_start(c, x, &c->error) == 0)
		rc = wait_for_answer(c);
	if (rc)
		result = MHD_NO;
	else if (c->error.status)
		result = ctn_reply_error(x, &c->error);
	else if (c->r.stream)
		return stream(x, c);
	else
		result = ctn_reply_json(x, MHD_HTTP_OK, ctn_completion_body(c));
	completion_free(c);
	return result;
}
