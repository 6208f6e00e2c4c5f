// SPDX-License-Identifier: MIT
/* Files that cannot be served are refused by name, and so is text that is not text. */
#include "tokenizer_data.h"

#include <errno.h>
#include <jansson.h>
#include <sys/stat.h>

#define MODEL \
	"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define SPLIT(pattern)                                                                       \
	"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern \
	"\"},\"behavior\":\"Isolated\",\"invert\":false}}"
#define WITH(part) "{" MODEL "," part "}"

static void put(const char *name, const char *content, size_t len)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", ctn_test_tmpdir(), name);
	f = fopen(path, "w");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	CU_ASSERT_EQUAL(fwrite(content, 1, len, f), len);
	CU_ASSERT_EQUAL_FATAL(fclose(f), 0);
}

/* Opening this tokenizer.json gives this error, whose message has these words. */
static void refuses(const char *json, int code, const char *words)
{
	struct ctn_tokenizer *tok = NULL;
	struct ctn_err err = {0};
	int rc;

	put("tokenizer.json", json, strlen(json));
	rc = ctn_tokenizer_open(ctn_test_tmpdir(), &tok, &err);
	if (rc != code || !strstr(err.msg, words) || strchr(err.msg, '\n'))
		fprintf(stderr, "# %s\n# expected %d, \"%s\"; found %d, \"%s\"\n", json, code,
			words, rc, err.msg);
	CU_ASSERT_EQUAL(rc, code);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, words));
	if (!rc)
		ctn_tokenizer_close(tok);
}

static struct ctn_tokenizer *opens(const char *json)
{
	struct ctn_tokenizer *tok = NULL;
	struct ctn_err err = {0};

	put("tokenizer.json", json, strlen(json));
	if (ctn_tokenizer_open(ctn_test_tmpdir(), &tok, &err))
		fprintf(stderr, "# %s\n# %s\n", json, err.msg);
	CU_ASSERT_PTR_NOT_NULL_FATAL(tok);
	return tok;
}

static void encodes(const struct ctn_tokenizer *tok, const char *text, const char *want)
{
	struct ctn_buf got = {0};
	uint32_t *ids = NULL;
	size_t count = 0;

	CU_ASSERT_EQUAL(ctn_tokenizer_encode(tok, text, strlen(text), true, &ids, &count, NULL), 0);
	for (size_t i = 0; i < count; i++)
		ctn_buf_printf(&got, i ? " %u" : "%u", ids[i]);
	CU_ASSERT_STRING_EQUAL(got.data ? got.data : "", want);
	free(ids);
	ctn_buf_free(&got);
}

static void test_malformed_files(void)
{
	struct ctn_tokenizer *tok;
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL(ctn_tokenizer_open("/nonexistent", &tok, &err), -ENOENT);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "/nonexistent/tokenizer.json"));
	refuses("", -EINVAL, "tokenizer.json:1:");
	refuses("{", -EINVAL, "tokenizer.json:1:");
	refuses("[]", -EINVAL, "expected an object, found an array");
	refuses("{}", -EINVAL, "\"model\": expected an object");
	refuses("{" MODEL "} {", -EINVAL, "end of file");
	refuses("{" MODEL "," MODEL "}", -EINVAL, "duplicate object key");
	refuses("{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", -EINVAL,
		"duplicate object key");
	refuses(WITH("\"version\":\"2.0\""), -ENOTSUP, "version");
	refuses(WITH("\"surprise\":1"), -ENOTSUP, "surprise");
	refuses(WITH("\"truncation\":{\"max_length\":5}"), -ENOTSUP, "truncation");
	refuses(WITH("\"padding\":{}"), -ENOTSUP, "padding");
}

