/* SPDX-License-Identifier: MIT */
/* What a process held is given back when it is killed, at once. */
#include "pool.h"

#include <errno.h>
#include <liburing.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define POOL (16 * MIB)

/* Starts a process that runs `hold` and then waits to be killed. */
static pid_t start(void (*hold)(void))
{
	int ready[2];
	char byte;
	pid_t pid;

	CHECK(!pipe(ready), "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		close(ready[0]);
		hold();
		if (write(ready[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	EQUAL(read(ready[0], &byte, 1), 1, "the process that holds things failed");
	close(ready[0]);
	return pid;
}

static void end(pid_t pid)
{
	int status;

	CHECK(!kill(pid, SIGKILL), "kill");
	CHECK(waitpid(pid, &status, 0) == pid, "wait");
}

static void hold_leases_and_loading(void)
{
	struct computron_frame_info info;
	int fd = pool_open("killed", COMPUTRON_OPEN_WRITE);
	uint8_t *map = must_map(fd, POOL, PROT_READ | PROT_WRITE);

	EQUAL(frame_lookup(fd, 1, &info), 0, "lookup");
	for (int i = 0; i < 5; i++)
		EQUAL(frame_lease(fd, info.ref), 0, "lease");
	EQUAL(frame_alloc(fd, 2, 4 * MIB, 0, &info.ref), 0, "alloc");
	memset(map + frame_offset(info.ref), 1, 4 * MIB);
	EQUAL(frame_alloc(fd, 3, 4 * MIB, COMPUTRON_ALLOC_RESERVE, NULL), 0, "alloc");
}

TEST(leases_and_loading_frames)
{
	struct computron_pool_stat stat;
	struct computron_ref clean;
	int fd = must_pool("killed", POOL);
	uint8_t *map = must_map(fd, POOL, PROT_READ | PROT_WRITE);

	clean = must_frame(fd, map, 1, UNIT, 0);
	for (int round = 0; round < 5; round++) {
		pid_t pid = start(hold_leases_and_loading);

		stat = must_stat(fd);
		EQUAL(stat.leased, UNIT, "leased before");
		EQUAL(stat.loading, 8 * MIB, "loading before");
		EQUAL(stat.files, 2, "files before");
		EQUAL(frame_evict(fd, clean), -EBUSY, "evict");
		end(pid);
		stat = must_stat(fd); /* at once: no waiting */
		EQUAL(stat.leased, 0, "leased");
		EQUAL(stat.loading, 0, "loading");
		EQUAL(stat.quarantined, 0, "quarantined");
		EQUAL(stat.used, UNIT, "used");
		EQUAL(stat.populated, UNIT, "populated");
		EQUAL(stat.files, 1, "files");
	}
	must_hold(fd, map, clean, 1, UNIT);
	EQUAL(frame_evict(fd, clean), 0, "evict");
	close(fd);
	EQUAL(pool_destroy("killed", 0), 0, "destroy");
}

/* A descriptor that a child inherited is the same file: the death of the parent ends nothing. */
static void parent(void *arg)
{
	int *fds = arg, fd = pool_open("shared", COMPUTRON_OPEN_WRITE);
	struct computron_frame_info info;

	EQUAL(frame_lookup(fd, 1, &info), 0, "lookup");
	EQUAL(frame_lease(fd, info.ref), 0, "lease");
	if (!fork()) { /* waits for the test to close its end */
		char byte;

		close(fds[1]);
		(void)!read(fds[0], &byte, 1);
		_exit(0);
	}
}

TEST(shared_descriptors)
{
	struct computron_ref ref;
	int fd = must_pool("shared", POOL), fds[2];
	uint8_t *map = must_map(fd, POOL, PROT_READ | PROT_WRITE);

	CHECK(!pipe(fds), "pipe");
	ref = must_frame(fd, map, 1, UNIT, 0);
	EQUAL(in_child(parent, fds), 0, "status");
	EQUAL(frame_evict(fd, ref), -EBUSY, "the child has the file still");
	close(fds[0]);
	close(fds[1]);
	CHECK(EVENTUALLY(!frame_evict(fd, ref), 5), "evict after the last descriptor");
	close(fd);
	EQUAL(pool_destroy("shared", 0), 0, "destroy");
}

/* A read-only mapping keeps the file that it was made through, so a client may close its
 * descriptor. */
static void maps_and_closes(void)
{
	struct computron_frame_info info;
	int fd = pool_open("mapped", 0);
	uint8_t *map;

	EQUAL(frame_lookup(fd, 1, &info), 0, "lookup");
	EQUAL(frame_lease(fd, info.ref), 0, "lease");
	map = must_map(fd, POOL, PROT_READ);
	close(fd);
	must_hold(pool_open("mapped", 0), map, info.ref, 1, UNIT);
}

TEST(leases_of_a_mapping)
{
	struct computron_ref ref;
	int fd = must_pool("mapped", POOL);
	uint8_t *map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
	pid_t pid;

	ref = must_frame(fd, map, 1, UNIT, 0);
	pid = start(maps_and_closes);
	EQUAL(frame_evict(fd, ref), -EBUSY, "leased by the file of a mapping");
	end(pid);
	EQUAL(frame_evict(fd, ref), 0, "evict");
	close(fd);
	EQUAL(pool_destroy("mapped", 0), 0, "destroy");
}

/* A ring that still has the pages of a half-loaded frame registered when its owner is killed. */
static void register_loading(void)
{
	static struct io_uring ring;
	struct computron_ref ref;
	struct iovec iov = {.iov_len = 4 * MIB};
	int fd = pool_open("ring", COMPUTRON_OPEN_WRITE);
	uint8_t *map = must_map(fd, POOL, PROT_READ | PROT_WRITE);

	EQUAL(frame_alloc(fd, 2, 4 * MIB, 0, &ref), 0, "alloc");
	iov.iov_base = map + frame_offset(ref);
	EQUAL(io_uring_queue_init(8, &ring, 0), 0, "ring");
	EQUAL(io_uring_register_buffers(&ring, &iov, 1), 0, "register");
}

TEST(live_ring_and_instant_reattach)
{
	struct computron_pool_stat stat;
	struct computron_ref ref;
	int fd;

	close(must_pool("ring", POOL));
	for (int round = 0; round < 10; round++) {
		end(start(register_loading));
		/* Pins outlive the process by milliseconds: what they hold is in quarantine,
		 * charged. */
		fd = pool_open("ring", COMPUTRON_OPEN_WRITE);
		CHECK(fd >= 0, "%d", fd);
		stat = must_stat(fd);
		EQUAL(stat.loading, 0, "loading");
		EQUAL(stat.used, stat.quarantined, "used");
		EQUAL(frame_alloc(fd, 2, UNIT, 0, &ref), 0, "the same key is free");
		CHECK(EVENTUALLY(!must_stat(fd).quarantined, 10), "quarantined for ever");
		EQUAL(frame_abort(fd, ref), 0, "abort");
		EQUAL(must_stat(fd).used, 0, "used");
		EQUAL(must_stat(fd).populated, 0, "populated");
		close(fd);
	}
	EQUAL(pool_destroy("ring", 0), 0, "destroy");
}
