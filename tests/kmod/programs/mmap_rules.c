/* SPDX-License-Identifier: MIT */
/* What a mapping of a pool may be: shared, inside the pool, read-only for readers and for ever. */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POOL (8 * MIB)

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static int writer, reader;
static uint8_t *map;
static struct computron_ref clean;

static void setup(const char *name)
{
	writer = must_pool(name, POOL);
	reader = pool_open(name, 0);
	CHECK(reader >= 0, "%d", reader);
	map = must_map(writer, POOL, PROT_READ | PROT_WRITE);
	clean = must_frame(writer, map, 1, UNIT, 0);
}

static int refused(int fd, uint64_t bytes, int protection, int flags, uint64_t offset)
{
	void *at = mmap(NULL, bytes, protection, flags, fd, (off_t)offset);

	if (at == MAP_FAILED)
		return -errno;
	munmap(at, bytes);
	return 0;
}

TEST(private_is_refused)
{
	setup("private");
	EQUAL(refused(writer, UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0), -EINVAL, "writer");
	EQUAL(refused(writer, UNIT, PROT_READ, MAP_PRIVATE, 0), -EINVAL, "writer, to read");
	EQUAL(refused(reader, UNIT, PROT_READ, MAP_PRIVATE, 0), -EINVAL, "reader");
}

TEST(inside_the_pool)
{
	setup("inside");
	EQUAL(refused(writer, POOL, PROT_READ, MAP_SHARED, 0), 0, "all of it");
	EQUAL(refused(writer, 4096, PROT_READ, MAP_SHARED, POOL - 4096), 0, "its last page");
	EQUAL(refused(writer, POOL + 4096, PROT_READ, MAP_SHARED, 0), -EINVAL, "a page more");
	EQUAL(refused(writer, 8192, PROT_READ, MAP_SHARED, POOL - 4096), -EINVAL, "over its end");
	EQUAL(refused(writer, 4096, PROT_READ, MAP_SHARED, POOL), -EINVAL, "behind its end");
	CHECK(refused(writer, 4096, PROT_READ, MAP_SHARED, 1ULL << 62), "far behind its end");
	CHECK(refused(writer, 4096, PROT_READ, MAP_SHARED, ~4095ULL), "the last offset of all");
	EQUAL(refused(reader, POOL + 4096, PROT_READ, MAP_SHARED, 0), -EINVAL,
	      "a reader's page more");
}

/* -EACCES by the module; -EPERM by newer kernels themselves, before they ask it. */
static void never_executable(int fd)
{
	int err = refused(fd, UNIT, PROT_READ | PROT_EXEC, MAP_SHARED, 0);

	CHECK(err == -EACCES || err == -EPERM, "mmap: %d", err);
}

TEST(never_executable)
{
	setup("exec");
	never_executable(writer);
	never_executable(reader);
	CHECK(mprotect(map, UNIT, PROT_READ | PROT_EXEC) && errno == EACCES, "mprotect: errno %d",
	      errno);
}

TEST(readers_read)
{
	uint8_t *view;

	setup("readers");
	EQUAL(refused(reader, UNIT, PROT_READ | PROT_WRITE, MAP_SHARED, 0), -EACCES, "to write");
	EQUAL(refused(reader, UNIT, PROT_WRITE, MAP_SHARED, 0), -EACCES, "only to write");
	view = must_map(reader, POOL, PROT_READ);
	must_hold(reader, view, clean, 1, UNIT);
	CHECK(mprotect(view, UNIT, PROT_READ | PROT_WRITE) && errno == EACCES, "mprotect: errno %d",
	      errno);
	EQUAL(touch_write(view + frame_offset(clean)), SIGSEGV, "a write");
	CHECK(madvise(view, POOL, MADV_REMOVE), "madvise(MADV_REMOVE) on a reader's mapping");
	must_hold(reader, view, clean, 1, UNIT);
	munmap(view, POOL);
}

/* What a reader may see is CLEAN: nothing of what another process is still writing, and no holes.
 */
TEST(readers_see_clean_frames_only)
{
	struct computron_ref loading;
	uint8_t *view;

	setup("clean");
	view = must_map(reader, POOL, PROT_READ);
	EQUAL(frame_alloc(writer, 2, UNIT, 0, &loading), 0, "alloc");
	map[frame_offset(loading)] = 77;
	EQUAL(touch(view + frame_offset(clean)), 0, "a CLEAN frame");
	EQUAL(touch(view + frame_offset(loading)), SIGBUS, "a LOADING frame");
	EQUAL(touch(view + POOL - 1), SIGBUS, "no frame");
	EQUAL(frame_seal(writer, loading, 0), 0, "seal");
	EQUAL(touch(view + frame_offset(loading)), 0, "now it is CLEAN");
	EQUAL(view[frame_offset(loading)], 77, "byte");
	EQUAL(must_stat(writer).populated, 2 * UNIT, "a reader's touch gives no memory");
}

