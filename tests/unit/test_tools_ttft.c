// SPDX-License-Identifier: MIT
/*
 * What `computron bench ttft` stands on, and what it shows: a step that computes the layers that
 * are there while the others are on their way.
 */
#include "tools/bench_ttft.h"
#include "tools/synthetic.h"

#define MODEL_BYTES (64 << 20) /* parts of more than 2 MiB: each layer is read by itself */
#include "bench_fixture.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static const uint32_t splits[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOW   1
#define SPLITS 2u /* the first that is tried: all take minutes there */
#else
#define SLOW   0
#define SPLITS 0u
#endif

static void open_split(const char *device, const uint32_t *split,
		       const struct ctn_stage_config *stage, struct ctn_bench_rig *rig,
		       struct ctn_bench_ranks **ranks)
{
	struct ctn_bench_rig_config cfg = config(device, split[0], split[1]);
	struct ctn_err err = {0};

	cfg.single = false;
	cfg.stage = stage;
	CU_ASSERT_EQUAL_FATAL(ctn_bench_rig_open(&cfg, rig, &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_bench_ranks_open(rig, &rig->sides[0], 2, ranks, &err), 0);
}

static void close_split(struct ctn_bench_rig *rig, struct ctn_bench_ranks *ranks)
{
	ctn_bench_ranks_close(ranks);
	ctn_bench_rig_close(rig);
}

/* Loads side 0 and computes a step of it meanwhile. */
static void load_and_compute(struct ctn_bench_rig *rig, struct ctn_bench_ranks *ranks,
			     struct ctn_bench_switch *took)
{
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(ctn_bench_ranks_arm(ranks, CTN_RANKS_STEP, &err), 0);
	switch_to(rig, 0, took);
	CU_ASSERT_EQUAL(ctn_bench_ranks_result(ranks, &err), 0);
}

/* ---- the bound -------------------------------------------------------------------------- */

static void test_the_bound(void)
{
	/* Waits for layer 0; computes 1 while 2 arrives; then nothing has to be waited for. */
	static const double loaded[] = {3, 4, 9, 9}, compute[] = {2, 2, 1, 5};
	static const double late[] = {1, 2, 3, 100}, none[] = {0, 0, 0, 0};

	CU_ASSERT_EQUAL(ctn_ttft_bound(loaded, compute, 4), 15);
	CU_ASSERT_EQUAL(ctn_ttft_bound(late, compute, 4), 105);
	CU_ASSERT_EQUAL(ctn_ttft_bound(none, compute, 4), 10);
	CU_ASSERT_EQUAL(ctn_ttft_bound(late, none, 4), 100);
}

/* ---- the overlap ------------------------------------------------------------------------ */

/* Seconds before which a rank's link cannot have brought its layers up to and with `layer`. */
static double link_time(const struct ctn_rank_plan *rank, uint32_t layer, double rate)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i <= layer; i++) {
		for (uint32_t k = 0; k < rank->shards[i].piece_count; k++)
			bytes += rank->shards[i].pieces[k].payload;
	}
	return (double)bytes / rate;
}

static double after(const struct ctn_bench_switch *took, uint64_t ns)
{
	return ((double)ns - (double)took->start) / 1e9;
}

/* A layer is computed after it was loaded, and the first half of them before the last one was. */
static void check_trace(struct ctn_bench_rig *rig, struct ctn_bench_ranks *ranks,
			const struct ctn_bench_switch *took, double rate, double layer_s)
{
	const struct ctn_plan *plan = rig->sides[0].plan;

	for (uint32_t r = 0; r < plan->rank_count; r++) {
		const struct ctn_rank_times *t = ctn_bench_ranks_times(ranks, r);
		const struct ctn_rank_plan *rank = &plan->ranks[r];
		double all = link_time(rank, rank->layer_count - 1, rate);

		for (uint32_t i = 0; i < rank->layer_count; i++) {
			double ready = after(took, t->ready[i]);

			CU_ASSERT(t->ready[i] >= t->asked[i]);
			CU_ASSERT(ready >= link_time(rank, i, rate));
			if (i > 0)
				CU_ASSERT(after(took, t->asked[i]) >=
					  after(took, t->ready[i - 1]) + layer_s);
			/* A later pipeline stage begins when the one before has ended. Where
			 * computing is slow, it is not done before the last layer is there. */
			if (!SLOW && rank->pp_rank == 0 && i < rank->layer_count / 2)
				CU_ASSERT(ready < all);
		}
		CU_ASSERT(took->ns / 1e9 >= all);
	}
}

static void test_layers_are_computed_while_others_load(void)
{
	for (size_t i = SPLITS; i < CTN_ARRAY_LEN(splits); i++) {
		struct ctn_bench_ranks *ranks;
		struct ctn_bench_switch took;
		struct ctn_err err = {0};
		struct ctn_bench_rig rig;
		uint64_t early, late;
		uint32_t token;

		open_split("host:4,mem=96M,link=80M,layer_ms=2", splits[i], NULL, &rig, &ranks);
		switch_to(&rig, 0, &took);
		CU_ASSERT_EQUAL(ctn_bench_ranks_step(ranks, &err), 0);
		token = ctn_bench_ranks_token(ranks, &late);
		CU_ASSERT(late > took.start + took.ns);
		CU_ASSERT_EQUAL(ctn_bench_poison(&rig, &err), 0);
		switch_to(&rig, 1, &took);
		CU_ASSERT_EQUAL(ctn_bench_poison(&rig, &err), 0);
		load_and_compute(&rig, ranks, &took);
		CU_ASSERT_EQUAL(ctn_bench_ranks_token(ranks, &early), token);
		check_trace(&rig, ranks, &took, 80e6, 0.002);
		CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), 0);
		close_split(&rig, ranks);
	}
}

