/* SPDX-License-Identifier: MIT */
/* The shrinker: what it may take, what it may not, that it tells. Memory is made short by
 * drop_caches. */
#include "pin.h"
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POOL  (64 * MIB)
#define FRAME (4 * MIB)

static int fd, other;
static uint8_t *map;
static struct computron_ref refs[16];

/* A pool full of CLEAN frames. */
static void setup(const char *name, uint64_t floor)
{
	fd = pool_create(name, POOL, 0, floor, 0);
	CHECK(fd >= 0, "%d", fd);
	other = pool_open(name, 0);
	CHECK(!fcntl(other, F_SETFL, O_NONBLOCK), "fcntl");
	map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
	for (int i = 0; i < 16; i++)
		refs[i] = must_frame(fd, map, (uint64_t)i + 1, FRAME, 0);
}

static void drop(void)
{
	must_write("/proc/sys/vm/drop_caches", "2");
}

static void press(void)
{
	uint64_t before;

	/* Each round takes a batch at most. */
	for (int i = 0; i < 100; i++) {
		before = must_stat(fd).clean;
		drop();
		if (must_stat(fd).clean == before)
			break;
	}
}

TEST(takes_clean_frames)
{
	struct computron_event event;
	uint64_t told = 0;

	setup("takes", 0);
	EQUAL(must_stat(fd).reclaimable, POOL, "reclaimable");
	press();
	EQUAL(must_stat(fd).clean, 0, "clean");
	EQUAL(must_stat(fd).populated, 0, "populated");
	EQUAL(must_stat(fd).reclaims, 16, "reclaims");
	EQUAL(must_stat(fd).reclaimed_bytes, POOL, "reclaimed bytes");
	EQUAL(must_stat(fd).evictions, 0, "evictions by request");
	for (int i = 0; i < 16; i++)
		EQUAL(frame_lease(fd, refs[i]), -ESTALE, "lease");
	while (read(other, &event, sizeof(event)) == sizeof(event)) {
		EQUAL(event.type, COMPUTRON_EVENT_RECLAIMED, "type");
		told += event.bytes;
	}
	EQUAL(told, POOL, "bytes that the file was told of");
}

TEST(leaves_the_floor)
{
	struct computron_pool_set set = {.size = sizeof(set), .flags = COMPUTRON_SET_FLOOR};

	setup("floor", 24 * MIB);
	EQUAL(must_stat(fd).reclaimable, POOL - 24 * MIB, "reclaimable");
	press();
	EQUAL(must_stat(fd).clean, 24 * MIB, "clean");
	set.floor = 8 * MIB;
	EQUAL(call(fd, COMPUTRON_IOC_POOL_SET, &set), 0, "set");
	press();
	EQUAL(must_stat(fd).clean, 8 * MIB, "clean");
	set.floor = 0;
	EQUAL(call(fd, COMPUTRON_IOC_POOL_SET, &set), 0, "set");
	press();
	EQUAL(must_stat(fd).clean, 0, "clean");
}

TEST(leaves_what_is_leased_loading_pinned_or_hot)
{
	struct computron_pool_hot hot = {
		.size = sizeof(hot), .flags = COMPUTRON_HOT_ON, .bytes = FRAME};
	struct computron_ref loading;
	int pins = must_pin_file();

	setup("leaves", 0);
	EQUAL(frame_lease(fd, refs[1]), 0, "lease");
	EQUAL(frame_evict(fd, refs[2]), 0, "evict");
	EQUAL(frame_alloc(fd, 99, FRAME, 0, &loading), 0, "alloc");
	EQUAL(pin(pins, map + frame_offset(refs[3]), 4096, false), 0, "pin");
	hot.offset = frame_offset(refs[4]);
	EQUAL(call(fd, COMPUTRON_IOC_POOL_HOT, &hot), 0, "hot");
	press();
	EQUAL(must_stat(fd).clean, 3 * FRAME, "clean: leased, pinned, hot");
	EQUAL(must_stat(fd).loading, FRAME, "loading");
	must_hold(fd, map, refs[1], 2, FRAME);
	must_hold(fd, map, refs[3], 4, FRAME);
	must_hold(fd, map, refs[4], 5, FRAME);
	EQUAL(frame_seal(fd, loading, 0), 0, "seal");
	EQUAL(frame_release(fd, refs[1]), 0, "release");
	unpin(pins);
	hot.flags = 0;
	EQUAL(call(fd, COMPUTRON_IOC_POOL_HOT, &hot), 0, "cold");
	/* What was pinned is looked at again after a while. */
	CHECK(EVENTUALLY((press(), !must_stat(fd).used), 10), "%llu bytes stay that nothing holds",
	      (unsigned long long)must_stat(fd).used);
}

TEST(oldest_first)
{
	setup("oldest", 32 * MIB);
	/* What was used last is left. */
	for (int i = 0; i < 8; i++) {
		EQUAL(frame_lease(fd, refs[i]), 0, "lease");
		EQUAL(frame_release(fd, refs[i]), 0, "release");
	}
	press();
	EQUAL(must_stat(fd).clean, 32 * MIB, "clean");
	for (int i = 0; i < 8; i++)
		EQUAL(frame_info(fd, refs[i], NULL), 0, "one of those used last");
}

/* Pools that no process has open give up their frames as well. */
TEST(closed_pools_too)
{
	setup("closed", 0);
	munmap(map, POOL);
	close(fd);
	close(other);
	for (int i = 0; i < 50; i++)
		drop();
	fd = pool_open("closed", 0);
	EQUAL(must_stat(fd).clean, 0, "clean");
}

TEST(readers_see_sigbus_not_zeros)
{
	int reader;
	uint8_t *view;

	setup("sigbus", 0);
	reader = pool_open("sigbus", 0);
	view = must_map(reader, POOL, PROT_READ);
	for (int i = 0; i < 16; i++)
		EQUAL(touch(view + frame_offset(refs[i])), 0, "before");
	press();
	for (int i = 0; i < 16; i++)
		CHECK(touch(view + frame_offset(refs[i])), "frame %d after", i);
}
