// SPDX-License-Identifier: MIT
/*
 * The plan, carried out: runs fill frames from the files, rectangles fill pieces from frames,
 * and every slot is compared with the share of the tensors that ckpt_shares.h cuts out of the
 * file.
 */
#include "ckpt_plans.h"
#include "ckpt_shares.h"

#define POISON 0xee

static const unsigned int ways[] = {1, 2, 4};

static bool role_in_layer(const struct ctn_arch *a, enum ctn_role role, uint32_t layer)
{
	if (layer == 0)
		return role <= CTN_ROLE_PROJECT_IN;
	if (layer == a->layers + 1)
		return role >= CTN_ROLE_NORM_F_W;
	return role > CTN_ROLE_PROJECT_IN && role < CTN_ROLE_NORM_F_W;
}

/* ---- the plan, carried out ------------------------------------------------------------- */

static uint8_t *fill_frame(const struct ctn_checkpoint *ckpt, const struct ctn_part *part)
{
	uint8_t *frame = malloc(part->frame_bytes);
	uint64_t end = 0;

	memset(frame, POISON, part->frame_bytes);
	CU_ASSERT_EQUAL(part->frame_bytes % CTN_IO_ALIGN, 0);
	for (uint32_t i = 0; i < part->run_count; i++) {
		const struct ctn_run *r = &part->runs[i];
		int fd = open(ckpt->files[r->file].path, O_RDONLY | O_CLOEXEC);

		CU_ASSERT_EQUAL(r->file_offset % CTN_IO_ALIGN, 0);
		CU_ASSERT_EQUAL(r->bytes % CTN_IO_ALIGN, 0);
		CU_ASSERT_EQUAL(r->frame_offset % CTN_IO_ALIGN, 0);
		CU_ASSERT_TRUE(r->bytes > 0);
		CU_ASSERT_TRUE(r->frame_offset >= end);
		/* Touching runs of one file are one run. */
		CU_ASSERT_TRUE(i == 0 || r->file != r[-1].file ||
			       r->file_offset > r[-1].file_offset + r[-1].bytes);
		end = r->frame_offset + r->bytes;
		CU_ASSERT_TRUE_FATAL(end <= part->frame_bytes);
		/* Only the file's end may cut it short. */
		CU_ASSERT_EQUAL(
			pread(fd, frame + r->frame_offset, r->bytes, (off_t)r->file_offset),
			(ssize_t)CTN_MIN(r->bytes, ckpt->files[r->file].bytes - r->file_offset));
		close(fd);
	}
	for (uint32_t i = 0; i < part->tensor_count; i++) {
		const struct ctn_tensor *t = &ckpt->tensors[part->tensors[i].tensor];
		uint8_t *data = read_tensor(ckpt, t);

		CU_ASSERT_TRUE_FATAL(part->tensors[i].frame_offset + t->bytes <= part->frame_bytes);
		CU_ASSERT_EQUAL(memcmp(data, frame + part->tensors[i].frame_offset, t->bytes), 0);
		free(data);
	}
	return frame;
}

static uint8_t *fill_piece(const struct ctn_plan *plan, uint8_t *const *frames,
			   const struct ctn_shard *shard, const struct ctn_piece *piece)
{
	uint8_t *mem = malloc(piece->bytes);
	uint64_t payload = 0;

	memset(mem, POISON, piece->bytes);
	for (uint32_t i = 0; i < piece->rect_count; i++) {
		const struct ctn_rect *r = &piece->rects[i];
		bool listed = false;

		CU_ASSERT_TRUE_FATAL(r->width > 0 && r->height > 0);
		CU_ASSERT_TRUE(r->src_pitch >= r->width && r->dst_pitch >= r->width);
		CU_ASSERT_TRUE_FATAL(r->src_offset + (r->height - 1) * r->src_pitch + r->width <=
				     plan->parts[r->part].frame_bytes);
		CU_ASSERT_TRUE_FATAL(r->dst_offset + (r->height - 1) * r->dst_pitch + r->width <=
				     piece->bytes);
		for (uint64_t k = 0; k < r->height; k++)
			memcpy(mem + r->dst_offset + k * r->dst_pitch,
			       frames[r->part] + r->src_offset + k * r->src_pitch, r->width);
		payload += r->width * r->height;
		for (uint32_t k = 0; k < shard->part_count; k++)
			listed |= shard->parts[k] == r->part;
		CU_ASSERT_TRUE(listed);
	}
	CU_ASSERT_EQUAL(payload, piece->payload);
	return mem;
}

