// SPDX-License-Identifier: MIT
/*
 * What the links allow, by arithmetic on bytes and rates alone: links that share an uplink get
 * max-min fair shares of it, all ranks start at once, and nothing else costs time.
 */
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* The rates of one uplink's ranks: the slowest links first, each gets its own rate or an equal
 * share of what is left. */
static void share_uplink(const struct ctn_bench_links *l, int uplink, double *rate)
{
	double left = l->uplink_rate[uplink];
	uint32_t open = 0;

	for (uint32_t r = 0; r < l->count; r++) {
		rate[r] = l->uplink[r] == uplink ? 0 : rate[r];
		open += l->uplink[r] == uplink && l->left[r] > 0;
	}
	for (; open; open--) {
		uint32_t slowest = l->count;

		for (uint32_t r = 0; r < l->count; r++) {
			if (l->uplink[r] == uplink && l->left[r] > 0 && rate[r] <= 0 &&
			    (slowest == l->count || l->own[r] < l->own[slowest]))
				slowest = r;
		}
		rate[slowest] = fmin(l->own[slowest], left / open);
		left -= rate[slowest];
	}
}

static void share(const struct ctn_bench_links *l, double *rate)
{
	for (uint32_t r = 0; r < l->count; r++)
		rate[r] = l->left[r] > 0 ? l->own[r] : 0;
	for (uint32_t r = 0; r < l->count; r++) {
		if (l->uplink[r] >= 0)
			share_uplink(l, l->uplink[r], rate);
	}
}

/* A phase ends when a rank has all its bytes. Returns how long it is. */
static double phase_seconds(const struct ctn_bench_links *l, const double *rate)
{
	double dt = INFINITY;

	for (uint32_t r = 0; r < l->count; r++) {
		if (l->left[r] > 0)
			dt = fmin(dt, l->left[r] / rate[r]);
	}
	return isinf(dt) ? 0 : dt;
}

static void run_phases(struct ctn_bench_links *l)
{
	double t = 0, dt;

	for (;; l->phases++) {
		struct ctn_bench_phase *p = &l->phase[l->phases];

		share(l, p->rate);
		dt = phase_seconds(l, p->rate);
		p->from = t;
		if (dt <= 0)
			break;
		t += dt;
		for (uint32_t r = 0; r < l->count; r++) {
			if (l->left[r] <= 0)
				continue;
			l->left[r] -= p->rate[r] * dt;
			/* Half a byte is rounding. */
			if (l->left[r] < 0.5) {
				l->left[r] = 0;
				l->end_s[r] = t;
			}
		}
	}
}

/* No order of copies is faster: a link has to carry its rank's bytes, an uplink its ranks'. */
static double ceiling(const struct ctn_bench_links *l, const struct ctn_bench_side *side)
{
	double most = 0, through[CTN_MAX_DEVICES] = {0};

	for (uint32_t r = 0; r < l->count; r++) {
		if (l->own[r] < INFINITY)
			most = fmax(most, (double)side->bytes[r] / l->own[r]);
		if (l->uplink[r] < 0)
			continue;
		through[l->uplink[r]] += (double)side->bytes[r];
		most = fmax(most, through[l->uplink[r]] / l->uplink_rate[l->uplink[r]]);
	}
	return most;
}

int ctn_bench_links(const struct ctn_bench_rig *rig, const struct ctn_bench_side *side,
		    struct ctn_bench_links **links)
{
	struct ctn_bench_links *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->count = side->plan->rank_count;
	l->limited = true;
	for (uint32_t r = 0; r < l->count; r++) {
		const struct ctn_device_props *props = ctn_device_props(rig->devices[r]);

		l->own[r] = props->link_rate ? (double)props->link_rate : INFINITY;
		l->uplink[r] = props->uplink;
		if (props->uplink >= 0)
			l->uplink_rate[props->uplink] = (double)props->uplink_rate;
		else if (!props->link_rate)
			l->limited = false;
		l->left[r] = (double)side->bytes[r];
	}
	if (l->limited) {
		l->ceiling_s = ceiling(l, side);
		run_phases(l);
	}
	*links = l;
	return 0;
}

double ctn_bench_links_due(const struct ctn_bench_links *l, uint32_t rank, uint64_t bytes)
{
	double rest = (double)bytes;

	for (uint32_t i = 0; i < l->phases; i++) {
		const struct ctn_bench_phase *p = &l->phase[i];
		double carried = p->rate[rank] * (p[1].from - p->from);

		if (rest <= carried)
			return p->from + rest / p->rate[rank];
		rest -= carried;
	}
	return l->end_s[rank];
}
