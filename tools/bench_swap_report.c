// SPDX-License-Identifier: MIT
/* The figures of `computron bench swap`. */
#include "bench_swap.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Peer against itself: more than this, and nothing can be concluded. */
#define VARIATION_MAX 0.05

struct figures {
	double load_s, load_p95_s, drop_s, bare_s;
	double overhead_s, overhead_p95_s; /* of the differences of each round */
	double links_s;    /* no switch is faster, by links and uplinks; 0: one without a rate */
	double fair_share; /* least of the ranks: its time with fair shares / its time; 0: none */
	double fraction;
	double speedup;
	double variation; /* between the bare copies of even and of odd rounds */
	uint64_t bytes;   /* of all ranks */
	enum ctn_stage_method method;
	const char *provider;
};

int ctn_swap_samples_init(struct ctn_swap_samples *s, uint32_t rounds)
{
	*s = (struct ctn_swap_samples){0};
	s->load = calloc(rounds, sizeof(*s->load));
	s->drop = calloc(rounds, sizeof(*s->drop));
	s->bare = calloc(rounds, sizeof(*s->bare));
	s->single = calloc(rounds, sizeof(*s->single));
	if (s->load && s->drop && s->bare && s->single)
		return 0;
	ctn_swap_samples_free(s);
	return -ENOMEM;
}

void ctn_swap_samples_free(struct ctn_swap_samples *s)
{
	free(s->load);
	free(s->drop);
	free(s->bare);
	free(s->single);
	*s = (struct ctn_swap_samples){0};
}

/* ---- figures ---------------------------------------------------------------------------- */

static int links_figures(const struct ctn_bench_rig *rig, const struct ctn_swap_samples *s,
			 struct figures *f)
{
	struct ctn_bench_links *links;
	int rc = ctn_bench_links(rig, &rig->sides[0], &links);

	if (rc)
		return rc;
	f->links_s = links->ceiling_s;
	for (uint32_t r = 0; r < links->count && links->limited && s->watched_rounds; r++) {
		double part = links->end_s[r] / s->end_s[r];

		f->fair_share = r ? fmin(f->fair_share, part) : part;
	}
	free(links);
	return 0;
}

/* `scratch` has room for all rounds. */
static double variation(const struct ctn_swap_samples *s, double *scratch)
{
	double medians[2];

	for (uint32_t odd = 0; odd < 2; odd++) {
		uint32_t n = 0;

		for (uint32_t i = odd; i < s->rounds; i += 2)
			scratch[n++] = s->bare[i];
		medians[odd] = ctn_bench_median(scratch, n);
	}
	return fabs(medians[0] - medians[1]) / fmin(medians[0], medians[1]);
}

static enum ctn_stage_method main_method(struct ctn_stage *stage)
{
	enum ctn_stage_method most = 0;
	struct ctn_stage_stats stats;

	ctn_stage_get_stats(stage, &stats);
	for (int m = 0; m < CTN_STAGE_METHODS; m++) {
		if (stats.bytes[m] > stats.bytes[most])
			most = (enum ctn_stage_method)m;
	}
	return most;
}

static int compute(struct ctn_bench_rig *rig, struct ctn_swap_samples *s, struct figures *f)
{
	struct ctn_pool_stats pool;
	double *over;
	int rc;

	*f = (struct figures){.speedup = 1, .method = main_method(rig->stage)};
	rc = links_figures(rig, s, f);
	if (rc)
		return rc;
	over = calloc(s->rounds, sizeof(*over));
	if (!over)
		return -ENOMEM;
	f->variation = variation(s, over);
	for (uint32_t i = 0; i < s->rounds; i++)
		over[i] = s->load[i] - s->bare[i];
	f->overhead_s = ctn_bench_median(over, s->rounds);
	f->overhead_p95_s = ctn_bench_p95(over, s->rounds);
	free(over);
	f->load_s = ctn_bench_median(s->load, s->rounds);
	f->load_p95_s = ctn_bench_p95(s->load, s->rounds);
	f->drop_s = ctn_bench_median(s->drop, s->rounds);
	f->bare_s = ctn_bench_median(s->bare, s->rounds);
	if (s->singles)
		f->speedup = ctn_bench_median(s->single, s->singles) / f->load_s;
	f->fraction = (f->links_s > 0 ? f->links_s : f->bare_s) / f->load_s;
	for (uint32_t r = 0; r < rig->sides[0].plan->rank_count; r++)
		f->bytes += rig->sides[0].bytes[r];
	ctn_pool_get_stats(rig->pool, false, &pool);
	f->provider = pool.provider;
	return 0;
}

static const char *against(const struct figures *f)
{
	return f->links_s > 0 ? "links" : "bare copy";
}

static const char *verdict(const struct figures *f)
{
	return f->variation > VARIATION_MAX ? "inconclusive" : "conclusive";
}

/* ---- telling ---------------------------------------------------------------------------- */

static json_t *published_json(const struct ctn_plan *plan)
{
	const struct ctn_bench_published *p = ctn_bench_published(plan->tp, plan->pp);

	return p ? json_pack("{s:f, s:f, s:f}", "offload_s", p->offload_s, "load_s", p->load_s,
			     "speedup", ctn_bench_published(1, 1)->load_s / p->load_s)
		 : json_null();
}

