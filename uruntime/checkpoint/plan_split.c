// SPDX-License-Identifier: MIT
/* Which heads, rows and columns each tensor-parallel rank has. */
#include "checkpoint/plan.h"

#include <errno.h>

/* Whether key-value heads split over tp ranks: evenly, or each is held by several ranks. */
static bool kv_heads_split(uint32_t kv_heads, uint32_t tp)
{
	return kv_heads % tp == 0 || tp % kv_heads == 0;
}

static bool tp_allowed(const struct ctn_arch *arch, uint32_t tp)
{
	return arch->heads % tp == 0 && kv_heads_split(arch->kv_heads, tp) && arch->ffn % tp == 0;
}

int ctn_plan_check_split(const struct ctn_checkpoint *ckpt, uint32_t tp, uint32_t pp,
			 struct ctn_err *err)
{
	const struct ctn_arch *arch = &ckpt->arch;
	struct ctn_buf allowed = {0};
	int rc;

	if (pp < 1 || pp > arch->layers)
		return ctn_err_set(err, -EINVAL, "%s: pp: expected 1 to %u (its layers), found %u",
				   ckpt->dir, arch->layers, pp);
	if (tp >= 1 && tp_allowed(arch, tp))
		return 0;
	for (uint32_t n = 1; n <= arch->heads; n++) {
		if (tp_allowed(arch, n))
			ctn_buf_printf(&allowed, "%s%u", allowed.len ? ", " : "", n);
	}
	rc = ctn_err_set(err, -EINVAL,
			 "%s: tp: expected one of %s (%u heads, %u key-value heads, ffn %u), found "
			 "%u",
			 ckpt->dir, allowed.failed ? "?" : allowed.data, arch->heads,
			 arch->kv_heads, arch->ffn, tp);
	ctn_buf_free(&allowed);
	return rc;
}

void ctn_plan_split(const struct ctn_arch *arch, uint32_t tp, uint32_t tp_rank,
		    struct ctn_rank_plan *rank)
{
	const uint32_t group = arch->heads / arch->kv_heads;

	rank->tp_rank = tp_rank;
	rank->head_count = arch->heads / tp;
	rank->head_first = tp_rank * rank->head_count;
	rank->kv_head_count = CTN_MAX(arch->kv_heads / tp, 1u);
	rank->kv_head_first = rank->head_first / group;
	rank->ffn_count = arch->ffn / tp;
	rank->ffn_first = tp_rank * rank->ffn_count;
	rank->vocab_padded = (arch->vocab + tp - 1) / tp;
	rank->vocab_first = CTN_MIN(tp_rank * rank->vocab_padded, arch->vocab);
	rank->vocab_count = CTN_MIN(rank->vocab_padded, arch->vocab - rank->vocab_first);
}

static void add_range(struct ctn_ranges *r, uint64_t start, uint64_t count)
{
	r->start[r->n] = start;
	r->count[r->n++] = count;
	r->size += count;
}

void ctn_plan_ranges(const struct ctn_arch *arch, const struct ctn_rank_plan *rank,
		     enum ctn_dim dim, struct ctn_ranges *ranges)
{
	const uint64_t d = arch->head_dim;
	const uint64_t q = arch->heads * d, kv = arch->kv_heads * d;

	*ranges = (struct ctn_ranges){0};
	switch (dim) {
	case CTN_DIM_Q:
		add_range(ranges, rank->head_first * d, rank->head_count * d);
		break;
	case CTN_DIM_KV:
		add_range(ranges, rank->kv_head_first * d, rank->kv_head_count * d);
		break;
	case CTN_DIM_QKV:
		add_range(ranges, rank->head_first * d, rank->head_count * d);
		add_range(ranges, q + rank->kv_head_first * d, rank->kv_head_count * d);
		add_range(ranges, q + kv + rank->kv_head_first * d, rank->kv_head_count * d);
		break;
	case CTN_DIM_FFN:
		add_range(ranges, rank->ffn_first, rank->ffn_count);
		break;
	case CTN_DIM_VOCAB:
		add_range(ranges, rank->vocab_first, rank->vocab_count);
		ranges->size = rank->vocab_padded;
		break;
	default:
		add_range(ranges, 0, ctn_dim_size(arch, dim));
		break;
	}
}
