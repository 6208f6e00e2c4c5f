// SPDX-License-Identifier: MIT
/* What `computron bench` stands on: that it would see wrong bytes, and what it times. */
#include "tools/bench.h"
#include "tools/synthetic.h"

#include "bench_fixture.h"

#include <errno.h>

/* Turns one bit of a byte that a load brings: the last one of the rank's last rectangle, or the
 * first one of its first. */
static void turn_bit(struct ctn_bench_rig *rig, uint32_t rank, bool last)
{
	const struct ctn_rank_plan *plan = &rig->resident->plan->ranks[rank];
	void *const *const *pieces = ctn_pager_pieces(rig->pager, rig->resident->model, rank);
	struct ctn_stream *stream = rig->streams[rank];
	uint8_t *at = NULL, byte;

	for (uint32_t i = 0; i < plan->layer_count; i++) {
		for (uint32_t k = 0; k < plan->shards[i].piece_count; k++) {
			const struct ctn_piece *piece = &plan->shards[i].pieces[k];
			const struct ctn_rect *rect =
				&piece->rects[last ? piece->rect_count - 1 : 0];
			uint64_t row = last ? rect->height - 1 : 0;

			if (at && !last)
				continue;
			at = (uint8_t *)pieces[i][k] + rect->dst_offset + row * rect->dst_pitch +
			     (last ? rect->width - 1 : 0);
		}
	}
	CU_ASSERT_PTR_NOT_NULL_FATAL(at);
	CU_ASSERT_EQUAL_FATAL(ctn_stream_download(stream, &byte, at, 1), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_stream_sync(stream), 0);
	byte ^= 1;
	CU_ASSERT_EQUAL_FATAL(ctn_stream_upload(stream, at, &byte, 1), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_stream_sync(stream), 0);
}

static void test_wrong_bytes_are_seen(void)
{
	static const uint32_t splits[][2] = {{1, 1}, {2, 2}, {1, 4}, {4, 1}};

	for (size_t i = 0; i < CTN_ARRAY_LEN(splits); i++) {
		struct ctn_bench_switch took;
		struct ctn_err err = {0};
		struct ctn_bench_rig rig;

		open_rig("host:4,mem=32M", splits[i][0], splits[i][1], &rig);
		switch_to(&rig, 0, &took);
		CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), 0);
		for (uint32_t r = 0; r < rig.resident->plan->rank_count; r++) {
			for (int last = 0; last < 2; last++) {
				turn_bit(&rig, r, last);
				CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), -EBADMSG);
				turn_bit(&rig, r, last);
				CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), 0);
			}
		}
		ctn_bench_rig_close(&rig);
	}
}

/* The digests of the other model do not fit, and nothing fits what was overwritten. */
static void test_other_bytes_are_seen(void)
{
	struct ctn_bench_switch took;
	struct ctn_err err = {0};
	struct ctn_bench_rig rig;
	uint64_t ns;

	open_rig("host:2,mem=32M", 2, 1, &rig);
	for (uint32_t r = 0; r < 2; r++)
		CU_ASSERT_NOT_EQUAL(memcmp(&rig.sides[0].digests[r], &rig.sides[1].digests[r],
					   sizeof(rig.sides[0].digests[r])),
				    0);
	switch_to(&rig, 1, &took);
	CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), 0);
	CU_ASSERT_EQUAL(ctn_bench_poison(&rig, &err), 0);
	CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), -EBADMSG);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "host:0"));
	switch_to(&rig, 0, &took);
	CU_ASSERT_EQUAL(ctn_bench_rig_bare(&rig, &rig.sides[1], &ns, &err), 0);
	CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), -EBADMSG);
	switch_to(&rig, 1, &took);
	CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), 0);
	ctn_bench_rig_close(&rig);
}