static int print_json(const struct ctn_bench_rig *rig, const struct ctn_swap_samples *s,
		      const struct figures *f)
{
	const struct ctn_plan *plan = rig->sides[0].plan;
	json_t *rates = json_array(), *bytes = json_array(), *ends = json_array(), *root;
	int rc = 0;

	for (uint32_t r = 0; r < plan->rank_count; r++) {
		uint64_t rate = ctn_device_props(rig->devices[r])->link_rate;

		rc |= json_array_append_new(rates, json_integer((json_int_t)rate));
		rc |= json_array_append_new(bytes,
					    json_integer((json_int_t)rig->sides[0].bytes[r]));
		rc |= json_array_append_new(ends, json_real(s->end_s[r]));
	}
	root = json_pack("{s:f, s:f, s:f, s:f, s:f, s:I, s:s, s:f, s:f, s:f, s:f, s:s, s:f}",
			 "load_s", f->load_s, "speedup", f->speedup, "fraction_of_links",
			 f->fraction, "overhead_s", f->overhead_s, "overhead_p95_s",
			 f->overhead_p95_s, "d2h_bytes", (json_int_t)s->d2h_bytes,
			 "fraction_against", against(f), "links_s", f->links_s, "bare_s", f->bare_s,
			 "load_p95_s", f->load_p95_s, "drop_s", f->drop_s, "verdict", verdict(f),
			 "bare_variation", f->variation);
	rc |= json_object_update_new(
		root,
		json_pack("{s:I, s:i, s:i, s:i, s:s, s:s, s:s, s:O, s:O}", "bytes",
			  (json_int_t)f->bytes, "tp", (int)plan->tp, "pp", (int)plan->pp, "rounds",
			  (int)s->rounds, "family", ctn_family_name(plan->ckpt->family),
			  "stage_method", ctn_stage_method_name(f->method), "pool_provider",
			  f->provider, "link_bytes_per_s", rates, "rank_bytes", bytes));
	rc |= json_object_update_new(
		root,
		json_pack("{s:i, s:I, s:I, s:f, s:O, s:o}", "watched_rounds",
			  (int)s->watched_rounds, "watched_pieces", (json_int_t)s->watched_pieces,
			  "missed_pieces", (json_int_t)s->missed_pieces, "fair_share",
			  f->fair_share, "rank_s", ends, "published_2023", published_json(plan)));
	if (rc == 0)
		rc = json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
	json_decref(root);
	json_decref(rates);
	json_decref(bytes);
	json_decref(ends);
	if (rc)
		return -ENOMEM;
	putchar('\n');
	return 0;
}

static void row(const char *name, double value, const char *format, ...) CTN_PRINTF(3, 4);

static void row(const char *name, double value, const char *format, ...)
{
	va_list ap;

	printf("%-18s %12.6f  ", name, value);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
}

static void print_table(const struct ctn_bench_rig *rig, const struct ctn_swap_samples *s,
			const struct figures *f)
{
	const struct ctn_bench_side *side = &rig->sides[0];
	const struct ctn_bench_published *p = ctn_bench_published(side->plan->tp, side->plan->pp);
	char size[32];

	printf("switch between two models of %s (%s), tp %u, pp %u, %u rounds\n",
	       ctn_format_size(f->bytes, size), ctn_family_name(side->plan->ckpt->family),
	       side->plan->tp, side->plan->pp, s->rounds);
	printf("pool %s, staged by %s; the bytes of every round were read back and verified\n\n",
	       f->provider, ctn_stage_method_name(f->method));
	row("load_s", f->load_s, "from the decision to the last load event, median");
	row("load_p95_s", f->load_p95_s, "95 %% of the rounds took no longer");
	row("drop_s", f->drop_s, "the drop's share, median");
	row("bare_s", f->bare_s, "the bare copy of the same bytes, median");
	row("overhead_s", f->overhead_s, "load less bare copy, median of the rounds' differences");
	row("overhead_p95_s", f->overhead_p95_s, "95 %% of the differences are no larger");
	if (f->links_s > 0)
		row("links_s", f->links_s, "bytes over links and uplinks, the slowest");
	row("fraction_of_links", f->fraction,
	    f->links_s > 0 ? "links_s / load_s"
			   : "bare_s / load_s: the links have no rate (link= is not set)");
	row("speedup", f->speedup, "over one device: load_s at tp 1, pp 1 / load_s");
	row("bare_variation", f->variation, "the bare copy against itself: %s", verdict(f));
	printf("%-18s %12" PRIu64 "  that left the devices while the clock ran\n", "d2h_bytes",
	       s->d2h_bytes);
	if (f->links_s > 0) {
		row("fair_share", f->fair_share,
		    "time of a rank with fair shares / its time, the least");
		printf("%-18s %12" PRIu64 "  looked at before their time: none was there "
		       "(%" PRIu64 " looked at too late)\n",
		       "watched_pieces", s->watched_pieces, s->missed_pieces);
	}
	if (p) {
		printf("\nOPT-13B on four A100 in 2023 (arXiv 2306.13835), at this tp and pp\n");
		row("load_s", p->load_s, "after an offload of %.3f s", p->offload_s);
		row("speedup", ctn_bench_published(1, 1)->load_s / p->load_s,
		    "over one device, likewise");
	}
}

int ctn_swap_report(struct ctn_bench_rig *rig, struct ctn_swap_samples *s, bool json,
		    struct ctn_err *err)
{
	struct figures f;
	int rc = compute(rig, s, &f);

	if (rc == 0 && json)
		rc = print_json(rig, s, &f);
	else if (rc == 0)
		print_table(rig, s, &f);
	if (rc)
		return ctn_err_set(err, rc, "out of memory");
	if (fflush(stdout) != 0)
		return ctn_err_set(err, -errno, "stdout: %s", strerror(errno));
	return 0;
}
