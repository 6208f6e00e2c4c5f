// SPDX-License-Identifier: MIT
/*
 * A decision log is read line by line (engine/decisions.h says what stands in it) and its events
 * are given to a scheduler that was made of the same things, at the same times. What the log tells
 * is checked before: sched takes the word of its caller, and a file is none.
 */
#include "sim_replay.h"
#include "sched/sched.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MODELS   4096
#define MAX_REQUESTS (1u << 20)
#define MAX_ACTIONS  (1u << 20)
#define MAX_SECONDS  1e9

enum request { REQUEST_FREE, REQUEST_QUEUED, REQUEST_ADMITTED, REQUEST_REFUSED };

struct known_model {
	uint32_t ranks, layers[64];
	bool cancelling, staging;
};

struct replay {
	struct ctn_replay *result;
	struct ctn_sched *sched;
	uint32_t max_actions, max_models, max_requests, devices;
	uint32_t models;
	struct known_model *known;
	uint8_t *requests; /* enum request */
	uint32_t *kv_most; /* of each request */
	struct ctn_sched_action *actions;
	uint64_t now_ns;
	uint64_t line;
	/* The event at hand. */
	uint32_t kept[64];
	uint64_t *evictable;
	struct ctn_err *err;
};

static int bad(struct replay *r, const char *expected)
{
	return ctn_err_set(r->err, -EINVAL, "line %llu: expected %s", (unsigned long long)r->line,
			   expected);
}

/* ---- members ------------------------------------------------------------------------------ */

static int get_u64(struct replay *r, json_t *from, const char *key, uint64_t most, uint64_t *v)
{
	json_t *found = json_object_get(from, key);

	if (!found)
		return 0;
	if (!json_is_integer(found) || json_integer_value(found) < 0 ||
	    (uint64_t)json_integer_value(found) > most)
		return ctn_err_set(r->err, -EINVAL,
				   "line %llu: %s: expected a number of at most %llu",
				   (unsigned long long)r->line, key, (unsigned long long)most);
	*v = (uint64_t)json_integer_value(found);
	return 0;
}

static int get_field(struct replay *r, json_t *from, const struct ctn_sched_field *f, char *at)
{
	json_t *found = json_object_get(from, f->name);
	uint64_t n = 0;
	int rc;

	switch (f->kind) {
	case CTN_SCHED_BOOL:
		*(bool *)at = json_is_true(found);
		return 0;
	case CTN_SCHED_REAL:
		*(double *)at = json_number_value(found);
		return 0;
	case CTN_SCHED_I32:
		*(int32_t *)at = (int32_t)json_integer_value(found);
		return 0;
	case CTN_SCHED_U32:
		rc = get_u64(r, from, f->name, UINT32_MAX, &n);
		*(uint32_t *)at = (uint32_t)n;
		return rc;
	case CTN_SCHED_U64:
		rc = get_u64(r, from, f->name, INT64_MAX, &n);
		*(uint64_t *)at = n;
		return rc;
	}
	return 0;
}

static int get_fields(struct replay *r, json_t *from, const struct ctn_sched_field *f, void *into)
{
	int rc = 0;

	for (; f->name && rc == 0; f++)
		rc = get_field(r, from, f, (char *)into + f->offset);
	return rc;
}

/* A list of numbers; *count of at most `max`. */
static int get_list(struct replay *r, json_t *list, uint64_t *v, uint32_t max, uint32_t *count)
{
	size_t i;
	json_t *each;

	if (!json_is_array(list) || json_array_size(list) > max)
		return bad(r, "a list, not as long");
	json_array_foreach(list, i, each)
	{
		if (!json_is_integer(each) || json_integer_value(each) < 0)
			return bad(r, "a list of numbers");
		v[i] = (uint64_t)json_integer_value(each);
	}
	*count = (uint32_t)json_array_size(list);
	return 0;
}

/* ---- what comes before decisions ---------------------------------------------------------- */

