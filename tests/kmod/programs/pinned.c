/* SPDX-License-Identifier: MIT */
/* Frames that something has pinned for DMA, as a GPU driver does: never evicted, quarantined when
 * given up. */
#include "pin.h"
#include "pool.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define POOL (16 * MIB)

static int fd, pins;
static uint8_t *map;

static void setup(const char *name)
{
	pins = must_pin_file();
	fd = must_pool(name, POOL);
	map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
}

static void teardown(const char *name)
{
	munmap(map, POOL);
	close(fd);
	EQUAL(pool_destroy(name, 0), 0, "destroy");
}

TEST(not_evicted_while_pinned)
{
	struct computron_ref ref;

	setup("evict");
	ref = must_frame(fd, map, 1, 4 * MIB, COMPUTRON_SEAL_LEASE);
	for (int write = 0; write < 2; write++) {
		EQUAL(pin(pins, map + frame_offset(ref), 4 * MIB, write), 0, "pin");
		if (!write)
			EQUAL(frame_release(fd, ref), 0, "release: the pin alone holds it");
		EQUAL(frame_evict(fd, ref), -EBUSY, "evict while pinned");
		EQUAL(must_stat(fd).refused, 1 + write, "refused");
		EQUAL(must_survey(fd).pinned, 4 * MIB, "pinned");
		must_hold(fd, map, ref, 1, 4 * MIB);
		unpin(pins);
		EQUAL(must_survey(fd).pinned, 0, "pinned afterwards");
	}
	EQUAL(frame_evict(fd, ref), 0, "evict afterwards");
	EQUAL(must_stat(fd).populated, 0, "populated");
	teardown("evict");
}

TEST(one_page_is_enough)
{
	struct computron_ref ref;

	setup("page");
	ref = must_frame(fd, map, 1, 8 * MIB, 0);
	for (uint64_t at = 0; at < 8 * MIB; at += 8 * MIB - 4096) {
		EQUAL(pin(pins, map + frame_offset(ref) + at, 4096, false), 0, "pin");
		EQUAL(frame_evict(fd, ref), -EBUSY, "evict");
		EQUAL(frame_lease(fd, ref), 0, "a refused frame is as it was");
		EQUAL(frame_release(fd, ref), 0, "release");
		must_hold(fd, map, ref, 1, 8 * MIB);
		unpin(pins);
	}
	EQUAL(frame_evict(fd, ref), 0, "evict");
	teardown("page");
}

TEST(aborted_goes_to_quarantine)
{
	struct computron_frame_info info;
	struct computron_ref ref;

	setup("abort");
	EQUAL(frame_alloc(fd, 1, 4 * MIB, 0, &ref), 0, "alloc");
	EQUAL(pin(pins, map + frame_offset(ref), 4 * MIB, true), 0, "pin");
	EQUAL(frame_abort(fd, ref), 0, "abort");
	EQUAL(must_stat(fd).quarantined, 4 * MIB, "quarantined");
	EQUAL(must_stat(fd).used, 4 * MIB, "used: it is charged still");
	EQUAL(frame_info(fd, ref, &info), 0, "info");
	EQUAL(info.state, COMPUTRON_FRAME_QUARANTINED, "state");
	EQUAL(frame_lookup(fd, 1, NULL), -ENOENT, "its key is free");
	EQUAL(frame_lease(fd, ref), -EBUSY, "lease");
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict");
	EQUAL(frame_seal(fd, ref, 0), -EINVAL, "seal");
	EQUAL(frame_alloc(fd, 1, POOL - 4 * MIB, 0, &ref), 0, "the rest can be had");
	memset(map + frame_offset(ref), 3, UNIT);
	EQUAL(frame_alloc(fd, 2, 1, 0, NULL), -EDQUOT, "what is quarantined cannot");
	unpin(pins);
	CHECK(EVENTUALLY(!must_stat(fd).quarantined, 10), "quarantined for ever");
	EQUAL(must_stat(fd).used, POOL - 4 * MIB, "used");
	EQUAL(frame_alloc(fd, 2, 4 * MIB, 0, NULL), 0, "now it can");
	teardown("abort");
}

/* The owner is killed while a device may still write: its pins are in another process, as in a
 * driver's file. */
static void owner(void *arg)
{
	struct computron_ref *ref = arg;
	int mine = pool_open("owner", COMPUTRON_OPEN_WRITE);
	uint8_t *own = must_map(mine, POOL, PROT_READ | PROT_WRITE);

	EQUAL(frame_alloc(mine, 1, 4 * MIB, 0, ref), 0, "alloc");
	EQUAL(pin(pins, own + frame_offset(*ref), 4 * MIB, true), 0, "pin");
	raise(SIGKILL);
}

