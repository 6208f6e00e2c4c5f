// SPDX-License-Identifier: MIT
/* Reading the BPE model: vocabulary and merges into their hash tables. */
#include "tokenizer/bpe.h"
#include "tokenizer/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A power of two that leaves at least half of the slots free. */
static size_t slots_for(size_t count)
{
	size_t n = 16;

	while (n < 2 * count)
		n *= 2;
	return n;
}

uint32_t ctn_tok_vocab_find(const struct ctn_tok_vocab *vocab, const char *text, size_t len)
{
	size_t i = XXH3_64bits(text, len) & vocab->mask;

	for (; vocab->slots[i]; i = (i + 1) & vocab->mask) {
		const struct ctn_tok_token *t = &vocab->tokens[vocab->slots[i] - 1];

		if (t->len == len && memcmp(t->text, text, len) == 0)
			return vocab->slots[i] - 1;
	}
	return CTN_TOK_NO_ID;
}

/* The keys of a JSON object differ, so the text is not there yet. */
static void vocab_insert(struct ctn_tok_vocab *vocab, uint32_t id)
{
	const struct ctn_tok_token *t = &vocab->tokens[id];
	size_t i = XXH3_64bits(t->text, t->len) & vocab->mask;

	while (vocab->slots[i])
		i = (i + 1) & vocab->mask;
	vocab->slots[i] = id + 1;
}

/* How much memory the vocabulary takes, and that its ids are ids. */
static int measure_vocab(const json_t *obj, uint32_t *size, size_t *bytes, struct ctn_err *err)
{
	const char *text;
	json_t *id;

	*size = 0;
	*bytes = 0;
	json_object_foreach((json_t *)obj, text, id)
	{
		json_int_t v = json_is_integer(id) ? json_integer_value(id) : -1;

		if (v < 0 || v >= CTN_TOK_MAX_ID)
			return ctn_err_set(err, -EINVAL,
					   "model: vocab: \"%.64s\": expected an id from 0 to %u",
					   text, CTN_TOK_MAX_ID - 1);
		*size = CTN_MAX(*size, (uint32_t)v + 1);
		*bytes += strlen(text) + 1;
	}
	if (*size == 0)
		return ctn_err_set(err, -EINVAL, "model: vocab: expected tokens, found none");
	return 0;
}

static int parse_vocab(const json_t *model, struct ctn_tok_vocab *vocab, struct ctn_err *err)
{
	const json_t *obj = json_object_get(model, "vocab");
	const char *text;
	size_t bytes;
	json_t *v;
	char *at;
	int rc;

	if (!json_is_object(obj))
		return ctn_err_set(err, -EINVAL, "model: \"vocab\": expected an object, found %s",
				   obj ? "something else" : "nothing");
	rc = measure_vocab(obj, &vocab->size, &bytes, err);
	if (rc)
		return rc;
	vocab->mask = slots_for(json_object_size(obj)) - 1;
	vocab->tokens = calloc(vocab->size, sizeof(*vocab->tokens));
	vocab->slots = calloc(vocab->mask + 1, sizeof(*vocab->slots));
	vocab->texts = malloc(bytes);
	if (!vocab->tokens || !vocab->slots || !vocab->texts)
		return ctn_err_set(err, -ENOMEM, "out of memory for the vocabulary");
	at = vocab->texts;
	json_object_foreach((json_t *)obj, text, v)
	{
		uint32_t id = (uint32_t)json_integer_value(v);
		size_t len = strlen(text);

		if (vocab->tokens[id].text)
			return ctn_err_set(err, -EINVAL,
					   "model: vocab: \"%.64s\" and \"%.64s\" both have id %u",
					   vocab->tokens[id].text, text, id);
		memcpy(at, text, len + 1);
		vocab->tokens[id] = (struct ctn_tok_token){at, (uint32_t)len};
		at += len + 1;
		vocab_insert(vocab, id);
		vocab->count++;
	}
	return 0;
}

static size_t merge_slot(const struct ctn_tok_bpe *bpe, uint64_t pair)
{
	uint64_t h = pair * 0x9E3779B97F4A7C15u;
	size_t i = (h ^ h >> 32) & bpe->merge_mask;

	while (bpe->merges[i].pair != pair && bpe->merges[i].pair != UINT64_MAX)
		i = (i + 1) & bpe->merge_mask;
	return i;
}

