// SPDX-License-Identifier: MIT
/* The figures of `computron bench ttft`. */
#include "bench_ttft.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A measurement against itself: more than this, and nothing can be concluded. */
#define VARIATION_MAX 0.05

static const char *const names[CTN_TTFT_STARTS][2] = {
	{"cold", "cold_no_overlap"},
	{"warm", "warm_no_overlap"},
	{"partial", "partial_no_overlap"},
};

/* One case: with the overlap or without. */
struct figures {
	double ttft_s, ttft_p95_s, bound_s;
	double load_s, compute_s; /* the last layer's arrival; all layers' computation */
	double variation;         /* of that arrival, between even and odd rounds */
};

static double *by_layer(const struct ctn_ttft_samples *s)
{
	return calloc((size_t)s->rounds * s->layers, sizeof(double));
}

int ctn_ttft_samples_init(struct ctn_ttft_samples *s, uint32_t rounds, uint32_t layers)
{
	bool all = true;

	*s = (struct ctn_ttft_samples){.rounds = rounds, .layers = layers};
	s->compute = by_layer(s);
	all = s->compute != NULL;
	for (int i = 0; i < CTN_TTFT_STARTS; i++) {
		struct ctn_ttft_case *c = &s->cases[i];

		c->loaded = by_layer(s);
		c->overlap = calloc(rounds, sizeof(double));
		c->serial = calloc(rounds, sizeof(double));
		all = all && c->loaded && c->overlap && c->serial;
	}
	if (all)
		return 0;
	ctn_ttft_samples_free(s);
	return -ENOMEM;
}

void ctn_ttft_samples_free(struct ctn_ttft_samples *s)
{
	free(s->compute);
	for (int i = 0; i < CTN_TTFT_STARTS; i++) {
		free(s->cases[i].loaded);
		free(s->cases[i].overlap);
		free(s->cases[i].serial);
	}
	*s = (struct ctn_ttft_samples){0};
}

double ctn_ttft_bound(const double *loaded, const double *compute, uint32_t layers)
{
	double f = 0;

	for (uint32_t i = 0; i < layers; i++)
		f = fmax(loaded[i], f) + compute[i];
	return f;
}

/* ---- figures ---------------------------------------------------------------------------- */

/* Before the samples are sorted. `scratch` has room for all rounds. */
static double variation(const struct ctn_ttft_samples *s, const double *loaded, double *scratch)
{
	const double *last = &loaded[(s->layers - 1) * s->rounds];
	double medians[2];

	for (uint32_t odd = 0; odd < 2; odd++) {
		uint32_t n = 0;

		for (uint32_t i = odd; i < s->rounds; i += 2)
			scratch[n++] = last[i];
		medians[odd] = ctn_bench_median(scratch, n);
	}
	return fabs(medians[0] - medians[1]) / fmin(medians[0], medians[1]);
}

static void layer_medians(const struct ctn_ttft_samples *s, double *samples, double *medians)
{
	for (uint32_t i = 0; i < s->layers; i++)
		medians[i] = ctn_bench_median(&samples[i * s->rounds], s->rounds);
}

static double largest(const double *v, uint32_t n)
{
	double most = 0;

	for (uint32_t i = 0; i < n; i++)
		most = fmax(most, v[i]);
	return most;
}

