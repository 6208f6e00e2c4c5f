// SPDX-License-Identifier: MIT
/* The manifest: what it says, and that nothing else is taken for one. */
#include "manifest_fixture.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

static const struct gen_model small = {.family = "llama",
				       .layers = 2,
				       .hidden = 32,
				       .heads = 4,
				       .kv_heads = 4,
				       .head_dim = 8,
				       .ffn = 64,
				       .vocab = 100,
				       .embed_dim = 32,
				       .positions = 64,
				       .files = 2};
/* Frames of their own, and tensors of several chunks. */
static const struct gen_model large = {GEN_BIG(2, 1500)};

static void test_written_and_read_back(void)
{
	const struct gen_model *models[] = {&small, &large};

	for (size_t m = 0; m < CTN_ARRAY_LEN(models); m++) {
		char *dir = copy_folder(gen_write(models[m])), path[PATH_MAX];
		struct ctn_checkpoint *ckpt;
		struct ctn_err err = {0};

		CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open(dir, &ckpt, &err), 0);
		CU_ASSERT_PTR_NULL(ctn_checkpoint_manifest(ckpt));
		ctn_checkpoint_close(ckpt);
		write_manifest(dir);
		write_manifest(dir); /* over the first */
		CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open(dir, &ckpt, &err), 0);
		CU_ASSERT_STRING_EQUAL_FATAL(ctn_checkpoint_manifest(ckpt),
					     gen_path(path, dir, CTN_MANIFEST_NAME));
		for (uint32_t ways = 1; ways <= 2; ways++) {
			struct ctn_plan *plan;

			CU_ASSERT_EQUAL_FATAL(ctn_plan_build(ckpt, ways, ways, &plan, &err), 0);
			for (uint32_t i = 0; i < plan->part_count; i++) {
				const struct ctn_part *part = &plan->parts[i];
				struct ctn_digest d = naive_part_digest(ckpt, part);

				CU_ASSERT_TRUE(part->has_digest);
				CU_ASSERT_EQUAL(memcmp(&part->digest, &d, sizeof(d)), 0);
				for (uint32_t k = 0; k < part->tensor_count; k++) {
					d = naive_tensor_digest(ckpt, part->tensors[k].tensor);
					CU_ASSERT_EQUAL(
						memcmp(&part->tensors[k].digest, &d, sizeof(d)), 0);
				}
			}
			ctn_plan_free(plan);
		}
		ctn_checkpoint_close(ckpt);
		free(dir);
	}
}

/* ---- one wrong value -------------------------------------------------------------------- */

/* The member at "/a/0/b" of a tree becomes `value` (JSON), or goes. */
static void put(json_t *root, const char *at, const char *value)
{
	char *copy = strdup(at), *key = strtok(copy, "/"), *next;
	json_t *v = root, *new = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;

	CU_ASSERT_FATAL(key && (!value || new));
	for (; (next = strtok(NULL, "/")); key = next)
		v = json_is_array(v) ? json_array_get(v, (size_t)atoi(key))
				     : json_object_get(v, key);
	if (json_is_array(v) && (size_t)atoi(key) == json_array_size(v))
		json_array_append_new(v, new);
	else if (json_is_array(v) && new)
		json_array_set_new(v, (size_t)atoi(key), new);
	else if (json_is_array(v))
		json_array_remove(v, (size_t)atoi(key));
	else if (new)
		json_object_set_new(v, key, new);
	else
		CU_ASSERT_EQUAL(json_object_del(v, key), 0);
	free(copy);
}

#define ONE      "model-00001-of-00002.safetensors"
#define DIGEST   "\"0123456789abcdef0123456789abcdef\""
#define TENSOR   "model.embed_tokens.weight"
#define ELSEWHAT "model.norm.weight"

