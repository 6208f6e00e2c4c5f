// SPDX-License-Identifier: MIT
/* What `computron doctor` finds where something is refused: by the kernel itself in a child
 * process, or by files below a folder that stands for "/". */
#include "test.h"
#include "root_fixture.h"
#include "sandbox.h"
#include "stage_fixture.h"
#include "tools/doctor.h"

#include <sys/resource.h>
#include <sys/syscall.h>

/* An empty one when there is none. */
static const struct ctn_finding *find(const struct ctn_doctor *d, const char *name)
{
	static const struct ctn_finding none;

	for (uint32_t i = 0; i < d->count; i++) {
		if (strcmp(d->findings[i].name, name) == 0)
			return &d->findings[i];
	}
	return &none;
}

/* Whether the finding is there and as it should be; prints it when not. */
static bool found(const struct ctn_doctor *d, const char *name, enum ctn_doctor_state state,
		  const char *got, const char *why, const char *mend)
{
	const struct ctn_finding *f = find(d, name);

	if (f->state == state && f->asked[0] && strstr(f->got, got) && strstr(f->why, why) &&
	    strstr(f->mend, mend))
		return true;
	printf("# %s: state %d, asked %s, got %s, why %s, mend %s\n", name, (int)f->state, f->asked,
	       f->got, f->why, f->mend);
	fflush(stdout);
	return false;
}

static struct ctn_doctor examine(const char *root, const char *models_dir, uint64_t pool_bytes)
{
	struct ctn_doctor d = {.root = root, .models_dir = models_dir, .pool_bytes = pool_bytes};

	ctn_doctor_examine(&d);
	return d;
}

/* A folder of models with one file in a folder, of more bytes than the doctor reads. */
static const char *models(void)
{
	static char dir[512];
	char path[600];

	if (dir[0])
		return dir;
	snprintf(dir, sizeof(dir), "%s/models", ctn_test_tmpdir());
	mkdir(dir, 0755);
	snprintf(path, sizeof(path), "%s/one", dir);
	mkdir(path, 0755);
	snprintf(path, sizeof(path), "%s/one/model.safetensors", dir);
	write_file(path, 3 * CTN_MIB + 5, 9);
	return dir;
}

/* Whatever this machine gives: what is not OK says why, and what mends it. */
static void test_this_machine(void)
{
	struct ctn_doctor d = examine("", models(), 64 * CTN_MIB);
	static const char *const names[] = {"io_uring", "memlock",       "models-dir",   "o_direct",
					    "stage",    "thp",           "huge pages",   "numa",
					    "memory",   "max_map_count", "kernel module"};
	char path[600];

	CU_ASSERT_EQUAL(d.count, CTN_ARRAY_LEN(names));
	for (size_t i = 0; i < CTN_ARRAY_LEN(names); i++)
		CU_ASSERT_PTR_NOT_NULL(find(&d, names[i])->name);
	for (uint32_t i = 0; i < d.count; i++) {
		const struct ctn_finding *f = &d.findings[i];

		CU_ASSERT_TRUE(f->asked[0] && f->got[0]);
		CU_ASSERT_EQUAL(f->why[0] != '\0', f->state != CTN_DOCTOR_OK);
		CU_ASSERT_EQUAL(f->mend[0] != '\0', f->state != CTN_DOCTOR_OK);
	}
	snprintf(path, sizeof(path), "%s/one/model.safetensors", models());
	/* It registers less than the tests of stage do: an ordinary limit may do for it. */
	if (has_fixed() || !may_lock(64 * 1024))
		CU_ASSERT_STRING_EQUAL(find(&d, "stage")->got,
				       ctn_stage_method_name(best_method(path)));
	CU_ASSERT_EQUAL(find(&d, "o_direct")->state == CTN_DOCTOR_OK, takes_direct(path));
	CU_ASSERT_EQUAL(find(&d, "io_uring")->state == CTN_DOCTOR_OK,
			kernel_has_fixed() && ctn_test_kernel_at_least(6, 1));
}

/* ---- refused by the kernel itself -------------------------------------------------------- */

static int filtered_uring(void)
{
	struct ctn_doctor d;

	if (ctn_refuse(SYS_io_uring_setup, -1, 0, EPERM) != 0)
		return 2;
	d = examine("", models(), 64 * CTN_MIB);
	if (!found(&d, "io_uring", CTN_DOCTOR_WORSE, strerror(EPERM), "seccomp", "io_uring_setup"))
		return 3;
	if (has_direct() &&
	    !found(&d, "stage", CTN_DOCTOR_WORSE, "pread", strerror(EPERM), "io_uring"))
		return 4;
	return 0;
}