/* [start][0]: with the overlap. `compute` are medians. */
static int compute_figures(struct ctn_ttft_samples *s, struct figures f[CTN_TTFT_STARTS][2])
{
	uint32_t room = CTN_MAX(s->layers, s->rounds);
	double *compute = calloc(room, sizeof(double)), *loaded = calloc(room, sizeof(double));
	double sum = 0;

	if (!compute || !loaded) {
		free(compute);
		free(loaded);
		return -ENOMEM;
	}
	layer_medians(s, s->compute, compute);
	for (uint32_t i = 0; i < s->layers; i++)
		sum += compute[i];
	for (int start = 0; start < CTN_TTFT_STARTS; start++) {
		struct ctn_ttft_case *c = &s->cases[start];
		struct figures *with = &f[start][0], *without = &f[start][1];

		with->variation = variation(s, c->loaded, loaded);
		layer_medians(s, c->loaded, loaded);
		with->load_s = largest(loaded, s->layers);
		with->compute_s = sum;
		*without = *with;
		with->bound_s = ctn_ttft_bound(loaded, compute, s->layers);
		without->bound_s = with->load_s + sum;
		with->ttft_s = ctn_bench_median(c->overlap, s->rounds);
		with->ttft_p95_s = ctn_bench_p95(c->overlap, s->rounds);
		without->ttft_s = ctn_bench_median(c->serial, s->rounds);
		without->ttft_p95_s = ctn_bench_p95(c->serial, s->rounds);
	}
	free(compute);
	free(loaded);
	return 0;
}

static const char *verdict(const struct figures *f)
{
	return f->variation > VARIATION_MAX ? "inconclusive" : "conclusive";
}

/* ---- telling ---------------------------------------------------------------------------- */

static int print_json(struct figures f[CTN_TTFT_STARTS][2])
{
	json_t *root = json_object();
	int rc = 0;

	for (int start = 0; start < CTN_TTFT_STARTS; start++) {
		for (int k = 0; k < 2; k++) {
			const struct figures *c = &f[start][k];

			rc |= json_object_set_new(
				root, names[start][k],
				json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:s}", "ttft_s",
					  c->ttft_s, "bound_s", c->bound_s, "ratio",
					  c->ttft_s / c->bound_s, "ttft_p95_s", c->ttft_p95_s,
					  "load_s", c->load_s, "compute_s", c->compute_s, "verdict",
					  verdict(c)));
		}
	}
	if (rc == 0)
		rc = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
	json_decref(root);
	if (rc)
		return -ENOMEM;
	putchar('\n');
	return 0;
}

static void print_table(const struct ctn_bench_rig *rig, const struct ctn_ttft_samples *s,
			struct figures f[CTN_TTFT_STARTS][2])
{
	const struct ctn_bench_side *side = &rig->sides[0];
	uint64_t bytes = 0;
	char size[32];

	for (uint32_t r = 0; r < side->plan->rank_count; r++)
		bytes += side->bytes[r];
	printf("the first token of a model of %s (%s), tp %u, pp %u, %u rounds\n\n",
	       ctn_format_size(bytes, size), ctn_family_name(side->plan->ckpt->family),
	       side->plan->tp, side->plan->pp, s->rounds);
	printf("%-20s %9s %9s %6s %9s %9s %9s\n", "", "ttft_s", "bound_s", "ratio", "p95_s",
	       "load_s", "compute_s");
	for (int start = 0; start < CTN_TTFT_STARTS; start++) {
		for (int k = 0; k < 2; k++) {
			const struct figures *c = &f[start][k];

			printf("%-20s %9.6f %9.6f %6.3f %9.6f %9.6f %9.6f  %s\n", names[start][k],
			       c->ttft_s, c->bound_s, c->ttft_s / c->bound_s, c->ttft_p95_s,
			       c->load_s, c->compute_s, verdict(c));
		}
	}
	printf("\nbound_s: f(i) = max(loaded(i), f(i - 1)) + c(i) of what was measured apart; "
	       "without the overlap\nload_s + compute_s. verdict: of the load against itself.\n");
}

int ctn_ttft_report(const struct ctn_bench_rig *rig, struct ctn_ttft_samples *s, bool json,
		    struct ctn_err *err)
{
	struct figures f[CTN_TTFT_STARTS][2];
	int rc = compute_figures(s, f);

	if (rc == 0 && json)
		rc = print_json(f);
	else if (rc == 0)
		print_table(rig, s, f);
	if (rc)
		return ctn_err_set(err, rc, "out of memory");
	if (fflush(stdout) != 0)
		return ctn_err_set(err, -errno, "stdout: %s", strerror(errno));
	return 0;
}