/* Neither can end before the link has had the time to carry the bytes. */
static void test_times_and_bytes(void)
{
	const double rate = 100e6;
	struct ctn_device_stats before, after;
	struct ctn_bench_switch took;
	struct ctn_err err = {0};
	struct ctn_bench_rig rig;
	double least;
	uint64_t ns;

	open_rig("host,mem=32M,link=100M", 1, 1, &rig);
	CU_ASSERT_EQUAL(rig.side_count, CTN_BENCH_MODELS);
	least = (double)rig.sides[0].bytes[0] / rate * 1e9;
	CU_ASSERT(rig.sides[0].bytes[0] > 0.98 * (12 << 20));

	CU_ASSERT_EQUAL(ctn_bench_rig_check_clean(&rig, &rig.sides[0], &err), -ENOENT);
	switch_to(&rig, 0, &took);
	CU_ASSERT_EQUAL(ctn_bench_rig_check_clean(&rig, &rig.sides[0], &err), 0);
	CU_ASSERT_EQUAL(ctn_bench_rig_check_clean(&rig, &rig.sides[1], &err), -ENOENT);
	switch_to(&rig, 1, &took);
	CU_ASSERT_EQUAL(ctn_bench_rig_check_clean(&rig, &rig.sides[1], &err), 0);
	CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), 0);

	ctn_device_get_stats(rig.devices[0], &before);
	CU_ASSERT(before.d2h_bytes > 0); /* what was verified */
	switch_to(&rig, 0, &took);
	ctn_device_get_stats(rig.devices[0], &after);
	CU_ASSERT((double)took.ns >= least);
	CU_ASSERT(took.drop_ns < took.ns);
	CU_ASSERT_EQUAL(took.d2h_bytes, 0);
	CU_ASSERT_EQUAL(after.load_bytes - before.load_bytes, rig.sides[0].bytes[0]);

	CU_ASSERT_EQUAL(ctn_bench_rig_bare(&rig, &rig.sides[1], &ns, &err), 0);
	ctn_device_get_stats(rig.devices[0], &before);
	CU_ASSERT((double)ns >= least);
	CU_ASSERT_EQUAL(before.load_bytes - after.load_bytes, rig.sides[1].bytes[0]);
	CU_ASSERT_EQUAL(before.loads - after.loads, 1);
	ctn_bench_rig_close(&rig);
}

/* The sides at (1, 1) come with a split, and lie on one device. */
static void test_sides(void)
{
	struct ctn_bench_switch took;
	struct ctn_err err = {0};
	struct ctn_bench_rig rig;
	uint64_t sum = 0;

	open_rig("host:4,mem=32M", 2, 2, &rig);
	CU_ASSERT_EQUAL_FATAL(rig.side_count, 2 * CTN_BENCH_MODELS);
	for (uint32_t r = 0; r < 4; r++)
		sum += rig.sides[0].bytes[r];
	/* Norms, positions and the tied head are on more ranks than one. */
	CU_ASSERT(sum > rig.sides[2].bytes[0]);
	for (uint32_t i = 4; i-- > 0;) {
		switch_to(&rig, i, &took);
		CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), 0);
	}
	ctn_bench_rig_close(&rig);
}

/* A segment is 2 MiB, so a rank's bytes come from several. The ranks follow each other in the
 * pool, as they would not share what they load. */
static void test_bare_over_segments(void)
{
	struct ctn_bench_rig_config cfg = config("host:4,mem=32M", 4, 1);
	struct ctn_bench_switch took;
	struct ctn_err err = {0};
	struct ctn_device_stats before[4], after;
	struct ctn_segment segment;
	struct ctn_bench_rig rig;
	uint64_t ns, offset = 0;
	uint8_t found[16];

	cfg.pool = "plain,segment=2M";
	CU_ASSERT_EQUAL_FATAL(ctn_bench_rig_open(&cfg, &rig, &err), 0);
	switch_to(&rig, 0, &took);
	for (uint32_t d = 0; d < 4; d++)
		ctn_device_get_stats(rig.devices[d], &before[d]);
	CU_ASSERT_EQUAL(ctn_bench_rig_bare(&rig, &rig.sides[0], &ns, &err), 0);
	for (uint32_t d = 0; d < 4; d++) {
		ctn_device_get_stats(rig.devices[d], &after);
		CU_ASSERT_EQUAL(after.load_bytes - before[d].load_bytes, rig.sides[0].bytes[d]);
		ctn_pool_segment(rig.pool, (uint32_t)(offset / (2 * CTN_MIB)), &segment);
		ctn_stream_download(rig.streams[d], found,
				    ctn_pager_pieces(rig.pager, rig.resident->model, d)[0][0],
				    sizeof(found));
		CU_ASSERT_EQUAL(ctn_stream_sync(rig.streams[d]), 0);
		CU_ASSERT_EQUAL(memcmp(found, segment.addr + offset % (2 * CTN_MIB), sizeof(found)),
				0);
		offset += rig.sides[0].bytes[d];
	}
	ctn_bench_rig_close(&rig);
}

