// SPDX-License-Identifier: MIT
/* Parts that are staged ahead of loads: what comes, who uses it, and what is left when it does not
 * come. That the bytes are right shows in the loads, which compare them with the files' frames. */
#include "tuned_fixture.h"

#include <errno.h>
#include <unistd.h>

/* What the pool should charge for all parts. */
static uint64_t charged_bytes(const struct ctn_plan *plan)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < plan->part_count; i++)
		bytes += ctn_align_up(plan->parts[i].frame_bytes, CTN_EXTENT_ALIGN);
	return bytes;
}

/* What the pool has; nothing in it is held, or on its way. */
static uint64_t at_rest(struct rig *rig)
{
	struct ctn_pool_stats stats;

	ctn_pool_get_stats(rig->pool, false, &stats);
	CU_ASSERT_EQUAL(stats.loading_bytes, 0);
	CU_ASSERT_EQUAL(stats.leased_bytes, 0);
	return stats.clean_bytes;
}

static uint64_t staged_bytes(const struct rig *rig)
{
	struct ctn_pager_move_stats moves;

	ctn_pager_move_stats(rig->pager, CTN_PAGER_STAGE, &moves);
	return moves.bytes;
}

/* So many completions, or until nothing moves. */
static void dispatch(struct rig *rig, uint32_t times)
{
	struct pollfd pfd = {.fd = ctn_pager_fd(rig->pager), .events = POLLIN};

	for (uint32_t i = 0; i < times && ctn_pager_active(rig->pager); i++) {
		if (poll(&pfd, 1, 20) > 0)
			ctn_pager_dispatch(rig->pager);
	}
}

static bool has_part(struct rig *rig, uint32_t part)
{
	struct ctn_frame_info info;

	return ctn_pool_lookup(rig->pool, &rig->plan[0]->parts[part].key, &info) == 0;
}

static void test_a_load_finds_what_was_staged_ahead(void)
{
	struct ctn_err err = {0};
	uint64_t all;
	struct rig rig;

	rig_open(&rig, "host,mem=512M", "plain", 256 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, write_big(12, 300, 0), 1, 1, &err), 0);
	all = charged_bytes(rig.plan[0]);
	CU_ASSERT_EQUAL(ctn_pager_host_bytes(rig.pager, 0), all);
	CU_ASSERT_EQUAL(ctn_pager_host_missing(rig.pager, 0), all);
	/* The least that can be asked for is the first part. */
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, 1), 0);
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, 1), -EBUSY);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.ahead[0], 1);
	CU_ASSERT(has_part(&rig, 0) && !has_part(&rig, 1));
	CU_ASSERT_EQUAL(rig.staged_ahead, file_bytes(rig.plan[0], 0));
	CU_ASSERT_EQUAL(ctn_pager_host_missing(rig.pager, 0), all - at_rest(&rig));
	/* Two more, whatever the second is asked for. */
	CU_ASSERT_EQUAL(
		ctn_pager_stage_ahead(
			rig.pager, 0,
			ctn_align_up(rig.plan[0]->parts[1].frame_bytes, CTN_EXTENT_ALIGN) + 1),
		0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT(has_part(&rig, 2) && !has_part(&rig, 3));
	/* The rest: more than are read at once. */
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, all), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.ahead[0], 3);
	CU_ASSERT_EQUAL(ctn_pager_host_missing(rig.pager, 0), 0);
	CU_ASSERT_EQUAL(rig.staged_ahead, model_bytes(rig.plan[0]));
	CU_ASSERT_EQUAL(at_rest(&rig), all);
	/* There is nothing to do; that is said too. */
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, 1), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.ahead[0], 4);
	load_and_drop(&rig, 0, true);
	CU_ASSERT_EQUAL(rig.staged, 0);
	CU_ASSERT_EQUAL(rig.moved, rig.ckpt[0]->bytes);
	/* It can be evicted as any other. */
	CU_ASSERT_EQUAL(ctn_pager_drop_host(rig.pager, 0, UINT64_MAX), all);
	rig_close(&rig);
}

