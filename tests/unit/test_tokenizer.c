// SPDX-License-Identifier: MIT
/* Ids and texts equal those of the `tokenizers` package, which made tests/data/tokenizer. */
#include "tokenizer_data.h"

#include <jansson.h>
#include <sys/stat.h>

#define VARIANT_STEP 20

/* Complains about the first few differences and counts all. */
struct tally {
	const char *name;
	size_t wrong;
};

static void differs(struct tally *t, const char *what, size_t index)
{
	if (t->wrong++ < 5)
		fprintf(stderr, "# %s: %s %zu differs\n", t->name, what, index);
}

static bool same_text(const struct ctn_buf *got, struct bytes want)
{
	return !got->failed && got->len == want.len &&
	       (want.len == 0 || memcmp(got->data, want.data, want.len) == 0);
}

/* The text of a stream, in which every fragment must be UTF-8 that could be sent on. */
static bool stream(const struct ctn_tokenizer *tok, const uint32_t *ids, size_t count, bool skip,
		   struct ctn_buf *out)
{
	struct ctn_detok *d = ctn_detok_new(tok, skip, false);
	bool whole = d != NULL;

	for (size_t i = 0; d && i < count; i++) {
		size_t before = out->len;

		whole &= ctn_detok_push(d, ids[i], out, NULL) == 0;
		if (out->len > before)
			whole &= ((uint8_t)out->data[before] & 0xC0) != 0x80;
	}
	if (d)
		ctn_detok_flush(d, out);
	ctn_detok_free(d);
	return whole;
}

static void check_text(struct tally *t, const struct ctn_tokenizer *tok, const uint32_t *ids,
		       size_t count, bool skip, struct bytes want, size_t index)
{
	struct ctn_buf got = {0};

	if (ctn_tokenizer_decode(tok, ids, count, skip, &got, NULL) || !same_text(&got, want))
		differs(t, "decoding", index);
	ctn_buf_reset(&got);
	if (!stream(tok, ids, count, skip, &got) || !same_text(&got, want))
		differs(t, "streaming", index);
	ctn_buf_free(&got);
}

static void check_encodings(struct tally *t, const struct ctn_tokenizer *tok, const char *file,
			    size_t step)
{
	struct reader strings_file, r;
	size_t count, n;
	struct bytes *strings = read_strings(&strings_file, &count);

	reader_open(&r, file);
	n = read_varint(&r);
	CU_ASSERT_EQUAL(n, (count + step - 1) / step);
	for (size_t i = 0; i < n; i++) {
		struct bytes s = strings[i * step];
		size_t want_count, got_count = 0;
		uint32_t *want = read_ids(&r, &want_count), *got = NULL;

		if (ctn_tokenizer_encode(tok, s.data, s.len, true, &got, &got_count, NULL) ||
		    got_count != want_count || memcmp(got, want, want_count * sizeof(*want)) != 0)
			differs(t, "encoding of string", i * step);
		check_text(t, tok, want, want_count, true, read_text_or_same(&r, s), i * step);
		free(want);
		free(got);
	}
	CU_ASSERT_EQUAL(r.at, r.len);
	free(r.data);
	free(strings);
	free(strings_file.data);
}

static void check_decodings(struct tally *t, const struct ctn_tokenizer *tok, const char *file)
{
	struct reader r;
	size_t n;

	reader_open(&r, file);
	n = read_varint(&r);
	CU_ASSERT(n >= 200);
	for (size_t i = 0; i < n; i++) {
		size_t count;
		uint32_t *ids = read_ids(&r, &count);
		struct bytes plain = read_blob(&r);

		check_text(t, tok, ids, count, false, plain, i);
		check_text(t, tok, ids, count, true, read_text_or_same(&r, plain), i);
		free(ids);
	}
	CU_ASSERT_EQUAL(r.at, r.len);
	free(r.data);
}

static void check(const char *name, const char *dir)
{
	struct ctn_tokenizer *tok = open_tokenizer(dir);
	struct tally t = {.name = name};
	char file[64];

	snprintf(file, sizeof(file), "%s.ids", name);
	check_encodings(&t, tok, file, 1);
	snprintf(file, sizeof(file), "%s.decode", name);
	check_decodings(&t, tok, file);
	CU_ASSERT_EQUAL(t.wrong, 0);
	ctn_tokenizer_close(tok);
}

static void test_gpt2(void)
{
	check("gpt2", "data/tokenizers/gpt2");
}

static void test_opt(void)
{
	check("opt", "data/tokenizers/opt");
}

static void test_stories(void)
{
	check("stories", "models/llama-stories260k");
}

static void test_qwen2_style(void)
{
	check("qwen2", "data/tokenizer/qwen2");
}

static void test_llama3_style_with_added_tokens(void)
{
	check("llama3", "data/tokenizer/llama3");
}

static void test_mistral_style(void)
{
	check("mistral", "data/tokenizer/mistral");
}

