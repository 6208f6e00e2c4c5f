// SPDX-License-Identifier: MIT
/*
 * Every (tp, pp) says what (1, 1) and the numpy reference say: logits within 1e-4, and the same
 * greedy ids unless the reference's two largest logits are nearer than 1e-3 to each other. Weights
 * and prompts come from the commit under test: CTN_SEED=HEX repeats them.
 */
#include "test.h"
#include "ranks.h"
#include "reference.h"

#define MORE 24u /* greedy ids */

static const struct ctn_limits limits = {
	.max_tokens = 32, .max_sequences = 1, .max_blocks = 8, .max_rows = 32};
#define KV_BLOCKS 11u

static const uint32_t degrees[] = {1, 2, 4};

static uint32_t commit_seed(void)
{
	static uint32_t seed;
	const char *given = getenv("CTN_SEED");
	char command[4200], head[64] = "";
	FILE *f;

	if (seed)
		return seed;
	snprintf(command, sizeof(command), "git -C '%s' rev-parse HEAD 2>/dev/null",
		 ctn_tests_dir());
	f = given ? NULL : popen(command, "r");
	if (f && !fgets(head, 9, f))
		head[0] = '\0';
	if (f)
		pclose(f);
	seed = (uint32_t)strtoul(given ? given : head, NULL, 16) | 1;
	printf("# seed %x (CTN_SEED=%x repeats this)\n", seed, seed);
	return seed;
}

static void random_ids(uint32_t *ids, uint32_t vocab, uint32_t seed)
{
	uint64_t x = seed * 2654435761ull + 1;

	for (uint32_t i = 0; i < REF_IDS; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		ids[i] = 3 + (uint32_t)((x >> 33) % (vocab - 3));
	}
}

/* Goes on greedily after the ids; false at a difference that no small gap explains. */
static bool greedy_agrees(struct ranks *r, struct seq *seq, json_t *answer)
{
	json_t *want = json_object_get(answer, "greedy"), *gaps = json_object_get(answer, "gaps");
	struct seq *seqs[] = {seq};
	float *logits = new_logits(r);
	uint32_t one = 1;
	bool same = true;

	CU_ASSERT_FATAL(json_array_size(want) > 0);
	for (size_t i = 0; i < json_array_size(want); i++) {
		if (seq->ids[REF_IDS + i] != json_integer_value(json_array_get(want, i))) {
			same = json_number_value(json_array_get(gaps, i)) < 1e-3;
			break;
		}
		feed(r, seqs, &one, 1, logits);
		seq->ids[seq->len++] = argmax(logits, r->ckpt->arch.vocab);
	}
	free(logits);
	return same;
}

/* All logits of the ids in one go, as far as a step takes them; for the difference from (1, 1). */
static float *rows_of(struct ranks *r, const uint32_t *ids)
{
	struct seq seq = {.len = limits.max_rows}, *seqs[] = {&seq};
	float *logits = new_logits(r);

	memcpy(seq.ids, ids, limits.max_rows * sizeof(uint32_t));
	r->kv_next = 0;
	feed(r, seqs, &seq.len, 1, logits);
	return logits;
}

static void check_all_splits(const char *dir, const char *name, uint32_t seed)
{
	struct ctn_checkpoint *ckpt;
	struct ctn_err err = {0};
	double worst = 0, apart = 0;
	uint32_t ids[REF_IDS];
	float *single = NULL;
	size_t floats;
	json_t *answer;

	CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open(dir, &ckpt, &err), 0);
	random_ids(ids, ckpt->arch.vocab, seed);
	floats = (size_t)limits.max_rows * ckpt->arch.vocab;
	ctn_checkpoint_close(ckpt);
	answer = ask_reference(dir, ids, MORE);
	for (size_t t = 0; t < CTN_ARRAY_LEN(degrees); t++) {
		for (size_t p = 0; p < CTN_ARRAY_LEN(degrees); p++) {
			struct ranks *r =
				ranks_new(dir, degrees[t], degrees[p], &limits, KV_BLOCKS);
			double diff, own;
			float *rows;
			struct seq seq;

			CU_ASSERT_PTR_NOT_NULL_FATAL(r);
			diff = diff_from(r, &seq, ids, answer);
			if (!(diff < 1e-4) || !greedy_agrees(r, &seq, answer)) {
				printf("# %s, tp %u, pp %u: max |diff| %.2g\n", name, degrees[t],
				       degrees[p], diff);
				CU_FAIL("a split that differs from the reference");
			}
			rows = rows_of(r, ids);
			own = single ? max_diff(rows, single, floats) : 0;
			if (single)
				free(rows);
			else
				single = rows;
			CU_ASSERT(own < 1e-4);
			worst = fmax(worst, diff);
			apart = fmax(apart, own);
			ranks_free(r);
		}
	}
	printf("# %s: max |diff| from the reference %.2g, from (1, 1) %.2g\n", name, worst, apart);
	free(single);
	json_decref(answer);
}

static void test_real_models(void)
{
	static const char *const names[] = {"llama-stories260k", "opt-tinystories",
					    "gpt2-tinystories"};

	for (uint32_t i = 0; i < CTN_ARRAY_LEN(names); i++) {
		char dir[4200];

		snprintf(dir, sizeof(dir), "%s/models/%s", ctn_tests_dir(), names[i]);
		check_all_splits(dir, names[i], commit_seed() + i);
	}
}

/* Layers that no pp divides, a vocabulary that no tp divides, fewer key-value heads than ranks. */
#define AWKWARD_5 "--layers 5 --vocab 509 --untied"
#define AWKWARD_7 "--layers 7 --vocab 509 --untied"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define EVERY 4u /* slow there, and the arithmetic is the same */
#else
#define EVERY 1u
#endif

static void test_generated_models(void)
{
	static const char *const options[] = {
		"--family llama --dtype f16 --kv-heads 1 " AWKWARD_5,
		"--family llama --dtype bf16 --heads 8 --kv-heads 2 --rope llama3 " AWKWARD_7,
		"--family mistral --dtype f16 --heads 8 --kv-heads 2 " AWKWARD_7,
		"--family mistral --dtype bf16 --kv-heads 1 " AWKWARD_5,
		"--family qwen2 --dtype f16 --kv-heads 2 " AWKWARD_5,
		"--family qwen2 --dtype bf16 --kv-heads 1 " AWKWARD_7,
		"--family opt --dtype f16 " AWKWARD_5,
		"--family opt --dtype bf16 " AWKWARD_7,
		"--family gpt2 --dtype f16 " AWKWARD_7,
		"--family gpt2 --dtype bf16 " AWKWARD_5,
	};

	for (uint32_t i = 0; i < CTN_ARRAY_LEN(options); i += EVERY) {
		char dir[4200];

		snprintf(dir, sizeof(dir), "%s/%u", ctn_test_tmpdir(), i);
		generate(dir, commit_seed() + i, options[i]);
		check_all_splits(dir, options[i], commit_seed() + i);
	}
}

CTN_TESTS("model_splits", CTN_TEST(test_real_models), CTN_TEST(test_generated_models))
