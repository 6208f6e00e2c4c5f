/* SPDX-License-Identifier: MIT */
/* DMA into a writer's mapping: O_DIRECT reads from the drive, and io_uring fixed buffers. */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DRIVE "/dev/drive0"
#define POOL  (16 * MIB)
#define BLOCK (1 * MIB)

static int fd, drive;
static uint8_t *map;
static struct computron_ref ref;
static uint8_t expected[POOL / 2];

static void setup(const char *name)
{
	int buffered = open(DRIVE, O_RDONLY);

	CHECK(buffered >= 0, "no " DRIVE ": errno %d", errno);
	CHECK(pread(buffered, expected, sizeof(expected), 0) == (ssize_t)sizeof(expected),
	      "errno %d", errno);
	close(buffered);
	drive = open(DRIVE, O_RDONLY | O_DIRECT);
	CHECK(drive >= 0, "errno %d", errno);
	fd = must_pool(name, POOL);
	map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
	EQUAL(frame_alloc(fd, 1, sizeof(expected), 0, &ref), 0, "alloc");
}

static void must_be_there(void)
{
	uint8_t *at = map + frame_offset(ref);

	for (size_t i = 0; i < sizeof(expected); i++)
		if (at[i] != expected[i])
			ktap_fail(__FILE__, __LINE__, "contents", "byte %zu is %d, expected %d", i,
				  at[i], expected[i]);
	EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	EQUAL(must_survey(fd).pinned, 0, "pinned");
	EQUAL(frame_evict(fd, ref), 0, "evict after the last read");
}

TEST(o_direct)
{
	setup("direct");
	for (size_t at = 0; at < sizeof(expected); at += BLOCK)
		EQUAL(pread(drive, map + frame_offset(ref) + at, BLOCK, (off_t)at), BLOCK, "read");
	must_be_there();
}

/* Memory that was never touched: the read finds it itself. */
TEST(o_direct_into_a_reserved_frame)
{
	setup("reserved");
	EQUAL(frame_abort(fd, ref), 0, "abort");
	EQUAL(frame_alloc(fd, 1, sizeof(expected), COMPUTRON_ALLOC_RESERVE, &ref), 0, "alloc");
	EQUAL(pread(drive, map + frame_offset(ref), sizeof(expected), 0), sizeof(expected), "read");
	must_be_there();
}

static void read_fixed(struct io_uring *ring, size_t at)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	CHECK(sqe, "the ring is full");
	io_uring_prep_read_fixed(sqe, drive, map + frame_offset(ref) + at, BLOCK, at, 0);
}

TEST(io_uring_fixed_buffers)
{
	struct iovec whole = {.iov_len = POOL};
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	size_t at;

	setup("uring");
	whole.iov_base = map;
	EQUAL(io_uring_queue_init(16, &ring, 0), 0, "ring");
	EQUAL(io_uring_register_buffers(&ring, &whole, 1), 0, "register the whole pool");
	EQUAL(must_survey(fd).pinned, sizeof(expected), "pinned while registered");
	for (at = 0; at < sizeof(expected); at += BLOCK)
		read_fixed(&ring, at);
	CHECK(io_uring_submit(&ring) > 0, "submit");
	for (at = 0; at < sizeof(expected); at += BLOCK) {
		EQUAL(io_uring_wait_cqe(&ring, &cqe), 0, "wait");
		EQUAL(cqe->res, BLOCK, "bytes");
		io_uring_cqe_seen(&ring, cqe);
	}
	EQUAL(frame_seal(fd, ref, 0), 0, "seal");
	EQUAL(frame_evict(fd, ref), -EBUSY, "evict while registered");
	EQUAL(must_stat(fd).refused, 1, "refused");
	EQUAL(io_uring_unregister_buffers(&ring), 0, "unregister");
	CHECK(EVENTUALLY(!must_survey(fd).pinned, 5), "pins stay after unregister");
	for (size_t i = 0; i < sizeof(expected); i++)
		CHECK(map[frame_offset(ref) + i] == expected[i], "byte %zu", i);
	EQUAL(frame_evict(fd, ref), 0, "evict");
	io_uring_queue_exit(&ring);
}