static void test_a_load_joins_what_is_on_its_way(void)
{
	struct ctn_err err = {0};
	struct rig rig;

	rig_open(&rig, "host,mem=512M", "plain", 256 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, write_big(12, 300, 0), 1, 1, &err), 0);
	for (uint32_t i = 0; i < 12; i++) {
		uint64_t before = staged_bytes(&rig), ahead = rig.staged_ahead;
		uint32_t ends = rig.loaded[0] + rig.failed[0];

		CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, UINT64_MAX), 0);
		dispatch(&rig, i);
		if (i % 3 == 2) {
			/* A load that is given up does not end it. */
			CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
			dispatch(&rig, i / 3);
			ctn_pager_cancel(rig.pager, 0);
			while (rig.loaded[0] + rig.failed[0] == ends)
				dispatch(&rig, 1);
			ctn_pager_drop(rig.pager, 0);
		}
		rig.staged = 0;
		load_and_drop(&rig, 0, true);
		/* Every byte is read once, by the one or by the other. */
		if (i % 3 != 2)
			CU_ASSERT_EQUAL(staged_bytes(&rig) - before, model_bytes(rig.plan[0]));
		CU_ASSERT_EQUAL(rig.ahead[0], i + 1);
		CU_ASSERT(rig.staged_ahead - ahead > 0);
		if (i % 3 != 2)
			CU_ASSERT_EQUAL(rig.staged_ahead - ahead + rig.staged,
					model_bytes(rig.plan[0]));
		CU_ASSERT_EQUAL(at_rest(&rig), charged_bytes(rig.plan[0]));
		ctn_pager_drop_host(rig.pager, 0, UINT64_MAX);
	}
	rig_close(&rig);
}

/* By their manifests: the tuned model reads what differs, and waits for the rest. */
static void test_a_load_of_another_awaits_equal_parts(void)
{
	struct ctn_err err = {0};
	uint64_t read, charged;
	char *dir, *tuned;
	struct rig rig;

	rig_open_tuned(&rig, &dir, &tuned);
	differing(rig.plan[0], rig.plan[1], &read, &charged);
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, UINT64_MAX), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 1, 1, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[1], 1);
	CU_ASSERT_EQUAL(rig.staged_ahead + rig.staged, staged_bytes(&rig));
	CU_ASSERT_EQUAL(rig.staged, read);
	/* And the other way round: what is there as another's is not read. */
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, UINT64_MAX), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(ctn_pager_host_missing(rig.pager, 0), 0);
	CU_ASSERT_EQUAL(rig.staged_ahead, model_bytes(rig.plan[0]));
	rig_close(&rig);
	free(tuned);
	free(dir);
}

static void test_a_read_that_fails_ends_no_load(void)
{
	const char *dir = strdup(write_big(2, 300, 0));
	struct ctn_err err = {0};
	char path[PATH_MAX];
	struct rig rig;

	rig_open(&rig, "host,mem=512M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, sample("gpt2-tinystories"), 1, 1, &err), 1);
	gen_path(path, dir, "model.safetensors");
	CU_ASSERT_EQUAL_FATAL(truncate(path, 1 << 20), 0);
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, UINT64_MAX), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 1, 1, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.ahead[0], 1);
	CU_ASSERT_EQUAL(rig.failed[0] + rig.failed[1], 0);
	CU_ASSERT_EQUAL(rig.loaded[1], 1);
	CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.msg, "model.safetensors"));
	at_rest(&rig);
	/* A load that needs the parts has the error, also when it finds the reads under way. */
	memset(&rig.err, 0, sizeof(rig.err));
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, UINT64_MAX), 0);
	load_and_drop(&rig, 0, false);
	CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.msg, "model.safetensors"));
	CU_ASSERT_EQUAL(rig.ahead[0], 2);
	at_rest(&rig);
	free((char *)dir);
	rig_close(&rig);
}

static void test_stopped_in_the_middle(void)
{
	uint32_t partly = 0;
	struct ctn_err err = {0};
	struct rig rig;

	rig_open(&rig, "host,mem=512M", "plain", 256 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, write_big(12, 300, 0), 1, 1, &err), 0);
	for (uint32_t i = 0; i < 10; i++) {
		CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, UINT64_MAX), 0);
		if (i % 2) {
			CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
			dispatch(&rig, i / 2);
			ctn_pager_cancel(rig.pager, 0);
		} else {
			dispatch(&rig, i / 2);
		}
		ctn_pager_stop_ahead(rig.pager, 0);
		CU_ASSERT_FATAL(settle(&rig));
		CU_ASSERT_EQUAL(rig.ahead[0], i + 1);
		CU_ASSERT_EQUAL(ctn_pager_host_missing(rig.pager, 0),
				charged_bytes(rig.plan[0]) - at_rest(&rig));
		partly += ctn_pager_host_missing(rig.pager, 0) > 0;
		ctn_pager_drop(rig.pager, 0);
		ctn_pager_drop_host(rig.pager, 0, UINT64_MAX);
	}
	CU_ASSERT(partly > 0);
	/* A load that has joined goes on by itself. */
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, UINT64_MAX), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	ctn_pager_stop_ahead(rig.pager, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	rig_close(&rig);
}

