/* SPDX-License-Identifier: MIT */
/* A memfd of reserved huge pages as a pool. */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 8
#define POOL  (PAGES * UNIT)
#define FREE  "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"

static int memfd, fd;
static uint8_t *map;

static int adopt(const char *name, int from)
{
	struct computron_pool_adopt arg = {.size = sizeof(arg), .memfd = from, .node = -1};
	int control = must_control(), err;

	strncpy(arg.name, name, sizeof(arg.name) - 1);
	err = call(control, COMPUTRON_IOC_POOL_ADOPT, &arg);
	close(control);
	if (!err)
		EQUAL(arg.bytes, POOL, "bytes");
	return err ? err : arg.fd;
}

static void setup(const char *name)
{
	must_write("/proc/sys/vm/nr_hugepages", "64");
	if (number_of(FREE) < PAGES)
		ktap_skip("no huge pages can be reserved");
	memfd = memfd_create("adopt", MFD_HUGETLB | MFD_CLOEXEC);
	CHECK(memfd >= 0, "errno %d", errno);
	CHECK(!ftruncate(memfd, POOL), "errno %d", errno);
	fd = adopt(name, memfd);
	CHECK(fd >= 0, "adopt: %d", fd);
	map = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	CHECK(map != MAP_FAILED, "errno %d", errno);
}

TEST(frames_of_it)
{
	struct computron_ref ref;
	uint64_t free_before, huge;

	setup("adopted");
	free_before = number_of(FREE);
	EQUAL(must_stat(fd).bytes, POOL, "bytes");
	EQUAL(must_stat(fd).unit_bytes, UNIT, "unit");
	EQUAL(frame_alloc(fd, 1, 6 * MIB, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
	EQUAL(frame_populate(fd, ref, &huge), 0, "populate");
	EQUAL(huge, 6 * MIB, "huge bytes");
	must_fill(fd, map, ref, 1, 6 * MIB);
	EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	EQUAL(number_of(FREE), free_before - 3, "free huge pages");
	must_hold(fd, map, ref, 1, 6 * MIB);
	EQUAL(frame_evict(fd, ref), 0, "evict");
	CHECK(EVENTUALLY(number_of(FREE) == free_before, 5), "the pages do not come back");
	EQUAL(must_stat(fd).used, 0, "used");
	munmap(map, POOL);
	close(fd);
	close(memfd);
	EQUAL(pool_destroy("adopted", 0), 0, "destroy");
	EQUAL(number_of(FREE), 64, "free huge pages after destroy");
}

TEST(memory_pressure_leaves_it)
{
	struct computron_ref ref;

	setup("pressure");
	ref = must_frame(fd, map, 1, 4 * MIB, 0);
	for (int i = 0; i < 10; i++)
		must_write("/proc/sys/vm/drop_caches", "2");
	must_hold(fd, map, ref, 1, 4 * MIB);
	EQUAL(must_stat(fd).reclaims, 0, "reclaims");
}

TEST(outlives_its_processes)
{
	struct computron_pool_memfd again = {.size = sizeof(again)};
	struct computron_ref ref;

	setup("outlives");
	ref = must_frame(fd, map, 1, 4 * MIB, 0);
	munmap(map, POOL);
	close(memfd);
	close(fd);
	fd = pool_open("outlives", 0);
	EQUAL(call(fd, COMPUTRON_IOC_POOL_MEMFD, &again), -EACCES, "the memfd, for a reader");
	close(fd);
	fd = pool_open("outlives", COMPUTRON_OPEN_WRITE);
	CHECK(fd >= 0, "%d", fd);
	EQUAL(call(fd, COMPUTRON_IOC_POOL_MEMFD, &again), 0, "the memfd");
	map = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED, again.fd, 0);
	CHECK(map != MAP_FAILED, "errno %d", errno);
	must_hold(fd, map, ref, 1, 4 * MIB);
	munmap(map, POOL);
	close(again.fd);
	close(fd);
	EQUAL(pool_destroy("outlives", 0), 0, "destroy");
}

/* A memfd is as long as its owner says, without a page; the kernel's table of it is not. */
TEST(longer_than_all_memory)
{
	setup("long");
	for (int bits = 40; bits < 55; bits += 5) {
		EQUAL(ftruncate(memfd, 1LL << bits), 0, "ftruncate");
		EQUAL(adopt("longer", memfd), -ENOSPC, "adopt");
	}
	munmap(map, POOL);
	close(fd);
	close(memfd);
	EQUAL(pool_destroy("long", 0), 0, "destroy");
}

/* An mmap that the memfd refuses leaves the pool file as it was. */
TEST(refused_by_the_memfd)
{
	struct computron_ref ref;
	int reader;

	setup("refused");
	reader = pool_open("refused", 0);
	ref = must_frame(fd, map, 1, 4 * MIB, 0);
	CHECK(!fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			 (off_t)frame_offset(ref), UNIT),
	      "errno %d", errno);
	must_write("/proc/sys/vm/nr_hugepages", "0");
	for (int i = 0; i < 3; i++) {
		void *at =
			mmap(NULL, UNIT, PROT_READ, MAP_SHARED, reader, (off_t)frame_offset(ref));

		CHECK(at == MAP_FAILED && errno == ENOMEM, "errno %d", errno);
		EQUAL(must_stat(reader).files, 2, "files");
	}
	must_write("/proc/sys/vm/nr_hugepages", "64");
	EQUAL(must_stat(fd).leased, 0, "leased");
	close(reader);
	EQUAL(must_stat(fd).files, 1, "files");
	munmap(map, POOL);
	close(fd);
	close(memfd);
	EQUAL(pool_destroy("refused", 0), 0, "destroy");
}

