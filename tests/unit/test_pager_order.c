// SPDX-License-Identifier: MIT
/* The order in which parts come from disk, seen by the reads themselves. */
#include "pager_fixture.h"

#include <unistd.h>

#define STAGES 4

/* The model whose reads are followed. */
struct follower {
	const struct ctn_plan *plan;
	pthread_mutex_t lock;
	uint64_t total;
	uint64_t stage[STAGES]; /* bytes that a pipeline stage has had */
	uint64_t half[STAGES];  /* the same, when half of all bytes had been read */
};

static uint32_t stage_of(const struct ctn_plan *plan, uint32_t layer)
{
	uint32_t s = plan->pp - 1;

	while (plan->ranks[s * plan->tp].first_layer > layer)
		s--;
	return s;
}

/* Which pipeline stage reads first what lies there. */
static uint32_t reader_of(const struct ctn_plan *plan, uint64_t offset)
{
	for (uint32_t i = 0; i < plan->part_count; i++) {
		const struct ctn_part *part = &plan->parts[i];

		for (uint32_t k = 0; k < part->run_count; k++) {
			if (offset >= part->runs[k].file_offset &&
			    offset - part->runs[k].file_offset < part->runs[k].bytes)
				return stage_of(plan, part->first_layer);
		}
	}
	CU_FAIL("a read of what no part has");
	return 0;
}

static ssize_t follow(void *ctx, int fd, void *buf, size_t len, uint64_t offset)
{
	struct follower *f = ctx;
	ssize_t got = pread(fd, buf, len, (off_t)offset);

	if (got <= 0)
		return got < 0 ? -errno : 0;
	pthread_mutex_lock(&f->lock);
	f->stage[reader_of(f->plan, offset)] += (uint64_t)got;
	f->total += (uint64_t)got;
	if (f->total <= f->plan->host_bytes / 2)
		memcpy(f->half, f->stage, sizeof(f->half));
	pthread_mutex_unlock(&f->lock);
	return got;
}

/* Loads a model of 4 pipeline stages from disk through a pool of `bytes`. */
static void load_cold(const char *dir, uint64_t bytes, struct follower *f)
{
	struct ctn_stage_sys sys = {.pread = follow, .ctx = f};
	struct ctn_stage_config stage = {.method = CTN_STAGE_PREAD, .queue_depth = 1, .sys = &sys};
	struct ctn_err err = {0};
	struct rig rig;

	memset(f, 0, sizeof(*f));
	pthread_mutex_init(&f->lock, NULL);
	rig_open_with(&rig, "host:4,mem=64M", "plain", bytes, stage);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, STAGES, &err), 0);
	f->plan = rig.plan[0];
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	rig_close(&rig);
	pthread_mutex_destroy(&f->lock);
}

/* 14 layers of equal bytes and small ends, in pieces of 2 MiB and more. */
static const char *deep_model(void)
{
	static char dir[PATH_MAX];

	if (!dir[0])
		snprintf(dir, sizeof(dir), "%s", write_big(14, 500, 0));
	return dir;
}

static void sizes(const char *dir, uint64_t *all, uint64_t *window)
{
	struct ctn_err err = {0};
	struct ctn_checkpoint *ckpt;
	struct ctn_plan *plan;

	CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open(dir, &ckpt, &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_plan_build(ckpt, 1, STAGES, &plan, &err), 0);
	*window = plan->host_window;
	*all = 0;
	for (uint32_t i = 0; i < plan->part_count; i++)
		*all += ctn_align_up(plan->parts[i].frame_bytes, CTN_EXTENT_ALIGN);
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
}

static void test_pipeline_stages_are_staged_side_by_side(void)
{
	uint64_t all, window;
	struct follower f;

	sizes(deep_model(), &all, &window);
	load_cold(deep_model(), all, &f);
	/* Half way, each has had about half of its own. */
	for (uint32_t s = 0; s < STAGES; s++) {
		CU_ASSERT(f.half[s] > f.stage[s] / 4);
		CU_ASSERT(f.half[s] < f.stage[s] * 3 / 4);
	}
}

/* A pool that cannot hold the model: the first stages are done before the last ones begin. */
static void test_a_small_pool_is_filled_in_execution_order(void)
{
	uint64_t all, window;
	struct follower f;

	sizes(deep_model(), &all, &window);
	CU_ASSERT(window < all);
	for (uint64_t bytes = window; bytes < all; bytes += (all - window) / 2) {
		load_cold(deep_model(), bytes, &f);
		CU_ASSERT_EQUAL(f.half[STAGES - 1], 0);
		CU_ASSERT(f.half[0] > f.stage[0] * 3 / 4);
	}
}

CTN_TESTS("pager_order", CTN_TEST(test_pipeline_stages_are_staged_side_by_side),
	  CTN_TEST(test_a_small_pool_is_filled_in_execution_order))
