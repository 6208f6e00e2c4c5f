// SPDX-License-Identifier: MIT
/* The life of frames: states, references, leases, room, accounting, protection. */
#include "test.h"
#include "pool_fixture.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_life_of_a_frame(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 16 * CTN_MIB, 0, false);
	struct ctn_frame_key key = ctn_test_key(1);
	struct ctn_digest digest = {{9, 8, 7}};
	uint8_t owner[CTN_OWNER_DATA] = "whose";
	const struct ctn_extent *extents;
	struct ctn_frame_info info;
	struct ctn_frame_ref ref;
	uint32_t count;

	ctn_test_books(pool, 16 * CTN_MIB, 0, 0, 0, 0);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), -ENOENT);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &key, 3 * CTN_MIB, -1, &ref), 0);
	ctn_test_books(pool, 16 * CTN_MIB, 4 * CTN_MIB, 0, 0, 1);
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, ref), -EBUSY);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), -EBUSY);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	CU_ASSERT_EQUAL_FATAL(count, 1);
	CU_ASSERT_EQUAL(extents[0].bytes, 4 * CTN_MIB);
	CU_ASSERT_EQUAL((uintptr_t)extents[0].addr % CTN_EXTENT_ALIGN, 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_commit(pool, extents, count), 0);
	memset(extents[0].addr, 0x5a, 3 * CTN_MIB);

	CU_ASSERT_EQUAL_FATAL(ctn_pool_seal(pool, ref, &digest, owner), 0);
	ctn_test_books(pool, 16 * CTN_MIB, 0, 4 * CTN_MIB, 4 * CTN_MIB, 1);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_lookup(pool, &key, &info), 0);
	CU_ASSERT_EQUAL(info.state, CTN_FRAME_CLEAN);
	CU_ASSERT_EQUAL(info.ref.id, ref.id);
	CU_ASSERT_EQUAL(info.ref.generation, ref.generation);
	CU_ASSERT_EQUAL(info.bytes, 3 * CTN_MIB);
	CU_ASSERT_EQUAL(info.charged, 4 * CTN_MIB);
	CU_ASSERT_EQUAL(info.leases, 1);
	CU_ASSERT_EQUAL(memcmp(&info.key, &key, sizeof(key)), 0);
	CU_ASSERT_EQUAL(memcmp(&info.digest, &digest, sizeof(digest)), 0);
	CU_ASSERT_EQUAL(memcmp(info.owner, owner, sizeof(owner)), 0);
	CU_ASSERT_EQUAL(extents[0].addr[3 * CTN_MIB - 1], 0x5a);

	CU_ASSERT_EQUAL(ctn_pool_lease(pool, ref), 0);
	ctn_pool_release(pool, ref);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), -EBUSY);
	ctn_pool_release(pool, ref);
	ctn_test_books(pool, 16 * CTN_MIB, 0, 4 * CTN_MIB, 0, 1);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), 0);
	ctn_test_books(pool, 16 * CTN_MIB, 0, 0, 0, 0);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), -ENOENT);
	CU_ASSERT_EQUAL(ctn_pool_event_fd(pool), -1);
	CU_ASSERT_FALSE(ctn_pool_next_loss(pool, &ref));
	CU_ASSERT_EQUAL(ctn_pool_export(pool, ref), -ENOTSUP);
	ctn_pool_close(pool);
}

static void test_evictions_are_counted(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 16 * CTN_MIB, 0, false);
	struct ctn_frame_ref ref = ctn_test_clean(pool, 1, CTN_MIB);
	struct ctn_pool_stats s;

	CU_ASSERT_EQUAL(ctn_pool_lease(pool, ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), -EBUSY);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), -EBUSY);
	ctn_pool_release(pool, ref);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), -ESTALE);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_EQUAL(s.evictions, 1);
	CU_ASSERT_EQUAL(s.refused_evictions, 2);
	ctn_pool_close(pool);
}

