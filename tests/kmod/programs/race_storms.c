/* SPDX-License-Identifier: MIT */
/*
 * Processes and threads that do different things to one pool at the same time, for some seconds
 * each. What is checked: a reader with a lease always sees the right bytes, one without sees them
 * or SIGBUS, and in the end all counts are what they were.
 */
#include "module.h"
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define POOL    (32 * MIB)
#define FRAME   (4 * MIB)
#define FRAMES  ((int)(POOL / FRAME))
#define SECONDS 5

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double end;

/* Runs each function in a process of its own until the time is up; all have to end well. */
static void storm(void (*const *work)(int), int count)
{
	pid_t pids[16];
	int status, bad = 0;

	end = now() + SECONDS;
	for (int i = 0; i < count; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0, "fork");
		if (!pids[i]) {
			srand((unsigned)i + 1);
			work[i](i);
			_exit(0);
		}
	}
	for (int i = 0; i < count; i++) {
		CHECK(waitpid(pids[i], &status, 0) == pids[i], "wait");
		if (status) {
			ktap_note("process %d ended with %#x", i, status);
			bad++;
		}
	}
	EQUAL(bad, 0, "processes that ended badly");
}

/* Every word of a frame of key k is k, so that readers know what is right. */
static void writer(int self)
{
	int fd = pool_open("storm", COMPUTRON_OPEN_WRITE);
	uint8_t *map = must_map(fd, POOL, PROT_READ | PROT_WRITE);
	struct computron_extent extents[8];
	struct computron_ref ref;
	uint32_t count;
	long made = 0;

	(void)self;
	while (now() < end) {
		uint64_t key = 1 + (uint64_t)(rand() % (FRAMES + 3));
		int err =
			frame_alloc(fd, key, FRAME, rand() % 2 ? COMPUTRON_ALLOC_RESERVE : 0, &ref);

		if (err == -EDQUOT || err == -ENOSPC) {
			struct computron_frame_info info;

			if (!frame_lookup(fd, 1 + (uint64_t)(rand() % (FRAMES + 3)), &info)) {
				err = frame_evict(fd, info.ref);
				CHECK(!err || err == -EBUSY || err == -ESTALE, "evict: %d", err);
			}
			continue;
		}
		if (err == -EEXIST)
			continue;
		EQUAL(err, 0, "alloc");
		EQUAL(frame_extents(fd, ref, extents, 8, &count), 0, "extents");
		for (uint32_t i = 0; i < count; i++)
			for (uint64_t at = 0; at < extents[i].bytes; at += 4096)
				*(uint64_t *)(map + extents[i].offset + at) = key;
		if (rand() % 4) {
			EQUAL(frame_seal(fd, ref, 0), 0, "seal");
			made++;
		} else {
			EQUAL(frame_abort(fd, ref), 0, "abort");
		}
	}
	ktap_note("%ld frames were made", made);
}

static void leasing_reader(int self)
{
	int fd = pool_open("storm", 0);
	uint8_t *view = must_map(fd, POOL, PROT_READ);
	struct computron_extent extents[8];
	struct computron_frame_info info;
	uint32_t count;
	long seen = 0;

	(void)self;
	while (now() < end) {
		uint64_t key = 1 + (uint64_t)(rand() % (FRAMES + 3));
		int err;

		if (frame_lookup(fd, key, &info))
			continue;
		err = frame_lease(fd, info.ref);
		if (err == -EBUSY || err == -ESTALE)
			continue;
		EQUAL(err, 0, "lease");
		EQUAL(frame_extents(fd, info.ref, extents, 8, &count), 0,
		      "extents of a leased frame");
		for (uint32_t i = 0; i < count; i++)
			for (uint64_t at = 0; at < extents[i].bytes; at += 4096)
				EQUAL(*(uint64_t *)(view + extents[i].offset + at), key,
				      "a word of a leased frame");
		EQUAL(frame_release(fd, info.ref), 0, "release");
		seen++;
	}
	ktap_note("%ld frames were read under lease", seen);
}

/* Faults all over the pool without any lease: SIGBUS or a key, never zero. */
static void faulting_reader(int self)
{
	int fd = pool_open("storm", 0);
	uint8_t *view = must_map(fd, POOL, PROT_READ);
	long good = 0, bus = 0;

	(void)self;
	while (now() < end) {
		uint8_t *at = view + (uint64_t)rand() % (POOL / 4096) * 4096;
		int got = touch(at);

		if (got == SIGBUS)
			bus++;
		else
			good++;
		CHECK(!got || got == SIGBUS, "signal %d", got);
		if (rand() % 64 == 0)
			madvise(view, POOL, MADV_DONTNEED);
	}
	ktap_note("%ld reads, %ld SIGBUS", good, bus);
}

