// SPDX-License-Identifier: MIT
/* Device memory of the host backend: addresses, granules and their account. */
#include "test.h"
#include "device/host.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define G 65536u /* the granule of a small device */

static struct ctn_device *dev;

/* A device of 16 granules. */
static void open_16(void)
{
	uint32_t count = 0;

	CU_ASSERT_EQUAL_FATAL(ctn_devices_open("host,mem=1M", &dev, &count, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_device_props(dev)->granule, G);
}

static void close_16(void)
{
	ctn_devices_close(&dev, 1);
}

static uint8_t *reserve(uint64_t bytes)
{
	void *va = NULL;

	CU_ASSERT_EQUAL_FATAL(ctn_device_reserve(dev, bytes, &va), 0);
	CU_ASSERT_EQUAL_FATAL((uintptr_t)va % G, 0);
	return va;
}

static void check_account(uint64_t free_bytes, uint64_t mapped)
{
	struct ctn_device_memory mem;

	ctn_device_get_memory(dev, &mem);
	CU_ASSERT_EQUAL(mem.total, 16 * G);
	CU_ASSERT_EQUAL(mem.free, free_bytes);
	CU_ASSERT_EQUAL(mem.mapped, mapped);
}

static bool all_are(const uint8_t *p, uint64_t bytes, uint8_t value)
{
	for (uint64_t i = 0; i < bytes; i++) {
		if (p[i] != value)
			return false;
	}
	return true;
}

/* How a child ends that runs fn(arg); stderr of the child is closed: it may report. */
static int child_status(void (*fn)(void *arg), void *arg)
{
	int status = 0;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		close(STDERR_FILENO);
		fn(arg);
		_exit(0);
	}
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	return status;
}

static void test_account_follows_map_and_unmap(void)
{
	uint8_t *a, *b;

	open_16();
	check_account(16 * G, 0);
	a = reserve(5 * G);
	b = reserve(3 * G - 1);
	check_account(16 * G, 0);
	CU_ASSERT_EQUAL(ctn_device_map(dev, a, 5 * G), 0);
	check_account(11 * G, 5 * G);
	CU_ASSERT_EQUAL(ctn_device_map(dev, b + G, 2 * G), 0);
	check_account(9 * G, 7 * G);
	/* A part of what one call mapped; then what two calls mapped. */
	ctn_device_unmap(dev, a + G, 2 * G, false);
	check_account(11 * G, 5 * G);
	CU_ASSERT_EQUAL(ctn_device_map(dev, a + G, 2 * G), 0);
	ctn_device_unmap(dev, a, 5 * G, true);
	check_account(14 * G, 2 * G);
	ctn_device_unmap(dev, b + G, 2 * G, false);
	check_account(16 * G, 0);
	ctn_device_unreserve(dev, a, 5 * G);
	ctn_device_unreserve(dev, b, 3 * G - 1);
	close_16();
}

static void test_ranges_do_not_alias_and_are_not_the_callers_memory(void)
{
	uint8_t *va[4];

	open_16();
	for (uint8_t i = 0; i < 4; i++) {
		va[i] = reserve(4 * G);
		CU_ASSERT_EQUAL_FATAL(ctn_device_map(dev, va[i], 4 * G), 0);
		memset(va[i], 0x10 + i, 4 * G);
	}
	for (uint8_t i = 0; i < 4; i++) {
		CU_ASSERT(all_are(va[i], 4 * G, 0x10 + i));
		ctn_device_unmap(dev, va[i], 4 * G, false);
		ctn_device_unreserve(dev, va[i], 4 * G);
	}
	close_16();
}

static void test_map_is_all_or_nothing(void)
{
	struct ctn_copy copy = {.src = "x", .width = 1, .height = 1};
	uint8_t *a, *b;

	open_16();
	a = reserve(12 * G);
	b = reserve(8 * G);
	CU_ASSERT_EQUAL(ctn_device_map(dev, a, 12 * G), 0);
	memset(a, 7, 12 * G);
	CU_ASSERT_EQUAL(ctn_device_map(dev, b, 5 * G), -ENOSPC);
	check_account(4 * G, 12 * G);
	for (unsigned int i = 0; i < 5; i++) {
		copy.dst = b + i * G;
		CU_ASSERT_EQUAL(ctn_device_load(dev, &copy, 1, NULL, NULL, NULL), -EFAULT);
	}
	CU_ASSERT_EQUAL(ctn_device_map(dev, b, 4 * G), 0);
	memset(b, 8, 4 * G);
	CU_ASSERT(all_are(a, 12 * G, 7));
	check_account(0, 16 * G);
	CU_ASSERT_EQUAL(ctn_device_map(dev, b + 4 * G, G), -ENOSPC);
	ctn_device_unmap(dev, a, 12 * G, false);
	ctn_device_unmap(dev, b, 4 * G, false);
	ctn_device_unreserve(dev, a, 12 * G);
	ctn_device_unreserve(dev, b, 8 * G);
	close_16();
}