static void test_stale_references(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 4 * CTN_MIB, 0, false);
	struct ctn_frame_ref old = ctn_test_clean(pool, 1, 4 * CTN_MIB), young;
	const struct ctn_extent *extents;
	uint32_t count;

	CU_ASSERT_EQUAL_FATAL(ctn_pool_evict(pool, old), 0);
	/* The same room, hence possibly the same id, but another generation. */
	young = ctn_test_clean(pool, 1, 4 * CTN_MIB);
	CU_ASSERT_NOT_EQUAL(old.generation, young.generation);
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, old), -ESTALE);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, old), -ESTALE);
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, old, NULL, NULL), -ESTALE);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, old), -ESTALE);
	CU_ASSERT_EQUAL(ctn_pool_extents(pool, old, &extents, &count), -ESTALE);
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, young), 0);
	ctn_pool_release(pool, young);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, young), 0);
	ctn_pool_close(pool);
}

static void test_double_seal_and_abort(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 8 * CTN_MIB, 0, false);
	struct ctn_frame_key key = ctn_test_key(1);
	struct ctn_frame_ref ref;

	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &key, 1, -1, &ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), -ESTALE);
	ctn_test_books(pool, 8 * CTN_MIB, 0, 0, 0, 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &key, 1, -1, &ref), 0);
	CU_ASSERT_EQUAL(ctn_test_commit(pool, ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, ref, NULL, NULL), 0);
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, ref, NULL, NULL), -EINVAL);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), -EINVAL);
	ctn_pool_release(pool, ref);
	ctn_pool_close(pool);
}

static void test_room(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 9 * CTN_MIB, 4 * CTN_MIB, false); /* 8 MiB */
	struct ctn_frame_key a = ctn_test_key(1), b = ctn_test_key(2);
	struct ctn_frame_ref ref, other;
	struct ctn_segment segment;

	CU_ASSERT_EQUAL(ctn_pool_segment_count(pool), 2);
	ctn_pool_segment(pool, 1, &segment);
	CU_ASSERT_EQUAL(segment.bytes, 4 * CTN_MIB);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &a, 0, -1, &ref), -EINVAL);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &a, UINT64_MAX, -1, &ref), -EFBIG);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &a, 8 * CTN_MIB + 1, -1, &ref), -EFBIG);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &a, 5 * CTN_MIB, -1, &ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &a, 1, -1, &other), -EEXIST);
	CU_ASSERT_EQUAL(other.id, ref.id);
	CU_ASSERT_EQUAL(other.generation, ref.generation);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &b, 2 * CTN_MIB + 1, -1, &other), -ENOSPC);
	ctn_test_books(pool, 8 * CTN_MIB, 6 * CTN_MIB, 0, 0, 1);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	ctn_pool_close(pool);
}

static void test_bad_configurations(void)
{
	struct ctn_pool_config cfg = {.bytes = CTN_EXTENT_ALIGN - 1};
	struct ctn_err err = {0};
	struct ctn_pool *pool;

	CU_ASSERT_EQUAL(ctn_pool_open(&cfg, &pool, &err), -EINVAL);
	cfg.bytes = CTN_GIB;
	cfg.provider = "marble";
	CU_ASSERT_EQUAL(ctn_pool_open(&cfg, &pool, &err), -ENOENT);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "marble"));
	cfg.provider = "plain";
	cfg.segment_bytes = CTN_MIB;
	CU_ASSERT_EQUAL(ctn_pool_open(&cfg, &pool, &err), -EINVAL);
	cfg = (struct ctn_pool_config){
		.provider = "plain", .name = "mine", .bytes = 8 * CTN_MIB, .node = -1};
	CU_ASSERT_EQUAL(ctn_pool_open(&cfg, &pool, &err), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "plain"));
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "\"mine\""));
}