TEST(evicted_is_sigbus)
{
	struct computron_ref next;
	uint8_t *wide, *bound;

	setup("evicted");
	wide = must_map(reader, POOL, PROT_READ);
	bound = mmap(NULL, UNIT, PROT_READ, MAP_SHARED, reader, (off_t)frame_offset(clean));
	CHECK(bound != MAP_FAILED, "errno %d", errno);
	EQUAL(touch(wide + frame_offset(clean)), 0, "wide, before");
	EQUAL(touch(bound), 0, "bound, before");
	EQUAL(frame_evict(writer, clean), 0, "evict");
	for (uint64_t at = 0; at < UNIT; at += UNIT / 8) {
		EQUAL(touch(wide + frame_offset(clean) + at), SIGBUS, "wide, evicted");
		EQUAL(touch(bound + at), SIGBUS, "bound, evicted");
	}
	EQUAL(frame_alloc(writer, 2, POOL, 0, &next), 0, "the next frame lies there too");
	map[frame_offset(clean)] = 9;
	EQUAL(touch(wide + frame_offset(clean)), SIGBUS, "wide, LOADING");
	EQUAL(frame_seal(writer, next, 0), 0, "seal");
	EQUAL(touch(wide + frame_offset(clean)), 0, "wide shows what there is");
	EQUAL(wide[frame_offset(clean)], 9, "byte");
	EQUAL(touch(bound), SIGBUS, "bound to the frame that is gone");
}

TEST(system_calls_see_efault)
{
	uint8_t *view;
	int fds[2];

	setup("efault");
	view = must_map(reader, POOL, PROT_READ);
	CHECK(!pipe(fds), "pipe");
	EQUAL(write(fds[1], view + frame_offset(clean), 100), 100, "write(2) from a CLEAN frame");
	EQUAL(frame_evict(writer, clean), 0, "evict");
	CHECK(write(fds[1], view + frame_offset(clean), 100) < 0 && errno == EFAULT,
	      "write(2) from an evicted one");
}

TEST(huge_alignment)
{
	uint8_t *view;

	setup("align");
	EQUAL((uintptr_t)map % UNIT, 0, "a writer's address");
	view = must_map(reader, POOL, PROT_READ);
	EQUAL((uintptr_t)view % UNIT, 0, "a reader's address");
}

TEST(lock_and_populate)
{
	uint8_t *view;

	setup("lock");
	view = mmap(NULL, UNIT, PROT_READ, MAP_SHARED | MAP_POPULATE, reader,
		    (off_t)frame_offset(clean));
	CHECK(view != MAP_FAILED, "errno %d", errno);
	EQUAL(mlock(view, UNIT), 0, "mlock of a CLEAN frame");
	must_hold(reader, view - frame_offset(clean), clean, 1, UNIT);
	EQUAL(frame_evict(writer, clean), 0, "mlock is no lease");
	EQUAL(touch(view), SIGBUS, "evicted");
}

/* /proc/self/map_files and /proc/self/fd are no way to a writable file. */
TEST(no_way_round_by_proc)
{
	char path[64];
	uint8_t *view;
	int fd;

	setup("proc");
	view = must_map(reader, POOL, PROT_READ);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", reader);
	fd = open(path, O_RDWR);
	if (fd >= 0) {
		EQUAL(refused(fd, UNIT, PROT_READ | PROT_WRITE, MAP_SHARED, 0), -EACCES,
		      "by /proc/self/fd");
		close(fd);
	}
	EQUAL(touch(view + frame_offset(clean)), 0, "still there");
}

/* MADV_COLLAPSE maps a huge page without a fault, so without anybody asking whether it may be read.
 */
TEST(collapse_is_no_way_round)
{
	struct computron_ref loading;
	uint8_t *view, *bound;

	setup("collapse");
	view = must_map(reader, POOL, PROT_READ);
	bound = mmap(NULL, UNIT, PROT_READ, MAP_SHARED, reader, (off_t)frame_offset(clean));
	CHECK(bound != MAP_FAILED, "errno %d", errno);
	EQUAL(frame_evict(writer, clean), 0, "evict");
	EQUAL(frame_alloc(writer, 2, POOL, 0, &loading), 0, "alloc");
	map[frame_offset(clean)] = 77;
	if (madvise(view + frame_offset(clean), UNIT, MADV_COLLAPSE))
		ktap_note("MADV_COLLAPSE: errno %d", errno);
	EQUAL(touch(view + frame_offset(clean)), SIGBUS, "a LOADING frame");
	madvise(bound, UNIT, MADV_COLLAPSE);
	EQUAL(touch(bound), SIGBUS, "bound to a frame that is gone");
	EQUAL(frame_seal(writer, loading, 0), 0, "seal");
	EQUAL(touch(view + frame_offset(clean)), 0, "CLEAN");
	EQUAL(touch(bound), SIGBUS, "bound to a frame that is gone");
}
