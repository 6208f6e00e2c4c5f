// SPDX-License-Identifier: MIT
#include "server/openai_request.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STOP_BYTES 1024
#define MAX_TIMEOUT_S  (7.0 * 24 * 3600)

/* ---- one field ------------------------------------------------------------------------- */

static int bad_field(struct ctn_api_error *e, const char *name, const char *expected,
		     const json_t *found)
{
	/* ASCII, so that the cut below does not split a character. */
	char *text = json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
	int rc = ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "invalid_value", name,
			      "%s: expected %s, found %.60s%s", name, expected, text ? text : "?",
			      text && strlen(text) > 60 ? "..." : "");

	free(text);
	return rc;
}

/* The field, or NULL when it is absent or null, which mean the same. */
static const json_t *field(const json_t *body, const char *name)
{
	const json_t *v = json_object_get(body, name);

	return json_is_null(v) ? NULL : v;
}

static int get_uint(const json_t *body, const char *name, uint64_t min, uint64_t max, uint32_t *out,
		    struct ctn_api_error *e)
{
	const json_t *v = field(body, name);
	char expected[64];

	if (!v)
		return 0;
	if (!json_is_integer(v) || json_integer_value(v) < (json_int_t)min ||
	    json_integer_value(v) > (json_int_t)max) {
		snprintf(expected, sizeof(expected), "an integer from %llu to %llu",
			 (unsigned long long)min, (unsigned long long)max);
		return bad_field(e, name, expected, v);
	}
	*out = (uint32_t)json_integer_value(v);
	return 0;
}

static int get_real(const json_t *body, const char *name, double min, double max,
		    const char *expected, double *out, struct ctn_api_error *e)
{
	const json_t *v = field(body, name);

	if (!v)
		return 0;
	if (!json_is_number(v) || !(json_number_value(v) >= min && json_number_value(v) <= max))
		return bad_field(e, name, expected, v);
	*out = json_number_value(v);
	return 0;
}

static int get_bool(const json_t *body, const char *name, bool *out, struct ctn_api_error *e)
{
	const json_t *v = field(body, name);

	if (!v)
		return 0;
	if (!json_is_boolean(v))
		return bad_field(e, name, "true or false", v);
	*out = json_is_true(v);
	return 0;
}

/* ---- fields that are refused ----------------------------------------------------------- */

/* What would change the text and is not supported; the value that changes nothing is fine. */
static const struct {
	const char *name;
	double neutral; /* of a number; others are neutral when false or empty */
} unsupported[] = {
	{"suffix", 0},
	{"logit_bias", 0},
	{"presence_penalty", 0},
	{"frequency_penalty", 0},
	{"repetition_penalty", 1},
	{"length_penalty", 1},
	{"min_p", 0},
	{"typical_p", 1},
	{"min_tokens", 0},
	{"use_beam_search", 0},
	{"stop_token_ids", 0},
	{"bad_words", 0},
	{"allowed_token_ids", 0},
	{"logits_processors", 0},
	{"response_format", 0},
	{"structured_outputs", 0},
	{"guided_json", 0},
	{"guided_regex", 0},
	{"guided_choice", 0},
	{"guided_grammar", 0},
	{"prompt_embeds", 0},
};

static bool is_neutral(const json_t *v, double neutral)
{
	switch (json_typeof(v)) {
	case JSON_INTEGER:
	case JSON_REAL:
		return json_number_value(v) == neutral;
	case JSON_OBJECT:
		return json_object_size(v) == 0;
	case JSON_ARRAY:
		return json_array_size(v) == 0;
	case JSON_STRING:
	case JSON_TRUE:
		return false;
	case JSON_FALSE:
	case JSON_NULL:
		return true;
	}
	return false;
}

static int refuse_unsupported(const json_t *body, struct ctn_api_error *e)
{
	for (size_t i = 0; i < CTN_ARRAY_LEN(unsupported); i++) {
		const json_t *v = field(body, unsupported[i].name);

		if (v && !is_neutral(v, unsupported[i].neutral))
			return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "unsupported_parameter",
					    unsupported[i].name, "%s is not supported",
					    unsupported[i].name);
	}
	return 0;
}

/* ---- prompt ---------------------------------------------------------------------------- */

