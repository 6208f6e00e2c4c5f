/* SPDX-License-Identifier: MIT */
/*
 * Every call with its first allocation failing, then its second, and so on until it does without:
 * no failure may leave anything behind. Needs a kernel with CONFIG_FAULT_INJECTION and fail-nth.
 */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POOL     (8 * MIB)
#define FAILSLAB "/sys/kernel/debug/failslab/"
#define FAILPAGE "/sys/kernel/debug/fail_page_alloc/"

static int nth_fd;

static void setup(void)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%ld/fail-nth", syscall(SYS_gettid));
	nth_fd = open(path, O_RDWR);
	if (nth_fd < 0)
		ktap_skip("no fault injection in this kernel");
	/* Also allocations that may wait, and quietly: a trace of each would bury what matters. */
	must_write(FAILSLAB "ignore-gfp-wait", "N");
	must_write(FAILSLAB "verbose", "0");
	must_write(FAILPAGE "ignore-gfp-wait", "N");
	must_write(FAILPAGE "ignore-gfp-highmem", "N");
	must_write(FAILPAGE "min-order", "0");
	must_write(FAILPAGE "verbose", "0");
}

static void arm(int nth)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%d", nth);

	CHECK(pwrite(nth_fd, text, (size_t)length, 0) == length, "errno %d", errno);
}

/* Whether the failure that was armed has come to pass; disarms it. */
static bool failed(void)
{
	char text[16] = "";

	CHECK(pread(nth_fd, text, sizeof(text) - 1, 0) > 0, "errno %d", errno);
	arm(0);
	return text[0] == '0';
}

/* Repeats `call_` with the 1st, 2nd, ... allocation failing until none does; `undo` after each
 * success. */
#define EACH_NTH(name, call_, undo)                                                               \
	do {                                                                                      \
		int nth_, err_, failures_ = 0;                                                    \
		for (nth_ = 1; nth_ < 2000; nth_++) {                                             \
			bool did_;                                                                \
			arm(nth_);                                                                \
			err_ = (call_);                                                           \
			did_ = failed();                                                          \
			if (err_ >= 0) {                                                          \
				undo;                                                             \
			} else {                                                                  \
				failures_++;                                                      \
				CHECK(err_ == -ENOMEM || err_ == -ENFILE || err_ == -EFAULT ||    \
					      err_ == -EAGAIN || err_ == -EINTR,                  \
				      name ": nth %d gives %d", nth_, err_);                      \
			}                                                                         \
			if (!did_) {                                                              \
				CHECK(err_ >= 0, name ": %d without a failed allocation", err_);  \
				break;                                                            \
			}                                                                         \
		}                                                                                 \
		CHECK(nth_ < 2000, name ": no end");                                              \
		ktap_note(name ": %d allocations, %d of them make it fail", nth_ - 1, failures_); \
	} while (0)

static int control, fd;

static int create(const char *name)
{
	struct computron_pool_create arg = {.size = sizeof(arg), .bytes = POOL, .node = -1};
	int err;

	strcpy(arg.name, name);
	err = call(control, COMPUTRON_IOC_POOL_CREATE, &arg);
	return err ? err : arg.fd;
}

static int open_again(uint32_t flags)
{
	struct computron_pool_open arg = {.size = sizeof(arg), .flags = flags, .name = "nth"};
	int err = call(control, COMPUTRON_IOC_POOL_OPEN, &arg);

	return err ? err : arg.fd;
}

static int destroy(const char *name)
{
	struct computron_pool_destroy arg = {.size = sizeof(arg)};

	strcpy(arg.name, name);
	return call(control, COMPUTRON_IOC_POOL_DESTROY, &arg);
}

static void with_pool(void)
{
	setup();
	control = must_control();
	fd = create("nth");
	CHECK(fd >= 0, "%d", fd);
}

static void must_be_empty(void)
{
	struct computron_pool_stat stat = must_stat(fd);

	EQUAL(stat.used, 0, "used");
	EQUAL(stat.frames, 0, "frames");
	EQUAL(stat.populated, 0, "populated");
	close(fd);
	EQUAL(destroy("nth"), 0, "destroy");
	EQUAL(pool_count(), 0, "pools");
}

