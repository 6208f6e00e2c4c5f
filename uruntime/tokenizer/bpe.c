// SPDX-License-Identifier: MIT
/*
 * One word -> ids. The word's characters are a doubly linked list; a binary heap holds the
 * merges that neighbours allow, least rank first, leftmost first among equals. An entry is
 * not removed when one of its two neighbours goes: it is recognised as stale when it comes
 * up, because the pair at its place no longer has its rank.
 */
#include "tokenizer/bpe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define END UINT32_MAX

struct ctn_tok_symbol {
	uint32_t id; /* CTN_TOK_NO_ID: merged into its left neighbour */
	uint32_t prev;
	uint32_t next;
};

void ctn_tok_ids_append(struct ctn_tok_ids *ids, const uint32_t *v, size_t count)
{
	if (ids->failed || count == 0)
		return;
	if (ids->cap - ids->count < count) {
		size_t cap = CTN_MAX(ids->cap * 2, ids->count + count + 16);
		uint32_t *grown = reallocarray(ids->v, cap, sizeof(*grown));

		if (!grown) {
			ids->failed = true;
			return;
		}
		ids->v = grown;
		ids->cap = cap;
	}
	memcpy(ids->v + ids->count, v, count * sizeof(*v));
	ids->count += count;
}

void ctn_tok_ids_free(struct ctn_tok_ids *ids)
{
	free(ids->v);
	*ids = (struct ctn_tok_ids){0};
}

void ctn_tok_bpe_work_free(struct ctn_tok_bpe_work *work)
{
	free(work->symbols);
	free(work->heap);
	*work = (struct ctn_tok_bpe_work){0};
}

static bool heap_push(struct ctn_tok_bpe_work *w, uint64_t entry)
{
	size_t i = w->heap_count;

	if (i == w->heap_cap) {
		size_t cap = w->heap_cap ? w->heap_cap * 2 : 64;
		uint64_t *grown = reallocarray(w->heap, cap, sizeof(*grown));

		if (!grown)
			return false;
		w->heap = grown;
		w->heap_cap = cap;
	}
	w->heap_count++;
	while (i && w->heap[(i - 1) / 2] > entry) {
		w->heap[i] = w->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	w->heap[i] = entry;
	return true;
}

static uint64_t heap_pop(struct ctn_tok_bpe_work *w)
{
	uint64_t top = w->heap[0], last = w->heap[--w->heap_count];
	size_t i = 0;

	for (;;) {
		size_t child = 2 * i + 1;

		if (child >= w->heap_count)
			break;
		if (child + 1 < w->heap_count && w->heap[child + 1] < w->heap[child])
			child++;
		if (w->heap[child] >= last)
			break;
		w->heap[i] = w->heap[child];
		i = child;
	}
	w->heap[i] = last;
	return top;
}

/* Queues the merge of the symbol at `pos` with its right neighbour, if there is one. */
static bool queue_pair(const struct ctn_tok_bpe *bpe, struct ctn_tok_bpe_work *w, uint32_t pos)
{
	const struct ctn_tok_symbol *s = &w->symbols[pos];
	const struct ctn_tok_merge *m;

	if (s->next == END)
		return true;
	m = ctn_tok_bpe_merge(bpe, s->id, w->symbols[s->next].id);
	return !m || heap_push(w, (uint64_t)m->rank << 32 | pos);
}

static bool merge_all(const struct ctn_tok_bpe *bpe, struct ctn_tok_bpe_work *w)
{
	w->heap_count = 0;
	for (size_t i = 0; i + 1 < w->count; i++) {
		if (!queue_pair(bpe, w, (uint32_t)i))
			return false;
	}
	while (w->heap_count) {
		uint64_t entry = heap_pop(w);
		struct ctn_tok_symbol *s = &w->symbols[(uint32_t)entry], *right;
		const struct ctn_tok_merge *m;

		if (s->id == CTN_TOK_NO_ID || s->next == END)
			continue;
		right = &w->symbols[s->next];
		m = ctn_tok_bpe_merge(bpe, s->id, right->id);
		if (!m || m->rank != entry >> 32)
			continue;
		s->id = m->id;
		s->next = right->next;
		right->id = CTN_TOK_NO_ID;
		if (s->next != END)
			w->symbols[s->next].prev = (uint32_t)entry;
		if (s->prev != END && !queue_pair(bpe, w, s->prev))
			return false;
		if (!queue_pair(bpe, w, (uint32_t)entry))
			return false;
	}
	return true;
}

static void add_symbol(struct ctn_tok_bpe_work *w, uint32_t id)
{
	uint32_t pos = (uint32_t)w->count++;

	w->symbols[pos] = (struct ctn_tok_symbol){id, pos ? pos - 1 : END, END};
	if (pos)
		w->symbols[pos - 1].next = pos;
}

/* The bytes of a character as <0xHH>; false, and nothing added, if one is not a token. */
static bool fall_back(const struct ctn_tok_bpe *bpe, struct ctn_tok_bpe_work *w, const char *c,
		      size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (bpe->byte_ids[(uint8_t)c[i]] == CTN_TOK_NO_ID)
			return false;
	}
	for (size_t i = 0; i < len; i++)
		add_symbol(w, bpe->byte_ids[(uint8_t)c[i]]);
	return true;
}