#define PROMPT_FORMS                                                   \
	"a string, an array of token ids, an array of strings, or an " \
	"array of arrays of token ids, none of them empty"

static int parse_ids(const json_t *array, struct ctn_prompt *p, struct ctn_api_error *e)
{
	size_t i;
	const json_t *v;

	p->ids = calloc(json_array_size(array), sizeof(*p->ids));
	if (!p->ids)
		return ctn_api_fail_no_room(e, "out of memory");
	json_array_foreach(array, i, v)
	{
		if (!json_is_integer(v) || json_integer_value(v) < 0 ||
		    json_integer_value(v) > UINT32_MAX)
			return bad_field(e, "prompt", "token ids that are integers from 0", v);
		p->ids[i] = (uint32_t)json_integer_value(v);
	}
	p->count = json_array_size(array);
	return 0;
}

static int parse_prompt(const json_t *v, struct ctn_prompt *p, struct ctn_api_error *e)
{
	if (json_is_string(v)) {
		p->text = json_string_value(v);
		p->len = json_string_length(v);
		return 0;
	}
	if (json_is_array(v) && json_array_size(v))
		return parse_ids(v, p, e);
	return bad_field(e, "prompt", PROMPT_FORMS, v);
}

static int parse_prompts(const json_t *body, struct ctn_completion_request *r,
			 struct ctn_api_error *e)
{
	const json_t *v = field(body, "prompt"), *item;
	bool many;
	size_t i;

	if (!v)
		return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "missing_field", "prompt",
				    "prompt: expected " PROMPT_FORMS ", found none");
	many = json_is_array(v) && json_array_size(v) && !json_is_number(json_array_get(v, 0));
	r->prompt_count = many ? json_array_size(v) : 1;
	if (r->prompt_count * r->n > CTN_MAX_CHOICES) {
		size_t found = r->prompt_count;

		r->prompt_count = 0;
		return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "invalid_value", "prompt",
				    "prompt: expected at most %d choices (prompts times n), found "
				    "%zu times %u",
				    CTN_MAX_CHOICES, found, r->n);
	}
	r->prompts = calloc(r->prompt_count, sizeof(*r->prompts));
	if (!r->prompts)
		return ctn_api_fail_no_room(e, "out of memory");
	if (!many)
		return parse_prompt(v, &r->prompts[0], e);
	json_array_foreach(v, i, item)
	{
		if (parse_prompt(item, &r->prompts[i], e))
			return -1;
	}
	return 0;
}

/* ---- the other fields with a form of their own ----------------------------------------- */

static int add_stop(const json_t *v, struct ctn_completion_request *r, struct ctn_api_error *e)
{
	size_t len = json_string_length(v);

	if (!json_is_string(v) || len == 0 || len > MAX_STOP_BYTES)
		return bad_field(e, "stop", "strings of 1 to 1024 bytes", v);
	r->stops[r->stop_count++] = (struct ctn_stop){json_string_value(v), len};
	return 0;
}

static int parse_stops(const json_t *body, struct ctn_completion_request *r,
		       struct ctn_api_error *e)
{
	const json_t *v = field(body, "stop"), *item;
	size_t i;

	if (!v)
		return 0;
	if (json_is_string(v))
		return add_stop(v, r, e);
	if (!json_is_array(v) || json_array_size(v) > CTN_MAX_STOPS)
		return bad_field(e, "stop", "a string or an array of up to 16 strings", v);
	json_array_foreach(v, i, item)
	{
		if (add_stop(item, r, e))
			return -1;
	}
	return 0;
}

static int parse_top_k(const json_t *body, struct ctn_completion_request *r,
		       struct ctn_api_error *e)
{
	const json_t *v = field(body, "top_k");

	/* Elsewhere -1 is the way to say "all". */
	if (json_is_integer(v) && json_integer_value(v) == -1)
		return 0;
	return get_uint(body, "top_k", 0, UINT32_MAX, &r->sampling.top_k, e);
}

static int parse_seed(const json_t *body, struct ctn_completion_request *r, struct ctn_api_error *e)
{
	const json_t *v = field(body, "seed");

	if (!v)
		return 0;
	if (!json_is_integer(v))
		return bad_field(e, "seed", "an integer of 64 bits", v);
	r->sampling.seed = (uint64_t)json_integer_value(v);
	r->has_seed = true;
	return 0;
}

