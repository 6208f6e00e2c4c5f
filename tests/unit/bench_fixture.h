/* SPDX-License-Identifier: MIT */
/* Two small models on a rig, for the tests of the benchmarks. Include tools/bench.h and
 * tools/synthetic.h before. */
#ifndef CTN_TEST_BENCH_FIXTURE_H
#define CTN_TEST_BENCH_FIXTURE_H

#include "test.h"

#ifndef MODEL_BYTES
#define MODEL_BYTES (12 << 20)
#endif

/* The same two models, whatever the test. The folders lie in a cache of this program. */
static inline const char *model(unsigned int i)
{
	static char *dirs[CTN_BENCH_MODELS];
	struct ctn_synthetic s = {.family = "opt", .bytes = MODEL_BYTES, .seed = i};
	struct ctn_err err = {0};

	setenv("XDG_CACHE_HOME", ctn_test_tmpdir(), 1);
	if (!dirs[i] && ctn_synthetic_get(&s, &dirs[i], &err)) {
		fprintf(stderr, "%s\n", err.msg);
		exit(2);
	}
	return dirs[i];
}

static inline struct ctn_bench_rig_config config(const char *device, uint32_t tp, uint32_t pp)
{
	return (struct ctn_bench_rig_config){.device = device,
					     .pool = "plain",
					     .dirs = {model(0), model(1)},
					     .tp = tp,
					     .pp = pp,
					     .single = true};
}

static inline void open_rig(const char *device, uint32_t tp, uint32_t pp, struct ctn_bench_rig *rig)
{
	struct ctn_bench_rig_config cfg = config(device, tp, pp);
	struct ctn_err err = {0};

	if (ctn_bench_rig_open(&cfg, rig, &err)) {
		fprintf(stderr, "%s\n", err.msg);
		exit(2);
	}
}

static inline void switch_to(struct ctn_bench_rig *rig, uint32_t side,
			     struct ctn_bench_switch *took)
{
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(ctn_bench_rig_switch(rig, &rig->sides[side], took, &err), 0);
	CU_ASSERT_PTR_EQUAL(rig->resident, &rig->sides[side]);
}

#endif