static void test_gemma_style(void)
{
	check("gemma", "data/tokenizer/gemma");
}

/* Writes the tokenizer of a variant to a folder of its own and opens it. */
static struct ctn_tokenizer *open_variant(const json_t *variant, size_t index)
{
	const char *base = json_string_value(json_object_get(variant, "base"));
	struct ctn_tokenizer *tok = NULL;
	struct ctn_err err = {0};
	char path[4096];
	json_t *root;

	snprintf(path, sizeof(path), "%s/data/tokenizer/%s/tokenizer.json", ctn_tests_dir(), base);
	root = json_load_file(path, 0, NULL);
	CU_ASSERT_PTR_NOT_NULL_FATAL(root);
	json_object_update(root, json_object_get(variant, "set"));
	snprintf(path, sizeof(path), "%s/variant-%02zu", ctn_test_tmpdir(), index);
	CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
	strcat(path, "/tokenizer.json");
	CU_ASSERT_EQUAL_FATAL(json_dump_file(root, path, 0), 0);
	json_decref(root);
	*strrchr(path, '/') = '\0';
	if (ctn_tokenizer_open(path, &tok, &err))
		fprintf(stderr, "# variant %zu: %s\n", index, err.msg);
	CU_ASSERT_PTR_NOT_NULL(tok);
	return tok;
}

static void test_variants(void)
{
	char path[4096], file[64], name[32];
	json_t *list, *variant;
	size_t i;

	snprintf(path, sizeof(path), "%s/data/tokenizer/variants.json", ctn_tests_dir());
	list = json_load_file(path, 0, NULL);
	CU_ASSERT_FATAL(json_array_size(list) > 30);
	json_array_foreach(list, i, variant)
	{
		struct ctn_tokenizer *tok = open_variant(variant, i);
		struct tally t = {.name = name};

		if (!tok)
			continue;
		snprintf(name, sizeof(name), "variant %zu", i);
		snprintf(file, sizeof(file), "variant-%02zu.ids", i);
		check_encodings(&t, tok, file, VARIANT_STEP);
		snprintf(file, sizeof(file), "variant-%02zu.decode", i);
		if (json_object_get(json_object_get(variant, "set"), "decoder"))
			check_decodings(&t, tok, file);
		CU_ASSERT_EQUAL(t.wrong, 0);
		ctn_tokenizer_close(tok);
	}
	json_decref(list);
}

/* The ids of the example that the makers of OPT give. */
static void test_opt_puts_bos_in_front(void)
{
	static const uint32_t want[] = {2, 31414, 232, 6, 127, 2335, 16, 11962};
	static const char text[] = "Hello world, my dog is cute";
	struct ctn_tokenizer *tok = open_tokenizer("data/tokenizers/opt");
	uint32_t *ids;
	size_t count;

	CU_ASSERT_EQUAL_FATAL(
		ctn_tokenizer_encode(tok, text, strlen(text), true, &ids, &count, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(count, CTN_ARRAY_LEN(want));
	CU_ASSERT_EQUAL(memcmp(ids, want, sizeof(want)), 0);
	free(ids);
	CU_ASSERT_EQUAL_FATAL(
		ctn_tokenizer_encode(tok, text, strlen(text), false, &ids, &count, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(count, CTN_ARRAY_LEN(want) - 1);
	CU_ASSERT_EQUAL(memcmp(ids, want + 1, sizeof(want) - sizeof(want[0])), 0);
	free(ids);
	ctn_tokenizer_close(tok);
}

static void test_tokens_have_names(void)
{
	struct ctn_tokenizer *tok = open_tokenizer("data/tokenizers/gpt2");

	CU_ASSERT_EQUAL(ctn_tokenizer_vocab_size(tok), 50257);
	CU_ASSERT_STRING_EQUAL(ctn_tokenizer_token(tok, 0), "!");
	CU_ASSERT_STRING_EQUAL(ctn_tokenizer_token(tok, 50256), "<|endoftext|>");
	CU_ASSERT_PTR_NULL(ctn_tokenizer_token(tok, 50257));
	CU_ASSERT_PTR_NULL(ctn_tokenizer_token(tok, UINT32_MAX));
	CU_ASSERT_TRUE(ctn_tokenizer_is_special(tok, 50256));
	CU_ASSERT_FALSE(ctn_tokenizer_is_special(tok, 0));
	CU_ASSERT_FALSE(ctn_tokenizer_is_special(tok, UINT32_MAX));
	ctn_tokenizer_close(tok);
}

CTN_TESTS("tokenizer", CTN_TEST(test_gpt2), CTN_TEST(test_opt), CTN_TEST(test_stories),
	  CTN_TEST(test_qwen2_style), CTN_TEST(test_llama3_style_with_added_tokens),
	  CTN_TEST(test_mistral_style), CTN_TEST(test_gemma_style), CTN_TEST(test_variants),
	  CTN_TEST(test_opt_puts_bos_in_front), CTN_TEST(test_tokens_have_names))
