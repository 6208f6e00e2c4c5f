/* SPDX-License-Identifier: MIT */
/* A pool and its CLEAN frames outlive every process that has them open. */
#include "pool.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POOL (32 * MIB)

static void fill(void *unused)
{
	int fd = must_pool("stays", POOL);
	uint8_t *map = must_map(fd, POOL, PROT_READ | PROT_WRITE);

	(void)unused;
	for (uint64_t i = 1; i <= 5; i++)
		must_frame(fd, map, i, i * MIB, i % 2 ? COMPUTRON_SEAL_LEASE : 0);
	EQUAL(frame_alloc(fd, 6, UNIT, 0, NULL), 0, "one that is LOADING when the process ends");
}

static void find(void *unused)
{
	struct computron_frame_info info;
	int fd = pool_open("stays", COMPUTRON_OPEN_WRITE);
	uint8_t *map;

	(void)unused;
	CHECK(fd >= 0, "open: %d", fd);
	map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
	for (uint64_t i = 1; i <= 5; i++) {
		EQUAL(frame_lookup(fd, i, &info), 0, "lookup");
		EQUAL(info.state, COMPUTRON_FRAME_CLEAN, "state");
		EQUAL(info.leases, 0, "leases");
		EQUAL(info.bytes, i * MIB, "bytes");
		EQUAL(frame_lease(fd, info.ref), 0, "lease");
		must_hold(fd, map, info.ref, i, i * MIB);
	}
	EQUAL(frame_lookup(fd, 6, NULL), -ENOENT, "what was LOADING");
}

TEST(over_processes)
{
	int fd;

	EQUAL(in_child(fill, NULL), 0, "fill");
	EQUAL(pool_count(), 1, "pools");
	for (int round = 0; round < 10; round++)
		EQUAL(in_child(find, NULL), 0, "find");
	fd = pool_open("stays", 0);
	CHECK(fd >= 0, "%d", fd);
	EQUAL(must_stat(fd).frames, 5, "frames");
	EQUAL(must_stat(fd).clean, (2 + 2 + 4 + 4 + 6) * MIB, "clean");
	EQUAL(must_stat(fd).leased, 0, "leased");
	EQUAL(must_stat(fd).loading, 0, "loading");
	EQUAL(must_stat(fd).populated, 18 * MIB, "populated");
	EQUAL(must_stat(fd).allocs, 6, "allocs");
	close(fd);
	EQUAL(pool_destroy("stays", 0), 0, "destroy");
	EQUAL(pool_open("stays", 0), -ENOENT, "gone");
}

/* Memory comes back with the pool, to the byte: two pools in a guest that holds only one. */
TEST(destroy_gives_the_memory_back)
{
	for (int round = 0; round < 4; round++) {
		int fd = must_pool("big", 512 * MIB);

		EQUAL(frame_alloc(fd, 1, 384 * MIB, 0, NULL), 0, "alloc");
		close(fd);
		EQUAL(pool_destroy("big", 0), 0, "destroy");
	}
}
