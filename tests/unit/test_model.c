// SPDX-License-Identifier: MIT
/*
 * The decoder against what others computed: golden.json of the sample models, and the numpy
 * reference of tests/ref on generated checkpoints of every family, for many splits over ranks.
 */
#include "test.h"
#include "ranks.h"
#include "reference.h"

static const struct ctn_limits limits = {
	.max_tokens = 64, .max_sequences = 4, .max_blocks = 40, .max_rows = 64};
#define KV_BLOCKS 53u

static const char *const models[] = {"llama-stories260k", "opt-tinystories", "gpt2-tinystories"};

static const struct split {
	uint32_t tp, pp;
} splits[] = {{1, 1}, {2, 1}, {4, 1}, {1, 2}, {1, 4}, {2, 2}, {4, 2}, {2, 4}, {4, 4}};

static const char *model_dir(const char *name)
{
	static char dir[4096];

	snprintf(dir, sizeof(dir), "%s/models/%s", ctn_tests_dir(), name);
	return dir;
}

static struct ranks *must_split(const char *dir, uint32_t tp, uint32_t pp)
{
	struct ranks *r = ranks_new(dir, tp, pp, &limits, KV_BLOCKS);

	CU_ASSERT_PTR_NOT_NULL_FATAL(r);
	return r;
}

/* ---- golden.json ---- */

struct golden {
	uint32_t ids[MAX_CONTEXT];
	uint32_t count;
	float first8[8];
	uint32_t argmax;
};

static struct golden load_golden(const char *dir)
{
	struct golden g = {0};
	char path[4096 + 16];
	json_t *root, *ids, *first8;

