/* SPDX-License-Identifier: MIT */
/*
 * Random calls with nearly right arguments on random descriptors, by several processes at once.
 * Nothing is expected of them but that the kernel stays well, that every answer is one that the
 * header knows, and that nothing is left when the last process has ended.
 */
#include "pin.h"
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES  4
#define SLOTS      8
#define POOL       (16 * MIB)
#define HUGE_PAGES "/proc/sys/vm/nr_hugepages"
#define MAX_BYTES  "/sys/module/computron/parameters/max_bytes"

static const unsigned long requests[] = {
	COMPUTRON_IOC_INFO,          COMPUTRON_IOC_POOL_CREATE,   COMPUTRON_IOC_POOL_OPEN,
	COMPUTRON_IOC_POOL_LIST,     COMPUTRON_IOC_POOL_DESTROY,  COMPUTRON_IOC_POOL_ADOPT,
	COMPUTRON_IOC_POOL_STAT,     COMPUTRON_IOC_POOL_SET,      COMPUTRON_IOC_POOL_HOT,
	COMPUTRON_IOC_POOL_MEMFD,    COMPUTRON_IOC_FRAME_ALLOC,   COMPUTRON_IOC_FRAME_POPULATE,
	COMPUTRON_IOC_FRAME_SEAL,    COMPUTRON_IOC_FRAME_ABORT,   COMPUTRON_IOC_FRAME_LOOKUP,
	COMPUTRON_IOC_FRAME_LIST,    COMPUTRON_IOC_FRAME_EXTENTS, COMPUTRON_IOC_FRAME_LEASE,
	COMPUTRON_IOC_FRAME_RELEASE, COMPUTRON_IOC_FRAME_EVICT,   COMPUTRON_IOC_FRAME_EXPORT,
};
#define REQUESTS (sizeof(requests) / sizeof(*requests))

static uint64_t state;

static uint64_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state * 0x2545f4914f6cdd1dULL >> 11;
}

static uint64_t below(uint64_t n)
{
	return rnd() % n;
}

/* Numbers that are near where things change. */
static uint64_t number(void)
{
	static const uint64_t edges[] = {0,           1,          4096,       UNIT - 1, UNIT,
					 UNIT + 1,    2 * UNIT,   POOL - 1,   POOL,     POOL + 1,
					 1ULL << 31,  1ULL << 32, 1ULL << 63, ~0ULL,    ~0ULL - 1,
					 ~(UNIT - 1), INT64_MAX,  4095};

	return below(4)   ? edges[below(sizeof(edges) / sizeof(*edges))]
	       : below(3) ? below(16)
			  : rnd();
}

static int files[SLOTS]; /* descriptors that this process plays with; -1: none */
static struct computron_ref refs[SLOTS];
static struct {
	uint8_t *at;
	uint64_t bytes;
} maps[SLOTS];
static int memfd; /* of huge pages, to be adopted */
static uint64_t counts[REQUESTS], well[REQUESTS];

static int *slot(void)
{
	return &files[below(SLOTS)];
}

static void keep(int fd)
{
	int *place = slot();

	if (*place >= 0)
		close(*place);
	*place = fd;
}

static uint8_t arg[512];
/* Where lists are written. What an argument that is not right asks for beyond it must not land on
 * the fuzzer's own state: nothing is behind it for as far as the rows of a list can reach. */
static uint8_t *array;
#define ARRAY        8192
#define BEHIND_ARRAY (1ULL << 30)