static void test_malformed_models(void)
{
	refuses("{\"model\":{\"merges\":[]}}", -EINVAL, "\"vocab\"");
	refuses("{\"model\":{\"vocab\":[],\"merges\":[]}}", -EINVAL, "\"vocab\"");
	refuses("{\"model\":{\"vocab\":{},\"merges\":[]}}", -EINVAL, "vocab");
	refuses("{\"model\":{\"vocab\":{\"a\":0}}}", -EINVAL, "\"merges\"");
	refuses("{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", -EINVAL, "\"a\"");
	refuses("{\"model\":{\"vocab\":{\"a\":4294967296},\"merges\":[]}}", -EINVAL, "\"a\"");
	refuses("{\"model\":{\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", -EINVAL, "\"a\"");
	refuses("{\"model\":{\"vocab\":{\"a\":1.5},\"merges\":[]}}", -EINVAL, "\"a\"");
	refuses("{\"model\":{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", -EINVAL, "id 1");
	refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a q\"]}}", -EINVAL,
		"merge 0: \"q\" is not in the vocabulary");
	refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", -EINVAL,
		"\"aa\" is not in the vocabulary");
	refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", -EINVAL, "merge 0");
	refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", -EINVAL, "merge 0");
	refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", -EINVAL, "merge 0");
	refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[7]}}", -EINVAL, "merge 0");
	refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}", -EINVAL,
		"\"u\"");
	refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"fuse_unk\":1}}", -EINVAL,
		"fuse_unk");
	refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", -ENOTSUP,
		"dropout");
	refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"w\"}}",
		-ENOTSUP, "end_of_word_suffix");
	refuses("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"max\":1}}", -ENOTSUP, "max");
	refuses("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", -ENOTSUP, "Unigram");
}

static void test_unknown_components(void)
{
	refuses(WITH("\"normalizer\":{\"type\":\"Lowercase\"}"), -ENOTSUP, "Lowercase");
	refuses(WITH("\"normalizer\":{\"type\":\"NFC\",\"x\":1}"), -ENOTSUP, "\"x\"");
	refuses(WITH("\"normalizer\":{}"), -EINVAL, "normalizer: \"type\"");
	refuses(WITH("\"normalizer\":7"), -EINVAL, "normalizer");
	refuses(WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[null]}"), -EINVAL,
		"normalizer");
	refuses(WITH("\"normalizer\":{\"type\":\"Prepend\",\"prepend\":1}"), -EINVAL, "prepend");
	refuses(WITH("\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":"
		     "{\"String\":\"\"}}"),
		-ENOTSUP, "empty pattern");
	refuses(WITH("\"pre_tokenizer\":{\"type\":\"Whitespace\"}"), -ENOTSUP, "Whitespace");
	refuses(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Odd\",\"pattern\":"
		     "{\"String\":\"a\"}}"),
		-ENOTSUP, "Odd");
	refuses(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
		     "\"a\"}"),
		-EINVAL, "pattern");
	refuses(WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"), -EINVAL,
		"replacement");
	refuses(WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), -ENOTSUP,
		"BertProcessing");
	refuses(WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
		     "[{\"SpecialToken\":{\"id\":\"q\"}}],\"special_tokens\":{}}"),
		-EINVAL, "\"q\"");
	refuses(WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
		     "[{\"Sequence\":{\"id\":\"B\"}}]}"),
		-EINVAL, "\"B\"");
	refuses(WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
		     "[{\"SpecialToken\":{\"id\":\"q\"}}],\"special_tokens\":{\"q\":{\"ids\":[3]}}"
		     "}"),
		-EINVAL, "ids of the vocabulary, found 3");
	refuses(WITH("\"decoder\":{\"type\":\"WordPiece\"}"), -ENOTSUP, "WordPiece");
	/* refuses() also holds that the message is one line. */
	refuses(WITH("\"decoder\":{\"type\":\"Word\\nPiece\"}"), -ENOTSUP, "Word?Piece");
	refuses(WITH("\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}"),
		-ENOTSUP, "stop");
	refuses(WITH("\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}"),
		-EINVAL, "start");
}

