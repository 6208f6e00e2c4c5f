// SPDX-License-Identifier: MIT
/*
 * What the past says of the future: gaps between arrivals, seconds of loads and of steps.
 *
 * Averages are exponential, over about the last `1 / LEAST_SHARE` values, and a value counts as at
 * most FAR times the average, so that one stalled load does not turn all predictions around.
 *
 * The next arrival is taken to be Weibull with the mean and the CV of the gaps: its chance within
 * some time, given how long the model has been idle, needs two powers, and behaves as wanted: after
 * regular gaps the chance is small at first and grows; after bursty ones it is greatest at once and
 * falls, so that the victim is then the model that was idle for longest.
 */
#include "sched/state.h"

#include <math.h>

#define LEAST_SHARE (1.0 / 64)
#define STEPS_SHARE (1.0 / 16) /* of the seconds of a step, and of the steps of a request */
#define FAR         8.0

/* A silence of more than so many mean gaps breaks the pattern: the chance falls with its length. */
#define LONG 5.0

/* Before anything was heard: a request every PRIOR_GAP_S, in bursts. */
#define PRIOR_GAP_S 10.0
#define PRIOR_CV    1.5

/* What could not be staged ahead, for want of room or because the disk fails, is left alone for so
 * long; so is what the kernel took, because memory is short. */
#define STAGE_AGAIN_NS (10 * 1000000000ull)

/* Seconds per byte of a link before the first load. */
#define PRIOR_SECONDS_PER_BYTE 1e-10

static void average(double *mean, double value, uint32_t count)
{
	double share = CTN_MAX(1.0 / count, LEAST_SHARE);

	*mean += share * (value - *mean);
}

/* ---- arrivals --------------------------------------------------------------------------- */

/* Weibull's shape for a CV: fits of CV^2 = G(1 + 2/k) / G(1 + 1/k)^2 - 1 on both sides of 1. */
static double shape_of(double cv)
{
	return pow(CTN_MIN(CTN_MAX(cv, 0.1), 10), cv < 1 ? -1.086 : -0.8);
}

static void fit(struct sched_gaps *g)
{
	double variance = g->square_s - g->mean_s * g->mean_s;
	double cv = g->mean_s > 0 ? sqrt(CTN_MAX(variance, 0)) / g->mean_s : 0;

	g->shape = shape_of(cv);
	g->scale_s = CTN_MAX(g->mean_s, 1e-9) / tgamma(1 + 1 / g->shape);
}

void sched_learn_arrival(struct sched_model *m, uint64_t now_ns)
{
	struct sched_gaps *g = &m->gaps;

	if (g->count == 0) {
		g->mean_s = PRIOR_GAP_S;
		g->square_s = PRIOR_GAP_S * PRIOR_GAP_S * (1 + PRIOR_CV * PRIOR_CV);
	} else {
		double gap_s = (double)(now_ns - g->last_ns) / 1e9;

		average(&g->mean_s, gap_s, g->count + 1);
		average(&g->square_s, gap_s * gap_s, g->count + 1);
	}
	g->count++;
	g->last_ns = now_ns;
	fit(g);
}

double sched_chance(const struct ctn_sched *s, const struct sched_model *m, double within_s,
		    uint64_t now_ns)
{
	const struct sched_gaps *g = &m->gaps;
	double idle_s;

	if (s->next_arrival) {
		uint64_t next = s->next_arrival(s->next_arrival_arg, (uint32_t)(m - s->models));

		return 1 / (1 + (double)next / 1e9);
	}
	if (g->count == 0)
		return 0;
	idle_s = CTN_MAX((double)(now_ns - g->last_ns) / 1e9, 1e-9);
	return CTN_MIN(1, LONG * g->mean_s / idle_s) *
	       -expm1(pow(idle_s / g->scale_s, g->shape) -
		      pow((idle_s + within_s) / g->scale_s, g->shape));
}

double sched_rate(const struct sched_model *m)
{
	return m->gaps.count ? 1 / CTN_MAX(m->gaps.mean_s, 1e-9) : 0;
}

/* ---- loads and steps -------------------------------------------------------------------- */

uint64_t sched_load_bytes(const struct ctn_sched *s, const struct sched_model *m)
{
	uint64_t on_device[CTN_SCHED_MAX_DEVICES] = {0}, there[CTN_SCHED_MAX_DEVICES], most = 0;

	for (uint32_t r = 0; r < m->rank_count; r++)
		on_device[m->ranks[r].device] += m->ranks[r].weight_bytes - m->kept[r].bytes;
	sched_there_already(s, m, there);
	for (uint32_t d = 0; d < s->device_count; d++)
		most = CTN_MAX(most, on_device[d] - there[d]);
	return most;
}

double sched_seconds_per_byte(const struct ctn_sched *s)
{
	return s->loads_seen ? s->seconds_per_byte : PRIOR_SECONDS_PER_BYTE;
}

double sched_load_seconds(const struct ctn_sched *s, const struct sched_model *m, uint64_t bytes)
{
	double link = sched_seconds_per_byte(s) * (double)bytes;
	double disk = s->stage_seconds_per_byte * (double)m->host_missing;

	return CTN_MAX(link, disk);
}

void sched_learn_wait(struct ctn_sched *s, const struct sched_model *m, uint64_t now_ns)
{
	double wait_s;

	if (m->queue.head == NO_REQUEST)
		return;
	wait_s = (double)(now_ns - s->requests[m->queue.head].arrival_ns) / 1e9;
	s->load_wait_s += LEAST_SHARE * (wait_s - s->load_wait_s);
}

static void learn_disk(struct ctn_sched *s, double each)
{
	if (s->stages_seen)
		each = CTN_MIN(each, FAR * s->stage_seconds_per_byte);
	average(&s->stage_seconds_per_byte, each, ++s->stages_seen);
}

void sched_put_off_stage(struct sched_model *m, uint64_t now_ns)
{
	m->stage_after_ns = now_ns + STAGE_AGAIN_NS;
}

void sched_learn_stage(struct ctn_sched *s, struct sched_model *m, uint64_t missing,
		       uint64_t now_ns)
{
	if (m->host_missing > missing)
		learn_disk(s, (double)(now_ns - s->stage_started_ns) / 1e9 /
				      (double)(m->host_missing - missing));
	else if (missing)
		sched_put_off_stage(m, now_ns);
}

void sched_learn_load(struct ctn_sched *s, struct sched_model *m, uint64_t now_ns)
{
	double seconds = (double)(now_ns - m->load_started_ns) / 1e9, each;

	if (m->load_bytes == 0)
		return;
	if (m->stage_bytes) {
		/* The link waited for the disk. */
		learn_disk(s, seconds / (double)m->stage_bytes);
		return;
	}
	each = seconds / (double)m->load_bytes;
	if (s->loads_seen)
		each = CTN_MIN(each, FAR * s->seconds_per_byte);
	average(&s->seconds_per_byte, each, ++s->loads_seen);
}

void sched_learn_step(struct sched_model *m, uint64_t now_ns)
{
	double seconds = (double)(now_ns - m->step_started_ns) / 1e9;

	if (!m->step_alone)
		return;
	m->step_alone = false;
	if (m->step_s > 0)
		m->step_s += STEPS_SHARE * (CTN_MIN(seconds, FAR * m->step_s) - m->step_s);
	else
		m->step_s = seconds;
}

void sched_learn_request(struct sched_model *m, const struct sched_request *q)
{
	if (q->steps == 0)
		return;
	if (m->steps_each > 0)
		m->steps_each += STEPS_SHARE * (q->steps - m->steps_each);
	else
		m->steps_each = q->steps;
}
