// SPDX-License-Identifier: MIT
/* What a server needs of the tokenizer: many threads, long texts, text that comes in bits. */
#include "tokenizer_data.h"

#include <pthread.h>

/* ---- threads --------------------------------------------------------------------------- */

#define THREADS      4
#define STRINGS_EACH 1500

struct worker {
	const struct ctn_tokenizer *tok;
	const struct bytes *strings;
	size_t count;
	uint64_t sum; /* over all ids, in order */
	bool failed;
};

static void *encode_strings(void *arg)
{
	struct worker *w = arg;

	for (size_t i = 0; i < w->count; i++) {
		struct ctn_buf out = {0};
		uint32_t *ids;
		size_t count;

		if (ctn_tokenizer_encode(w->tok, w->strings[i].data, w->strings[i].len, true, &ids,
					 &count, NULL)) {
			w->failed = true;
			return NULL;
		}
		for (size_t k = 0; k < count; k++)
			w->sum = w->sum * 31 + ids[k];
		w->failed |= ctn_tokenizer_decode(w->tok, ids, count, true, &out, NULL) != 0;
		ctn_buf_free(&out);
		free(ids);
	}
	return NULL;
}

static void share_among_threads(const char *dir)
{
	struct ctn_tokenizer *tok = open_tokenizer(dir);
	struct worker workers[THREADS + 1];
	pthread_t threads[THREADS];
	struct reader file;
	size_t count;
	struct bytes *strings = read_strings(&file, &count);

	/* From the end: words in many scripts, spaces, added tokens. */
	for (size_t i = 0; i <= THREADS; i++)
		workers[i] = (struct worker){.tok = tok,
					     .strings = strings + count - STRINGS_EACH,
					     .count = STRINGS_EACH};
	encode_strings(&workers[THREADS]);
	CU_ASSERT_FALSE(workers[THREADS].failed);
	for (size_t i = 0; i < THREADS; i++)
		CU_ASSERT_EQUAL_FATAL(
			pthread_create(&threads[i], NULL, encode_strings, &workers[i]), 0);
	for (size_t i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		CU_ASSERT_FALSE(workers[i].failed);
		CU_ASSERT_EQUAL(workers[i].sum, workers[THREADS].sum);
	}
	free(strings);
	free(file.data);
	ctn_tokenizer_close(tok);
}

static void test_threads_share_a_tokenizer(void)
{
	share_among_threads("data/tokenizer/qwen2");
	share_among_threads("data/tokenizer/llama3");
	share_among_threads("models/llama-stories260k");
}

/* ---- long texts ------------------------------------------------------------------------ */

/* Sanitizers slow a text down so much that a shorter one tells as well. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LONG_TEXT (CTN_MIB / 4)
#else
#define LONG_TEXT CTN_MIB
#endif

/* Seconds to encode `unit` over and over, `bytes` long, and how many ids that makes. */
static double encode_long(const struct ctn_tokenizer *tok, const char *unit, size_t bytes,
			  size_t *count)
{
	struct ctn_buf text = {0};
	uint32_t *ids = NULL;
	uint64_t start;

	while (text.len < bytes)
		ctn_buf_puts(&text, unit);
	start = ctn_now_ns();
	CU_ASSERT_EQUAL(ctn_tokenizer_encode(tok, text.data, text.len, false, &ids, count, NULL),
			0);
	start = ctn_now_ns() - start;
	free(ids);
	ctn_buf_free(&text);
	return (double)start / CTN_NSEC_PER_SEC;
}

/* Eight times the text takes about eight times as long: quadratic would be 64 times. */
static void test_long_texts_take_linear_time(void)
{
	static const char *const units[] = {"a",
					    " ",
					    "\n",
					    "\n ",
					    "a\xcc\x81\xcc\x96",
					    "9",
					    "é",
					    "<",
					    "<|left|>",
					    " <|wide|> ",
					    "\xcc\x96\xcc\x81",
					    "\xe1\x84\x80\xe1\x85\xa1"};
	static const char *const dirs[] = {"data/tokenizers/gpt2", "data/tokenizer/qwen2",
					   "data/tokenizer/llama3", "models/llama-stories260k"};

	for (size_t d = 0; d < CTN_ARRAY_LEN(dirs); d++) {
		struct ctn_tokenizer *tok = open_tokenizer(dirs[d]);

		for (size_t i = 0; i < CTN_ARRAY_LEN(units); i++) {
			size_t some, many;
			double little = encode_long(tok, units[i], LONG_TEXT / 8, &some);
			double much = encode_long(tok, units[i], LONG_TEXT, &many);

			/* A busy machine may stretch one of the two. */
			if (much > 24 * little + 0.5)
				fprintf(stderr, "# %s: \"%s\": %.3f s, then %.3f s\n", dirs[d],
					units[i], little, much);
			CU_ASSERT(much <= 24 * little + 0.5);
			CU_ASSERT(many > 4 * some);
		}
		ctn_tokenizer_close(tok);
	}
}