/* Odd offsets and lengths of a registered buffer that consists of huge pages. */
TEST(io_uring_odd_offsets)
{
	struct iovec whole = {.iov_len = POOL};
	static const size_t offsets[] = {0,          512,  4096,           4096 * 511,
					 UNIT - 512, UNIT, 3 * UNIT - 4096};
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
	struct io_uring ring;

	setup("odd");
	whole.iov_base = map;
	EQUAL(io_uring_queue_init(16, &ring, 0), 0, "ring");
	EQUAL(io_uring_register_buffers(&ring, &whole, 1), 0, "register");
	for (size_t i = 0; i < sizeof(offsets) / sizeof(*offsets); i++) {
		uint8_t *at = map + frame_offset(ref) + offsets[i];

		memset(map + frame_offset(ref), 0, sizeof(expected));
		sqe = io_uring_get_sqe(&ring);
		io_uring_prep_read_fixed(sqe, drive, at, 8192, 4096, 0);
		EQUAL(io_uring_submit(&ring), 1, "submit");
		EQUAL(io_uring_wait_cqe(&ring, &cqe), 0, "wait");
		EQUAL(cqe->res, 8192, "bytes");
		io_uring_cqe_seen(&ring, cqe);
		CHECK(!memcmp(at, expected + 4096, 8192), "offset %zu", offsets[i]);
		CHECK(!at[8192] && (!offsets[i] || !at[-1]), "beside offset %zu", offsets[i]);
	}
	io_uring_queue_exit(&ring);
}

/* A hot range keeps its registered pages from frame to frame. */
TEST(hot_range_stays_registered)
{
	struct computron_pool_hot hot = {
		.size = sizeof(hot), .flags = COMPUTRON_HOT_ON, .bytes = POOL};
	struct iovec whole = {.iov_len = POOL};
	struct io_uring_cqe *cqe;
	struct io_uring ring;

	setup("hot");
	whole.iov_base = map;
	EQUAL(call(fd, COMPUTRON_IOC_POOL_HOT, &hot), 0, "hot");
	EQUAL(call(fd, COMPUTRON_IOC_POOL_HOT, &hot), -EINVAL, "hot already");
	EQUAL(io_uring_queue_init(16, &ring, 0), 0, "ring");
	EQUAL(io_uring_register_buffers(&ring, &whole, 1), 0, "register");
	EQUAL(must_stat(fd).hot, POOL, "hot");
	for (int round = 0; round < 3; round++) {
		memset(map + frame_offset(ref), 0, BLOCK);
		read_fixed(&ring, 0);
		EQUAL(io_uring_submit(&ring), 1, "submit");
		EQUAL(io_uring_wait_cqe(&ring, &cqe), 0, "wait");
		EQUAL(cqe->res, BLOCK, "bytes");
		io_uring_cqe_seen(&ring, cqe);
		CHECK(!memcmp(map + frame_offset(ref), expected, BLOCK),
		      "round %d: the read went elsewhere", round);
		EQUAL(frame_seal(fd, ref, 0), 0, "seal");
		EQUAL(frame_evict(fd, ref), 0, "evict while registered, hot");
		EQUAL(frame_alloc(fd, 2 + round, sizeof(expected), 0, &ref), 0, "alloc");
	}
	EQUAL(io_uring_unregister_buffers(&ring), 0, "unregister");
	io_uring_queue_exit(&ring);
	EQUAL(frame_abort(fd, ref), 0, "abort");
	CHECK(EVENTUALLY(!must_survey(fd).pinned, 5), "pins stay");
	hot.flags = 0;
	EQUAL(call(fd, COMPUTRON_IOC_POOL_HOT, &hot), 0, "cold");
	EQUAL(call(fd, COMPUTRON_IOC_POOL_HOT, &hot), -EINVAL, "cold already");
	EQUAL(must_stat(fd).hot, 0, "hot");
	/* Its pages hold old bytes, and belong to nobody: the next frame does not see them, memory
	 * pressure takes them. */
	memset(map, 0x77, 2 * UNIT);
	EQUAL(frame_alloc(fd, 7, UNIT, 0, &ref), 0, "alloc");
	for (uint64_t at = 0; at < UNIT; at += 512)
		CHECK(!map[frame_offset(ref) + at], "byte %llu of a new frame",
		      (unsigned long long)at);
	EQUAL(frame_abort(fd, ref), 0, "abort");
	must_write("/proc/sys/vm/drop_caches", "2");
	CHECK(EVENTUALLY(!must_stat(fd).populated, 5), "%llu bytes stay",
	      (unsigned long long)must_stat(fd).populated);
}