TEST(mmap_is_the_memfds)
{
	setup("mmap");
	CHECK(mmap(NULL, POOL, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EOPNOTSUPP,
	      "errno %d", errno);
}

static int errno_of_map(int from, uint64_t offset, uint64_t bytes, int protection, int flags)
{
	void *at = mmap(NULL, bytes, protection, flags, from, (off_t)offset);

	if (at == MAP_FAILED)
		return errno;
	munmap(at, bytes);
	return 0;
}

/* A reader's mapping is of one frame, and keeps it. */
TEST(readers_map_leased_frames)
{
	struct computron_ref ref, other;
	uint64_t at, clean;
	uint8_t *view, *moved;
	int reader;

	setup("readers");
	other = must_frame(fd, map, 2, UNIT, 0);
	ref = must_frame(fd, map, 1, 4 * MIB, 0);
	at = frame_offset(ref);
	clean = must_stat(fd).clean;
	reader = pool_open("readers", 0);
	CHECK(reader >= 0, "%d", reader);
	EQUAL(must_stat(fd).leased, 0, "leased");
	view = mmap(NULL, 4 * MIB, PROT_READ, MAP_SHARED, reader, (off_t)at);
	CHECK(view != MAP_FAILED, "errno %d", errno);
	EQUAL((uintptr_t)view % UNIT, 0, "alignment");
	EQUAL(must_stat(fd).leased, 4 * MIB, "leased");
	CHECK(!memcmp(view, map + at, 4 * MIB), "the view shows something else");
	EQUAL(touch_write(view), SIGSEGV, "a write");
	CHECK(mprotect(view, 4 * MIB, PROT_READ | PROT_WRITE) && errno == EACCES, "errno %d",
	      errno);
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict");
	/* In pieces, moved, without its descriptor: the lease stays to the last piece. */
	CHECK(!munmap(view, UNIT), "errno %d", errno);
	close(reader);
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict");
	EQUAL(pool_destroy("readers", 0), -EBUSY, "destroy");
	moved = mremap(view + UNIT, UNIT, UNIT, MREMAP_MAYMOVE);
	if (moved == MAP_FAILED)
		moved = view + UNIT;
	CHECK(!memcmp(moved, map + at + UNIT, UNIT), "the view shows something else");
	CHECK(!munmap(moved, UNIT), "errno %d", errno);
	EQUAL(must_stat(fd).leased, 0, "leased");
	EQUAL(must_stat(fd).clean, clean, "clean");
	EQUAL(frame_evict(fd, ref), 0, "evict");
	EQUAL(frame_evict(fd, other), 0, "evict");
	EQUAL(must_stat(fd).populated, 0, "populated");
}

static void map_and_die(void *arg)
{
	int reader = *(int *)arg;
	volatile uint8_t *view = mmap(NULL, UNIT, PROT_READ, MAP_SHARED, reader, 0);

	CHECK(view != MAP_FAILED && view[5] + 1, "errno %d", errno);
	raise(SIGKILL);
}

TEST(a_killed_reader_gives_its_lease_back)
{
	struct computron_ref ref;
	int reader, status;

	setup("killed");
	ref = must_frame(fd, map, 1, UNIT, 0);
	EQUAL(frame_offset(ref), 0, "offset");
	reader = pool_open("killed", 0);
	status = in_child(map_and_die, &reader);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %d", status);
	EQUAL(must_stat(fd).leased, 0, "leased");
	EQUAL(frame_evict(fd, ref), 0, "evict");
}

TEST(what_readers_cannot_map)
{
	struct computron_ref loading;
	int reader;

	setup("cannot");
	must_frame(fd, map, 1, UNIT, 0);
	must_frame(fd, map, 2, UNIT, 0);
	EQUAL(frame_alloc(fd, 3, UNIT, 0, &loading), 0, "alloc");
	reader = pool_open("cannot", 0);
	EQUAL(errno_of_map(reader, 0, UNIT, PROT_READ, MAP_SHARED), 0, "one frame");
	EQUAL(errno_of_map(reader, 0, 2 * UNIT, PROT_READ, MAP_SHARED), ESTALE, "two frames");
	EQUAL(errno_of_map(reader, frame_offset(loading), UNIT, PROT_READ, MAP_SHARED), ESTALE,
	      "a LOADING frame");
	EQUAL(errno_of_map(reader, 4 * UNIT, UNIT, PROT_READ, MAP_SHARED), ESTALE, "no frame");
	EQUAL(errno_of_map(reader, 0, UNIT, PROT_READ, MAP_PRIVATE), EINVAL, "private");
	EQUAL(errno_of_map(reader, 0, UNIT, PROT_READ | PROT_WRITE, MAP_SHARED), EACCES,
	      "writable");
	EQUAL(errno_of_map(reader, 4096, UNIT, PROT_READ, MAP_SHARED), EINVAL, "an odd offset");
	EQUAL(errno_of_map(reader, 0, 4096, PROT_READ, MAP_SHARED), EINVAL, "an odd length");
	EQUAL(errno_of_map(reader, POOL, UNIT, PROT_READ, MAP_SHARED), EINVAL, "beyond the end");
	EQUAL(must_stat(fd).leased, 0, "leased");
}

TEST(refusals)
{
	int plain = memfd_create("plain", 0), file = open("/init", O_RDONLY), fds[2];
	struct computron_pool_memfd again = {.size = sizeof(again)};

	setup("refusals");
	CHECK(!ftruncate(plain, POOL), "errno %d", errno);
	CHECK(!pipe(fds), "pipe");
	EQUAL(adopt("x", plain), -EINVAL, "a memfd of small pages");
	EQUAL(adopt("x", file), -EINVAL, "a file");
	EQUAL(adopt("x", fds[0]), -EINVAL, "a pipe");
	EQUAL(adopt("x", fd), -EINVAL, "a pool");
	EQUAL(adopt("x", -1), -EBADF, "nothing");
	EQUAL(adopt("x", 10000), -EBADF, "nothing");
	EQUAL(adopt("refusals", memfd), -EEXIST, "a name that is there");
	EQUAL(call(must_pool("own", UNIT), COMPUTRON_IOC_POOL_MEMFD, &again), -EOPNOTSUPP,
	      "a pool of the module's own");
}

/* More than is reserved: an error, not a process that dies by SIGBUS. */
TEST(too_few_huge_pages)
{
	struct computron_ref ref;

	setup("few");
	must_write("/proc/sys/vm/nr_hugepages", "2");
	EQUAL(frame_alloc(fd, 1, POOL, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
	if (number_of(FREE) < PAGES &&
	    number_of("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages") < PAGES)
		EQUAL(frame_populate(fd, ref, NULL), -ENOMEM, "populate");
	EQUAL(frame_abort(fd, ref), 0, "abort");
}

/* The memfd shrinks or gets holes behind the module's back: its owner harms itself only. */
TEST(memfd_changes)
{
	struct computron_ref ref;

	setup("changes");
	ref = must_frame(fd, map, 1, POOL, 0);
	CHECK(!fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, UNIT), "errno %d",
	      errno);
	must_survey(fd);
	if (ftruncate(memfd, UNIT))
		ktap_note("the memfd cannot be truncated: errno %d", errno);
	must_survey(fd);
	EQUAL(frame_evict(fd, ref), 0, "evict");
	EQUAL(must_stat(fd).used, 0, "used");
	frame_alloc(fd, 2, POOL, 0, &ref);
	must_survey(fd);
}