static void test_wrong_ranges_are_refused(void)
{
	uint8_t *a;
	void *va;

	open_16();
	a = reserve(4 * G);
	CU_ASSERT_EQUAL(ctn_device_reserve(dev, 0, &va), -EINVAL);
	CU_ASSERT_EQUAL(ctn_device_reserve(dev, UINT64_MAX, &va), -ENOMEM);
	CU_ASSERT_EQUAL(ctn_device_reserve(dev, (uint64_t)1 << 62, &va), -ENOMEM);
	CU_ASSERT_EQUAL(ctn_device_map(dev, a, 0), -EINVAL);
	CU_ASSERT_EQUAL(ctn_device_map(dev, a, G + 4096), -EINVAL);
	CU_ASSERT_EQUAL(ctn_device_map(dev, a + 4096, G), -EINVAL);
	CU_ASSERT_EQUAL(ctn_device_map(dev, a, 5 * G), -EINVAL);
	CU_ASSERT_EQUAL(ctn_device_map(dev, a - G, G), -EINVAL);
	CU_ASSERT_EQUAL(ctn_device_map(dev, NULL, G), -EINVAL);
	CU_ASSERT_EQUAL(ctn_device_map(dev, a + 2 * G, G), 0);
	CU_ASSERT_EQUAL(ctn_device_map(dev, a, 4 * G), -EEXIST);
	check_account(15 * G, G);
	ctn_device_unmap(dev, a + 2 * G, G, false);
	ctn_device_unreserve(dev, a, 4 * G);
	close_16();
}

/* Every second granule is free; a range over these is as good as any other. */
static void use_scattered_memory(void)
{
	uint8_t *one[16], *range = reserve(8 * G);

	for (uint8_t i = 0; i < 16; i++) {
		one[i] = reserve(G);
		CU_ASSERT_EQUAL_FATAL(ctn_device_map(dev, one[i], G), 0);
		memset(one[i], i, G);
	}
	check_account(0, 16 * G);
	for (uint8_t i = 0; i < 16; i += 2)
		ctn_device_unmap(dev, one[i], G, false);
	CU_ASSERT_EQUAL_FATAL(ctn_device_map(dev, range, 8 * G), 0);
	for (uint8_t i = 0; i < 8; i++)
		memset(range + i * G, 0x80 + i, G);
	for (uint8_t i = 1; i < 16; i += 2)
		CU_ASSERT(all_are(one[i], G, i));
	for (uint8_t i = 0; i < 8; i++)
		CU_ASSERT(all_are(range + i * G, G, 0x80 + i));
	check_account(0, 16 * G);
	ctn_device_unmap(dev, range, 8 * G, true);
	for (uint8_t i = 1; i < 16; i += 2) {
		CU_ASSERT(all_are(one[i], G, i));
		ctn_device_unmap(dev, one[i], G, false);
	}
	check_account(16 * G, 0);
	/* Now that all is free again, one range may have all of it. */
	ctn_device_unreserve(dev, range, 8 * G);
	range = reserve(16 * G);
	CU_ASSERT_EQUAL(ctn_device_map(dev, range, 16 * G), 0);
	memset(range, 1, 16 * G);
	ctn_device_unmap(dev, range, 16 * G, false);
	ctn_device_unreserve(dev, range, 16 * G);
	for (uint8_t i = 0; i < 16; i++)
		ctn_device_unreserve(dev, one[i], G);
}

static void test_scattered_memory(void)
{
	open_16();
	use_scattered_memory();
	close_16();
}

static void test_scattered_memory_on_kernels_before_5_13(void)
{
	open_16();
	ctn_host_device(dev)->memory.moves = false;
	use_scattered_memory();
	close_16();
}

static void test_addresses_outlive_their_memory(void)
{
	uint8_t *a, *b;

	open_16();
	a = reserve(16 * G);
	b = reserve(16 * G);
	for (uint8_t round = 0; round < 5; round++) {
		CU_ASSERT_EQUAL_FATAL(ctn_device_map(dev, a, 16 * G), 0);
		memset(a, round, 16 * G);
		CU_ASSERT(all_are(a, 16 * G, round));
		ctn_device_unmap(dev, a, 16 * G, false);
		CU_ASSERT_EQUAL_FATAL(ctn_device_map(dev, b, 16 * G), 0);
		memset(b, 0x40 + round, 16 * G);
		ctn_device_unmap(dev, b, 16 * G, false);
	}
	ctn_device_unreserve(dev, a, 16 * G);
	ctn_device_unreserve(dev, b, 16 * G);
	close_16();
}

static void test_poison_shows_in_what_is_mapped_next(void)
{
	uint8_t *a, *b;

	open_16();
	a = reserve(16 * G);
	b = reserve(16 * G);
	CU_ASSERT_EQUAL_FATAL(ctn_device_map(dev, a, 16 * G), 0);
	memset(a, 0x11, 16 * G);
	ctn_device_unmap(dev, a, 4 * G, true);
	CU_ASSERT(all_are(a + 4 * G, 12 * G, 0x11));
	ctn_device_unmap(dev, a + 4 * G, 12 * G, true);
	CU_ASSERT_EQUAL_FATAL(ctn_device_map(dev, b, 16 * G), 0);
	CU_ASSERT(all_are(b, 16 * G, 0xdb));
	ctn_device_unmap(dev, b, 16 * G, false);
	ctn_device_unreserve(dev, a, 16 * G);
	ctn_device_unreserve(dev, b, 16 * G);
	close_16();
}