TEST(device_open)
{
	setup();
	EACH_NTH("open", ({
			 int got = open(COMPUTRON_DEVICE, O_RDWR);

			 got < 0 ? -errno : got;
		 }),
		 close(err_));
}

TEST(pool_create)
{
	setup();
	control = must_control();
	EACH_NTH("create", create("nth"), {
		close(err_);
		EQUAL(destroy("nth"), 0, "destroy");
	});
	EQUAL(pool_count(), 0, "pools");
}

TEST(pool_open)
{
	with_pool();
	EACH_NTH("open as a writer", open_again(COMPUTRON_OPEN_WRITE), close(err_));
	EACH_NTH("open as a reader", open_again(0), close(err_));
	EQUAL(must_stat(fd).files, 1, "files");
	must_be_empty();
}

TEST(pool_destroy)
{
	struct computron_pool_destroy arg = {.size = sizeof(arg), .name = "nth"};

	setup();
	control = must_control();
	close(create("nth"));
	EACH_NTH("destroy", call(control, COMPUTRON_IOC_POOL_DESTROY, &arg), close(create("nth")));
	EQUAL(destroy("nth"), 0, "destroy");
}

TEST(frame_alloc)
{
	struct computron_ref ref;

	with_pool();
	EACH_NTH("alloc", frame_alloc(fd, 1, UNIT, COMPUTRON_ALLOC_RESERVE, &ref),
		 EQUAL(frame_abort(fd, ref), 0, "abort"));
	EACH_NTH("alloc and populate", frame_alloc(fd, 1, 2 * UNIT, 0, &ref),
		 EQUAL(frame_abort(fd, ref), 0, "abort"));
	must_be_empty();
}