static void test_lost_frames(void)
{
	struct ctn_bench_rig_config cfg = config("host,mem=32M", 1, 1);
	struct ctn_bench_switch took;
	struct ctn_err err = {0};
	struct ctn_bench_rig rig;

	cfg.pool = "lossy";
	CU_ASSERT_EQUAL_FATAL(ctn_bench_rig_open(&cfg, &rig, &err), 0);
	switch_to(&rig, 0, &took);
	CU_ASSERT_EQUAL(ctn_bench_rig_check_clean(&rig, &rig.sides[0], &err), 0);
	ctn_pool_lossy_set(rig.pool, 1, 1);
	ctn_bench_rig_check_clean(&rig, &rig.sides[0], NULL); /* each look-up loses one */
	CU_ASSERT_EQUAL(ctn_bench_rig_check_clean(&rig, &rig.sides[0], &err), -ENOENT);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "CLEAN"));
	ctn_pool_lossy_set(rig.pool, 1, 0);
	switch_to(&rig, 1, &took);
	CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), 0);
	ctn_bench_rig_close(&rig);
}

static void test_refusals(void)
{
	static const struct {
		const char *device, *pool;
		uint32_t tp, pp;
		int rc;
		const char *says;
	} cases[] = {
		{"host,mem=4M", "plain", 1, 1, -ENOSPC, "host:0 has 4.00 MiB"},
		{"host:2,mem=9M", "plain", 2, 1, -ENOSPC, "speedup"},
		{"host:3,mem=32M", "plain", 2, 2, -EINVAL, "found 3"},
		{"host,mem=32M", "plain,size=20M", 1, 1, -ENOSPC, "--pool"},
		{"host,mem=32M", "plain,size=", 1, 1, -EINVAL, "--pool"},
		{"host,mem=32M", "plain,sice=4M", 1, 1, -EINVAL, "sice"},
		{"host,mem=32M", "marble", 1, 1, -ENOENT, "marble"},
		{"abacus", "plain", 1, 1, -ENOTSUP, "abacus"},
		{"host:3,mem=32M", "plain", 3, 1, -EINVAL, "tp"},
	};
	struct ctn_bench_rig rig;
	struct ctn_err err;

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_bench_rig_config cfg = config(cases[i].device, cases[i].tp, cases[i].pp);

		cfg.pool = cases[i].pool;
		err = (struct ctn_err){0};
		CU_ASSERT_EQUAL(ctn_bench_rig_open(&cfg, &rig, &err), cases[i].rc);
		CU_ASSERT_EQUAL(err.code, cases[i].rc);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, cases[i].says));
	}
}

static void test_models_of_other_sizes(void)
{
	struct ctn_bench_rig_config cfg = config("host,mem=32M", 1, 1);
	struct ctn_synthetic s = {.family = "opt", .bytes = 3 << 20};
	struct ctn_err err = {0};
	struct ctn_bench_rig rig;
	char *other;

	CU_ASSERT_EQUAL_FATAL(ctn_synthetic_get(&s, &other, &err), 0);
	cfg.dirs[1] = other;
	CU_ASSERT_EQUAL(ctn_bench_rig_open(&cfg, &rig, &err), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "equal bytes"));
	free(other);
}

static void test_statistics(void)
{
	double one[] = {7}, even[] = {4, 1, 3, 2}, odd[] = {9, 5, 1}, many[100];

	CU_ASSERT_EQUAL(ctn_bench_median(one, 1), 7);
	CU_ASSERT_EQUAL(ctn_bench_p95(one, 1), 7);
	CU_ASSERT_EQUAL(ctn_bench_median(even, 4), 2.5);
	CU_ASSERT_EQUAL(ctn_bench_median(odd, 3), 5);
	CU_ASSERT_EQUAL(ctn_bench_p95(odd, 3), 9);
	for (unsigned int i = 0; i < 100; i++)
		many[i] = 100 - (double)i;
	CU_ASSERT_EQUAL(ctn_bench_p95(many, 100), 95);
	CU_ASSERT_EQUAL(ctn_bench_p95(many, 30), 29); /* of 1 to 30: 28.5 of them */
}

CTN_TESTS("tools_bench", CTN_TEST(test_wrong_bytes_are_seen), CTN_TEST(test_other_bytes_are_seen),
	  CTN_TEST(test_times_and_bytes), CTN_TEST(test_sides), CTN_TEST(test_bare_over_segments),
	  CTN_TEST(test_lost_frames), CTN_TEST(test_refusals), CTN_TEST(test_models_of_other_sizes),
	  CTN_TEST(test_statistics))