static void read_byte(void *p)
{
	(void)*(volatile uint8_t *)p;
}

static void test_a_stale_address_faults(void)
{
	uint8_t *a;

	open_16();
	a = reserve(2 * G);
	CU_ASSERT_EQUAL_FATAL(ctn_device_map(dev, a, 2 * G), 0);
	memset(a, 1, 2 * G);
	CU_ASSERT_EQUAL(child_status(read_byte, a + G), 0);
	ctn_device_unmap(dev, a + G, G, false);
	CU_ASSERT_NOT_EQUAL(child_status(read_byte, a + G), 0);
	CU_ASSERT_EQUAL(child_status(read_byte, a + G - 1), 0);
	ctn_device_unmap(dev, a, G, false);
	CU_ASSERT_NOT_EQUAL(child_status(read_byte, a), 0);
	ctn_device_unreserve(dev, a, 2 * G);
	close_16();
}

/* Exits with 1, or dies of the assertion, when the two counts do not add up. */
static void check_sum(void *arg)
{
	struct ctn_device_memory mem;

	ctn_device_get_memory(arg, &mem);
	_exit(mem.free + mem.mapped != mem.total);
}

static void test_either_count_shows_a_planted_skew(void)
{
	struct ctn_host_memory *memory;
	uint8_t *a;

	open_16();
	memory = &ctn_host_device(dev)->memory;
	a = reserve(4 * G);
	CU_ASSERT_EQUAL_FATAL(ctn_device_map(dev, a, 2 * G), 0);
	CU_ASSERT_EQUAL(child_status(check_sum, dev), 0);

	memory->free_map[0] ^= 1ull << 9; /* a granule that the free list has lost */
	CU_ASSERT_NOT_EQUAL(child_status(check_sum, dev), 0);
	memory->free_map[0] ^= 1ull << 9;

	memory->free_map[0] |= 1; /* one that is mapped and free */
	CU_ASSERT_NOT_EQUAL(child_status(check_sum, dev), 0);
	memory->free_map[0] &= ~1ull;

	memory->reservations[0]->backing[3] = 10; /* a mapping that nothing was taken for */
	CU_ASSERT_NOT_EQUAL(child_status(check_sum, dev), 0);
	memory->reservations[0]->backing[3] = 0;

	CU_ASSERT_EQUAL(child_status(check_sum, dev), 0);
	ctn_device_unmap(dev, a, 2 * G, false);
	ctn_device_unreserve(dev, a, 4 * G);
	close_16();
}

#define THREADS 4
#define ROUNDS  200

static _Atomic unsigned int wrong, refused;

/* Maps, fills, checks and unmaps ranges of its own while others do the same. */
static void *hammer(void *arg)
{
	uint8_t id = (uint8_t)(uintptr_t)arg;
	unsigned int seed = id;
	void *va;

	for (int i = 0; i < ROUNDS; i++) {
		uint64_t bytes = (1 + (uint64_t)rand_r(&seed) % 7) * G;
		struct ctn_device_memory mem;
		int rc;

		if (ctn_device_reserve(dev, bytes, &va))
			return NULL;
		rc = ctn_device_map(dev, va, bytes);
		if (rc == 0) {
			memset(va, id, bytes);
			ctn_device_get_memory(dev, &mem);
			wrong += mem.free + mem.mapped != 16 * G || mem.mapped < bytes;
			wrong += !all_are(va, bytes, id);
			ctn_device_unmap(dev, va, bytes, i % 2);
		} else {
			wrong += rc != -ENOSPC;
			refused++;
		}
		ctn_device_unreserve(dev, va, bytes);
	}
	return NULL;
}

static void test_threads_share_a_device(void)
{
	pthread_t threads[THREADS];

	open_16();
	for (uintptr_t i = 0; i < THREADS; i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, hammer, (void *)(i + 1)),
				      0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CU_ASSERT_EQUAL(wrong, 0);
	CU_ASSERT(refused < THREADS * ROUNDS);
	check_account(16 * G, 0);
	close_16();
}

CTN_TESTS("device_memory", CTN_TEST(test_account_follows_map_and_unmap),
	  CTN_TEST(test_ranges_do_not_alias_and_are_not_the_callers_memory),
	  CTN_TEST(test_map_is_all_or_nothing), CTN_TEST(test_wrong_ranges_are_refused),
	  CTN_TEST(test_scattered_memory), CTN_TEST(test_scattered_memory_on_kernels_before_5_13),
	  CTN_TEST(test_addresses_outlive_their_memory),
	  CTN_TEST(test_poison_shows_in_what_is_mapped_next), CTN_TEST(test_a_stale_address_faults),
	  CTN_TEST(test_either_count_shows_a_planted_skew), CTN_TEST(test_threads_share_a_device))