static int forbidden_uring(void)
{
	const char *root = ctn_root_new("forbidden");
	struct ctn_doctor d;

	ctn_root_put(root, "/proc/sys/kernel/io_uring_disabled", "2\n");
	if (ctn_refuse(SYS_io_uring_setup, -1, 0, EPERM) != 0)
		return 2;
	d = examine(root, NULL, 64 * CTN_MIB);
	return found(&d, "io_uring", CTN_DOCTOR_WORSE, strerror(EPERM), "io_uring_disabled is 2",
		     "sysctl -w kernel.io_uring_disabled=0")
		       ? 0
		       : 3;
}

static int no_flags(void)
{
	struct ctn_doctor d;

	/* Of registered buffers: an old kernel does not know the table without buffers. */
	if (ctn_refuse(SYS_io_uring_register, 1, 15 /* IORING_REGISTER_BUFFERS2 */, EINVAL) != 0)
		return 2;
	d = examine("", NULL, 64 * CTN_MIB);
	return found(&d, "io_uring", CTN_DOCTOR_WORSE, "without registered buffers", "5.19",
		     "uname -r")
		       ? 0
		       : 3;
}

static void test_no_io_uring(void)
{
	models();
	if (!kernel_has_fixed())
		CTN_SKIP("no io_uring with registered buffers");
	CU_ASSERT_EQUAL(ctn_in_child(filtered_uring), 0);
	CU_ASSERT_EQUAL(ctn_in_child(forbidden_uring), 0);
	CU_ASSERT_EQUAL(ctn_in_child(no_flags), 0);
}

static int small_memlock(void)
{
	struct rlimit lim = {65536, 65536};
	struct ctn_doctor d;

	if (setrlimit(RLIMIT_MEMLOCK, &lim) != 0)
		return 2;
	if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
		return 3;
	d = examine("", NULL, 65537);
	if (!found(&d, "memlock", CTN_DOCTOR_WORSE, "64.00 KiB", "RLIMIT_MEMLOCK", "ulimit -l"))
		return 4;
	d = examine("", NULL, 65536);
	return found(&d, "memlock", CTN_DOCTOR_OK, "64.00 KiB", "", "") ? 0 : 5;
}

static void test_small_memlock_limit(void)
{
	CU_ASSERT_EQUAL(ctn_in_child(small_memlock), 0);
}

static int no_direct(void)
{
	struct ctn_doctor d;

	/* As the doctor opens the file, and as stage does. */
	if (ctn_refuse(SYS_openat, 2, O_RDONLY | O_DIRECT | O_CLOEXEC, EINVAL) != 0 ||
	    ctn_refuse(SYS_openat, 2, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK, EINVAL) != 0)
		return 2;
	d = examine("", models(), 64 * CTN_MIB);
	if (!found(&d, "o_direct", CTN_DOCTOR_WORSE, strerror(EINVAL), models(), "cp -rL"))
		return 3;
	return found(&d, "stage", CTN_DOCTOR_WORSE, "buffered", "O_DIRECT refused", "o_direct") ? 0
												: 4;
}

static void test_o_direct_is_refused(void)
{
	models();
	CU_ASSERT_EQUAL(ctn_in_child(no_direct), 0);
}

static int no_thp(void)
{
	struct ctn_doctor d;

	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0)
		return 2;
	d = examine("", NULL, 64 * CTN_MIB);
	return found(&d, "thp", CTN_DOCTOR_WORSE, "0%", "disabled for this process", "madvise") ? 0
												: 3;
}

static int no_binding(void)
{
	const char *root = ctn_root_new("numa");
	struct ctn_doctor d;

	ctn_root_put(root, "/sys/devices/system/node/online", "0-1\n");
	d = examine(root, NULL, 64 * CTN_MIB);
	if (!found(&d, "numa", CTN_DOCTOR_OK, "0-1", "", ""))
		return 2;
	if (ctn_refuse(SYS_mbind, -1, 0, EPERM) != 0)
		return 3;
	d = examine(root, NULL, 64 * CTN_MIB);
	return found(&d, "numa", CTN_DOCTOR_WORSE, "0-1", "mbind", "SYS_NICE") ? 0 : 4;
}

static void test_no_huge_pages_and_no_node(void)
{
	CU_ASSERT_EQUAL(ctn_in_child(no_thp), 0);
	CU_ASSERT_EQUAL(ctn_in_child(no_binding), 0);
}

/* ---- told by files ----------------------------------------------------------------------- */

