// SPDX-License-Identifier: MIT
#include "sim_replay.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const kinds[CTN_REPLAY_KINDS] = {"load", "step"};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double ctn_replay_percentile(struct ctn_replay_errors *e, double share)
{
	if (!e->count)
		return 0;
	qsort(e->relative, e->count, sizeof(*e->relative), by_value);
	return e->relative[(size_t)ceil(share * (double)e->count) - 1];
}

static json_t *errors_json(struct ctn_replay_errors *e)
{
	double n = (double)CTN_MAX(e->count, 1ull);

	return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f}", "count", (json_int_t)e->count,
			 "predicted_mean_s", e->predicted_s / n, "actual_mean_s", e->actual_s / n,
			 "error_mean_s", e->off_s / n, "error_p50", ctn_replay_percentile(e, 0.5),
			 "error_p95", ctn_replay_percentile(e, 0.95));
}

static int print_json(struct ctn_replay *r, struct ctn_err *err)
{
	json_t *root = json_pack("{s:s, s:I, s:I, s:I, s:b, s:b, s:o, s:o}", "policy", r->policy,
				 "models", (json_int_t)r->models, "decisions",
				 (json_int_t)r->decisions, "actions", (json_int_t)r->actions,
				 "whole", r->whole, "same", !r->differ_at, kinds[0],
				 errors_json(&r->errors[0]), kinds[1], errors_json(&r->errors[1]));
	char *text = NULL;

	if (root && r->differ_at &&
	    (json_object_set_new(root, "differ_at_line", json_integer((json_int_t)r->differ_at)) ||
	     json_object_set_new(root, "differs", json_string(r->differs)))) {
		json_decref(root);
		root = NULL;
	}
	if (root)
		text = json_dumps(root, JSON_INDENT(2));
	json_decref(root);
	if (!text)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	puts(text);
	free(text);
	return 0;
}

int ctn_sim_replay_print(struct ctn_replay *r, bool json, struct ctn_err *err)
{
	if (json)
		return print_json(r, err);
	printf("%llu decisions of %s for %llu models, %llu actions%s\n",
	       (unsigned long long)r->decisions, r->policy, (unsigned long long)r->models,
	       (unsigned long long)r->actions,
	       r->whole ? "" : " (the log has no end: its daemon was killed, or could not write)");
	if (r->differ_at)
		printf("line %llu is decided otherwise: %s\n", (unsigned long long)r->differ_at,
		       r->differs);
	else
		printf("all of them are decided the same\n");
	printf("%-6s %10s %14s %14s %14s %10s %10s\n", "", "count", "predicted ms", "actual ms",
	       "error ms", "p50", "p95");
	for (int i = 0; i < CTN_REPLAY_KINDS; i++) {
		struct ctn_replay_errors *e = &r->errors[i];
		double n = (double)CTN_MAX(e->count, 1ull);

		printf("%-6s %10llu %14.3f %14.3f %14.3f %9.1f%% %9.1f%%\n", kinds[i],
		       (unsigned long long)e->count, 1e3 * e->predicted_s / n,
		       1e3 * e->actual_s / n, 1e3 * e->off_s / n,
		       100 * ctn_replay_percentile(e, 0.5), 100 * ctn_replay_percentile(e, 0.95));
	}
	return 0;
}
