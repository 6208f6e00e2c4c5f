// SPDX-License-Identifier: MIT
#include "server/choice.h"
#include "server/stop.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* JSON has no infinity; a token of no probability is given this, as others do. */
#define LEAST_LOGPROB (-9999.0)

static uint64_t count_chars(const char *s, size_t len)
{
	uint64_t n = 0;

	for (size_t i = 0; i < len; i++)
		n += ((unsigned char)s[i] & 0xc0) != 0x80;
	return n;
}

/* Room for one more element of `size` bytes. */
static bool grow(void **array, size_t count, size_t *room, size_t size)
{
	size_t want = *room ? *room * 2 : 16;
	void *p;

	if (count < *room)
		return true;
	p = reallocarray(*array, want, size);
	if (!p)
		return false;
	*array = p;
	*room = want;
	return true;
}

static void add_id(struct ctn_choice *c, uint32_t id)
{
	if (!grow((void **)&c->ids, c->id_count, &c->id_room, sizeof(*c->ids))) {
		c->failed = true;
		return;
	}
	c->ids[c->id_count++] = id;
}

static void add_score(struct ctn_choice *c, const struct ctn_sample *sample, uint32_t id,
		      uint64_t offset)
{
	struct ctn_score *s;

	if (!grow((void **)&c->scores, c->score_count, &c->score_room, sizeof(*c->scores))) {
		c->failed = true;
		return;
	}
	s = &c->scores[c->score_count++];
	*s = (struct ctn_score){.scored = sample != NULL, .offset = offset};
	if (sample)
		s->sample = *sample;
	s->sample.id = id;
}

/* Text that goes on after a prompt keeps its leading space; after nothing but BOS it is the
 * start of a text. */
static bool continues_text(const struct ctn_choice *c)
{
	for (size_t i = 0; i < c->prompt->count; i++) {
		if (!ctn_tokenizer_is_special(c->tok, c->prompt->ids[i]))
			return true;
	}
	return false;
}

int ctn_choice_init(struct ctn_choice *c, const struct ctn_completion_request *r,
		    const struct ctn_prompt *prompt, const struct ctn_tokenizer *tok,
		    uint32_t index, struct ctn_request *req)
{
	*c = (struct ctn_choice){.r = r, .prompt = prompt, .tok = tok, .index = index, .req = req};
	if (!tok)
		return 0;
	c->detok = ctn_detok_new(tok, true, continues_text(c));
	return c->detok ? 0 : -ENOMEM;
}

void ctn_choice_free(struct ctn_choice *c)
{
	if (c->req)
		ctn_request_release(c->req);
	if (c->detok)
		ctn_detok_free(c->detok);
	ctn_buf_free(&c->held);
	ctn_buf_free(&c->text);
	free(c->ids);
	free(c->scores);
}

/* ---- text ------------------------------------------------------------------------------ */

static void release_text(struct ctn_choice *c, size_t len)
{
	uint64_t chars = count_chars(c->held.data, len);

	if (len == 0)
		return;
	ctn_buf_append(&c->text, c->held.data, len);
	c->chars += chars;
	c->held_chars -= chars;
	memmove(c->held.data, c->held.data + len, c->held.len - len + 1);
	c->held.len -= len;
}

/* Looks at the text that came behind held[0 .. seen) and lets go what no stop string needs. */
static void look_for_stop(struct ctn_choice *c, size_t seen)
{
	size_t cut;

	if (c->held.failed || c->held.len == seen)
		return;
	c->held_chars += count_chars(c->held.data + seen, c->held.len - seen);
	c->stopped =
		ctn_stop_find(c->r->stops, c->r->stop_count, c->held.data, c->held.len, seen, &cut);
	release_text(c, cut);
	if (c->stopped) {
		ctn_buf_reset(&c->held);
		c->held_chars = 0;
		c->cancelled = true;
		ctn_request_cancel(c->req);
	}
}

static int take_token(struct ctn_choice *c, const struct ctn_sample *sample, struct ctn_err *e)
{
	size_t seen = c->held.len;
	int rc;

	c->generated++;
	add_id(c, sample->id);
	if (c->r->logprobs)
		add_score(c, sample, sample->id, c->chars + c->held_chars);
	if (!c->detok)
		return 0;
	rc = ctn_detok_push(c->detok, sample->id, &c->held, e);
	if (rc)
		return rc;
	look_for_stop(c, seen);
	return 0;
}