static int take_config(struct replay *r, json_t *line)
{
	uint64_t bytes[CTN_SCHED_MAX_DEVICES], granules[CTN_SCHED_MAX_DEVICES], max = 0;
	const char *policy = json_string_value(json_object_get(line, "policy"));
	struct ctn_sched_config cfg = {.policy = policy};
	uint32_t n = 0;
	int rc;

	if (r->sched || !policy || json_integer_value(json_object_get(line, "version")) != 1)
		return bad(r, "the config of a decision log of version 1, once");
	snprintf(r->result->policy, sizeof(r->result->policy), "%s", policy);
	rc = get_fields(r, line, ctn_sched_config_fields, &cfg);
	if (rc == 0)
		rc = get_u64(r, line, "max_actions", MAX_ACTIONS, &max);
	if (rc == 0)
		rc = get_list(r, json_object_get(line, "device_bytes"), bytes,
			      CTN_SCHED_MAX_DEVICES, &cfg.device_count);
	if (rc == 0)
		rc = get_list(r, json_object_get(line, "granules"), granules, CTN_SCHED_MAX_DEVICES,
			      &n);
	if (rc)
		return rc;
	for (uint32_t d = 0; d < n; d++) {
		if (granules[d] == 0 || (granules[d] & (granules[d] - 1)))
			return bad(r, "granules that are powers of two");
	}
	if (n != cfg.device_count || cfg.max_models > MAX_MODELS ||
	    cfg.max_requests > MAX_REQUESTS || max < 64)
		return bad(r, "a granule for each device, and fewer models, requests and actions");
	cfg.device_bytes = bytes;
	cfg.granules = granules;
	r->devices = n;
	r->max_actions = (uint32_t)max;
	r->max_models = cfg.max_models;
	r->max_requests = cfg.max_requests;
	r->known = calloc(CTN_MAX(r->max_models, 1u), sizeof(*r->known));
	r->evictable = calloc(CTN_MAX(r->max_models, 1u), sizeof(*r->evictable));
	r->requests = calloc(CTN_MAX(r->max_requests, 1u), 1);
	r->kv_most = calloc(CTN_MAX(r->max_requests, 1u), sizeof(*r->kv_most));
	r->actions = calloc(r->max_actions, sizeof(*r->actions));
	if (!r->known || !r->evictable || !r->requests || !r->kv_most || !r->actions)
		return ctn_err_set(r->err, -ENOMEM, "out of memory");
	return ctn_sched_new(&cfg, &r->sched, r->err);
}

static int take_rank(struct replay *r, json_t *from, struct ctn_sched_rank *rank,
		     uint64_t layers[1024])
{
	uint64_t sum = 0;
	int rc = get_fields(r, from, ctn_sched_rank_fields, rank);

	if (rc == 0)
		rc = get_list(r, json_object_get(from, "layer_bytes"), layers, 1024,
			      &rank->layer_count);
	for (uint32_t i = 0; rc == 0 && i < rank->layer_count; i++)
		sum = CTN_MIN(sum + CTN_MIN(layers[i], (uint64_t)INT64_MAX), (uint64_t)INT64_MAX);
	rank->layer_bytes = layers;
	if (rc == 0 &&
	    (rank->device >= r->devices || rank->stage >= 64 ||
	     (rank->layer_count && sum != rank->weight_bytes) || rank->weight_bytes > 1ull << 50 ||
	     rank->workspace_bytes > 1ull << 50 || rank->kv_block_bytes > 1ull << 40))
		rc = bad(r, "a rank on one of the devices, its layers as large as itself");
	return rc;
}

static int take_model(struct replay *r, json_t *line)
{
	json_t *list = json_object_get(line, "ranks"), *each;
	struct ctn_sched_rank ranks[64] = {0};
	struct ctn_sched_model model = {.ranks = ranks};
	uint64_t(*layers)[1024];
	size_t i;
	int rc;

	if (!r->sched || r->models == r->max_models || json_array_size(list) == 0 ||
	    json_array_size(list) > CTN_ARRAY_LEN(ranks))
		return bad(r, "a config first, and then models of 1 to 64 ranks");
	layers = calloc(json_array_size(list), sizeof(*layers));
	if (!layers)
		return ctn_err_set(r->err, -ENOMEM, "out of memory");
	rc = get_fields(r, line, ctn_sched_model_fields, &model);
	if (rc == 0 &&
	    (model.max_steps > CTN_SCHED_MAX_STEPS || model.priority < -CTN_SCHED_MAX_PRIORITY ||
	     model.priority > CTN_SCHED_MAX_PRIORITY))
		rc = bad(r, "steps and priority of a model");
	json_array_foreach(list, i, each)
	{
		if (rc == 0)
			rc = take_rank(r, each, &ranks[i], layers[i]);
		r->known[r->models].layers[i] = ranks[i].layer_count;
	}
	model.rank_count = r->known[r->models].ranks = (uint32_t)json_array_size(list);
	if (rc == 0)
		rc = ctn_sched_add_model(r->sched, &model, r->err);
	r->models += rc == 0;
	free(layers);
	return rc;
}

