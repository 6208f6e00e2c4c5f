/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Which units of a pool are taken. The caller serialises all calls.
 */
#ifndef COMPUTRON_UNITS_H
#define COMPUTRON_UNITS_H

#include "pure.h"

/**
 * struct computron_run - consecutive units
 * @first: number of the first
 * @count: how many, not 0
 */
struct computron_run {
	u32 first;
	u32 count;
};

/**
 * struct computron_units - the units of a pool
 * @used: a bit for each
 * @count: how many there are
 * @segment: runs that are taken do not cross a multiple of this; 0: no such borders
 * @free: how many are not taken
 */
struct computron_units {
	unsigned long *used;
	u32 count;
	u32 segment;
	u32 free;
};

int computron_units_init(struct computron_units *u, u32 count, u32 segment);
void computron_units_fini(struct computron_units *u);
u32 computron_units_take(struct computron_units *u, u32 want, struct computron_run *runs, u32 room);
bool computron_units_take_at(struct computron_units *u, u32 first);
void computron_units_give(struct computron_units *u, const struct computron_run *run);

#endif