static const struct {
	const char *at, *value;
	int rc;
	const char *says;
} wrong_values[] = {
	{"/format", NULL, -EINVAL, "format"},
	{"/format", "2", -ENOTSUP, "format: expected 1, found 2"},
	{"/format", "4294967297", -ENOTSUP, "format: expected 1, found 4294967297"},
	{"/format", "\"1\"", -EINVAL, "the top"},
	{"/format", "1.0", -EINVAL, "the top"},
	{"/plan", NULL, -EINVAL, "plan"},
	{"/plan", "7", -ESTALE, "plan: expected 1, found 7"},
	{"/plan", "4294967297", -ESTALE, "plan: expected 1, found 4294967297"},
	{"/plan", "null", -EINVAL, "the top"},
	{"/surprise", "1", -EINVAL, "surprise"},
	{"/files", NULL, -EINVAL, "files"},
	{"/files", "[]", -EINVAL, "\"files\""},
	{"/texts", "3", -EINVAL, "\"texts\""},
	{"/parts", "{}", -EINVAL, "\"parts\""},
	{"/files/" ONE, NULL, -ESTALE, "does not name " ONE},
	{"/files/" ONE, "7", -EINVAL, ONE},
	{"/files/" ONE "/bytes", NULL, -EINVAL, ONE},
	{"/files/" ONE "/bytes", "-1", -EINVAL, "found -1"},
	{"/files/" ONE "/bytes", "17", -ESTALE, ONE ": expected 17 bytes"},
	{"/files/" ONE "/bytes", "1e3", -EINVAL, ONE},
	{"/files/" ONE "/header", "\"abc\"", -EINVAL, "32 hexadecimal digits"},
	{"/files/" ONE "/header", "\"0123456789ABCDEF0123456789abcdef\"", -EINVAL, "hexadecimal"},
	{"/files/" ONE "/header", "\"0123456789abcdef0123456789abcdef0\"", -EINVAL, "hexadecimal"},
	{"/files/" ONE "/header", DIGEST, -ESTALE, ONE ": expected header 0123456789abcdef"},
	{"/files/" ONE "/extra", "1", -EINVAL, "extra"},
	{"/files/" ONE "/mtime_ns", "1.5", -EINVAL, ONE},
	{"/texts/config.json/mtime_ns", "1", -EINVAL, "mtime_ns"},
	{"/files/other.safetensors", "{}", -ESTALE, "names \"other.safetensors\""},
	{"/texts/config.json", NULL, -ESTALE, "does not name config.json"},
	{"/texts/config.json/digest", DIGEST, -ESTALE, "config.json: expected digest 0123"},
	{"/texts/config.json/bytes", "1", -ESTALE, "config.json: expected 1 bytes"},
	{"/texts/tokenizer.json", "{\"bytes\": 1, \"digest\": " DIGEST "}", -ESTALE,
	 "names \"tokenizer.json\""},
	{"/texts/notes.txt", "{}", -ESTALE, "names \"notes.txt\""},
	{"/parts", "[]", -ESTALE, "parts, found 0"},
	{"/parts/0", "[]", -EINVAL, "part 0"},
	{"/parts/0/bytes", "5", -ESTALE, "part 0"},
	{"/parts/0/bytes", "true", -EINVAL, "part 0"},
	{"/parts/0/digest", "\"\"", -EINVAL, "part 0"},
	{"/parts/0/digest", "9", -EINVAL, "part 0"},
	{"/parts/0/surprise", "9", -EINVAL, "surprise"},
	{"/parts/0/tensors", "[]", -EINVAL, "tensors: expected an object"},
	{"/parts/0/tensors", "{}", -ESTALE, "part 0"},
	{"/parts/0/tensors/" TENSOR, NULL, -ESTALE, "part 0"},
	{"/parts/0/tensors/" TENSOR, "4", -EINVAL, TENSOR},
	{"/parts/0/tensors/" TENSOR, "\"4\"", -EINVAL, TENSOR},
	{"/parts/0/tensors/nobody", DIGEST, -ESTALE, "\"nobody\""},
	{"/parts/1",
	 "{\"bytes\": 1, \"digest\": " DIGEST ", \"tensors\": {\"" ELSEWHAT "\": " DIGEST "}}",
	 -EINVAL, "is in two parts"},
};

