// SPDX-License-Identifier: MIT
/* The JSON of a completion: one body, or the chunks of a stream. */
#include "server/completion.h"

#include <string.h>

void ctn_completion_add_stats(struct ctn_completion *c, const struct ctn_choice *ch)
{
	const struct ctn_request_result *r = &ch->result;

	c->stats.completion_tokens += ch->generated;
	c->stats.bytes_staged = CTN_MAX(c->stats.bytes_staged, r->bytes_staged);
	c->stats.bytes_loaded = CTN_MAX(c->stats.bytes_loaded, r->bytes_loaded);
	c->stats.queue_ns = CTN_MAX(c->stats.queue_ns, r->phase_ns[CTN_PHASE_QUEUE]);
	c->stats.load_ns = CTN_MAX(c->stats.load_ns, r->phase_ns[CTN_PHASE_LOAD]);
	c->stats.total_ns = CTN_MAX(c->stats.total_ns, r->total_ns);
	if (r->first_token_ns &&
	    (!c->stats.first_token_ns || r->first_token_ns < c->stats.first_token_ns))
		c->stats.first_token_ns = r->first_token_ns;
}

static json_t *usage_json(const struct ctn_completion *c)
{
	uint64_t prompt_tokens = 0;

	for (size_t i = 0; i < c->r.prompt_count; i++)
		prompt_tokens += c->r.prompts[i].count;
	return json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)prompt_tokens,
			 "completion_tokens", (json_int_t)c->stats.completion_tokens,
			 "total_tokens", (json_int_t)(prompt_tokens + c->stats.completion_tokens));
}

static double to_ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

static json_t *computron_json(const struct ctn_completion *c)
{
	return json_pack("{s:I, s:I, s:f, s:f, s:f, s:f}", "bytes_staged",
			 (json_int_t)c->stats.bytes_staged, "bytes_loaded",
			 (json_int_t)c->stats.bytes_loaded, "queue_ms", to_ms(c->stats.queue_ns),
			 "load_ms", to_ms(c->stats.load_ns), "first_token_ms",
			 to_ms(c->stats.first_token_ns), "total_ms", to_ms(c->stats.total_ns));
}

/* Takes `choices` over. */
static json_t *envelope(const struct ctn_completion *c, json_t *choices)
{
	return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", c->id, "object", "text_completion",
			 "created", (json_int_t)c->created, "model", c->info.name, "choices",
			 choices);
}

/* Takes `value` over; frees `json` and gives NULL when that is not possible. */
static json_t *with(json_t *json, const char *key, json_t *value)
{
	if (!json) {
		json_decref(value);
		return NULL;
	}
	if (json_object_set_new(json, key, value)) {
		json_decref(json);
		return NULL;
	}
	return json;
}

json_t *ctn_completion_body(struct ctn_completion *c)
{
	json_t *choices = json_array(), *json;

	for (uint32_t i = 0; i < c->count; i++) {
		if (json_array_append_new(choices, ctn_choice_json(&c->choices[i]))) {
			json_decref(choices);
			return NULL;
		}
	}
	json = with(envelope(c, choices), "usage", usage_json(c));
	return with(json, "computron", computron_json(c));
}

json_t *ctn_completion_chunk(struct ctn_completion *c, struct ctn_choice *ch, bool last)
{
	json_t *json = envelope(c, json_pack("[o]", ctn_choice_json(ch)));

	if (c->r.include_usage)
		json = with(json, "usage", json_null());
	if (last)
		json = with(json, "computron", computron_json(c));
	return json;
}

json_t *ctn_completion_usage_chunk(struct ctn_completion *c)
{
	json_t *json = with(envelope(c, json_array()), "usage", usage_json(c));

	return with(json, "computron", computron_json(c));
}