/* ---- streams --------------------------------------------------------------------------- */

/* The text that one more token adds. */
static const char *push(struct ctn_detok *d, const struct ctn_tokenizer *tok, const char *token,
			struct ctn_buf *out)
{
	ctn_buf_reset(out);
	for (uint32_t id = 0; id < ctn_tokenizer_vocab_size(tok); id++) {
		const char *text = ctn_tokenizer_token(tok, id);

		if (text && strcmp(text, token) == 0) {
			CU_ASSERT_EQUAL(ctn_detok_push(d, id, out, NULL), 0);
			return out->data ? out->data : "";
		}
	}
	CU_FAIL("no such token");
	return "";
}

static const char *flush(struct ctn_detok *d, struct ctn_buf *out)
{
	ctn_buf_reset(out);
	ctn_detok_flush(d, out);
	return out->data ? out->data : "";
}

static void test_half_characters_are_held_back(void)
{
	struct ctn_tokenizer *tok = open_tokenizer("data/tokenizers/gpt2");
	struct ctn_detok *d = ctn_detok_new(tok, true, false);
	struct ctn_buf out = {0};

	CU_ASSERT_PTR_NOT_NULL_FATAL(d);
	CU_ASSERT_STRING_EQUAL(push(d, tok, "Hello", &out), "Hello");
	/* The four bytes of a crab, f0 9f a6 80, in the byte-level alphabet. */
	CU_ASSERT_STRING_EQUAL(push(d, tok, "ð", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "Ł", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "¦", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "Ģ", &out), "🦀");
	/* A half one that something else interrupts is one U+FFFD, at once. */
	CU_ASSERT_STRING_EQUAL(push(d, tok, "ð", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "Ł", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "!", &out), "\xef\xbf\xbd!");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "Ģ", &out), "\xef\xbf\xbd");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "<|endoftext|>", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "ð", &out), "");
	CU_ASSERT_STRING_EQUAL(flush(d, &out), "\xef\xbf\xbd");
	CU_ASSERT_STRING_EQUAL(flush(d, &out), "");
	ctn_buf_free(&out);
	ctn_detok_free(d);
	ctn_tokenizer_close(tok);
}

/* One wrong byte spoils a whole run of byte tokens: decode() makes it so. */
static void test_runs_of_byte_tokens(void)
{
	struct ctn_tokenizer *tok = open_tokenizer("models/llama-stories260k");
	struct ctn_detok *d = ctn_detok_new(tok, true, false);
	struct ctn_buf out = {0};

	CU_ASSERT_PTR_NOT_NULL_FATAL(d);
	CU_ASSERT_STRING_EQUAL(push(d, tok, "<0xC3>", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "<0xA9>", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "t", &out), "ét");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "<0xC3>", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "<0xA9>", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "<0xFF>", &out),
			       "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "<0x41>", &out), "\xef\xbf\xbd");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "t", &out), "t");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "<0xC3>", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "</s>", &out), "");
	CU_ASSERT_STRING_EQUAL(push(d, tok, "<0xA9>", &out), "");
	CU_ASSERT_STRING_EQUAL(flush(d, &out), "é");
	ctn_buf_free(&out);
	ctn_detok_free(d);
	ctn_tokenizer_close(tok);
}

/* The first space belongs to the text when the text goes on from a prompt. */
static void test_leading_space_of_a_continuation(void)
{
	static const struct {
		const char *dir;
		const char *token;
		const char *at_start;
		const char *later;
	} cases[] = {
		{"models/llama-stories260k", "▁the", "the", " the"},
		{"data/tokenizer/mistral", "▁the", "the", " the"},
		{"data/tokenizer/gemma", "▁", "", " "},
		{"data/tokenizers/gpt2", "Ġthe", " the", " the"},
	};
	struct ctn_buf out = {0};

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_tokenizer *tok = open_tokenizer(cases[i].dir);
		struct ctn_detok *start = ctn_detok_new(tok, true, false);
		struct ctn_detok *on = ctn_detok_new(tok, true, true);

		CU_ASSERT_FATAL(start && on);
		CU_ASSERT_STRING_EQUAL(push(start, tok, cases[i].token, &out), cases[i].at_start);
		CU_ASSERT_STRING_EQUAL(push(start, tok, cases[i].token, &out), cases[i].later);
		CU_ASSERT_STRING_EQUAL(push(on, tok, cases[i].token, &out), cases[i].later);
		CU_ASSERT_STRING_EQUAL(push(on, tok, cases[i].token, &out), cases[i].later);
		ctn_detok_free(start);
		ctn_detok_free(on);
		ctn_tokenizer_close(tok);
	}
	ctn_buf_free(&out);
}

CTN_TESTS("tokenizer_limits", CTN_TEST(test_threads_share_a_tokenizer),
	  CTN_TEST(test_long_texts_take_linear_time), CTN_TEST(test_half_characters_are_held_back),
	  CTN_TEST(test_runs_of_byte_tokens), CTN_TEST(test_leading_space_of_a_continuation))
