/* SPDX-License-Identifier: MIT */
/* A frame from alloc to evict, and everything that is refused on the way. */
#include "pool.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POOL (16 * MIB)

static int fd;
static uint8_t *map;

static void setup(const char *name)
{
	fd = must_pool(name, POOL);
	map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
}

static void teardown(const char *name)
{
	munmap(map, POOL);
	close(fd);
	EQUAL(pool_destroy(name, 0), 0, "destroy");
}

TEST(from_alloc_to_evict)
{
	struct computron_frame_info info;
	struct computron_ref ref, other;
	uint64_t huge;

	setup("life");
	EQUAL(frame_alloc(fd, 1, 3 * MIB, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
	CHECK(ref.generation, "generation 0");
	EQUAL(frame_info(fd, ref, &info), 0, "info");
	EQUAL(info.state, COMPUTRON_FRAME_LOADING, "state");
	EQUAL(info.bytes, 3 * MIB, "bytes");
	EQUAL(info.charged, 4 * MIB, "charged");
	EQUAL(info.flags, COMPUTRON_FRAME_MINE, "flags");
	EQUAL(must_stat(fd).populated, 0, "populated before populate");
	EQUAL(frame_seal(fd, ref, 0), -EINVAL, "seal without memory");
	EQUAL(frame_lease(fd, ref), -EBUSY, "lease while LOADING");
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict while LOADING");
	EQUAL(frame_release(fd, ref), -EINVAL, "release without a lease");
	EQUAL(frame_alloc(fd, 1, UNIT, 0, &other), -EEXIST, "the same key");
	CHECK(other.id == ref.id && other.generation == ref.generation,
	      "-EEXIST names another frame");
	EQUAL(frame_populate(fd, ref, &huge), 0, "populate");
	EQUAL(must_stat(fd).populated, 4 * MIB, "populated");
	EQUAL(frame_populate(fd, ref, &huge), 0, "populate again");
	EQUAL(frame_info(fd, ref, &info), 0, "info");
	EQUAL(info.flags, COMPUTRON_FRAME_MINE | COMPUTRON_FRAME_POPULATED, "flags");
	must_fill(fd, map, ref, 1, 3 * MIB);
	EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	EQUAL(frame_seal(fd, ref, 0), -EINVAL, "seal twice");
	EQUAL(frame_abort(fd, ref), -EINVAL, "abort when CLEAN");
	EQUAL(frame_populate(fd, ref, NULL), -EINVAL, "populate when CLEAN");
	EQUAL(frame_info(fd, ref, &info), 0, "info");
	EQUAL(info.state, COMPUTRON_FRAME_CLEAN, "state");
	EQUAL(info.flags, COMPUTRON_FRAME_POPULATED, "flags");
	EQUAL(frame_lease(fd, ref), 0, "lease");
	EQUAL(frame_lease(fd, ref), 0, "lease");
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict with two leases");
	EQUAL(must_stat(fd).leased, 4 * MIB, "leased");
	EQUAL(must_stat(fd).refused, 1, "refused");
	EQUAL(frame_release(fd, ref), 0, "release");
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict with one lease");
	EQUAL(frame_release(fd, ref), 0, "release");
	EQUAL(frame_release(fd, ref), -EINVAL, "release with none");
	must_hold(fd, map, ref, 1, 3 * MIB);
	EQUAL(frame_evict(fd, ref), 0, "evict");
	EQUAL(must_stat(fd).populated, 0, "populated after evict");
	EQUAL(must_stat(fd).used, 0, "used");
	EQUAL(must_stat(fd).evictions, 1, "evictions");
	EQUAL(must_stat(fd).evicted_bytes, 4 * MIB, "evicted bytes");
	EQUAL(frame_evict(fd, ref), -ESTALE, "evict twice");
	EQUAL(frame_lease(fd, ref), -ESTALE, "lease");
	EQUAL(frame_release(fd, ref), -ESTALE, "release");
	EQUAL(frame_seal(fd, ref, 0), -ESTALE, "seal");
	EQUAL(frame_abort(fd, ref), -ESTALE, "abort");
	EQUAL(frame_populate(fd, ref, NULL), -ESTALE, "populate");
	EQUAL(frame_info(fd, ref, NULL), -ESTALE, "info");
	EQUAL(frame_lookup(fd, 1, NULL), -ENOENT, "lookup");
	teardown("life");
}

TEST(generations_never_come_back)
{
	struct computron_ref refs[20];

	setup("gen");
	for (int i = 0; i < 20; i++) {
		EQUAL(frame_alloc(fd, 1, POOL, 0, &refs[i]), 0, "alloc");
		if (i % 2) {
			EQUAL(frame_seal(fd, refs[i], 0), 0, "seal");
			EQUAL(frame_evict(fd, refs[i]), 0, "evict");
		} else {
			EQUAL(frame_abort(fd, refs[i]), 0, "abort");
		}
		for (int j = 0; j < i; j++)
			CHECK(refs[j].generation != refs[i].generation, "frames %d and %d", j, i);
		for (int j = 0; j <= i; j++)
			EQUAL(frame_lease(fd, refs[j]), -ESTALE, "stale");
	}
	teardown("gen");
}

TEST(wrong_names)
{
	struct computron_ref ref, wrong;

	setup("names");
	ref = must_frame(fd, map, 1, UNIT, 0);
	wrong = ref;
	wrong.generation++;
	EQUAL(frame_lease(fd, wrong), -ESTALE, "the next generation");
	wrong = ref;
	wrong.generation = 0;
	EQUAL(frame_lease(fd, wrong), -ESTALE, "generation 0");
	wrong = ref;
	wrong.id++;
	EQUAL(frame_lease(fd, wrong), -ESTALE, "a unit further");
	for (int bit = 0; bit < 64; bit++) {
		wrong = ref;
		wrong.id ^= 1ULL << bit;
		EQUAL(frame_evict(fd, wrong), -ESTALE, "another id");
	}
	EQUAL(frame_lease(fd, ref), 0, "the right one");
	EQUAL(frame_release(fd, ref), 0, "the right one");
	teardown("names");
}

TEST(no_old_bytes)
{
	struct computron_ref ref;

	setup("zero");
	for (int round = 0; round < 3; round++) {
		EQUAL(frame_alloc(fd, round, POOL, 0, &ref), 0, "alloc");
		for (uint64_t i = 0; i < POOL; i += 4096 / 8)
			if (map[i])
				ktap_fail(__FILE__, __LINE__, "contents",
					  "byte %llu of a new frame is %d", (unsigned long long)i,
					  map[i]);
		memset(map, 0xa5, POOL);
		if (round == 1) {
			EQUAL(frame_seal(fd, ref, 0), 0, "seal");
			EQUAL(frame_evict(fd, ref), 0, "evict");
		} else {
			EQUAL(frame_abort(fd, ref), 0, "abort");
		}
	}
	teardown("zero");
}

TEST(owners_only)
{
	struct computron_ref ref;
	int second;

	setup("own");
	second = pool_open("own", COMPUTRON_OPEN_WRITE);
	CHECK(second >= 0, "%d", second);
	EQUAL(frame_alloc(fd, 1, UNIT, 0, &ref), 0, "alloc");
	EQUAL(frame_seal(second, ref, 0), -EPERM, "another file's seal");
	EQUAL(frame_abort(second, ref), -EPERM, "another file's abort");
	EQUAL(frame_populate(second, ref, NULL), -EPERM, "another file's populate");
	EQUAL(frame_alloc(second, 1, UNIT, 0, NULL), -EEXIST, "another file's alloc of the key");
	EQUAL(frame_seal(fd, ref, COMPUTRON_SEAL_LEASE), 0, "seal");
	EQUAL(frame_release(second, ref), -EINVAL, "another file's lease");
	EQUAL(frame_evict(second, ref), -EBUSY, "evict");
	EQUAL(frame_release(fd, ref), 0, "release");
	EQUAL(frame_evict(second, ref), 0, "any writer evicts");
	close(second);
	teardown("own");
}

TEST(sealing_lease)
{
	struct computron_frame_info info;
	struct computron_ref ref;

	setup("lease");
	ref = must_frame(fd, map, 1, UNIT, COMPUTRON_SEAL_LEASE);
	EQUAL(frame_info(fd, ref, &info), 0, "info");
	EQUAL(info.leases, 1, "leases");
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict");
	EQUAL(frame_release(fd, ref), 0, "release");
	EQUAL(frame_evict(fd, ref), 0, "evict");
	teardown("lease");
}

TEST(touching_gives_memory_too)
{
	struct computron_ref ref;

	setup("touch");
	EQUAL(frame_alloc(fd, 1, 2 * UNIT, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
	memset(map + frame_offset(ref), 1, UNIT);
	EQUAL(frame_seal(fd, ref, 0), -EINVAL, "half of it has memory");
	memset(map + frame_offset(ref), 1, 2 * UNIT);
	EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	teardown("touch");
}

TEST(closing_gives_up_what_is_loading)
{
	struct computron_ref loading, clean;

	setup("close");
	EQUAL(frame_alloc(fd, 1, UNIT, 0, &loading), 0, "alloc");
	clean = must_frame(fd, map, 2, UNIT, COMPUTRON_SEAL_LEASE);
	munmap(map, POOL);
	close(fd);
	fd = pool_open("close", COMPUTRON_OPEN_WRITE);
	CHECK(fd >= 0, "%d", fd);
	EQUAL(frame_info(fd, loading, NULL), -ESTALE, "the LOADING frame");
	EQUAL(must_stat(fd).loading, 0, "loading");
	EQUAL(must_stat(fd).leased, 0, "leased");
	EQUAL(must_stat(fd).clean, UNIT, "clean");
	EQUAL(frame_evict(fd, clean), 0, "its lease is gone");
	close(fd);
	EQUAL(pool_destroy("close", 0), 0, "destroy");
}
