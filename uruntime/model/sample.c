// SPDX-License-Identifier: MIT
/*
 * Choosing a token from logits.
 *
 * All choices are made over one order of the vocabulary: by logit, largest first, ties by id,
 * lowest first. It is never sorted as a whole: a heap gives the next token when it is asked
 * for, and few are.
 */
#include "model/model.h"

#include <errno.h>
#include <math.h>

struct entry {
	uint32_t id;
	float logit;
};

/*
 * The vocabulary in order. entries[0 .. left) is a heap with the first token that was not yet
 * taken on top; the i-th taken token stands at entries[vocab - 1 - i].
 */
struct order {
	struct entry *entries;
	uint32_t vocab;
	uint32_t left;
};

size_t ctn_sample_scratch(uint32_t vocab)
{
	return vocab * sizeof(struct entry);
}

static bool comes_before(const struct entry *a, const struct entry *b)
{
	return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void sift_down(struct order *order, uint32_t i)
{
	struct entry moving = order->entries[i];

	for (;;) {
		uint64_t child = 2 * (uint64_t)i + 1;

		if (child >= order->left)
			break;
		if (child + 1 < order->left &&
		    comes_before(&order->entries[child + 1], &order->entries[child]))
			child++;
		if (!comes_before(&order->entries[child], &moving))
			break;
		order->entries[i] = order->entries[child];
		i = (uint32_t)child;
	}
	order->entries[i] = moving;
}

static void order_init(struct order *order, const float *logits, uint32_t vocab, void *scratch)
{
	*order = (struct order){scratch, vocab, vocab};
	for (uint32_t i = 0; i < vocab; i++)
		order->entries[i] = (struct entry){i, logits[i]};
	for (uint32_t i = vocab / 2; i-- > 0;)
		sift_down(order, i);
}

/* The i-th token of the order; i < vocab. */
static const struct entry *order_get(struct order *order, uint32_t i)
{
	while (order->vocab - order->left <= i) {
		struct entry top = order->entries[0];

		order->entries[0] = order->entries[--order->left];
		sift_down(order, 0);
		order->entries[order->left] = top;
	}
	return &order->entries[order->vocab - 1 - i];
}

/*
 * Uniform in [0, 1): the first output of Philox4x64-10 (Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3", 2011) for key (seed, 0) and counter (position, 0, 0, 0). It is
 * what numpy gives for Generator(Philox(key=seed, counter=position - 1)).random().
 */
static double uniform(uint64_t seed, uint64_t position)
{
	uint64_t c[4] = {position, 0, 0, 0};
	uint64_t k[2] = {seed, 0};

	for (int round = 0; round < 10; round++) {
		unsigned __int128 a = (unsigned __int128)0xD2E7470EE14C6C93u * c[0];
		unsigned __int128 b = (unsigned __int128)0xCA5A826395121157u * c[2];

		c[0] = (uint64_t)(b >> 64) ^ c[1] ^ k[0];
		c[1] = (uint64_t)b;
		c[2] = (uint64_t)(a >> 64) ^ c[3] ^ k[1];
		c[3] = (uint64_t)a;
		k[0] += 0x9E3779B97F4A7C15u;
		k[1] += 0xBB67AE8584CAA73Bu;
	}
	return (double)(c[0] >> 11) * 0x1p-53;
}

/* Index of the largest logit, the lowest of equal ones. -EDOM when there is a NaN or no
 * finite largest one. */
static int find_largest(const float *logits, uint32_t vocab, uint32_t *largest)
{
	*largest = 0;
	for (uint32_t i = 0; i < vocab; i++) {
		if (isnan(logits[i]))
			return -EDOM;
		if (logits[i] > logits[*largest])
			*largest = i;
	}
	return isfinite(logits[*largest]) ? 0 : -EDOM;
}

/* Mass of a token relative to the most likely one. */
static double mass_of(float logit, float max, double temperature)
{
	return exp(((double)logit - max) / temperature);
}

static double total_mass(const float *logits, uint32_t vocab, float max, double temperature)
{
	double sum = 0;

	for (uint32_t i = 0; i < vocab; i++)
		sum += mass_of(logits[i], max, temperature);
	return sum;
}

/*
 * Temperature, then the top_k most likely tokens, then the fewest of these whose mass is at
 * least top_p of theirs; then one of them by its mass.
 */
static uint32_t draw(struct order *order, const float *logits, float max,
		     const struct ctn_sampling *params, uint32_t position)
{
	uint32_t vocab = order->vocab, id = 0;
	uint32_t kept = params->top_k > 0 ? CTN_MIN(params->top_k, vocab) : vocab;
	double temperature = params->temperature;
	double mass = 0, target, sum = 0;

	if (kept == vocab) {
		mass = total_mass(logits, vocab, max, temperature);
	} else {
		for (uint32_t i = 0; i < kept; i++)
			mass += mass_of(order_get(order, i)->logit, max, temperature);
	}
	if (params->top_p < 1) {
		double enough = params->top_p * mass;
		uint32_t i = 0;

		do {
			sum += mass_of(order_get(order, i++)->logit, max, temperature);
		} while (sum < enough && i < kept);
		kept = i;
		mass = sum;
		sum = 0;
	}
	target = uniform(params->seed, position) * mass;
	/* Sums in another order than the total may stay below the target by rounding: then it is
	 * the last token that has any mass. */
	for (uint32_t i = 0; i < kept && sum <= target; i++) {
		const struct entry *entry = order_get(order, i);
		double m = mass_of(entry->logit, max, temperature);

		if (m == 0)
			break;
		id = entry->id;
		sum += m;
	}
	return id;
}

static void report(struct order *order, const float *logits, float max, uint32_t logprobs,
		   struct ctn_sample *out)
{
	double log_total = log(total_mass(logits, order->vocab, max, 1));

	out->logprob = (float)((double)logits[out->id] - max - log_total);
	out->top_count = CTN_MIN(CTN_MIN(logprobs, CTN_MAX_TOP_LOGPROBS), order->vocab);
	for (uint32_t i = 0; i < out->top_count; i++) {
		const struct entry *entry = order_get(order, i);

		out->top_ids[i] = entry->id;
		out->top_logprobs[i] = (float)((double)entry->logit - max - log_total);
	}
}

int ctn_sample_token(const float *logits, uint32_t vocab, const struct ctn_sampling *params,
		     uint32_t position, void *scratch, struct ctn_sample *out)
{
	bool greedy = params->temperature == 0;
	struct order order = {scratch, vocab, vocab};
	uint32_t largest;
	int rc;

	CTN_ASSERT(vocab > 0 && params->temperature >= 0);
	rc = find_largest(logits, vocab, &largest);
	if (rc)
		return rc;
	if (!greedy || params->logprobs > 0)
		order_init(&order, logits, vocab, scratch);
	out->id = greedy ? largest : draw(&order, logits, logits[largest], params, position);
	report(&order, logits, logits[largest], params->logprobs, out);
	return 0;
}

int ctn_score_token(const float *logits, uint32_t vocab, uint32_t id, uint32_t logprobs,
		    void *scratch, struct ctn_sample *out)
{
	struct order order = {scratch, vocab, vocab};
	uint32_t largest;
	int rc;

	CTN_ASSERT(id < vocab);
	rc = find_largest(logits, vocab, &largest);
	if (rc)
		return rc;
	if (logprobs > 0)
		order_init(&order, logits, vocab, scratch);
	out->id = id;
	report(&order, logits, logits[largest], logprobs, out);
	return 0;
}
