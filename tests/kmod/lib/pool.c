/* SPDX-License-Identifier: MIT */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int call(int fd, unsigned long request, void *arg)
{
	return ioctl(fd, request, arg) ? -errno : 0;
}

int must_control(void)
{
	struct computron_info info = {.size = sizeof(info)};
	int fd = open(COMPUTRON_DEVICE, O_RDWR | O_CLOEXEC);

	CHECK(fd >= 0, "cannot open %s: errno %d", COMPUTRON_DEVICE, errno);
	EQUAL(call(fd, COMPUTRON_IOC_INFO, &info), 0, "info");
	EQUAL(info.unit_bytes, UNIT, "unit");
	return fd;
}

int pool_create(const char *name, uint64_t bytes, uint64_t quota, uint64_t floor, uint64_t segment)
{
	struct computron_pool_create create = {
		.size = sizeof(create),
		.bytes = bytes,
		.quota = quota,
		.floor = floor,
		.segment_bytes = segment,
		.node = -1,
	};
	int control = must_control(), err;

	strncpy(create.name, name, sizeof(create.name) - 1);
	err = call(control, COMPUTRON_IOC_POOL_CREATE, &create);
	close(control);
	return err ? err : create.fd;
}

int pool_open(const char *name, uint32_t flags)
{
	struct computron_pool_open arg = {.size = sizeof(arg), .flags = flags};
	int control = must_control(), err;

	strncpy(arg.name, name, sizeof(arg.name) - 1);
	err = call(control, COMPUTRON_IOC_POOL_OPEN, &arg);
	close(control);
	return err ? err : arg.fd;
}

int pool_destroy(const char *name, uint32_t flags)
{
	struct computron_pool_destroy destroy = {.size = sizeof(destroy), .flags = flags};
	int control = must_control(), err;

	strncpy(destroy.name, name, sizeof(destroy.name) - 1);
	err = call(control, COMPUTRON_IOC_POOL_DESTROY, &destroy);
	close(control);
	return err;
}

int must_pool(const char *name, uint64_t bytes)
{
	int fd = pool_create(name, bytes, 0, 0, 0);

	CHECK(fd >= 0, "cannot create pool %s: %d", name, fd);
	return fd;
}

static struct computron_pool_stat stat_with(int pool, uint32_t flags)
{
	struct computron_pool_stat stat = {.size = sizeof(stat), .flags = flags};

	EQUAL(call(pool, COMPUTRON_IOC_POOL_STAT, &stat), 0, "stat");
	return stat;
}

struct computron_pool_stat must_stat(int pool)
{
	return stat_with(pool, 0);
}

struct computron_pool_stat must_survey(int pool)
{
	return stat_with(pool, COMPUTRON_STAT_SURVEY);
}

uint32_t pool_count(void)
{
	struct computron_info info = {.size = sizeof(info)};
	int control = must_control();

	EQUAL(call(control, COMPUTRON_IOC_INFO, &info), 0, "info");
	close(control);
	return info.pools;
}

int frame_alloc(int pool, uint64_t seed, uint64_t bytes, uint32_t flags, struct computron_ref *ref)
{
	struct computron_frame_alloc alloc = {
		.size = sizeof(alloc), .flags = flags, .bytes = bytes};
	int err;

	memcpy(alloc.key, &seed, sizeof(seed));
	err = call(pool, COMPUTRON_IOC_FRAME_ALLOC, &alloc);
	if (ref)
		*ref = alloc.ref;
	return err;
}

int frame_populate(int pool, struct computron_ref ref, uint64_t *huge)
{
	struct computron_frame_populate populate = {.size = sizeof(populate), .ref = ref};
	int err = call(pool, COMPUTRON_IOC_FRAME_POPULATE, &populate);

	if (huge)
		*huge = populate.huge_bytes;
	return err;
}

int frame_seal(int pool, struct computron_ref ref, uint32_t flags)
{
	struct computron_frame_seal seal = {.size = sizeof(seal), .flags = flags, .ref = ref};

	return call(pool, COMPUTRON_IOC_FRAME_SEAL, &seal);
}

static int frame_op(int pool, unsigned long request, struct computron_ref ref)
{
	struct computron_frame_op op = {.size = sizeof(op), .ref = ref};

	return call(pool, request, &op);
}

int frame_abort(int pool, struct computron_ref ref)
{
	return frame_op(pool, COMPUTRON_IOC_FRAME_ABORT, ref);
}

int frame_lease(int pool, struct computron_ref ref)
{
	return frame_op(pool, COMPUTRON_IOC_FRAME_LEASE, ref);
}

int frame_release(int pool, struct computron_ref ref)
{
	return frame_op(pool, COMPUTRON_IOC_FRAME_RELEASE, ref);
}

int frame_evict(int pool, struct computron_ref ref)
{
	return frame_op(pool, COMPUTRON_IOC_FRAME_EVICT, ref);
}

static int lookup(int pool, uint32_t flags, struct computron_frame_info *info)
{
	struct computron_frame_lookup arg = {.size = sizeof(arg), .flags = flags, .info = *info};
	int err = call(pool, COMPUTRON_IOC_FRAME_LOOKUP, &arg);

	if (!err)
		*info = arg.info;
	return err;
}

int frame_lookup(int pool, uint64_t seed, struct computron_frame_info *info)
{
	struct computron_frame_info sought = {0};
	int err;

	memcpy(sought.key, &seed, sizeof(seed));
	err = lookup(pool, 0, &sought);
	if (info)
		*info = sought;
	return err;
}