static void finish_text(struct ctn_choice *c)
{
	size_t seen = c->held.len;

	if (c->stopped || !c->detok)
		return;
	ctn_detok_flush(c->detok, &c->held);
	look_for_stop(c, seen);
	if (!c->stopped)
		release_text(c, c->held.len);
}

/* ---- echo ------------------------------------------------------------------------------ */

static int score_prompt(struct ctn_choice *c, struct ctn_err *e)
{
	struct ctn_detok *detok = c->tok ? ctn_detok_new(c->tok, true, false) : NULL;
	struct ctn_buf text = {0};
	uint64_t offset = 0;
	int rc = 0;

	if (c->tok && !detok)
		return -ENOMEM;
	for (size_t i = 0; i < c->prompt->count && !rc; i++) {
		if (text.len)
			offset += count_chars(text.data, text.len);
		ctn_buf_reset(&text);
		add_score(c, ctn_request_prompt_score(c->req, (uint32_t)i), c->prompt->ids[i],
			  CTN_MIN(offset, c->chars));
		if (detok)
			rc = ctn_detok_push(detok, c->prompt->ids[i], &text, e);
	}
	if (detok)
		ctn_detok_free(detok);
	ctn_buf_free(&text);
	return rc;
}

/* The prompt, in front of everything else. A stop string is looked for behind it alone. */
static int echo(struct ctn_choice *c, struct ctn_err *e)
{
	int rc = 0;

	if (c->prompt->text)
		ctn_buf_append(&c->text, c->prompt->text, c->prompt->len);
	else if (c->tok)
		rc = ctn_tokenizer_decode(c->tok, c->prompt->ids, c->prompt->count, true, &c->text,
					  e);
	if (rc)
		return rc;
	c->chars = c->text.len ? count_chars(c->text.data, c->text.len) : 0;
	for (size_t i = 0; i < c->prompt->count; i++)
		add_id(c, c->prompt->ids[i]);
	return c->r->logprobs ? score_prompt(c, e) : 0;
}

/* The engine has the scores of the prompt once the first token or the end has come. */
static int begin(struct ctn_choice *c, struct ctn_err *e)
{
	if (c->begun)
		return 0;
	c->begun = true;
	return c->r->echo ? echo(c, e) : 0;
}

int ctn_choice_advance(struct ctn_choice *c, struct ctn_err *e)
{
	struct ctn_sample sample;
	uint64_t count;
	int rc = 0;

	if (c->done)
		return 0;
	/* The descriptor is read first: what comes later makes it readable again. */
	if (read(ctn_request_fd(c->req), &count, sizeof(count)) < 0 && errno != EAGAIN &&
	    errno != EINTR)
		return ctn_err_set(e, -errno, "eventfd: %s", strerror(errno));
	while (ctn_request_next(c->req, &sample)) {
		/* Tokens behind a stop string are thrown away. */
		if (c->stopped)
			continue;
		rc = begin(c, e);
		if (!rc)
			rc = take_token(c, &sample, e);
		if (rc)
			return rc;
	}
	if (ctn_request_finished(c->req, &c->result)) {
		c->done = true;
		if (c->result.finish == CTN_FINISH_STOP || c->result.finish == CTN_FINISH_LENGTH)
			rc = begin(c, e);
		finish_text(c);
	}
	if (c->failed || c->held.failed || c->text.failed)
		rc = ctn_err_set(e, -ENOMEM, "out of memory");
	return rc;
}

/* ---- JSON ------------------------------------------------------------------------------ */

/* The text of one token by itself. */
static json_t *token_text(const struct ctn_choice *c, uint32_t id)
{
	struct ctn_buf buf = {0};
	struct ctn_detok *detok;
	json_t *json = NULL;

	if (!c->tok) {
		ctn_buf_printf(&buf, "token_id:%u", id);
	} else {
		detok = ctn_detok_new(c->tok, false, true);
		if (!detok)
			return NULL;
		/* An id outside the vocabulary has no text; advance() has told of it. */
		(void)ctn_detok_push(detok, id, &buf, NULL);
		ctn_detok_flush(detok, &buf);
		ctn_detok_free(detok);
	}
	if (!buf.failed)
		json = json_stringn(buf.data ? buf.data : "", buf.len);
	ctn_buf_free(&buf);
	return json;
}

