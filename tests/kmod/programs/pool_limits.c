/* SPDX-License-Identifier: MIT */
/* Quota, size, and the limits of the whole module. */
#include "module.h"
#include "pool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PARAMETERS "/sys/module/computron/parameters/"

TEST(quota)
{
	struct computron_pool_set set = {.size = sizeof(set), .flags = COMPUTRON_SET_QUOTA};
	struct computron_ref a, b;
	int fd = pool_create("q", 16 * MIB, 6 * MIB, 0, 0);

	CHECK(fd >= 0, "%d", fd);
	EQUAL(frame_alloc(fd, 1, 3 * MIB, COMPUTRON_ALLOC_RESERVE, &a), 0, "4 of 6 MiB");
	EQUAL(must_stat(fd).used, 4 * MIB, "used, in whole units");
	EQUAL(frame_alloc(fd, 2, 3 * MIB, COMPUTRON_ALLOC_RESERVE, NULL), -EDQUOT,
	      "more than is left");
	EQUAL(frame_alloc(fd, 2, 2 * MIB, COMPUTRON_ALLOC_RESERVE, &b), 0, "what is left");
	EQUAL(frame_alloc(fd, 3, 1, COMPUTRON_ALLOC_RESERVE, NULL), -EDQUOT, "one byte more");
	set.quota = 17 * MIB;
	EQUAL(call(fd, COMPUTRON_IOC_POOL_SET, &set), -EINVAL, "more than the size");
	set.quota = 2 * MIB;
	EQUAL(call(fd, COMPUTRON_IOC_POOL_SET, &set), 0, "less than is used");
	EQUAL(must_stat(fd).used, 6 * MIB, "frames above it stay");
	EQUAL(frame_abort(fd, a), 0, "abort");
	EQUAL(frame_alloc(fd, 3, 1, COMPUTRON_ALLOC_RESERVE, NULL), -EDQUOT, "still full");
	EQUAL(frame_abort(fd, b), 0, "abort");
	EQUAL(frame_alloc(fd, 3, 1, COMPUTRON_ALLOC_RESERVE, NULL), 0, "room again");
	close(fd);
	EQUAL(pool_destroy("q", 0), 0, "destroy");
}

TEST(size)
{
	struct computron_ref refs[4];
	int fd = must_pool("s", 8 * MIB);

	EQUAL(frame_alloc(fd, 9, 8 * MIB + 1, 0, NULL), -EFBIG, "more than there could be");
	EQUAL(frame_alloc(fd, 9, ~0ULL, 0, NULL), -EFBIG, "all that can be said");
	EQUAL(frame_alloc(fd, 9, 0, 0, NULL), -EINVAL, "nothing");
	for (int i = 0; i < 4; i++)
		EQUAL(frame_alloc(fd, i, UNIT, 0, &refs[i]), 0, "alloc");
	EQUAL(frame_alloc(fd, 9, UNIT, 0, NULL), -EDQUOT, "full (the quota is the size)");
	EQUAL(frame_abort(fd, refs[0]), 0, "abort");
	EQUAL(frame_abort(fd, refs[2]), 0, "abort");
	EQUAL(frame_alloc(fd, 9, 2 * UNIT, 0, &refs[0]), 0, "from two pieces");
	close(fd);
	EQUAL(pool_destroy("s", 0), 0, "destroy");
}