/* Leaves every second 2 MiB hole, then asks for what only the holes together have. */
static void test_a_frame_of_many_extents(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 24 * CTN_MIB, 8 * CTN_MIB, false);
	struct ctn_frame_key key = ctn_test_key(100);
	uint8_t *held[6], *addr[12];
	const struct ctn_extent *extents;
	struct ctn_frame_ref refs[12], ref;
	uint32_t count, n = 0;
	uint64_t sum = 0;

	for (unsigned int i = 0; i < 12; i++) {
		refs[i] = ctn_test_clean(pool, i, 2 * CTN_MIB);
		CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, refs[i], &extents, &count), 0);
		addr[i] = extents[0].addr;
	}
	/* Neighbours in the address space, whatever order they were handed out in. */
	for (unsigned int i = 0; i < 12; i++) {
		if ((uintptr_t)addr[i] / CTN_EXTENT_ALIGN % 2)
			CU_ASSERT_EQUAL(ctn_pool_evict(pool, refs[i]), 0)
		else
			held[n++] = addr[i];
	}
	CU_ASSERT_EQUAL_FATAL(n, 6);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &key, 12 * CTN_MIB, -1, &ref), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	CU_ASSERT_EQUAL(count, 6);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_commit(pool, extents, count), 0);
	for (uint32_t i = 0; i < count; i++) {
		struct ctn_segment segment;

		sum += extents[i].bytes;
		ctn_pool_segment(pool, extents[i].segment, &segment);
		CU_ASSERT_PTR_EQUAL(extents[i].addr, segment.addr + extents[i].segment_offset);
		CU_ASSERT_TRUE(extents[i].segment_offset + extents[i].bytes <= segment.bytes);
		memset(extents[i].addr, 1, extents[i].bytes);
		for (n = 0; n < 6; n++)
			CU_ASSERT_TRUE(held[n] != extents[i].addr);
	}
	CU_ASSERT_EQUAL(sum, 12 * CTN_MIB);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	ctn_pool_close(pool);
}

/* Freed neighbours are one run again, whichever goes first; runs never cross segment borders. */
static void test_free_runs_join(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 32 * CTN_MIB, 16 * CTN_MIB, false);
	struct ctn_frame_key key = ctn_test_key(100);
	const struct ctn_extent *extents;
	struct ctn_frame_ref refs[16], ref;
	uint32_t count;

	for (unsigned int round = 0; round < 2; round++) {
		for (unsigned int i = 0; i < 16; i++)
			refs[i] = ctn_test_clean(pool, i, 2 * CTN_MIB);
		for (unsigned int i = 0; i < 16; i++) {
			unsigned int n = round ? 15 - i : i;

			CU_ASSERT_EQUAL(ctn_pool_evict(pool, refs[n * 7 % 16]), 0);
		}
		CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &key, 32 * CTN_MIB, -1, &ref), 0);
		CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
		CU_ASSERT_EQUAL(count, 2);
		CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	}
	ctn_pool_close(pool);
}

/* A child process opens its own pool, does `act` to a frame and must die of a write. */
static uint8_t *volatile fault_expected;

static void on_fault(int sig, siginfo_t *si, void *context)
{
	(void)context;
	_exit(sig == SIGSEGV && si->si_code == SEGV_ACCERR && si->si_addr == fault_expected ? 42
											    : 43);
}

