// SPDX-License-Identifier: MIT
/* Loads over emulated links, their events, and streams. Lower bounds of times are exact; upper
 * bounds are generous, as the machine may be busy. */
#include "test.h"
#include "device/device.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#define MS 1000000ull

static struct ctn_device *devices[CTN_MAX_DEVICES];
static uint32_t device_count;
static uint8_t *memory[CTN_MAX_DEVICES]; /* all of each device */
static uint64_t memory_bytes;

static void open_devices(const char *spec)
{
	CU_ASSERT_EQUAL_FATAL(ctn_devices_open(spec, devices, &device_count, NULL), 0);
	memory_bytes = ctn_device_props(devices[0])->mem_bytes;
	for (uint32_t i = 0; i < device_count; i++) {
		void *va = NULL;

		CU_ASSERT_EQUAL_FATAL(ctn_device_reserve(devices[i], memory_bytes, &va), 0);
		CU_ASSERT_EQUAL_FATAL(ctn_device_map(devices[i], va, memory_bytes), 0);
		memory[i] = va;
	}
}

static void close_devices(void)
{
	for (uint32_t i = 0; i < device_count; i++) {
		ctn_device_unmap(devices[i], memory[i], memory_bytes, true);
		ctn_device_unreserve(devices[i], memory[i], memory_bytes);
	}
	ctn_devices_close(devices, device_count);
}

static struct ctn_event *new_event(void)
{
	struct ctn_event *event = NULL;

	CU_ASSERT_EQUAL_FATAL(ctn_event_new(devices[0], &event), 0);
	CU_ASSERT(!ctn_event_done(event));
	return event;
}

/* A seeded sequence of bytes; the caller frees it. */
static uint8_t *random_bytes(uint64_t bytes, unsigned int seed)
{
	uint8_t *p = malloc(bytes);

	CU_ASSERT_PTR_NOT_NULL_FATAL(p);
	for (uint64_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)(rand_r(&seed) >> 8);
	return p;
}

static void load_1d(uint32_t dev, void *dst, const void *src, uint64_t bytes,
		    struct ctn_event *event)
{
	struct ctn_copy copy = {.src = src, .dst = dst, .width = bytes, .height = 1};

	CU_ASSERT_EQUAL_FATAL(ctn_device_load(devices[dev], &copy, 1, event, NULL, NULL), 0);
}

/* When it returns, all loads before have completed and their callbacks have returned. */
static void drain(void)
{
	struct ctn_event *event = new_event();

	CU_ASSERT_EQUAL(ctn_device_load(devices[0], NULL, 0, event, NULL, NULL), 0);
	CU_ASSERT_EQUAL(ctn_event_wait(event), 0);
	ctn_event_free(event);
}

static void sleep_ns(uint64_t ns)
{
	struct timespec ts = {.tv_sec = (time_t)(ns / CTN_NSEC_PER_SEC),
			      .tv_nsec = (long)(ns % CTN_NSEC_PER_SEC)};

	nanosleep(&ts, NULL);
}

/* ---- bytes ------------------------------------------------------------------------------ */

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
	const uint64_t src_bytes = 10 * CTN_MIB;
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
	{2, 9, 1000, 4001, 1003, 1007},       /* pieces between rows */
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
	open_devices("host,mem=8M");
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

	open_devices("host,mem=8M,link=1G");
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

/* ---- order and events ------------------------------------------------------------------- */

#define LOADS 50

static struct {
	pthread_mutex_t lock;
	uint32_t count;
	uintptr_t order[LOADS];
	int rc;
	struct ctn_event *event;
	bool event_was_set;
} done = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void note_done(void *arg, int rc)
{
	pthread_mutex_lock(&done.lock);
	done.order[done.count++] = (uintptr_t)arg;
	done.rc |= rc;
	pthread_mutex_unlock(&done.lock);
}