static void map_array(void)
{
	array = mmap(NULL, ARRAY + BEHIND_ARRAY, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(array != MAP_FAILED && !mprotect(array, ARRAY, PROT_READ | PROT_WRITE), "array");
}

static void put(size_t at, const void *what, size_t bytes)
{
	memcpy(arg + at, what, bytes);
}

static void put64(size_t at, uint64_t value)
{
	put(at, &value, sizeof(value));
}

/* Fills the argument with what would be right, then spoils some of it. */
static void compose(unsigned long request)
{
	static const char *const names[] = {"f0", "f1", "f2"};
	uint32_t size = _IOC_SIZE(request), flags = below(3) ? (uint32_t)below(4) : 0;
	struct computron_ref ref = refs[below(SLOTS)];

	memset(arg, 0, sizeof(arg));
	put(0, &size, 4);
	put(4, &flags, 4);
	switch (request) {
	case COMPUTRON_IOC_POOL_CREATE:
		put(8, names[below(3)], 3);
		put64(offsetof(struct computron_pool_create, bytes), below(3) ? POOL : number());
		put64(offsetof(struct computron_pool_create, floor), below(2) ? 0 : number());
		put64(offsetof(struct computron_pool_create, segment_bytes),
		      below(2) ? 0 : 4 * MIB);
		((struct computron_pool_create *)arg)->node = below(4) ? -1 : (int)number();
		((struct computron_pool_create *)arg)->flags = 0;
		break;
	case COMPUTRON_IOC_POOL_OPEN:
	case COMPUTRON_IOC_POOL_DESTROY:
		put(8, names[below(3)], 3);
		break;
	case COMPUTRON_IOC_POOL_ADOPT:
		put(8, names[below(3)], 3);
		((struct computron_pool_adopt *)arg)->memfd = below(8) ? memfd : *slot();
		((struct computron_pool_adopt *)arg)->node = below(8) ? -1 : (int)number();
		((struct computron_pool_adopt *)arg)->flags = 0;
		break;
	case COMPUTRON_IOC_POOL_SET:
		put64(8, number());
		put64(16, number());
		break;
	case COMPUTRON_IOC_POOL_HOT:
		put64(8, below(8) * UNIT);
		put64(16, below(2) ? (1 + below(4)) * UNIT : number());
		break;
	case COMPUTRON_IOC_FRAME_ALLOC:
		put64(8, below(6));
		put64(offsetof(struct computron_frame_alloc, bytes),
		      below(4) ? 1 + below(6 * MIB) : number());
		((struct computron_frame_alloc *)arg)->flags = (uint32_t)below(2);
		break;
	case COMPUTRON_IOC_FRAME_LOOKUP:
		put64(8, ref.id);
		put64(16, ref.generation);
		put64(8 + offsetof(struct computron_frame_info, key), below(6));
		break;
	case COMPUTRON_IOC_POOL_LIST:
	case COMPUTRON_IOC_FRAME_LIST: {
		uint32_t room = (uint32_t)below(8),
			 row = request == COMPUTRON_IOC_POOL_LIST
				       ? sizeof(struct computron_pool_info)
				       : sizeof(struct computron_frame_info);

		put(8, &room, 4);
		put(12, &row, 4);
		put64(16, (uintptr_t)array);
		((struct computron_pool_list *)arg)->flags = 0;
		break;
	}
	case COMPUTRON_IOC_FRAME_EXTENTS:
		put64(8, ref.id);
		put64(16, ref.generation);
		put64(24, (uintptr_t)array);
		put64(32, below(8));
		((struct computron_frame_extents *)arg)->flags = 0;
		break;
	default: /* the calls that start with a name of a frame */
		put64(8, ref.id);
		put64(16, ref.generation);
		if (below(4))
			((struct computron_frame_op *)arg)->flags = 0;
	}
	/* One time in four something is wrong with it. */
	if (!below(4))
		put64(8 * below(10), number());
	if (!below(16))
		arg[below(sizeof(arg))] = (uint8_t)rnd();
}

static void one_call(void)
{
	size_t which = below(REQUESTS);
	unsigned long request = requests[which];
	int *file = slot(), err;

	if (*file < 0)
		return;
	compose(request);
	err = call(*file,
		   below(64) ? request
			     : _IOC(_IOC_READ | _IOC_WRITE, COMPUTRON_IOC_MAGIC, below(256),
				    below(512)),
		   below(64) ? (void *)arg : (void *)(uintptr_t)number());
	counts[which]++;
	if (err) {
		static const int known[] = {EFAULT,     EINVAL, E2BIG,  ENOTTY, ENOMEM, ENODEV,
					    EACCES,     EPERM,  EBUSY,  ESTALE, EEXIST, EFBIG,
					    EDQUOT,     ENOSPC, ENOENT, EINTR,  ENXIO,  EOVERFLOW,
					    EOPNOTSUPP, EBADF,  EMFILE, ENFILE};
		bool found = false;

		for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
			found |= err == -known[i];
		CHECK(found, "call %#lx answers %d", request, err);
		return;
	}
	well[which]++;
	switch (request) {
	case COMPUTRON_IOC_POOL_CREATE:
		keep(((struct computron_pool_create *)arg)->fd);
		break;
	case COMPUTRON_IOC_POOL_OPEN:
		keep(((struct computron_pool_open *)arg)->fd);
		break;
	case COMPUTRON_IOC_POOL_ADOPT:
		keep(((struct computron_pool_adopt *)arg)->fd);
		break;
	case COMPUTRON_IOC_POOL_MEMFD:
		keep(((struct computron_pool_memfd *)arg)->fd);
		break;
	case COMPUTRON_IOC_FRAME_EXPORT:
		keep(((struct computron_frame_export *)arg)->fd);
		break;
	case COMPUTRON_IOC_FRAME_ALLOC:
		refs[below(SLOTS)] = ((struct computron_frame_alloc *)arg)->ref;
		break;
	case COMPUTRON_IOC_FRAME_LOOKUP:
		refs[below(SLOTS)] = ((struct computron_frame_lookup *)arg)->info.ref;
		break;
	}
}

static void one_other_thing(int pins)
{
	size_t which = below(SLOTS);
	uint8_t **map = &maps[which].at;
	uint64_t *bytes = &maps[which].bytes;
	int *file = slot();
	struct pollfd poller = {.fd = *file, .events = POLLIN};

	switch (below(12)) {
	case 0:
		keep(open(COMPUTRON_DEVICE, O_RDWR | O_CLOEXEC | O_NONBLOCK));
		break;
	case 1:
		if (*file >= 0)
			close(*file);
		*file = -1;
		break;
	case 2:
	case 3:
		if (*map)
			munmap(*map, *bytes);
		/* All, or what may be of one frame. */
		*bytes = below(2) ? POOL : UNIT;
		*map = mmap(NULL, *bytes, below(2) ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED,
			    *file, (off_t)(*bytes == POOL ? 0 : below(POOL / UNIT) * UNIT));
		if (*map == MAP_FAILED)
			*map = NULL;
		break;
	case 4:
	case 5:
		if (*map)
			touch(*map + below(*bytes));
		break;
	case 6:
		if (*map)
			touch_write(*map + below(*bytes));
		break;
	case 7:
		if (*map)
			madvise(*map + below(*bytes / 4096) * 4096, 4096, (int)below(26));
		break;
	case 8:
		poll(&poller, 1, 0);
		if (poller.revents & POLLIN)
			(void)!read(*file, array, ARRAY);
		break;
	case 9:
		if (*map)
			mprotect(*map + below(*bytes / 4096) * 4096, 4096, (int)below(8));
		break;
	case 10:
		if (*map && below(2))
			pin(pins, *map + below(*bytes / 4096) * 4096, 4096, below(2));
		else
			ioctl(pins, CTN_TEST_DROP);
		break;
	case 11:
		if (!below(20))
			must_write("/proc/sys/vm/drop_caches", "2");
		break;
	}
}

static void fuzz(double until, uint64_t seed)
{
	struct timespec t;
	int pins = must_pin_file();

	state = seed;
	memset(files, 0xff, sizeof(files));
	for (int round = 0;; round++) {
		if (below(3))
			one_call();
		else
			one_other_thing(pins);
		if (round % 64 == 0) {
			clock_gettime(CLOCK_MONOTONIC, &t);
			if ((double)t.tv_sec > until)
				break;
		}
	}
	if (seed % 2)
		raise(SIGKILL); /* with everything open */
}

static double seconds(void)
{
	const char *text = getenv("FUZZ_SECONDS");

	return text ? atof(text) : 60;
}

__attribute__((constructor)) static void take_time(void)
{
	ktap_more_seconds = (int)seconds();
}

TEST(random_calls)
{
	const char *seed_text = getenv("FUZZ_SEED");
	uint64_t seed = seed_text ? strtoull(seed_text, NULL, 0) : (uint64_t)time(NULL) * 1000 + 1;
	struct timespec t;
	pid_t pids[PROCESSES];
	int status, fd;
	char was[32], huge_was[32];
	struct computron_pool_info pools[64];
	struct computron_pool_list list = {
		.size = sizeof(list), .count = 64, .row_bytes = sizeof(*pools)};

	map_array();
	snprintf(huge_was, sizeof(huge_was), "%llu", (unsigned long long)number_of(HUGE_PAGES));
	must_write(HUGE_PAGES, "8");
	memfd = memfd_create("fuzz", MFD_HUGETLB | MFD_CLOEXEC);
	CHECK(memfd >= 0 && !ftruncate(memfd, POOL), "memfd: errno %d", errno);
	/* No pool that the guest could not hold. */
	snprintf(was, sizeof(was), "%llu", (unsigned long long)number_of(MAX_BYTES));
	must_write(MAX_BYTES, "134217728");
	ktap_note("seed %llu (FUZZ_SEED repeats it), %.0f s", (unsigned long long)seed, seconds());
	clock_gettime(CLOCK_MONOTONIC, &t);
	for (int i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0, "fork");
		if (!pids[i]) {
			uint64_t calls = 0, good = 0;

			fuzz((double)t.tv_sec + seconds(), seed + (uint64_t)i);
			for (size_t j = 0; j < REQUESTS; j++) {
				calls += counts[j];
				good += well[j];
				/* A fuzzer that never gets through tests nothing. */
				if (!well[j])
					ktap_note("call %#x never went well in %llu tries",
						  (unsigned)_IOC_NR(requests[j]),
						  (unsigned long long)counts[j]);
			}
			ktap_note("%llu calls, %llu went well", (unsigned long long)calls,
				  (unsigned long long)good);
			_exit(good * 20 < calls);
		}
	}
	for (int i = 0; i < PROCESSES; i++) {
		CHECK(waitpid(pids[i], &status, 0) == pids[i], "wait");
		if ((seed + (uint64_t)i) % 2)
			CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
			      "process %d: status %#x", i, status);
		else
			EQUAL(status, 0, "status");
	}
	/* Everything that they held is gone: the pools can be destroyed, and the memory is back. A
	 * spoilt name can be a good one as well. */
	list.pools = (uintptr_t)pools;
	EQUAL(call(must_control(), COMPUTRON_IOC_POOL_LIST, &list), 0, "list");
	EQUAL(list.count, list.total, "pools listed");
	for (uint32_t i = 0; i < list.count; i++) {
		const char *name = pools[i].name;

		fd = pool_open(name, 0);
		CHECK(fd >= 0, "%s: %d", name, fd);
		EQUAL(must_stat(fd).files, 1, "files");
		EQUAL(must_stat(fd).leased, 0, "leased");
		EQUAL(must_stat(fd).loading, 0, "loading");
		EQUAL(must_stat(fd).hot, 0, "hot");
		CHECK(EVENTUALLY(!must_stat(fd).quarantined, 10), "quarantined for ever");
		close(fd);
		EQUAL(pool_destroy(name, 0), 0, name);
	}
	EQUAL(pool_count(), 0, "pools");
	close(memfd);
	must_write(HUGE_PAGES, huge_was);
	must_write(MAX_BYTES, was);
}