static int take_share(struct replay *r, json_t *line)
{
	static const char *const keys[] = {"model", "rank", "layer", "frame", "bytes"};
	uint64_t v[5] = {0};

	for (size_t i = 0; i < 5; i++) {
		int rc = get_u64(r, line, keys[i], i == 4 ? 1ull << 50 : 1u << 24, &v[i]);

		if (rc)
			return rc;
	}
	if (v[0] >= r->models || v[1] >= r->known[v[0]].ranks ||
	    v[2] >= r->known[v[0]].layers[v[1]])
		return bad(r, "a layer of a model");
	return ctn_sched_share(r->sched, (uint32_t)v[0], (uint32_t)v[1], (uint32_t)v[2],
			       (uint32_t)v[3], v[4])
		       ? ctn_err_set(r->err, -ENOMEM, "out of memory")
		       : 0;
}

/* ---- events ------------------------------------------------------------------------------- */

static int find_name(const char *(*name_of)(unsigned int), unsigned int count, const char *name)
{
	for (unsigned int i = 0; name && i < count; i++) {
		if (strcmp(name_of(i), name) == 0)
			return (int)i;
	}
	return -1;
}

static const char *event_name(unsigned int i)
{
	return ctn_sched_event_name((enum ctn_sched_event_type)i);
}

static const char *action_name(unsigned int i)
{
	return ctn_sched_action_name((enum ctn_sched_action_type)i);
}

static int read_event(struct replay *r, json_t *from, struct ctn_sched_event *ev)
{
	const char *name = json_string_value(json_object_get(from, "type"));
	int type = find_name(event_name, CTN_SCHED_EVENT_TYPES, name), rc;
	json_t *kept = json_object_get(from, "kept_layers");
	json_t *evictable = json_object_get(from, "host_evictable");
	uint64_t list[64];
	uint32_t n = 0;

	if (type < 0)
		return bad(r, "the type of an event");
	*ev = (struct ctn_sched_event){.type = (enum ctn_sched_event_type)type};
	rc = get_fields(r, from, ctn_sched_event_fields, ev);
	if (rc == 0 && ev->model >= r->models)
		rc = bad(r, "one of the models");
	if (rc == 0 && kept) {
		rc = get_list(r, kept, list, 64, &n);
		for (uint32_t i = 0; rc == 0 && i < n; i++) {
			if (i >= r->known[ev->model].ranks ||
			    list[i] > r->known[ev->model].layers[i])
				rc = bad(r, "layers of a rank");
			else
				r->kept[i] = (uint32_t)list[i];
		}
		if (rc == 0 && n != r->known[ev->model].ranks)
			rc = bad(r, "layers of each rank");
		ev->kept_layers = r->kept;
	}
	if (rc == 0 && (evictable || ev->type == CTN_EV_HOST_NEED)) {
		rc = get_list(r, evictable, r->evictable, r->models, &n);
		if (rc == 0 && n != r->models)
			rc = bad(r, "what each model has in the pool");
		ev->host_evictable = r->evictable;
	}
	return rc;
}

/* What sched has been told, and has ordered, allows this event. */
static int check_event(struct replay *r, const struct ctn_sched_event *ev)
{
	const struct known_model *m = &r->known[ev->model];
	struct ctn_sched_model_state state;
	uint8_t *q = &r->requests[CTN_MIN(ev->request, r->max_requests - 1)];

	ctn_sched_model_state(r->sched, ev->model, &state);
	switch (ev->type) {
	case CTN_EV_ARRIVAL:
		if (ev->request >= r->max_requests || *q != REQUEST_FREE ||
		    ev->kv_first > ev->kv_blocks || ev->kv_blocks > 1u << 24)
			return bad(r, "an arrival of a request that is not there, with its KV");
		*q = REQUEST_QUEUED;
		r->kv_most[ev->request] = ev->kv_blocks;
		return 0;
	case CTN_EV_REQUEST_DONE:
		if (ev->request >= r->max_requests || *q == REQUEST_FREE)
			return bad(r, "the end of a request that is there");
		*q = REQUEST_FREE;
		return 0;
	case CTN_EV_KV:
		if (ev->request >= r->max_requests || *q != REQUEST_ADMITTED ||
		    ev->kv_blocks > r->kv_most[ev->request])
			return bad(r, "more KV for a request that was admitted, as it foretold");
		return 0;
	case CTN_EV_LOAD_DONE:
		return state.state == CTN_SCHED_LOADING ? 0 : bad(r, "a load that has begun");
	case CTN_EV_LOAD_FAILED:
		return state.state == CTN_SCHED_LOADING && !state.admitted
			       ? 0
			       : bad(r, "a load that has begun, and no request of its model");
	case CTN_EV_LOAD_CANCELLED:
		return m->cancelling && state.state == CTN_SCHED_LOADING
			       ? 0
			       : bad(r, "a load that is being cancelled");
	case CTN_EV_STEP_DONE:
		return state.stepping ? 0 : bad(r, "a step that has begun");
	case CTN_EV_STAGE_DONE:
		return m->staging ? 0 : bad(r, "a stage that has begun");
	case CTN_EV_DEVICE_LOST:
		return ev->device < r->devices ? 0 : bad(r, "one of the devices");
	default:
		return 0;
	}
}

