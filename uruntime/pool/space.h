/* SPDX-License-Identifier: MIT */
/*
 * Private to pool/: which units (of CTN_EXTENT_ALIGN bytes) of the segments are free. Free
 * units form maximal runs that do not cross segment borders. Giving back never allocates and
 * never fails. The caller serialises all calls.
 */
#ifndef CTN_POOL_SPACE_H
#define CTN_POOL_SPACE_H

#include <stdbool.h>
#include <stdint.h>

struct ctn_space_unit {
	uint32_t run;        /* length of a free run, at its first and its last unit; else 0 */
	uint32_t prev, next; /* the list of runs, at their first units */
};

struct ctn_space {
	struct ctn_space_unit *units;
	uint32_t count;
	uint32_t segment_units; /* the last segment may be shorter */
	uint32_t free;
	uint32_t head;
};

/* All units free. -ENOMEM. */
int ctn_space_init(struct ctn_space *space, uint32_t units, uint32_t segment_units);
void ctn_space_fini(struct ctn_space *space);

/* Takes consecutive units: `want` of them from the smallest run that has as many, else the
 * whole of the longest run. False when nothing is free. */
bool ctn_space_take(struct ctn_space *space, uint32_t want, uint32_t *first, uint32_t *got);
/* Gives back what take gave. */
void ctn_space_give(struct ctn_space *space, uint32_t first, uint32_t count);

/* Adds 1 to marks[u] for every free unit u, by a walk over the runs. Returns how many. */
uint32_t ctn_space_mark(const struct ctn_space *space, uint8_t *marks);

#endif
