// SPDX-License-Identifier: MIT
/* Which units of a module's pool are taken (kmod/units.c), against an array of marks. */
#include "test.h"
#include "kmod/units.h"

int kmod_kernel_allocations = -1;

#define UNITS 200

struct space {
	struct computron_units u;
	bool taken[UNITS];
};

static void open_space(struct space *s, u32 count, u32 segment)
{
	memset(s, 0, sizeof(*s));
	CU_ASSERT_EQUAL_FATAL(computron_units_init(&s->u, count, segment), 0);
}

/* Takes, and marks what was taken; runs must be free, inside and within a segment. */
static u32 take(struct space *s, u32 want, struct computron_run *runs, u32 room)
{
	u32 n = computron_units_take(&s->u, want, runs, room), sum = 0;

	if (n == 0 || n > room)
		return n;
	for (u32 i = 0; i < n; i++) {
		u32 last = runs[i].first + runs[i].count - 1;

		CU_ASSERT_FATAL(runs[i].count > 0 && last < s->u.count);
		if (s->u.segment)
			CU_ASSERT_EQUAL(runs[i].first / s->u.segment, last / s->u.segment);
		for (u32 unit = runs[i].first; unit <= last; unit++) {
			CU_ASSERT_FALSE(s->taken[unit]);
			s->taken[unit] = true;
		}
		sum += runs[i].count;
	}
	CU_ASSERT_EQUAL(sum, want);
	return n;
}

static void give(struct space *s, u32 first, u32 count)
{
	struct computron_run run = {first, count};

	for (u32 unit = first; unit < first + count; unit++) {
		CU_ASSERT_TRUE(s->taken[unit]);
		s->taken[unit] = false;
	}
	computron_units_give(&s->u, &run);
}

static void test_the_shortest_run_that_is_long_enough(void)
{
	struct computron_run run[4];
	struct space s;

	open_space(&s, 100, 0);
	CU_ASSERT_EQUAL(take(&s, 100, run, 4), 1);
	give(&s, 10, 9);
	give(&s, 30, 5);
	give(&s, 50, 6);
	CU_ASSERT_EQUAL(take(&s, 5, run, 4), 1);
	CU_ASSERT_EQUAL(run[0].first, 30);
	CU_ASSERT_EQUAL(take(&s, 3, run, 4), 1);
	CU_ASSERT_EQUAL(run[0].first, 50);
	CU_ASSERT_EQUAL(s.u.free, 12);
	computron_units_fini(&s.u);
}

static void test_long_runs_before_short_ones(void)
{
	struct computron_run run[4];
	struct space s;

	open_space(&s, 100, 0);
	take(&s, 100, run, 4);
	give(&s, 0, 1);
	give(&s, 10, 2);
	give(&s, 20, 40);
	give(&s, 70, 20);
	/* 40 and 20 hold it; the two short ones stay whole. */
	CU_ASSERT_EQUAL(take(&s, 55, run, 4), 2);
	CU_ASSERT_EQUAL(run[0].first, 20);
	CU_ASSERT_EQUAL(run[0].count, 40);
	CU_ASSERT_EQUAL(run[1].first, 70);
	CU_ASSERT_EQUAL(run[1].count, 15);
	computron_units_fini(&s.u);
}

static void test_nothing_is_taken_in_vain(void)
{
	struct computron_run run[8];
	struct space s;

	open_space(&s, 16, 0);
	take(&s, 16, run, 8);
	for (u32 unit = 0; unit < 16; unit += 2)
		give(&s, unit, 1);
	CU_ASSERT_EQUAL(take(&s, 9, run, 8), 0);
	CU_ASSERT_EQUAL(take(&s, 8, run, 7), 8);
	CU_ASSERT_EQUAL(s.u.free, 8);
	CU_ASSERT_EQUAL(take(&s, 8, run, 8), 8);
	CU_ASSERT_EQUAL(s.u.free, 0);
	CU_ASSERT_EQUAL(take(&s, 1, run, 8), 0);
	computron_units_fini(&s.u);
}

static void test_a_run_ends_with_its_segment(void)
{
	struct computron_run run[8];
	struct space s;

	open_space(&s, 70, 32); /* the last one is shorter */
	CU_ASSERT_EQUAL(take(&s, 70, run, 8), 3);
	give(&s, 0, 70);
	CU_ASSERT_EQUAL(take(&s, 33, run, 8), 2);
	computron_units_fini(&s.u);
}

static void test_a_certain_unit(void)
{
	struct computron_run run[8];
	struct space s;

	open_space(&s, 70, 0);
	CU_ASSERT_TRUE(computron_units_take_at(&s.u, 3));
	CU_ASSERT_FALSE(computron_units_take_at(&s.u, 3));
	CU_ASSERT_FALSE(computron_units_take_at(&s.u, 70));
	s.taken[3] = true;
	CU_ASSERT_EQUAL(s.u.free, 69);
	CU_ASSERT_EQUAL(take(&s, 69, run, 8), 2);
	computron_units_fini(&s.u);
}

static void test_any_sequence(void)
{
	struct computron_run runs[UNITS];
	struct space s;

	srandom(7);
	for (u32 round = 0; round < 40; round++) {
		open_space(&s, 1 + (u32)random() % UNITS, round % 3 ? (u32)random() % 40 : 0);
		for (u32 step = 0; step < 400; step++) {
			u32 first = (u32)random() % s.u.count, end = first, free = 0;

			if (random() % 2) {
				u32 want = 1 + (u32)random() % s.u.count, before = s.u.free;
				u32 n = take(&s, want, runs, UNITS);

				CU_ASSERT_EQUAL(n == 0, want > before);
			} else {
				while (end < s.u.count && s.taken[end] && end - first < 9)
					end++;
				if (end > first)
					give(&s, first, end - first);
			}
			for (u32 unit = 0; unit < s.u.count; unit++)
				free += !s.taken[unit];
			CU_ASSERT_EQUAL_FATAL(s.u.free, free);
		}
		computron_units_fini(&s.u);
	}
}

static void test_without_memory(void)
{
	struct computron_units u;

	kmod_kernel_allocations = 0;
	CU_ASSERT_EQUAL(computron_units_init(&u, 10, 0), -ENOMEM);
	kmod_kernel_allocations = -1;
}

CTN_TESTS("kmod-units", CTN_TEST(test_the_shortest_run_that_is_long_enough),
	  CTN_TEST(test_long_runs_before_short_ones), CTN_TEST(test_nothing_is_taken_in_vain),
	  CTN_TEST(test_a_run_ends_with_its_segment), CTN_TEST(test_a_certain_unit),
	  CTN_TEST(test_any_sequence), CTN_TEST(test_without_memory))
