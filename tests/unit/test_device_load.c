// SPDX-License-Identifier: MIT
/* What loads and streams copy, byte by byte, and what they refuse and count. */
#include "device_fixture.h"

#include <errno.h>

struct shape {
	uint64_t src, dst, width, height, src_pitch, dst_pitch;
};

/* The definition of a copy, byte by byte. */
static void expect_copy(uint8_t *dst, const uint8_t *src, const struct shape *s)
{
	for (uint64_t y = 0; y < s->height; y++) {
		for (uint64_t x = 0; x < s->width; x++)
			dst[s->dst + y * s->dst_pitch + x] = src[s->src + y * s->src_pitch + x];
	}
}

static void check_shapes(const struct shape *shapes, uint32_t count)
{
	const uint64_t src_bytes = 4 * CTN_MIB;
	uint8_t *src = random_bytes(src_bytes, 1), *expected = malloc(memory_bytes);
	struct ctn_event *event = new_event();
	struct ctn_device_stats before, after;
	struct ctn_copy copies[16];
	uint64_t bytes = 0;

	CU_ASSERT_PTR_NOT_NULL_FATAL(expected);
	memset(expected, 0xee, memory_bytes);
	memset(memory[0], 0xee, memory_bytes);
	for (uint32_t i = 0; i < count; i++) {
		const struct shape *s = &shapes[i];

		copies[i] = (struct ctn_copy){.src = src + s->src,
					      .dst = memory[0] + s->dst,
					      .width = s->width,
					      .height = s->height,
					      .src_pitch = s->src_pitch,
					      .dst_pitch = s->dst_pitch};
		expect_copy(expected, src, s);
		bytes += s->width * s->height;
	}
	ctn_device_get_stats(devices[0], &before);
	CU_ASSERT_EQUAL(ctn_device_load(devices[0], copies, count, event, NULL, NULL), 0);
	memset(copies, 0, sizeof(copies)); /* the device has its own */
	CU_ASSERT_EQUAL(ctn_event_wait(event), 0);
	ctn_device_get_stats(devices[0], &after);
	CU_ASSERT_EQUAL(memcmp(memory[0], expected, memory_bytes), 0);
	CU_ASSERT_EQUAL(after.load_bytes - before.load_bytes, bytes);
	CU_ASSERT_EQUAL(after.loads - before.loads, 1);
	ctn_event_free(event);
	free(src);
	free(expected);
}

static const struct shape shapes[] = {
	{0, 0, 1, 1, 0, 0},
	{3, 5, 4097, 1, 0, 0},
	{1, 7, 2 * 1048576 + 3, 1, 0, 0},     /* pieces within a row */
	{0, 0, 1048576, 1, 0, 0},             /* exactly one piece */
	{2, 9, 1000, 3001, 1003, 1007},       /* pieces between rows */
	{2, 9, 7, 50000, 11, 7},              /* many short rows */
	{5, 1, 1048577, 3, 1048600, 1048700}, /* rows longer than a piece */
	{5, 1, 1048576, 3, 1048600, 1048700}, /* rows of exactly a piece */
	{0, 0, 4096, 700, 4096, 4096},        /* rows without a gap */
	{0, 0, 600000, 5, 600001, 600000},    /* one row a piece */
	{0, 0, 0, 5, 10, 10},
	{0, 0, 5, 0, 10, 10},
};

static void test_every_shape_arrives_and_nothing_else_changes(void)
{
	open_devices("host,mem=4M");
	for (size_t i = 0; i < CTN_ARRAY_LEN(shapes); i++)
		check_shapes(&shapes[i], 1);
	check_shapes(NULL, 0);
	close_devices();
}

static void test_pieces_span_the_copies_of_a_load(void)
{
	static const struct shape several[] = {
		{0, 0, 100001, 3, 200000, 100003},       {0, 400000, 17, 1, 0, 0},
		{9, 500000, 1500001, 1, 0, 0},           {1, 2100000, 0, 9, 1, 1},
		{8, 2200000, 333, 1000, 400, 333},       {0, 2600000, 1, 1, 0, 0},
		{4, 2700000, 400000, 3, 400001, 400002},
	};

	open_devices("host,mem=4M,link=1G");
	check_shapes(several, CTN_ARRAY_LEN(several));
	close_devices();
}

