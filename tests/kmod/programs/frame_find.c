/* SPDX-License-Identifier: MIT */
/* Lookup by key, by content and by name; the list of frames. */
#include "pool.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct computron_ref sealed(int fd, uint64_t key, uint8_t digest, uint8_t owner,
				   uint32_t flags)
{
	struct computron_frame_seal seal = {.size = sizeof(seal), .flags = flags};

	EQUAL(frame_alloc(fd, key, UNIT, 0, &seal.ref), 0, "alloc");
	memset(seal.owner, owner, sizeof(seal.owner));
	if (flags & COMPUTRON_SEAL_DIGEST)
		memset(seal.digest, digest, sizeof(seal.digest));
	EQUAL(call(fd, COMPUTRON_IOC_FRAME_SEAL, &seal), 0, "seal");
	return seal.ref;
}

static int by_content(int fd, uint8_t digest, uint8_t owner, struct computron_ref *ref)
{
	struct computron_frame_lookup arg = {.size = sizeof(arg),
					     .flags = COMPUTRON_LOOKUP_CONTENT};
	int err;

	memset(arg.info.digest, digest, sizeof(arg.info.digest));
	memset(arg.info.owner, owner, sizeof(arg.info.owner));
	err = call(fd, COMPUTRON_IOC_FRAME_LOOKUP, &arg);
	*ref = arg.info.ref;
	return err;
}

TEST(by_content)
{
	struct computron_frame_seal seal = {.size = sizeof(seal)};
	struct computron_ref a, b, found;
	int fd = must_pool("content", 16 * MIB);

	a = sealed(fd, 1, 7, 1, COMPUTRON_SEAL_DIGEST);
	b = sealed(fd, 2, 7, 2, COMPUTRON_SEAL_DIGEST);
	sealed(fd, 3, 0, 3, 0);
	EQUAL(by_content(fd, 7, 1, &found), 0, "the first");
	EQUAL(found.id, a.id, "the first");
	EQUAL(by_content(fd, 7, 2, &found), 0, "the second");
	EQUAL(found.id, b.id, "the second");
	EQUAL(by_content(fd, 8, 1, &found), -ENOENT, "another digest");
	EQUAL(by_content(fd, 7, 3, &found), -ENOENT, "another owner");
	EQUAL(by_content(fd, 0, 3, &found), -ENOENT, "one without a digest");
	EQUAL(frame_evict(fd, a), 0, "evict");
	EQUAL(by_content(fd, 7, 1, &found), -ENOENT, "evicted");
	EQUAL(frame_alloc(fd, 4, UNIT, 0, &seal.ref), 0, "alloc");
	seal.digest[0] = 1;
	EQUAL(call(fd, COMPUTRON_IOC_FRAME_SEAL, &seal), -EINVAL,
	      "a digest that is said to be none");
	close(fd);
	EQUAL(pool_destroy("content", 0), 0, "destroy");
}

TEST(by_key)
{
	struct computron_frame_info info;
	struct computron_ref ref;
	int fd = must_pool("key", 16 * MIB);

	EQUAL(frame_lookup(fd, 5, NULL), -ENOENT, "none");
	EQUAL(frame_alloc(fd, 5, UNIT, 0, &ref), 0, "alloc");
	EQUAL(frame_lookup(fd, 5, &info), 0, "LOADING");
	EQUAL(info.state, COMPUTRON_FRAME_LOADING, "state");
	EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	EQUAL(frame_lookup(fd, 5, &info), 0, "CLEAN");
	CHECK(info.ref.id == ref.id && info.ref.generation == ref.generation, "another frame");
	EQUAL(info.state, COMPUTRON_FRAME_CLEAN, "state");
	EQUAL(info.key[0], 5, "key");
	EQUAL(info.extents, 1, "extents");
	close(fd);
	EQUAL(pool_destroy("key", 0), 0, "destroy");
}

TEST(flags_exclude_each_other)
{
	struct computron_frame_lookup arg = {
		.size = sizeof(arg), .flags = COMPUTRON_LOOKUP_CONTENT | COMPUTRON_LOOKUP_REF};
	int fd = must_pool("flags", UNIT);

	EQUAL(call(fd, COMPUTRON_IOC_FRAME_LOOKUP, &arg), -EINVAL, "two ways at once");
	close(fd);
	EQUAL(pool_destroy("flags", 0), 0, "destroy");
}

#define FRAMES 50

TEST(list)
{
	struct computron_frame_info rows[8];
	struct computron_frame_list arg = {
		.size = sizeof(arg), .row_bytes = sizeof(rows[0]), .frames = (uintptr_t)rows};
	uint32_t seen[FRAMES] = {0};
	uint64_t last = 0;
	int fd = must_pool("list", FRAMES * UNIT), calls = 0, n = 0;

	for (int i = 0; i < FRAMES; i++)
		EQUAL(frame_alloc(fd, i, UNIT, COMPUTRON_ALLOC_RESERVE, NULL), 0, "alloc");
	while (arg.next != ~0ULL) {
		CHECK(++calls <= FRAMES, "no end");
		arg.count = 8;
		EQUAL(call(fd, COMPUTRON_IOC_FRAME_LIST, &arg), 0, "list");
		EQUAL(arg.total, FRAMES, "total");
		CHECK(arg.count <= 8, "%u rows", arg.count);
		for (uint32_t i = 0; i < arg.count; i++) {
			CHECK(!n || rows[i].ref.id > last, "not ordered by id");
			last = rows[i].ref.id;
			seen[rows[i].key[0]]++;
			n++;
		}
	}
	EQUAL(n, FRAMES, "rows");
	for (int i = 0; i < FRAMES; i++)
		EQUAL(seen[i], 1, "each key once");
	arg.next = 0;
	arg.count = 0;
	arg.frames = 0;
	EQUAL(call(fd, COMPUTRON_IOC_FRAME_LIST, &arg), 0, "only the count");
	EQUAL(arg.total, FRAMES, "total");
	close(fd);
	EQUAL(pool_destroy("list", 0), 0, "destroy");
}
