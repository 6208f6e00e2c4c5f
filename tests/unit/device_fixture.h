/* SPDX-License-Identifier: MIT */
/* What the tests of loads, events and streams share: devices whose memory is all mapped. */
#ifndef CTN_DEVICE_FIXTURE_H
#define CTN_DEVICE_FIXTURE_H

#include "test.h"
#include "device/device.h"

#include <time.h>

#define MS 1000000ull

static struct ctn_device *devices[CTN_MAX_DEVICES];
static uint32_t device_count;
static uint8_t *memory[CTN_MAX_DEVICES]; /* all of each device */
static uint64_t memory_bytes;

static inline void open_devices(const char *spec)
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

static inline void close_devices(void)
{
	for (uint32_t i = 0; i < device_count; i++) {
		ctn_device_unmap(devices[i], memory[i], memory_bytes, true);
		ctn_device_unreserve(devices[i], memory[i], memory_bytes);
	}
	ctn_devices_close(devices, device_count);
}

static inline struct ctn_event *new_event(void)
{
	struct ctn_event *event = NULL;

	CU_ASSERT_EQUAL_FATAL(ctn_event_new(devices[0], &event), 0);
	CU_ASSERT(!ctn_event_done(event));
	return event;
}

/* A seeded sequence of bytes; the caller frees it. */
static inline uint8_t *random_bytes(uint64_t bytes, unsigned int seed)
{
	uint8_t *p = malloc(bytes);

	CU_ASSERT_PTR_NOT_NULL_FATAL(p);
	for (uint64_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)(rand_r(&seed) >> 8);
	return p;
}

static inline void load_1d(uint32_t dev, void *dst, const void *src, uint64_t bytes,
			   struct ctn_event *event)
{
	struct ctn_copy copy = {.src = src, .dst = dst, .width = bytes, .height = 1};

	CU_ASSERT_EQUAL_FATAL(ctn_device_load(devices[dev], &copy, 1, event, NULL, NULL), 0);
}

/* When it returns, all loads before have completed and their callbacks have returned. */
static inline void drain(void)
{
	struct ctn_event *event = new_event();

	CU_ASSERT_EQUAL(ctn_device_load(devices[0], NULL, 0, event, NULL, NULL), 0);
	CU_ASSERT_EQUAL(ctn_event_wait(event), 0);
	ctn_event_free(event);
}

static inline void sleep_ns(uint64_t ns)
{
	struct timespec ts = {.tv_sec = (time_t)(ns / CTN_NSEC_PER_SEC),
			      .tv_nsec = (long)(ns % CTN_NSEC_PER_SEC)};

	nanosleep(&ts, NULL);
}

#endif
