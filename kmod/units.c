// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The units of a pool: a bitmap, searched for the runs that fit best.
 */
#include "units.h"

/**
 * computron_units_init() - all units free
 * @u: to be filled
 * @count: how many, not 0
 * @segment: units between borders, or 0
 *
 * Return: 0 or -ENOMEM.
 */
int computron_units_init(struct computron_units *u, u32 count, u32 segment)
{
	u->used = kvcalloc(BITS_TO_LONGS(count), sizeof(long), GFP_KERNEL_ACCOUNT);
	if (!u->used)
		return -ENOMEM;
	u->count = count;
	u->segment = segment;
	u->free = count;
	return 0;
}

/**
 * computron_units_fini() - frees what init allocated
 * @u: filled by init, or all zero
 */
void computron_units_fini(struct computron_units *u)
{
	kvfree(u->used);
	u->used = NULL;
}

/* The first maximal free run at or after @from, cut at segment borders. */
static bool next_run(const struct computron_units *u, u32 from, struct computron_run *run)
{
	unsigned long start, end;

	if (from >= u->count)
		return false;
	start = find_next_zero_bit(u->used, u->count, from);
	if (start >= u->count)
		return false;
	end = find_next_bit(u->used, u->count, start);
	if (u->segment)
		end = min_t(unsigned long, end,
			    rounddown((u32)start, u->segment) + (u64)u->segment);
	run->first = start;
	run->count = end - start;
	return true;
}

static void take(struct computron_units *u, u32 first, u32 count)
{
	bitmap_set(u->used, first, count);
	u->free -= count;
}

/* The shortest run of at least @want units. */
static bool best_run(const struct computron_units *u, u32 want, struct computron_run *best)
{
	struct computron_run run;
	u32 from;

	best->count = 0;
	for (from = 0; next_run(u, from, &run); from = run.first + run.count) {
		if (run.count < want || (best->count && run.count >= best->count))
			continue;
		*best = run;
		if (run.count == want)
			break;
	}
	return best->count != 0;
}

/**
 * computron_units_take() - takes units, in few runs
 * @u: the units
 * @want: how many, not 0
 * @runs: where they are
 * @room: in @runs, not 0
 *
 * All from the shortest run that has as many; else from long runs first, halving what counts as
 * long, so that the cost is a few passes over the bitmap however scattered the free units are.
 *
 * Return: how many runs it became; @room + 1 when that is not enough and 0 when units are lacking:
 * then nothing was taken.
 */
u32 computron_units_take(struct computron_units *u, u32 want, struct computron_run *runs, u32 room)
{
	u32 n = 0, from, least;
	struct computron_run run;

	if (!want || want > u->free)
		return 0;
	if (best_run(u, want, &run)) {
		runs[0].first = run.first;
		runs[0].count = want;
		take(u, run.first, want);
		return 1;
	}
	for (least = want; want; least = max(least / 2, 1U)) {
		for (from = 0; want && next_run(u, from, &run); from = run.first + run.count) {
			if (run.count < min(least, want))
				continue;
			if (n == room)
				goto err_give;
			run.count = min(run.count, want);
			take(u, run.first, run.count);
			want -= run.count;
			runs[n++] = run;
		}
	}
	return n;

err_give:
	while (n)
		computron_units_give(u, &runs[--n]);
	return room + 1;
}

/**
 * computron_units_take_at() - takes one certain unit
 * @u: the units
 * @first: its number
 *
 * Return: whether it was free.
 */
bool computron_units_take_at(struct computron_units *u, u32 first)
{
	if (first >= u->count || test_bit(first, u->used))
		return false;
	take(u, first, 1);
	return true;
}

/**
 * computron_units_give() - gives back what was taken
 * @u: the units
 * @run: a run that take returned
 */
void computron_units_give(struct computron_units *u, const struct computron_run *run)
{
	bitmap_clear(u->used, run->first, run->count);
	u->free += run->count;
}
