// SPDX-License-Identifier: MIT
/* GET /metrics: the engine's snapshot in Prometheus' text format. The names are pinned. */
#include "server/http.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void head(struct ctn_buf *out, const char *name, const char *type, const char *help)
{
	ctn_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label's value: backslash, quote and line feed are the ones to escape. */
static void label_value(struct ctn_buf *out, const char *value)
{
	for (const char *p = value; *p; p++) {
		if (*p == '\n')
			ctn_buf_puts(out, "\\n");
		else if (*p == '"' || *p == '\\')
			ctn_buf_append(out, (char[]){'\\', *p}, 2);
		else
			ctn_buf_append(out, p, 1);
	}
}

/* `labels` are names and values by turns, up to NULL. */
static void labels(struct ctn_buf *out, const char *const *pairs)
{
	const char *sep = "{";

	for (; *pairs; pairs += 2, sep = ",") {
		ctn_buf_printf(out, "%s%s=\"", sep, pairs[0]);
		label_value(out, pairs[1]);
		ctn_buf_puts(out, "\"");
	}
	if (*sep == ',')
		ctn_buf_puts(out, "}");
}

#define LABELS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void count(struct ctn_buf *out, const char *name, const char *const *pairs, uint64_t v)
{
	ctn_buf_puts(out, name);
	labels(out, pairs);
	ctn_buf_printf(out, " %llu\n", (unsigned long long)v);
}

static void real(struct ctn_buf *out, const char *name, const char *const *pairs, double v)
{
	ctn_buf_puts(out, name);
	labels(out, pairs);
	ctn_buf_printf(out, " %.9g\n", v);
}

/* LOADING frames of the pool are staging, or draining after a cancel. */
static uint64_t staging_bytes(const struct ctn_snapshot *s)
{
	uint64_t loading = s->pool.loading_bytes;

	return loading - CTN_MIN(loading, s->host_draining_bytes);
}

static void write_bytes(struct ctn_buf *out, const struct ctn_snapshot *s)
{
	static const char name[] = "computron_bytes";

	head(out, name, "gauge", "Bytes of a tier by state; the states of a device add up.");
	count(out, name, LABELS("tier", "host", "device", "", "state", "free"), s->pool.free_bytes);
	count(out, name, LABELS("tier", "host", "device", "", "state", "staging"),
	      staging_bytes(s));
	count(out, name, LABELS("tier", "host", "device", "", "state", "clean"),
	      s->pool.clean_bytes);
	count(out, name, LABELS("tier", "host", "device", "", "state", "draining"),
	      s->host_draining_bytes);
	count(out, name, LABELS("tier", "host", "device", "", "state", "held"), s->pool.held_bytes);
	for (uint32_t i = 0; i < s->device_count; i++) {
		const struct ctn_device_snapshot *d = &s->devices[i];
		const struct {
			const char *state;
			uint64_t bytes;
		} states[] = {
			{"free", d->free},
			{"loading", d->loading},
			{"resident", d->resident},
			{"draining", d->draining},
			{"kv", d->kv},
			{"workspace", d->workspace},
			{"communication", d->comm},
		};

		for (size_t k = 0; k < CTN_ARRAY_LEN(states); k++)
			count(out, name,
			      LABELS("tier", "device", "device", d->props.id, "state",
				     states[k].state),
			      states[k].bytes);
	}
}

static void write_frames(struct ctn_buf *out, const struct ctn_snapshot *s)
{
	static const char name[] = "computron_frames";
	uint64_t loading = 0, resident = 0, draining = 0;

	for (uint32_t i = 0; i < s->device_count; i++) {
		loading += s->devices[i].frames_loading;
		resident += s->devices[i].frames_resident;
		draining += s->devices[i].frames_draining;
	}
	head(out, name, "gauge", "Frames of a tier by state.");
	count(out, name, LABELS("tier", "host", "state", "staging"), s->host_staging_frames);
	count(out, name, LABELS("tier", "host", "state", "clean"), s->host_clean_frames);
	count(out, name, LABELS("tier", "host", "state", "draining"), s->host_draining_frames);
	count(out, name, LABELS("tier", "device", "state", "loading"), loading);
	count(out, name, LABELS("tier", "device", "state", "resident"), resident);
	count(out, name, LABELS("tier", "device", "state", "draining"), draining);
}

static void write_moves(struct ctn_buf *out, const struct ctn_snapshot *s)
{
	head(out, "computron_moves_total", "counter", "Moves that have ended.");
	for (int i = 0; i < CTN_MOVES; i++) {
		for (int k = 0; k < CTN_MOVE_OUTCOMES; k++)
			count(out, "computron_moves_total",
			      LABELS("move", ctn_move_name((enum ctn_move)i), "outcome",
				     ctn_move_outcome_name((enum ctn_move_outcome)k)),
			      s->moves[i].outcomes[k]);
	}
	head(out, "computron_move_bytes_total", "counter", "Bytes that were moved or dropped.");
	for (int i = 0; i < CTN_MOVES; i++)
		count(out, "computron_move_bytes_total",
		      LABELS("move", ctn_move_name((enum ctn_move)i)), s->moves[i].bytes);
	head(out, "computron_move_seconds_total", "counter", "Seconds that moves took.");
	for (int i = 0; i < CTN_MOVES; i++)
		real(out, "computron_move_seconds_total",
		     LABELS("move", ctn_move_name((enum ctn_move)i)),
		     (double)s->moves[i].nanoseconds / 1e9);
}

static void write_histogram(struct ctn_buf *out, const char *name, const char *label,
			    const char *value, const struct ctn_histogram *h)
{
	char series[64], bound[32];
	uint64_t sum = 0;

	snprintf(series, sizeof(series), "%s_bucket", name);
	for (int i = 0; i < CTN_HISTOGRAM_BUCKETS; i++) {
		sum += h->buckets[i];
		if (i + 1 < CTN_HISTOGRAM_BUCKETS)
			snprintf(bound, sizeof(bound), "%.9g", ctn_histogram_bounds[i]);
		else
			snprintf(bound, sizeof(bound), "+Inf");
		count(out, series, LABELS(label, value, "le", bound), sum);
	}
	snprintf(series, sizeof(series), "%s_sum", name);
	real(out, series, LABELS(label, value), h->sum_s);
	snprintf(series, sizeof(series), "%s_count", name);
	count(out, series, LABELS(label, value), h->count);
}

static void write_models(struct ctn_buf *out, const struct ctn_snapshot *s)
{
	head(out, "computron_requests_total", "counter", "Requests that have ended.");
	for (uint32_t i = 0; i < s->model_count; i++) {
		for (int k = 0; k < CTN_OUTCOMES; k++)
			count(out, "computron_requests_total",
			      LABELS("model", s->models[i].info.name, "outcome",
				     ctn_outcome_name((enum ctn_outcome)k)),
			      s->models[i].outcomes[k]);
	}
	head(out, "computron_queue_depth", "gauge", "Requests that wait.");
	for (uint32_t i = 0; i < s->model_count; i++)
		count(out, "computron_queue_depth", LABELS("model", s->models[i].info.name),
		      s->models[i].queued);
	head(out, "computron_ttft_seconds", "histogram", "Submitted to first token.");
	for (uint32_t i = 0; i < s->model_count; i++)
		write_histogram(out, "computron_ttft_seconds", "model", s->models[i].info.name,
				&s->models[i].ttft);
	head(out, "computron_switch_seconds", "histogram",
	     "From the decision to load a model to its last load event.");
	for (uint32_t i = 0; i < s->model_count; i++)
		write_histogram(out, "computron_switch_seconds", "model", s->models[i].info.name,
				&s->models[i].switch_time);
}

static void write_phases(struct ctn_buf *out, const struct ctn_snapshot *s)
{
	head(out, "computron_request_phase_seconds", "histogram",
	     "What the time of requests that have ended went into.");
	for (int i = 0; i < CTN_PHASES; i++)
		write_histogram(out, "computron_request_phase_seconds", "phase",
				ctn_phase_name((enum ctn_phase)i), &s->phases[i]);
	head(out, "computron_pauses_total", "counter",
	     "Drops of models with requests that had begun.");
	count(out, "computron_pauses_total", (const char *const[]){NULL}, s->pauses);
	head(out, "computron_staged_ahead_bytes_total", "counter",
	     "Bytes that were staged before a request asked for their model.");
	count(out, "computron_staged_ahead_bytes_total", (const char *const[]){NULL},
	      s->staged_ahead_bytes);
	head(out, "computron_loads_ahead_total", "counter",
	     "What became of loads that began before a request asked for them.");
	for (int i = 0; i < CTN_AHEAD_OUTCOMES; i++)
		count(out, "computron_loads_ahead_total",
		      LABELS("outcome", ctn_ahead_name((enum ctn_ahead)i)), s->ahead[i]);
	head(out, "computron_preemptions_total", "counter",
	     "Requests that gave up their KV and began anew.");
	count(out, "computron_preemptions_total", (const char *const[]){NULL}, s->preemptions);
	head(out, "computron_recomputed_tokens_total", "counter",
	     "Tokens of unfinished requests whose KV was given up, to be computed again.");
	count(out, "computron_recomputed_tokens_total", (const char *const[]){NULL},
	      s->recomputed_tokens);
}

static void write_predictions(struct ctn_buf *out, const struct ctn_snapshot *s)
{
	static const char name[] = "computron_prediction_seconds_total";

	head(out, name, "counter", "Seconds of what the scheduler foretold, and as they came.");
	for (int i = 0; i < CTN_PREDICTED; i++) {
		const char *what = ctn_predicted_name((enum ctn_predicted)i);

		real(out, name, LABELS("what", what, "seconds", "predicted"),
		     s->predictions[i].predicted_s);
		real(out, name, LABELS("what", what, "seconds", "actual"),
		     s->predictions[i].actual_s);
	}
	head(out, "computron_prediction_error_seconds", "histogram",
	     "How far off these were, either way.");
	for (int i = 0; i < CTN_PREDICTED; i++)
		write_histogram(out, "computron_prediction_error_seconds", "what",
				ctn_predicted_name((enum ctn_predicted)i),
				&s->predictions[i].error);
	head(out, "computron_decision_log_lines_total", "counter",
	     "Lines that the log of decisions was given.");
	count(out, "computron_decision_log_lines_total", (const char *const[]){NULL},
	      s->decision_lines);
	head(out, "computron_decision_log_failed", "gauge",
	     "1: the log of decisions could not be written, and has ended.");
	count(out, "computron_decision_log_failed", (const char *const[]){NULL},
	      s->decisions_failed);
}

/* What a kmod pool gives and takes. */
static void write_pool(struct ctn_buf *out, const struct ctn_snapshot *s)
{
	const struct {
		const char *state;
		uint64_t frames;
	} states[] = {
		{"waiting", s->adoption.waiting},
		{"verified", s->adoption.verified},
		{"spoiled", s->adoption.spoiled},
		{"lost", s->adoption.lost},
	};

	head(out, "computron_pool_losses_total", "counter",
	     "Frames that the kernel took when memory was short.");
	count(out, "computron_pool_losses_total", (const char *const[]){NULL}, s->pool.losses);
	head(out, "computron_adopted_frames", "gauge",
	     "Frames that the pool had at the start, by what their digests said.");
	for (size_t i = 0; i < CTN_ARRAY_LEN(states); i++)
		count(out, "computron_adopted_frames", LABELS("state", states[i].state),
		      states[i].frames);
}

static void write_rest(struct ctn_buf *out, const struct ctn_snapshot *s)
{
	uint64_t d2h = 0;

	for (uint32_t i = 0; i < s->device_count; i++)
		d2h += s->devices[i].stats.d2h_bytes;
	head(out, "computron_d2h_bytes_total", "counter", "Bytes that left a device.");
	count(out, "computron_d2h_bytes_total", (const char *const[]){NULL}, d2h);
	head(out, "computron_pool_info", "gauge", "The provider of the pool.");
	count(out, "computron_pool_info", LABELS("provider", s->pool.provider), 1);
	head(out, "computron_pool_huge_ratio", "gauge",
	     "Share of the pool's resident bytes in huge pages, by the kernel's count.");
	real(out, "computron_pool_huge_ratio", (const char *const[]){NULL},
	     s->pool.resident_bytes ? (double)s->pool.huge_bytes / (double)s->pool.resident_bytes
				    : 0);
	head(out, "computron_stage_method", "gauge", "1: parts were staged by this method.");
	for (int i = 0; i < CTN_STAGE_METHODS; i++)
		count(out, "computron_stage_method",
		      LABELS("method", ctn_stage_method_name((enum ctn_stage_method)i)),
		      s->stage.jobs[i] != 0);
}

enum MHD_Result ctn_handle_metrics(struct ctn_exchange *x)
{
	struct ctn_api_error e = {0};
	struct ctn_buf out = {0};
	struct ctn_snapshot snap;
	int rc;

	rc = ctn_engine_snapshot(x->server->engine, &snap);
	if (rc) {
		ctn_api_fail(&e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, NULL, "engine: %s",
			     strerror(-rc));
		return ctn_reply_error(x, &e);
	}
	write_bytes(&out, &snap);
	write_frames(&out, &snap);
	write_moves(&out, &snap);
	write_models(&out, &snap);
	write_phases(&out, &snap);
	write_predictions(&out, &snap);
	write_pool(&out, &snap);
	write_rest(&out, &snap);
	ctn_snapshot_free(&snap);
	return ctn_reply_text(x, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &out);
}