static int parse_best_of(const json_t *body, struct ctn_completion_request *r,
			 struct ctn_api_error *e)
{
	uint32_t best_of = r->n;

	if (get_uint(body, "best_of", 1, CTN_MAX_CHOICES, &best_of, e))
		return -1;
	if (best_of == r->n)
		return 0;
	return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "unsupported_parameter", "best_of",
			    "best_of: expected n, which is %u, found %u", r->n, best_of);
}

static int parse_stream(const json_t *body, struct ctn_completion_request *r,
			struct ctn_api_error *e)
{
	const json_t *options = field(body, "stream_options");

	if (get_bool(body, "stream", &r->stream, e))
		return -1;
	if (!options)
		return 0;
	if (!json_is_object(options))
		return bad_field(e, "stream_options", "an object", options);
	if (!r->stream)
		return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "invalid_value", "stream_options",
				    "stream_options: expected only with \"stream\": true");
	return get_bool(options, "include_usage", &r->include_usage, e);
}

static int parse_model(const json_t *body, struct ctn_completion_request *r,
		       struct ctn_api_error *e)
{
	const json_t *v = field(body, "model");

	if (!v)
		return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "missing_field", "model",
				    "model: expected the name of a model, found none");
	if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
		return bad_field(e, "model", "the name of a model", v);
	r->model = json_string_value(v);
	return 0;
}

static int parse_sampling(const json_t *body, struct ctn_completion_request *r,
			  struct ctn_api_error *e)
{
	double temperature = 1, top_p = 1;

	if (get_real(body, "temperature", 0, 2, "a number from 0 to 2", &temperature, e) ||
	    get_real(body, "top_p", FLT_MIN, 1, "a number above 0 and up to 1", &top_p, e) ||
	    parse_top_k(body, r, e) || parse_seed(body, r, e))
		return -1;
	r->sampling.temperature = (float)temperature;
	r->sampling.top_p = (float)top_p;
	r->logprobs = field(body, "logprobs") != NULL;
	return get_uint(body, "logprobs", 0, CTN_MAX_TOP_LOGPROBS, &r->sampling.logprobs, e);
}

static int load_body(const char *body, size_t len, struct ctn_completion_request *r,
		     struct ctn_api_error *e)
{
	json_error_t je;

	r->json = json_loadb(body ? body : "", len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
	/* jansson finds no words for what is not the text's fault. */
	if (!r->json && !je.text[0])
		return ctn_api_fail_no_room(e, "out of memory");
	if (!r->json)
		return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "invalid_json", NULL,
				    "request body: line %d, column %d: %s", je.line, je.column,
				    je.text);
	if (!json_is_object(r->json))
		return ctn_api_fail(e, MHD_HTTP_BAD_REQUEST, "invalid_json", NULL,
				    "request body: expected a JSON object");
	return 0;
}

int ctn_completion_request_parse(const char *body, size_t len, struct ctn_completion_request *r,
				 struct ctn_api_error *e)
{
	const json_t *j;

	*r = (struct ctn_completion_request){.n = 1, .max_tokens = 16};
	if (load_body(body, len, r, e))
		return -1;
	j = r->json;
	if (parse_model(j, r, e) || get_uint(j, "n", 1, CTN_MAX_CHOICES, &r->n, e) ||
	    parse_prompts(j, r, e) || get_uint(j, "max_tokens", 0, UINT32_MAX, &r->max_tokens, e) ||
	    parse_sampling(j, r, e) || parse_stops(j, r, e) || parse_stream(j, r, e) ||
	    get_bool(j, "echo", &r->echo, e) ||
	    get_bool(j, "return_token_ids", &r->return_token_ids, e) ||
	    get_bool(j, "ignore_eos", &r->ignore_eos, e) ||
	    get_real(j, "timeout", nextafter(0, 1), MAX_TIMEOUT_S,
		     "a number of seconds above 0, at most a week", &r->timeout_s, e) ||
	    parse_best_of(j, r, e))
		return -1;
	return refuse_unsupported(j, e);
}

void ctn_completion_request_free(struct ctn_completion_request *r)
{
	for (size_t i = 0; r->prompts && i < r->prompt_count; i++)
		free(r->prompts[i].ids);
	free(r->prompts);
	json_decref(r->json);
}
