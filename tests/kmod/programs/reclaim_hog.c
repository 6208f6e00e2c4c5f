/* SPDX-License-Identifier: MIT */
/*
 * A process that needs more memory than there is, beside a pool of CLEAN frames. Without the
 * shrinker (switched off) it is killed; with it, it finishes: what was evicted is at most what it
 * needed and a batch (it may be less: some memory was free), the floor holds, leased and pinned
 * frames are intact.
 */
#include "pin.h"
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#define FRAME (4 * MIB)
#define FLOOR (32 * MIB)

static int fd, frames;
static uint8_t *map;
static uint64_t pool_bytes;
static struct computron_ref refs[512];

static uint64_t free_memory(void)
{
	char line[256];
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "r");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	CHECK(kib, "no MemAvailable");
	return kib * KIB;
}

#define PARAMETERS "/sys/module/computron/parameters/"

/* A pool that leaves about 160 MiB of the guest, full of CLEAN frames: who then needs X bytes has
 * them when X - 160 MiB are evicted, or somewhat less, for caches that the kernel gives up first.
 */
static void setup(const char *name, bool shrink)
{
	uint64_t available = free_memory();
	char limit[32];

	CHECK(available > 400 * MIB, "only %llu MiB are free",
	      (unsigned long long)(available / MIB));
	pool_bytes = (available - 160 * MIB) / FRAME * FRAME;
	/* That may be more than the module allows by default. */
	snprintf(limit, sizeof(limit), "%llu", (unsigned long long)pool_bytes);
	must_write(PARAMETERS "max_bytes", limit);
	must_write(PARAMETERS "reclaim", shrink ? "Y" : "N");
	fd = pool_create(name, pool_bytes, 0, FLOOR, 0);
	CHECK(fd >= 0, "%d", fd);
	map = must_map(fd, pool_bytes, PROT_READ | PROT_WRITE);
	frames = (int)(pool_bytes / FRAME);
	for (int i = 0; i < frames; i++)
		refs[i] = must_frame(fd, map, (uint64_t)i + 1, FRAME, 0);
}

static void hog(void *arg)
{
	uint64_t bytes = *(uint64_t *)arg;
	uint8_t *at;
	int score = open("/proc/self/oom_score_adj", O_WRONLY);

	/* The kernel is to kill this process and no other. */
	CHECK(score >= 0 && write(score, "1000", 4) == 4, "oom_score_adj");
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED, "errno %d", errno);
	for (uint64_t i = 0; i < bytes; i += 4096)
		at[i] = 1;
}

TEST(killed_without_the_shrinker)
{
	uint64_t need;
	int status;

	setup("without", false);
	need = 300 * MIB;
	status = in_child(hog, &need);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the hog lives: status %d",
	      status);
	EQUAL(must_stat(fd).clean, pool_bytes, "clean");
	for (int i = 0; i < frames; i += 8)
		must_hold(fd, map, refs[i], (uint64_t)i + 1, FRAME);
	close(fd);
	EQUAL(pool_destroy("without", 0), 0, "destroy");
}

TEST(finishes_with_it)
{
	struct computron_pool_stat stat;
	uint64_t need = 300 * MIB, told = 0;
	struct computron_event event;
	int status, other, pins = must_pin_file(), lost = 0;

	setup("with", true);
	other = pool_open("with", 0);
	CHECK(!fcntl(other, F_SETFL, O_NONBLOCK), "fcntl");
	EQUAL(frame_lease(fd, refs[0]), 0, "lease");
	EQUAL(frame_lease(fd, refs[7]), 0, "lease");
	EQUAL(pin(pins, map + frame_offset(refs[1]), FRAME, true), 0, "pin");
	status = in_child(hog, &need);
	EQUAL(status, 0, "the hog");
	stat = must_stat(fd);
	ktap_note("%llu MiB needed, %llu of %llu MiB evicted in %llu frames",
		  (unsigned long long)(need / MIB),
		  (unsigned long long)(stat.reclaimed_bytes / MIB),
		  (unsigned long long)(pool_bytes / MIB), (unsigned long long)stat.reclaims);
	CHECK(stat.reclaimed_bytes > 0, "nothing was evicted: the hog proves nothing");
	CHECK(stat.reclaimed_bytes <= need + number_of(PARAMETERS "reclaim_batch"),
	      "evicted %llu MiB", (unsigned long long)(stat.reclaimed_bytes / MIB));
	CHECK(stat.clean >= FLOOR, "below the floor: %llu MiB",
	      (unsigned long long)(stat.clean / MIB));
	EQUAL(stat.clean + stat.reclaimed_bytes, pool_bytes, "clean and evicted");
	while (read(other, &event, sizeof(event)) == sizeof(event))
		told += event.bytes;
	EQUAL(told, stat.reclaimed_bytes, "bytes that the file was told of");
	must_hold(fd, map, refs[0], 1, FRAME);
	must_hold(fd, map, refs[7], 8, FRAME);
	must_hold(fd, map, refs[1], 2, FRAME);
	for (int i = 0; i < frames; i++) {
		if (frame_lease(fd, refs[i]) == -ESTALE) {
			lost++;
			continue;
		}
		if (i % 8 == 0)
			must_hold(fd, map, refs[i], (uint64_t)i + 1, FRAME);
	}
	EQUAL(lost, stat.reclaims, "frames that are gone");
	/* And the memory can be had again. */
	EQUAL(frame_alloc(fd, 9999, FRAME, 0, &refs[0]), 0, "alloc");
	close(fd);
}
