// SPDX-License-Identifier: MIT
/* Sampling: values by arithmetic, numbers by numpy, distributions by chi-square. */
#include "test.h"
#include "model/model.h"

#include <errno.h>
#include <math.h>

#define DRAWS 20000

static const struct ctn_sampling greedy = {.temperature = 0, .top_p = 1};
static const struct ctn_sampling plain = {.temperature = 1, .top_p = 1, .seed = 7};

static struct ctn_sample sample(const float *logits, uint32_t vocab,
				const struct ctn_sampling *params, uint32_t position)
{
	void *scratch = malloc(ctn_sample_scratch(vocab));
	struct ctn_sample out = {.id = UINT32_MAX};

	CU_ASSERT_PTR_NOT_NULL_FATAL(scratch);
	CU_ASSERT_EQUAL(ctn_sample_token(logits, vocab, params, position, scratch, &out), 0);
	CU_ASSERT_FATAL(out.id < vocab);
	free(scratch);
	return out;
}

static void logits_of(float *logits, const double *p, uint32_t vocab)
{
	for (uint32_t i = 0; i < vocab; i++)
		logits[i] = (float)(log(p[i]) + 3); /* a shift changes nothing */
}

/* Draws at positions 0 .. DRAWS - 1 and counts. */
static void count_draws(const float *logits, uint32_t vocab, const struct ctn_sampling *params,
			uint32_t *counts)
{
	memset(counts, 0, vocab * sizeof(*counts));
	for (uint32_t position = 0; position < DRAWS; position++)
		counts[sample(logits, vocab, params, position).id]++;
}

/* Chi-square of counts against probabilities. */
static double chi_square(const uint32_t *counts, const double *p, uint32_t vocab)
{
	double chi = 0;

	for (uint32_t i = 0; i < vocab; i++)
		chi += pow(counts[i] - DRAWS * p[i], 2) / (DRAWS * p[i]);
	return chi;
}

/*
 * With equal logits the token is floor(u * vocab). u for (seed, position) by numpy 1.24:
 * numpy.random.Generator(numpy.random.Philox(key=seed, counter=position - 1)).random()
 */
static void test_random_numbers_are_philox(void)
{
	static const struct {
		uint64_t seed;
		uint32_t position;
		double u;
	} known[] = {
		{0, 0, 0.08723912359911234},
		{0, 1, 0.011546754286331562},
		{0, UINT32_MAX, 0.08411507392080286},
		{1, 0, 0.794901327418393},
		{42, 7, 0.8495411558862143},
		{UINT64_MAX, 0, 0.9833383464769775},
		{UINT64_MAX, UINT32_MAX, 0.4734541793912649},
		{0x9E3779B97F4A7C15u, 1, 0.5646189168389286},
	};
	float *logits = calloc(65536, sizeof(*logits));

	CU_ASSERT_PTR_NOT_NULL_FATAL(logits);
	for (size_t i = 0; i < CTN_ARRAY_LEN(known); i++) {
		struct ctn_sampling params = {.temperature = 1, .top_p = 1, .seed = known[i].seed};

		CU_ASSERT_EQUAL(sample(logits, 65536, &params, known[i].position).id,
				(uint32_t)(known[i].u * 65536));
	}
	free(logits);
}

static void test_greedy_takes_the_lowest_of_equal_ones(void)
{
	float logits[6] = {-1, 2, 0, 2, 2, -INFINITY};
	struct ctn_sample out = sample(logits, 6, &greedy, 3);

	CU_ASSERT_EQUAL(out.id, 1);
	CU_ASSERT_EQUAL(out.top_count, 0);
}

static void test_logprobs_are_of_the_unscaled_distribution(void)
{
	double p[4] = {0.125, 0.5, 0.25, 0.125};
	uint32_t best_first[4] = {1, 2, 0, 3};
	struct ctn_sampling params = {
		.temperature = 0.3f, .top_k = 1, .top_p = 0.1f, .logprobs = 20};
	float logits[4];
	struct ctn_sample out;

	logits_of(logits, p, 4);
	out = sample(logits, 4, &params, 0);
	CU_ASSERT_EQUAL(out.id, 1);
	CU_ASSERT_DOUBLE_EQUAL(out.logprob, log(0.5), 1e-6);
	CU_ASSERT_EQUAL_FATAL(out.top_count, 4);
	for (int i = 0; i < 4; i++) {
		CU_ASSERT_EQUAL(out.top_ids[i], best_first[i]);
		CU_ASSERT_DOUBLE_EQUAL(out.top_logprobs[i], log(p[best_first[i]]), 1e-6);
	}
}

