// SPDX-License-Identifier: MIT
/*
 * computron bench ttft: how long the first token takes when its model is not on the devices.
 *
 * Measured apart from each other in every round, each from the same start: when the layers of a
 * load arrive while nothing computes; how long each layer takes to compute while nothing moves;
 * and the first token when both go on at once, and when the one waits for the other. From the first
 * two follows what the overlap can reach. The decision is where the clock starts; loads are the
 * daemon's own pager's, steps its own decoders'. The tokens have to be equal.
 */
#include "bench_ttft.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS 5
/* Copies at 400 MB/s in all and short computations are what two cores can carry at once. */
#define DEVICE    "host:4,link=100M,layer_ms=25"
#define SYNTHETIC "opt,bytes=192M"
/* Of the prompt. With four, PARTIAL at tp 2, pp 2 was seen at 1.11 of the bound on two cores;
 * probably because layers then take longer than layer_ms, on cores that the copies need too. */
#define TOKENS 1

struct bench {
	struct ctn_bench_rig rig;
	struct ctn_bench_ranks *ranks; /* of side 0, which is measured */
	const struct ctn_plan *plan;
	struct ctn_ttft_samples samples;
	uint32_t keep[CTN_MAX_DEVICES]; /* [rank]: layers left by PARTIAL */
	uint32_t token;                 /* what all have to say */
};

static double since(uint64_t start, uint64_t ns)
{
	return ns > start ? (double)(ns - start) / CTN_NSEC_PER_SEC : 0;
}

/* ---- where it starts from --------------------------------------------------------------- */

/* What was read stays in the page cache: then it would be read from there. */
static void forget_files(const struct ctn_checkpoint *ckpt)
{
	for (uint32_t i = 0; i < ckpt->file_count; i++) {
		int fd = open(ckpt->files[i].path, O_RDONLY | O_CLOEXEC);

		if (fd < 0)
			continue;
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
	}
}

static int drop_tail(struct bench *b, struct ctn_err *err)
{
	const struct ctn_bench_side *side = b->rig.resident;
	int rc = ctn_bench_poison_tail(&b->rig, b->keep, err);

	for (uint32_t r = 0; r < b->plan->rank_count && rc == 0; r++) {
		rc = ctn_pager_drop_tail(b->rig.pager, side->model, r, b->keep[r]);
		if (rc)
			ctn_err_set(err, rc, "%s: drop: %s", side->dir, strerror(-rc));
	}
	return rc;
}

/* Brings side 0 there. All that is dropped is overwritten first. */
static int prepare(struct bench *b, enum ctn_ttft_start from, struct ctn_err *err)
{
	const struct ctn_bench_side *other = &b->rig.sides[from == CTN_TTFT_PARTIAL ? 0 : 1];
	struct ctn_bench_switch took;
	int rc = 0;

	if (b->rig.resident != other) {
		rc = b->rig.resident ? ctn_bench_poison(&b->rig, err) : 0;
		if (rc == 0)
			rc = ctn_bench_rig_switch(&b->rig, other, &took, err);
	}
	if (rc)
		return rc;
	switch (from) {
	case CTN_TTFT_COLD:
		ctn_pager_drop_host(b->rig.pager, b->rig.sides[0].model, UINT64_MAX);
		forget_files(b->plan->ckpt);
		return 0;
	case CTN_TTFT_PARTIAL:
		rc = drop_tail(b, err);
		/* fallthrough */
	default:
		return rc ? rc : ctn_bench_rig_check_clean(&b->rig, &b->rig.sides[0], err);
	}
}

/* ---- a measurement ---------------------------------------------------------------------- */

static int check_token(struct bench *b, uint64_t *ns, struct ctn_err *err)
{
	uint32_t token = ctn_bench_ranks_token(b->ranks, ns);

	if (token == b->token)
		return 0;
	return ctn_err_set(err, -EBADMSG, "%s: the first token is %u, and was %u before",
			   b->rig.sides[0].dir, token, b->token);
}

/* A load of side 0 beside which its ranks do `work`. */
static int load_beside(struct bench *b, enum ctn_ttft_start from, enum ctn_ranks_work work,
		       uint64_t *start, struct ctn_err *err)
{
	struct ctn_bench_switch took;
	int rc = prepare(b, from, err);

	if (rc == 0)
		rc = ctn_bench_ranks_arm(b->ranks, work, err);
	if (rc == 0)
		rc = ctn_bench_rig_switch(&b->rig, &b->rig.sides[0], &took, err);
	if (rc == 0)
		rc = ctn_bench_ranks_result(b->ranks, err);
	if (rc == 0)
		*start = took.start;
	return rc;
}

/* Each layer's figure is that of its slowest rank. */
static double *sample_of(const struct bench *b, double *by_layer, uint32_t layer, uint32_t round)
{
	return &by_layer[layer * b->samples.rounds + round];
}

static int measure_loaded(struct bench *b, enum ctn_ttft_start from, uint32_t round,
			  struct ctn_err *err)
{
	double *loaded = b->samples.cases[from].loaded;
	uint64_t start = 0;
	int rc = load_beside(b, from, CTN_RANKS_WAIT, &start, err);

