// SPDX-License-Identifier: MIT
/* What `computron bench` says of links, and what it sees of a load while it is under way. */
#include "tools/bench.h"
#include "tools/synthetic.h"

#include "bench_fixture.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>

/* ---- arithmetic ------------------------------------------------------------------------- */

/* Four ranks of the given MB on a device; the caller frees. */
static struct ctn_bench_links *links_of(const char *device, const uint64_t *megabytes)
{
	struct ctn_bench_links *links;
	struct ctn_bench_side side;
	struct ctn_bench_rig rig;
	uint64_t bytes[4];

	open_rig(device, 2, 2, &rig);
	side = rig.sides[0];
	side.bytes = bytes;
	for (uint32_t r = 0; r < 4; r++)
		bytes[r] = megabytes[r] * 1000000;
	CU_ASSERT_EQUAL_FATAL(ctn_bench_links(&rig, &side, &links), 0);
	ctn_bench_rig_close(&rig);
	return links;
}

/* Seconds, to the nanosecond. */
static void expect(double found, double wanted)
{
	if (fabs(found - wanted) > 1e-9)
		printf("# expected %.9f, found %.9f\n", wanted, found);
	CU_ASSERT(fabs(found - wanted) <= 1e-9);
}

static void test_links_of_their_own(void)
{
	struct ctn_bench_links *l =
		links_of("host:4,mem=32M,link=200M", (const uint64_t[]){100, 40, 0, 60});

	CU_ASSERT(l->limited);
	expect(l->ceiling_s, 0.5);
	expect(l->end_s[0], 0.5);
	expect(l->end_s[1], 0.2);
	expect(l->end_s[2], 0);
	expect(ctn_bench_links_due(l, 0, 10000000), 0.05);
	expect(ctn_bench_links_due(l, 0, 90000000), 0.45);
	expect(ctn_bench_links_due(l, 3, 60000000), 0.3);
	free(l);
}

static void test_shares_of_an_uplink(void)
{
	/* 150 MB/s for two links of 100 MB/s each: 75 each, until the first has its 30 MB. */
	struct ctn_bench_links *l = links_of("host:4,mem=32M,link=100M,uplink=0-1:150M",
					     (const uint64_t[]){30, 60, 10, 10});

	expect(l->ceiling_s, 0.6); /* 60 MB over a link of 100; 90 over the uplink's 150 */
	expect(l->end_s[0], 0.4);
	expect(l->end_s[1], 0.7); /* 30 left, then alone at 100 */
	expect(l->end_s[2], 0.1);
	expect(ctn_bench_links_due(l, 1, 30000000), 0.4);
	expect(ctn_bench_links_due(l, 1, 40000000), 0.5);
	free(l);
	/* The uplink bounds them all, and there is no link of their own. */
	l = links_of("host:4,mem=32M,uplink=0-3:100M", (const uint64_t[]){10, 20, 20, 30});
	CU_ASSERT(l->limited);
	expect(l->ceiling_s, 0.8);
	expect(l->end_s[0], 0.4); /* quarters of 100 */
	expect(l->end_s[1], 0.7); /* thirds, 10 each to go */
	expect(l->end_s[3], 0.8);
	free(l);
	l = links_of("host:4,mem=32M,uplink=0-2:100M", (const uint64_t[]){10, 20, 20, 30});
	CU_ASSERT(!l->limited);
	expect(l->ceiling_s, 0);
	free(l);
}

/* ---- a load that is watched ------------------------------------------------------------- */

static void test_nothing_is_there_before_its_time(void)
{
	static const struct {
		const char *device;
		uint32_t tp, pp;
	} cases[] = {
		{"host,mem=32M,link=60M", 1, 1},
		{"host:4,mem=32M,link=20M", 2, 2},
		{"host:4,mem=32M,link=20M", 1, 4},
		{"host:4,mem=32M,link=20M,uplink=0-1:30M,2-3:30M", 4, 1},
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_bench_watched watched;
		struct ctn_bench_switch took;
		struct ctn_bench_links *links;
		struct ctn_err err = {0};
		struct ctn_bench_rig rig;
		double last = 0;

		open_rig(cases[i].device, cases[i].tp, cases[i].pp, &rig);
		switch_to(&rig, 1, &took);
		CU_ASSERT_EQUAL(ctn_bench_poison(&rig, &err), 0);
		switch_to(&rig, 0, &took);
		CU_ASSERT_EQUAL(ctn_bench_poison(&rig, &err), 0);
		CU_ASSERT_EQUAL(ctn_bench_watch(&rig, &rig.sides[1], &watched, &err), 0);
		CU_ASSERT_PTR_EQUAL(rig.resident, &rig.sides[1]);
		CU_ASSERT_EQUAL(ctn_bench_verify(&rig, &err), 0);
		/* One each MiB of every rank, 12 MiB or more in all. */
		CU_ASSERT(watched.pieces + watched.missed >= 12);
#ifndef __SANITIZE_THREAD__                    /* too slow to be there in time */
		CU_ASSERT(watched.pieces > 0); /* the rest, where the machine has the time */
#endif
		CU_ASSERT_EQUAL(watched.early, 0);
		CU_ASSERT_EQUAL_FATAL(ctn_bench_links(&rig, &rig.sides[1], &links), 0);
		for (uint32_t r = 0; r < links->count; r++) {
			CU_ASSERT(watched.end_s[r] >=
				  (double)rig.sides[1].bytes[r] / links->own[r]);
			last = fmax(last, watched.end_s[r]);
		}
		CU_ASSERT(last >= links->ceiling_s);
		free(links);
		ctn_bench_rig_close(&rig);
	}
}

