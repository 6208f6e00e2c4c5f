/* SPDX-License-Identifier: MIT */
/*
 * Pools of a NUMA node: their memory lies there, whatever CPU asks for it. The guest has two nodes,
 * a CPU each (check-kernels); where a page lies is what move_pages says.
 */
#include "pool.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES 2
#define BYTES (16 * MIB)

static int create(const char *name, int node)
{
	struct computron_pool_create arg = {.size = sizeof(arg), .bytes = 2 * BYTES, .node = node};
	int control = must_control(), err;

	strncpy(arg.name, name, sizeof(arg.name) - 1);
	err = call(control, COMPUTRON_IOC_POOL_CREATE, &arg);
	close(control);
	return err ? err : arg.fd;
}

/* All pages of a range that this process has touched lie on a node. */
static void must_lie_on(uint8_t *at, uint64_t bytes, int node)
{
	uint64_t count = bytes / 4096;
	void **pages = calloc(count, sizeof(*pages));
	int *where = calloc(count, sizeof(*where));

	CHECK(pages && where, "memory");
	for (uint64_t i = 0; i < count; i++) {
		pages[i] = at + i * 4096;
		*(volatile uint8_t *)pages[i];
	}
	CHECK(!syscall(SYS_move_pages, 0, count, pages, NULL, where, 0), "errno %d", errno);
	for (uint64_t i = 0; i < count; i++)
		CHECK(where[i] == node, "page %llu is on node %d", (unsigned long long)i, where[i]);
	free(pages);
	free(where);
}

static void must_run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	CHECK(!sched_setaffinity(0, sizeof(set), &set), "errno %d", errno);
}

static void setup(void)
{
	if (access("/sys/devices/system/node/node1", F_OK))
		ktap_skip("one NUMA node");
}

/* Every pair of a CPU and a node that is asked for. */
TEST(frames_lie_on_the_node)
{
	char name[16], path[64];
	struct computron_ref ref;
	uint64_t huge;
	uint8_t *map;
	int fd;

	setup();
	for (int cpu = 0; cpu < NODES; cpu++) {
		for (int node = 0; node < NODES; node++) {
			must_run_on(cpu);
			snprintf(name, sizeof(name), "of%d", node);
			fd = create(name, node);
			CHECK(fd >= 0, "%d", fd);
			EQUAL(must_stat(fd).node, node, "node by the pool");
			snprintf(path, sizeof(path), "/sys/class/misc/computron/pools/%s/node",
				 name);
			EQUAL(number_of(path), node, "node in sysfs");
			map = must_map(fd, 2 * BYTES, PROT_READ | PROT_WRITE);
			EQUAL(frame_alloc(fd, 1, BYTES, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
			EQUAL(frame_populate(fd, ref, &huge), 0, "populate");
			EQUAL(huge, BYTES, "huge bytes");
			must_lie_on(map + frame_offset(ref), BYTES, node);
			munmap(map, 2 * BYTES);
			close(fd);
			EQUAL(pool_destroy(name, 0), 0, "destroy");
		}
	}
}

/* Memory that comes by a writer's faults. */
TEST(faults_lie_on_the_node)
{
	struct computron_ref ref;
	uint8_t *map;
	int fd;

	setup();
	for (int node = 0; node < NODES; node++) {
		must_run_on(!node);
		fd = create("faults", node);
		CHECK(fd >= 0, "%d", fd);
		map = must_map(fd, 2 * BYTES, PROT_READ | PROT_WRITE);
		EQUAL(frame_alloc(fd, 1, BYTES, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
		memset(map + frame_offset(ref), 1, BYTES);
		must_lie_on(map + frame_offset(ref), BYTES, node);
		munmap(map, 2 * BYTES);
		close(fd);
		EQUAL(pool_destroy("faults", 0), 0, "destroy");
	}
}

TEST(no_such_node)
{
	EQUAL(create("x", 63), -ENXIO, "node 63");
	EQUAL(create("x", -2), -ENXIO, "node -2");
	EQUAL(create("x", 1 << 30), -ENXIO, "node 2^30");
}

/* Where memory lies is the creator's to say, not a reader's. */
TEST(readers_set_no_policy)
{
	unsigned long nodes = 1UL << 1;
	struct computron_ref ref;
	uint8_t *map, *view;
	uint64_t huge;
	int fd, reader;

	setup();
	fd = create("policy", 0);
	CHECK(fd >= 0, "%d", fd);
	reader = pool_open("policy", 0);
	map = must_map(fd, 2 * BYTES, PROT_READ | PROT_WRITE);
	view = must_map(reader, 2 * BYTES, PROT_READ);
	syscall(SYS_mbind, view, 2 * BYTES, 2 /* MPOL_BIND */, &nodes, 3, 0);
	EQUAL(frame_alloc(fd, 1, BYTES, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
	EQUAL(frame_populate(fd, ref, &huge), 0, "populate");
	must_lie_on(map + frame_offset(ref), BYTES, 0);
	munmap(map, 2 * BYTES);
	munmap(view, 2 * BYTES);
	close(fd);
	close(reader);
	EQUAL(pool_destroy("policy", 0), 0, "destroy");
}