static void dropper(int self)
{
	(void)self;
	while (now() < end) {
		must_write("/proc/sys/vm/drop_caches", "2");
		usleep(30000);
	}
}

static void opener(int self)
{
	(void)self;
	while (now() < end) {
		int fd = pool_open("storm", rand() % 2 ? COMPUTRON_OPEN_WRITE : 0);
		struct computron_ref ref;
		uint8_t *map;

		CHECK(fd >= 0, "%d", fd);
		map = must_map(fd, POOL, PROT_READ);
		touch(map + (uint64_t)rand() % POOL);
		frame_alloc(fd, 1000 + (uint64_t)rand() % 10, UNIT, 0,
			    &ref); /* lost with the file */
		if (rand() % 2)
			munmap(map, POOL);
		must_survey(fd);
		close(fd);
		munmap(map, POOL);
	}
}

static void watcher(int self)
{
	struct computron_event events[16];
	int fd = pool_open("storm", 0);
	uint64_t last = 0;

	(void)self;
	CHECK(!fcntl(fd, F_SETFL, O_NONBLOCK), "fcntl");
	while (now() < end) {
		ssize_t got = read(fd, events, sizeof(events));

		for (ssize_t i = 0; i < got / (ssize_t)sizeof(*events); i++) {
			if (events[i].type == COMPUTRON_EVENT_OVERFLOW)
				continue;
			CHECK(events[i].seq > last, "event %llu after %llu",
			      (unsigned long long)events[i].seq, (unsigned long long)last);
			last = events[i].seq;
		}
		if (got < 0) {
			CHECK(errno == EAGAIN, "errno %d", errno);
			usleep(1000);
		}
		must_stat(fd);
	}
	ktap_note("%llu events", (unsigned long long)last);
}

static void settle(int fd)
{
	struct computron_pool_stat stat;

	EQUAL(must_stat(fd).loading, 0, "loading");
	EQUAL(must_stat(fd).leased, 0, "leased");
	EQUAL(must_stat(fd).files, 1, "files");
	/* What was busy when it was to be evicted is looked at again after a while. */
	CHECK(EVENTUALLY((must_write("/proc/sys/vm/drop_caches", "2"), !must_stat(fd).used), 20),
	      "%llu bytes stay, %llu of them quarantined", (unsigned long long)must_stat(fd).used,
	      (unsigned long long)must_stat(fd).quarantined);
	stat = must_stat(fd);
	EQUAL(stat.clean, 0, "clean");
	EQUAL(stat.populated, 0, "populated");
	EQUAL(stat.frames, 0, "frames");
	EQUAL(stat.seals, stat.evictions + stat.reclaims, "frames sealed and gone");
	close(fd);
	EQUAL(pool_destroy("storm", 0), 0, "destroy");
}

TEST(evict_against_faults)
{
	static void (*const work[])(int) = {writer, faulting_reader, leasing_reader};
	int fd = must_pool("storm", POOL);

	storm(work, 3);
	CHECK(must_stat(fd).seals > 5, "hardly anything happened");
	settle(fd);
}

TEST(reclaim_against_everything)
{
	static void (*const work[])(int) = {writer,  writer, leasing_reader, faulting_reader,
					    dropper, opener, watcher};
	int fd = must_pool("storm", POOL);

	storm(work, 7);
	settle(fd);
}

/* Files and mappings that end by SIGKILL in the middle of whatever they do. */
static void killer(int self)
{
	static void (*const victims[])(int) = {writer, leasing_reader, faulting_reader, opener};
	int status;

	while (now() < end) {
		pid_t pid = fork();

		if (!pid) {
			srand((unsigned)(self * 1000 + rand()));
			victims[self % 4](self);
			_exit(0);
		}
		usleep((useconds_t)(rand() % 100000));
		kill(pid, SIGKILL);
		CHECK(waitpid(pid, &status, 0) == pid, "wait");
		CHECK(!status || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL),
		      "a victim ended with %#x", status);
	}
}

