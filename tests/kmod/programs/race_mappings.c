/* SPDX-License-Identifier: MIT */
/* What a process can do to its mappings of a pool, while frames come and go. */
#include "pool.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define POOL (16 * MIB)

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static int fd, reader;
static uint8_t *map, *view;
static struct computron_ref ref;

static void setup(const char *name)
{
	fd = must_pool(name, POOL);
	reader = pool_open(name, 0);
	map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
	view = must_map(reader, POOL, PROT_READ);
	ref = must_frame(fd, map, 1, 8 * MIB, 0);
	must_hold(reader, view, ref, 1, 8 * MIB);
}

/* After whatever was done: the counts are right, the frame can go, and nothing of it is left. */
static void teardown(const char *name)
{
	EQUAL(must_stat(fd).clean, 8 * MIB, "clean");
	EQUAL(frame_evict(fd, ref), 0, "evict");
	EQUAL(must_stat(fd).populated, 0, "populated");
	close(fd);
	close(reader);
	munmap(map, POOL);
	munmap(view, POOL);
	EQUAL(pool_destroy(name, 0), 0, "destroy");
}

static void child_looks(void *unused)
{
	(void)unused;
	must_hold(fd, map, ref, 1, 8 * MIB);
	must_hold(reader, view, ref, 1, 8 * MIB);
	EQUAL(touch_write(view + frame_offset(ref)), SIGSEGV, "a write by a child");
	CHECK(mprotect(view, UNIT, PROT_READ | PROT_WRITE), "mprotect by a child");
}

TEST(fork_with_the_mapping)
{
	setup("fork");
	for (int i = 0; i < 20; i++)
		EQUAL(in_child(child_looks, NULL), 0, "child");
	teardown("fork");
}

static void child_writes(void *arg)
{
	must_fill(fd, map, *(struct computron_ref *)arg, 2, UNIT);
}

TEST(fork_shares_what_is_loading)
{
	struct computron_ref loading;

	setup("loading");
	EQUAL(frame_alloc(fd, 2, UNIT, COMPUTRON_ALLOC_RESERVE, &loading), 0, "alloc");
	EQUAL(in_child(child_writes, &loading), 0, "child");
	must_hold(fd, map, loading, 2, UNIT); /* shared, not copied */
	EQUAL(frame_abort(fd, loading), 0, "abort");
	teardown("loading");
}

/* The child has the mapping when the parent evicts: it gets SIGBUS too. */
TEST(fork_and_evict)
{
	int go[2], status;
	char byte;
	pid_t pid;

	setup("forkevict");
	CHECK(!pipe(go), "pipe");
	pid = fork();
	if (!pid) {
		must_hold(reader, view, ref, 1, 8 * MIB);
		close(go[1]);
		(void)!read(go[0], &byte, 1);
		_exit(touch(view + frame_offset(ref)) == SIGBUS ? 0 : 1);
	}
	usleep(50000);
	EQUAL(frame_evict(fd, ref), 0, "evict");
	close(go[1]);
	CHECK(waitpid(pid, &status, 0) == pid && !status, "status %d", status);
	ref = must_frame(fd, map, 1, 8 * MIB, 0);
	teardown("forkevict");
}

TEST(partial_munmap)
{
	setup("munmap");
	/* Pages, parts of huge pages, the middle of everything. */
	munmap(view + frame_offset(ref) + 4096, 4096);
	munmap(view + frame_offset(ref) + UNIT - 4096, 8192);
	munmap(view + frame_offset(ref) + 2 * UNIT, UNIT);
	munmap(map + frame_offset(ref) + UNIT / 2, UNIT / 4);
	EQUAL(touch(view + frame_offset(ref)), 0, "what is left");
	EQUAL(touch(view + frame_offset(ref) + 4096), SIGSEGV, "what is gone");
	EQUAL(frame_evict(fd, ref), 0, "evict");
	EQUAL(touch(view + frame_offset(ref)), SIGBUS, "what is left, evicted");
	EQUAL(touch(view + frame_offset(ref) + UNIT / 2), SIGBUS, "what is left, evicted");
	munmap(map, POOL);
	map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
	ref = must_frame(fd, map, 1, 8 * MIB, 0);
	teardown("munmap");
}

