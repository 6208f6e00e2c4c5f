/* SPDX-License-Identifier: MIT */
/* Who may do what: the creator, root, and others who may open the device. */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct computron_ref clean, loading;

static void setup(void)
{
	int fd = must_pool("mine", 8 * MIB);
	uint8_t *map = must_map(fd, 8 * MIB, PROT_READ | PROT_WRITE);

	clean = must_frame(fd, map, 1, UNIT, 0);
	EQUAL(frame_alloc(fd, 2, UNIT, 0, &loading), 0, "alloc");
}

static void as_another(void *unused)
{
	struct computron_pool_set set = {.size = sizeof(set), .flags = COMPUTRON_SET_FLOOR};
	struct computron_pool_hot hot = {
		.size = sizeof(hot), .flags = COMPUTRON_HOT_ON, .bytes = UNIT};
	struct computron_frame_info info;
	uint8_t *map;
	int fd;

	(void)unused;
	become(1000);
	EQUAL(pool_open("mine", COMPUTRON_OPEN_WRITE), -EACCES, "open as a writer");
	EQUAL(pool_destroy("mine", 0), -EACCES, "destroy");
	EQUAL(pool_destroy("mine", COMPUTRON_DESTROY_OPEN), -EACCES, "destroy though open");
	fd = pool_open("mine", 0);
	CHECK(fd >= 0, "open as a reader: %d", fd);
	EQUAL(frame_alloc(fd, 3, UNIT, 0, NULL), -EACCES, "alloc");
	EQUAL(frame_populate(fd, loading, NULL), -EACCES, "populate");
	EQUAL(frame_seal(fd, loading, 0), -EACCES, "seal");
	EQUAL(frame_abort(fd, loading), -EACCES, "abort");
	EQUAL(frame_evict(fd, clean), -EACCES, "evict");
	EQUAL(call(fd, COMPUTRON_IOC_POOL_SET, &set), -EACCES, "set");
	EQUAL(call(fd, COMPUTRON_IOC_POOL_HOT, &hot), -EACCES, "hot");
	EQUAL(frame_lookup(fd, 1, &info), 0, "lookup");
	EQUAL(frame_lease(fd, clean), 0, "lease");
	map = must_map(fd, 8 * MIB, PROT_READ);
	must_hold(fd, map, clean, 1, UNIT);
	EQUAL(frame_release(fd, clean), 0, "release");
}

TEST(another_user_reads_only)
{
	setup();
	EQUAL(in_child(as_another, NULL), 0, "status");
	EQUAL(pool_destroy("mine", COMPUTRON_DESTROY_OPEN), 0, "destroy");
}

static void creates(void *unused)
{
	int fd;

	(void)unused;
	become(1000);
	fd = must_pool("theirs", 4 * MIB);
	EQUAL(frame_alloc(fd, 1, UNIT, 0, NULL), 0, "the creator's alloc");
	close(fd);
	fd = pool_open("theirs", COMPUTRON_OPEN_WRITE);
	CHECK(fd >= 0, "the creator's second open: %d", fd);
}

static void third(void *unused)
{
	(void)unused;
	become(1001);
	EQUAL(pool_open("theirs", COMPUTRON_OPEN_WRITE), -EACCES, "a third user");
}

TEST(creators_and_root_write)
{
	struct computron_pool_info row = {0};
	struct computron_pool_list list = {.size = sizeof(list),
					   .count = 1,
					   .row_bytes = sizeof(row),
					   .pools = (uintptr_t)&row};
	int fd;

	EQUAL(in_child(creates, NULL), 0, "status");
	EQUAL(in_child(third, NULL), 0, "status");
	EQUAL(call(must_control(), COMPUTRON_IOC_POOL_LIST, &list), 0, "list");
	EQUAL(row.uid, 1000, "uid");
	fd = pool_open("theirs", COMPUTRON_OPEN_WRITE);
	CHECK(fd >= 0, "root: %d", fd);
	EQUAL(frame_alloc(fd, 2, UNIT, 0, NULL), 0, "root's alloc");
	close(fd);
	EQUAL(pool_destroy("theirs", 0), 0, "root destroys");
}

/* A file that was opened as a writer stays one: what counts is who opened it, not who holds it. */
static void inherited(void *arg)
{
	struct computron_ref ref;
	int fd = *(int *)arg;

	become(1000);
	EQUAL(frame_alloc(fd, 7, UNIT, 0, &ref), 0, "alloc on an inherited file");
	EQUAL(frame_abort(fd, ref), 0, "abort");
}

TEST(descriptors_carry_the_right)
{
	int fd = must_pool("fd", 4 * MIB);

	EQUAL(in_child(inherited, &fd), 0, "status");
	close(fd);
	EQUAL(pool_destroy("fd", 0), 0, "destroy");
}

TEST(others_do_not_open_the_device)
{
	struct stat st;

	CHECK(!stat(COMPUTRON_DEVICE, &st), "errno %d", errno);
	/* Tests before this one may have made it wider; a fresh module's node is what counts. */
	CHECK(S_ISCHR(st.st_mode), "no character device");
}
