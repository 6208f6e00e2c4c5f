/* SPDX-License-Identifier: MIT */
/* Pools: names, sizes, what create, open, list and destroy refuse. */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void forget(const char *name)
{
	EQUAL(pool_destroy(name, 0), 0, name);
}

TEST(names)
{
	static const char *const good[] = {"a", "A.b_c-9", "0123456789012345678901234567890"};
	static const char *const bad[] = {"",    ".",   "..",       ".a", "a/b",
					  "a b", "a\n", "\xc3\xa9", "a*", "%n"};
	struct computron_pool_create create = {.size = sizeof(create), .bytes = UNIT, .node = -1};
	int control = must_control();

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		close(must_pool(good[i], UNIT));
		forget(good[i]);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		EQUAL(pool_create(bad[i], UNIT, 0, 0, 0), -EINVAL, bad[i]);
	memset(create.name, 'a', sizeof(create.name)); /* no end */
	EQUAL(call(control, COMPUTRON_IOC_POOL_CREATE, &create), -EINVAL, "a name without an end");
	EQUAL(pool_count(), 0, "pools");
}

TEST(sizes)
{
	struct computron_pool_create create = {.size = sizeof(create), .name = "s", .node = -1};
	int control = must_control();

	EQUAL(pool_create("s", 0, 0, 0, 0), -EINVAL, "nothing");
	EQUAL(pool_create("s", UNIT - 1, 0, 0, 0), -EINVAL, "less than a unit");
	EQUAL(pool_create("s", 2 * UNIT, 3 * UNIT, 0, 0), -EINVAL, "quota above the size");
	EQUAL(pool_create("s", 2 * UNIT, 0, 0, UNIT + 4096), -EINVAL, "segments of odd size");
	CHECK(pool_create("s", ~0ULL, 0, 0, 0) < 0, "all that can be said");
	CHECK(pool_create("s", 1ULL << 62, 0, 0, 0) < 0, "4 EiB");
	create.bytes = 3 * UNIT - 1;
	EQUAL(call(control, COMPUTRON_IOC_POOL_CREATE, &create), 0, "rounds down");
	EQUAL(create.bytes, 2 * UNIT, "bytes");
	EQUAL(must_stat(create.fd).bytes, 2 * UNIT, "bytes of the stat");
	EQUAL(must_stat(create.fd).quota, 2 * UNIT, "quota");
	EQUAL(must_stat(create.fd).files, 1, "files");
	close(create.fd);
	forget("s");
}

TEST(nodes)
{
	struct computron_pool_create create = {.size = sizeof(create), .name = "n", .bytes = UNIT};
	int control = must_control();

	create.node = 0;
	EQUAL(call(control, COMPUTRON_IOC_POOL_CREATE, &create), 0, "node 0");
	EQUAL(must_stat(create.fd).node, 0, "node");
	close(create.fd);
	forget("n");
	for (int node = 1; node < 5; node++) {
		create.node = node == 1   ? 63
			      : node == 2 ? -2
			      : node == 3 ? 0x7fffffff
					  : (int)0x80000000;
		EQUAL(call(control, COMPUTRON_IOC_POOL_CREATE, &create), -ENXIO, "no such node");
	}
}

TEST(twice)
{
	int fd = must_pool("t", UNIT);

	EQUAL(pool_create("t", UNIT, 0, 0, 0), -EEXIST, "again");
	close(fd);
	EQUAL(pool_create("t", UNIT, 0, 0, 0), -EEXIST, "again, closed");
	forget("t");
	EQUAL(pool_destroy("t", 0), -ENOENT, "destroyed twice");
	EQUAL(pool_open("t", 0), -ENOENT, "open");
}