static int open_and_plan(const char *dir, struct ctn_err *err)
{
	struct ctn_checkpoint *ckpt;
	struct ctn_plan *plan;
	int rc = ctn_checkpoint_open(dir, &ckpt, err);

	if (rc)
		return rc;
	rc = ctn_plan_build(ckpt, 1, 1, &plan, err);
	if (rc == 0)
		ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
	return rc;
}

static void expect_refused(const char *dir, int rc, const char *says, const char *what)
{
	struct ctn_err err = {0};
	const int found = open_and_plan(dir, &err);

	CU_ASSERT_EQUAL(found, rc);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, CTN_MANIFEST_NAME));
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, says));
	if (found != rc || !strstr(err.msg, says))
		printf("# %s: %d: %s\n", what, found, err.msg);
}

static void test_every_wrong_value_is_refused_by_name(void)
{
	char *dir = copy_folder(gen_write(&small)), path[PATH_MAX];
	json_t *root;

	write_manifest(dir);
	root = json_load_file(gen_path(path, dir, CTN_MANIFEST_NAME), 0, NULL);
	CU_ASSERT_PTR_NOT_NULL_FATAL(root);
	for (size_t i = 0; i < CTN_ARRAY_LEN(wrong_values); i++) {
		struct ctn_err err = {0};
		json_t *copy = json_deep_copy(root);

		/* The other members may come in any order. */
		CU_ASSERT_EQUAL(json_dump_file(root, path, JSON_SORT_KEYS), 0);
		CU_ASSERT_EQUAL(open_and_plan(dir, &err), 0);
		put(copy, wrong_values[i].at, wrong_values[i].value);
		CU_ASSERT_EQUAL(json_dump_file(copy, path, 0), 0);
		expect_refused(dir, wrong_values[i].rc, wrong_values[i].says, wrong_values[i].at);
		json_decref(copy);
	}
	json_decref(root);
	free(dir);
}

static void test_what_is_no_manifest_is_refused(void)
{
	static const char *const texts[][2] = {
		{"", "JSON"},
		{"[]", "an object"},
		{"{\"format\": 1", "JSON"},
		{"{\"format\": 1, \"format\": 1}", "given twice"},
		{"{}", "format"},
		{"{\"format\": 1} x", "JSON"},
	};
	char *dir = copy_folder(gen_write(&small)), path[PATH_MAX];
	struct ctn_err err = {0};

	for (size_t i = 0; i < CTN_ARRAY_LEN(texts); i++) {
		gen_write_text(dir, CTN_MANIFEST_NAME, texts[i][0]);
		expect_refused(dir, -EINVAL, i == 1 ? "object" : texts[i][1], texts[i][0]);
	}
	unlink(gen_path(path, dir, CTN_MANIFEST_NAME));
	CU_ASSERT_EQUAL(symlink("nowhere", path), 0);
	expect_refused(dir, -ENOENT, "dangling", "a dangling link");
	unlink(path);
	CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
	expect_refused(dir, -EINVAL, "regular file", "a folder");
	/* Nor is it written over one; nothing is left beside it. */
	CU_ASSERT(try_write_manifest(dir, &err) < 0);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, CTN_MANIFEST_NAME));
	rmdir(path);
	free(dir);
}

/* A small checkpoint has a small manifest: a large one is not even parsed, which would take many
 * times its size in memory. */
static void test_what_is_too_large_is_refused_unread(void)
{
	char *dir = copy_folder(gen_write(&small)), path[PATH_MAX];
	struct ctn_err err = {0};

	write_manifest(dir);
	CU_ASSERT_EQUAL(open_and_plan(dir, &err), 0);
	/* A hole reads as zeros, which would not be JSON. */
	CU_ASSERT_EQUAL(truncate(gen_path(path, dir, CTN_MANIFEST_NAME), 4 << 20), 0);
	expect_refused(dir, -EFBIG, "expected at most", "a manifest of 4 MiB");
	free(dir);
}