TEST(killed_in_the_middle)
{
	static void (*const work[])(int) = {killer, killer, killer, killer, watcher};
	int fd = must_pool("storm", POOL);

	storm(work, 5);
	settle(fd);
}

/* Pools that come and go while others list and open them. */
static void creator(int self)
{
	static const char *const names[] = {"storm0", "storm1"};

	while (now() < end) {
		const char *name = names[rand() % 2];
		int fd = pool_create(name, POOL, 0, 0, 0);

		(void)self;
		if (fd == -EEXIST)
			fd = pool_open(name, COMPUTRON_OPEN_WRITE);
		if (fd >= 0) {
			struct computron_ref ref;

			if (!frame_alloc(fd, (uint64_t)rand(), UNIT, 0, &ref))
				frame_seal(fd, ref, 0);
			close(fd);
		}
		pool_destroy(name, rand() % 2 ? COMPUTRON_DESTROY_OPEN : 0);
	}
	pool_destroy("storm0", COMPUTRON_DESTROY_OPEN);
	pool_destroy("storm1", COMPUTRON_DESTROY_OPEN);
}

static void lister(int self)
{
	struct computron_pool_info rows[4];
	char buffer[4096];

	(void)self;
	while (now() < end) {
		struct computron_pool_list list = {.size = sizeof(list),
						   .count = 4,
						   .row_bytes = sizeof(rows[0]),
						   .pools = (uintptr_t)rows};
		int control = must_control(), file;

		EQUAL(call(control, COMPUTRON_IOC_POOL_LIST, &list), 0, "list");
		close(control);
		file = open(rand() % 2 ? "/proc/computron/frames" : "/proc/computron/pools",
			    O_RDONLY);
		while (file >= 0 && read(file, buffer, sizeof(buffer)) > 0)
			;
		if (file >= 0)
			close(file);
		file = open("/sys/class/misc/computron/pools/storm0/used", O_RDONLY);
		if (file >= 0) {
			(void)!read(file, buffer, sizeof(buffer));
			close(file);
		}
	}
}

TEST(pools_come_and_go)
{
	static void (*const work[])(int) = {creator, creator, creator, lister, lister, dropper};

	storm(work, 6);
	EQUAL(pool_count(), 0, "pools");
}

/* A unit in a hot range keeps its page: a fault that was under way when its frame was evicted must
 * not map it afterwards. */
static uint8_t *hot_view;
static atomic_ullong epoch; /* odd: there is no frame */
static atomic_bool over;
static atomic_ulong seen, touched;

static void *touch_hot(void *unused)
{
	while (!atomic_load(&over)) {
		unsigned long long was = atomic_load(&epoch);
		int got = touch(hot_view);

		if (was % 2 && !got && atomic_load(&epoch) == was)
			atomic_fetch_add(&seen, 1);
		if (was % 2)
			continue;
		atomic_fetch_add(&touched, !got);
		madvise(hot_view, 2 * MIB, MADV_DONTNEED);
	}
	return unused;
}

TEST(evict_in_a_hot_range_against_faults)
{
	struct computron_pool_hot hot = {
		.size = sizeof(hot), .flags = COMPUTRON_HOT_ON, .bytes = 2 * MIB};
	int fd = must_pool("hot", 2 * MIB), reader = pool_open("hot", 0);
	struct computron_ref ref;
	pthread_t thread;
	unsigned long rounds = 0;

	EQUAL(call(fd, COMPUTRON_IOC_POOL_HOT, &hot), 0, "hot");
	hot_view = must_map(reader, 2 * MIB, PROT_READ);
	EQUAL(pthread_create(&thread, NULL, touch_hot, NULL), 0, "thread");
	for (end = now() + 2 * SECONDS; now() < end; rounds++) {
		EQUAL(frame_alloc(fd, 1, 2 * MIB, 0, &ref), 0, "alloc");
		EQUAL(frame_seal(fd, ref, 0), 0, "seal");
		usleep((useconds_t)(rand() % 200));
		EQUAL(frame_evict(fd, ref), 0, "evict");
		atomic_fetch_add(&epoch, 1);
		usleep(300);
		atomic_fetch_add(&epoch, 1);
	}
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	ktap_note("%lu frames, %lu reads", rounds, atomic_load(&touched));
	EQUAL(atomic_load(&seen), 0, "reads where there was no frame");
	munmap(hot_view, 2 * MIB);
	close(reader);
	close(fd);
	EQUAL(pool_destroy("hot", 0), 0, "destroy");
}