static void test_a_given_token_is_scored(void)
{
	double p[4] = {0.125, 0.5, 0.25, 0.125};
	char scratch[64];
	float logits[4];
	struct ctn_sample out;

	logits_of(logits, p, 4);
	CU_ASSERT_FATAL(ctn_sample_scratch(4) <= sizeof(scratch));
	CU_ASSERT_EQUAL(ctn_score_token(logits, 4, 3, 2, scratch, &out), 0);
	CU_ASSERT_EQUAL(out.id, 3);
	CU_ASSERT_DOUBLE_EQUAL(out.logprob, log(0.125), 1e-6);
	CU_ASSERT_EQUAL(out.top_count, 2);
	CU_ASSERT_EQUAL(out.top_ids[0], 1);
	CU_ASSERT_EQUAL(out.top_ids[1], 2);
}

static void test_logits_without_a_largest_are_refused(void)
{
	float with_nan[3] = {1, NAN, 2}, infinite[3] = {1, INFINITY, 2};
	float nothing[3] = {-INFINITY, -INFINITY, -INFINITY};
	struct ctn_sample out;
	char scratch[64];

	CU_ASSERT_EQUAL(ctn_sample_token(with_nan, 3, &greedy, 0, scratch, &out), -EDOM);
	CU_ASSERT_EQUAL(ctn_sample_token(with_nan, 3, &plain, 0, scratch, &out), -EDOM);
	CU_ASSERT_EQUAL(ctn_sample_token(infinite, 3, &plain, 0, scratch, &out), -EDOM);
	CU_ASSERT_EQUAL(ctn_sample_token(nothing, 3, &plain, 0, scratch, &out), -EDOM);
	CU_ASSERT_EQUAL(ctn_score_token(with_nan, 3, 0, 0, scratch, &out), -EDOM);
}

static void test_masked_tokens_are_never_drawn(void)
{
	float logits[4] = {-INFINITY, 0, -INFINITY, 0};
	uint32_t counts[4];

	count_draws(logits, 4, &plain, counts);
	CU_ASSERT_EQUAL(counts[0] + counts[2], 0);
	CU_ASSERT(counts[1] > 0 && counts[3] > 0);
}

/* 20 tokens: 19 degrees of freedom, of which 1 in 1,000 is above 43.8. Of the masses p, a
 * temperature T makes p^(1/T). */
static void test_draws_follow_the_distribution(void)
{
	static const double temperatures[] = {0.5, 1, 2};
	double p[20], q[20], sum = 0;
	uint32_t counts[20];
	float logits[20];

	for (uint32_t i = 0; i < 20; i++)
		sum += p[i] = 1 + (i * 7) % 20;
	for (uint32_t i = 0; i < 20; i++)
		p[i] /= sum;
	logits_of(logits, p, 20);
	for (size_t t = 0; t < CTN_ARRAY_LEN(temperatures); t++) {
		struct ctn_sampling params = plain;

		params.temperature = (float)temperatures[t];
		sum = 0;
		for (uint32_t i = 0; i < 20; i++)
			sum += q[i] = pow(p[i], 1 / temperatures[t]);
		for (uint32_t i = 0; i < 20; i++)
			q[i] /= sum;
		count_draws(logits, 20, &params, counts);
		CU_ASSERT(chi_square(counts, q, 20) < 43.8);
	}
	/* The same over seeds at one position. */
	memset(counts, 0, sizeof(counts));
	for (uint32_t seed = 0; seed < DRAWS; seed++) {
		struct ctn_sampling params = plain;

		params.seed = seed;
		counts[sample(logits, 20, &params, 12).id]++;
	}
	CU_ASSERT(chi_square(counts, p, 20) < 43.8);
}

/* The tokens that stay have their masses relative to each other: 3 tokens, 2 degrees of
 * freedom, 1 in 1,000 above 13.8. */
static void check_kept(const double *p, uint32_t vocab, uint32_t top_k, float top_p,
		       const double *kept)
{
	struct ctn_sampling params = plain;
	float logits[8];
	uint32_t counts[8];
	double chi = 0;

	params.top_k = top_k;
	params.top_p = top_p;
	logits_of(logits, p, vocab);
	count_draws(logits, vocab, &params, counts);
	for (uint32_t i = 0; i < vocab; i++) {
		if (kept[i] > 0)
			chi += pow(counts[i] - DRAWS * kept[i], 2) / (DRAWS * kept[i]);
		else
			CU_ASSERT_EQUAL(counts[i], 0);
	}
	CU_ASSERT(chi < 13.8);
}

