// SPDX-License-Identifier: MIT
/* The plan's figures: keys, parts and pieces of models of real size (in files with holes), and
 * what is refused. The bytes are the business of test_checkpoint_plan.c. */
#include "ckpt_plans.h"

#include <xxhash.h>

/* Written from the words of the design, with the hash library alone. */
static void expected_key(const struct ctn_checkpoint *ckpt, const struct ctn_part *part,
			 uint8_t key[32])
{
	uint8_t buf[48 * 8] = {0};
	XXH128_canonical_t canonical;
	bool used[8] = {0};
	size_t len = 0;
	uint64_t id = part->id;
	uint32_t tail[2] = {CTN_PLAN_VERSION, 0};

	for (uint32_t i = 0; i < part->run_count; i++)
		used[part->runs[i].file] = true;
	for (uint32_t f = 0; f < ckpt->file_count; f++) {
		uint64_t n, v[4];
		struct stat st;
		char *data;
		size_t size;

		if (!used[f])
			continue;
		if (ctn_read_file(ckpt->files[f].path, 1 << 24, &data, &size, NULL) ||
		    stat(ckpt->files[f].path, &st))
			abort();
		memcpy(&n, data, 8);
		XXH128_canonicalFromHash(&canonical, XXH3_128bits(data + 8, n));
		free(data);
		memcpy(buf + len, &canonical, 16);
		v[0] = (uint64_t)st.st_size;
		v[1] = st.st_dev;
		v[2] = st.st_ino;
		v[3] = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
		memcpy(buf + len + 16, v, 32);
		len += 48;
	}
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(buf, len));
	memcpy(key, &canonical, 16);
	memcpy(key + 16, &id, 8);
	memcpy(key + 24, tail, 8);
}

static void test_frame_keys(void)
{
	const struct gen_model m = {
		.family = "llama",
		.layers = 3,
		.hidden = 16,
		.heads = 2,
		.kv_heads = 2,
		.head_dim = 8,
		.ffn = 32,
		.vocab = 40000, /* an embedding and a head of more than 2 MiB */
		.positions = 64,
		.files = 3,
	};
	struct ctn_checkpoint *ckpt = open_checkpoint(gen_write(&m));
	struct ctn_plan *plan = build(ckpt, 2, 1);

	CU_ASSERT_TRUE(plan->part_count >= 3);
	for (uint32_t i = 0; i < plan->part_count; i++) {
		uint8_t key[32];

		expected_key(ckpt, &plan->parts[i], key);
		CU_ASSERT_EQUAL(memcmp(key, plan->parts[i].key.bytes, 32), 0);
	}
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
}

/* Parts of the size of a real model, in a file with holes: shuffled, at an odd byte. */
static void test_large_parts(void)
{
	const struct gen_model m = {
		.family = "llama",
		.layers = 2,
		.hidden = 8192,
		.heads = 64,
		.kv_heads = 8,
		.head_dim = 128,
		.ffn = 28672,
		.vocab = 32003,
		.positions = 4096,
		.dtype = "BF16",
		.norm_dtype = "BF16",
		.odd = 1,
		.shuffle = 16,
		.sparse = true,
	};
	struct ctn_checkpoint *ckpt = open_checkpoint(gen_write(&m));
	struct ctn_plan *plan = build(ckpt, 4, 2);
	unsigned int large = 0;

	for (uint32_t i = 0; i < plan->part_count; i++) {
		const struct ctn_part *p = &plan->parts[i];
		uint64_t read = 0;

		for (uint32_t k = 0; k < p->run_count; k++)
			read += p->runs[k].bytes;
		CU_ASSERT_EQUAL(read, p->frame_bytes);
		CU_ASSERT_FALSE(p->pack);
		CU_ASSERT_EQUAL(p->first_layer, p->last_layer);
		if (p->tensor_bytes < 128 * CTN_MIB)
			continue;
		large++;
		CU_ASSERT_TRUE((double)read <= 1.02 * (double)p->tensor_bytes);
	}
	/* embed, two times attention and MLP, head with the final norm */
	CU_ASSERT_EQUAL(plan->part_count, 6);
	CU_ASSERT_EQUAL(large, 6);
	for (uint32_t r = 0; r < plan->rank_count; r++) {
		for (uint32_t i = 0; i < plan->ranks[r].layer_count; i++) {
			const struct ctn_shard *s = &plan->ranks[r].shards[i];

			CU_ASSERT_EQUAL(s->piece_count,
					s->layer == 0 || s->layer == m.layers + 1 ? 1 : 2);
		}
	}
	check_coverage(plan);
	check_window(plan);
	check_stages(plan);
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
}