TEST(mremap_moves_and_does_not_grow)
{
	uint8_t *moved, *grown;

	setup("mremap");
	moved = mremap(view, POOL, POOL, MREMAP_MAYMOVE | MREMAP_FIXED,
		       mmap(NULL, POOL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	CHECK(moved != MAP_FAILED, "errno %d", errno);
	view = moved;
	must_hold(reader, view, ref, 1, 8 * MIB);
	grown = mremap(view, POOL, POOL + UNIT, MREMAP_MAYMOVE);
	if (grown != MAP_FAILED) {
		view = grown;
		EQUAL(touch(view + POOL), SIGBUS, "behind the pool");
		view = mremap(grown, POOL + UNIT, POOL, 0);
		CHECK(view != MAP_FAILED, "errno %d", errno);
	}
	grown = mremap(map, POOL, POOL + UNIT, MREMAP_MAYMOVE);
	if (grown != MAP_FAILED) {
		EQUAL(touch(grown + POOL), SIGBUS, "behind the pool, as a writer");
		map = mremap(grown, POOL + UNIT, POOL, 0);
		CHECK(map != MAP_FAILED, "errno %d", errno);
	}
	must_hold(reader, view, ref, 1, 8 * MIB);
	/* A part of a part, and a second mapping of the same pages (old size 0). */
	moved = mremap(view + frame_offset(ref) + UNIT, 4096, 4096, MREMAP_MAYMOVE);
	CHECK(moved != MAP_FAILED, "errno %d", errno);
	moved = mremap(view + frame_offset(ref), 0, UNIT, MREMAP_MAYMOVE);
	if (moved != MAP_FAILED) {
		EQUAL(touch(moved), 0, "a copy of the mapping");
		EQUAL(touch_write(moved), SIGSEGV, "a write to a copy");
		munmap(moved, UNIT);
	}
	teardown("mremap");
}

/* A mapping of one frame, made bigger, must not show what lies beside it. */
TEST(mremap_of_a_bound_mapping)
{
	struct computron_ref second;
	uint8_t *bound, *grown;

	setup("bound");
	second = must_frame(fd, map, 2, UNIT, 0);
	bound = mmap(NULL, UNIT, PROT_READ, MAP_SHARED, reader, (off_t)frame_offset(second));
	CHECK(bound != MAP_FAILED, "errno %d", errno);
	EQUAL(touch(bound), 0, "before");
	grown = mremap(bound, UNIT, 2 * UNIT, MREMAP_MAYMOVE);
	if (grown != MAP_FAILED) {
		EQUAL(touch(grown), 0, "after");
		touch(grown + UNIT); /* whatever it is, no oops */
		bound = grown;
	}
	EQUAL(frame_evict(fd, second), 0, "evict");
	EQUAL(touch(bound), SIGBUS, "evicted");
	munmap(bound, 2 * UNIT);
	teardown("bound");
}

TEST(mprotect_in_pieces)
{
	setup("mprotect");
	CHECK(!mprotect(view + 4096, 4096, PROT_NONE), "errno %d", errno);
	CHECK(!mprotect(view, POOL, PROT_READ), "errno %d", errno);
	CHECK(mprotect(view + UNIT, UNIT, PROT_READ | PROT_WRITE), "a reader's");
	CHECK(!mprotect(map + UNIT / 2, UNIT, PROT_READ), "errno %d", errno);
	EQUAL(touch_write(map + UNIT / 2), SIGSEGV, "a writer's part that is read-only now");
	CHECK(!mprotect(map, POOL, PROT_READ | PROT_WRITE), "errno %d", errno);
	must_hold(fd, map, ref, 1, 8 * MIB);
	must_hold(reader, view, ref, 1, 8 * MIB);
	teardown("mprotect");
}

/* Advice that drops pages from a mapping must not drop them from the pool, whoever gives it. */
TEST(madvise_keeps_the_bytes)
{
	static const struct {
		const char *name;
		int advice;
	} all[] = {
		{"DONTNEED", MADV_DONTNEED},   {"PAGEOUT", MADV_PAGEOUT},
		{"COLD", MADV_COLD},           {"FREE", MADV_FREE},
		{"COLLAPSE", MADV_COLLAPSE},   {"NOHUGEPAGE", MADV_NOHUGEPAGE},
		{"HUGEPAGE", MADV_HUGEPAGE},   {"WILLNEED", MADV_WILLNEED},
		{"DONTFORK", MADV_DONTFORK},   {"DOFORK", MADV_DOFORK},
		{"MERGEABLE", MADV_MERGEABLE},
	};

	setup("madvise");
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		int by_reader = madvise(view, POOL, all[i].advice) ? errno : 0;
		int by_writer = madvise(map + frame_offset(ref), UNIT, all[i].advice) ? errno : 0;

		ktap_note("MADV_%s: reader %d, writer %d", all[i].name, by_reader, by_writer);
		must_hold(fd, map, ref, 1, 8 * MIB);
		must_hold(reader, view, ref, 1, 8 * MIB);
		EQUAL(must_stat(fd).populated, 8 * MIB, all[i].name);
	}
	teardown("madvise");
}

/* MADV_REMOVE punches a hole: not for readers; a writer harms only its own pool, and the counts
 * stay right. */
TEST(madvise_remove)
{
	struct computron_ref loading;

	setup("remove");
	CHECK(madvise(view + frame_offset(ref), UNIT, MADV_REMOVE), "by a reader");
	must_hold(reader, view, ref, 1, 8 * MIB);
	EQUAL(frame_alloc(fd, 2, UNIT, 0, &loading), 0, "alloc");
	if (!madvise(map + frame_offset(loading), UNIT, MADV_REMOVE))
		EQUAL(frame_seal(fd, loading, 0), -EINVAL, "seal of a frame without its memory");
	EQUAL(frame_abort(fd, loading), 0, "abort");
	if (!madvise(map + frame_offset(ref) + 4096, 4096, MADV_REMOVE)) {
		/* No zeros for readers: a page that is not there any more is SIGBUS. */
		EQUAL(touch(view + frame_offset(ref) + 4096), SIGBUS, "a hole in a CLEAN frame");
		EQUAL(touch(view + frame_offset(ref)), 0, "beside it");
	}
	EQUAL(frame_evict(fd, ref), 0, "evict");
	EQUAL(must_stat(fd).populated, 0, "populated");
	ref = must_frame(fd, map, 1, 8 * MIB, 0);
	teardown("remove");
}

TEST(closed_while_mapped)
{
	setup("closed");
	close(fd);
	close(reader);
	fd = pool_open("closed", COMPUTRON_OPEN_WRITE);
	must_hold(fd, map, ref, 1, 8 * MIB);
	EQUAL(touch(view + frame_offset(ref)), 0, "a reader's mapping");
	reader = pool_open("closed", 0);
	teardown("closed");
}

TEST(two_mappings_of_both_kinds)
{
	uint8_t *again, *again_view;

	setup("two");
	again = must_map(fd, POOL, PROT_READ | PROT_WRITE);
	again_view = must_map(reader, POOL, PROT_READ);
	must_hold(fd, again, ref, 1, 8 * MIB);
	must_hold(reader, again_view, ref, 1, 8 * MIB);
	again[frame_offset(ref)] ^= 0xff;
	EQUAL(view[frame_offset(ref)], again[frame_offset(ref)], "one memory");
	EQUAL(frame_evict(fd, ref), 0, "evict");
	EQUAL(touch(view + frame_offset(ref)), SIGBUS, "evicted");
	EQUAL(touch(again_view + frame_offset(ref)), SIGBUS, "evicted");
	ref = must_frame(fd, map, 1, 8 * MIB, 0);
	munmap(again, POOL);
	munmap(again_view, POOL);
	teardown("two");
}