static void test_top_k_and_top_p(void)
{
	static const double p[4] = {0.1, 0.4, 0.2, 0.3};
	static const double best[4] = {0, 1, 0, 0};
	static const double two[4] = {0, 4 / 7.0, 0, 3 / 7.0};
	static const double three[4] = {0, 4 / 9.0, 2 / 9.0, 3 / 9.0};

	check_kept(p, 4, 0, 1, p);
	check_kept(p, 4, 9, 1, p);
	check_kept(p, 4, 1, 1, best);
	check_kept(p, 4, 2, 1, two);
	check_kept(p, 4, 0, 0, best); /* at least one stays */
	check_kept(p, 4, 0, 0.39f, best);
	check_kept(p, 4, 0, 0.41f, two);
	check_kept(p, 4, 0, 0.71f, three);
	/* top_p is of what top_k left: 4/7 is more than 0.5, 0.4 is less. */
	check_kept(p, 4, 2, 0.5f, best);
	check_kept(p, 4, 2, 0.6f, two);
}

/* top-p looks at the distribution after the temperature: 16/30 = 0.53 of it is the first. */
static void test_temperature_comes_before_top_p(void)
{
	static const double p[4] = {0.1, 0.4, 0.2, 0.3};
	struct ctn_sampling params = plain;
	float logits[4];
	uint32_t counts[4];

	logits_of(logits, p, 4);
	params.temperature = 0.5f;
	params.top_p = 0.5f;
	count_draws(logits, 4, &params, counts);
	CU_ASSERT_EQUAL(counts[1], DRAWS);
}

static void test_equal_tokens_are_kept_by_lowest_id(void)
{
	static const double p[5] = {0.1, 0.225, 0.225, 0.225, 0.225};
	static const double kept[5] = {0, 0.5, 0.5, 0, 0};

	static const double equal[4] = {0.25, 0.25, 0.25, 0.25};
	static const double half[4] = {0.5, 0.5, 0, 0};

	/* Half of the mass is enough for 0.5: equal masses add up exactly. */
	check_kept(equal, 4, 0, 0.5f, half);
	check_kept(p, 5, 2, 1, kept);
	check_kept(p, 5, 0, 0.44f, kept);
}

static void test_a_tiny_temperature_is_greedy(void)
{
	struct ctn_sampling params = plain;
	float logits[3] = {1, 1.0001f, -1e30f};

	params.temperature = 1e-30f;
	for (uint32_t position = 0; position < 50; position++)
		CU_ASSERT_EQUAL(sample(logits, 3, &params, position).id, 1);
}

/* The heap against a sort, on a vocabulary with many ties. */
static int by_logit_then_id(const void *a, const void *b)
{
	const float *x = *(const float *const *)a, *y = *(const float *const *)b;

	if (*x != *y)
		return *x > *y ? -1 : 1;
	return x < y ? -1 : 1;
}

static void test_top_tokens_are_in_order(void)
{
	enum { VOCAB = 1009 };
	const float *sorted[VOCAB];
	float logits[VOCAB];
	struct ctn_sampling params = greedy;
	struct ctn_sample out;

	for (uint32_t i = 0; i < VOCAB; i++) {
		logits[i] = (float)(i * 611 % VOCAB / 7);
		sorted[i] = &logits[i];
	}
	qsort(sorted, VOCAB, sizeof(sorted[0]), by_logit_then_id);
	params.logprobs = 99; /* more than are reported */
	out = sample(logits, VOCAB, &params, 0);
	CU_ASSERT_EQUAL_FATAL(out.top_count, CTN_MAX_TOP_LOGPROBS);
	CU_ASSERT_EQUAL(out.id, out.top_ids[0]);
	for (uint32_t i = 0; i < out.top_count; i++)
		CU_ASSERT_EQUAL(out.top_ids[i], (uint32_t)(sorted[i] - logits));
}

CTN_TESTS("sampling", CTN_TEST(test_random_numbers_are_philox),
	  CTN_TEST(test_greedy_takes_the_lowest_of_equal_ones),
	  CTN_TEST(test_logprobs_are_of_the_unscaled_distribution),
	  CTN_TEST(test_a_given_token_is_scored),
	  CTN_TEST(test_logits_without_a_largest_are_refused),
	  CTN_TEST(test_masked_tokens_are_never_drawn),
	  CTN_TEST(test_draws_follow_the_distribution), CTN_TEST(test_top_k_and_top_p),
	  CTN_TEST(test_temperature_comes_before_top_p),
	  CTN_TEST(test_equal_tokens_are_kept_by_lowest_id),
	  CTN_TEST(test_a_tiny_temperature_is_greedy), CTN_TEST(test_top_tokens_are_in_order))
