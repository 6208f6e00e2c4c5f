/* SPDX-License-Identifier: MIT */
/* rmmod at every stage: refused while anything is in use, and clean when nothing is. */
#include "module.h"
#include "pin.h"
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define POOL (8 * MIB)

static void busy(const char *when)
{
	int err = module_unload("computron");

	CHECK(err == -EWOULDBLOCK || err == -EBUSY, "rmmod %s: %d", when, err);
}

static void again(void)
{
	EQUAL(module_unload("computron"), 0, "rmmod with nothing in use");
	CHECK(access(COMPUTRON_DEVICE, F_OK), "the device is still there");
	CHECK(access("/proc/computron", F_OK), "/proc/computron is still there");
	EQUAL(module_load("computron", ""), 0, "insmod");
	EQUAL(pool_count(), 0, "pools after insmod");
}

TEST(nothing_in_use)
{
	for (int i = 0; i < 10; i++)
		again();
}

TEST(device_open)
{
	int control = must_control();

	busy("with the device open");
	close(control);
	again();
}

TEST(pool_open_or_mapped)
{
	struct computron_ref ref;
	int fd = must_pool("busy", POOL), reader = pool_open("busy", 0);
	uint8_t *map, *view;

	busy("with a pool open");
	map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
	view = must_map(reader, POOL, PROT_READ);
	ref = must_frame(fd, map, 1, UNIT, COMPUTRON_SEAL_LEASE);
	busy("with a leased frame");
	EQUAL(touch(view + frame_offset(ref)), 0, "a reader");
	close(fd);
	busy("with a reader open");
	close(reader);
	busy("with a reader's mapping");
	EQUAL(touch(view + frame_offset(ref)), 0, "a reader without its descriptor");
	munmap(view, POOL);
	if (module_unload("computron")) { /* a writer's mapping may hold the module, or may not */
		munmap(map, POOL);
		again();
	} else {
		/* Its memory outlives the module. */
		must_write("/proc/sys/vm/drop_caches", "3");
		EQUAL(touch_write(map + frame_offset(ref)), 0, "a writer's mapping after rmmod");
		munmap(map, POOL);
		EQUAL(module_load("computron", ""), 0, "insmod");
	}
}

TEST(pool_closed_with_frames)
{
	int fd = must_pool("frames", POOL);
	uint8_t *map = must_map(fd, POOL, PROT_READ | PROT_WRITE);

	must_frame(fd, map, 1, 4 * MIB, COMPUTRON_SEAL_LEASE);
	EQUAL(frame_alloc(fd, 2, UNIT, 0, NULL), 0, "alloc");
	munmap(map, POOL);
	close(fd);
	again();
}

TEST(quarantined)
{
	struct computron_ref ref;
	int pins = must_pin_file(), fd = must_pool("quarantine", POOL), err = 0;
	uint8_t *map = must_map(fd, POOL, PROT_READ | PROT_WRITE);

	EQUAL(frame_alloc(fd, 1, 4 * MIB, 0, &ref), 0, "alloc");
	EQUAL(pin(pins, map + frame_offset(ref), 4 * MIB, true), 0, "pin");
	munmap(map, POOL);
	close(fd);
	/* The pages belong to the pin: the module may go, or may not, but nothing breaks. */
	err = module_unload("computron");
	ktap_note("rmmod with a frame in quarantine: %d", err);
	CHECK(!err || err == -EBUSY || err == -EWOULDBLOCK, "%d", err);
	unpin(pins);
	if (err)
		CHECK(EVENTUALLY(!module_unload("computron"), 10), "it never goes");
	EQUAL(module_load("computron", ""), 0, "insmod");
}

TEST(dma_buf_open)
{
	struct computron_frame_export arg = {.size = sizeof(arg)};
	struct computron_info info = {.size = sizeof(info)};
	int fd = must_pool("dmabuf", POOL);
	uint8_t *map = must_map(fd, POOL, PROT_READ | PROT_WRITE);

	EQUAL(call(fd, COMPUTRON_IOC_INFO, &info), 0, "info");
	if (!(info.features & COMPUTRON_FEATURE_DMABUF))
		ktap_skip("no dma-buf in this kernel");
	arg.ref = must_frame(fd, map, 1, UNIT, COMPUTRON_SEAL_LEASE);
	EQUAL(call(fd, COMPUTRON_IOC_FRAME_EXPORT, &arg), 0, "export");
	munmap(map, POOL);
	close(fd);
	busy("with a dma-buf open");
	close(arg.fd);
	CHECK(EVENTUALLY(!module_unload("computron"), 5), "it never goes");
	EQUAL(module_load("computron", ""), 0, "insmod");
}

TEST(loaded_while_used)
{
	EQUAL(module_load("computron", ""), -EEXIST, "insmod twice");
	EQUAL(pool_count(), 0, "pools");
}

TEST(bad_parameters)
{
	EQUAL(module_unload("computron"), 0, "rmmod");
	CHECK(module_load("computron", "max_bytes=many"), "max_bytes=many");
	EQUAL(module_load("computron", "max_bytes=16777216 max_pools=2"), 0, "insmod");
	EQUAL(pool_create("big", 32 * MIB, 0, 0, 0), -ENOSPC, "more than max_bytes");
	again();
}
