// SPDX-License-Identifier: MIT
/*
 * The ledger: running sums, kept where states change, and the walks that hold them to account.
 */
#include "pager/state.h"

#include <errno.h>
#include <utlist.h>

/* ---- running sums ----------------------------------------------------------------------- */

struct sum {
	uint64_t *bytes, *frames;
};

static struct sum frame_sum(struct ctn_device_ledger *l, enum device_state state)
{
	switch (state) {
	case DEVICE_LOADING:
		return (struct sum){&l->loading, &l->frames_loading};
	case DEVICE_RESIDENT:
		return (struct sum){&l->resident, &l->frames_resident};
	case DEVICE_DRAINING:
		return (struct sum){&l->draining, &l->frames_draining};
	case DEVICE_ABSENT:
		break;
	}
	return (struct sum){NULL, NULL};
}

void pager_frame_state(struct pager_frame *f, enum device_state state)
{
	struct ctn_device_ledger *l = &f->pager->devices[f->device].ledger;
	struct sum from = frame_sum(l, f->state), to = frame_sum(l, state);

	if (from.bytes) {
		*from.bytes -= f->bytes;
		--*from.frames;
	} else {
		l->free -= f->bytes;
	}
	if (to.bytes) {
		*to.bytes += f->bytes;
		++*to.frames;
	} else {
		l->free += f->bytes;
	}
	f->state = state;
}

void pager_part_state(struct pager_part *part, enum host_state state)
{
	struct ctn_host_ledger *h = &part->model->pager->host;
	uint64_t charge = pager_part_charge(part);

	if (part->state == HOST_STAGING)
		h->frames_staging--;
	if (part->state == HOST_DRAINING) {
		h->frames_draining--;
		h->bytes_draining -= charge;
	}
	if (state == HOST_STAGING)
		h->frames_staging++;
	if (state == HOST_DRAINING) {
		h->frames_draining++;
		h->bytes_draining += charge;
	}
	part->state = state;
}

void pager_claim_bytes(struct ctn_claim *claim, uint64_t bytes)
{
	struct ctn_device_ledger *l = &claim->pager->devices[claim->device].ledger;

	l->claims[claim->kind] += bytes - claim->bytes;
	l->free -= bytes - claim->bytes;
	claim->bytes = bytes;
}

void ctn_pager_device_ledger(const struct ctn_pager *p, uint32_t device,
			     struct ctn_device_ledger *ledger)
{
	*ledger = p->devices[device].ledger;
}

void ctn_pager_host_ledger(const struct ctn_pager *p, struct ctn_host_ledger *ledger)
{
	*ledger = p->host;
}

void ctn_pager_move_stats(const struct ctn_pager *p, enum ctn_pager_move move,
			  struct ctn_pager_move_stats *stats)
{
	*stats = p->moves[move];
}

/* ---- the walks -------------------------------------------------------------------------- */

/* Calls fn for every piece of the shards on a device. */
static void each_piece(const struct ctn_pager *p, uint32_t device,
		       void (*fn)(struct pager_piece *pc, void *arg), void *arg)
{
	for (uint32_t i = 0; i < p->model_count; i++) {
		const struct pager_model *m = p->models[i];

		for (uint32_t r = 0; r < m->plan->rank_count; r++) {
			const struct pager_rank *rank = &m->ranks[r];

			for (uint32_t k = 0; rank->device == device && k < rank->piece_count; k++)
				fn(&rank->pieces[k], arg);
		}
	}
}

static void forget_count(struct pager_piece *pc, void *arg)
{
	pc->own.counted = 0;
}

/* Every piece of a shard that is there counts at its frame; the first one counts the bytes. */
static void count_holder(struct pager_piece *pc, void *arg)
{
	struct ctn_device_ledger *l = arg;
	struct sum sum = frame_sum(l, pc->frame->state);

	if (pc->shard->state == DEVICE_ABSENT || pc->frame->counted++ || !sum.bytes)
		return;
	*sum.bytes += pc->frame->bytes;
	++*sum.frames;
}

struct miscount {
	uint64_t holders, counted;
};

static void compare_count(struct pager_piece *pc, void *arg)
{
	struct miscount *wrong = arg;

	if (pc->own.holders != pc->own.counted && wrong->holders == wrong->counted)
		*wrong = (struct miscount){pc->own.holders, pc->own.counted};
}

/* What the tables say of a device, counted anew, and the first frame whose holders are not as many
 * as it says. */
static void walk_device(const struct ctn_pager *p, uint32_t device, struct ctn_device_ledger *l,
			struct miscount *wrong)
{
	const struct ctn_claim *c;
	uint64_t used;

	*l = (struct ctn_device_ledger){.total = p->devices[device].ledger.total};
	*wrong = (struct miscount){0};
	each_piece(p, device, forget_count, NULL);
	each_piece(p, device, count_holder, l);
	each_piece(p, device, compare_count, wrong);
	used = l->loading + l->resident + l->draining;
	DL_FOREACH (p->claims, c) {
		if (c->device != device)
			continue;
		l->claims[c->kind] += c->bytes;
		used += c->bytes;
	}
	l->free = l->total - used;
}