TEST(owner_killed_while_pinned)
{
	struct computron_ref *ref =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;

	setup("owner");
	status = in_child(owner, ref);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %d", status);
	EQUAL(must_stat(fd).loading, 0, "loading");
	EQUAL(must_stat(fd).quarantined, 4 * MIB, "quarantined");
	usleep(300000);
	EQUAL(must_stat(fd).quarantined, 4 * MIB, "quarantined as long as it is pinned");
	unpin(pins);
	CHECK(EVENTUALLY(!must_stat(fd).quarantined, 10), "quarantined for ever");
	EQUAL(must_stat(fd).used, 0, "used");
	EQUAL(must_stat(fd).populated, 0, "populated");
	teardown("owner");
}

/* The bytes of a quarantined frame may be written at any time: what comes after it must not see
 * that. */
TEST(quarantine_is_nobodys)
{
	struct computron_ref ref, next;
	uint8_t *view;
	int reader;

	setup("nobody");
	reader = pool_open("nobody", 0);
	view = must_map(reader, POOL, PROT_READ);
	EQUAL(frame_alloc(fd, 1, POOL, 0, &ref), 0, "alloc");
	memset(map, 0xcc, POOL);
	EQUAL(pin(pins, map, UNIT, true), 0, "pin");
	EQUAL(frame_abort(fd, ref), 0, "abort");
	EQUAL(touch(view), SIGBUS, "a reader");
	EQUAL(frame_alloc(fd, 2, 1, 0, &next), -EDQUOT, "all is charged");
	unpin(pins);
	CHECK(EVENTUALLY(!frame_alloc(fd, 2, POOL, 0, &next), 10), "it never came back");
	for (uint64_t at = 0; at < POOL; at += 4096)
		CHECK(!map[at], "byte %llu of the next frame", (unsigned long long)at);
	munmap(view, POOL);
	close(reader);
	teardown("nobody");
}

TEST(pool_destroyed_while_pinned)
{
	struct computron_ref ref;

	setup("destroy");
	EQUAL(frame_alloc(fd, 1, 4 * MIB, 0, &ref), 0, "alloc");
	EQUAL(pin(pins, map + frame_offset(ref), 4 * MIB, true), 0, "pin");
	munmap(map, POOL);
	close(fd);
	EQUAL(pool_destroy("destroy", 0), 0, "destroy");
	EQUAL(pool_count(), 0, "pools");
	unpin(pins);
}

TEST(readers_pin_to_read_only)
{
	struct computron_ref ref;
	uint8_t *view;
	int reader;

	setup("readers");
	ref = must_frame(fd, map, 1, UNIT, 0);
	reader = pool_open("readers", 0);
	view = must_map(reader, POOL, PROT_READ);
	EQUAL(pin(pins, view + frame_offset(ref), UNIT, true), -EFAULT, "a pin to write");
	EQUAL(pin(pins, view + frame_offset(ref), UNIT, false), 0, "a pin to read");
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict");
	unpin(pins);
	EQUAL(frame_evict(fd, ref), 0, "evict");
	EQUAL(pin(pins, view + frame_offset(ref), UNIT, false), -EFAULT, "a pin of what is gone");
	munmap(view, POOL);
	close(reader);
	teardown("readers");
}

/* Frames given up many times while a pin holds one of them: nothing is lost, nothing counted twice.
 */
TEST(many_quarantines)
{
	struct computron_ref ref;
	int files[4];

	setup("many");
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 4; i++) {
			files[i] = must_pin_file();
			EQUAL(frame_alloc(fd, i, 4 * MIB, 0, &ref), 0, "alloc");
			EQUAL(pin(files[i], map + frame_offset(ref), 4 * MIB, true), 0, "pin");
			EQUAL(frame_abort(fd, ref), 0, "abort");
			EQUAL(must_stat(fd).quarantined, (i + 1) * 4 * MIB, "quarantined");
		}
		EQUAL(frame_alloc(fd, 9, 1, 0, NULL), -EDQUOT, "full");
		for (int i = 0; i < 4; i++)
			close(files[i]);
		CHECK(EVENTUALLY(!must_stat(fd).used, 10), "not all came back");
		EQUAL(must_stat(fd).populated, 0, "populated");
	}
	teardown("many");
}

/* What was pinned when its turn came is looked at again, also when it was leased meanwhile. */
TEST(reclaimable_after_pin_and_lease)
{
	struct computron_ref ref;

	setup("again");
	ref = must_frame(fd, map, 1, 4 * MIB, 0);
	EQUAL(pin(pins, map + frame_offset(ref), 4 * MIB, false), 0, "pin");
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict while pinned");
	EQUAL(frame_lease(fd, ref), 0, "lease");
	sleep(3);
	unpin(pins);
	EQUAL(frame_release(fd, ref), 0, "release");
	CHECK(EVENTUALLY(must_stat(fd).reclaimable == 4 * MIB, 5), "reclaimable: %llu",
	      (unsigned long long)must_stat(fd).reclaimable);
	must_write("/proc/sys/vm/drop_caches", "2");
	EQUAL(must_stat(fd).reclaims, 1, "reclaims");
	teardown("again");
}