static void test_malformed_added_tokens(void)
{
	refuses(WITH("\"added_tokens\":{}"), -EINVAL, "added_tokens");
	refuses(WITH("\"added_tokens\":[1]"), -EINVAL, "added_tokens");
	refuses(WITH("\"added_tokens\":[{\"id\":3}]"), -EINVAL, "content");
	refuses(WITH("\"added_tokens\":[{\"id\":3,\"content\":\"\"}]"), -EINVAL, "id 3");
	refuses(WITH("\"added_tokens\":[{\"id\":9,\"content\":\"x\"}]"), -EINVAL, "expected id 3");
	refuses(WITH("\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]"), -EINVAL, "expected id 0");
	refuses(WITH("\"added_tokens\":[{\"id\":0,\"content\":\"a\"},{\"id\":0,\"content\":\"a\"}"
		     "]"),
		-EINVAL, "given twice");
	refuses(WITH("\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"special\":\"yes\"}]"),
		-EINVAL, "special");
}

static void test_deep_nesting(void)
{
	struct ctn_buf json = {0};

	ctn_buf_puts(&json, "{" MODEL ",\"normalizer\":");
	for (int i = 0; i < 12; i++)
		ctn_buf_puts(&json, "{\"type\":\"Sequence\",\"normalizers\":[");
	ctn_buf_puts(&json, "{\"type\":\"NFC\"}");
	for (int i = 0; i < 12; i++)
		ctn_buf_puts(&json, "]}");
	ctn_buf_puts(&json, "}");
	refuses(json.data, -ENOTSUP, "nested sequences");
	ctn_buf_reset(&json);
	for (int i = 0; i < 100000; i++)
		ctn_buf_puts(&json, "[");
	refuses(json.data, -EINVAL, "depth");
	ctn_buf_free(&json);
}

/* Constructs that Oniguruma and PCRE2 read differently, or that one of them refuses. */
static void test_patterns_that_are_not_the_same(void)
{
	static const char *const patterns[] = {
		"\\\\w+",
		"\\\\bx",
		"\\\\h",
		"^a",
		"a$",
		"\\\\p{Han}",
		"\\\\pL",
		"[a[bc]]",
		"[a&&b]",
		"[]a]",
		"(?i)a",
		"(?m:a)",
		"(?i:ss)",
		"(?i:é)",
		"(?i:\\\\s)",
		"(?<n>a)",
		"a{,3}",
		"a{2}?",
		"a{2,3}+",
		"a**",
		"*a",
		"(*UTF)a",
		"a|+",
		"(?:?)",
		"\\\\1",
		"[\\\\s-z]",
		"[z-a]",
		"\\\\x{110000}",
		"a)",
		"\\\\uD800",
		"[\\u2000-\\u3000]",
		"\\\\G",
		"\\\\v",
		"[abc",
		"a\\\\",
		"\\\\xff",
		"(a",
		"(?<=a+)b",
		"\\u1C89",
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(patterns); i++) {
		char json[1024];

		snprintf(json, sizeof(json), SPLIT("%s"), patterns[i]);
		refuses(json, -ENOTSUP, "pre_tokenizer Split: pattern");
	}
}

static void test_patterns_that_are(void)
{
	static const char *const patterns[] = {
		"(?i:'s|[sdmt]|ll)",
		"a{2}",
		"a{2,}?",
		"a++",
		"(?:a|b)*?",
		"[-a]",
		"[a-]",
		"[\\\\]\\\\[^\\\\-]",
		"\\\\x{4e00}\\\\u4E00\\\\x41",
		"(?<!a)b(?=c)",
		"#[^#]\\\\ ",
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(patterns); i++) {
		char json[1024];

		snprintf(json, sizeof(json), SPLIT("%s"), patterns[i]);
		ctn_tokenizer_close(opens(json));
	}
}

static void test_text_that_is_not_utf8(void)
{
	static const struct {
		const char *text;
		size_t len;
		const char *where;
	} cases[] = {
		{"\xff", 1, "byte 0 "},
		{"ab\x80", 3, "byte 2 "},
		{"a\xc3", 2, "byte 1 "},
		{"\xc0\x80", 2, "byte 0 "},
		{"é\xe2\x82", 4, "byte 2 "},
		{"\xed\xa0\x80", 3, "byte 0 "},
		{"\xf4\x90\x80\x80", 4, "byte 0 "},
		{"a\0\xe2(", 4, "byte 2 "},
		{"\xf0\x8f\xbf\xbf", 4, "byte 0 "},
		{"abc\xf0\x9f\x98", 6, "byte 3 "},
	};
	struct ctn_tokenizer *tok = open_tokenizer("models/llama-stories260k");

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_err err = {0};
		uint32_t *ids;
		size_t count;

		CU_ASSERT_EQUAL(ctn_tokenizer_encode(tok, cases[i].text, cases[i].len, true, &ids,
						     &count, &err),
				-EILSEQ);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, cases[i].where));
	}
	ctn_tokenizer_close(tok);
}

