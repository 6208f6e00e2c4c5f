// SPDX-License-Identifier: MIT
/* GET /status: the engine's snapshot as JSON, for the computron command. */
#include "server/http.h"

#include <string.h>

#define U(v) ((json_int_t)(v))

/* Strings of the outside world need not be UTF-8; such a one is told as null. */
static json_t *string_or_null(const char *s)
{
	json_t *json = s ? json_string(s) : NULL;

	return json ? json : json_null();
}

static json_t *outcomes_json(const uint64_t *outcomes)
{
	json_t *json = json_object();

	for (int i = 0; i < CTN_OUTCOMES && json; i++) {
		if (json_object_set_new(json, ctn_outcome_name((enum ctn_outcome)i),
					json_integer(U(outcomes[i])))) {
			json_decref(json);
			return NULL;
		}
	}
	return json;
}

static json_t *model_json(const struct ctn_model_snapshot *m, const struct ctn_text_model *text)
{
	const struct ctn_model_info *info = &m->info;
	const char *no_text = info->reason || text->tok ? NULL : text->why.msg;

	return json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:i, s:i, s:b, s:i, s:i,"
			 " s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
			 "name", info->name, "dir", string_or_null(info->dir), "state", m->state,
			 "reason", string_or_null(info->reason), "family",
			 string_or_null(info->family), "no_tokenizer", string_or_null(no_text),
			 "tp", (int)info->tp, "pp", (int)info->pp, "pinned", m->pinned, "queued",
			 (int)m->queued, "running", (int)m->running, "checkpoint_bytes",
			 U(m->checkpoint_bytes), "host_bytes", U(m->host_bytes), "host_total",
			 U(m->host_total), "device_bytes", U(m->device_bytes), "device_total",
			 U(m->device_total), "kv_bytes", U(m->kv_bytes), "bytes_staged",
			 U(m->bytes_staged), "bytes_loaded", U(m->bytes_loaded), "switches",
			 U(m->switches), "requests", outcomes_json(m->outcomes));
}

static json_t *device_json(const struct ctn_device_snapshot *d)
{
	return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
			 "id", d->props.id, "backend", d->props.backend, "total", U(d->total),
			 "free", U(d->free), "loading", U(d->loading), "resident", U(d->resident),
			 "draining", U(d->draining), "kv", U(d->kv), "workspace", U(d->workspace),
			 "comm", U(d->comm), "link_rate", U(d->props.link_rate), "load_bytes",
			 U(d->stats.load_bytes), "load_ns", U(d->stats.load_ns), "d2h_bytes",
			 U(d->stats.d2h_bytes));
}

static json_t *pool_json(const struct ctn_snapshot *s)
{
	const struct ctn_pool_stats *p = &s->pool;

	return json_pack("{s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
			 "s:I, s:I, s:I, s:I}",
			 "provider", p->provider, "name", string_or_null(p->name), "why",
			 string_or_null(p->why[0] ? p->why : NULL), "total_bytes",
			 U(p->total_bytes), "free_bytes", U(p->free_bytes), "loading_bytes",
			 U(p->loading_bytes), "clean_bytes", U(p->clean_bytes), "leased_bytes",
			 U(p->leased_bytes), "resident_bytes", U(p->resident_bytes), "huge_bytes",
			 U(p->huge_bytes), "frames", U(p->frames), "evictions", U(p->evictions),
			 "refused_evictions", U(p->refused_evictions), "losses", U(p->losses),
			 "held_bytes", U(p->held_bytes), "module_bytes", U(p->module_bytes),
			 "module_huge_bytes", U(p->module_huge_bytes), "module_pinned_bytes",
			 U(p->module_pinned_bytes));
}

static json_t *adopted_json(const struct ctn_snapshot *s)
{
	const struct ctn_pager_adoption *a = &s->adoption;

	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "frames", U(a->frames), "bytes",
			 U(a->bytes), "unfit", U(a->unfit), "waiting", U(a->waiting), "verified",
			 U(a->verified), "spoiled", U(a->spoiled), "lost", U(a->lost));
}

static json_t *stage_json(const struct ctn_snapshot *s)
{
	json_t *methods = json_object();

	for (int i = 0; i < CTN_STAGE_METHODS && methods; i++) {
		const char *name = ctn_stage_method_name((enum ctn_stage_method)i);
		json_t *one = json_pack("{s:I, s:I}", "jobs", U(s->stage.jobs[i]), "bytes",
					U(s->stage.bytes[i]));

		if (json_object_set_new(methods, name, one)) {
			json_decref(methods);
			return NULL;
		}
	}
	return json_pack("{s:o, s:o}", "methods", methods, "why",
			 string_or_null(s->stage.why[0] ? s->stage.why : NULL));
}

static json_t *moves_json(const struct ctn_snapshot *s)
{
	json_t *moves = json_object();

	for (int i = 0; i < CTN_MOVES && moves; i++) {
		const struct ctn_move_counts *m = &s->moves[i];
		json_t *one =
			json_pack("{s:I, s:I, s:I, s:I, s:f}", "ok", U(m->outcomes[CTN_MOVE_OK]),
				  "failed", U(m->outcomes[CTN_MOVE_FAILED]), "cancelled",
				  U(m->outcomes[CTN_MOVE_CANCELLED]), "bytes", U(m->bytes),
				  "seconds", (double)m->nanoseconds / 1e9);

		if (json_object_set_new(moves, ctn_move_name((enum ctn_move)i), one)) {
			json_decref(moves);
			return NULL;
		}
	}
	return moves;
}

/* NULL when an element could not be made. */
static json_t *models_json(const struct ctn_server *server, const struct ctn_snapshot *s)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < s->model_count; i++) {
		if (json_array_append_new(list, model_json(&s->models[i], &server->models[i]))) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static json_t *devices_json(const struct ctn_snapshot *s)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < s->device_count; i++) {
		if (json_array_append_new(list, device_json(&s->devices[i]))) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

enum MHD_Result ctn_handle_status(struct ctn_exchange *x)
{
	struct ctn_api_error e = {0};
	struct ctn_snapshot snap;
	json_t *json;
	int rc;

	rc = ctn_engine_snapshot(x->server->engine, &snap);
	if (rc) {
		ctn_api_fail(&e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, NULL, "engine: %s",
			     strerror(-rc));
		return ctn_reply_error(x, &e);
	}
	json = json_pack("{s:s, s:f, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "url", x->server->url,
			 "uptime_s", snap.uptime_s, "ledger_errors", U(snap.ledger_errors),
			 "models", models_json(x->server, &snap), "devices", devices_json(&snap),
			 "pool", pool_json(&snap), "adopted", adopted_json(&snap), "stage",
			 stage_json(&snap), "moves", moves_json(&snap));
	ctn_snapshot_free(&snap);
	return ctn_reply_json(x, MHD_HTTP_OK, json);
}
