// SPDX-License-Identifier: MIT
/*
 * Committing memory. Zeroing pages is what it costs, so a large piece is shared between
 * threads; small ones are not worth the threads.
 *
 * The kernel holds the lock of the process's address space for the whole of one call, and
 * everybody's mmap and mprotect wait for that: calls are short.
 */
#include "pool/memory.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define SLICE       (32 * CTN_MIB) /* the least that a thread is started for */
#define MAX_THREADS 16
#define ONE_CALL    (2 * CTN_MIB)

struct slice {
	uint8_t *addr;
	uint64_t bytes;
	pthread_t thread;
	int rc;
};

/* Before Linux 5.14 there is only touching, and no error: the kernel kills when it runs out.
 * A locked "or" of nothing, because others may be writing there. */
static void touch(uint8_t *addr, uint64_t bytes)
{
	long page = sysconf(_SC_PAGESIZE);

	for (uint64_t i = 0; i < bytes; i += (uint64_t)page)
		__atomic_fetch_or(addr + i, 0, __ATOMIC_RELAXED);
}

static int populate_piece(uint8_t *addr, uint64_t bytes)
{
	int rc;

	do {
		rc = madvise(addr, bytes, MADV_POPULATE_WRITE) ? -errno : 0;
	} while (rc == -EINTR || rc == -EAGAIN);
	if (rc == -EINVAL) {
		touch(addr, bytes);
		return 0;
	}
	/* -EFAULT and -EHWPOISON are memory that could not be had, too. */
	return rc ? -ENOMEM : 0;
}

static void *populate_slice(void *arg)
{
	struct slice *s = arg;

	s->rc = 0;
	for (uint64_t at = 0; s->rc == 0 && at < s->bytes; at += ONE_CALL)
		s->rc = populate_piece(s->addr + at, CTN_MIN(ONE_CALL, s->bytes - at));
	return NULL;
}

int ctn_populate(uint8_t *addr, uint64_t bytes)
{
	struct slice slices[MAX_THREADS];
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t n = CTN_MIN(bytes / SLICE, (uint64_t)CTN_MIN(cpus, MAX_THREADS));
	uint64_t step, begun = 1;
	int rc;

	n = CTN_MAX(n, (uint64_t)1);
	step = ctn_align_up(bytes / n, 2 * CTN_MIB);
	for (uint64_t i = 0; i < n; i++) {
		slices[i].addr = addr + CTN_MIN(i * step, bytes);
		slices[i].bytes = i + 1 == n ? bytes - CTN_MIN(i * step, bytes)
					     : CTN_MIN(step, bytes - CTN_MIN(i * step, bytes));
		slices[i].rc = 0;
	}
	while (begun < n &&
	       pthread_create(&slices[begun].thread, NULL, populate_slice, &slices[begun]) == 0)
		begun++;
	populate_slice(&slices[0]);
	/* What no thread could be had for. */
	for (uint64_t i = begun; i < n; i++)
		populate_slice(&slices[i]);
	rc = slices[0].rc;
	for (uint64_t i = 1; i < n; i++) {
		if (i < begun)
			pthread_join(slices[i].thread, NULL);
		if (rc == 0)
			rc = slices[i].rc;
	}
	return rc;
}
