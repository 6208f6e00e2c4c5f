/* SPDX-License-Identifier: MIT */
/* Losses of CLEAN frames, told to every file but the one that caused them. */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POOL (16 * MIB)

static int fd, other;
static uint8_t *map;

static void setup(const char *name)
{
	fd = must_pool(name, POOL);
	other = pool_open(name, COMPUTRON_OPEN_WRITE);
	CHECK(other >= 0, "%d", other);
	CHECK(!fcntl(fd, F_SETFL, O_NONBLOCK) && !fcntl(other, F_SETFL, O_NONBLOCK), "fcntl");
	map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
}

static bool readable(int file)
{
	struct pollfd poller = {.fd = file, .events = POLLIN};

	return poll(&poller, 1, 0) == 1 && (poller.revents & POLLIN);
}

TEST(one_evicts_and_the_other_is_told)
{
	struct computron_event event;
	struct computron_ref ref;

	setup("told");
	CHECK(!readable(fd) && !readable(other), "nothing has happened");
	CHECK(read(fd, &event, sizeof(event)) < 0 && errno == EAGAIN, "errno %d", errno);
	ref = must_frame(fd, map, 1, 4 * MIB, 0);
	EQUAL(frame_evict(other, ref), 0, "evict");
	CHECK(readable(fd), "not told");
	CHECK(!readable(other), "told of what it did itself");
	CHECK(read(fd, &event, sizeof(event) - 1) < 0 && errno == EINVAL, "errno %d", errno);
	EQUAL(read(fd, &event, sizeof(event)), sizeof(event), "read");
	EQUAL(event.size, sizeof(event), "size");
	EQUAL(event.type, COMPUTRON_EVENT_EVICTED, "type");
	EQUAL(event.ref.id, ref.id, "id");
	EQUAL(event.ref.generation, ref.generation, "generation");
	EQUAL(event.bytes, 4 * MIB, "bytes");
	CHECK(!readable(fd), "told twice");
}

TEST(only_losses_of_clean_frames)
{
	struct computron_ref ref;

	setup("losses");
	EQUAL(frame_alloc(other, 1, UNIT, 0, &ref), 0, "alloc");
	EQUAL(frame_abort(other, ref), 0, "abort");
	EQUAL(frame_alloc(other, 1, UNIT, 0, &ref), 0, "alloc");
	EQUAL(frame_seal(other, ref, 0), 0, "seal");
	CHECK(!readable(fd), "told of what is no loss");
}

TEST(several_in_one_read)
{
	struct computron_event events[8];
	struct computron_ref refs[3];

	setup("several");
	for (int i = 0; i < 3; i++) {
		refs[i] = must_frame(fd, map, i, UNIT, 0);
		EQUAL(frame_evict(other, refs[i]), 0, "evict");
	}
	EQUAL(read(fd, events, sizeof(events)), 3 * sizeof(*events), "read");
	for (int i = 0; i < 3; i++) {
		EQUAL(events[i].ref.generation, refs[i].generation, "in order");
		EQUAL(events[i].seq, i + 1, "seq");
	}
}

TEST(overflow_is_said)
{
	struct computron_event event;
	struct computron_ref ref;
	int lost = 0, seen = 0;

	setup("overflow");
	for (int i = 0; i < COMPUTRON_EVENTS + 100; i++) {
		EQUAL(frame_alloc(fd, 1, 1, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
		*(volatile uint8_t *)(map + frame_offset(ref)) = 1;
		EQUAL(frame_seal(fd, ref, 0), 0, "seal");
		EQUAL(frame_evict(other, ref), 0, "evict");
	}
	while (read(fd, &event, sizeof(event)) == sizeof(event)) {
		if (event.type == COMPUTRON_EVENT_OVERFLOW)
			lost += (int)event.seq;
		else
			seen++;
	}
	CHECK(lost >= 100, "%d lost", lost);
	EQUAL(lost + seen, COMPUTRON_EVENTS + 100, "told of and lost");
}

TEST(blocking_read)
{
	struct computron_event event;
	struct computron_ref ref;

	setup("block");
	CHECK(!fcntl(fd, F_SETFL, 0), "fcntl");
	ref = must_frame(fd, map, 1, UNIT, 0);
	if (!fork()) {
		usleep(100000);
		EQUAL(frame_evict(other, ref), 0, "evict");
		_exit(0);
	}
	EQUAL(read(fd, &event, sizeof(event)), sizeof(event), "read");
	EQUAL(event.ref.generation, ref.generation, "generation");
}

TEST(destroyed)
{
	struct computron_event event;

	setup("destroyed");
	EQUAL(pool_destroy("destroyed", COMPUTRON_DESTROY_OPEN), 0, "destroy");
	CHECK(readable(fd), "not told");
	EQUAL(read(fd, &event, sizeof(event)), sizeof(event), "read");
	EQUAL(event.type, COMPUTRON_EVENT_DESTROYED, "type");
}