TEST(extents_keep_to_segments)
{
	struct computron_extent extents[8];
	struct computron_ref ref;
	uint64_t sum = 0;
	uint32_t count;
	int fd = pool_create("x", 16 * MIB, 0, 0, 4 * MIB);

	CHECK(fd >= 0, "%d", fd);
	EQUAL(frame_alloc(fd, 1, UNIT, COMPUTRON_ALLOC_RESERVE, NULL), 0, "alloc");
	EQUAL(frame_alloc(fd, 2, 9 * MIB, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
	EQUAL(frame_extents(fd, ref, extents, 8, &count), 0, "extents");
	CHECK(count >= 3 && count <= 8, "%u extents", count);
	for (uint32_t i = 0; i < count; i++) {
		CHECK(extents[i].bytes && extents[i].bytes % UNIT == 0 &&
			      extents[i].offset % UNIT == 0,
		      "extent %u", i);
		EQUAL(extents[i].offset / (4 * MIB),
		      (extents[i].offset + extents[i].bytes - 1) / (4 * MIB), "segment");
		sum += extents[i].bytes;
	}
	EQUAL(sum, 10 * MIB, "bytes of all extents");
	EQUAL(extents[0].offset, frame_offset(ref), "the first is where the id says");
	extents[1].bytes = 0x5555;
	EQUAL(frame_extents(fd, ref, extents, 1, &count), 0, "room for one");
	CHECK(count >= 3, "total %u", count);
	EQUAL(extents[1].bytes, 0x5555, "behind the room");
	close(fd);
	EQUAL(pool_destroy("x", 0), 0, "destroy");
}

TEST(of_the_module)
{
	struct computron_info info = {.size = sizeof(info)};
	char was[32];
	int a, b, control = must_control();

	snprintf(was, sizeof(was), "%llu", (unsigned long long)number_of(PARAMETERS "max_bytes"));
	must_write(PARAMETERS "max_bytes", "8388608");
	EQUAL(call(control, COMPUTRON_IOC_INFO, &info), 0, "info");
	EQUAL(info.max_bytes, 8 * MIB, "max_bytes");
	a = must_pool("a", 6 * MIB);
	EQUAL(pool_create("b", 4 * MIB, 0, 0, 0), -ENOSPC, "more than is left");
	b = must_pool("b", 2 * MIB);
	EQUAL(pool_create("c", 2 * MIB, 0, 0, 0), -ENOSPC, "nothing is left");
	close(a);
	EQUAL(pool_create("c", 2 * MIB, 0, 0, 0), -ENOSPC, "a closed pool counts");
	EQUAL(pool_destroy("a", 0), 0, "destroy");
	a = must_pool("c", 2 * MIB);
	must_write(PARAMETERS "max_bytes", was);
	close(a);
	close(b);
	EQUAL(pool_destroy("b", 0), 0, "destroy");
	EQUAL(pool_destroy("c", 0), 0, "destroy");
}

TEST(number_of_pools)
{
	char was[32], name[32];
	int fds[3];

	snprintf(was, sizeof(was), "%llu", (unsigned long long)number_of(PARAMETERS "max_pools"));
	must_write(PARAMETERS "max_pools", "3");
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "p%d", i);
		fds[i] = must_pool(name, UNIT);
	}
	EQUAL(pool_create("p3", UNIT, 0, 0, 0), -ENOSPC, "one more");
	must_write(PARAMETERS "max_pools", was);
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "p%d", i);
		close(fds[i]);
		EQUAL(pool_destroy(name, 0), 0, name);
	}
}

static void try_parameters(void *unused)
{
	(void)unused;
	become(1000);
	CHECK(access(PARAMETERS "max_bytes", W_OK), "an ordinary user may raise the limit");
	CHECK(access(PARAMETERS "max_pools", W_OK), "an ordinary user may raise the limit");
}

TEST(parameters_are_roots)
{
	EQUAL(in_child(try_parameters, NULL), 0, "status");
}

/* A pool that is gone by name, but whose memory a mapping keeps. */
TEST(mapped_memory_counts)
{
	struct computron_info info = {.size = sizeof(info)};
	char was[32];
	uint8_t *map;
	int fd, control = must_control();

	snprintf(was, sizeof(was), "%llu", (unsigned long long)number_of(PARAMETERS "max_bytes"));
	must_write(PARAMETERS "max_bytes", "8388608");
	fd = must_pool("mapped", 6 * MIB);
	map = must_map(fd, 6 * MIB, PROT_READ | PROT_WRITE);
	memset(map, 1, 6 * MIB);
	close(fd);
	EQUAL(pool_destroy("mapped", 0), 0, "destroy");
	EQUAL(map[5 * MIB], 1, "its memory");
	EQUAL(call(control, COMPUTRON_IOC_INFO, &info), 0, "info");
	EQUAL(info.total_bytes, 6 * MIB, "total_bytes");
	EQUAL(pool_create("next", 4 * MIB, 0, 0, 0), -ENOSPC, "more than is left");
	munmap(map, 6 * MIB);
	EQUAL(call(control, COMPUTRON_IOC_INFO, &info), 0, "info");
	EQUAL(info.total_bytes, 0, "total_bytes after munmap");
	fd = must_pool("next", 8 * MIB);
	must_write(PARAMETERS "max_bytes", was);
	close(fd);
	EQUAL(pool_destroy("next", 0), 0, "destroy");
}