static void test_loads_complete_in_the_order_of_their_submission(void)
{
	uint8_t *src = malloc(LOADS);
	struct ctn_event *event;

	open_devices("host,mem=1M");
	event = new_event();
	done.count = 0;
	for (uintptr_t i = 0; i < LOADS; i++) {
		struct ctn_copy copy = {.src = &src[i], .dst = memory[0], .width = 1, .height = 1};

		src[i] = (uint8_t)i;
		/* Some are empty: these keep their place too. */
		CU_ASSERT_EQUAL(ctn_device_load(devices[0], &copy, i % 7 != 3,
						i + 1 == LOADS ? event : NULL, note_done,
						(void *)i),
				0);
	}
	CU_ASSERT_EQUAL(ctn_event_wait(event), 0);
	CU_ASSERT_EQUAL(memory[0][0], LOADS - 1);
	drain();
	CU_ASSERT_EQUAL(done.count, LOADS);
	CU_ASSERT_EQUAL(done.rc, 0);
	for (uintptr_t i = 0; i < LOADS; i++)
		CU_ASSERT_EQUAL(done.order[i], i);
	ctn_event_free(event);
	close_devices();
	free(src);
}

static void look_at_event(void *arg, int rc)
{
	done.event_was_set = rc == 0 && ctn_event_done(done.event) && memory[0][0] == 9;
}

static void test_event_is_set_after_the_bytes_and_before_done(void)
{
	struct ctn_copy copy = {.width = 100000, .height = 1};
	uint8_t *src = malloc(100000);

	memset(src, 9, 100000);
	open_devices("host,mem=1M,link=2M"); /* 50 ms */
	done.event = new_event();
	done.event_was_set = false;
	copy.src = src;
	copy.dst = memory[0];
	CU_ASSERT_EQUAL(ctn_device_load(devices[0], &copy, 1, done.event, look_at_event, NULL), 0);
	CU_ASSERT(!ctn_event_done(done.event));
	CU_ASSERT_EQUAL(ctn_event_wait(done.event), 0);
	CU_ASSERT(ctn_event_done(done.event));
	CU_ASSERT_EQUAL(ctn_event_wait(done.event), 0);
	CU_ASSERT_EQUAL(memcmp(memory[0], src, 100000), 0);
	drain();
	CU_ASSERT(done.event_was_set);
	ctn_event_reset(done.event);
	CU_ASSERT(!ctn_event_done(done.event));
	ctn_event_free(done.event);
	close_devices();
	free(src);
}

static void test_work_from_before_a_reset_does_not_set_the_event(void)
{
	uint8_t *src = calloc(1, 100000);
	struct ctn_event *event, *first;

	open_devices("host,mem=1M,link=2M"); /* 50 ms a load */
	event = new_event();
	first = new_event();
	load_1d(0, memory[0], src, 100000, event);
	ctn_event_reset(event);
	load_1d(0, memory[0], src, 100000, first);
	CU_ASSERT_EQUAL(ctn_event_wait(first), 0);
	CU_ASSERT(!ctn_event_done(event));
	/* Given to two loads, it is the second's. */
	load_1d(0, memory[0], src, 100000, event);
	load_1d(0, memory[0], src, 1, first);
	load_1d(0, memory[0], src, 100000, event);
	CU_ASSERT_EQUAL(ctn_event_wait(first), 0);
	CU_ASSERT(!ctn_event_done(event));
	CU_ASSERT_EQUAL(ctn_event_wait(event), 0);
	/* Given to work again, it is unset. */
	load_1d(0, memory[0], src, 100000, event);
	CU_ASSERT(!ctn_event_done(event));
	CU_ASSERT_EQUAL(ctn_event_wait(event), 0);
	ctn_event_free(event);
	ctn_event_free(first);
	close_devices();
	free(src);
}

static void *wait_event(void *arg)
{
	return (void *)(intptr_t)ctn_event_wait(arg);
}

static void reset_event(void *arg, int rc)
{
	ctn_event_reset(arg);
}

static void test_waiters_return_although_the_event_is_unset_again(void)
{
	struct ctn_copy copy = {.width = 1000000, .height = 1};
	pthread_t waiters[3];
	struct ctn_event *event;
	void *rc = NULL;

	open_devices("host,mem=1M,link=2M"); /* 500 ms: the waiters are there before the end */
	event = new_event();
	copy.src = calloc(1, 1000000);
	copy.dst = memory[0];
	CU_ASSERT_EQUAL(ctn_device_load(devices[0], &copy, 1, event, reset_event, event), 0);
	for (size_t i = 0; i < CTN_ARRAY_LEN(waiters); i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&waiters[i], NULL, wait_event, event), 0);
	for (size_t i = 0; i < CTN_ARRAY_LEN(waiters); i++) {
		pthread_join(waiters[i], &rc);
		CU_ASSERT_PTR_NULL(rc);
	}
	drain();
	CU_ASSERT(!ctn_event_done(event));
	ctn_event_free(event);
	close_devices();
	free((void *)(uintptr_t)copy.src);
}

