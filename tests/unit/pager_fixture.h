/* SPDX-License-Identifier: MIT */
/*
 * A pager over the real pool, stage and host device, and checkpoints for it. It runs with poison,
 * so every loaded shard is compared with its frames, and in test builds every dispatch checks the
 * ledger.
 */
#ifndef CTN_TEST_PAGER_FIXTURE_H
#define CTN_TEST_PAGER_FIXTURE_H

#include "ckpt_files.h"
#include "machine_fixture.h"
#include "test.h"
#include "pager/pager.h"

#include <poll.h>
#include <pthread.h>

#define MAX_MODELS 8

struct rig {
	struct ctn_pool *pool;
	struct ctn_stage *stage;
	struct ctn_device *devices[CTN_MAX_DEVICES];
	uint32_t device_count;
	struct ctn_pager *pager;
	struct ctn_checkpoint *ckpt[MAX_MODELS];
	struct ctn_plan *plan[MAX_MODELS];
	uint32_t models;
	/* what the events said */
	uint32_t loaded[MAX_MODELS], failed[MAX_MODELS];
	struct ctn_err err;
	uint32_t ahead[MAX_MODELS];
	uint64_t staged, staged_ahead, moved;
	uint32_t host_needs;
	uint32_t shared;
	bool refuse_host;
};

/* Victims in the pool: models in order, the one that asks last. */
static inline void on_event(void *arg, const struct ctn_pager_event *ev)
{
	struct rig *rig = arg;
	uint64_t freed = 0;

	switch (ev->type) {
	case CTN_PAGER_LOADED:
		rig->loaded[ev->model]++;
		rig->staged = ev->bytes_staged;
		rig->moved = ev->bytes_loaded;
		break;
	case CTN_PAGER_FAILED:
		rig->failed[ev->model]++;
		rig->err = *ev->err;
		break;
	case CTN_PAGER_HOST_NEED:
		rig->host_needs++;
		for (uint32_t i = 1; i <= rig->models && freed < ev->bytes && !rig->refuse_host;
		     i++)
			freed += ctn_pager_drop_host(rig->pager, (ev->model + i) % rig->models,
						     ev->bytes - freed);
		break;
	case CTN_PAGER_STAGED:
		rig->ahead[ev->model]++;
		rig->staged_ahead += ev->bytes_staged;
		if (ev->err)
			rig->err = *ev->err;
		break;
	case CTN_PAGER_SHARED:
		rig->shared++;
		break;
	case CTN_PAGER_FRAME_LOST:
		break;
	}
}

/* Over a pool that is the rig's from here on; `stage` without it. */
static inline void rig_open_over(struct rig *rig, const char *device, struct ctn_pool *pool,
				 struct ctn_stage_config stage)
{
	struct ctn_pager_config cfg = {
		.max_models = MAX_MODELS, .poison = true, .event = on_event, .event_arg = rig};
	struct ctn_err err = {0};

	memset(rig, 0, sizeof(*rig));
	rig->pool = pool;
	stage.pool = pool;
	if (ctn_stage_open(&stage, &rig->stage, &err) ||
	    ctn_devices_open(device, rig->devices, &rig->device_count, &err)) {
		fprintf(stderr, "%s\n", err.msg);
		exit(2);
	}
	cfg.pool = rig->pool;
	cfg.stage = rig->stage;
	cfg.devices = rig->devices;
	cfg.device_count = rig->device_count;
	CU_ASSERT_EQUAL_FATAL(ctn_pager_new(&cfg, &rig->pager, &err), 0);
}

static inline void rig_open_with(struct rig *rig, const char *device, const char *provider,
				 uint64_t pool, struct ctn_stage_config stage)
{
	rig_open_over(rig, device, ctn_test_pool(provider, pool, 64 * CTN_MIB, true), stage);
}

static inline void rig_open(struct rig *rig, const char *device, const char *provider,
			    uint64_t pool)
{
	struct ctn_stage_config stage = {.method = -1, .hash = true};

	rig_open_with(rig, device, provider, pool, stage);
}

/* Closes all, after holding that no byte is left anywhere. */
static inline void rig_close(struct rig *rig)
{
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL(ctn_pager_check(rig->pager, &err), 0);
	ctn_pager_free(rig->pager);
	machine_close(rig->devices, rig->device_count, rig->stage, rig->pool);
	for (uint32_t i = 0; i < rig->models; i++) {
		ctn_plan_free(rig->plan[i]);
		ctn_checkpoint_close(rig->ckpt[i]);
	}
}

/* Rank r on device r + first, in turn. */
static inline int rig_add_from(struct rig *rig, const char *dir, uint32_t tp, uint32_t pp,
			       uint32_t first, struct ctn_err *err)
{
	uint32_t devices[16], i = rig->models;
	int rc;

	for (uint32_t r = 0; r < 16; r++)
		devices[r] = (r + first) % rig->device_count;
	CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open(dir, &rig->ckpt[i], err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_plan_build(rig->ckpt[i], tp, pp, &rig->plan[i], err), 0);
	rig->models++;
	rc = ctn_pager_add_model(rig->pager, rig->plan[i], devices, err);
	if (rc >= 0)
		CU_ASSERT_EQUAL(rc, (int)i);
	return rc;
}

static inline int rig_add(struct rig *rig, const char *dir, uint32_t tp, uint32_t pp,
			  struct ctn_err *err)
{
	return rig_add_from(rig, dir, tp, pp, 0, err);
}

/* A checkpoint whose attention and MLP parts are frames of their own. Each call writes another:
 * its frames are of other files. */
static inline const char *write_big(uint32_t layers, uint32_t vocab, unsigned int seed)
{
	const struct gen_model m = {GEN_BIG(layers, vocab), .seed = seed};

	return gen_write(&m);
}

/* The one that most tests share. */
static inline const char *big_model(void)
{
	static char dir[PATH_MAX];

	if (!dir[0])
		snprintf(dir, sizeof(dir), "%s", write_big(3, 1500, 0));
	return dir;
}

static inline const char *sample(const char *name)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/models/%s", ctn_tests_dir(), name);
	return path;
}

/* Dispatches until nothing moves; false if that takes more than 20 s. */
static inline bool settle(struct rig *rig)
{
	uint64_t end = ctn_now_ns() + 20 * CTN_NSEC_PER_SEC;

	while (ctn_pager_active(rig->pager)) {
		struct pollfd pfd = {.fd = ctn_pager_fd(rig->pager), .events = POLLIN};

		if (ctn_now_ns() > end)
			return false;
		if (poll(&pfd, 1, 100) > 0)
			ctn_pager_dispatch(rig->pager);
	}
	return true;
}

static inline void expect_empty_device(struct rig *rig)
{
	for (uint32_t d = 0; d < rig->device_count; d++) {
		struct ctn_device_ledger l;

		ctn_pager_device_ledger(rig->pager, d, &l);
		CU_ASSERT_EQUAL(l.free, l.total);
		CU_ASSERT_EQUAL(l.frames_loading + l.frames_resident + l.frames_draining, 0);
	}
}

/* A thread that waits for a layer of model 0. */
struct waiter {
	struct rig *rig;
	struct ctn_stream *stream;
	uint32_t layer;
	int rc;
	uint64_t ended_ns;
};

static inline void *wait_main(void *arg)
{
	struct waiter *w = arg;

	w->rc = ctn_pager_wait_layer(w->rig->pager, 0, 0, w->layer, w->stream);
	w->ended_ns = ctn_now_ns();
	return NULL;
}

#endif
