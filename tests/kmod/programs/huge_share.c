/* SPDX-License-Identifier: MIT */
/* The share of huge pages that the module reports is the kernel's own: ShmemPmdMapped and
 * kpageflags. */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define POOL     (64 * MIB)
#define KPF_HEAD (1ULL << 15)
#define KPF_TAIL (1ULL << 16)
#define KPF_HUGE ((1ULL << 17) | (1ULL << 22)) /* hugetlb or THP */

/* ShmemPmdMapped of the mapping at `at`, in bytes. */
static uint64_t pmd_mapped(const uint8_t *at)
{
	unsigned long long start, end, kib;
	bool here = false;
	char line[512];
	uint64_t sum = 0;
	FILE *f = fopen("/proc/self/smaps", "r");

	CHECK(f, "errno %d", errno);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%llx-%llx ", &start, &end) == 2)
			here = start <= (uintptr_t)at && (uintptr_t)at < end;
		else if (here && sscanf(line, "ShmemPmdMapped: %llu kB", &kib) == 1)
			sum += kib * KIB;
	}
	fclose(f);
	return sum;
}

static void words_of(const char *path, uint64_t index, uint64_t *words, uint64_t count)
{
	int fd = open(path, O_RDONLY);
	ssize_t got;

	CHECK(fd >= 0, "cannot open %s: errno %d", path, errno);
	got = pread(fd, words, count * 8, (off_t)(index * 8));
	CHECK(got == (ssize_t)(count * 8), "%s at %llu: %zd of %llu bytes, errno %d", path,
	      (unsigned long long)index, got, (unsigned long long)(count * 8), errno);
	close(fd);
}

/* Bytes of a mapping that lie in compound pages of a whole unit, by pagemap and kpageflags. Newer
 * kernels also have compound pages of other sizes. */
static uint64_t in_huge_pages(const uint8_t *map, uint64_t bytes)
{
	uint64_t sum = 0, entry, pfn, flags[UNIT / 4096];
	bool whole;

	for (uint64_t at = 0; at < bytes; at += UNIT) {
		words_of("/proc/self/pagemap", (uintptr_t)(map + at) / 4096, &entry, 1);
		if (!(entry >> 63))
			continue;
		pfn = entry & ((1ULL << 55) - 1);
		/* Of a small page no more than its own: memory may end within a unit of it. */
		words_of("/proc/kpageflags", pfn, flags, 1);
		whole = (flags[0] & KPF_HEAD) && (flags[0] & KPF_HUGE);
		if (whole)
			words_of("/proc/kpageflags", pfn, flags, UNIT / 4096);
		for (uint64_t i = 1; whole && i < UNIT / 4096; i++)
			whole = flags[i] & KPF_TAIL;
		sum += whole ? UNIT : 0;
	}
	return sum;
}

static void compare(int fd, uint8_t *map, uint64_t bytes, uint64_t said)
{
	uint8_t *fresh = must_map(fd, bytes, PROT_READ | PROT_WRITE);

	(void)map;
	for (uint64_t at = 0; at < bytes; at += 4096)
		(void)*(volatile uint8_t *)(fresh + at);
	EQUAL(in_huge_pages(fresh, bytes), said, "by kpageflags");
	EQUAL(pmd_mapped(fresh), said, "by ShmemPmdMapped");
	EQUAL(must_survey(fd).huge, said, "by the survey");
	munmap(fresh, bytes);
}

TEST(all_huge)
{
	struct computron_frame_populate populate = {.size = sizeof(populate)};
	int fd = must_pool("huge", POOL);
	uint8_t *map = must_map(fd, POOL, PROT_READ | PROT_WRITE), *view;
	int reader = pool_open("huge", 0);

	EQUAL(frame_alloc(fd, 1, POOL, COMPUTRON_ALLOC_RESERVE, &populate.ref), 0, "alloc");
	EQUAL(call(fd, COMPUTRON_IOC_FRAME_POPULATE, &populate), 0, "populate");
	EQUAL(populate.huge_bytes, POOL, "huge bytes in a guest with free memory");
	EQUAL(must_stat(fd).huge, POOL, "huge of the stat");
	compare(fd, map, POOL, populate.huge_bytes);
	EQUAL(frame_seal(fd, populate.ref, 0), 0, "seal");
	/* A client's read-only mapping has huge pages too. */
	view = must_map(reader, POOL, PROT_READ);
	for (uint64_t at = 0; at < POOL; at += 4096)
		(void)*(volatile uint8_t *)(view + at);
	EQUAL(pmd_mapped(view), POOL, "of a reader");
	close(fd);
}

/* Leaves the guest's memory in pieces: fills it, gives every second page back. */
static void shred(uint64_t *bytes)
{
	int memfd = memfd_create("pieces", MFD_CLOEXEC);
	struct sysinfo info;
	uint8_t *all;

	CHECK(!sysinfo(&info), "errno %d", errno);
	*bytes = (info.freeram - 64 * MIB) & ~(UNIT - 1);
	CHECK(memfd >= 0 && !ftruncate(memfd, (off_t)*bytes), "errno %d", errno);
	all = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	CHECK(all != MAP_FAILED, "errno %d", errno);
	/* Locked: what is movable would be moved together. */
	CHECK(!mlock(all, *bytes), "mlock: errno %d", errno);
	for (uint64_t at = 0; at < *bytes; at += 8192)
		CHECK(!fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
				 4096),
		      "errno %d", errno);
}

TEST(less_in_a_fragmented_guest)
{
	struct computron_frame_populate populate = {.size = sizeof(populate)};
	uint64_t bytes = 256 * MIB, taken;
	int fd = must_pool("pieces", bytes);
	uint8_t *map = must_map(fd, bytes, PROT_READ | PROT_WRITE);

	must_write("/proc/sys/vm/compact_unevictable_allowed", "0");
	must_write("/proc/sys/vm/compaction_proactiveness", "0");
	shred(&taken);
	EQUAL(frame_alloc(fd, 1, bytes, COMPUTRON_ALLOC_RESERVE, &populate.ref), 0, "alloc");
	EQUAL(call(fd, COMPUTRON_IOC_FRAME_POPULATE, &populate), 0, "populate");
	ktap_note("%llu of %llu MiB are huge, with %llu MiB in pieces",
		  (unsigned long long)(populate.huge_bytes / MIB),
		  (unsigned long long)(bytes / MIB), (unsigned long long)(taken / MIB));
	CHECK(populate.huge_bytes < bytes, "all is huge, or it is said to be");
	compare(fd, map, bytes, populate.huge_bytes);
	EQUAL(frame_seal(fd, populate.ref, 0), 0, "seal");
}
