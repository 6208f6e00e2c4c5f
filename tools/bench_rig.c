// SPDX-License-Identifier: MIT
/* Opens what the daemon is made of around two models, and closes it. */
#include "bench.h"
#include "inspect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- pool ------------------------------------------------------------------------------- */

/* What the frames of both models charge. */
static uint64_t frames_bytes(const struct ctn_bench_rig *rig)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < CTN_BENCH_MODELS; i++) {
		const struct ctn_plan *plan = rig->sides[i].plan;

		for (uint32_t k = 0; k < plan->part_count; k++)
			sum += ctn_align_up(plan->parts[k].frame_bytes, CTN_EXTENT_ALIGN);
	}
	return sum;
}

static int open_pool(struct ctn_bench_rig *rig, const char *spec, struct ctn_err *err)
{
	struct ctn_pool_config cfg = {.node = -1, .hot_bytes = UINT64_MAX, .temporary = true};
	uint64_t need = frames_bytes(rig);
	struct ctn_opts opts = {0};
	struct ctn_pool_stats stats;
	int rc;

	cfg.bytes = need;
	rc = spec ? ctn_pool_parse_spec(spec, &opts, &cfg, err) : 0;
	if (rc)
		ctn_err_prefix(err, "--pool");
	else
		rc = ctn_pool_open(&cfg, &rig->pool, err);
	ctn_opts_free(&opts);
	if (rc)
		return rc;
	ctn_pool_get_stats(rig->pool, false, &stats);
	if (stats.total_bytes < need) {
		char a[32], b[32];

		return ctn_err_set(err, -ENOSPC,
				   "--pool: expected at least %s (%llu bytes), which the frames of "
				   "both models take, found %s",
				   ctn_format_size(need, a), (unsigned long long)need,
				   ctn_format_size(stats.total_bytes, b));
	}
	return 0;
}

/* ---- models ----------------------------------------------------------------------------- */

static uint64_t rank_payload(const struct ctn_rank_plan *rank)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < rank->layer_count; i++)
		sum += ctn_inspect_payload(&rank->shards[i]);
	return sum;
}

static int build_side(struct ctn_bench_rig *rig, uint32_t model, uint32_t tp, uint32_t pp,
		      struct ctn_err *err)
{
	struct ctn_bench_side *side = &rig->sides[rig->side_count++];
	int rc;

	side->dir = rig->ckpts[model]->dir;
	rc = ctn_plan_build(rig->ckpts[model], tp, pp, &side->plan, err);
	if (rc)
		return rc;
	side->bytes = calloc(side->plan->rank_count, sizeof(*side->bytes));
	side->digests = calloc(side->plan->rank_count, sizeof(*side->digests));
	if (!side->bytes || !side->digests)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t r = 0; r < side->plan->rank_count; r++)
		side->bytes[r] = rank_payload(&side->plan->ranks[r]);
	return 0;
}

/* Rounds are compared with each other, so both directions have to move the same bytes. */
static int check_equal(const struct ctn_bench_rig *rig, struct ctn_err *err)
{
	const struct ctn_bench_side *a = &rig->sides[0], *b = &rig->sides[1];

	for (uint32_t r = 0; r < a->plan->rank_count; r++) {
		if (a->bytes[r] != b->bytes[r])
			return ctn_err_set(err, -EINVAL,
					   "%s and %s: expected two models of equal bytes, found "
					   "%llu and %llu on rank %u",
					   a->dir, b->dir, (unsigned long long)a->bytes[r],
					   (unsigned long long)b->bytes[r], r);
	}
	return 0;
}

static int open_models(struct ctn_bench_rig *rig, const struct ctn_bench_rig_config *cfg,
		       struct ctn_err *err)
{
	int rc;

	for (uint32_t i = 0; i < CTN_BENCH_MODELS; i++) {
		rc = ctn_checkpoint_open(cfg->dirs[i], &rig->ckpts[i], err);
		if (rc)
			return rc;
		rc = build_side(rig, i, cfg->tp, cfg->pp, err);
		if (rc)
			return rc;
	}
	for (uint32_t i = 0; i < CTN_BENCH_MODELS && cfg->single && cfg->tp * cfg->pp > 1; i++) {
		rc = build_side(rig, i, 1, 1, err);
		if (rc)
			return rc;
	}
	return check_equal(rig, err);
}

/* ---- pager ------------------------------------------------------------------------------ */

static void on_event(void *arg, const struct ctn_pager_event *event)
{
	struct ctn_bench_rig *rig = arg;
	char need[32];

	switch (event->type) {
	case CTN_PAGER_LOADED:
		rig->ended = true;
		break;
	case CTN_PAGER_FAILED:
		rig->ended = true;
		if (!rig->failure.code)
			rig->failure = *event->err;
		break;
	case CTN_PAGER_HOST_NEED:
		/* The pool holds both models, so this is a provider that gives less than it
		 * said; nobody would make room. */
		ctn_err_set(&rig->failure, -ENOSPC, "the pool has no room for a part of %s",
			    ctn_format_size(event->bytes, need));
		break;
	case CTN_PAGER_STAGED:
	case CTN_PAGER_SHARED:
	case CTN_PAGER_FRAME_LOST:
		break; /* nothing is staged ahead; a loss is met as a part that is not CLEAN */
	}
}