TEST(frame_populate)
{
	struct computron_ref ref;

	with_pool();
	EQUAL(frame_alloc(fd, 1, 2 * UNIT, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
	EACH_NTH("populate", frame_populate(fd, ref, NULL), {
		EQUAL(frame_abort(fd, ref), 0, "abort");
		EQUAL(frame_alloc(fd, 1, 2 * UNIT, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
	});
	EQUAL(frame_abort(fd, ref), 0, "abort");
	must_be_empty();
}

TEST(frame_seal_lease_evict)
{
	struct computron_ref first, ref;

	with_pool();
	/* Leases are counted by id: only that of the very first frame needs no memory. */
	EQUAL(frame_alloc(fd, 2, UNIT, 0, &first), 0, "alloc");
	EQUAL(frame_alloc(fd, 1, UNIT, 0, &ref), 0, "alloc");
	EACH_NTH("seal", frame_seal(fd, ref, 0), {
		EQUAL(frame_evict(fd, ref), 0, "evict");
		EQUAL(frame_alloc(fd, 1, UNIT, 0, &ref), 0, "alloc");
	});
	EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	EACH_NTH("lease", frame_lease(fd, ref), EQUAL(frame_release(fd, ref), 0, "release"));
	EQUAL(frame_evict(fd, ref), 0, "evict");
	EQUAL(frame_alloc(fd, 1, UNIT, 0, &ref), 0, "alloc");
	EACH_NTH("seal with a lease", frame_seal(fd, ref, COMPUTRON_SEAL_LEASE), {
		EQUAL(frame_release(fd, ref), 0, "release");
		EQUAL(frame_evict(fd, ref), 0, "evict");
		EQUAL(frame_alloc(fd, 1, UNIT, 0, &ref), 0, "alloc");
	});
	EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	EQUAL(frame_lease(fd, ref), 0, "lease");
	EACH_NTH("release", frame_release(fd, ref), EQUAL(frame_lease(fd, ref), 0, "lease"));
	EQUAL(frame_release(fd, ref), 0, "release");
	EACH_NTH("evict", frame_evict(fd, ref), {
		EQUAL(frame_alloc(fd, 1, UNIT, 0, &ref), 0, "alloc");
		EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	});
	EQUAL(frame_evict(fd, ref), 0, "evict");
	EQUAL(frame_alloc(fd, 1, UNIT, 0, &ref), 0, "alloc");
	EACH_NTH("abort", frame_abort(fd, ref),
		 EQUAL(frame_alloc(fd, 1, UNIT, 0, &ref), 0, "alloc"));
	EQUAL(frame_abort(fd, ref), 0, "abort");
	EQUAL(frame_abort(fd, first), 0, "abort");
	must_be_empty();
}

TEST(looking)
{
	struct computron_frame_info rows[4];
	struct computron_frame_list list = {.size = sizeof(list),
					    .count = 4,
					    .row_bytes = sizeof(rows[0]),
					    .frames = (uintptr_t)rows};
	struct computron_pool_stat stat = {.size = sizeof(stat), .flags = COMPUTRON_STAT_SURVEY};
	struct computron_pool_hot hot = {
		.size = sizeof(hot), .flags = COMPUTRON_HOT_ON, .bytes = UNIT};
	struct computron_extent extents[4];
	struct computron_ref ref;
	uint32_t count;

	with_pool();
	EQUAL(frame_alloc(fd, 1, UNIT, 0, &ref), 0, "alloc");
	EACH_NTH("lookup", frame_lookup(fd, 1, NULL), );
	EACH_NTH("list",
		 (list.next = 0, list.count = 4, call(fd, COMPUTRON_IOC_FRAME_LIST, &list)), );
	EACH_NTH("extents", frame_extents(fd, ref, extents, 4, &count), );
	EACH_NTH("stat", call(fd, COMPUTRON_IOC_POOL_STAT, &stat), );
	EACH_NTH("hot", (hot.flags = COMPUTRON_HOT_ON, call(fd, COMPUTRON_IOC_POOL_HOT, &hot)), {
		hot.flags = 0;
		EQUAL(call(fd, COMPUTRON_IOC_POOL_HOT, &hot), 0, "cold");
	});
	EQUAL(frame_abort(fd, ref), 0, "abort");
	must_be_empty();
}

static int list_pools(void)
{
	struct computron_pool_info rows[4];
	struct computron_pool_list arg = {.size = sizeof(arg),
					  .count = 4,
					  .row_bytes = sizeof(rows[0]),
					  .pools = (uintptr_t)rows};

	return call(control, COMPUTRON_IOC_POOL_LIST, &arg);
}

static int read_file(const char *path)
{
	char text[512];
	int file = open(path, O_RDONLY), err = file < 0 ? -errno : 0;

	if (!err && read(file, text, sizeof(text)) < 0)
		err = -errno;
	if (file >= 0)
		close(file);
	return err;
}

TEST(pools_and_tables)
{
	struct computron_info info = {.size = sizeof(info)};
	struct computron_pool_set set = {
		.size = sizeof(set), .flags = COMPUTRON_SET_FLOOR, .floor = UNIT};
	struct computron_ref ref;

	with_pool();
	EQUAL(frame_alloc(fd, 1, UNIT, 0, &ref), 0, "alloc");
	EACH_NTH("info", call(control, COMPUTRON_IOC_INFO, &info), );
	EACH_NTH("list of pools", list_pools(), );
	EACH_NTH("set", call(fd, COMPUTRON_IOC_POOL_SET, &set), );
	EACH_NTH("/proc pools", read_file("/proc/computron/pools"), );
	EACH_NTH("/proc frames", read_file("/proc/computron/frames"), );
	EACH_NTH("sysfs", read_file("/sys/class/misc/computron/pools/nth/used"), );
	EQUAL(frame_abort(fd, ref), 0, "abort");
	must_be_empty();
}

static int adopt(int memfd)
{
	struct computron_pool_adopt arg = {
		.size = sizeof(arg), .name = "adopted", .memfd = memfd, .node = -1};
	int err = call(control, COMPUTRON_IOC_POOL_ADOPT, &arg);

	return err ? err : arg.fd;
}

static int memfd_again(void)
{
	struct computron_pool_memfd arg = {.size = sizeof(arg)};
	int err = call(fd, COMPUTRON_IOC_POOL_MEMFD, &arg);

	return err ? err : arg.fd;
}

static int map_once(uint8_t **map, int from, uint64_t bytes, int protection)
{
	*map = mmap(NULL, bytes, protection, MAP_SHARED, from, 0);
	return *map == MAP_FAILED ? -errno : 0;
}

TEST(adopted_pool)
{
	struct computron_ref ref;
	int memfd, reader;
	uint8_t *map;

	setup();
	control = must_control();
	must_write("/proc/sys/vm/nr_hugepages", "4");
	memfd = memfd_create("nth", MFD_HUGETLB | MFD_CLOEXEC);
	if (memfd < 0 || ftruncate(memfd, 4 * UNIT) ||
	    number_of("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") < 4)
		ktap_skip("no hugetlb pages");
	EACH_NTH("adopt", adopt(memfd), {
		close(err_);
		EQUAL(destroy("adopted"), 0, "destroy");
	});
	fd = adopt(memfd);
	CHECK(fd >= 0, "%d", fd);
	EACH_NTH("memfd", memfd_again(), close(err_));
	EACH_NTH("alloc", frame_alloc(fd, 1, 2 * UNIT, 0, &ref),
		 EQUAL(frame_abort(fd, ref), 0, "abort"));
	EQUAL(frame_alloc(fd, 1, 2 * UNIT, 0, &ref), 0, "alloc");
	EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	reader = pool_open("adopted", 0);
	EACH_NTH("mmap by a reader", map_once(&map, reader, 2 * UNIT, PROT_READ),
		 munmap(map, 2 * UNIT));
	EQUAL(must_stat(fd).leased, 0, "leased");
	close(reader);
	EACH_NTH("evict", frame_evict(fd, ref), {
		EQUAL(frame_alloc(fd, 1, 2 * UNIT, 0, &ref), 0, "alloc");
		EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	});
	EQUAL(frame_evict(fd, ref), 0, "evict");
	EQUAL(must_stat(fd).used, 0, "used");
	EQUAL(must_stat(fd).populated, 0, "populated");
	close(fd);
	EQUAL(destroy("adopted"), 0, "destroy");
	must_write("/proc/sys/vm/nr_hugepages", "0");
}

TEST(dma_buf)
{
	struct computron_frame_export arg = {.size = sizeof(arg)};
	struct computron_info info = {.size = sizeof(info)};

	with_pool();
	EQUAL(call(fd, COMPUTRON_IOC_INFO, &info), 0, "info");
	if (!(info.features & COMPUTRON_FEATURE_DMABUF))
		ktap_skip("no dma-buf in this kernel");
	EQUAL(frame_alloc(fd, 1, UNIT, 0, &arg.ref), 0, "alloc");
	EQUAL(frame_seal(fd, arg.ref, COMPUTRON_SEAL_LEASE), 0, "seal");
	EACH_NTH("export", call(fd, COMPUTRON_IOC_FRAME_EXPORT, &arg), close(arg.fd));
	EQUAL(frame_release(fd, arg.ref), 0, "release");
	CHECK(EVENTUALLY(!frame_evict(fd, arg.ref), 5), "evict");
	must_be_empty();
}

TEST(mmap_and_faults)
{
	struct computron_ref ref;
	uint8_t *map;
	int reader, zero = open("/dev/zero", O_RDONLY);

	with_pool();
	EACH_NTH("mmap by a writer", map_once(&map, fd, POOL, PROT_READ | PROT_WRITE),
		 munmap(map, POOL));
	CHECK(!map_once(&map, fd, POOL, PROT_READ | PROT_WRITE), "mmap");
	EQUAL(frame_alloc(fd, 1, UNIT, COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
	/* A fault that finds no memory: the system call's -EFAULT. */
	EACH_NTH("fault by a writer", read(zero, map + frame_offset(ref), 8) < 0 ? -errno : 0,
		 madvise(map + frame_offset(ref), UNIT, MADV_DONTNEED));
	EQUAL(frame_abort(fd, ref), 0, "abort");
	munmap(map, POOL);
	reader = open_again(0);
	close(fd);
	fd = reader;
	EACH_NTH("mmap by a reader", map_once(&map, fd, POOL, PROT_READ), munmap(map, POOL));
	must_be_empty();
}
