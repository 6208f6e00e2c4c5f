// SPDX-License-Identifier: MIT
/*
 * computron bench swap: how long it takes until another model is on the devices.
 *
 * A round: one model is RESIDENT, the other has all its frames CLEAN in the pool and nothing on
 * the devices. The bytes of the first are overwritten, so that nothing that is read back later
 * can be left from before. Timed: it is dropped and the other is loaded, by the daemon's own
 * pager. Then the devices are read back and compared with the files. The bare copy of as many
 * bytes runs before the switch or after it, which changes every second round.
 *
 * For the speedup, some rounds go on to a switch at (1, 1), timed in the same way.
 *
 * At the end come rounds that are watched and not timed: no byte may be there before its link can
 * have carried it, and ranks that share an uplink have to end as fair shares of it say.
 */
#include "bench.h"
#include "bench_swap.h"
#define ROUNDS 30
/* Rounds that switch at (1, 1) as well, which takes tp x pp times as long. */
#define SINGLE_ROUNDS  6
#define WATCHED_ROUNDS 3

/* ---- rounds ----------------------------------------------------------------------------- */

/* Bytes are overwritten, then the switch is timed, then what arrived is verified. */
static int verified_switch(struct ctn_bench_rig *rig, const struct ctn_bench_side *to,
			   struct ctn_bench_switch *took, struct ctn_err *err)
{
	int rc = ctn_bench_rig_check_clean(rig, to, err);

	if (rc == 0)
		rc = ctn_bench_poison(rig, err);
	if (rc == 0)
		rc = ctn_bench_rig_switch(rig, to, took, err);
	if (rc == 0)
		rc = ctn_bench_verify(rig, err);
	return rc;
}

static double seconds(uint64_t ns)
{
	return (double)ns / CTN_NSEC_PER_SEC;
}

static int bare_copy(struct ctn_bench_rig *rig, const struct ctn_bench_side *to, double *out,
		     struct ctn_err *err)
{
	uint64_t ns = 0;
	int rc = ctn_bench_rig_bare(rig, to, &ns, err);

	*out = seconds(ns);
	return rc;
}

static int run_round(struct ctn_bench_rig *rig, struct ctn_swap_samples *s, uint32_t i,
		     struct ctn_err *err)
{
	const struct ctn_bench_side *to = &rig->sides[rig->resident == &rig->sides[0]];
	/* Not in step with the model: that changes every round. */
	bool bare_first = i / 2 % 2 == 0;
	struct ctn_bench_switch took;
	int rc = 0;

	if (bare_first)
		rc = bare_copy(rig, to, &s->bare[i], err);
	if (rc == 0)
		rc = verified_switch(rig, to, &took, err);
	if (rc)
		return rc;
	s->load[i] = seconds(took.ns);
	s->drop[i] = seconds(took.drop_ns);
	s->d2h_bytes += took.d2h_bytes;
	s->rounds = i + 1;
	return bare_first ? 0 : bare_copy(rig, to, &s->bare[i], err);
}

/* The same model at (1, 1), and back. */
static int run_single(struct ctn_bench_rig *rig, struct ctn_swap_samples *s, struct ctn_err *err)
{
	const struct ctn_bench_side *from = rig->resident, *to = from + CTN_BENCH_MODELS;
	struct ctn_bench_switch took, back;
	int rc = verified_switch(rig, to, &took, err);

	if (rc)
		return rc;
	s->single[s->singles++] = seconds(took.ns);
	s->d2h_bytes += took.d2h_bytes;
	return verified_switch(rig, from, &back, err);
}

static int run_watched(struct ctn_bench_rig *rig, struct ctn_swap_samples *s, struct ctn_err *err)
{
	const struct ctn_bench_side *to = &rig->sides[rig->resident == &rig->sides[0]];
	struct ctn_bench_watched watched;
	int rc = ctn_bench_poison(rig, err);

	if (rc == 0)
		rc = ctn_bench_watch(rig, to, &watched, err);
	if (rc == 0)
		rc = ctn_bench_verify(rig, err);
	if (rc)
		return rc;
	s->watched_rounds++;
	s->watched_pieces += watched.pieces;
	s->missed_pieces += watched.missed;
	for (uint32_t r = 0; r < to->plan->rank_count; r++)
		s->end_s[r] = CTN_MAX(s->end_s[r], watched.end_s[r]);
	return 0;
}

/* Stages both models, and has every side on the devices once: memory is there from then on. */
static int warm_up(struct ctn_bench_rig *rig, struct ctn_err *err)
{
	struct ctn_bench_switch took;
	int rc = 0;

	for (uint32_t i = rig->side_count; i-- > 0 && rc == 0;) {
		rc = rig->resident ? ctn_bench_poison(rig, err) : 0;
		if (rc == 0)
			rc = ctn_bench_rig_switch(rig, &rig->sides[i], &took, err);
		if (rc == 0)
			rc = ctn_bench_verify(rig, err);
	}
	return rc;
}

static int run_rounds(struct ctn_bench_rig *rig, uint32_t rounds, struct ctn_swap_samples *s,
		      struct ctn_err *err)
{
	uint32_t every = CTN_MAX(rounds / SINGLE_ROUNDS, 1u);
	int rc = warm_up(rig, err);

	for (uint32_t i = 0; i < rounds && rc == 0; i++) {
		rc = run_round(rig, s, i, err);
		if (rc == 0 && rig->side_count > CTN_BENCH_MODELS && i % every == 0)
			rc = run_single(rig, s, err);
	}
	for (uint32_t i = 0; i < CTN_MIN(rounds, (uint32_t)WATCHED_ROUNDS) && rc == 0; i++)
		rc = run_watched(rig, s, err);
	return rc;
}

/* ---- the command ------------------------------------------------------------------------ */

static int run(const struct ctn_bench_options *o, struct ctn_err *err)
{
	struct ctn_swap_samples samples;
	struct ctn_bench_rig rig;
	int rc;

	rc = ctn_swap_samples_init(&samples, o->rounds);
	if (rc)
		return ctn_err_set(err, rc, "out of memory");
	rc = ctn_bench_rig_open(&o->rig, &rig, err);
	if (rc == 0) {
		rc = run_rounds(&rig, o->rounds, &samples, err);
		if (rc == 0)
			rc = ctn_swap_report(&rig, &samples, o->json, err);
		ctn_bench_rig_close(&rig);
	}
	ctn_swap_samples_free(&samples);
	return rc;
}

int ctn_bench_swap(int argc, char **argv)
{
	struct ctn_bench_options o = {.rig = {.tp = 1, .pp = 1, .single = true}, .rounds = ROUNDS};

	return ctn_bench_command("swap", argc, argv, &o, run);
}