/* Attention of 1 MiB a layer is packed over layers; an MLP of 3 MiB stands alone. */
static void test_packs(void)
{
	const struct gen_model m = {
		.family = "llama",
		.layers = 50,
		.hidden = 256,
		.heads = 4,
		.kv_heads = 4,
		.head_dim = 64,
		.ffn = 1024,
		.vocab = 4096,
		.positions = 4096,
		.sparse = true,
	};
	struct ctn_checkpoint *ckpt = open_checkpoint(gen_write(&m));
	struct ctn_plan *plan = build(ckpt, 1, 1);
	unsigned int packs = 0, mlps = 0;
	uint64_t end = 0;

	for (uint32_t i = 0; i < plan->part_count; i++) {
		const struct ctn_part *p = &plan->parts[i];
		const struct ctn_run *last = &p->runs[p->run_count - 1];

		mlps += p->kind == CTN_PART_MLP;
		if (!p->pack)
			continue;
		packs++;
		CU_ASSERT_TRUE(p->last_layer > p->first_layer);
		/* In file order: the next pack starts where this one ended, or later. */
		CU_ASSERT_TRUE(p->runs[0].file_offset + CTN_IO_ALIGN >= end);
		end = last->file_offset + last->bytes;
	}
	/* 50 times 1 MiB and a norm, and the final norm, in packs of up to 32 MiB */
	CU_ASSERT_EQUAL(packs, 2);
	CU_ASSERT_EQUAL(mlps, 50);
	check_coverage(plan);
	check_window(plan);
	check_stages(plan);
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
}

/* A shard of less than 2 MiB is one piece; a small first part joins the next. */
static void test_small_pieces_are_joined(void)
{
	const struct gen_model m = {
		.family = "llama",
		.layers = 2,
		.hidden = 256,
		.heads = 4,
		.kv_heads = 4,
		.head_dim = 64,
		.ffn = 4096,
		.vocab = 100,
		.positions = 4096,
		.sparse = true,
	};
	struct ctn_checkpoint *ckpt = open_checkpoint(gen_write(&m));
	struct ctn_plan *plan = build(ckpt, 1, 1);

	for (uint32_t i = 0; i < plan->ranks[0].layer_count; i++) {
		const struct ctn_shard *s = &plan->ranks[0].shards[i];

		CU_ASSERT_EQUAL(s->piece_count, 1);
		CU_ASSERT_EQUAL(s->pieces[0].kind, s->layer == 0 || s->layer == 3
							   ? CTN_PART_REST
							   : CTN_PART_ATTENTION);
	}
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
}

static void test_refused_splits(void)
{
	static const struct {
		uint32_t tp, pp;
		const char *says;
	} cases[] = {
		{3, 1, "expected one of 1, 2, 4 "},  /* heads */
		{6, 1, "expected one of 1, 2, 4 "},  /* key-value heads: 4 and 6 */
		{12, 1, "expected one of 1, 2, 4 "}, /* ffn */
		{0, 1, "expected one of"},           {24, 1, "expected one of"},
		{1, 4, "pp: expected 1 to 3"},       {1, 0, "pp: expected 1 to 3"},
	};
	const struct gen_model m = {
		.family = "llama",
		.layers = 3,
		.hidden = 24,
		.heads = 12,
		.kv_heads = 4,
		.head_dim = 2,
		.ffn = 20,
		.vocab = 50,
		.positions = 64,
	};
	struct ctn_checkpoint *ckpt = open_checkpoint(gen_write(&m));

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_plan *plan = NULL;
		struct ctn_err err = {0};

		CU_ASSERT_EQUAL(ctn_plan_build(ckpt, cases[i].tp, cases[i].pp, &plan, &err),
				-EINVAL);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, cases[i].says));
	}
	ctn_checkpoint_close(ckpt);
}

CTN_TESTS("checkpoint_parts", CTN_TEST(test_frame_keys), CTN_TEST(test_large_parts),
	  CTN_TEST(test_packs), CTN_TEST(test_small_pieces_are_joined),
	  CTN_TEST(test_refused_splits))