static void test_ids_outside_the_vocabulary(void)
{
	/* Id 1 is a hole. */
	struct ctn_tokenizer *tok =
		opens("{\"model\":{\"vocab\":{\"a\":0,\"b\":2},\"merges\":[]}}");
	static const uint32_t bad[] = {1, 3, UINT32_MAX};
	struct ctn_buf out = {0};

	CU_ASSERT_EQUAL(ctn_tokenizer_vocab_size(tok), 3);
	CU_ASSERT_PTR_NULL(ctn_tokenizer_token(tok, 1));
	for (size_t i = 0; i < CTN_ARRAY_LEN(bad); i++) {
		struct ctn_detok *d = ctn_detok_new(tok, true, false);
		struct ctn_err err = {0};
		char id[16];

		CU_ASSERT_EQUAL(ctn_tokenizer_decode(tok, &bad[i], 1, false, &out, &err), -EINVAL);
		snprintf(id, sizeof(id), " %u ", bad[i]);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, id));
		CU_ASSERT_PTR_NOT_NULL_FATAL(d);
		CU_ASSERT_EQUAL(ctn_detok_push(d, bad[i], &out, NULL), -EINVAL);
		/* The stream goes on as if nothing had been. */
		CU_ASSERT_EQUAL(ctn_detok_push(d, 2, &out, NULL), 0);
		ctn_detok_flush(d, &out);
		CU_ASSERT_STRING_EQUAL(out.data, "b");
		ctn_buf_reset(&out);
		ctn_detok_free(d);
	}
	ctn_buf_free(&out);
	ctn_tokenizer_close(tok);
}

/* tokenizer_config.json says what to put around the text only without a post-processor. */
static void test_bos_and_eos_of_the_config(void)
{
	static const char config[] =
		"{\"add_bos_token\":true,\"add_eos_token\":true,\"bos_token\":\"ab\","
		"\"eos_token\":{\"content\":\"b\"},\"anything\":{\"else\":1}}";
	static const char unknown[] = "{\"add_bos_token\":true,\"bos_token\":\"zz\"}";
	struct ctn_tokenizer *tok;

	put("tokenizer_config.json", config, strlen(config));
	tok = opens("{" MODEL "}");
	encodes(tok, "aba", "2 2 0 1");
	ctn_tokenizer_close(tok);
	tok = opens(WITH("\"post_processor\":{\"type\":\"ByteLevel\"}"));
	encodes(tok, "aba", "2 0");
	ctn_tokenizer_close(tok);
	put("tokenizer_config.json", unknown, strlen(unknown));
	refuses("{" MODEL "}", -EINVAL, "tokenizer_config.json: \"bos_token\"");
	put("tokenizer_config.json", "{", 1);
	refuses("{" MODEL "}", -EINVAL, "tokenizer_config.json:1:");
	put("tokenizer_config.json", "{}", 2);
	tok = opens("{" MODEL "}");
	encodes(tok, "", "");
	ctn_tokenizer_close(tok);
}

CTN_TESTS("tokenizer_errors", CTN_TEST(test_malformed_files), CTN_TEST(test_malformed_models),
	  CTN_TEST(test_unknown_components), CTN_TEST(test_malformed_added_tokens),
	  CTN_TEST(test_deep_nesting), CTN_TEST(test_patterns_that_are_not_the_same),
	  CTN_TEST(test_patterns_that_are), CTN_TEST(test_text_that_is_not_utf8),
	  CTN_TEST(test_ids_outside_the_vocabulary), CTN_TEST(test_bos_and_eos_of_the_config))