static void check_slot(const struct ctn_plan *plan, const struct ctn_rank_plan *rank,
		       const struct ctn_shard *shard, uint8_t *const *pieces, enum ctn_role role)
{
	const struct ctn_slot *slot = &shard->slots[role];
	struct share e = {
		.ckpt = plan->ckpt,
		.rank = rank,
		.tp = plan->tp,
		.layer = shard->layer - 1,
	};

	if (!role_in_layer(&plan->ckpt->arch, role, shard->layer)) {
		CU_ASSERT_FALSE(slot->present);
		return;
	}
	share_role(&e, role);
	CU_ASSERT_EQUAL(slot->present, !e.missing);
	if (slot->present && !e.missing) {
		const uint64_t size = ctn_dtype_bits(slot->encoding.dtype) / 8;

		CU_ASSERT_EQUAL(slot->alias,
				role == CTN_ROLE_HEAD && plan->ckpt->arch.tied && plan->pp == 1);
		CU_ASSERT_EQUAL(slot->transposed,
				is_gpt2(plan->ckpt) &&
					(role == CTN_ROLE_QKV_W || role == CTN_ROLE_OUT_W ||
					 role == CTN_ROLE_UP_W || role == CTN_ROLE_DOWN_W));
		CU_ASSERT_EQUAL(slot->rows, e.rows);
		CU_ASSERT_EQUAL(slot->cols, e.cols);
		CU_ASSERT_EQUAL(slot->offset % CTN_TENSOR_ALIGN, 0);
		if (memcmp(pieces[slot->piece] + slot->offset, e.out, e.len) != 0) {
			printf("# tp %u pp %u rank %u.%u layer %u %s differs\n", plan->tp, plan->pp,
			       rank->tp_rank, rank->pp_rank, shard->layer, ctn_role_name(role));
			CU_FAIL("bytes of a slot");
		}
		/* Rows of padding are not written. */
		for (uint64_t i = e.len; i < slot->rows * slot->cols * size; i++)
			CU_ASSERT_EQUAL(pieces[slot->piece][slot->offset + i], POISON);
	}
	free(e.out);
}

static void check_rank(const struct ctn_plan *plan, const struct ctn_rank_plan *rank,
		       uint8_t *const *frames)
{
	uint8_t *embed[CTN_PART_KINDS] = {0};
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < rank->layer_count; i++) {
		const struct ctn_shard *shard = &rank->shards[i];
		uint8_t *pieces[CTN_PART_KINDS] = {0};
		uint64_t shard_bytes = 0;

		CU_ASSERT_EQUAL(shard->layer, rank->first_layer + i);
		CU_ASSERT_TRUE_FATAL(shard->piece_count <= CTN_PART_KINDS);
		for (uint32_t k = 0; k < shard->piece_count; k++) {
			pieces[k] = fill_piece(plan, frames, shard, &shard->pieces[k]);
			shard_bytes += shard->pieces[k].bytes;
		}
		CU_ASSERT_EQUAL(shard->bytes, shard_bytes);
		bytes += shard_bytes;
		if (shard->layer == 0)
			memcpy(embed, pieces, sizeof(embed));
		for (int role = 0; role < CTN_ROLE_COUNT; role++) {
			const bool alias = shard->slots[role].alias;

			check_slot(plan, rank, shard, alias ? embed : pieces, (enum ctn_role)role);
		}
		for (uint32_t k = 0; k < shard->piece_count && shard->layer != 0; k++)
			free(pieces[k]);
	}
	CU_ASSERT_EQUAL(rank->bytes, bytes);
	for (int k = 0; k < CTN_PART_KINDS; k++)
		free(embed[k]);
}

static void check_same_parts(const struct ctn_plan *a, const struct ctn_plan *b)
{
	CU_ASSERT_EQUAL_FATAL(a->part_count, b->part_count);
	for (uint32_t i = 0; i < a->part_count; i++) {
		const struct ctn_part *p = &a->parts[i], *q = &b->parts[i];

		CU_ASSERT_EQUAL(memcmp(&p->key, &q->key, sizeof(p->key)), 0);
		CU_ASSERT_EQUAL(p->frame_bytes, q->frame_bytes);
		CU_ASSERT_EQUAL(p->first_layer, q->first_layer);
		CU_ASSERT_EQUAL_FATAL(p->run_count, q->run_count);
		CU_ASSERT_EQUAL(memcmp(p->runs, q->runs, p->run_count * sizeof(*p->runs)), 0);
		CU_ASSERT_EQUAL_FATAL(p->tensor_count, q->tensor_count);
		CU_ASSERT_EQUAL(
			memcmp(p->tensors, q->tensors, p->tensor_count * sizeof(*p->tensors)), 0);
	}
}

static void check_plan(const struct ctn_plan *plan, const struct ctn_plan *base)
{
	uint8_t **frames = calloc(plan->part_count, sizeof(*frames));

	check_same_parts(plan, base);
	check_coverage(plan);
	check_window(plan);
	check_stages(plan);
	for (uint32_t i = 0; i < plan->part_count; i++)
		frames[i] = fill_frame(plan->ckpt, &plan->parts[i]);
	for (uint32_t i = 0; i < plan->rank_count; i++)
		check_rank(plan, &plan->ranks[i], frames);
	for (uint32_t i = 0; i < plan->part_count; i++)
		free(frames[i]);
	free(frames);
}