static int write_in_child(void (*act)(struct ctn_pool *, struct ctn_frame_ref))
{
	struct sigaction sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	struct ctn_pool *pool;
	int status = 0;
	uint32_t count;
	pid_t pid = fork();

	if (pid == 0) {
		pool = ctn_test_pool("plain", 8 * CTN_MIB, 0, false);
		ref = ctn_test_clean(pool, 1, 4 * CTN_MIB);
		if (ctn_pool_extents(pool, ref, &extents, &count) != 0)
			_exit(1);
		fault_expected = extents[0].addr + 12345;
		act(pool, ref);
		sigaction(SIGSEGV, &sa, NULL);
		*fault_expected = 1;
		_exit(0);
	}
	CU_ASSERT_TRUE_FATAL(pid > 0);
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void act_nothing(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	(void)pool;
	(void)ref;
}

static void act_evict(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	ctn_pool_evict(pool, ref);
}

/* A frame that was given up while it was LOADING, and so writable. */
static void act_abort(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	struct ctn_frame_key key = ctn_test_key(2);

	ctn_pool_evict(pool, ref);
	if (ctn_pool_alloc(pool, &key, 4 * CTN_MIB, -1, &ref) != 0 ||
	    ctn_test_commit(pool, ref) != 0 || ctn_pool_abort(pool, ref) != 0)
		_exit(2);
}

static int pin_nothing(void *arg, const struct ctn_segment *segment)
{
	/* All of it is writable now, the CLEAN frame too. */
	(void)arg;
	for (uint64_t i = 0; i < segment->bytes; i += 4096)
		((volatile uint8_t *)segment->addr)[i] = 1;
	return 7;
}

static void act_pin(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	(void)ref;
	if (ctn_pool_pin_segment(pool, 0, pin_nothing, NULL) != 7)
		_exit(2);
}

static void act_reuse(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	struct ctn_frame_key key = ctn_test_key(2);

	ctn_pool_evict(pool, ref);
	if (ctn_pool_alloc(pool, &key, 8 * CTN_MIB, -1, &ref) != 0 ||
	    ctn_test_commit(pool, ref) != 0)
		_exit(2);
}

static void test_clean_is_read_only(void)
{
	if (!ctn_test_kernel_at_least(5, 19))
		CTN_SKIP("Linux before 5.19: frames stay writable");
	CU_ASSERT_EQUAL(write_in_child(act_nothing), 42);
	CU_ASSERT_EQUAL(write_in_child(act_evict), 42);
	CU_ASSERT_EQUAL(write_in_child(act_abort), 42);
	CU_ASSERT_EQUAL(write_in_child(act_pin), 42);
	CU_ASSERT_EQUAL(write_in_child(act_reuse), 0);
}

static void test_poison(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 4 * CTN_MIB, 0, true);
	struct ctn_frame_ref ref = ctn_test_clean(pool, 1, 4 * CTN_MIB);
	const struct ctn_extent *extents;
	const uint8_t *addr;
	uint32_t count;
	bool same = true;

	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	addr = extents[0].addr;
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), 0);
	for (size_t i = 0; i < 4 * CTN_MIB; i++)
		same = same && addr[i] == 0xdb;
	CU_ASSERT_TRUE(same);
	ctn_pool_close(pool);
}

static void test_hot_and_warm(void)
{
	struct ctn_pool_config cfg = {.provider = "plain",
				      .bytes = 20 * CTN_MIB,
				      .segment_bytes = 8 * CTN_MIB,
				      .hot_bytes = 12 * CTN_MIB,
				      .node = -1};
	struct ctn_segment segment;
	struct ctn_pool *pool;

	CU_ASSERT_EQUAL_FATAL(ctn_pool_open(&cfg, &pool, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_segment_count(pool), 3);
	ctn_pool_segment(pool, 0, &segment);
	CU_ASSERT_TRUE(segment.hot);
	ctn_pool_segment(pool, 1, &segment);
	CU_ASSERT_FALSE(segment.hot); /* 12 MiB is one segment and a half */
	ctn_pool_segment(pool, 2, &segment);
	CU_ASSERT_EQUAL(segment.bytes, 4 * CTN_MIB);
	ctn_pool_set_hot(pool, 2, true);
	ctn_pool_segment(pool, 2, &segment);
	CU_ASSERT_TRUE(segment.hot);
	ctn_pool_close(pool);
}

/* 64 GiB of pool cost no memory until they are used; what was used stays committed. */
static void test_memory_is_committed_late(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 64 * CTN_GIB, 0, false);
	struct ctn_frame_ref ref;
	struct ctn_pool_stats s;

	ctn_pool_get_stats(pool, true, &s);
	CU_ASSERT_EQUAL(s.total_bytes, 64 * CTN_GIB);
	CU_ASSERT_EQUAL(s.resident_bytes, 0);
	ref = ctn_test_clean(pool, 1, 6 * CTN_MIB);
	ctn_pool_get_stats(pool, true, &s);
	CU_ASSERT_EQUAL(s.resident_bytes, 6 * CTN_MIB);
	CU_ASSERT_EQUAL(s.huge_bytes, 0);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), 0);
	ctn_pool_get_stats(pool, true, &s);
	CU_ASSERT_EQUAL(s.resident_bytes, 6 * CTN_MIB);
	ctn_pool_close(pool);
}