const struct ctn_tok_merge *ctn_tok_bpe_merge(const struct ctn_tok_bpe *bpe, uint32_t left,
					      uint32_t right)
{
	const struct ctn_tok_merge *m = &bpe->merges[merge_slot(bpe, (uint64_t)left << 32 | right)];

	return m->pair == UINT64_MAX ? NULL : m;
}

static int find_part(const struct ctn_tok_bpe *bpe, size_t rank, const char *text, size_t len,
		     uint32_t *id, struct ctn_err *err)
{
	*id = ctn_tok_vocab_find(&bpe->vocab, text, len);
	if (*id == CTN_TOK_NO_ID)
		return ctn_err_set(err, -EINVAL,
				   "model: merge %zu: \"%.*s\" is not in the vocabulary", rank,
				   (int)CTN_MIN(len, (size_t)64), text);
	return 0;
}

static int add_merge(struct ctn_tok_bpe *bpe, uint32_t rank, const char *left, size_t left_len,
		     const char *right, size_t right_len, struct ctn_buf *joined,
		     struct ctn_err *err)
{
	struct ctn_tok_merge m = {.rank = rank};
	uint32_t l, r;
	int rc;

	ctn_buf_reset(joined);
	ctn_buf_append(joined, left, left_len);
	ctn_buf_append(joined, right, right_len);
	if (joined->failed)
		return ctn_err_set(err, -ENOMEM, "out of memory for the merges");
	rc = find_part(bpe, rank, left, left_len, &l, err);
	if (!rc)
		rc = find_part(bpe, rank, right, right_len, &r, err);
	if (!rc)
		rc = find_part(bpe, rank, joined->data, joined->len, &m.id, err);
	if (rc)
		return rc;
	m.pair = (uint64_t)l << 32 | r;
	/* Of a pair that is listed twice the last counts. */
	bpe->merges[merge_slot(bpe, m.pair)] = m;
	return 0;
}

/* A merge is "left right", or since 2024 ["left", "right"]. */
static int parse_merge(struct ctn_tok_bpe *bpe, uint32_t rank, const json_t *v,
		       struct ctn_buf *joined, struct ctn_err *err)
{
	const json_t *l = json_array_get(v, 0), *r = json_array_get(v, 1);
	const char *s, *space;
	size_t len;

	if (json_array_size(v) == 2 && json_is_string(l) && json_is_string(r))
		return add_merge(bpe, rank, json_string_value(l), json_string_length(l),
				 json_string_value(r), json_string_length(r), joined, err);
	s = json_string_value(v);
	/* The first line of a merges.txt that came along. */
	if (s && strncmp(s, "#version", 8) == 0)
		return 0;
	space = s ? strchr(s, ' ') : NULL;
	if (!space || strchr(space + 1, ' '))
		return ctn_err_set(err, -EINVAL,
				   "model: merge %u: expected \"left right\" or [left, right]",
				   rank);
	len = json_string_length(v);
	return add_merge(bpe, rank, s, (size_t)(space - s), space + 1,
			 len - (size_t)(space + 1 - s), joined, err);
}

static int parse_merges(const json_t *model, struct ctn_tok_bpe *bpe, struct ctn_err *err)
{
	struct ctn_buf joined = {0};
	const json_t *list;
	size_t slots;
	int rc;

	rc = ctn_tok_json_array(model, "model", "merges", &list, err);
	if (rc)
		return rc;
	slots = slots_for(json_array_size(list));
	bpe->merges = malloc(slots * sizeof(*bpe->merges));
	if (!bpe->merges)
		return ctn_err_set(err, -ENOMEM, "out of memory for the merges");
	/* All bits set: no pair. */
	memset(bpe->merges, 0xFF, slots * sizeof(*bpe->merges));
	bpe->merge_mask = slots - 1;
	for (size_t i = 0; !rc && i < json_array_size(list); i++)
		rc = parse_merge(bpe, (uint32_t)i, json_array_get(list, i), &joined, err);
	ctn_buf_free(&joined);
	return rc;
}

