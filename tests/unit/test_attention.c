// SPDX-License-Identifier: MIT
/* The attention kernels of the CPU over paged KV, as test_kernels.c has the others. */
#include "test.h"
#include "kernels/kernels.h"
#include "naive.h"

/* A batch of sequences whose last `fresh` tokens are in the step and the rest in the cache,
 * over blocks in random order. */
struct scene {
	struct ctn_attention_shape shape;
	struct ctn_batch batch;
	struct ctn_kv_cache kv;
	uint32_t layers, blocks;
	uint32_t *positions, *seq_start, *token_seq, *block_table, *table_start;
	float *qkv;
};

static void scene_new(struct scene *s, uint32_t sequences, uint32_t heads, uint32_t kv_heads,
		      uint32_t dim, uint32_t max_context)
{
	uint32_t max_blocks = (max_context + CTN_KV_BLOCK - 1) / CTN_KV_BLOCK;
	uint32_t tokens = 0;

	memset(s, 0, sizeof(*s));
	s->layers = 2;
	s->blocks = sequences * max_blocks;
	s->shape = (struct ctn_attention_shape){heads, kv_heads, dim, (heads + 2 * kv_heads) * dim,
						1 / sqrtf((float)dim)};
	s->kv.layer_stride = 2ull * kv_heads * CTN_KV_BLOCK * dim;
	s->kv.block_stride = s->layers * s->kv.layer_stride;
	s->kv.base = random_floats(s->blocks * s->kv.block_stride);
	s->positions = alloc(sequences * max_context * sizeof(uint32_t));
	s->token_seq = alloc(sequences * max_context * sizeof(uint32_t));
	s->seq_start = alloc((sequences + 1) * sizeof(uint32_t));
	s->table_start = alloc(sequences * sizeof(uint32_t));
	s->block_table = alloc(s->blocks * sizeof(uint32_t));
	for (uint32_t i = 0; i < s->blocks; i++) { /* a random permutation */
		uint32_t j = rnd(i + 1);

		s->block_table[i] = s->block_table[j];
		s->block_table[j] = i;
	}
	s->seq_start[0] = 0;
	for (uint32_t q = 0; q < sequences; q++) {
		uint32_t context = 1 + rnd(max_context), fresh = 1 + rnd(context);

		s->table_start[q] = q * max_blocks;
		for (uint32_t i = context - fresh; i < context; i++) {
			s->positions[tokens] = i;
			s->token_seq[tokens++] = q;
		}
		s->seq_start[q + 1] = tokens;
	}
	s->qkv = random_floats((size_t)tokens * s->shape.qkv_stride);
	s->batch = (struct ctn_batch){tokens,       sequences,      s->positions,  s->seq_start,
				      s->token_seq, s->block_table, s->table_start};
}

static void scene_free(struct scene *s)
{
	free(s->kv.base);
	free(s->positions);
	free(s->token_seq);
	free(s->seq_start);
	free(s->table_start);
	free(s->block_table);
	free(s->qkv);
}

/* Address of k (0) or v (1) of a position by the words of kernels.h. */
static float *kv_at(const struct scene *s, uint32_t layer, uint32_t seq, uint32_t position,
		    uint32_t which, uint32_t head)
{
	uint64_t block = s->block_table[s->table_start[seq] + position / 16];
	uint64_t row = ((uint64_t)which * s->shape.kv_heads + head) * 16 + position % 16;

	return s->kv.base + block * s->kv.block_stride + layer * s->kv.layer_stride +
	       row * s->shape.head_dim;
}

static void naive_attention(const struct scene *s, uint32_t layer, uint32_t t, uint32_t head,
			    double *out)
{
	uint32_t dim = s->shape.head_dim, kv_head = head / (s->shape.heads / s->shape.kv_heads);
	uint32_t seq = s->token_seq[t], n = s->positions[t] + 1;
	const float *q = s->qkv + (size_t)t * s->shape.qkv_stride + head * dim;
	double *score = alloc(n * sizeof(double)), max = -INFINITY, sum = 0;

	for (uint32_t p = 0; p < n; p++) {
		const float *k = kv_at(s, layer, seq, p, 0, kv_head);

		score[p] = 0;
		for (uint32_t i = 0; i < dim; i++)
			score[p] += (double)q[i] * k[i];
		score[p] *= s->shape.scale;
		max = fmax(max, score[p]);
	}
	for (uint32_t p = 0; p < n; p++)
		sum += exp(score[p] - max);
	memset(out, 0, dim * sizeof(double));
	for (uint32_t p = 0; p < n; p++) {
		for (uint32_t i = 0; i < dim; i++)
			out[i] +=
				exp(score[p] - max) / sum * kv_at(s, layer, seq, p, 1, kv_head)[i];
	}
	free(score);
}