/* A device that has the bytes already stands for a link that is too fast. */
static void test_what_is_there_too_early_is_seen(void)
{
	struct ctn_bench_watched watched;
	struct ctn_bench_switch took;
	struct ctn_err err = {0};
	struct ctn_bench_rig rig;

	open_rig("host:2,mem=32M,link=30M", 2, 1, &rig);
	switch_to(&rig, 0, &took);
	/* Dropped, not overwritten: the next load gets the same memory. */
	CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, rig.sides[0].model), 0);
	rig.resident = NULL;
	CU_ASSERT_EQUAL(ctn_bench_watch(&rig, &rig.sides[0], &watched, &err), -EPROTO);
	CU_ASSERT(watched.early > 0);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "before its link"));
	ctn_bench_rig_close(&rig);
}

/* ---- bytes that leave the devices ------------------------------------------------------- */

struct thief {
	struct ctn_bench_rig *rig;
	uint32_t ended;
};

static void steal(void *arg, const struct ctn_bench_side *side, uint64_t since)
{
	struct thief *thief = arg;
	struct ctn_bench_rig *rig = thief->rig;
	void *const *const *pieces = ctn_pager_pieces(rig->pager, side->model, 1);
	uint8_t bytes[7];

	(void)since;
	CU_ASSERT_EQUAL(ctn_stream_download(rig->streams[1], bytes, pieces[0][0], sizeof(bytes)),
			0);
	CU_ASSERT_EQUAL(ctn_stream_sync(rig->streams[1]), 0);
}

static void stolen(void *arg)
{
	struct thief *thief = arg;

	thief->ended++;
}

static void test_a_copy_to_the_host_is_counted(void)
{
	struct ctn_bench_switch took;
	struct ctn_bench_rig rig;
	struct thief thief = {.rig = &rig};
	struct ctn_bench_observer observer = {steal, stolen, &thief};

	open_rig("host:2,mem=32M", 2, 1, &rig);
	switch_to(&rig, 0, &took);
	CU_ASSERT_EQUAL(took.d2h_bytes, 0);
	rig.observer = &observer;
	switch_to(&rig, 1, &took);
	CU_ASSERT_EQUAL(took.d2h_bytes, 7);
	CU_ASSERT_EQUAL(thief.ended, 1);
	switch_to(&rig, 0, &took);
	CU_ASSERT_EQUAL(took.d2h_bytes, 0);
	CU_ASSERT_EQUAL(thief.ended, 1);
	ctn_bench_rig_close(&rig);
}

/* ---- what was published ----------------------------------------------------------------- */

static void test_published_figures_are_those_of_the_file(void)
{
	char path[4200];
	const char *key;
	json_t *root, *rows, *row;
	uint32_t n = 0;

	snprintf(path, sizeof(path), "%s/traces/computron-2023.json", ctn_tests_dir());
	root = json_load_file(path, 0, NULL);
	CU_ASSERT_PTR_NOT_NULL_FATAL(root);
	rows = json_object_get(root, "swap_scaling_seconds_mean");
	json_object_foreach(rows, key, row)
	{
		const struct ctn_bench_published *p;
		uint32_t tp, pp;

		if (strcmp(key, "columns") == 0)
			continue;
		CU_ASSERT_EQUAL_FATAL(sscanf(key, "%u,%u", &tp, &pp), 2);
		p = ctn_bench_published(tp, pp);
		CU_ASSERT_PTR_NOT_NULL_FATAL(p);
		CU_ASSERT_EQUAL(p->offload_s, json_number_value(json_array_get(row, 0)));
		CU_ASSERT_EQUAL(p->load_s, json_number_value(json_array_get(row, 1)));
		n++;
	}
	CU_ASSERT_EQUAL(n, 6);
	CU_ASSERT_PTR_NULL(ctn_bench_published(8, 1));
	json_decref(root);
}

CTN_TESTS("tools_watch", CTN_TEST(test_links_of_their_own), CTN_TEST(test_shares_of_an_uplink),
	  CTN_TEST(test_nothing_is_there_before_its_time),
	  CTN_TEST(test_what_is_there_too_early_is_seen),
	  CTN_TEST(test_a_copy_to_the_host_is_counted),
	  CTN_TEST(test_published_figures_are_those_of_the_file))