static void test_reserved_huge_pages(void)
{
	const char *root = ctn_root_new("huge");
	struct ctn_doctor d = examine(root, NULL, 10 * CTN_MIB);

#define HUGE "/sys/kernel/mm/hugepages/hugepages-2048kB/"
	CU_ASSERT_TRUE(found(&d, "huge pages", CTN_DOCTOR_WORSE, "0 B",
			     "no huge pages reserved (HugePages_Free 0)", "vm.nr_hugepages=5"));
	ctn_root_put(root, HUGE "nr_hugepages", "7\n");
	ctn_root_put(root, HUGE "free_hugepages", "5\n");
	ctn_root_put(root, HUGE "resv_hugepages", "1\n");
	/* Four can be had, five are needed: one more than the seven that there are. */
	d = examine(root, NULL, 10 * CTN_MIB);
	CU_ASSERT_TRUE(found(&d, "huge pages", CTN_DOCTOR_WORSE, "8.00 MiB (4 pages)", "fewer",
			     "vm.nr_hugepages=8"));
	d = examine(root, NULL, 8 * CTN_MIB);
	CU_ASSERT_TRUE(found(&d, "huge pages", CTN_DOCTOR_OK, "8.00 MiB (4 pages)", "", ""));
}

/* What the daemon could do without, until it is asked for by name. */
static void test_a_provider_by_name(void)
{
	const char *root = ctn_root_new("named");
	struct ctn_doctor d = {.root = root, .pool_bytes = 10 * CTN_MIB, .provider = "hugetlb"};

	ctn_doctor_examine(&d);
	CU_ASSERT_TRUE(found(&d, "huge pages", CTN_DOCTOR_BLOCKED, "0 B", "no huge pages reserved",
			     "vm.nr_hugepages=5"));
	d.provider = "plain";
	ctn_doctor_examine(&d);
	CU_ASSERT_TRUE(found(&d, "huge pages", CTN_DOCTOR_WORSE, "0 B", "no huge pages reserved",
			     "vm.nr_hugepages=5"));
}

static void test_limits(void)
{
	const char *root = ctn_root_new("limits");
	struct ctn_doctor d;

	ctn_root_put(root, "/proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 3145728 kB\n");
	ctn_root_put(root, "/proc/sys/vm/max_map_count", "5000\n");
	d = examine(root, NULL, CTN_GIB);
	CU_ASSERT_TRUE(found(&d, "memory", CTN_DOCTOR_OK, "3.00 GiB", "", ""));
	/* 512 extents, a mapping for each and one between; and 4096 for the rest. */
	CU_ASSERT_TRUE(found(&d, "max_map_count", CTN_DOCTOR_WORSE, "5000", "mappings",
			     "vm.max_map_count=5120"));
	ctn_root_put(root, "/proc/sys/vm/max_map_count", "5120\n");
	ctn_root_put(root, "/proc/self/cgroup", "0::/a\n");
	ctn_root_put(root, "/sys/fs/cgroup/a/memory.max", "2147483648\n");
	d = examine(root, NULL, CTN_GIB);
	CU_ASSERT_TRUE(found(&d, "max_map_count", CTN_DOCTOR_OK, "5120", "", ""));
	CU_ASSERT_TRUE(found(&d, "memory", CTN_DOCTOR_WORSE, "2.00 GiB", "cgroup", "MemoryMax"));
	d = examine(root, NULL, 2 * CTN_GIB + 1);
	CU_ASSERT_TRUE(
		found(&d, "memory", CTN_DOCTOR_BLOCKED, "2.00 GiB", "cgroup", "--pool size=512M"));
}

static void test_folders_without_checkpoints(void)
{
	char dir[512], path[600];
	struct ctn_doctor d = examine("", "/no/such/folder", 64 * CTN_MIB);

	CU_ASSERT_TRUE(found(&d, "models-dir", CTN_DOCTOR_BLOCKED, strerror(ENOENT),
			     "/no/such/folder", "ls"));
	snprintf(dir, sizeof(dir), "%s/empty", ctn_test_tmpdir());
	mkdir(dir, 0755);
	snprintf(path, sizeof(path), "%s/.safetensors", dir);
	write_file(path, 10, 1);
	d = examine("", dir, 64 * CTN_MIB);
	CU_ASSERT_TRUE(found(&d, "models-dir", CTN_DOCTOR_BLOCKED, "without any", dir, "ls"));
	CU_ASSERT_PTR_NULL(find(&d, "stage")->name);
	/* A file with nothing in it cannot be staged. */
	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	write_file(path, 0, 1);
	d = examine("", dir, 64 * CTN_MIB);
	CU_ASSERT_TRUE(found(&d, "stage", CTN_DOCTOR_BLOCKED, "nothing", path, "bench stage"));
}

CTN_TESTS("tools_doctor", CTN_TEST(test_this_machine), CTN_TEST(test_no_io_uring),
	  CTN_TEST(test_small_memlock_limit), CTN_TEST(test_o_direct_is_refused),
	  CTN_TEST(test_no_huge_pages_and_no_node), CTN_TEST(test_reserved_huge_pages),
	  CTN_TEST(test_a_provider_by_name), CTN_TEST(test_limits),
	  CTN_TEST(test_folders_without_checkpoints))