/* Also that each rank's device holds its shards: said once, before anything is read. */
static int add_sides(struct ctn_bench_rig *rig, struct ctn_err *err)
{
	uint32_t devices[CTN_MAX_DEVICES];

	for (uint32_t d = 0; d < rig->device_count; d++)
		devices[d] = d;
	for (uint32_t i = 0; i < rig->side_count; i++) {
		struct ctn_bench_side *side = &rig->sides[i];
		int model = ctn_pager_add_model(rig->pager, side->plan, devices, err);

		if (model < 0)
			return model;
		side->model = (uint32_t)model;
		for (uint32_t r = 0; r < side->plan->rank_count; r++) {
			const struct ctn_device_props *props = ctn_device_props(rig->devices[r]);
			uint64_t need = ctn_pager_rank_bytes(rig->pager, side->model, r);
			char a[32], b[32];

			if (need > props->mem_bytes)
				return ctn_err_set(
					err, -ENOSPC,
					"%s has %s of memory; %s at tp %u, pp %u takes "
					"%s there%s",
					props->id, ctn_format_size(props->mem_bytes, a), side->dir,
					side->plan->tp, side->plan->pp, ctn_format_size(need, b),
					i < CTN_BENCH_MODELS ? "" : " (loaded for the speedup)");
		}
		if ((model = ctn_bench_digest_files(side, err)))
			return model;
	}
	return 0;
}

static int open_devices(struct ctn_bench_rig *rig, const struct ctn_bench_rig_config *cfg,
			struct ctn_err *err)
{
	int rc = ctn_devices_open(cfg->device, rig->devices, &rig->device_count, err);

	if (rc)
		return rc;
	if (cfg->tp * cfg->pp > rig->device_count)
		return ctn_err_set(err, -EINVAL,
				   "--device: expected a device for each of the %u ranks of tp %u, "
				   "pp %u, found %u",
				   cfg->tp * cfg->pp, cfg->tp, cfg->pp, rig->device_count);
	for (uint32_t d = 0; d < rig->device_count && rc == 0; d++) {
		rc = ctn_stream_new(rig->devices[d], &rig->streams[d]);
		if (rc == 0)
			rc = ctn_event_new(rig->devices[d], &rig->events[d]);
	}
	return rc ? ctn_err_set(err, rc, "--device: %s", strerror(-rc)) : 0;
}

int ctn_bench_rig_open(const struct ctn_bench_rig_config *cfg, struct ctn_bench_rig *rig,
		       struct ctn_err *err)
{
	struct ctn_pager_config pager = {
		.max_models = CTN_BENCH_SIDES_MAX, .event = on_event, .event_arg = rig};
	struct ctn_stage_config stage = {.method = -1, .hash = true};
	int rc;

	if (cfg->stage)
		stage = *cfg->stage;
	*rig = (struct ctn_bench_rig){0};
	rc = open_devices(rig, cfg, err);
	if (rc == 0)
		rc = open_models(rig, cfg, err);
	if (rc == 0)
		rc = open_pool(rig, cfg->pool, err);
	if (rc)
		goto fail;
	stage.pool = rig->pool;
	rc = ctn_stage_open(&stage, &rig->stage, err);
	if (rc)
		goto fail;
	pager.devices = rig->devices;
	pager.device_count = rig->device_count;
	pager.pool = rig->pool;
	pager.stage = rig->stage;
	rc = ctn_pager_new(&pager, &rig->pager, err);
	if (rc == 0)
		rc = add_sides(rig, err);
	if (rc == 0)
		return 0;
fail:
	ctn_bench_rig_close(rig);
	return rc;
}

void ctn_bench_rig_close(struct ctn_bench_rig *rig)
{
	ctn_pager_free(rig->pager);
	if (rig->stage)
		ctn_stage_close(rig->stage);
	if (rig->pool)
		ctn_pool_close(rig->pool);
	for (uint32_t i = 0; i < rig->side_count; i++) {
		ctn_plan_free(rig->sides[i].plan);
		free(rig->sides[i].bytes);
		free(rig->sides[i].digests);
	}
	for (uint32_t i = 0; i < CTN_BENCH_MODELS; i++)
		ctn_checkpoint_close(rig->ckpts[i]);
	for (uint32_t d = 0; d < rig->device_count; d++) {
		ctn_event_free(rig->events[d]);
		ctn_stream_free(rig->streams[d]);
	}
	ctn_devices_close(rig->devices, rig->device_count);
	*rig = (struct ctn_bench_rig){0};
}