TEST(open_again)
{
	struct computron_pool_open arg = {.size = sizeof(arg), .name = "o"};
	int control = must_control(), fd = pool_create("o", 8 * MIB, 0, 0, 4 * MIB);

	CHECK(fd >= 0, "%d", fd);
	EQUAL(call(control, COMPUTRON_IOC_POOL_OPEN, &arg), 0, "open");
	EQUAL(arg.bytes, 8 * MIB, "bytes");
	EQUAL(arg.segment_bytes, 4 * MIB, "segment");
	EQUAL(arg.node, -1, "node");
	EQUAL(must_stat(arg.fd).files, 2, "files");
	CHECK(fcntl(arg.fd, F_GETFD) & FD_CLOEXEC, "close-on-exec");
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC, "close-on-exec");
	close(arg.fd);
	EQUAL(must_stat(fd).files, 1, "files");
	close(fd);
	forget("o");
}

TEST(busy_until_closed)
{
	int fd = must_pool("b", UNIT), again;
	uint8_t *map;

	EQUAL(pool_destroy("b", 0), -EBUSY, "while open");
	again = dup(fd);
	close(fd);
	EQUAL(pool_destroy("b", 0), -EBUSY, "while a duplicate is open");
	map = must_map(again, UNIT, PROT_READ);
	(void)map;
	close(again);
	forget("b"); /* a writer's mapping outlives the file */
}

TEST(destroyed_while_open)
{
	struct computron_ref clean, leased;
	int fd = must_pool("d", 8 * MIB), reader = pool_open("d", 0);
	uint8_t *map = must_map(fd, 8 * MIB, PROT_READ | PROT_WRITE);
	uint64_t word;

	clean = must_frame(fd, map, 1, UNIT, 0);
	leased = must_frame(fd, map, 2, UNIT, COMPUTRON_SEAL_LEASE);
	word = *(uint64_t *)(map + frame_offset(leased));
	EQUAL(pool_destroy("d", COMPUTRON_DESTROY_OPEN), 0, "destroy");
	EQUAL(pool_count(), 0, "pools");
	EQUAL(frame_lease(fd, clean), -ENODEV, "lease");
	EQUAL(frame_alloc(fd, 3, UNIT, 0, NULL), -ENODEV, "alloc");
	EQUAL(must_stat(reader).clean, UNIT, "the leased frame is still there");
	EQUAL(*(uint64_t *)(map + frame_offset(leased)), word, "and so are its bytes");
	EQUAL(frame_release(fd, leased), 0, "release");
	close(must_pool("d", UNIT)); /* the name is free */
	forget("d");
}

TEST(list)
{
	struct computron_pool_info rows[4] = {0};
	struct computron_pool_list arg = {
		.size = sizeof(arg), .row_bytes = sizeof(rows[0]), .pools = (uintptr_t)rows};
	int control = must_control(), fds[3];
	static const char *const names[] = {"one", "two", "three"};

	for (int i = 0; i < 3; i++)
		fds[i] = must_pool(names[i], (1 + i) * UNIT);
	arg.count = 4;
	EQUAL(call(control, COMPUTRON_IOC_POOL_LIST, &arg), 0, "list");
	EQUAL(arg.count, 3, "count");
	EQUAL(arg.total, 3, "total");
	for (int i = 0; i < 3; i++) {
		int found = 0;

		for (int j = 0; j < 3; j++)
			if (!strcmp(rows[j].name, names[i])) {
				found++;
				EQUAL(rows[j].bytes, (1 + i) * UNIT, names[i]);
				EQUAL(rows[j].uid, 0, "uid");
				EQUAL(rows[j].node, -1, "node");
			}
		EQUAL(found, 1, names[i]);
	}
	arg.count = 2;
	memset(rows, 0x55, sizeof(rows));
	EQUAL(call(control, COMPUTRON_IOC_POOL_LIST, &arg), 0, "a short list");
	EQUAL(arg.count, 2, "count");
	EQUAL(arg.total, 3, "total");
	EQUAL(rows[2].bytes, 0x5555555555555555ULL, "behind the room that there was");
	arg.count = 0;
	arg.pools = 0;
	EQUAL(call(control, COMPUTRON_IOC_POOL_LIST, &arg), 0, "no room");
	EQUAL(arg.total, 3, "total");
	arg.count = 4;
	EQUAL(call(control, COMPUTRON_IOC_POOL_LIST, &arg), -EFAULT, "nowhere");
	for (int i = 0; i < 3; i++) {
		close(fds[i]);
		forget(names[i]);
	}
}