static unsigned int hidden_files(const char *dir)
{
	unsigned int hidden = 0;
	struct dirent *e;
	DIR *d = opendir(dir);

	while (d && (e = readdir(d)))
		hidden += e->d_name[0] == '.' && strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
	closedir(d);
	return hidden;
}

/* As on a disk that is full: the file does not take all of it. */
static int write_without_room(const char *dir, struct ctn_err *err)
{
	void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
	struct rlimit lim, little;
	int rc;

	CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_FSIZE, &lim), 0);
	little = (struct rlimit){100, lim.rlim_max};
	CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_FSIZE, &little), 0);
	rc = try_write_manifest(dir, err);
	CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_FSIZE, &lim), 0);
	signal(SIGXFSZ, before);
	return rc;
}

static void test_writing_leaves_nothing_beside_it(void)
{
	char *dir = copy_folder(gen_write(&small)), path[PATH_MAX];
	struct ctn_err err = {0};
	struct stat st;

	write_manifest(dir);
	CU_ASSERT_EQUAL(write_without_room(dir, &err), -EFBIG);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, CTN_MANIFEST_NAME));
	CU_ASSERT_EQUAL(hidden_files(dir), 0);
	/* The one before is there still. */
	CU_ASSERT_EQUAL(open_and_plan(dir, &err), 0);
	CU_ASSERT_EQUAL(stat(gen_path(path, dir, CTN_MANIFEST_NAME), &st), 0);
	CU_ASSERT_EQUAL(st.st_mode & 0777, 0644);
	unlink(path);
	mkdir(path, 0700);
	CU_ASSERT(try_write_manifest(dir, &err) < 0);
	rmdir(path);
	CU_ASSERT_EQUAL(hidden_files(dir), 0);
	free(dir);
}

static void test_changed_texts_are_stale(void)
{
	static const char *const tokenizer[] = {"tokenizer.json", "tokenizer_config.json"};
	char *dir = copy_folder(gen_write(&small)), path[PATH_MAX];
	struct ctn_err err = {0};

	write_manifest(dir);
	gen_write_text(dir, "README.md", "is none of its texts");
	CU_ASSERT_EQUAL(open_and_plan(dir, &err), 0);
	gen_write_text(dir, "generation_config.json", "{\"eos_token_id\": 3}");
	expect_refused(dir, -ESTALE, "does not name generation_config.json", "a new text");
	write_manifest(dir);
	gen_write_text(dir, "generation_config.json", "{\"eos_token_id\": 4}");
	expect_refused(dir, -ESTALE, "generation_config.json: expected digest", "a changed text");
	unlink(gen_path(path, dir, "generation_config.json"));
	expect_refused(dir, -ESTALE, "names \"generation_config.json\"", "a text that is gone");
	write_manifest(dir);
	CU_ASSERT_EQUAL(open_and_plan(dir, &err), 0);
	/* What the tokenizer reads beside. */
	for (size_t i = 0; i < CTN_ARRAY_LEN(tokenizer); i++) {
		gen_write_text(dir, tokenizer[i], "{}");
		expect_refused(dir, -ESTALE, tokenizer[i], "a new text of the tokenizer");
		write_manifest(dir);
		CU_ASSERT_EQUAL(open_and_plan(dir, &err), 0);
	}
	free(dir);
}

CTN_TESTS("checkpoint_manifest", CTN_TEST(test_written_and_read_back),
	  CTN_TEST(test_every_wrong_value_is_refused_by_name),
	  CTN_TEST(test_what_is_no_manifest_is_refused),
	  CTN_TEST(test_what_is_too_large_is_refused_unread),
	  CTN_TEST(test_writing_leaves_nothing_beside_it), CTN_TEST(test_changed_texts_are_stale))
