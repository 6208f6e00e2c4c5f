// SPDX-License-Identifier: MIT
/* The time that emulated links and layers take. Lower bounds are exact. */
#include "device_fixture.h"

#include <pthread.h>

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
		}
	}
	ctn_event_free(event);
	close_devices();
	free(src);
}

/* Loads `bytes` on each of the first n devices at once; the ns until each had them. Returns
 * the ns that the submission took: for so long a link may have been alone. */
static uint64_t time_loads(uint32_t n, uint64_t bytes, uint64_t *ns)
{
	struct ctn_event *events[2];
	uint8_t *src = calloc(1, bytes);
	uint64_t start = ctn_now_ns(), submitted;

	for (uint32_t i = 0; i < n; i++) {
		events[i] = new_event();
		load_1d(i, memory[i], src, bytes, events[i]);
	}
	submitted = ctn_now_ns() - start;
	for (uint32_t i = 0; i < n; i++) {
		CU_ASSERT_EQUAL(ctn_event_wait(events[i]), 0);
		ns[i] = ctn_now_ns() - start;
	}
	for (uint32_t i = 0; i < n; i++)
		ctn_event_free(events[i]);
	free(src);
	return submitted;
}

/*
 * n links that load at once take at least `ms` until the last has ended: always. A link that
 * shares can end before by no more than it gained while it was alone. And each takes less than
 * twice as long in one of several tries, as the machine may have other things to do.
 */
static void check_loads(uint32_t n, uint64_t bytes, uint64_t ms)
{
	uint64_t ns[2], slowest = UINT64_MAX;

	for (int try = 0; try < 10 && slowest >= 2 * ms * MS; try++) {
		uint64_t alone = time_loads(n, bytes, ns);

		slowest = 0;
		for (uint32_t i = 0; i < n; i++) {
			CU_ASSERT(ns[i] + alone >= ms * MS);
			slowest = CTN_MAX(slowest, ns[i]);
		}
		CU_ASSERT(slowest >= ms * MS);
	}
	CU_ASSERT(slowest < 2 * ms * MS);
}

static void test_a_load_takes_bytes_over_rate(void)
{
	open_devices("host,mem=4M,link=20M");
	check_loads(1, 3000000, 150);
	/* An idle link saves no time up. */
	sleep_ns(150 * MS);
	check_loads(1, 3000000, 150);
	close_devices();
}

static void test_a_link_is_busy_while_it_has_loads(void)
{
	struct ctn_device_stats stats;
	uint64_t start = ctn_now_ns(), ns[2];

	open_devices("host,mem=4M,link=20M");
	time_loads(1, 2000000, &ns[0]);
	sleep_ns(50 * MS);
	time_loads(1, 1000000, &ns[1]);
	ctn_device_get_stats(devices[0], &stats);
	CU_ASSERT_EQUAL(stats.load_bytes, 3000000);
	CU_ASSERT_EQUAL(stats.loads, 2);
	CU_ASSERT(stats.load_ns >= 150 * MS);
	CU_ASSERT(stats.load_ns <= ns[0] + ns[1]);
	CU_ASSERT(stats.load_ns <= ctn_now_ns() - start - 50 * MS);
	close_devices();
}

static void test_links_of_their_own_do_not_share(void)
{
	open_devices("host:2,mem=4M,link=20M");
	check_loads(2, 3000000, 150);
	close_devices();
}

static void test_two_links_on_an_uplink_get_half_each(void)
{
	open_devices("host:2,mem=4M,link=20M,uplink=0-1:20M");
	check_loads(2, 1500000, 150);
	/* Alone, one has all of it. */
	check_loads(1, 3000000, 150);
	close_devices();
}

static void test_a_lone_link_gets_the_smaller_rate(void)
{
	open_devices("host:2,mem=4M,link=20M,uplink=0-1:10M");
	check_loads(1, 1500000, 150);
	close_devices();
	open_devices("host:2,mem=4M,link=10M,uplink=0-1:400M");
	check_loads(1, 1500000, 150);
	close_devices();
	open_devices("host:2,mem=4M,uplink=0-1:10M");
	check_loads(1, 1500000, 150);
	close_devices();
}

/* Four layers with 10 ms of compute each; the ns that they took. */
static uint64_t time_layers(struct ctn_stream *stream)
{
	uint64_t start = ctn_now_ns();

	for (int i = 0; i < 4; i++) {
		CU_ASSERT_EQUAL(ctn_stream_layer_begin(stream), 0);
		sleep_ns(10 * MS);
		CU_ASSERT_EQUAL(ctn_stream_layer_end(stream), 0);
	}
	return ctn_now_ns() - start;
}

/* Never below `low`, and below `high` in one of several tries. */
static void check_layers(const char *spec, uint64_t low, uint64_t high)
{
	struct ctn_stream *stream;
	uint64_t ns = UINT64_MAX;

	open_devices(spec);
	CU_ASSERT_EQUAL_FATAL(ctn_stream_new(devices[0], &stream), 0);
	for (int try = 0; try < 10 && ns >= high * MS; try++) {
		ns = time_layers(stream);
		CU_ASSERT(ns >= low * MS);
	}
	CU_ASSERT(ns < high * MS);
	ctn_stream_free(stream);
	close_devices();
}

static void test_a_layer_takes_its_emulated_time(void)
{
	/* The compute is a part of the layer's time, not an addition to it. */
	check_layers("host,mem=64K,layer_ms=60", 240, 280);
	/* Compute that takes longer is not slowed further. */
	check_layers("host,mem=64K,layer_ms=5", 40, 60);
	check_layers("host,mem=64K", 40, 60);
}

CTN_TESTS("device_time", CTN_TEST(test_no_byte_of_a_piece_shows_before_its_deadline),
	  CTN_TEST(test_a_load_takes_bytes_over_rate),
	  CTN_TEST(test_a_link_is_busy_while_it_has_loads),
	  CTN_TEST(test_links_of_their_own_do_not_share),
	  CTN_TEST(test_two_links_on_an_uplink_get_half_each),
	  CTN_TEST(test_a_lone_link_gets_the_smaller_rate),
	  CTN_TEST(test_a_layer_takes_its_emulated_time))
