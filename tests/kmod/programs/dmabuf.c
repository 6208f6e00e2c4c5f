/* SPDX-License-Identifier: MIT */
/* dma-bufs of leased frames. */
#include "pin.h"
#include "pool.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define POOL (16 * MIB)

static int fd;
static uint8_t *map;

static void setup(const char *name)
{
	struct computron_info info = {.size = sizeof(info)};

	fd = must_pool(name, POOL);
	EQUAL(call(fd, COMPUTRON_IOC_INFO, &info), 0, "info");
	if (!(info.features & COMPUTRON_FEATURE_DMABUF))
		ktap_skip("no dma-buf in this kernel");
	map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
}

static int export(int file, struct computron_ref ref)
{
	struct computron_frame_export arg = {.size = sizeof(arg), .ref = ref};
	int err = call(file, COMPUTRON_IOC_FRAME_EXPORT, &arg);

	return err ? err : arg.fd;
}

TEST(refusals)
{
	struct computron_ref ref;

	setup("refuse");
	EQUAL(frame_alloc(fd, 1, UNIT, 0, &ref), 0, "alloc");
	CHECK(export(fd, ref) < 0, "a LOADING frame");
	EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	EQUAL(export(fd, ref), -EPERM, "without a lease");
	ref.generation++;
	EQUAL(export(fd, ref), -ESTALE, "stale");
}

TEST(has_a_lease_of_its_own)
{
	struct computron_ref ref;
	int buf;

	setup("lease");
	ref = must_frame(fd, map, 1, 6 * MIB, COMPUTRON_SEAL_LEASE);
	buf = export(fd, ref);
	CHECK(buf >= 0, "export: %d", buf);
	EQUAL(lseek(buf, 0, SEEK_END), 6 * MIB, "length");
	EQUAL(frame_release(fd, ref), 0, "release");
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict");
	munmap(map, POOL);
	close(fd);
	fd = pool_open("lease", COMPUTRON_OPEN_WRITE);
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict when the exporter is gone");
	close(fd);
	EQUAL(pool_destroy("lease", 0), -EBUSY, "destroy");
	close(buf);
	fd = pool_open("lease", COMPUTRON_OPEN_WRITE);
	EQUAL(frame_evict(fd, ref), 0, "evict");
	close(fd);
	EQUAL(pool_destroy("lease", 0), 0, "destroy");
}

TEST(one_segment_a_huge_page)
{
	struct ctn_test_dmabuf arg = {0};
	struct computron_ref ref;
	int importer = must_pin_file();

	setup("segments");
	ref = must_frame(fd, map, 1, 8 * MIB, COMPUTRON_SEAL_LEASE);
	EQUAL(must_stat(fd).huge, 8 * MIB, "huge");
	arg.fd = export(fd, ref);
	CHECK(arg.fd >= 0, "export: %d", arg.fd);
	CHECK(!ioctl(importer, CTN_TEST_DMABUF, &arg), "attach and map: errno %d", errno);
	EQUAL(arg.bytes, 8 * MIB, "bytes");
	CHECK(arg.segments <= 4 && arg.least >= UNIT, "%u segments, the least of %llu bytes",
	      arg.segments, (unsigned long long)arg.least);
	CHECK(!memcmp(&arg.first, map + frame_offset(ref), sizeof(arg.first)), "other bytes");
	close(arg.fd);
	EQUAL(frame_release(fd, ref), 0, "release");
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict while a device has it");
	CHECK(!ioctl(importer, CTN_TEST_DROP), "errno %d", errno);
	CHECK(EVENTUALLY(!frame_evict(fd, ref), 5), "evict afterwards");
}

TEST(of_a_reader_devices_only_read)
{
	struct ctn_test_dmabuf arg = {.from_device = 1};
	struct computron_ref ref;
	int importer = must_pin_file(), reader;

	setup("reader");
	ref = must_frame(fd, map, 1, UNIT, 0);
	reader = pool_open("reader", 0);
	EQUAL(frame_lease(reader, ref), 0, "lease");
	arg.fd = export(reader, ref);
	CHECK(arg.fd >= 0, "export: %d", arg.fd);
	CHECK(ioctl(importer, CTN_TEST_DMABUF, &arg), "a device may write");
	arg.from_device = 0;
	CHECK(!ioctl(importer, CTN_TEST_DMABUF, &arg), "a device may not read: errno %d", errno);
	CHECK(!ioctl(importer, CTN_TEST_DROP), "errno %d", errno);
}

TEST(killed_with_the_frame_attached)
{
	struct ctn_test_dmabuf arg = {0};
	struct computron_ref ref;
	int importer = must_pin_file();

	setup("attached");
	ref = must_frame(fd, map, 1, UNIT, COMPUTRON_SEAL_LEASE);
	arg.fd = export(fd, ref);
	CHECK(arg.fd >= 0, "export: %d", arg.fd);
	CHECK(!ioctl(importer, CTN_TEST_DMABUF, &arg), "errno %d", errno);
	EQUAL(pool_destroy("attached", COMPUTRON_DESTROY_OPEN), 0, "destroy while a device has it");
	/* The process ends here, with everything open. */
}