/* ---- decisions ---------------------------------------------------------------------------- */

static void note_action(struct replay *r, const struct ctn_sched_action *a)
{
	struct known_model *m = &r->known[a->model];

	switch (a->type) {
	case CTN_ACT_LOAD:
		m->cancelling = false;
		break;
	case CTN_ACT_CANCEL:
		m->cancelling = true;
		break;
	case CTN_ACT_STAGE:
		m->staging = true;
		break;
	case CTN_ACT_ADMIT:
		r->requests[a->request] = REQUEST_ADMITTED;
		break;
	case CTN_ACT_PREEMPT:
		r->requests[a->request] = REQUEST_QUEUED;
		break;
	case CTN_ACT_REFUSE:
		r->requests[a->request] = REQUEST_REFUSED;
		break;
	default:
		break;
	}
}

/* Members of two actions, as text; the same for the same. */
static void describe(const struct ctn_sched_action *a, char *out, size_t size)
{
	size_t n = (size_t)snprintf(out, size, "%s", ctn_sched_action_name(a->type));

	for (const struct ctn_sched_field *f = ctn_sched_action_fields; f->name && n < size; f++) {
		const char *at = (const char *)a + f->offset;

		if (f->kind == CTN_SCHED_U32 && *(const uint32_t *)at &&
		    *(const uint32_t *)at != UINT32_MAX)
			n += (size_t)snprintf(out + n, size - n, " %s %u", f->name,
					      *(const uint32_t *)at);
		else if (f->kind == CTN_SCHED_U64 && *(const uint64_t *)at)
			n += (size_t)snprintf(out + n, size - n, " %s %llu", f->name,
					      (unsigned long long)*(const uint64_t *)at);
		else if (f->kind == CTN_SCHED_REAL && *(const double *)at != 0)
			n += (size_t)snprintf(out + n, size - n, " %s %.17g", f->name,
					      *(const double *)at);
	}
}

static void differs(struct replay *r, const char *then, const char *now)
{
	r->result->differ_at = r->line;
	snprintf(r->result->differs, sizeof(r->result->differs), "%.200s in the log, %.200s now",
		 then, now);
}

/* Holds what sched decides now against what it decided then. */
static int compare(struct replay *r, json_t *list, uint32_t count)
{
	size_t i, most = CTN_MAX(json_array_size(list), (size_t)count);

	if (!json_is_array(list))
		return bad(r, "actions");
	for (i = 0; i < most && !r->result->differ_at; i++) {
		json_t *each = json_array_get(list, i);
		const char *name = json_string_value(json_object_get(each, "type"));
		int type = find_name(action_name, CTN_SCHED_ACTION_TYPES, name);
		struct ctn_sched_action then = {0};
		char was[256] = "no action", is[256] = "no action";

		if (each && type < 0)
			return bad(r, "the type of an action");
		if (each) {
			int rc = get_fields(r, each, ctn_sched_action_fields, &then);

			if (rc)
				return rc;
			then.type = (enum ctn_sched_action_type)type;
			describe(&then, was, sizeof(was));
		}
		if (i < count)
			describe(&r->actions[i], is, sizeof(is));
		if (strcmp(was, is) != 0)
			differs(r, was, is);
		else
			note_action(r, &r->actions[i]);
	}
	r->result->actions += i;
	return 0;
}

static int add_error(struct replay *r, unsigned int kind, double predicted_s, double actual_s)
{
	struct ctn_replay_errors *e = &r->result->errors[kind];
	double off_s = predicted_s > actual_s ? predicted_s - actual_s : actual_s - predicted_s;

	if (e->count == e->cap) {
		size_t cap = e->cap ? 2 * e->cap : 1024;
		double *more = reallocarray(e->relative, cap, sizeof(*more));

		if (!more)
			return ctn_err_set(r->err, -ENOMEM, "out of memory");
		e->relative = more;
		e->cap = cap;
	}
	e->relative[e->count++] = off_s / CTN_MAX(actual_s, 1e-9);
	e->predicted_s += predicted_s;
	e->actual_s += actual_s;
	e->off_s += off_s;
	return 0;
}