int frame_info(int pool, struct computron_ref ref, struct computron_frame_info *info)
{
	struct computron_frame_info sought = {.ref = ref};
	int err = lookup(pool, COMPUTRON_LOOKUP_REF, &sought);

	if (info)
		*info = sought;
	return err;
}

int frame_extents(int pool, struct computron_ref ref, struct computron_extent *extents,
		  uint32_t room, uint32_t *total)
{
	struct computron_frame_extents arg = {
		.size = sizeof(arg),
		.ref = ref,
		.extents = (uintptr_t)extents,
		.count = room,
	};
	int err = call(pool, COMPUTRON_IOC_FRAME_EXTENTS, &arg);

	*total = arg.total;
	return err;
}

/* The 64-bit word number `i` of the frame of a seed. */
static uint64_t pattern(uint64_t seed, uint64_t i)
{
	return (seed * 0x9e3779b97f4a7c15ULL + i) * 0xff51afd7ed558ccdULL | 1;
}

enum { STEP = 512 }; /* words between those that are written and looked at: one a small page */

static void walk(int pool, uint8_t *map, struct computron_ref ref, uint64_t seed, uint64_t bytes,
		 bool write)
{
	struct computron_extent extents[64];
	uint64_t base = 0, word = 0;
	uint32_t count, i;

	EQUAL(frame_extents(pool, ref, extents, 64, &count), 0, "extents");
	CHECK(count <= 64, "%u extents", count);
	for (i = 0; i < count; i++) {
		for (; word * 8 < base + extents[i].bytes && word * 8 < bytes; word += STEP) {
			uint64_t *at = (uint64_t *)(map + extents[i].offset + word * 8 - base);

			if (write)
				*at = pattern(seed, word);
			else if (*at != pattern(seed, word))
				ktap_fail(__FILE__, __LINE__, "contents",
					  "byte %llu of frame %llu: %#llx, expected %#llx",
					  word * 8ULL, (unsigned long long)seed,
					  (unsigned long long)*at,
					  (unsigned long long)pattern(seed, word));
		}
		base += extents[i].bytes;
	}
	CHECK(base >= bytes, "extents hold %llu bytes", (unsigned long long)base);
}

void must_fill(int pool, uint8_t *map, struct computron_ref ref, uint64_t seed, uint64_t bytes)
{
	walk(pool, map, ref, seed, bytes, true);
}

void must_hold(int pool, const uint8_t *map, struct computron_ref ref, uint64_t seed,
	       uint64_t bytes)
{
	walk(pool, (uint8_t *)map, ref, seed, bytes, false);
}

struct computron_ref must_frame(int pool, uint8_t *map, uint64_t seed, uint64_t bytes,
				uint32_t seal_flags)
{
	struct computron_ref ref;

	EQUAL(frame_alloc(pool, seed, bytes, 0, &ref), 0, "alloc");
	must_fill(pool, map, ref, seed, bytes);
	EQUAL(frame_seal(pool, ref, seal_flags), 0, "seal");
	return ref;
}

uint64_t frame_offset(struct computron_ref ref)
{
	return ref.id * UNIT;
}

uint8_t *must_map(int pool, uint64_t bytes, int protection)
{
	uint8_t *map = mmap(NULL, bytes, protection, MAP_SHARED, pool, 0);

	CHECK(map != MAP_FAILED, "mmap of %llu bytes: errno %d", (unsigned long long)bytes, errno);
	return map;
}

static sigjmp_buf touched;
static volatile sig_atomic_t touch_signal;

static void on_touch(int number)
{
	touch_signal = number;
	siglongjmp(touched, 1);
}

static int touch_with(volatile uint8_t *byte, bool write)
{
	struct sigaction act = {.sa_handler = on_touch}, bus, segv;

	sigaction(SIGBUS, &act, &bus);
	sigaction(SIGSEGV, &act, &segv);
	touch_signal = 0;
	if (!sigsetjmp(touched, 1)) {
		if (write)
			*byte = 1;
		else
			(void)*byte;
	}
	sigaction(SIGBUS, &bus, NULL);
	sigaction(SIGSEGV, &segv, NULL);
	return touch_signal;
}

int touch(const volatile uint8_t *byte)
{
	return touch_with((volatile uint8_t *)byte, false);
}

int touch_write(volatile uint8_t *byte)
{
	return touch_with(byte, true);
}

int in_child(void (*fn)(void *), void *arg)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		fn(arg);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid, "wait");
	return status;
}

void become(uid_t uid)
{
	CHECK(!chmod(COMPUTRON_DEVICE, 0666), "chmod: errno %d", errno);
	CHECK(!setresgid(uid, uid, uid), "setresgid: errno %d", errno);
	CHECK(!setresuid(uid, uid, uid), "setresuid: errno %d", errno);
}

uint64_t number_of(const char *path)
{
	unsigned long long value;
	FILE *f = fopen(path, "r");

	CHECK(f, "cannot open %s: errno %d", path, errno);
	CHECK(fscanf(f, "%llu", &value) == 1, "%s holds no number", path);
	fclose(f);
	return value;
}

void must_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	CHECK(fd >= 0, "cannot open %s: errno %d", path, errno);
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text),
	      "writing \"%s\" to %s: errno %d", text, path, errno);
	close(fd);
}
