// SPDX-License-Identifier: MIT
/* The fluid model of links behind an uplink, against sums done by hand. Time is an argument. */
#include "test.h"
#include "device/host.h"

#define S CTN_NSEC_PER_SEC

static struct ctn_uplink *uplink;

static void with_links(uint64_t rate, uint32_t count, const uint64_t *own)
{
	uplink = ctn_uplink_new(rate);
	CU_ASSERT_PTR_NOT_NULL_FATAL(uplink);
	for (uint32_t i = 0; i < count; i++)
		CU_ASSERT_EQUAL_FATAL(ctn_uplink_add(uplink, own[i]), i);
}

static void without_links(uint32_t count)
{
	for (uint32_t i = 0; i <= count; i++)
		ctn_uplink_put(uplink);
}

/* When the link has carried `offset` bytes: asks again as often as it is told to. */
static uint64_t deadline(uint32_t link, uint64_t offset, uint64_t now)
{
	uint64_t due;

	while ((due = ctn_uplink_due(uplink, link, offset, now))) {
		CU_ASSERT_FATAL(due > now);
		now = due;
	}
	return now;
}

static void test_one_link_at_its_own_rate(void)
{
	with_links(0, 1, (uint64_t[]){1000});
	ctn_uplink_submit(uplink, 0, 3000, 5 * S);
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 0, 1000, 5 * S), 6 * S);
	/* Asked late, the next deadline is where it was. */
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 0, 1000, 6 * S + S / 2), 0);
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 0, 2000, 6 * S + S / 2), 7 * S);
	/* More work while busy continues; after an idle time it starts anew. */
	ctn_uplink_submit(uplink, 0, 1000, 7 * S);
	CU_ASSERT_EQUAL(deadline(0, 4000, 7 * S), 9 * S);
	ctn_uplink_submit(uplink, 0, 500, 20 * S);
	CU_ASSERT_EQUAL(deadline(0, 4500, 20 * S), 20 * S + S / 2);
	without_links(1);
}

static void test_times_are_rounded_up(void)
{
	with_links(0, 1, (uint64_t[]){3});
	ctn_uplink_submit(uplink, 0, 3, 1);
	/* 1/3 s and 2/3 s are no whole numbers of ns; no error adds up to the third. */
	CU_ASSERT_EQUAL(deadline(0, 1, 1), 1 + 333333334);
	CU_ASSERT_EQUAL(deadline(0, 2, 1), 1 + 666666667);
	CU_ASSERT_EQUAL(deadline(0, 3, 1), 1 + S);
	without_links(1);
}

static void test_no_limit_is_no_wait(void)
{
	with_links(0, 1, (uint64_t[]){0});
	ctn_uplink_submit(uplink, 0, UINT64_MAX, 1);
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 0, UINT64_MAX, 1), 0);
	without_links(1);
}

static void test_a_lone_link_gets_the_smaller_of_its_rate_and_the_uplink(void)
{
	with_links(100, 3, (uint64_t[]){40, 1000, 0});
	ctn_uplink_submit(uplink, 0, 80, 0);
	CU_ASSERT_EQUAL(deadline(0, 80, 0), 2 * S);
	ctn_uplink_submit(uplink, 1, 200, 10 * S);
	CU_ASSERT_EQUAL(deadline(1, 200, 10 * S), 12 * S);
	ctn_uplink_submit(uplink, 2, 200, 20 * S);
	CU_ASSERT_EQUAL(deadline(2, 200, 20 * S), 22 * S);
	without_links(3);
}

static void test_two_links_share_equally_while_both_are_busy(void)
{
	with_links(100, 2, (uint64_t[]){100, 100});
	ctn_uplink_submit(uplink, 0, 100, 0);
	ctn_uplink_submit(uplink, 1, 300, 0);
	/* 50 each until 2 s; then link 1, which has 200 left, has the uplink to itself. */
	CU_ASSERT_EQUAL(deadline(0, 100, 0), 2 * S);
	CU_ASSERT_EQUAL(deadline(1, 300, 0), 4 * S);
	without_links(2);
}

static void test_a_link_that_joins_slows_the_others(void)
{
	with_links(100, 2, (uint64_t[]){100, 100});
	ctn_uplink_submit(uplink, 0, 200, 0);
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 0, 200, 0), 2 * S);
	ctn_uplink_submit(uplink, 1, 50, 1 * S);
	/* 100 left at 1 s; 50 of it by 2 s, when link 1 ends; the rest by 2.5 s. */
	CU_ASSERT_EQUAL(deadline(1, 50, 1 * S), 2 * S);
	CU_ASSERT_EQUAL(deadline(0, 200, 2 * S), 2 * S + S / 2);
	without_links(2);
}

static void test_what_a_slow_link_leaves_goes_to_the_others(void)
{
	/* Max-min: 10 for the first, (100 - 10 - 30) = 60 for the last. */
	with_links(100, 3, (uint64_t[]){10, 30, 200});
	ctn_uplink_submit(uplink, 0, 100, 0);
	ctn_uplink_submit(uplink, 1, 300, 0);
	ctn_uplink_submit(uplink, 2, 600, 0);
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 0, 10, 0), 1 * S);
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 1, 30, 0), 1 * S);
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 2, 60, 0), 1 * S);
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 2, 600, 0), 10 * S);
	without_links(3);
}

static void test_when_nobody_asks_time_still_passes(void)
{
	with_links(100, 2, (uint64_t[]){100, 100});
	ctn_uplink_submit(uplink, 0, 100, 0);
	ctn_uplink_submit(uplink, 1, 300, 0);
	/* Asked first at 3 s: by 2 s each has carried 100, and since then link 1 is alone. */
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 1, 200, 3 * S), 0);
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 1, 300, 3 * S), 4 * S);
	without_links(2);

	with_links(100, 2, (uint64_t[]){100, 100});
	ctn_uplink_submit(uplink, 0, 100, 0);
	ctn_uplink_submit(uplink, 1, 300, 0);
	/* Both ended long ago, so the next one is alone. */
	ctn_uplink_submit(uplink, 0, 100, 50 * S);
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 1, 300, 50 * S), 0);
	CU_ASSERT_EQUAL(ctn_uplink_due(uplink, 0, 200, 50 * S), 51 * S);
	without_links(2);
}

CTN_TESTS("device_uplink", CTN_TEST(test_one_link_at_its_own_rate),
	  CTN_TEST(test_times_are_rounded_up), CTN_TEST(test_no_limit_is_no_wait),
	  CTN_TEST(test_a_lone_link_gets_the_smaller_of_its_rate_and_the_uplink),
	  CTN_TEST(test_two_links_share_equally_while_both_are_busy),
	  CTN_TEST(test_a_link_that_joins_slows_the_others),
	  CTN_TEST(test_what_a_slow_link_leaves_goes_to_the_others),
	  CTN_TEST(test_when_nobody_asks_time_still_passes))