/* Two pools side by side: each sees its own pages only. */
static void test_large_frames_are_filled_by_threads(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 256 * CTN_MIB, 0, false);
	struct ctn_pool *other = ctn_test_pool("plain", 256 * CTN_MIB, 0, false);
	struct ctn_frame_ref ref = ctn_test_clean(pool, 1, 130 * CTN_MIB);
	struct ctn_pool_stats s;

	ctn_pool_get_stats(pool, true, &s);
	CU_ASSERT_EQUAL(s.resident_bytes, 130 * CTN_MIB);
	ctn_pool_get_stats(other, true, &s);
	CU_ASSERT_EQUAL(s.resident_bytes, 0);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), 0);
	ctn_pool_close(other);
	ctn_pool_close(pool);
}

static void test_providers_in_order(void)
{
	CU_ASSERT_STRING_EQUAL(ctn_pool_provider_name(0), "kmod");
	CU_ASSERT_STRING_EQUAL(ctn_pool_provider_name(1), "hugetlb");
	CU_ASSERT_STRING_EQUAL(ctn_pool_provider_name(2), "thp");
	CU_ASSERT_STRING_EQUAL(ctn_pool_provider_name(3), "plain");
	CU_ASSERT_PTR_NULL(ctn_pool_provider_name(4));
}

static void test_the_best_provider_is_taken(void)
{
	struct ctn_pool *pool = ctn_test_pool(NULL, 32 * CTN_MIB, 0, false);
	struct ctn_pool_stats s;
	const char *why = s.why;

	ctn_pool_get_stats(pool, false, &s);
	/* Each that is better is there, in order, with its reason; nothing else is. */
	for (uint32_t i = 0; strcmp(ctn_pool_provider_name(i), s.provider) != 0; i++) {
		const char *better = ctn_pool_provider_name(i);
		size_t len = strlen(better);

		CU_ASSERT_EQUAL_FATAL(strncmp(why, better, len), 0);
		CU_ASSERT_EQUAL_FATAL(strncmp(why + len, ": ", 2), 0);
		why += len + 2;
		len = strcspn(why, ";");
		CU_ASSERT_TRUE(len > 10);
		why += len;
		why += strncmp(why, "; ", 2) == 0 ? 2 : 0;
	}
	CU_ASSERT_STRING_EQUAL(why, "");
	ctn_pool_close(pool);
	pool = ctn_test_pool("plain", 32 * CTN_MIB, 0, false);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_STRING_EQUAL(s.why, "plain: was asked for");
	ctn_pool_close(pool);
}

/* AnonHugePages of the one mapping that holds `addr`, read without our code. */
static uint64_t huge_kb_at(const void *addr)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	unsigned long begin, end, kb, found = 0;
	bool in = false;
	char line[512];

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
			in = begin <= (uintptr_t)addr && (uintptr_t)addr < end;
		else if (in && sscanf(line, "AnonHugePages: %lu kB", &kb) == 1)
			found = kb;
	}
	if (f)
		fclose(f);
	return found;
}