static void walk_host(const struct ctn_pager *p, struct ctn_host_ledger *h, uint64_t *loading)
{
	*h = (struct ctn_host_ledger){0};
	*loading = 0;
	for (uint32_t i = 0; i < p->model_count; i++) {
		const struct pager_model *m = p->models[i];

		for (uint32_t k = 0; k < m->plan->part_count; k++) {
			const struct pager_part *part = &m->parts[k];

			if (part->state == HOST_STAGING) {
				h->frames_staging++;
				*loading += pager_part_charge(part);
			} else if (part->state == HOST_DRAINING) {
				h->frames_draining++;
				h->bytes_draining += pager_part_charge(part);
				*loading += pager_part_charge(part);
			}
		}
	}
}

static int differs(struct ctn_err *err, const char *where, const char *what, uint64_t a, uint64_t b)
{
	if (a == b)
		return 0;
	return ctn_err_set(err, -EUCLEAN,
			   "%s: %s: %llu bytes or frames by the ledger, %llu counted", where, what,
			   (unsigned long long)a, (unsigned long long)b);
}

static int check_device(const struct ctn_pager *p, uint32_t device, struct ctn_err *err)
{
	const struct ctn_device_ledger *sum = &p->devices[device].ledger;
	const char *id = ctn_device_props(p->devices[device].dev)->id;
	struct ctn_device_ledger walk;
	struct ctn_device_memory mem;
	struct miscount wrong;
	uint64_t used = sum->loading + sum->resident + sum->draining;
	int rc;

	walk_device(p, device, &walk, &wrong);
	ctn_device_get_memory(p->devices[device].dev, &mem);
	for (int k = 0; k < CTN_CLAIM_KINDS; k++)
		used += sum->claims[k];
	rc = differs(err, id, "total", sum->total, sum->free + used);
	if (!rc)
		rc = differs(err, id, "holders of a frame", wrong.holders, wrong.counted);
	if (!rc)
		rc = differs(err, id, "loading", sum->loading, walk.loading);
	if (!rc)
		rc = differs(err, id, "resident", sum->resident, walk.resident);
	if (!rc)
		rc = differs(err, id, "draining", sum->draining, walk.draining);
	for (int k = 0; k < CTN_CLAIM_KINDS && !rc; k++)
		rc = differs(err, id, "claims", sum->claims[k], walk.claims[k]);
	if (!rc)
		rc = differs(err, id, "frames loading", sum->frames_loading, walk.frames_loading);
	if (!rc)
		rc = differs(err, id, "frames resident", sum->frames_resident,
			     walk.frames_resident);
	if (!rc)
		rc = differs(err, id, "frames draining", sum->frames_draining,
			     walk.frames_draining);
	if (!rc)
		rc = differs(err, id, "mapped, by the allocator's mappings", used, mem.mapped);
	if (!rc)
		rc = differs(err, id, "free, by the allocator's free list", sum->free, mem.free);
	return rc;
}

static int check_host(struct ctn_pager *p, struct ctn_err *err)
{
	struct ctn_pool_stats stats;
	struct ctn_host_ledger walk;
	uint64_t loading;
	int rc;

	walk_host(p, &walk, &loading);
	ctn_pool_get_stats(p->pool, false, &stats);
	rc = differs(err, "host", "frames staging", p->host.frames_staging, walk.frames_staging);
	if (!rc)
		rc = differs(err, "host", "frames draining", p->host.frames_draining,
			     walk.frames_draining);
	if (!rc)
		rc = differs(err, "host", "draining", p->host.bytes_draining, walk.bytes_draining);
	if (!rc)
		rc = differs(err, "host", "loading, by the pool's frames", loading,
			     stats.loading_bytes);
	if (!rc)
		rc = differs(err, "host", "total, by the pool's allocator",
			     stats.free_bytes + stats.loading_bytes + stats.clean_bytes +
				     stats.held_bytes,
			     stats.total_bytes);
	return rc;
}

int ctn_pager_check(struct ctn_pager *p, struct ctn_err *err)
{
	for (uint32_t d = 0; d < p->device_count; d++) {
		int rc = check_device(p, d, err);

		if (rc)
			return rc;
	}
	return check_host(p, err);
}

/* ---- one model -------------------------------------------------------------------------- */

void ctn_pager_model_stats(struct ctn_pager *p, uint32_t model, struct ctn_pager_model_stats *stats)
{
	const struct pager_model *m = p->models[model];

	*stats = (struct ctn_pager_model_stats){.bytes_staged = m->bytes_staged,
						.bytes_loaded = m->bytes_loaded};
	for (uint32_t i = 0; i < m->plan->part_count; i++) {
		const struct ctn_part *part = m->parts[i].plan;
		struct ctn_frame_info info;

		stats->host_total += part->tensor_bytes;
		if (pager_find(&m->parts[i], &info) == 0 && info.state == CTN_FRAME_CLEAN)
			stats->host_bytes += part->tensor_bytes;
	}
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		const struct pager_rank *rank = &m->ranks[r];

		for (uint32_t i = 0; i < rank->plan->layer_count; i++) {
			const struct pager_shard *s = &rank->shards[i];
			uint64_t bytes = 0;

			for (uint32_t k = 0; k < s->plan->piece_count; k++)
				bytes += s->plan->pieces[k].payload;
			stats->device_total += bytes;
			if (s->state == DEVICE_RESIDENT)
				stats->device_bytes += bytes;
		}
	}
}

void ctn_pager_moved(const struct ctn_pager *p, uint32_t model, uint64_t *bytes_staged,
		     uint64_t *bytes_loaded)
{
	*bytes_staged = p->models[model]->bytes_staged;
	*bytes_loaded = p->models[model]->bytes_loaded;
}
