// SPDX-License-Identifier: MIT
/* What a run comes to; and which runs there are. */
#include "sim.h"
#include "sched/sched.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- policies --------------------------------------------------------------------------- */

int ctn_sim_run(const struct ctn_sim_setup *setup, const char *policy, struct ctn_sim_result *r,
		struct ctn_err *err)
{
	int rc;

	*r = (struct ctn_sim_result){.policy = policy, .count = setup->workload->count};
	r->latency_s = calloc(r->count, sizeof(*r->latency_s));
	if (!r->latency_s)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	if (strcmp(policy, "computron2023-c") == 0 || strcmp(policy, "computron2023-s") == 0)
		rc = ctn_sim_run_2023(setup, policy[strlen(policy) - 1] == 's', r, err);
	else if (strcmp(policy, "resident") == 0)
		rc = ctn_sim_run_sched(setup, "lru", true, r, err);
	else
		rc = ctn_sim_run_sched(setup, policy, false, r, err);
	if (rc)
		ctn_sim_result_free(r);
	return rc;
}

void ctn_sim_result_free(struct ctn_sim_result *r)
{
	free(r->latency_s);
	r->latency_s = NULL;
}

/* ---- figures ---------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double percentile(const struct ctn_sim_figures *f, double share)
{
	double rank = ceil(share * (double)f->served);

	return f->served ? f->sorted_s[(size_t)CTN_MAX(rank, 1) - 1] : 0;
}

/* Jain's index of the mean slowdowns of the models that were served at all. */
static int fairness(const struct ctn_sim_setup *setup, const struct ctn_sim_result *r,
		    struct ctn_sim_figures *f, struct ctn_err *err)
{
	const struct ctn_sim_workload *w = setup->workload;
	double *sum = calloc(w->models, sizeof(*sum)), all = 0, squares = 0;
	uint32_t *served = calloc(w->models, sizeof(*served)), n = 0;
	int rc = sum && served ? 0 : ctn_err_set(err, -ENOMEM, "out of memory");

	for (size_t i = 0; i < r->count && !rc; i++) {
		if (r->latency_s[i] < 0)
			continue;
		sum[w->arrivals[i].model] += r->latency_s[i] / setup->cluster.batch_s;
		served[w->arrivals[i].model]++;
	}
	for (uint32_t m = 0; m < w->models && !rc; m++) {
		double mean = served[m] ? sum[m] / served[m] : 0;

		n += served[m] != 0;
		all += mean;
		squares += mean * mean;
	}
	f->fairness = squares > 0 ? all * all / (n * squares) : 1;
	free(sum);
	free(served);
	return rc;
}

int ctn_sim_figures(const struct ctn_sim_setup *setup, const struct ctn_sim_result *r,
		    struct ctn_sim_figures *f, struct ctn_err *err)
{
	double sum = 0;

	*f = (struct ctn_sim_figures){0};
	f->sorted_s = calloc(CTN_MAX(r->count, (size_t)1), sizeof(*f->sorted_s));
	if (!f->sorted_s)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < r->count; i++) {
		if (r->latency_s[i] < 0) {
			f->refused++;
			continue;
		}
		sum += r->latency_s[i];
		f->sorted_s[f->served++] = r->latency_s[i];
	}
	qsort(f->sorted_s, f->served, sizeof(*f->sorted_s), by_value);
	f->mean_s = f->served ? sum / (double)f->served : 0;
	f->p50_s = percentile(f, 0.5);
	f->p95_s = percentile(f, 0.95);
	f->p99_s = percentile(f, 0.99);
	f->max_s = percentile(f, 1);
	f->ttft_mean_s = r->ttft_s > 0 ? r->ttft_s / (double)CTN_MAX(f->served, 1ull) : f->mean_s;
	f->mean_load_s = r->load_s / (double)CTN_MAX(r->count, (size_t)1);
	for (size_t i = 0; i < r->count; i++) {
		uint32_t m = setup->workload->arrivals[i].model;

		if (m < CTN_SIM_MAX_NAMED)
			f->model_max_s[m] = CTN_MAX(f->model_max_s[m], r->latency_s[i]);
	}
	f->models = CTN_MIN(setup->workload->models, (uint32_t)CTN_SIM_MAX_NAMED);
	return fairness(setup, r, f, err);
}

void ctn_sim_figures_free(struct ctn_sim_figures *f)
{
	free(f->sorted_s);
	f->sorted_s = NULL;
}
