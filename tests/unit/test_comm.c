// SPDX-License-Identifier: MIT
/* Collectives between threads: values by arithmetic, order of sums, failures, no waiting. */
#include "test.h"
#include "comm/comm.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#define MAX_RANKS  4
#define MAX_FLOATS 1000u
#define ROUNDS     300

/* One rank's thread: its device, stream and memory on it. */
struct rank {
	struct ctn_comm *comm;
	struct ctn_device *dev;
	struct ctn_stream *stream;
	float *x, *out; /* device, MAX_FLOATS and MAX_RANKS * MAX_FLOATS */
	uint32_t index, size;
	int rc;
	uint32_t bad; /* values that were wrong */
};

struct world {
	struct ctn_device *devices[CTN_MAX_DEVICES];
	struct ctn_comm_group *group;
	struct rank ranks[MAX_RANKS];
	uint32_t size;
	uint64_t bytes; /* of x and out together */
};

static void world_new(struct world *w, uint32_t size)
{
	struct ctn_comm *comms[MAX_RANKS];
	struct ctn_err err = {0};
	char spec[64];
	uint32_t count;

	memset(w, 0, sizeof(*w));
	w->size = size;
	snprintf(spec, sizeof(spec), "host:%u,mem=16M", size);
	CU_ASSERT_EQUAL_FATAL(ctn_devices_open(spec, w->devices, &count, &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_comm_local_new(size, MAX_FLOATS, comms, &w->group), 0);
	w->bytes = ctn_align_up((MAX_RANKS + 1) * MAX_FLOATS * sizeof(float),
				ctn_device_props(w->devices[0])->granule);
	for (uint32_t r = 0; r < size; r++) {
		struct rank *rank = &w->ranks[r];

		*rank = (struct rank){
			.comm = comms[r], .dev = w->devices[r], .index = r, .size = size};
		CU_ASSERT_EQUAL_FATAL(ctn_stream_new(rank->dev, &rank->stream), 0);
		CU_ASSERT_EQUAL_FATAL(ctn_device_reserve(rank->dev, w->bytes, (void **)&rank->x),
				      0);
		CU_ASSERT_EQUAL_FATAL(ctn_device_map(rank->dev, rank->x, w->bytes), 0);
		rank->out = rank->x + MAX_FLOATS;
	}
}

static void world_free(struct world *w)
{
	for (uint32_t r = 0; r < w->size; r++) {
		struct rank *rank = &w->ranks[r];

		ctn_stream_free(rank->stream);
		ctn_device_unmap(rank->dev, rank->x, w->bytes, false);
		ctn_device_unreserve(rank->dev, rank->x, w->bytes);
	}
	ctn_comm_group_free(w->group);
	ctn_devices_close(w->devices, w->size);
}

/* Runs fn on a thread a rank, then adds up what was wrong. */
static uint32_t run(struct world *w, void *(*fn)(void *))
{
	pthread_t threads[MAX_RANKS];
	uint32_t bad = 0;

	for (uint32_t r = 0; r < w->size; r++) {
		w->ranks[r].bad = 0;
		w->ranks[r].rc = 0;
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[r], NULL, fn, &w->ranks[r]), 0);
	}
	for (uint32_t r = 0; r < w->size; r++) {
		pthread_join(threads[r], NULL);
		bad += w->ranks[r].bad;
	}
	return bad;
}

/* x[i] = value of this rank; whole numbers, so that every sum is exact. */
static void put(struct rank *rank, float value, uint32_t n)
{
	float host[MAX_FLOATS];

	for (uint32_t i = 0; i < n; i++)
		host[i] = value + (float)i;
	rank->bad += ctn_stream_upload(rank->stream, rank->x, host, n * sizeof(float)) != 0;
}

static void get(struct rank *rank, float *host, const float *from, uint32_t n)
{
	rank->bad += ctn_stream_download(rank->stream, host, from, n * sizeof(float)) != 0;
	rank->bad += ctn_stream_sync(rank->stream) != 0;
}

/* A mix of collectives of changing sizes and roots, back to back. */
static void *mixed_collectives(void *arg)
{
	struct rank *rank = arg;
	float host[MAX_RANKS * MAX_FLOATS];

	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t n = 1 + round * 37 % MAX_FLOATS, root = round % rank->size;

		put(rank, (float)(rank->index * 1000 + round), n);
		rank->bad += ctn_comm_all_reduce(rank->comm, rank->stream, rank->x, n) != 0;
		get(rank, host, rank->x, n);
		for (uint32_t i = 0; i < n; i++)
			rank->bad += host[i] != (float)(rank->size * (rank->size - 1) / 2 * 1000 +
							rank->size * (round + i));

		put(rank, (float)(rank->index * 1000 + round), n);
		rank->bad +=
			ctn_comm_all_gather(rank->comm, rank->stream, rank->out, rank->x, n) != 0;
		get(rank, host, rank->out, n * rank->size);
		for (uint32_t i = 0; i < n * rank->size; i++)
			rank->bad += host[i] != (float)(i / n * 1000 + round + i % n);

		put(rank, (float)(rank->index * 1000 + round), n);
		rank->bad += ctn_comm_broadcast(rank->comm, rank->stream, rank->x, n, root) != 0;
		get(rank, host, rank->x, n);
		for (uint32_t i = 0; i < n; i++)
			rank->bad += host[i] != (float)(root * 1000 + round + i);
	}
	return NULL;
}

