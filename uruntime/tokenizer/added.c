// SPDX-License-Identifier: MIT
#include "tokenizer/added.h"
#include "tokenizer/json.h"
#include "tokenizer/unicode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the trie -------------------------------------------------------------------------- */

static uint32_t find_child(const struct ctn_tok_trie *trie, uint32_t node, uint8_t byte)
{
	uint32_t child = trie->nodes[node].child;

	while (child && trie->nodes[child].byte != byte)
		child = trie->nodes[child].next;
	return child;
}

/* A new node under `parent`, or under none for the root; UINT32_MAX when out of memory. */
static uint32_t add_node(struct ctn_tok_trie *trie, uint32_t parent, uint8_t byte)
{
	struct ctn_tok_trie_node *node;

	if (trie->count == trie->cap) {
		uint32_t cap = trie->cap ? trie->cap * 2 : 64;
		struct ctn_tok_trie_node *grown = reallocarray(trie->nodes, cap, sizeof(*grown));

		if (!grown)
			return UINT32_MAX;
		trie->nodes = grown;
		trie->cap = cap;
	}
	node = &trie->nodes[trie->count];
	*node = (struct ctn_tok_trie_node){.byte = byte};
	if (trie->count) {
		node->next = trie->nodes[parent].child;
		trie->nodes[parent].child = trie->count;
	}
	return trie->count++;
}

static int trie_insert(struct ctn_tok_trie *trie, const struct ctn_tok_added *added, size_t index,
		       struct ctn_err *err)
{
	const struct ctn_tok_added_token *t = &added->tokens[index];
	uint32_t node = 0;

	if (!trie->count && add_node(trie, 0, 0) == UINT32_MAX)
		return ctn_err_set(err, -ENOMEM, "out of memory for the added tokens");
	for (size_t i = 0; i < t->text_len; i++) {
		uint32_t child = find_child(trie, node, (uint8_t)t->text[i]);

		if (!child)
			child = add_node(trie, node, (uint8_t)t->text[i]);
		if (child == UINT32_MAX)
			return ctn_err_set(err, -ENOMEM, "out of memory for the added tokens");
		if (!node)
			trie->first[(uint8_t)t->text[i]] = child;
		node = child;
	}
	if (trie->nodes[node].token)
		return ctn_err_set(err, -EINVAL,
				   "added_tokens: \"%.64s\" and \"%.64s\" match the same text",
				   added->tokens[trie->nodes[node].token - 1].content, t->content);
	trie->nodes[node].token = (uint32_t)index + 1;
	return 0;
}

/* The longest token that starts at text[0]: its index + 1, or 0. */
static uint32_t longest_match(const struct ctn_tok_trie *trie, const char *text, size_t len)
{
	uint32_t node = trie->first[(uint8_t)text[0]], best = 0;

	for (size_t i = 1; node; i++) {
		if (trie->nodes[node].token)
			best = trie->nodes[node].token;
		if (i == len)
			break;
		node = find_child(trie, node, (uint8_t)text[i]);
	}
	return best;
}

/* ---- reading --------------------------------------------------------------------------- */

static int parse_token(const json_t *obj, struct ctn_tok_added_token *t, struct ctn_err *err)
{
	static const char *const known[] = {"id",     "content",    "single_word", "lstrip",
					    "rstrip", "normalized", "special",     NULL};
	const char *what = "added_tokens", *content;
	int rc;

	rc = ctn_tok_json_check(obj, what, known, err);
	if (!rc)
		rc = ctn_tok_json_uint(obj, what, "id", CTN_TOK_MAX_ID - 1, &t->id, err);
	if (!rc)
		rc = ctn_tok_json_string(obj, what, "content", &content, &t->content_len, err);
	if (!rc)
		rc = ctn_tok_json_bool(obj, what, "single_word", &t->single_word, err);
	if (!rc)
		rc = ctn_tok_json_bool(obj, what, "lstrip", &t->lstrip, err);
	if (!rc)
		rc = ctn_tok_json_bool(obj, what, "rstrip", &t->rstrip, err);
	if (!rc)
		rc = ctn_tok_json_bool(obj, what, "normalized", &t->normalized, err);
	if (!rc)
		rc = ctn_tok_json_bool(obj, what, "special", &t->special, err);
	if (rc)
		return rc;
	if (t->content_len == 0)
		return ctn_err_set(err, -EINVAL, "added_tokens: id %u has no content", t->id);
	t->content = strdup(content);
	if (!t->content)
		return ctn_err_set(err, -ENOMEM, "out of memory for the added tokens");
	return 0;
}

static int normalise_token(struct ctn_tok_added_token *t,
			   const struct ctn_tok_normalizer *normalizer, struct ctn_err *err)
{
	struct ctn_buf text = {0};
	int rc;

	ctn_buf_append(&text, t->content, t->content_len);
	if (t->normalized) {
		rc = ctn_tok_normalize(normalizer, &text, err);
		if (rc) {
			ctn_buf_free(&text);
			return rc;
		}
	}
	if (text.failed) {
		ctn_buf_free(&text);
		return ctn_err_set(err, -ENOMEM, "out of memory for the added tokens");
	}
	/* The buffer's memory is the token's from here on. */
	t->text = text.data;
	t->text_len = text.len;
	if (t->text_len == 0)
		return ctn_err_set(err, -EINVAL, "added_tokens: \"%.64s\" is normalised to nothing",
				   t->content);
	return 0;
}

/*
 * The package gives a token the id of its content in the vocabulary, else the next free one,
 * whatever the file says. A file that says something else was not made by it.
 */