static void test_huge_share_is_the_kernels(void)
{
	struct ctn_pool_config cfg = {
		.provider = "thp", .bytes = 64 * CTN_MIB, .hot_bytes = UINT64_MAX, .node = -1};
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	struct ctn_pool_stats s;
	struct ctn_pool *pool;
	struct ctn_err err;
	uint32_t count;

	if (ctn_pool_open(&cfg, &pool, &err) != 0)
		CTN_SKIP("no transparent huge pages");
	ref = ctn_test_clean(pool, 1, 20 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	ctn_pool_get_stats(pool, true, &s);
	CU_ASSERT_EQUAL(s.resident_bytes, 20 * CTN_MIB);
	CU_ASSERT_EQUAL(s.huge_bytes, huge_kb_at(extents[0].addr) * 1024);
	CU_ASSERT_TRUE(s.huge_bytes > 0);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), 0);
	ctn_pool_close(pool);
}

static struct ctn_frame_ref sealed(struct ctn_pool *pool, unsigned int n,
				   const struct ctn_digest *digest,
				   const uint8_t owner[CTN_OWNER_DATA])
{
	struct ctn_frame_key key = ctn_test_key(n);
	struct ctn_frame_ref ref = {0, 0};

	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &key, CTN_MIB, -1, &ref), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_test_commit(pool, ref), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_seal(pool, ref, digest, owner), 0);
	ctn_pool_release(pool, ref);
	return ref;
}

static void test_frames_are_found_by_content(void)
{
	static const char *const providers[] = {"plain", "lossy"};
	const uint8_t owner[CTN_OWNER_DATA] = "here", other[CTN_OWNER_DATA] = "there";
	const struct ctn_digest a = {{1}}, b = {{2}};

	for (size_t i = 0; i < CTN_ARRAY_LEN(providers); i++) {
		struct ctn_pool *pool = ctn_test_pool(providers[i], 16 * CTN_MIB, 0, false);
		struct ctn_frame_ref first, second;
		struct ctn_frame_info info;

		sealed(pool, 1, NULL, owner);
		CU_ASSERT_EQUAL(ctn_pool_lookup_content(pool, &a, owner, &info), -ENOENT);
		first = sealed(pool, 2, &a, owner);
		second = sealed(pool, 3, &a, other);
		CU_ASSERT_EQUAL_FATAL(ctn_pool_lookup_content(pool, &a, owner, &info), 0);
		CU_ASSERT_EQUAL(info.ref.id, first.id);
		CU_ASSERT_TRUE(info.has_digest);
		CU_ASSERT_EQUAL_FATAL(ctn_pool_lookup_content(pool, &a, other, &info), 0);
		CU_ASSERT_EQUAL(info.ref.id, second.id);
		CU_ASSERT_EQUAL(ctn_pool_lookup_content(pool, &b, owner, &info), -ENOENT);
		/* A second one of the same content does not hide that the first has gone. */
		sealed(pool, 4, &a, owner);
		CU_ASSERT_EQUAL(ctn_pool_evict(pool, first), 0);
		CU_ASSERT(ctn_pool_lookup_content(pool, &a, owner, &info) == -ENOENT ||
			  info.ref.generation != first.generation);
		CU_ASSERT_EQUAL(ctn_pool_evict(pool, second), 0);
		CU_ASSERT_EQUAL(ctn_pool_lookup_content(pool, &a, other, &info), -ENOENT);
		ctn_pool_close(pool);
	}
}

CTN_TESTS("pool", CTN_TEST(test_life_of_a_frame), CTN_TEST(test_evictions_are_counted),
	  CTN_TEST(test_stale_references), CTN_TEST(test_double_seal_and_abort),
	  CTN_TEST(test_room), CTN_TEST(test_bad_configurations),
	  CTN_TEST(test_a_frame_of_many_extents), CTN_TEST(test_free_runs_join),
	  CTN_TEST(test_clean_is_read_only), CTN_TEST(test_poison), CTN_TEST(test_hot_and_warm),
	  CTN_TEST(test_memory_is_committed_late),
	  CTN_TEST(test_large_frames_are_filled_by_threads), CTN_TEST(test_providers_in_order),
	  CTN_TEST(test_the_best_provider_is_taken), CTN_TEST(test_huge_share_is_the_kernels),
	  CTN_TEST(test_frames_are_found_by_content))
