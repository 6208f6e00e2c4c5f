// SPDX-License-Identifier: MIT
/* The order of loads, their callbacks, and events. */
#include "device_fixture.h"

#include <pthread.h>

#define LOADS 50

static struct {
	pthread_mutex_t lock;
	uint32_t count;
	uintptr_t order[LOADS];
	int rc;
	struct ctn_event *event;
	bool event_was_set;
	uint8_t byte;
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

/* On the link's thread: no later load can have gone on meanwhile. */
static void look_at_event(void *arg, int rc)
{
	done.event_was_set = rc == 0 && ctn_event_done(done.event);
	done.byte = memory[0][0];
}

static void test_event_is_set_after_the_bytes_and_before_done(void)
{
	struct ctn_copy copy = {.width = 100000, .height = 1};
	uint8_t *src = malloc(100000);
	uint64_t start;
	bool set;

	memset(src, 9, 100000);
	open_devices("host,mem=1M,link=2M"); /* 50 ms */
	done.event = new_event();
	copy.src = src;
	copy.dst = memory[0];
	start = ctn_now_ns();
	CU_ASSERT_EQUAL(ctn_device_load(devices[0], &copy, 1, done.event, look_at_event, NULL), 0);
	set = ctn_event_done(done.event);
	CU_ASSERT(!set || ctn_now_ns() - start >= 50 * MS);
	CU_ASSERT_EQUAL(ctn_event_wait(done.event), 0);
	CU_ASSERT(ctn_now_ns() - start >= 50 * MS);
	CU_ASSERT(ctn_event_done(done.event));
	CU_ASSERT_EQUAL(ctn_event_wait(done.event), 0);
	CU_ASSERT_EQUAL(memcmp(memory[0], src, 100000), 0);
	drain();
	CU_ASSERT(done.event_was_set);
	CU_ASSERT_EQUAL(done.byte, 9);
	ctn_event_reset(done.event);
	CU_ASSERT(!ctn_event_done(done.event));
	ctn_event_free(done.event);
	close_devices();
	free(src);
}

static void test_work_from_before_a_reset_does_not_set_the_event(void)
{
	open_devices("host,mem=1M");
	done.event = new_event();
	CU_ASSERT_EQUAL(ctn_device_load(devices[0], NULL, 0, done.event, NULL, NULL), 0);
	CU_ASSERT_EQUAL(ctn_event_wait(done.event), 0);
	ctn_event_reset(done.event);
	drain();
	CU_ASSERT(!ctn_event_done(done.event));
	ctn_event_free(done.event);
	close_devices();

	open_devices("host,mem=1M,link=2M"); /* 250 ms: the reset comes first */
	done.event = new_event();
	load_1d(0, memory[0], memory[0] + 500000, 500000, done.event);
	ctn_event_reset(done.event);
	drain();
	CU_ASSERT(!ctn_event_done(done.event));
	ctn_event_free(done.event);
	close_devices();
}

static void test_an_event_belongs_to_the_load_that_it_was_given_to_last(void)
{
	open_devices("host,mem=1M,link=2M"); /* 250 ms: all are queued before the first ends */
	done.event = new_event();
	done.event_was_set = true;
	load_1d(0, memory[0], memory[0] + 500000, 500000, done.event);
	CU_ASSERT_EQUAL(ctn_device_load(devices[0], NULL, 0, NULL, look_at_event, NULL), 0);
	load_1d(0, memory[0], memory[0] + 500000, 500000, done.event);
	CU_ASSERT_EQUAL(ctn_event_wait(done.event), 0);
	drain();
	CU_ASSERT(!done.event_was_set);
	/* Given to work again, it is unset, and set again. */
	load_1d(0, memory[0], memory[0] + 500000, 1, done.event);
	CU_ASSERT_EQUAL(ctn_event_wait(done.event), 0);
	ctn_event_free(done.event);
	close_devices();
}

static _Atomic unsigned int waiting;

static void *wait_event(void *arg)
{
	waiting++;
	return (void *)(intptr_t)ctn_event_wait(arg);
}

static void reset_event(void *arg, int rc)
{
	ctn_event_reset(arg);
}

static void test_waiters_return_although_the_event_is_unset_again(void)
{
	struct ctn_copy copy = {.width = 500000, .height = 1};
	pthread_t waiters[3];
	struct ctn_event *event;
	void *rc = NULL;

	open_devices("host,mem=1M,link=1M"); /* 500 ms: the waiters are there before the end */
	event = new_event();
	copy.src = memory[0] + 500000;
	copy.dst = memory[0];
	for (size_t i = 0; i < CTN_ARRAY_LEN(waiters); i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&waiters[i], NULL, wait_event, event), 0);
	while (waiting < CTN_ARRAY_LEN(waiters))
		sleep_ns(MS);
	CU_ASSERT_EQUAL(ctn_device_load(devices[0], &copy, 1, event, reset_event, event), 0);
	for (size_t i = 0; i < CTN_ARRAY_LEN(waiters); i++) {
		pthread_join(waiters[i], &rc);
		CU_ASSERT_PTR_NULL(rc);
	}
	drain();
	CU_ASSERT(!ctn_event_done(event));
	ctn_event_free(event);
	close_devices();
}

CTN_TESTS("device_events", CTN_TEST(test_loads_complete_in_the_order_of_their_submission),
	  CTN_TEST(test_event_is_set_after_the_bytes_and_before_done),
	  CTN_TEST(test_work_from_before_a_reset_does_not_set_the_event),
	  CTN_TEST(test_an_event_belongs_to_the_load_that_it_was_given_to_last),
	  CTN_TEST(test_waiters_return_although_the_event_is_unset_again))