static int check_id(const struct ctn_tok_added_token *t, const struct ctn_tok_bpe *bpe,
		    uint32_t *next_id, struct ctn_err *err)
{
	uint32_t id = ctn_tok_vocab_find(&bpe->vocab, t->content, t->content_len);

	if (id == CTN_TOK_NO_ID)
		id = (*next_id)++;
	if (id != t->id)
		return ctn_err_set(err, -EINVAL,
				   "added_tokens: \"%.64s\": expected id %u, which the model's "
				   "vocabulary gives, found %u",
				   t->content, id, t->id);
	return 0;
}

static int compare_ids(const void *a, const void *b)
{
	const struct ctn_tok_added_token *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

static int compare_contents(const void *a, const void *b)
{
	const struct ctn_tok_added_token *const *x = a, *const *y = b;

	return strcmp((*x)->content, (*y)->content);
}

/* Which tokens skip_special leaves out: the package compares texts, not ids. */
static int find_skipped(struct ctn_tok_added *added, struct ctn_err *err)
{
	const struct ctn_tok_added_token **special = calloc(added->count, sizeof(*special));
	size_t n = 0;

	if (!special)
		return ctn_err_set(err, -ENOMEM, "out of memory for the added tokens");
	for (size_t i = 0; i < added->count; i++) {
		if (added->tokens[i].special)
			special[n++] = &added->tokens[i];
	}
	qsort(special, n, sizeof(*special), compare_contents);
	for (size_t i = 0; i < added->count; i++) {
		struct ctn_tok_added_token probe = {.content = added->tokens[i].text};
		const struct ctn_tok_added_token *key = &probe;

		added->tokens[i].skipped =
			bsearch(&key, special, n, sizeof(*special), compare_contents) != NULL;
	}
	free(special);
	return 0;
}

int ctn_tok_added_parse(const json_t *list, const struct ctn_tok_bpe *bpe,
			const struct ctn_tok_normalizer *normalizer, struct ctn_tok_added *added,
			struct ctn_err *err)
{
	uint32_t next_id = bpe->vocab.count;
	int rc = 0;

	if (!list || json_is_null(list))
		return 0;
	if (!json_is_array(list))
		return ctn_err_set(err, -EINVAL, "added_tokens: expected an array");
	if (json_array_size(list) == 0)
		return 0;
	added->tokens = calloc(json_array_size(list), sizeof(*added->tokens));
	if (!added->tokens)
		return ctn_err_set(err, -ENOMEM, "out of memory for the added tokens");
	for (size_t i = 0; !rc && i < json_array_size(list); i++) {
		struct ctn_tok_added_token *t = &added->tokens[added->count++];

		rc = parse_token(json_array_get(list, i), t, err);
		if (!rc)
			rc = check_id(t, bpe, &next_id, err);
		if (!rc)
			rc = normalise_token(t, normalizer, err);
	}
	if (rc)
		return rc;
	qsort(added->tokens, added->count, sizeof(*added->tokens), compare_ids);
	for (size_t i = 0; !rc && i < added->count; i++) {
		if (i && added->tokens[i].id == added->tokens[i - 1].id)
			return ctn_err_set(err, -EINVAL, "added_tokens: id %u is given twice",
					   added->tokens[i].id);
		rc = trie_insert(added->tokens[i].normalized ? &added->normalized : &added->raw,
				 added, i, err);
	}
	return rc ? rc : find_skipped(added, err);
}

void ctn_tok_added_free(struct ctn_tok_added *added)
{
	for (size_t i = 0; i < added->count; i++) {
		free(added->tokens[i].content);
		free(added->tokens[i].text);
	}
	free(added->tokens);
	free(added->raw.nodes);
	free(added->normalized.nodes);
}

const struct ctn_tok_added_token *ctn_tok_added_find(const struct ctn_tok_added *added, uint32_t id)
{
	const struct ctn_tok_added_token key = {.id = id};

	if (!added->count)
		return NULL;
	return bsearch(&key, added->tokens, added->count, sizeof(key), compare_ids);
}

/* ---- cutting --------------------------------------------------------------------------- */

/* True when a word character ends before `start` or begins at `end`. */
static bool touches_word(const char *text, size_t len, size_t start, size_t end)
{
	uint32_t cp;

	if (start) {
		size_t before = start - 1;

		while (before && ((uint8_t)text[before] & 0xC0) == 0x80)
			before--;
		ctn_tok_utf8_decode(text + before, &cp);
		if (ctn_tok_is_word(cp))
			return true;
	}
	if (end == len)
		return false;
	ctn_tok_utf8_decode(text + end, &cp);
	return ctn_tok_is_word(cp);
}

int ctn_tok_added_cut(const struct ctn_tok_added *added, const struct ctn_tok_trie *trie,
		      const char *text, size_t len, ctn_tok_added_fn *piece, void *arg,
		      struct ctn_err *err)
{
	size_t done = 0, at = 0;
	int rc = 0;

	while (!rc && trie->count && at < len) {
		uint32_t hit = longest_match(trie, text + at, len - at);
		const struct ctn_tok_added_token *t;
		size_t start, end;

		if (!hit) {
			at++;
			continue;
		}
		t = &added->tokens[hit - 1];
		start = at;
		end = at = at + t->text_len;
		if (t->single_word && touches_word(text, len, start, end))
			continue;
		/* Spaces that the token before has taken are gone. */
		if (t->lstrip && start > done)
			start -= ctn_tok_spaces_at_end(text + done, start - done);
		else if (t->lstrip)
			start = done;
		if (t->rstrip)
			end += ctn_tok_spaces_at_start(text + end, len - end);
		if (done < start)
			rc = piece(arg, done, start, NULL, err);
		if (!rc)
			rc = piece(arg, start, end, t, err);
		done = end;
	}
	if (!rc && done < len)
		rc = piece(arg, done, len, NULL, err);
	return rc;
}