/* No read goes on while the test holds the lock. */
static ssize_t gated_pread(void *ctx, int fd, void *buf, size_t len, uint64_t offset)
{
	pthread_mutex_t *gate = ctx;
	ssize_t got;

	pthread_mutex_lock(gate);
	pthread_mutex_unlock(gate);
	got = pread(fd, buf, len, (off_t)offset);
	return got < 0 ? -errno : got;
}

/* Whoever has stopped it may ask again and again whether it has ended, and is not woken before. */
static void test_stopped_while_a_read_takes_its_time(void)
{
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	struct ctn_stage_sys sys = {.pread = gated_pread, .ctx = &gate};
	struct ctn_stage_config stage = {.method = CTN_STAGE_PREAD, .sys = &sys};
	struct ctn_err err = {0};
	struct rig rig;

	rig_open_with(&rig, "host,mem=512M", "plain", 128 * CTN_MIB, stage);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, write_big(2, 300, 0), 1, 1, &err), 0);
	pthread_mutex_lock(&gate);
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 0, 1), 0);
	for (int i = 0; i < 3; i++) {
		struct pollfd pfd = {.fd = ctn_pager_fd(rig.pager), .events = POLLIN};

		CU_ASSERT_TRUE(ctn_pager_stop_ahead(rig.pager, 0));
		CU_ASSERT_EQUAL(poll(&pfd, 1, 0), 0);
	}
	/* A load begins before the read has ended, and reads all by itself. */
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	CU_ASSERT_EQUAL(rig.ahead[0], 0);
	pthread_mutex_unlock(&gate);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.ahead[0], 1);
	CU_ASSERT_EQUAL(rig.staged_ahead, 0);
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	CU_ASSERT_EQUAL(rig.staged, model_bytes(rig.plan[0]));
	CU_ASSERT_FALSE(ctn_pager_stop_ahead(rig.pager, 0));
	rig_close(&rig);
	pthread_mutex_destroy(&gate);
}

static void test_room_is_asked_for(void)
{
	struct ctn_err err = {0};
	struct rig rig;
	uint64_t had;

	rig_open(&rig, "host,mem=512M", "plain", 64 * CTN_MIB);
	for (uint32_t i = 0; i < 2; i++)
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, write_big(3, 300, i), 1, 1, &err), (int)i);
	CU_ASSERT_FATAL(charged_bytes(rig.plan[0]) <= 64 * CTN_MIB);
	CU_ASSERT_FATAL(2 * charged_bytes(rig.plan[0]) > 64 * CTN_MIB);
	load_and_drop(&rig, 0, true);
	/* Nobody gives any: what has room comes. */
	rig.refuse_host = true;
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 1, UINT64_MAX), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.ahead[1], 1);
	CU_ASSERT(rig.host_needs > 0);
	CU_ASSERT_EQUAL(ctn_pager_host_missing(rig.pager, 0), 0);
	had = ctn_pager_host_missing(rig.pager, 1);
	CU_ASSERT(had > 0);
	rig.refuse_host = false;
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 1, had), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(ctn_pager_host_missing(rig.pager, 1), 0);
	CU_ASSERT(ctn_pager_host_missing(rig.pager, 0) > 0);
	/* A load takes what it needs, also while the other is still being staged. */
	ctn_pager_drop_host(rig.pager, 1, UINT64_MAX);
	CU_ASSERT_EQUAL(ctn_pager_stage_ahead(rig.pager, 1, UINT64_MAX), 0);
	load_and_drop(&rig, 0, true);
	CU_ASSERT_EQUAL(rig.ahead[1], 3);
	at_rest(&rig);
	rig_close(&rig);
}

CTN_TESTS("pager_ahead", CTN_TEST(test_a_load_finds_what_was_staged_ahead),
	  CTN_TEST(test_a_load_joins_what_is_on_its_way),
	  CTN_TEST(test_a_load_of_another_awaits_equal_parts),
	  CTN_TEST(test_a_read_that_fails_ends_no_load), CTN_TEST(test_stopped_in_the_middle),
	  CTN_TEST(test_stopped_while_a_read_takes_its_time), CTN_TEST(test_room_is_asked_for))