/* ---- time ------------------------------------------------------------------------------- */

#define PIECE  1048576u
#define PIECES 8u
#define RATE   40000000u /* 26.2 ms a piece */

/* The race is the point of the test, so the race detector must not see this read. */
__attribute__((no_sanitize("thread"))) static uint8_t peek(const uint8_t *p)
{
	return *(const volatile uint8_t *)p;
}

struct watch {
	const uint8_t *bytes;
	uint64_t seen[PIECES][2]; /* when the first and the last byte of a piece had come */
};

static void *watch_main(void *arg)
{
	struct watch *w = arg;
	uint32_t left = PIECES * 2;

	while (left) {
		for (uint32_t i = 0; i < PIECES; i++) {
			for (uint32_t end = 0; end < 2; end++) {
				if (w->seen[i][end] ||
				    !peek(w->bytes + i * PIECE + end * (PIECE - 1)))
					continue;
				w->seen[i][end] = ctn_now_ns();
				left--;
			}
		}
		sleep_ns(MS / 5);
	}
	return NULL;
}

static void test_no_byte_of_a_piece_shows_before_its_deadline(void)
{
	const uint64_t piece_ns = PIECE * CTN_NSEC_PER_SEC / RATE;
	uint8_t *src = malloc(PIECES * PIECE);
	struct watch watch = {0};
	struct ctn_event *event;
	pthread_t watcher;
	uint64_t start;

	open_devices("host,mem=8M,link=40M");
	event = new_event();
	memset(src, 1, PIECES * PIECE);
	memset(memory[0], 0, PIECES * PIECE);
	watch.bytes = memory[0];
	CU_ASSERT_EQUAL_FATAL(pthread_create(&watcher, NULL, watch_main, &watch), 0);
	start = ctn_now_ns();
	load_1d(0, memory[0], src, PIECES * PIECE, event);
	pthread_join(watcher, NULL);
	CU_ASSERT_EQUAL(ctn_event_wait(event), 0);
	for (uint32_t i = 0; i < PIECES; i++) {
		for (uint32_t end = 0; end < 2; end++) {
			uint64_t ns = watch.seen[i][end] - start;

			CU_ASSERT(ns >= (i + 1) * piece_ns);
			CU_ASSERT(ns < (i + 1) * piece_ns + 500 * MS);
		}
	}
	ctn_event_free(event);
	close_devices();
	free(src);
}

/* Loads `bytes` on each of the first n devices at once; the ns until each had them. */
static void time_loads(uint32_t n, uint64_t bytes, uint64_t *ns)
{
	struct ctn_event *events[4];
	uint8_t *src = calloc(1, bytes);
	uint64_t start = ctn_now_ns();

	for (uint32_t i = 0; i < n; i++) {
		events[i] = new_event();
		load_1d(i, memory[i], src, bytes, events[i]);
	}
	for (uint32_t i = 0; i < n; i++) {
		CU_ASSERT_EQUAL(ctn_event_wait(events[i]), 0);
		ns[i] = ctn_now_ns() - start;
	}
	for (uint32_t i = 0; i < n; i++)
		ctn_event_free(events[i]);
	free(src);
}

/* Within a factor of 2 above, and never below. */
static void check_ms(uint64_t ns, uint64_t ms)
{
	CU_ASSERT(ns >= ms * MS);
	CU_ASSERT(ns < 2 * ms * MS);
	if (ns < ms * MS || ns >= 2 * ms * MS)
		printf("# %llu ns, expected %llu ms\n", (unsigned long long)ns,
		       (unsigned long long)ms);
}

static void test_a_load_takes_bytes_over_rate(void)
{
	struct ctn_device_stats stats;
	uint64_t ns;

	open_devices("host,mem=8M,link=40M");
	time_loads(1, 8000000, &ns);
	check_ms(ns, 200);
	ctn_device_get_stats(devices[0], &stats);
	CU_ASSERT_EQUAL(stats.load_bytes, 8000000);
	CU_ASSERT_EQUAL(stats.loads, 1);
	CU_ASSERT(stats.load_ns >= 200 * MS && stats.load_ns <= ns);
	/* An idle link is not busy. */
	sleep_ns(20 * MS);
	time_loads(1, 1, &ns);
	ctn_device_get_stats(devices[0], &stats);
	CU_ASSERT(stats.load_ns < 200 * MS + 200 * MS);
	CU_ASSERT_EQUAL(stats.loads, 2);
	close_devices();
}

