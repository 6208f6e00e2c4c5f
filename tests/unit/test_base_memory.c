// SPDX-License-Identifier: MIT
/* How much memory there is, under a root that stands for "/". */
#include "test.h"
#include "root_fixture.h"
#include "base/base.h"

#include <errno.h>

static const char meminfo[] = "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    8000 kB\n";

static uint64_t limit_of(const char *root)
{
	uint64_t bytes = 0;

	CU_ASSERT_EQUAL(ctn_memory_usable(root, &bytes), 0);
	return bytes;
}

static void test_available_memory_without_cgroups(void)
{
	const char *root = ctn_root_new("none");
	uint64_t bytes;

	CU_ASSERT_EQUAL(ctn_memory_usable(root, &bytes), -ENODATA);
	ctn_root_put(root, "/proc/meminfo", "MemTotal:  9000 kB\n");
	CU_ASSERT_EQUAL(ctn_memory_usable(root, &bytes), -ENODATA);
	ctn_root_put(root, "/proc/meminfo", meminfo);
	CU_ASSERT_EQUAL(limit_of(root), 8000 * 1024);
}

static void test_limits_of_cgroup_v2(void)
{
	const char *root = ctn_root_new("v2");

	ctn_root_put(root, "/proc/meminfo", meminfo);
	ctn_root_put(root, "/proc/self/cgroup", "0::/a/b\n");
	ctn_root_put(root, "/sys/fs/cgroup/a/b/memory.max", "max\n");
	CU_ASSERT_EQUAL(limit_of(root), 8000 * 1024);
	ctn_root_put(root, "/sys/fs/cgroup/a/memory.max", "4000000\n");
	CU_ASSERT_EQUAL(limit_of(root), 4000000);
	ctn_root_put(root, "/sys/fs/cgroup/a/b/memory.max", "3000000\n");
	CU_ASSERT_EQUAL(limit_of(root), 3000000);
	ctn_root_put(root, "/sys/fs/cgroup/memory.max", "2000000\n");
	CU_ASSERT_EQUAL(limit_of(root), 2000000);
	/* Another group's limit is not ours. */
	ctn_root_put(root, "/sys/fs/cgroup/c/memory.max", "1000000\n");
	CU_ASSERT_EQUAL(limit_of(root), 2000000);
}

static void test_limits_of_cgroup_v1(void)
{
	const char *root = ctn_root_new("v1");

	ctn_root_put(root, "/proc/meminfo", meminfo);
	ctn_root_put(root, "/proc/self/cgroup", "9:cpu,cpuacct:/x\n4:hugetlb,memory:/x/y\n0::/\n");
	ctn_root_put(root, "/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "5000000\n");
	CU_ASSERT_EQUAL(limit_of(root), 5000000);
	ctn_root_put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	CU_ASSERT_EQUAL(limit_of(root), 5000000);
	ctn_root_put(root, "/sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "4500000\n");
	CU_ASSERT_EQUAL(limit_of(root), 4500000);
}

CTN_TESTS("base_memory", CTN_TEST(test_available_memory_without_cgroups),
	  CTN_TEST(test_limits_of_cgroup_v2), CTN_TEST(test_limits_of_cgroup_v1))