static void check_attention(uint32_t sequences, uint32_t heads, uint32_t kv_heads, uint32_t dim,
			    uint32_t max_context, float magnitude, double tolerance)
{
	struct scene s;
	uint32_t layer = 1;
	size_t bad = 0;
	double *want;
	float *out;

	scene_new(&s, sequences, heads, kv_heads, dim, max_context);
	for (uint32_t i = 0; i < s.batch.tokens * s.shape.qkv_stride; i++)
		s.qkv[i] *= i % s.shape.qkv_stride < heads * dim ? magnitude : 1; /* of q */
	want = alloc((size_t)s.batch.tokens * heads * dim * sizeof(double));
	out = random_floats((size_t)s.batch.tokens * heads * dim);

	K->kv_store(NULL, s.qkv, &s.batch, &s.shape, &s.kv, layer);
	for (uint32_t t = 0; t < s.batch.tokens; t++) {
		const float *k = s.qkv + (size_t)t * s.shape.qkv_stride + heads * dim;

		for (uint32_t h = 0; h < 2 * kv_heads; h++, k += dim)
			bad += memcmp(k,
				      kv_at(&s, layer, s.token_seq[t], s.positions[t], h / kv_heads,
					    h % kv_heads),
				      dim * sizeof(float)) != 0;
		for (uint32_t h = 0; h < heads; h++)
			naive_attention(&s, layer, t, h, want + ((size_t)t * heads + h) * dim);
	}
	CU_ASSERT_EQUAL(bad, 0);
	K->attention(NULL, out, s.qkv, &s.batch, &s.shape, &s.kv, layer);
	CU_ASSERT_EQUAL(off(out, want, (size_t)s.batch.tokens * heads * dim, tolerance), 0);
	free(want);
	free(out);
	scene_free(&s);
}

static void test_attention_over_paged_blocks(void)
{
	check_attention(1, 1, 1, 8, 1, 1, 1e-5);
	for (uint32_t round = 0; round < 12; round++) {
		uint32_t kv_heads = 1 + rnd(3);

		check_attention(1 + rnd(5), kv_heads * (1 + rnd(3)), kv_heads, 2 * (1 + rnd(20)),
				70, 1, 1e-5);
	}
	check_attention(1, 2, 1, 64, 1500, 1, 1e-5);
}

/* exp(score) alone would overflow; the rounding of such a score is what the tolerance is. */
static void test_attention_with_large_scores(void)
{
	check_attention(3, 4, 2, 16, 50, 1000, 1e-3);
}

static void test_rope_rotates_pairs_of_halves(void)
{
	struct scene s;
	uint32_t dim = 10, half = 5, heads = 3, kv_heads = 2;
	float inv_freq[5];
	double *want;
	size_t n;

	scene_new(&s, 3, heads, kv_heads, dim, 60);
	n = (size_t)s.batch.tokens * s.shape.qkv_stride;
	want = alloc(n * sizeof(double));
	for (uint32_t i = 0; i < half; i++)
		inv_freq[i] = (float)pow(10000, -2.0 * i / dim);
	for (size_t i = 0; i < n; i++) {
		uint32_t t = (uint32_t)(i / s.shape.qkv_stride);
		uint32_t in_row = (uint32_t)(i % s.shape.qkv_stride), j = in_row % dim;
		double angle = (double)s.positions[t] * inv_freq[j % half];

		if (in_row >= (heads + kv_heads) * dim)
			want[i] = s.qkv[i];
		else if (j < half)
			want[i] = s.qkv[i] * cos(angle) - s.qkv[i + half] * sin(angle);
		else
			want[i] = s.qkv[i] * cos(angle) + s.qkv[i - half] * sin(angle);
	}
	K->rope(NULL, s.qkv, &s.batch, &s.shape, inv_freq);
	CU_ASSERT_EQUAL(off(s.qkv, want, n, 1e-5), 0);
	free(want);
	scene_free(&s);
}

CTN_TESTS("attention", CTN_TEST(test_attention_over_paged_blocks),
	  CTN_TEST(test_attention_with_large_scores), CTN_TEST(test_rope_rotates_pairs_of_halves))