	snprintf(path, sizeof(path), "%s/golden.json", dir);
	root = json_load_file(path, 0, NULL);
	ids = json_object_get(root, "greedy_ids_from_bos");
	first8 = json_object_get(root, "logits_after_first_16_ids_first8");
	g.count = (uint32_t)json_array_size(ids);
	CU_ASSERT_FATAL(g.count > 40 && g.count <= MAX_CONTEXT && json_array_size(first8) == 8);
	for (uint32_t i = 0; i < g.count; i++)
		g.ids[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
	for (uint32_t i = 0; i < 8; i++)
		g.first8[i] = (float)json_real_value(json_array_get(first8, i));
	g.argmax = (uint32_t)json_integer_value(json_object_get(root, "argmax"));
	json_decref(root);
	return g;
}

/* The first 16 ids in one chunk; returns the difference of the first 8 logits. */
static double check_first_logits(struct ranks *r, const struct golden *g)
{
	struct seq seq = {.len = 16}, *seqs[] = {&seq};
	uint32_t vocab = r->ckpt->arch.vocab, count = 16;
	float *logits = new_logits(r), *last = logits + 15 * (size_t)vocab;
	double diff;

	memcpy(seq.ids, g->ids, 16 * sizeof(uint32_t));
	feed(r, seqs, &count, 1, logits);
	diff = max_diff(last, g->first8, 8);
	CU_ASSERT(diff < 1e-4);
	CU_ASSERT_EQUAL(argmax(last, vocab), g->argmax);
	free(logits);
	return diff;
}

/* From the first id on, `count` ids in all, one token a step. */
static void check_greedy(struct ranks *r, const struct golden *g, uint32_t count)
{
	struct seq seq = {.len = 1, .ids = {g->ids[0]}}, *seqs[] = {&seq};
	float *logits = new_logits(r);
	uint32_t one = 1;

	while (seq.len < count) {
		feed(r, seqs, &one, 1, logits);
		seq.ids[seq.len++] = argmax(logits, r->ckpt->arch.vocab);
	}
	CU_ASSERT_EQUAL(memcmp(seq.ids, g->ids, count * sizeof(uint32_t)), 0);
	free(logits);
}

static void test_sample_models_give_their_golden_text(void)
{
	for (size_t m = 0; m < CTN_ARRAY_LEN(models); m++) {
		struct golden g = load_golden(model_dir(models[m]));
		struct ranks *r = must_split(model_dir(models[m]), 1, 1);

		printf("# %s: max |diff| of the golden logits %.2g\n", models[m],
		       check_first_logits(r, &g));
		check_greedy(r, &g, g.count);
		ranks_free(r);
	}
}

static void test_every_split_gives_the_golden_text(void)
{
	for (size_t m = 0; m < CTN_ARRAY_LEN(models); m++) {
		struct golden g = load_golden(model_dir(models[m]));
		double worst = 0;

		for (size_t s = 1; s < CTN_ARRAY_LEN(splits); s++) {
			struct ranks *r =
				must_split(model_dir(models[m]), splits[s].tp, splits[s].pp);

			worst = fmax(worst, check_first_logits(r, &g));
			check_greedy(r, &g, 48);
			ranks_free(r);
		}
		printf("# %s: max |diff| of the golden logits over all splits %.2g\n", models[m],
		       worst);
	}
}

/* ---- chunks and batches ---- */

static void test_chunks_and_mixed_batches_change_nothing(void)
{
	/* What each of three sequences feeds in each step: chunks of odd sizes beside single
	 * tokens, sequences that come and go. */
	static const uint32_t schedule[][3] = {{5, 0, 0},  {1, 13, 0}, {1, 1, 31}, {1, 17, 3},
					       {0, 1, 1},  {23, 1, 1}, {1, 0, 7},  {1, 1, 1},
					       {13, 9, 3}, {1, 4, 0}};

	for (size_t m = 0; m < CTN_ARRAY_LEN(models); m++) {
		struct golden g = load_golden(model_dir(models[m]));
		struct ranks *r = must_split(model_dir(models[m]), 1, 1);
		uint32_t vocab = r->ckpt->arch.vocab;
		struct seq seqs[3] = {0};
		float *want[3], *logits = new_logits(r);
		double worst = 0;

		for (uint32_t i = 0; i < 3; i++) { /* alone, in one chunk */
			struct seq alone = {.len = 47}, *one[] = {&alone};

			memcpy(alone.ids, g.ids + 11 * i, 47 * sizeof(uint32_t));
			want[i] = new_logits(r);
			feed(r, one, &alone.len, 1, want[i]);
			seqs[i] = (struct seq){.len = 47};
			memcpy(seqs[i].ids, alone.ids, sizeof(alone.ids));
		}
		for (size_t s = 0; s < CTN_ARRAY_LEN(schedule); s++) {
			struct seq *active[3];
			uint32_t counts[3], before[3], n = 0;
			const float *row = logits;

			for (uint32_t i = 3; i-- > 0;) { /* another order than that of blocks */
				if (schedule[s][i] == 0)
					continue;
				before[n] = seqs[i].done;
				counts[n] = schedule[s][i];
				active[n++] = &seqs[i];
			}
			feed(r, active, counts, n, logits);
			for (uint32_t i = 0; i < n; i++) {
				size_t floats = (size_t)counts[i] * vocab;

				worst = fmax(worst, max_diff(row,
							     want[active[i] - seqs] +
								     (size_t)before[i] * vocab,
							     floats));
				row += floats;
			}
		}
		for (uint32_t i = 0; i < 3; i++) {
			CU_ASSERT_EQUAL(seqs[i].done, 47);
			free(want[i]);
		}
		printf("# %s: max |diff| between chunks and one chunk %.2g\n", models[m], worst);
		CU_ASSERT(worst < 5e-5);
		free(logits);
		ranks_free(r);
	}
}

/* ---- the reference ---- */

static void check_generated(const char *options, uint32_t number)
{
	static const struct split some[] = {{1, 1}, {2, 1}, {1, 3}, {4, 1}, {4, 2}};
	uint32_t ids[REF_IDS], ran = 0;
	char dir[4200];
	json_t *root;

	snprintf(dir, sizeof(dir), "%s/%u", ctn_test_tmpdir(), number);
	generate(dir, number, options);
	for (uint32_t i = 0; i < REF_IDS; i++)
		ids[i] = (i * 37 + number) % 500;
	root = ask_reference(dir, ids, 0);
	for (size_t s = 0; s < CTN_ARRAY_LEN(some); s++) {
		struct ranks *r = ranks_new(dir, some[s].tp, some[s].pp, &limits, KV_BLOCKS);
		struct seq seq = {0};
		double diff;

		if (!r)
			continue;
		ran++;
		diff = diff_from(r, &seq, ids, root);
		if (s == 0 || !(diff < 1e-4))
			printf("# %s, tp %u, pp %u: max |diff| %.2g\n", options, some[s].tp,
			       some[s].pp, diff);
		CU_ASSERT(diff < 1e-4);
		ranks_free(r);
	}
	CU_ASSERT(ran >= 3); /* splits that the heads allow */
	json_decref(root);
}

/* Key-value heads fewer than ranks, a vocabulary that ranks do not divide, heads that are
 * wider than hidden / heads, and every switch of the families. */
#define OPT_PLAIN "--family opt --set enable_bias=false --set layer_norm_elementwise_affine=false"

static void test_generated_checkpoints_equal_the_reference(void)
{
	static const char *const options[] = {
		"--family llama --dtype f32 --untied",
		"--family llama --dtype bf16 --rope llama3 --kv-heads 2 --tied",
		"--family llama --dtype f16 --rope linear --bias --untied --vocab 509",
		"--family llama --dtype bf16 --kv-heads 1 --vocab 501 --tied --set head_dim=24",
		"--family mistral --dtype bf16",
		"--family qwen2 --dtype f16 --tied --vocab 503",
		"--family opt --dtype f16 --vocab 511",
		OPT_PLAIN,
		"--family opt350 --dtype bf16",
		"--family opt350 --dtype f32 --vocab 510",
		"--family gpt2 --dtype f32 --untied",
		"--family gpt2 --dtype bf16 --vocab 507",
	};

	for (uint32_t i = 0; i < CTN_ARRAY_LEN(options); i++)
		check_generated(options[i], i + 1);
}

/* ---- the step and its failures ---- */

static void test_layers_are_waited_for_once_and_in_order(void)
{
	struct ranks *r = must_split(model_dir(models[0]), 1, 2);
	struct seq seq = {.len = 3, .ids = {1, 2, 3}}, *seqs[] = {&seq};
	uint32_t all = ctn_layer_count(&r->ckpt->arch), next = 0;
	float *logits = new_logits(r);

	feed(r, seqs, &seq.len, 1, logits);
	for (uint32_t i = 0; i < 2; i++) {
		CU_ASSERT_EQUAL(r->rank[i].waits, r->plan->ranks[i].layer_count);
		for (uint32_t k = 0; k < r->rank[i].waits; k++)
			CU_ASSERT_EQUAL(r->rank[i].waited[k], next++);
	}
	CU_ASSERT_EQUAL(next, all);
	free(logits);
	ranks_free(r);
}

static void test_a_step_without_rows_does_not_touch_the_head(void)
{
	struct golden g = load_golden(model_dir(models[0]));
	struct ranks *r = must_split(model_dir(models[0]), 1, 1);
	uint32_t head = ctn_layer_count(&r->ckpt->arch) - 1, one = 1;
	struct seq seq = {.len = 15}, *seqs[] = {&seq};
	float *logits = new_logits(r);
	struct ctn_step *step;

	memcpy(seq.ids, g.ids, 16 * sizeof(uint32_t));
	step = step_of(r, seqs, &seq.len, 1);
	step->rows = 0;
	CU_ASSERT_EQUAL(ranks_forward(r, step, NULL), 0);
	CU_ASSERT_EQUAL(r->rank[0].waits, head);
	seq.len = 16;
	seq.done = 15;
	feed(r, seqs, &one, 1, logits);
	CU_ASSERT(max_diff(logits, g.first8, 8) < 1e-4);
	ctn_step_free(step);
	free(logits);
	ranks_free(r);
}

/* A layer that does not come ends the step on all ranks, and the next step is right. */
static void test_a_failed_wait_ends_the_step_everywhere(void)
{
	struct golden g = load_golden(model_dir(models[1]));
	struct ranks *r = must_split(model_dir(models[1]), 2, 2);
	struct seq seq = {.len = 5, .ids = {1, 2, 3, 4, 5}}, *seqs[] = {&seq};
	struct ctn_step *step = step_of(r, seqs, &seq.len, 1);
	float *logits = new_logits(r);

	r->rank[1].fail_wait_at = 1;
	CU_ASSERT_EQUAL(ranks_forward(r, step, logits), -EPIPE);
	CU_ASSERT_EQUAL(r->rank[1].rc, -ECANCELED);
	CU_ASSERT_PTR_NOT_NULL(strstr(r->rank[1].err.msg, "layer 1"));
	CU_ASSERT_EQUAL(r->rank[2].rc, -EPIPE);
	CU_ASSERT_EQUAL(r->rank[3].rc, -EPIPE);
	r->rank[1].fail_wait_at = -1;
	for (uint32_t i = 0; i < 2; i++) {
		ctn_comm_reset(r->tp_groups[i]);
		ctn_comm_reset(r->pp_groups[i]);
	}
	check_first_logits(r, &g);
	ctn_step_free(step);
	free(logits);
	ranks_free(r);
}

static void check_refused(struct ranks *r, const struct ctn_step *step, float *logits,
			  const char *word)
{
	CU_ASSERT_EQUAL(ranks_forward(r, step, logits), -EINVAL);
	CU_ASSERT_EQUAL(r->rank[0].waits, 0);
	if (!strstr(r->rank[0].err.msg, word))
		printf("# expected \"%s\" in: %s\n", word, r->rank[0].err.msg);
	CU_ASSERT_PTR_NOT_NULL(strstr(r->rank[0].err.msg, word));
}

/* Each is one change to a step that is right. */
static void test_steps_that_break_a_rule_are_refused(void)
{
	struct ranks *r = must_split(model_dir(models[0]), 1, 1);
	struct seq a = {.len = 20}, b = {.len = 3}, *seqs[] = {&a, &b};
	uint32_t counts[2] = {20, 3};
	struct ctn_step *step = step_of(r, seqs, counts, 2);
	float *logits = new_logits(r);

#define WITH(field, value, word)                      \
	do {                                          \
		uint32_t kept = step->field;          \
		step->field = value;                  \
		check_refused(r, step, logits, word); \
		step->field = kept;                   \
	} while (0)

	WITH(tokens, 0, "tokens");
	WITH(tokens, limits.max_tokens + 1, "tokens");
	WITH(sequences, 0, "sequences");
	WITH(sequences, limits.max_sequences + 1, "sequences");
	WITH(blocks, limits.max_blocks + 1, "blocks");
	WITH(rows, limits.max_rows + 1, "rows");
	WITH(ids[4], 512, "id 512");
	WITH(positions[7], 8, "position 8");
	WITH(positions[22], 511, "position 511");
	WITH(seq_start[0], 1, "1 to 23");
	WITH(seq_start[1], 0, "sequence 0");
	WITH(seq_start[1], 24, "sequence 0");
	WITH(seq_start[1], 23, "token 20");
	WITH(seq_start[2], 22, "0 to 22");
	WITH(table_start[1], 3, "block table");
	WITH(table_start[0], UINT32_MAX, "block table");
	WITH(blocks, 1, "block table");
	WITH(row_tokens[3], 23, "row 3");
	/* positions that are in order, but beyond the model's last */
	for (uint32_t i = 0; i < 3; i++)
		step->positions[20 + i] = 510 + i;
	check_refused(r, step, logits, "position 512");
	for (uint32_t i = 0; i < 3; i++)
		step->positions[20 + i] = i;
	check_refused(r, step, NULL, "rows of logits");
	CU_ASSERT_EQUAL(ranks_forward(r, step, logits), 0);
	ctn_step_free(step);
	free(logits);
	ranks_free(r);
}

static void test_a_decoder_wants_the_comms_of_its_plan(void)
{
	struct ranks *r = must_split(model_dir(models[0]), 2, 1);
	struct ctn_decoder_config cfg = {.plan = r->plan,
					 .rank = 1,
					 .dev = r->rank[1].dev,
					 .tp = r->tp_comms[0],
					 .limits = limits,
					 .pieces = (void *const *const *)r->rank[1].pieces};
	struct ctn_decoder *dec;
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL(ctn_decoder_new(&cfg, &dec, &err), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "rank 0 of 2, expected 1 of 2"));
	cfg.tp = NULL;
	CU_ASSERT_EQUAL(ctn_decoder_new(&cfg, &dec, &err), -EINVAL);
	cfg.tp = r->tp_comms[1];
	cfg.pp = r->tp_comms[1];
	CU_ASSERT_EQUAL(ctn_decoder_new(&cfg, &dec, &err), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "pipeline"));
	ranks_free(r);
}