static void test_bad_copies_are_refused(void)
{
	static const char src[16];
	struct ctn_device_stats stats;
	uint8_t *dst;
	struct {
		struct ctn_copy copy;
		int rc;
	} cases[7];

	open_devices("host,mem=64K");
	dst = memory[0];
	cases[0].copy = (struct ctn_copy){src, dst, 16, 2, 15, 16};
	cases[0].rc = -EINVAL;
	cases[1].copy = (struct ctn_copy){src, dst, 16, 2, 16, 15};
	cases[1].rc = -EINVAL;
	cases[2].copy = (struct ctn_copy){src, dst, UINT64_MAX, 2, UINT64_MAX, UINT64_MAX};
	cases[2].rc = -EOVERFLOW;
	cases[3].copy = (struct ctn_copy){src, dst, 1, 3, 1, UINT64_MAX / 2};
	cases[3].rc = -EOVERFLOW;
	cases[4].copy = (struct ctn_copy){src, dst, 65537, 1, 0, 0};
	cases[4].rc = -EFAULT;
	cases[5].copy = (struct ctn_copy){src, dst + 1, 16, 4096, 16, 16};
	cases[5].rc = -EFAULT;
	cases[6].copy = (struct ctn_copy){dst, (void *)(uintptr_t)src, 16, 1, 0, 0};
	cases[6].rc = -EFAULT;
	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++)
		CU_ASSERT_EQUAL(ctn_device_load(devices[0], &cases[i].copy, 1, NULL, NULL, NULL),
				cases[i].rc);
	ctn_device_get_stats(devices[0], &stats);
	CU_ASSERT_EQUAL(stats.loads, 0);
	CU_ASSERT_EQUAL(stats.load_bytes, 0);
	close_devices();
}

/* ---- streams ---------------------------------------------------------------------------- */

static void test_uploads_and_downloads_are_counted(void)
{
	uint8_t *src = random_bytes(5000, 2), back[5000] = {0};
	struct ctn_device_stats stats;
	struct ctn_stream *stream;

	open_devices("host,mem=64K");
	CU_ASSERT_EQUAL_FATAL(ctn_stream_new(devices[0], &stream), 0);
	CU_ASSERT_EQUAL(ctn_stream_upload(stream, memory[0] + 3, src, 5000), 0);
	CU_ASSERT_EQUAL(ctn_stream_download(stream, back, memory[0] + 3, 4000), 0);
	CU_ASSERT_EQUAL(ctn_stream_download(stream, back + 4000, memory[0] + 4003, 1000), 0);
	CU_ASSERT_EQUAL(ctn_stream_sync(stream), 0);
	CU_ASSERT_EQUAL(memcmp(back, src, 5000), 0);
	/* The first error stays until sync tells it; what failed is not counted. */
	CU_ASSERT_EQUAL(ctn_stream_upload(stream, memory[0] + 65000, src, 537), -EFAULT);
	CU_ASSERT_EQUAL(ctn_stream_download(stream, back, src, 5000), -EFAULT);
	CU_ASSERT_EQUAL(ctn_stream_upload(stream, memory[0], src, 1), 0);
	CU_ASSERT_EQUAL(ctn_stream_sync(stream), -EFAULT);
	CU_ASSERT_EQUAL(ctn_stream_sync(stream), 0);
	ctn_device_get_stats(devices[0], &stats);
	CU_ASSERT_EQUAL(stats.upload_bytes, 5001);
	CU_ASSERT_EQUAL(stats.d2h_bytes, 5000);
	CU_ASSERT_EQUAL(stats.load_bytes, 0);
	ctn_stream_free(stream);
	close_devices();
	free(src);
}

static void test_a_stream_waits_for_the_load(void)
{
	uint8_t *src = random_bytes(200000, 3), *back = malloc(200000);
	struct ctn_stream *stream;
	struct ctn_event *event;
	uint64_t start;

	open_devices("host,mem=1M,link=2M"); /* 100 ms */
	CU_ASSERT_EQUAL_FATAL(ctn_stream_new(devices[0], &stream), 0);
	event = new_event();
	start = ctn_now_ns();
	load_1d(0, memory[0], src, 200000, event);
	CU_ASSERT_EQUAL(ctn_stream_wait(stream, event), 0);
	CU_ASSERT_EQUAL(ctn_stream_download(stream, back, memory[0], 200000), 0);
	CU_ASSERT_EQUAL(ctn_stream_sync(stream), 0);
	CU_ASSERT(ctn_now_ns() - start >= 100 * MS);
	CU_ASSERT_EQUAL(memcmp(back, src, 200000), 0);
	ctn_stream_free(stream);
	ctn_event_free(event);
	close_devices();
	free(src);
	free(back);
}

CTN_TESTS("device_load", CTN_TEST(test_every_shape_arrives_and_nothing_else_changes),
	  CTN_TEST(test_pieces_span_the_copies_of_a_load), CTN_TEST(test_bad_copies_are_refused),
	  CTN_TEST(test_uploads_and_downloads_are_counted),
	  CTN_TEST(test_a_stream_waits_for_the_load))