static void test_collectives(void)
{
	for (uint32_t size = 1; size <= MAX_RANKS; size++) {
		struct world w;

		world_new(&w, size);
		for (uint32_t r = 0; r < size; r++) {
			CU_ASSERT_EQUAL(ctn_comm_rank(w.ranks[r].comm), r);
			CU_ASSERT_EQUAL(ctn_comm_size(w.ranks[r].comm), size);
		}
		CU_ASSERT_EQUAL(run(&w, mixed_collectives), 0);
		world_free(&w);
	}
}

/* In float, (1e8 + 1) - 1e8 is 0, and 1e8 - 1e8 + 1 is 1: the order of a sum shows. */
static void *sum_that_rounds(void *arg)
{
	static const float values[3] = {1e8f, 1, -1e8f};
	struct rank *rank = arg;
	float sum;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		/* Ranks come in changing order. */
		if (round % rank->size == rank->index)
			sched_yield();
		rank->bad += ctn_stream_upload(rank->stream, rank->x, &values[rank->index],
					       sizeof(float)) != 0;
		rank->bad += ctn_comm_all_reduce(rank->comm, rank->stream, rank->x, 1) != 0;
		get(rank, &sum, rank->x, 1);
		rank->bad += sum != 0;
	}
	return NULL;
}

static void test_sums_are_taken_in_rank_order(void)
{
	struct world w;

	world_new(&w, 3);
	CU_ASSERT_EQUAL(run(&w, sum_that_rounds), 0);
	world_free(&w);
}

/* A pipeline: rank r adds 1 to what comes from r - 1 and hands it on. */
static void *pipeline(void *arg)
{
	struct rank *rank = arg;
	float host[MAX_FLOATS];

	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t n = 1 + round * 53 % MAX_FLOATS;

		if (rank->index == 0)
			put(rank, (float)round, n);
		else
			rank->bad += ctn_comm_recv(rank->comm, rank->stream, rank->x, n,
						   rank->index - 1) != 0;
		get(rank, host, rank->x, n);
		for (uint32_t i = 0; i < n; i++) {
			rank->bad += host[i] != (float)(round + i + rank->index);
			host[i] += 1;
		}
		rank->bad += ctn_stream_upload(rank->stream, rank->x, host, n * sizeof(float)) != 0;
		if (rank->index + 1 < rank->size)
			rank->bad += ctn_comm_send(rank->comm, rank->stream, rank->x, n,
						   rank->index + 1) != 0;
	}
	return NULL;
}

/* All ranks send to rank 0, which takes them in another order than they come. */
static void *fan_in(void *arg)
{
	struct rank *rank = arg;
	float host[3];

	for (uint32_t round = 0; round < ROUNDS; round++) {
		if (rank->index > 0) {
			put(rank, (float)(rank->index * 1000 + round), 3);
			rank->bad += ctn_comm_send(rank->comm, rank->stream, rank->x, 3, 0) != 0;
			continue;
		}
		for (uint32_t from = rank->size - 1; from > 0; from--) {
			rank->bad += ctn_comm_recv(rank->comm, rank->stream, rank->x, 3, from) != 0;
			get(rank, host, rank->x, 3);
			rank->bad += host[2] != (float)(from * 1000 + round + 2);
		}
	}
	return NULL;
}

static void test_send_and_recv(void)
{
	struct world w;

	world_new(&w, 4);
	CU_ASSERT_EQUAL(run(&w, pipeline), 0);
	CU_ASSERT_EQUAL(run(&w, fan_in), 0);
	world_free(&w);
}

/* Rank 0 fails; the others wait in three kinds of calls. */
static struct ctn_comm_group *group_to_abort;

static void *wait_for_rank_0(void *arg)
{
	struct rank *rank = arg;

	if (rank->index == 0)
		ctn_comm_abort(group_to_abort, -EIO);
	else if (rank->index == 1)
		rank->rc = ctn_comm_all_reduce(rank->comm, rank->stream, rank->x, 5);
	else if (rank->index == 2)
		rank->rc = ctn_comm_recv(rank->comm, rank->stream, rank->x, 5, 0);
	else
		for (uint32_t i = 0; i < 2 && !rank->rc; i++) /* the second finds the box full */
			rank->rc = ctn_comm_send(rank->comm, rank->stream, rank->x, 5, 0);
	return NULL;
}