/* A workspace that no machine has is UINT64_MAX, not a small number. */
static void test_the_size_of_the_workspace_does_not_wrap(void)
{
	struct ranks *r = must_split(model_dir(models[0]), 1, 1);
	struct ctn_limits huge = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
	struct ctn_limits twice = limits;

	CU_ASSERT(ctn_decoder_workspace(r->plan, 0, &huge) > (1ull << 40));
	twice.max_tokens *= 2;
	CU_ASSERT(ctn_decoder_workspace(r->plan, 0, &twice) >
		  ctn_decoder_workspace(r->plan, 0, &limits));
	/* k and v of 5 layers, 4 heads of 8, in blocks of 16 */
	CU_ASSERT_EQUAL(ctn_kv_block_floats(r->plan, 0), 2 * 5 * 4 * 8 * 16);
	ranks_free(r);
}

CTN_TESTS("model", CTN_TEST(test_sample_models_give_their_golden_text),
	  CTN_TEST(test_every_split_gives_the_golden_text),
	  CTN_TEST(test_chunks_and_mixed_batches_change_nothing),
	  CTN_TEST(test_generated_checkpoints_equal_the_reference),
	  CTN_TEST(test_layers_are_waited_for_once_and_in_order),
	  CTN_TEST(test_a_step_without_rows_does_not_touch_the_head),
	  CTN_TEST(test_a_failed_wait_ends_the_step_everywhere),
	  CTN_TEST(test_steps_that_break_a_rule_are_refused),
	  CTN_TEST(test_a_decoder_wants_the_comms_of_its_plan),
	  CTN_TEST(test_the_size_of_the_workspace_does_not_wrap))