static void test_an_idle_link_saves_no_time_up(void)
{
	uint64_t ns;

	open_devices("host,mem=8M,link=40M");
	sleep_ns(200 * MS);
	time_loads(1, 4000000, &ns);
	check_ms(ns, 100);
	close_devices();
}

static void test_links_of_their_own_do_not_share(void)
{
	uint64_t ns[2];

	open_devices("host:2,mem=8M,link=40M");
	time_loads(2, 8000000, ns);
	check_ms(ns[0], 200);
	check_ms(ns[1], 200);
	close_devices();
}

static void test_two_links_on_an_uplink_get_half_each(void)
{
	uint64_t ns[2];

	open_devices("host:2,mem=8M,link=40M,uplink=0-1:40M");
	time_loads(2, 4000000, ns);
	check_ms(ns[0], 200);
	check_ms(ns[1], 200);
	/* Alone, one has all of it. */
	time_loads(1, 8000000, ns);
	check_ms(ns[0], 200);
	close_devices();
}

static void test_a_lone_link_gets_the_smaller_rate(void)
{
	uint64_t ns;

	open_devices("host:2,mem=8M,link=40M,uplink=0-1:20M");
	time_loads(1, 4000000, &ns);
	check_ms(ns, 200);
	close_devices();
	open_devices("host:2,mem=8M,link=20M,uplink=0-1:400M");
	time_loads(1, 4000000, &ns);
	check_ms(ns, 200);
	close_devices();
	open_devices("host:2,mem=8M,uplink=0-1:20M");
	time_loads(1, 4000000, &ns);
	check_ms(ns, 200);
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

static void test_a_layer_takes_its_emulated_time(void)
{
	struct ctn_stream *stream;
	uint64_t start;

	open_devices("host,mem=64K,layer_ms=40");
	CU_ASSERT_EQUAL_FATAL(ctn_stream_new(devices[0], &stream), 0);
	start = ctn_now_ns();
	for (int i = 0; i < 4; i++) {
		CU_ASSERT_EQUAL(ctn_stream_layer_begin(stream), 0);
		sleep_ns(20 * MS); /* the compute is a part of the layer's time */
		CU_ASSERT_EQUAL(ctn_stream_layer_end(stream), 0);
	}
	check_ms(ctn_now_ns() - start, 160);
	/* Compute that takes longer is not slowed further. */
	start = ctn_now_ns();
	CU_ASSERT_EQUAL(ctn_stream_layer_begin(stream), 0);
	sleep_ns(100 * MS);
	CU_ASSERT_EQUAL(ctn_stream_layer_end(stream), 0);
	CU_ASSERT(ctn_now_ns() - start < 135 * MS);
	ctn_stream_free(stream);
	close_devices();
}

CTN_TESTS("device_load", CTN_TEST(test_every_shape_arrives_and_nothing_else_changes),
	  CTN_TEST(test_pieces_span_the_copies_of_a_load), CTN_TEST(test_bad_copies_are_refused),
	  CTN_TEST(test_loads_complete_in_the_order_of_their_submission),
	  CTN_TEST(test_event_is_set_after_the_bytes_and_before_done),
	  CTN_TEST(test_work_from_before_a_reset_does_not_set_the_event),
	  CTN_TEST(test_waiters_return_although_the_event_is_unset_again),
	  CTN_TEST(test_no_byte_of_a_piece_shows_before_its_deadline),
	  CTN_TEST(test_a_load_takes_bytes_over_rate), CTN_TEST(test_an_idle_link_saves_no_time_up),
	  CTN_TEST(test_links_of_their_own_do_not_share),
	  CTN_TEST(test_two_links_on_an_uplink_get_half_each),
	  CTN_TEST(test_a_lone_link_gets_the_smaller_rate),
	  CTN_TEST(test_uploads_and_downloads_are_counted),
	  CTN_TEST(test_a_stream_waits_for_the_load),
	  CTN_TEST(test_a_layer_takes_its_emulated_time))