	for (uint32_t r = 0; r < b->plan->rank_count && rc == 0; r++) {
		const struct ctn_rank_times *t = ctn_bench_ranks_times(b->ranks, r);
		const struct ctn_rank_plan *rank = &b->plan->ranks[r];

		for (uint32_t i = 0; i < rank->layer_count; i++) {
			double *s = sample_of(b, loaded, rank->first_layer + i, round);

			*s = CTN_MAX(*s, since(start, t->ready[i]));
		}
	}
	return rc;
}

static int measure_overlap(struct bench *b, enum ctn_ttft_start from, uint32_t round,
			   struct ctn_err *err)
{
	uint64_t start = 0, ns;
	int rc = load_beside(b, from, CTN_RANKS_STEP, &start, err);

	if (rc == 0)
		rc = check_token(b, &ns, err);
	if (rc == 0)
		b->samples.cases[from].overlap[round] = since(start, ns);
	return rc;
}

static int measure_serial(struct bench *b, enum ctn_ttft_start from, uint32_t round,
			  struct ctn_err *err)
{
	struct ctn_bench_switch took;
	uint64_t ns;
	int rc = prepare(b, from, err);

	if (rc == 0)
		rc = ctn_bench_rig_switch(&b->rig, &b->rig.sides[0], &took, err);
	if (rc == 0)
		rc = ctn_bench_ranks_step(b->ranks, err);
	if (rc == 0)
		rc = check_token(b, &ns, err);
	if (rc == 0)
		b->samples.cases[from].serial[round] = since(took.start, ns);
	return rc;
}

/* Side 0 is RESIDENT. */
static int measure_compute(struct bench *b, uint32_t round, struct ctn_err *err)
{
	uint64_t token_ns;
	int rc = ctn_bench_ranks_step(b->ranks, err);

	b->token = ctn_bench_ranks_token(b->ranks, &token_ns);
	for (uint32_t r = 0; r < b->plan->rank_count && rc == 0; r++) {
		const struct ctn_rank_times *t = ctn_bench_ranks_times(b->ranks, r);
		const struct ctn_rank_plan *rank = &b->plan->ranks[r];

		for (uint32_t i = 0; i < rank->layer_count; i++) {
			double *s = sample_of(b, b->samples.compute, rank->first_layer + i, round);
			uint64_t end = i + 1 < rank->layer_count ? t->asked[i + 1] : t->end;

			*s = CTN_MAX(*s, since(t->ready[i], end));
		}
	}
	return rc;
}

static int run_round(struct bench *b, uint32_t round, struct ctn_err *err)
{
	int rc = 0;

	for (int from = 0; from < CTN_TTFT_STARTS && rc == 0; from++) {
		rc = measure_loaded(b, from, round, err);
		if (rc == 0 && from == 0)
			rc = measure_compute(b, round, err);
		if (rc == 0)
			rc = measure_overlap(b, from, round, err);
		if (rc == 0)
			rc = measure_serial(b, from, round, err);
	}
	return rc;
}

/* ---- the command ------------------------------------------------------------------------ */

/* Memory that is touched for the first time is slow; what is read is verified once. */
static int warm_up(struct bench *b, struct ctn_err *err)
{
	struct ctn_bench_switch took;
	int rc = 0;

	for (uint32_t i = CTN_BENCH_MODELS; i-- > 0 && rc == 0;) {
		rc = b->rig.resident ? ctn_bench_poison(&b->rig, err) : 0;
		if (rc == 0)
			rc = ctn_bench_rig_switch(&b->rig, &b->rig.sides[i], &took, err);
		if (rc == 0)
			rc = ctn_bench_verify(&b->rig, err);
	}
	return rc ? rc : ctn_bench_ranks_step(b->ranks, err);
}

static int run_on_rig(struct bench *b, const struct ctn_bench_options *o, struct ctn_err *err)
{
	int rc;

	b->plan = b->rig.sides[0].plan;
	for (uint32_t r = 0; r < b->plan->rank_count; r++)
		b->keep[r] = (b->plan->ranks[r].layer_count + 1) / 2;
	rc = ctn_ttft_samples_init(&b->samples, o->rounds, ctn_layer_count(&b->plan->ckpt->arch));
	if (rc)
		return ctn_err_set(err, rc, "out of memory");
	rc = ctn_bench_ranks_open(&b->rig, &b->rig.sides[0], TOKENS, &b->ranks, err);
	if (rc == 0)
		rc = warm_up(b, err);
	for (uint32_t i = 0; i < o->rounds && rc == 0; i++)
		rc = run_round(b, i, err);
	if (rc == 0)
		rc = ctn_ttft_report(&b->rig, &b->samples, o->json, err);
	ctn_bench_ranks_close(b->ranks);
	ctn_ttft_samples_free(&b->samples);
	return rc;
}

static int run(const struct ctn_bench_options *o, struct ctn_err *err)
{
	struct bench *b = calloc(1, sizeof(*b));
	int rc;

	if (!b)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	rc = ctn_bench_rig_open(&o->rig, &b->rig, err);
	if (rc == 0) {
		rc = run_on_rig(b, o, err);
		ctn_bench_rig_close(&b->rig);
	}
	free(b);
	return rc;
}

int ctn_bench_ttft(int argc, char **argv)
{
	struct ctn_bench_options o = {.synthetic = SYNTHETIC,
				      .rig = {.device = DEVICE, .tp = 2, .pp = 2},
				      .rounds = ROUNDS};

	return ctn_bench_command("ttft", argc, argv, &o, run);
}