static void check_checkpoint(const char *dir)
{
	struct ctn_checkpoint *ckpt = open_checkpoint(dir);
	struct ctn_plan *base = build(ckpt, 1, 1);

	for (size_t i = 0; i < CTN_ARRAY_LEN(ways); i++) {
		for (size_t k = 0; k < CTN_ARRAY_LEN(ways); k++) {
			struct ctn_plan *plan = build(ckpt, ways[i], ways[k]);

			check_plan(plan, base);
			ctn_plan_free(plan);
		}
	}
	ctn_plan_free(base);
	ctn_checkpoint_close(ckpt);
}

/* ---- tests ----------------------------------------------------------------------------- */

static void check_sample(const char *name)
{
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%s/models/%s", ctn_tests_dir(), name);
	check_checkpoint(dir);
}

static void test_llama_sample(void)
{
	check_sample("llama-stories260k");
}

static void test_opt_sample(void)
{
	check_sample("opt-tinystories");
}

static void test_gpt2_sample(void)
{
	check_sample("gpt2-tinystories");
}

/* One key-value head of four, two of eight: replicated where tp is larger. An odd vocabulary,
 * three files, data at an odd byte, tensors in any order, two dtypes. */
static void test_few_kv_heads(void)
{
	struct gen_model m = {
		.family = "llama",
		.layers = 4,
		.hidden = 24,
		.heads = 4,
		.kv_heads = 1,
		.head_dim = 10,
		.ffn = 20,
		.vocab = 509,
		.positions = 64,
		.bias = true,
		.dtype = "BF16",
		.files = 3,
		.odd = 3,
		.shuffle = 11,
	};

	check_checkpoint(gen_write(&m));
	m.heads = 8;
	m.kv_heads = 2;
	m.tied = true;
	m.bias = false;
	m.files = 0;
	m.odd = 6;
	m.shuffle = 12;
	m.dtype = "F16";
	m.norm_dtype = "F16";
	check_checkpoint(gen_write(&m));
}

static void test_qwen2_biases(void)
{
	const struct gen_model m = {
		.family = "qwen2",
		.layers = 5,
		.hidden = 16,
		.heads = 4,
		.kv_heads = 2,
		.head_dim = 4,
		.ffn = 32,
		.vocab = 5, /* at tp 4 the last rank has a row of padding only */
		.positions = 64,
		.tied = true,
		.shuffle = 13,
		.odd = 1,
	};

	check_checkpoint(gen_write(&m));
}

static void test_opt_projections(void)
{
	const struct gen_model m = {
		.family = "opt",
		.layers = 4,
		.hidden = 32,
		.heads = 4,
		.kv_heads = 4,
		.head_dim = 8,
		.ffn = 64,
		.vocab = 101,
		.embed_dim = 12,
		.positions = 30,
		.tied = true,
		.post_norm = true,
		.prefix = "decoder.",
		.dtype = "F16",
		.norm_dtype = "F16",
		.files = 2,
		.odd = 7,
		.shuffle = 14,
	};

	check_checkpoint(gen_write(&m));
}

/* Nothing but matrices: at pp 1 the head needs no bytes of its own. */
static void test_opt_bare(void)
{
	const struct gen_model m = {
		.family = "opt",
		.layers = 4,
		.hidden = 32,
		.heads = 4,
		.kv_heads = 4,
		.head_dim = 8,
		.ffn = 64,
		.vocab = 101,
		.positions = 30,
		.tied = true,
		.post_norm = true,
		.no_bias = true,
		.no_affine = true,
		.prefix = "",
		.shuffle = 17,
		.odd = 2,
	};
	struct ctn_checkpoint *ckpt;
	struct ctn_plan *plan;
	const char *dir = gen_write(&m);

	check_checkpoint(dir);
	ckpt = open_checkpoint(dir);
	plan = build(ckpt, 1, 1);
	CU_ASSERT_EQUAL(plan->ranks[0].shards[5].piece_count, 0);
	CU_ASSERT_EQUAL(plan->ranks[0].shards[5].bytes, 0);
	CU_ASSERT_TRUE(plan->ranks[0].shards[5].slots[CTN_ROLE_HEAD].alias);
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
}

static void test_gpt2_untied(void)
{
	const struct gen_model m = {
		.family = "gpt2",
		.layers = 4,
		.hidden = 24,
		.heads = 4,
		.kv_heads = 4,
		.head_dim = 6,
		.ffn = 36,
		.vocab = 67,
		.positions = 20,
		.dtype = "BF16",
		.files = 2,
		.odd = 5,
		.shuffle = 15,
	};

	check_checkpoint(gen_write(&m));
}

CTN_TESTS("checkpoint_plan", CTN_TEST(test_llama_sample), CTN_TEST(test_opt_sample),
	  CTN_TEST(test_gpt2_sample), CTN_TEST(test_few_kv_heads), CTN_TEST(test_qwen2_biases),
	  CTN_TEST(test_opt_projections), CTN_TEST(test_opt_bare), CTN_TEST(test_gpt2_untied))