/* What would change the ids and is not handled. */
static int refuse_options(const json_t *model, struct ctn_err *err)
{
	static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
	const json_t *dropout = json_object_get(model, "dropout");

	if (dropout && !json_is_null(dropout) &&
	    !(json_is_number(dropout) && json_number_value(dropout) == 0))
		return ctn_err_set(err, -ENOTSUP, "model: \"dropout\" is not supported");
	for (size_t i = 0; i < CTN_ARRAY_LEN(affixes); i++) {
		const json_t *affix = json_object_get(model, affixes[i]);

		if (affix && !json_is_null(affix) &&
		    !(json_is_string(affix) && json_string_length(affix) == 0))
			return ctn_err_set(err, -ENOTSUP, "model: \"%s\" is not supported",
					   affixes[i]);
	}
	return 0;
}

static int parse_unk(const json_t *model, struct ctn_tok_bpe *bpe, struct ctn_err *err)
{
	const json_t *unk = json_object_get(model, "unk_token");
	const char *text;
	size_t len;
	int rc;

	bpe->unk = CTN_TOK_NO_ID;
	if (!unk || json_is_null(unk))
		return 0;
	rc = ctn_tok_json_string(model, "model", "unk_token", &text, &len, err);
	if (rc)
		return rc;
	bpe->unk = ctn_tok_vocab_find(&bpe->vocab, text, len);
	if (bpe->unk == CTN_TOK_NO_ID)
		return ctn_err_set(err, -EINVAL,
				   "model: unk_token \"%.64s\" is not in the vocabulary", text);
	return 0;
}

/* Ids that are needed again and again. */
static void index_characters(struct ctn_tok_bpe *bpe)
{
	char text[8];

	for (uint32_t b = 0; b < 256; b++) {
		int len = snprintf(text, sizeof(text), "<0x%02X>", b);

		bpe->byte_ids[b] = ctn_tok_vocab_find(&bpe->vocab, text, (size_t)len);
	}
	for (uint32_t cp = 0; cp < CTN_TOK_ALPHABET_END; cp++)
		bpe->char_ids[cp] =
			ctn_tok_vocab_find(&bpe->vocab, text, ctn_tok_utf8_encode(cp, text));
}

int ctn_tok_bpe_parse(const json_t *model, struct ctn_tok_bpe *bpe, struct ctn_err *err)
{
	static const char *const known[] = {"type",
					    "dropout",
					    "unk_token",
					    "continuing_subword_prefix",
					    "end_of_word_suffix",
					    "fuse_unk",
					    "byte_fallback",
					    "ignore_merges",
					    "vocab",
					    "merges",
					    NULL};
	const char *type = "BPE";
	int rc = 0;

	/* Files of before 2020 do not say the type. */
	if (json_object_get(model, "type"))
		rc = ctn_tok_json_type(model, "model", &type, err);
	if (!rc && strcmp(type, "BPE") != 0)
		rc = ctn_err_set(err, -ENOTSUP, "model: type \"%.64s\" is not supported", type);
	if (!rc)
		rc = ctn_tok_json_check(model, "model", known, err);
	if (!rc)
		rc = refuse_options(model, err);
	if (!rc)
		rc = ctn_tok_json_bool(model, "model", "fuse_unk", &bpe->fuse_unk, err);
	if (!rc)
		rc = ctn_tok_json_bool(model, "model", "byte_fallback", &bpe->byte_fallback, err);
	if (!rc)
		rc = ctn_tok_json_bool(model, "model", "ignore_merges", &bpe->ignore_merges, err);
	if (!rc)
		rc = parse_vocab(model, &bpe->vocab, err);
	if (!rc)
		rc = parse_unk(model, bpe, err);
	if (!rc)
		rc = parse_merges(model, bpe, err);
	if (!rc)
		index_characters(bpe);
	return rc;
}

void ctn_tok_bpe_free(struct ctn_tok_bpe *bpe)
{
	free(bpe->vocab.tokens);
	free(bpe->vocab.slots);
	free(bpe->vocab.texts);
	free(bpe->merges);
}