static void test_an_abort_wakes_everyone_and_a_reset_ends_it(void)
{
	struct world w;

	world_new(&w, 4);
	group_to_abort = w.group;
	for (uint32_t round = 0; round < 20; round++) {
		for (uint32_t r = 0; r < 4; r++)
			put(&w.ranks[r], 0, 5);
		run(&w, wait_for_rank_0);
		for (uint32_t r = 1; r < 4; r++)
			CU_ASSERT_EQUAL(w.ranks[r].rc, -EIO);
		/* later calls too, and the first code stays */
		ctn_comm_abort(w.group, -ENOMEM);
		CU_ASSERT_EQUAL(
			ctn_comm_broadcast(w.ranks[0].comm, w.ranks[0].stream, w.ranks[0].x, 5, 0),
			-EIO);
		CU_ASSERT_EQUAL(
			ctn_comm_send(w.ranks[0].comm, w.ranks[0].stream, w.ranks[0].x, 5, 1),
			-EIO);
		ctn_comm_reset(w.group);
		CU_ASSERT_EQUAL(run(&w, mixed_collectives), 0);
	}
	CU_ASSERT_EQUAL(run(&w, pipeline), 0);
	world_free(&w);
}

/* Ranks that call different things, or sizes, must not get each other's bytes. */
static void *different_sizes(void *arg)
{
	struct rank *rank = arg;

	rank->rc = ctn_comm_all_reduce(rank->comm, rank->stream, rank->x, 5 + rank->index);
	return NULL;
}

static void *different_calls(void *arg)
{
	struct rank *rank = arg;

	if (rank->index == 0)
		rank->rc = ctn_comm_all_reduce(rank->comm, rank->stream, rank->x, 5);
	else
		rank->rc = ctn_comm_broadcast(rank->comm, rank->stream, rank->x, 5, 0);
	return NULL;
}

static void *different_lengths_of_a_pair(void *arg)
{
	struct rank *rank = arg;

	if (rank->index == 0)
		ctn_comm_send(rank->comm, rank->stream, rank->x, 5, 1);
	else
		rank->rc = ctn_comm_recv(rank->comm, rank->stream, rank->x, 6, 0);
	return NULL;
}

static void test_ranks_that_disagree_are_told(void)
{
	struct world w;

	world_new(&w, 2);
	put(&w.ranks[0], 0, 10);
	put(&w.ranks[1], 0, 10);
	run(&w, different_sizes);
	CU_ASSERT(w.ranks[0].rc == -EPROTO && w.ranks[1].rc == -EPROTO);
	ctn_comm_reset(w.group);
	run(&w, different_calls);
	CU_ASSERT(w.ranks[0].rc == -EPROTO && w.ranks[1].rc == -EPROTO);
	ctn_comm_reset(w.group);
	run(&w, different_lengths_of_a_pair);
	CU_ASSERT_EQUAL(w.ranks[1].rc, -EPROTO);
	world_free(&w);
}

static void test_sizes_and_ranks_are_checked(void)
{
	struct world w;
	struct rank *rank = &w.ranks[0];

	world_new(&w, 2);
	CU_ASSERT_EQUAL(ctn_comm_all_reduce(rank->comm, rank->stream, rank->x, MAX_FLOATS + 1),
			-EINVAL);
	CU_ASSERT_EQUAL(ctn_comm_send(rank->comm, rank->stream, rank->x, 1, 2), -EINVAL);
	CU_ASSERT_EQUAL(ctn_comm_send(rank->comm, rank->stream, rank->x, 1, 0), -EINVAL);
	CU_ASSERT_EQUAL(ctn_comm_recv(rank->comm, rank->stream, rank->x, MAX_FLOATS + 1, 1),
			-EINVAL);
	CU_ASSERT_EQUAL(ctn_comm_broadcast(rank->comm, rank->stream, rank->x, 1, 2), -EINVAL);
	world_free(&w);
}

/* A waiting rank sleeps: it uses no processor time to speak of. */
static uint64_t waited_cpu_ns;

static void *wait_for_a_late_rank(void *arg)
{
	struct rank *rank = arg;
	struct timespec late = {0, 200 * 1000 * 1000}, ts;

	if (rank->index == 0)
		nanosleep(&late, NULL);
	rank->rc = ctn_comm_all_reduce(rank->comm, rank->stream, rank->x, 5);
	if (rank->index == 1) {
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
		waited_cpu_ns = (uint64_t)ts.tv_sec * CTN_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
	}
	return NULL;
}

static void test_a_waiting_rank_does_not_spin(void)
{
	struct world w;

	world_new(&w, 2);
	put(&w.ranks[0], 0, 5);
	put(&w.ranks[1], 0, 5);
	run(&w, wait_for_a_late_rank);
	CU_ASSERT(w.ranks[0].rc == 0 && w.ranks[1].rc == 0);
	CU_ASSERT(waited_cpu_ns < 50 * 1000 * 1000);
	world_free(&w);
}

CTN_TESTS("comm", CTN_TEST(test_collectives), CTN_TEST(test_sums_are_taken_in_rank_order),
	  CTN_TEST(test_send_and_recv), CTN_TEST(test_an_abort_wakes_everyone_and_a_reset_ends_it),
	  CTN_TEST(test_ranks_that_disagree_are_told), CTN_TEST(test_sizes_and_ranks_are_checked),
	  CTN_TEST(test_a_waiting_rank_does_not_spin))