/* ---- a layer that does not come --------------------------------------------------------- */

struct withheld {
	const struct ctn_plan *plan;
	const struct ctn_bench_ranks *ranks;
	uint32_t layer;
	pthread_mutex_t lock;
	uint64_t given_ns; /* 0: not asked for yet */
};

#define MS(n) (&(struct timespec){.tv_nsec = (n)*1000000})

/* Every rank that has the layer waits for it. */
static bool all_wait(const struct withheld *w)
{
	for (uint32_t r = 0; r < w->plan->rank_count; r++) {
		const struct ctn_rank_times *t = ctn_bench_ranks_times(w->ranks, r);
		uint32_t k = w->layer - w->plan->ranks[r].first_layer;

		if (w->layer >= w->plan->ranks[r].first_layer &&
		    k < w->plan->ranks[r].layer_count && t->asked[k] == 0)
			return false;
	}
	return true;
}

static bool has_offset(const struct ctn_part *part, uint64_t offset)
{
	for (uint32_t i = 0; i < part->run_count; i++) {
		if (offset >= part->runs[i].file_offset &&
		    offset - part->runs[i].file_offset < part->runs[i].bytes)
			return true;
	}
	return false;
}

/* The layer's reads begin when nothing is left to do without it, and a little later; the others go
 * on in other threads. */
static ssize_t withhold(void *ctx, int fd, void *buf, size_t len, uint64_t offset)
{
	struct withheld *w = ctx;
	ssize_t got;

	for (uint32_t i = 0; i < w->plan->part_count; i++) {
		const struct ctn_part *part = &w->plan->parts[i];

		if (part->first_layer != w->layer || !has_offset(part, offset))
			continue;
		pthread_mutex_lock(&w->lock);
		if (!w->given_ns) {
			for (int ms = 0; ms < 60000 && !all_wait(w); ms += 5)
				nanosleep(MS(5), NULL);
			nanosleep(MS(50), NULL);
			w->given_ns = ctn_now_ns();
		}
		pthread_mutex_unlock(&w->lock);
	}
	got = pread(fd, buf, len, (off_t)offset);
	return got < 0 ? -errno : got;
}

static void test_a_withheld_layer_blocks_the_step_there(void)
{
	for (size_t i = SPLITS; i < CTN_ARRAY_LEN(splits); i++) {
		struct withheld w = {.layer = 5, .lock = PTHREAD_MUTEX_INITIALIZER};
		struct ctn_stage_sys sys = {.pread = withhold, .ctx = &w};
		struct ctn_stage_config stage = {.method = CTN_STAGE_PREAD, .sys = &sys};
		struct ctn_bench_ranks *ranks;
		struct ctn_bench_switch took;
		struct ctn_bench_rig rig;
		struct ctn_err err = {0};
		uint64_t token_ns;

		open_split("host:4,mem=96M", splits[i], &stage, &rig, &ranks);
		w.plan = rig.sides[0].plan;
		w.ranks = ranks;
		load_and_compute(&rig, ranks, &took);
		CU_ASSERT_FATAL(w.given_ns > 0);
		for (uint32_t r = 0; r < w.plan->rank_count; r++) {
			const struct ctn_rank_times *t = ctn_bench_ranks_times(ranks, r);
			const struct ctn_rank_plan *rank = &w.plan->ranks[r];

			for (uint32_t k = 0; k < rank->layer_count; k++) {
				uint32_t layer = rank->first_layer + k;

				if (layer < w.layer)
					CU_ASSERT(t->ready[k] < w.given_ns);
				if (layer <= w.layer)
					CU_ASSERT(t->asked[k] < w.given_ns);
				if (layer >= w.layer)
					CU_ASSERT(t->ready[k] > w.given_ns);
			}
		}
		ctn_bench_ranks_token(ranks, &token_ns);
		CU_ASSERT(token_ns > w.given_ns);
		CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), 0);
		close_split(&rig, ranks);
	}
}

/* Ranks whose load fails end, all of them, and say so. */
static void test_a_load_that_fails_ends_the_step(void)
{
	struct ctn_bench_ranks *ranks;
	struct ctn_bench_switch took;
	struct ctn_bench_rig rig;
	struct ctn_err err = {0};

	open_split("host:4,mem=96M", splits[3], NULL, &rig, &ranks);
	CU_ASSERT_EQUAL_FATAL(truncate(rig.ckpts[0]->files[0].path, 40 << 20), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_bench_ranks_arm(ranks, CTN_RANKS_STEP, &err), 0);
	CU_ASSERT(ctn_bench_rig_switch(&rig, &rig.sides[0], &took, &err) < 0);
	CU_ASSERT(ctn_bench_ranks_result(ranks, &err) < 0);
	switch_to(&rig, 1, &took);
	CU_ASSERT(ctn_bench_ranks_result(ranks, &err) < 0);
	close_split(&rig, ranks);
}

CTN_TESTS("tools_ttft", CTN_TEST(test_the_bound),
	  CTN_TEST(test_layers_are_computed_while_others_load),
	  CTN_TEST(test_a_withheld_layer_blocks_the_step_there),
	  CTN_TEST(test_a_load_that_fails_ends_the_step))
