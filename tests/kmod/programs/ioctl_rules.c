/* SPDX-License-Identifier: MIT */
/*
 * What holds for the argument of every call: the size rules, unknown flags, reserved fields, bad
 * addresses, unknown numbers. One table of all calls, so that a new one is a new row.
 */
#include "pool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

struct rule {
	const char *name;
	unsigned long request;
	uint32_t size;
	bool control;       /* of /dev/computron, else of a pool file */
	int32_t reserved;   /* offset of a reserved field; 0: none */
	uint32_t bad_flags; /* bits that it does not know */
};

#define RULE(call, type, control_, reserved_)                                                   \
	{                                                                                       \
#call, COMPUTRON_IOC_##call, sizeof(struct type), control_, reserved_, 1U << 31 \
	}
#define RESERVED(type) offsetof(struct type, reserved)

static const struct rule rules[] = {
	RULE(INFO, computron_info, true, 0),
	RULE(POOL_CREATE, computron_pool_create, true, 0),
	RULE(POOL_OPEN, computron_pool_open, true, 0),
	RULE(POOL_LIST, computron_pool_list, true, 0),
	RULE(POOL_DESTROY, computron_pool_destroy, true, 0),
	RULE(POOL_ADOPT, computron_pool_adopt, true, RESERVED(computron_pool_adopt)),
	RULE(POOL_STAT, computron_pool_stat, false, 0),
	RULE(POOL_SET, computron_pool_set, false, 0),
	RULE(POOL_HOT, computron_pool_hot, false, 0),
	RULE(POOL_MEMFD, computron_pool_memfd, false, RESERVED(computron_pool_memfd)),
	RULE(FRAME_ALLOC, computron_frame_alloc, false, RESERVED(computron_frame_alloc)),
	RULE(FRAME_POPULATE, computron_frame_populate, false, 0),
	RULE(FRAME_SEAL, computron_frame_seal, false, 0),
	RULE(FRAME_ABORT, computron_frame_op, false, 0),
	RULE(FRAME_LOOKUP, computron_frame_lookup, false, 0),
	RULE(FRAME_LIST, computron_frame_list, false, 0),
	RULE(FRAME_EXTENTS, computron_frame_extents, false, 0),
	RULE(FRAME_LEASE, computron_frame_op, false, 0),
	RULE(FRAME_RELEASE, computron_frame_op, false, 0),
	RULE(FRAME_EVICT, computron_frame_op, false, 0),
	RULE(FRAME_EXPORT, computron_frame_export, false, RESERVED(computron_frame_export)),
};

#define COUNT (sizeof(rules) / sizeof(rules[0]))

static int control, pool;

static void setup(void)
{
	control = must_control();
	pool = pool_create("rules", 8 * MIB, 0, 0, 0);
	if (pool == -EEXIST) /* a test before this one made it */
		pool = pool_open("rules", COMPUTRON_OPEN_WRITE);
	CHECK(pool >= 0, "%d", pool);
}

/* The call with a zeroed argument of `size` in the size field, `poke` at `at`. */
static int with(const struct rule *rule, uint32_t size, size_t at, uint32_t poke)
{
	static uint8_t arg[8192];

	memset(arg, 0, sizeof(arg));
	memcpy(arg, &size, sizeof(size));
	if (at)
		memcpy(arg + at, &poke, sizeof(poke));
	return call(rule->control ? control : pool, rule->request, arg);
}

#define EACH(expected, ...)                                             \
	do {                                                            \
		setup();                                                \
		for (size_t i = 0; i < COUNT; i++) {                    \
			const struct rule *r = &rules[i];               \
			EQUAL(with(r, __VA_ARGS__), expected, r->name); \
		}                                                       \
	} while (0)

TEST(shorter_than_the_first_version)
{
	EACH(-EINVAL, r->size - 8, 0, 0);
}

TEST(no_size)
{
	EACH(-EINVAL, 0, 0, 0);
}

TEST(absurd_size)
{
	EACH(-E2BIG, 1U << 30, r->size, 1);
}

TEST(longer_with_something_in_the_tail)
{
	EACH(-E2BIG, r->size + 64, r->size + 60, 1);
}

TEST(longer_with_zeros_is_the_same_call)
{
	setup();
	for (size_t i = 0; i < COUNT; i++) {
		const struct rule *r = &rules[i];

		if (r->request == COMPUTRON_IOC_POOL_SET || r->request == COMPUTRON_IOC_POOL_STAT)
			EQUAL(with(r, r->size + 64, 0, 0), 0, r->name);
		EQUAL(with(r, r->size + 64, 0, 0), with(r, r->size, 0, 0), r->name);
	}
}