/*
 * The word's characters as symbols. As in the package, a pending unknown is put out before
 * the next character that is a token, not before bytes that fall back, and a character
 * without any id is left out.
 */
static void split_characters(const struct ctn_tok_bpe *bpe, struct ctn_tok_bpe_work *w,
			     const char *word, size_t len)
{
	bool unk_pending = false;
	size_t n;

	w->count = 0;
	for (size_t i = 0; i < len; i += n) {
		uint32_t cp, id;

		n = ctn_tok_utf8_decode(word + i, &cp);
		id = cp < CTN_TOK_ALPHABET_END ? bpe->char_ids[cp]
					       : ctn_tok_vocab_find(&bpe->vocab, word + i, n);
		if (id != CTN_TOK_NO_ID) {
			if (unk_pending)
				add_symbol(w, bpe->unk);
			unk_pending = false;
			add_symbol(w, id);
			continue;
		}
		if (bpe->byte_fallback && fall_back(bpe, w, word + i, n))
			continue;
		if (bpe->unk == CTN_TOK_NO_ID)
			continue;
		if (unk_pending && !bpe->fuse_unk)
			add_symbol(w, bpe->unk);
		unk_pending = true;
	}
	if (unk_pending)
		add_symbol(w, bpe->unk);
}

int ctn_tok_bpe_word(const struct ctn_tok_bpe *bpe, struct ctn_tok_bpe_work *work, const char *word,
		     size_t len, struct ctn_tok_ids *ids)
{
	CTN_ASSERT(len <= INT32_MAX);
	if (bpe->ignore_merges) {
		uint32_t id = ctn_tok_vocab_find(&bpe->vocab, word, len);

		if (id != CTN_TOK_NO_ID) {
			ctn_tok_ids_append(ids, &id, 1);
			return ids->failed ? -ENOMEM : 0;
		}
	}
	/* A byte makes at most one symbol. */
	if (work->symbol_cap < len) {
		size_t cap = CTN_MAX(len, 2 * work->symbol_cap);
		struct ctn_tok_symbol *grown =
			reallocarray(work->symbols, cap, sizeof(*work->symbols));

		if (!grown)
			return -ENOMEM;
		work->symbols = grown;
		work->symbol_cap = cap;
	}
	split_characters(bpe, work, word, len);
	if (!merge_all(bpe, work))
		return -ENOMEM;
	for (uint32_t i = work->count ? 0 : END; i != END; i = work->symbols[i].next)
		ctn_tok_ids_append(ids, &work->symbols[i].id, 1);
	return ids->failed ? -ENOMEM : 0;
}