static int take_decision(struct replay *r, json_t *line)
{
	json_t *predicted = json_object_get(line, "predicted_s");
	uint64_t ns = 0, max = r->max_actions;
	double predicted_s, actual_s;
	struct ctn_sched_event ev;
	int rc;

	if (!r->sched || !r->models)
		return bad(r, "a config and models first");
	rc = get_u64(r, line, "ns", INT64_MAX, &ns);
	if (rc == 0)
		rc = get_u64(r, line, "max", r->max_actions, &max);
	if (rc == 0 && (ns < r->now_ns || max < 16))
		rc = bad(r, "a time that is not before the last one, and room for 16 actions");
	if (rc == 0)
		rc = read_event(r, json_object_get(line, "event"), &ev);
	if (rc == 0)
		rc = check_event(r, &ev);
	if (rc)
		return rc;
	r->now_ns = ns;
	if (ev.type == CTN_EV_STAGE_DONE)
		r->known[ev.model].staging = false;
	r->result->decisions++;
	rc = compare(r, json_object_get(line, "actions"),
		     ctn_sched_event(r->sched, ns, &ev, r->actions, (uint32_t)max));
	if (rc || !predicted || r->result->differ_at)
		return rc;
	predicted_s = json_number_value(predicted);
	actual_s = json_number_value(json_object_get(line, "actual_s"));
	if (!(predicted_s >= 0 && predicted_s <= MAX_SECONDS && actual_s >= 0 &&
	      actual_s <= MAX_SECONDS))
		return bad(r, "seconds that were predicted, and that it took");
	return add_error(r, ev.type == CTN_EV_STEP_DONE ? CTN_REPLAY_STEPS : CTN_REPLAY_LOADS,
			 predicted_s, actual_s);
}

static int take_line(struct replay *r, const char *text, size_t len)
{
	json_t *line = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL), *inner;
	int rc;

	if (!json_is_object(line))
		rc = bad(r, "a JSON object");
	else if ((inner = json_object_get(line, "config")))
		rc = take_config(r, inner);
	else if ((inner = json_object_get(line, "model")))
		rc = take_model(r, inner);
	else if ((inner = json_object_get(line, "share")))
		rc = take_share(r, inner);
	else if (json_object_get(line, "end"))
		rc = 0;
	else
		rc = take_decision(r, line);
	if (rc == 0)
		r->result->whole = json_object_get(line, "end") != NULL;
	json_decref(line);
	return rc;
}

int ctn_sim_replay(const char *path, struct ctn_replay *result, struct ctn_err *err)
{
	struct replay r = {.result = result, .err = err};
	FILE *f = fopen(path, "re");
	struct ctn_replay_lines *lines = calloc(1, sizeof(*lines));
	struct ctn_buf line = {0};
	int rc = f ? 0 : ctn_err_set(err, -errno, "%s: %s", path, strerror(errno));

	*result = (struct ctn_replay){0};
	if (rc == 0 && !lines)
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
	while (rc == 0 && !result->differ_at) {
		r.line++;
		rc = ctn_replay_line(lines, f, &line);
		if (rc < 0)
			rc = bad(&r, "a line of less than 64 MiB");
		/* A daemon that was killed leaves half a line. */
		if (rc <= 0 || line.data[line.len - 1] != '\n')
			break;
		rc = take_line(&r, line.data, line.len);
	}
	rc = CTN_MIN(rc, 0);
	if (rc == 0 && ferror(f))
		rc = ctn_err_set(err, -EIO, "cannot be read to its end");
	if (rc == 0 && !r.sched)
		rc = bad(&r, "the config of a decision log");
	if (rc && f)
		ctn_err_prefix(err, "%s", path);
	result->models = r.models;
	if (f)
		fclose(f);
	ctn_buf_free(&line);
	free(lines);
	ctn_sched_free(r.sched);
	free(r.known);
	free(r.requests);
	free(r.kv_most);
	free(r.actions);
	free(r.evictable);
	return rc;
}

void ctn_sim_replay_free(struct ctn_replay *r)
{
	for (int i = 0; i < CTN_REPLAY_KINDS; i++)
		free(r->errors[i].relative);
}