static json_t *logprob_json(float logprob)
{
	return json_real(isfinite(logprob) ? (double)logprob : LEAST_LOGPROB);
}

static int add_top(const struct ctn_choice *c, json_t *top, uint32_t id, float logprob)
{
	json_t *text = token_text(c, id);
	int rc = text ? 0 : -1;

	/* Two tokens can have the same text; the likelier one comes first and stays. */
	if (!rc && !json_object_get(top, json_string_value(text)))
		rc = json_object_set_new(top, json_string_value(text), logprob_json(logprob));
	json_decref(text);
	return rc;
}

static json_t *top_json(const struct ctn_choice *c, const struct ctn_sample *s)
{
	json_t *top = json_object();
	bool listed = false;
	int rc = top ? 0 : -1;

	for (uint32_t i = 0; i < s->top_count && !rc; i++) {
		rc = add_top(c, top, s->top_ids[i], s->top_logprobs[i]);
		listed |= s->top_ids[i] == s->id;
	}
	if (!rc && !listed)
		rc = add_top(c, top, s->id, s->logprob);
	if (rc) {
		json_decref(top);
		return NULL;
	}
	return top;
}

/* How many scores may be sent: those of the text that was let go, at a natural end all. */
static size_t scores_ready(const struct ctn_choice *c)
{
	size_t n = c->scores_sent;

	if (c->done && !c->stopped)
		return c->score_count;
	while (n < c->score_count && c->scores[n].offset < c->chars)
		n++;
	return n;
}

static json_t *logprobs_json(struct ctn_choice *c)
{
	size_t ready = scores_ready(c);
	json_t *tokens = json_array(), *logprobs = json_array(), *tops = json_array(),
	       *offsets = json_array();
	int rc = 0;

	for (; c->scores_sent < ready && !rc; c->scores_sent++) {
		const struct ctn_score *s = &c->scores[c->scores_sent];

		rc = json_array_append_new(tokens, token_text(c, s->sample.id)) ||
		     json_array_append_new(logprobs, s->scored ? logprob_json(s->sample.logprob)
							       : json_null()) ||
		     json_array_append_new(tops,
					   s->scored ? top_json(c, &s->sample) : json_null()) ||
		     json_array_append_new(offsets, json_integer((json_int_t)s->offset));
	}
	if (rc) {
		json_decref(tokens);
		json_decref(logprobs);
		json_decref(tops);
		json_decref(offsets);
		return NULL;
	}
	return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", logprobs,
			 "top_logprobs", tops, "text_offset", offsets);
}

static json_t *ids_json(struct ctn_choice *c)
{
	json_t *array = json_array();

	for (; c->ids_sent < c->id_count && array; c->ids_sent++) {
		if (json_array_append_new(array, json_integer(c->ids[c->ids_sent]))) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static bool wants_ids(const struct ctn_choice *c)
{
	return c->r->return_token_ids || !c->tok;
}

bool ctn_choice_has_news(const struct ctn_choice *c)
{
	return c->text.len || (c->done && !c->finish_sent) ||
	       (wants_ids(c) && c->ids_sent < c->id_count) ||
	       (c->r->logprobs && c->scores_sent < scores_ready(c));
}

static const char *finish_reason(const struct ctn_choice *c)
{
	if (!c->done)
		return NULL;
	return c->stopped || c->result.finish == CTN_FINISH_STOP ? "stop" : "length";
}

json_t *ctn_choice_json(struct ctn_choice *c)
{
	json_t *json, *ids;

	json = json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)c->index, "text",
			 json_stringn(c->text.data ? c->text.data : "", c->text.len), "logprobs",
			 c->r->logprobs ? logprobs_json(c) : json_null(), "finish_reason",
			 finish_reason(c));
	ids = json && wants_ids(c) ? ids_json(c) : NULL;
	if (json && wants_ids(c) && json_object_set_new(json, "token_ids", ids)) {
		json_decref(json);
		return NULL;
	}
	ctn_buf_reset(&c->text);
	c->finish_sent = c->done;
	return json;
}
