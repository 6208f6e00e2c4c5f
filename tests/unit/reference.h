/* SPDX-License-Identifier: MIT */
/* Generated checkpoints, and what the numpy reference of tests/ref says of them, for tests of the
 * decoder. Include ranks.h before. */
#ifndef CTN_TEST_REFERENCE_H
#define CTN_TEST_REFERENCE_H

#include "test.h"

#include <jansson.h>

#define REF_IDS 45u /* of a prompt */

/* Runs a program of tests/ref; its output as JSON, or NULL when it writes nothing. */
static json_t *run_ref(const char *command)
{
	json_t *root = NULL;
	FILE *f = popen(command, "r");
	int c;

	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	c = fgetc(f);
	if (c != EOF) {
		ungetc(c, f);
		root = json_loadf(f, 0, NULL);
	}
	if (pclose(f) != 0) {
		printf("# failed: %s\n", command);
		CU_FAIL("a program of tests/ref failed");
	}
	return root;
}

static void generate(const char *dir, uint32_t seed, const char *options)
{
	char command[9000];

	snprintf(command, sizeof(command), "%s/ref/generate.py '%s' --seed %u %s", ctn_tests_dir(),
		 dir, seed, options);
	json_decref(run_ref(command));
}

/* "logits": a row for each of the ids; "greedy": up to `more` ids that follow, the last may be an
 * end of sequence; "gaps": between the two largest logits at each. The caller decrefs. */
static json_t *ask_reference(const char *dir, const uint32_t *ids, uint32_t more)
{
	char command[9000], list[REF_IDS * 12] = "";
	json_t *root;

	for (uint32_t i = 0; i < REF_IDS; i++)
		snprintf(list + strlen(list), sizeof(list) - strlen(list), i ? ",%u" : "%u",
			 ids[i]);
	snprintf(command, sizeof(command), "%s/ref/reference.py '%s' --all -n %u --ids %s",
		 ctn_tests_dir(), dir, more, list);
	root = run_ref(command);
	CU_ASSERT_PTR_NOT_NULL_FATAL(root);
	return root;
}

/* Feeds the ids to a new sequence, in chunks; the largest difference from the reference's logits.
 * `seq` has the id that the last row would choose behind them. */
static double diff_from(struct ranks *r, struct seq *seq, const uint32_t *ids, json_t *answer)
{
	static const uint32_t chunks[] = {7, 1, 19, 1, 17};
	json_t *reference = json_object_get(answer, "logits");
	struct seq *seqs[] = {seq};
	uint32_t vocab = r->ckpt->arch.vocab, last = 0;
	float *logits = new_logits(r);
	double worst = 0;

	*seq = (struct seq){.len = REF_IDS};
	memcpy(seq->ids, ids, REF_IDS * sizeof(uint32_t));
	for (size_t c = 0; c < CTN_ARRAY_LEN(chunks); c++) {
		uint32_t first = seq->done;

		feed(r, seqs, &chunks[c], 1, logits);
		last = chunks[c] - 1;
		for (uint32_t t = 0; t < chunks[c]; t++) {
			json_t *row = json_array_get(reference, first + t);

			CU_ASSERT_EQUAL_FATAL(json_array_size(row), vocab);
			for (uint32_t i = 0; i < vocab; i++) {
				double d = fabs(logits[(size_t)t * vocab + i] -
						json_number_value(json_array_get(row, i)));

				if (!(d <= worst))
					worst = d;
			}
		}
	}
	seq->ids[seq->len++] = argmax(logits + (size_t)last * vocab, vocab);
	free(logits);
	return worst;
}

#endif