TEST(unknown_flags)
{
	EACH(-EINVAL, r->size, 4, r->bad_flags);
}

TEST(reserved_fields)
{
	setup();
	for (size_t i = 0; i < COUNT; i++)
		if (rules[i].reserved)
			EQUAL(with(&rules[i], rules[i].size, rules[i].reserved, 1), -EINVAL,
			      rules[i].name);
}

TEST(bad_addresses)
{
	setup();
	for (size_t i = 0; i < COUNT; i++) {
		int fd = rules[i].control ? control : pool;

		EQUAL(call(fd, rules[i].request, NULL), -EFAULT, rules[i].name);
		EQUAL(call(fd, rules[i].request, (void *)0xffff888000000000ULL), -EFAULT,
		      rules[i].name);
	}
}

/* An argument at the very end of what is mapped: its size is there, not all of the rest. */
TEST(half_mapped)
{
	uint8_t *page =
		mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	setup();
	munmap(page + 4096, 4096);
	for (size_t i = 0; i < COUNT; i++) {
		uint8_t *arg = page + 4096 - 8;

		memcpy(arg, &rules[i].size, sizeof(rules[i].size));
		EQUAL(call(rules[i].control ? control : pool, rules[i].request, arg), -EFAULT,
		      rules[i].name);
	}
}

TEST(unknown_numbers)
{
	uint8_t arg[512] = {0};
	uint32_t size = sizeof(arg);

	setup();
	memcpy(arg, &size, sizeof(size));
	for (unsigned n = 0; n < 256; n++) {
		bool ours[2] = {false, false};

		for (size_t i = 0; i < COUNT; i++)
			if (_IOC_NR(rules[i].request) == n)
				ours[rules[i].control] = true;
		if (n == _IOC_NR(COMPUTRON_IOC_INFO))
			ours[0] = ours[1] = true; /* of any file */
		for (int c = 0; c < 2; c++)
			if (!ours[c])
				EQUAL(call(c ? control : pool,
					   _IOWR(COMPUTRON_IOC_MAGIC, n, uint8_t[64]), arg),
				      -ENOTTY, c ? "of the device" : "of a pool");
	}
}

TEST(other_magics)
{
	uint8_t arg[512] = {0};

	setup();
	for (unsigned magic = 0; magic < 256; magic++) {
		/* The VFS answers some magics itself, whatever the file: 'T', 'f', 'X', 0x15 and
		 * 0x94 with numbers below 0x40; with these it answers none. */
		if (magic == COMPUTRON_IOC_MAGIC)
			continue;
		EQUAL(call(control, _IOWR(magic, 0x41, uint8_t[64]), arg), -ENOTTY,
		      "of the device");
		EQUAL(call(pool, _IOWR(magic, 0x50, uint8_t[64]), arg), -ENOTTY, "of a pool");
	}
}

TEST(size_in_the_request_does_not_matter)
{
	struct computron_info info = {.size = sizeof(info)};

	setup();
	EQUAL(call(control, _IOWR(COMPUTRON_IOC_MAGIC, 0x40, uint8_t[16]), &info), 0, "info");
	EQUAL(info.unit_bytes, UNIT, "unit");
}

TEST(info)
{
	struct computron_info info = {.size = sizeof(info)};

	setup();
	EQUAL(call(control, COMPUTRON_IOC_INFO, &info), 0, "info");
	EQUAL(info.size, sizeof(info), "size");
	EQUAL(info.abi, COMPUTRON_ABI, "abi");
	EQUAL(info.pools, 1, "pools");
	EQUAL(info.total_bytes, 8 * MIB, "total bytes");
	CHECK(info.max_bytes >= 8 * MIB, "%llu", (unsigned long long)info.max_bytes);
	CHECK(info.version[0] && memchr(info.version, 0, sizeof(info.version)), "version");
	CHECK(info.features & COMPUTRON_FEATURE_HUGE, "no huge pages on this kernel?");
	EQUAL(call(pool, COMPUTRON_IOC_INFO, &info), 0, "info of a pool file");
}

TEST(read_only_descriptor_is_no_way_round)
{
	/* What a descriptor may do is said by the uid and by pool_open, not by O_RDONLY. */
	uint8_t byte = 0;

	setup();
	CHECK(write(pool, &byte, 1) < 0, "write to a pool file");
	CHECK(write(control, &byte, 1) < 0, "write to the device");
}
