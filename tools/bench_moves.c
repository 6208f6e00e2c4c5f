// SPDX-License-Identifier: MIT
/* What a benchmark times: a switch by the pager, and the bare copy of as many bytes. */
#include "bench.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* ---- the switch ------------------------------------------------------------------------- */

int ctn_bench_rig_check_clean(struct ctn_bench_rig *rig, const struct ctn_bench_side *side,
			      struct ctn_err *err)
{
	for (uint32_t i = 0; i < side->plan->part_count; i++) {
		struct ctn_frame_info info;
		int rc = ctn_pool_lookup(rig->pool, &side->plan->parts[i].key, &info);

		if (rc || info.state != CTN_FRAME_CLEAN)
			return ctn_err_set(err, -ENOENT,
					   "%s: the pool has no CLEAN frame of part %u: expected a "
					   "pool that keeps both models",
					   side->dir, i);
	}
	return 0;
}

static uint64_t d2h_bytes(const struct ctn_bench_rig *rig)
{
	uint64_t sum = 0;

	for (uint32_t d = 0; d < rig->device_count; d++) {
		struct ctn_device_stats stats;

		ctn_device_get_stats(rig->devices[d], &stats);
		sum += stats.d2h_bytes;
	}
	return sum;
}

static void end_observer(struct ctn_bench_rig *rig, uint32_t model, bool used)
{
	const struct ctn_bench_observer *observer = rig->observer;

	if (!observer)
		return;
	rig->observer = NULL;
	observer->end(observer->arg);
	if (used)
		ctn_pager_unuse(rig->pager, model);
}

/* Waits on the pager's descriptor until the load has ended. */
static int drive(struct ctn_bench_rig *rig, uint32_t model)
{
	struct pollfd pfd = {.fd = ctn_pager_fd(rig->pager), .events = POLLIN};
	bool cancelled = false;

	while (!rig->ended) {
		/* The failure is told after the last use. */
		if (ctn_pager_failing(rig->pager, model))
			end_observer(rig, model, true);
		if (rig->failure.code && !cancelled) {
			cancelled = true;
			ctn_pager_cancel(rig->pager, model);
		}
		/* A poll that fails (EINTR, ENOMEM) is made again. */
		poll(&pfd, 1, -1);
		ctn_pager_dispatch(rig->pager);
	}
	return rig->failure.code;
}

int ctn_bench_rig_switch(struct ctn_bench_rig *rig, const struct ctn_bench_side *to,
			 struct ctn_bench_switch *took, struct ctn_err *err)
{
	uint64_t start, dropped, since, d2h = d2h_bytes(rig);
	int rc = 0;

	rig->ended = false;
	rig->failure = (struct ctn_err){0};
	start = ctn_now_ns();
	if (rig->resident && rig->resident != to)
		rc = ctn_pager_drop(rig->pager, rig->resident->model);
	dropped = ctn_now_ns();
	if (rc) {
		end_observer(rig, to->model, false);
		return ctn_err_set(err, rc, "%s: drop: %s", rig->resident->dir, strerror(-rc));
	}
	rig->resident = NULL;
	since = ctn_now_ns();
	rc = ctn_pager_load(rig->pager, to->model, rig->ticket++, err);
	if (rc) {
		end_observer(rig, to->model, false);
		return rc;
	}
	if (rig->observer) {
		ctn_pager_use(rig->pager, to->model);
		rig->observer->begin(rig->observer->arg, to, since);
	}
	rc = drive(rig, to->model);
	took->ns = ctn_now_ns() - start;
	took->start = start;
	end_observer(rig, to->model, true);
	if (rc) {
		if (err)
			*err = rig->failure;
		ctn_err_prefix(err, "%s", to->dir);
		return rc;
	}
	took->drop_ns = dropped - start;
	took->d2h_bytes = d2h_bytes(rig) - d2h;
	rig->resident = to;
	return 0;
}

/* ---- the bare copy ---------------------------------------------------------------------- */

/*
 * As few 1-D copies as the pool's segments allow, of `bytes` bytes from byte `offset` of the
 * pool (from its start again after its end) to addresses that follow `dst`. Returns how many;
 * the caller frees *list.
 */
static int pool_copies(struct ctn_pool *pool, uint64_t offset, uint8_t *dst, uint64_t bytes,
		       struct ctn_copy **list, uint32_t *count)
{
	uint32_t segments = ctn_pool_segment_count(pool), n = 0, cap = 0;
	struct ctn_copy *copies = NULL;

	for (uint32_t i = 0; bytes; i = (i + 1) % segments) {
		struct ctn_segment seg;
		uint64_t take;

		ctn_pool_segment(pool, i, &seg);
		if (offset >= seg.bytes) {
			offset -= seg.bytes;
			continue;
		}
		if (n == cap) {
			struct ctn_copy *more = reallocarray(copies, cap + 16, sizeof(*copies));

			if (!more) {
				free(copies);
				return -ENOMEM;
			}
			copies = more;
			cap += 16;
		}
		take = CTN_MIN(bytes, seg.bytes - offset);
		copies[n++] = (struct ctn_copy){
			.src = seg.addr + offset, .dst = dst, .width = take, .height = 1};
		dst += take;
		bytes -= take;
		offset = 0;
	}
	*list = copies;
	*count = n;
	return 0;
}

/* Where a rank's shards begin: its pieces follow each other from there. */
static void *first_piece(const struct ctn_bench_rig *rig, uint32_t rank)
{
	const struct ctn_bench_side *side = rig->resident;
	const struct ctn_rank_plan *plan = &side->plan->ranks[rank];
	void *const *const *pieces = ctn_pager_pieces(rig->pager, side->model, rank);

	for (uint32_t i = 0; i < plan->layer_count; i++) {
		if (plan->shards[i].piece_count)
			return pieces[i][0];
	}
	return NULL;
}

int ctn_bench_rig_bare(struct ctn_bench_rig *rig, const struct ctn_bench_side *side, uint64_t *ns,
		       struct ctn_err *err)
{
	struct ctn_copy *copies[CTN_MAX_DEVICES] = {0};
	uint32_t counts[CTN_MAX_DEVICES], ranks = side->plan->rank_count, started = 0;
	uint64_t offset = 0, start;
	int rc = 0;

	for (uint32_t r = 0; r < ranks && rc == 0; r++) {
		rc = pool_copies(rig->pool, offset, first_piece(rig, r), side->bytes[r], &copies[r],
				 &counts[r]);
		offset += side->bytes[r];
	}
	start = ctn_now_ns();
	for (; started < ranks && rc == 0; started++) {
		rc = ctn_device_load(rig->devices[started], copies[started], counts[started],
				     rig->events[started], NULL, NULL);
		if (rc)
			break;
	}
	for (uint32_t r = 0; r < started; r++) {
		int e = ctn_event_wait(rig->events[r]);

		rc = rc ? rc : e;
	}
	*ns = ctn_now_ns() - start;
	for (uint32_t r = 0; r < ranks; r++)
		free(copies[r]);
	return rc ? ctn_err_set(err, rc, "the bare copy: %s", strerror(-rc)) : 0;
}
