// SPDX-License-Identifier: MIT
#include "model/decoder.h"

#include <errno.h>
#include <stdlib.h>

struct ctn_step *ctn_step_new(uint32_t tokens, uint32_t sequences, uint32_t blocks, uint32_t rows)
{
	uint64_t words = 2 * (uint64_t)tokens + 2 * (uint64_t)sequences + 1 + blocks + rows;
	struct ctn_step *step = calloc(1, sizeof(*step) + words * sizeof(uint32_t));

	if (!step)
		return NULL;
	step->tokens = tokens;
	step->sequences = sequences;
	step->blocks = blocks;
	step->rows = rows;
	step->ids = (uint32_t *)(step + 1);
	step->positions = step->ids + tokens;
	step->seq_start = step->positions + tokens;
	step->table_start = step->seq_start + sequences + 1;
	step->block_table = step->table_start + sequences;
	step->row_tokens = step->block_table + blocks;
	return step;
}

void ctn_step_free(struct ctn_step *step)
{
	free(step);
}

static int check_size(const char *what, uint32_t have, uint32_t min, uint32_t max,
		      struct ctn_err *err)
{
	if (have >= min && have <= max)
		return 0;
	return ctn_err_set(err, -EINVAL, "step has %u %s, expected %u to %u", have, what, min, max);
}

static int check_sequence(const struct ctn_step *step, uint32_t s, const struct ctn_arch *arch,
			  struct ctn_err *err)
{
	uint32_t first = step->seq_start[s], end = step->seq_start[s + 1];
	uint64_t blocks;

	if (first >= end || end > step->tokens)
		return ctn_err_set(err, -EINVAL,
				   "sequence %u of the step has tokens %u to %u of %u", s, first,
				   end, step->tokens);
	for (uint32_t t = first; t < end; t++) {
		uint64_t position = (uint64_t)step->positions[first] + (t - first);

		if (step->positions[t] != position)
			return ctn_err_set(err, -EINVAL,
					   "token %u of the step is at position %u, expected %llu",
					   t, step->positions[t], (unsigned long long)position);
	}
	if (step->positions[end - 1] >= arch->max_positions)
		return ctn_err_set(err, -EINVAL,
				   "sequence %u of the step reaches position %u, expected less "
				   "than %u",
				   s, step->positions[end - 1], arch->max_positions);
	blocks = (uint64_t)step->positions[end - 1] / CTN_KV_BLOCK + 1;
	if (step->table_start[s] + blocks > step->blocks)
		return ctn_err_set(err, -EINVAL,
				   "sequence %u of the step needs block table entries %u to %llu, "
				   "the step has %u",
				   s, step->table_start[s],
				   (unsigned long long)(step->table_start[s] + blocks),
				   step->blocks);
	return 0;
}

int ctn_step_check(const struct ctn_step *step, const struct ctn_limits *limits,
		   const struct ctn_arch *arch, struct ctn_err *err)
{
	int rc = check_size("tokens", step->tokens, 1, limits->max_tokens, err);

	rc = rc ? rc : check_size("sequences", step->sequences, 1, limits->max_sequences, err);
	rc = rc ? rc : check_size("blocks", step->blocks, 1, limits->max_blocks, err);
	rc = rc ? rc : check_size("rows", step->rows, 0, limits->max_rows, err);
	if (rc)
		return rc;
	if (step->seq_start[0] != 0 || step->seq_start[step->sequences] != step->tokens)
		return ctn_err_set(
			err, -EINVAL,
			"the sequences of the step have tokens %u to %u, expected 0 to %u",
			step->seq_start[0], step->seq_start[step->sequences], step->tokens);
	for (uint32_t s = 0; rc == 0 && s < step->sequences; s++)
		rc = check_sequence(step, s, arch, err);
	for (uint32_t t = 0; rc == 0 && t < step->tokens; t++) {
		if (step->ids[t] >= arch->vocab)
			rc = ctn_err_set(err, -EINVAL,
					 "token %u of the step has id %u, expected less than %u", t,
					 step->ids[t], arch->vocab);
	}
	for (uint32_t r = 0; rc == 0 && r < step->rows; r++) {
		if (step->row_tokens[r] >= step->tokens)
			rc = ctn_err_set(err, -EINVAL,
					 "row %u of the step is token %u, the step has %u", r,
					 step->row_tokens[r], step->tokens);
	}
	return rc;
}
