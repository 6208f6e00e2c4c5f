// SPDX-License-Identifier: MIT
/* Which files make up a checkpoint, and which tensors a family needs of them: folders as
 * people have them, among them those that made other loaders fail. */
#include "ckpt_files.h"
#include "checkpoint/checkpoint.h"

static const struct gen_model llama = {
	.family = "llama",
	.layers = 2,
	.hidden = 16,
	.heads = 4,
	.kv_heads = 2,
	.head_dim = 4,
	.ffn = 24,
	.vocab = 30,
	.positions = 64,
};

static const struct gen_model opt = {
	.family = "opt",
	.layers = 2,
	.hidden = 16,
	.heads = 4,
	.kv_heads = 4,
	.head_dim = 4,
	.ffn = 24,
	.vocab = 30,
	.positions = 10,
	.tied = true,
};

static const struct gen_model gpt2 = {
	.family = "gpt2",
	.layers = 2,
	.hidden = 16,
	.heads = 4,
	.kv_heads = 4,
	.head_dim = 4,
	.ffn = 64,
	.vocab = 30,
	.positions = 10,
	.tied = true,
};

static struct gen_model in_files(struct gen_model m, unsigned int files)
{
	m.files = files;
	return m;
}

static struct ctn_checkpoint *open_dir(const char *dir)
{
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_err err = {0};

	if (ctn_checkpoint_open(dir, &ckpt, &err))
		printf("# %s\n", err.msg);
	CU_ASSERT_PTR_NOT_NULL_FATAL(ckpt);
	return ckpt;
}

static void check_opens(const char *dir, uint32_t files, uint32_t tensors)
{
	struct ctn_checkpoint *ckpt = open_dir(dir);

	CU_ASSERT_EQUAL(ckpt->file_count, files);
	CU_ASSERT_EQUAL(ckpt->tensor_count, tensors);
	ctn_checkpoint_close(ckpt);
}

/* All of the NULL-terminated parts are in the message, which is one line. */
static void check_fails(const char *dir, int rc, const char *const *says)
{
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_err err = {0};
	bool good = ctn_checkpoint_open(dir, &ckpt, &err) == rc && !strchr(err.msg, '\n');

	for (; *says; says++)
		good = good && strstr(err.msg, *says);
	if (!good)
		printf("# %d %s\n", err.code, err.msg);
	CU_ASSERT_TRUE(good);
	ctn_checkpoint_close(ckpt);
}

#define SAYS(...)                 \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}

static void remove_file(const char *dir, const char *name)
{
	char path[PATH_MAX];

	if (unlink(gen_path(path, dir, name)))
		abort();
}

static void rename_file(const char *dir, const char *from, const char *to)
{
	char a[PATH_MAX], b[PATH_MAX];

	if (rename(gen_path(a, dir, from), gen_path(b, dir, to)))
		abort();
}

/* Opens a folder and returns what was logged meanwhile. */
static const char *log_of_opening(const char *dir, struct ctn_checkpoint **ckpt)
{
	static char text[4096];
	FILE *f = tmpfile();
	int saved = dup(STDERR_FILENO);

	dup2(fileno(f), STDERR_FILENO);
	*ckpt = open_dir(dir);
	dup2(saved, STDERR_FILENO);
	close(saved);
	rewind(f);
	text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
	fclose(f);
	return text;
}

/* ---- files ----------------------------------------------------------------------------- */

static void test_identity_of_files(void)
{
	struct gen_model m = in_files(llama, 2);
	struct ctn_checkpoint *ckpt = open_dir(gen_write(&m));

	for (uint32_t i = 0; i < 2; i++) {
		struct stat st;

		CU_ASSERT_EQUAL(stat(ckpt->files[i].path, &st), 0);
		CU_ASSERT_EQUAL(ckpt->files[i].bytes, (uint64_t)st.st_size);
		CU_ASSERT_EQUAL(ckpt->files[i].device, st.st_dev);
		CU_ASSERT_EQUAL(ckpt->files[i].inode, st.st_ino);
		CU_ASSERT_EQUAL(ckpt->files[i].mtime_ns,
				st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec);
	}
	for (uint32_t i = 1; i < ckpt->tensor_count; i++) {
		const struct ctn_tensor *a = &ckpt->tensors[i - 1], *b = &ckpt->tensors[i];

		CU_ASSERT_TRUE(a->file < b->file || (a->file == b->file && a->offset < b->offset));
	}
	CU_ASSERT_PTR_NULL(ctn_checkpoint_tensor(ckpt, "model.layers.9.mlp.up_proj.weight"));
	CU_ASSERT_STRING_EQUAL(ctn_checkpoint_tensor(ckpt, "model.norm.weight")->name,
			       "model.norm.weight");
	ctn_checkpoint_close(ckpt);
}

/* The index names files that are not there: all are named, before anything is read. */
static void test_missing_files_are_all_named(void)
{
	struct gen_model m = in_files(llama, 5);
	const char *dir = gen_write(&m);

	check_opens(dir, 5, 21);
	remove_file(dir, "model-00002-of-00005.safetensors");
	remove_file(dir, "model-00004-of-00005.safetensors");
	check_fails(dir, -ENOENT,
		    SAYS("2 of 5 files", "model-00002-of-00005.safetensors",
			 "model-00004-of-00005.safetensors"));
}

/* Files that are not in the index are not loaded, whatever they are called. */
static void test_stray_files_are_ignored(void)
{
	struct gen_model m = in_files(llama, 2), other = llama;
	char path[PATH_MAX];
	struct gen_list *l;
	const char *dir;

	dir = gen_write(&m);
	l = gen_tensors(&other);
	gen_write_safetensors(&other, l, 0, gen_path(path, dir, "model.safetensors"));
	gen_write_safetensors(&other, l, 0, gen_path(path, dir, "consolidated.safetensors"));
	free(l);
	gen_write_text(dir, "model-00003-of-00002.safetensors", "not a container");
	check_opens(dir, 2, 21);
	/* Without the index the one file counts. */
	remove_file(dir, "model.safetensors.index.json");
	check_opens(dir, 1, 21);
}

/* The index is believed about names. */
static void test_index_with_other_names(void)
{
	struct gen_model m = llama;
	struct gen_list *l = gen_tensors(&m);
	struct ctn_buf b = {0};
	const char *dir = gen_write_list(&m, l);

	rename_file(dir, "model.safetensors", "weights of may.safetensors");
	ctn_buf_puts(&b, "{\"weight_map\":{");
	for (unsigned int i = 0; i < l->count; i++)
		ctn_buf_printf(&b, "%s\"%s\":\"weights of may.safetensors\"", i ? "," : "",
			       l->t[i].name);
	ctn_buf_puts(&b, "}}");
	gen_write_text(dir, "model.safetensors.index.json", b.data);
	check_opens(dir, 1, 21);
	ctn_buf_free(&b);
	free(l);
}

static void test_bad_indexes(void)
{
	static const struct {
		const char *text;
		const char *says;
	} cases[] = {
		{"{}", "weight_map"},
		{"{\"weight_map\":{}}", "weight_map"},
		{"{\"weight_map\":[]}", "weight_map"},
		{"{\"weight_map\":{\"w\":1}}", "expected a file name, found 1"},
		{"{\"weight_map\":{\"w\":\"\"}}", "expected a file name"},
		{"{\"weight_map\":{\"w\":\"../model.safetensors\"}}", "expected a file name"},
		{"{\"weight_map\":{\"w\":\"model.safetensors\",\"w\":\"x\"}}", "given twice"},
		{"{\"weight_map\":{\"gone\":\"model.safetensors\"}}",
		 "\"gone\": expected in model.safetensors, not found there (a stale index)"},
		{"{\"weight_map\"", "JSON"},
	};
	const char *dir = gen_write(&llama);

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		gen_write_text(dir, "model.safetensors.index.json", cases[i].text);
		check_fails(dir, -EINVAL, SAYS("model.safetensors.index.json", cases[i].says));
	}
	gen_write_text(dir, "model.safetensors.index.json", "{\"weight_map\":{\"w\":\"w.bin\"}}");
	gen_write_text(dir, "w.bin", "");
	check_fails(dir, -ENOTSUP, SAYS("w.bin"));
}

static void test_numbered_set(void)
{
	struct gen_model m = in_files(llama, 3);
	const char *dir = gen_write(&m);
	struct gen_list *l = gen_tensors(&m);
	char path[PATH_MAX];

	remove_file(dir, "model.safetensors.index.json");
	check_opens(dir, 3, 21);
	/* A tensor in two files of the set. */
	l->t[1].file = 0;
	gen_write_safetensors(&m, l, 0, gen_path(path, dir, "model-00001-of-00003.safetensors"));
	check_fails(dir, -EINVAL, SAYS(l->t[1].name, "is in two files"));
	free(l);
	remove_file(dir, "model-00002-of-00003.safetensors");
	check_fails(dir, -ENOENT, SAYS("1 of 3 files", "model-00002-of-00003.safetensors"));
	gen_write_text(dir, "model-00001-of-00007.safetensors", "");
	check_fails(dir, -EINVAL, SAYS("one set of files", "3", "7"));
}

static void test_no_files(void)
{
	const char *dir = gen_write(&llama);
	char path[PATH_MAX];

	remove_file(dir, "model.safetensors");
	gen_write_text(dir, "pytorch_model.bin", "");
	check_fails(dir, -ENOENT, SAYS("expected model.safetensors"));
	/* Another container is no substitute: whose weights would it be? */
	gen_write_text(dir, "consolidated.safetensors", "");
	check_fails(dir, -ENOENT, SAYS("expected model.safetensors"));
	if (mkdir(gen_path(path, dir, "model.safetensors"), 0700))
		abort();
	check_fails(dir, -EINVAL, SAYS("model.safetensors: expected a regular file"));
}

/* A cache keeps links with the right name to files called by their hash. */
static void test_links_of_a_cache(void)
{
	struct gen_model m = in_files(llama, 2);
	const char *dir = gen_write(&m);
	char path[PATH_MAX];

	if (mkdir(gen_path(path, dir, "blobs"), 0700))
		abort();
	rename_file(dir, "model-00002-of-00002.safetensors", "blobs/5d41402abc4b");
	if (symlink("blobs/5d41402abc4b", gen_path(path, dir, "model-00002-of-00002.safetensors")))
		abort();
	check_opens(dir, 2, 21);
	remove_file(dir, "blobs/5d41402abc4b");
	check_fails(dir, -ENOENT,
		    SAYS("model-00002-of-00002.safetensors (dangling link to blobs/5d41402abc4b)"));
}

static void test_truncated_file(void)
{
	struct gen_model m = in_files(llama, 2);
	const char *dir = gen_write(&m);
	char path[PATH_MAX];
	struct stat st;
	char expected[64];

	gen_path(path, dir, "model-00002-of-00002.safetensors");
	if (stat(path, &st) || truncate(path, st.st_size - 1))
		abort();
	snprintf(expected, sizeof(expected), "expected %lld bytes by the header, found %lld",
		 (long long)st.st_size, (long long)st.st_size - 1);
	check_fails(dir, -EINVAL, SAYS("model-00002-of-00002.safetensors", expected));
}

/* ---- tensors --------------------------------------------------------------------------- */

static void test_prefixes(void)
{
	static const struct {
		const struct gen_model *model;
		const char *prefix;
	} cases[] = {
		{&opt, "model.decoder."},
		{&opt, "decoder."},
		{&opt, ""},
		{&gpt2, "transformer."},
		{&gpt2, ""},
		{&llama, "model."},
		{&llama, ""},
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct gen_model m = *cases[i].model;
		struct ctn_checkpoint *ckpt = NULL;

		m.prefix = cases[i].prefix;
		/* Everything is found and used: nothing is logged. */
		CU_ASSERT_STRING_EQUAL(log_of_opening(gen_write(&m), &ckpt), "");
		ctn_checkpoint_close(ckpt);
	}
}

static void test_unknown_prefix(void)
{
	struct gen_model m = opt;

	m.prefix = "base.model.";
	check_fails(gen_write(&m), -EINVAL, SAYS("model.decoder.embed_tokens.weight", "not found"));
}

static void test_heads(void)
{
	struct gen_model m = llama;
	struct ctn_checkpoint *ckpt = NULL;
	struct gen_list *l;
	uint64_t bytes;

	/* untied and absent */
	l = gen_tensors(&m);
	gen_drop(l, "lm_head.weight");
	check_fails(gen_write_list(&m, l), -EINVAL, SAYS("\"lm_head.weight\" not found"));
	free(l);
	/* tied and absent */
	m.tied = true;
	ckpt = open_dir(gen_write(&m));
	bytes = ckpt->bytes;
	ctn_checkpoint_close(ckpt);
	/* tied and present: skipped, its bytes are not the model's */
	m.head_stored = true;
	CU_ASSERT_STRING_EQUAL(log_of_opening(gen_write(&m), &ckpt), "");
	CU_ASSERT_EQUAL(ckpt->bytes, bytes);
	ctn_checkpoint_close(ckpt);
	/* present and another one: said so */
	l = gen_tensors(&m);
	gen_find(l, "lm_head.weight")->shape[0] = 31;
	CU_ASSERT_PTR_NOT_NULL(
		strstr(log_of_opening(gen_write_list(&m, l), &ckpt), "\"lm_head.weight\" is tied"));
	CU_ASSERT_EQUAL(ckpt->bytes, bytes);
	ctn_checkpoint_close(ckpt);
	free(l);
}

static void test_tensors_that_are_not_needed(void)
{
	struct gen_model m = gpt2;
	struct ctn_checkpoint *ckpt = NULL;
	struct gen_list *l = gen_tensors(&m);
	const char *log;

	/* Masks and frequencies that writers stored: known, not a word about them. */
	gen_add(l, "F32", 16, 16, "transformer.h.0.attn.bias");
	gen_add(l, "F32", 0, 1, "transformer.h.1.attn.masked_bias");
	CU_ASSERT_STRING_EQUAL(log_of_opening(gen_write_list(&m, l), &ckpt), "");
	ctn_checkpoint_close(ckpt);
	/* Others: one line for all. */
	gen_add(l, "F32", 0, 4, "transformer.h.0.attn.bias2");
	gen_add(l, "I32", 0, 4, "score.weight");
	log = log_of_opening(gen_write_list(&m, l), &ckpt);
	CU_ASSERT_PTR_NOT_NULL(strstr(log, "2 tensors are not used"));
	CU_ASSERT_PTR_EQUAL(strchr(log, '\n'), strrchr(log, '\n'));
	ctn_checkpoint_close(ckpt);
	free(l);

	m = llama;
	l = gen_tensors(&m);
	gen_add(l, "F32", 0, 2, "model.layers.1.self_attn.rotary_emb.inv_freq");
	CU_ASSERT_STRING_EQUAL(log_of_opening(gen_write_list(&m, l), &ckpt), "");
	ctn_checkpoint_close(ckpt);
	free(l);
}

static void test_every_tensor_is_needed(void)
{
	const struct gen_model *models[] = {&llama, &opt, &gpt2};

	for (size_t i = 0; i < CTN_ARRAY_LEN(models); i++) {
		struct gen_list *l = gen_tensors(models[i]);
		const unsigned int count = l->count;

		for (unsigned int k = 0; k < count; k++) {
			struct gen_list *less = malloc(sizeof(*less));

			*less = *l;
			gen_drop(less, l->t[k].name);
			check_fails(gen_write_list(models[i], less), -EINVAL,
				    SAYS(l->t[k].name, "not found"));
			free(less);
		}
		free(l);
	}
}

static void test_every_shape_is_checked(void)
{
	const struct gen_model *models[] = {&llama, &opt, &gpt2};

	for (size_t i = 0; i < CTN_ARRAY_LEN(models); i++) {
		struct gen_list *l = gen_tensors(models[i]);

		for (unsigned int k = 0; k < l->count; k++) {
			struct gen_tensor *t = &l->t[k], good = *t;
			char expected[64];

			snprintf(expected, sizeof(expected), "expected shape [%d",
				 (int)t->shape[0]);
			t->shape[t->rank - 1]++;
			check_fails(gen_write_list(models[i], l), -EINVAL,
				    SAYS(t->name, "model.safetensors", expected));
			*t = good;
			if (t->rank == 2 && t->shape[0] != t->shape[1]) {
				t->shape[0] = good.shape[1];
				t->shape[1] = good.shape[0];
				check_fails(gen_write_list(models[i], l), -EINVAL,
					    SAYS(t->name, expected));
			}
			*t = good;
			t->rank = 1;
			t->shape[0] = good.shape[0] * (good.rank == 2 ? good.shape[1] : 1);
			if (good.rank == 2)
				check_fails(gen_write_list(models[i], l), -EINVAL,
					    SAYS(t->name, expected));
			*t = good;
		}
		free(l);
	}
}

static void test_storage_types(void)
{
	static const char *const served[] = {"F32", "F16", "BF16"};
	struct gen_model m = llama;
	struct ctn_checkpoint *ckpt;
	struct gen_list *l;
	uint64_t f32;

	ckpt = open_dir(gen_write(&m));
	f32 = ckpt->bytes;
	ctn_checkpoint_close(ckpt);
	for (size_t i = 0; i < CTN_ARRAY_LEN(served); i++) {
		m.dtype = m.norm_dtype = served[i];
		ckpt = open_dir(gen_write(&m));
		CU_ASSERT_EQUAL(ckpt->bytes, i == 0 ? f32 : f32 / 2);
		CU_ASSERT_STRING_EQUAL(ctn_dtype_name(ckpt->tensors[0].encoding.dtype), served[i]);
		ctn_checkpoint_close(ckpt);
	}
	m.dtype = m.norm_dtype = NULL;
	l = gen_tensors(&m);
	gen_find(l, "model.layers.1.mlp.down_proj.weight")->dtype = "I32";
	check_fails(gen_write_list(&m, l), -ENOTSUP,
		    SAYS("model.layers.1.mlp.down_proj.weight",
			 "expected F32, F16 or BF16, found I32"));
	free(l);
}

/* What is joined on the device must be of one type; what is not may differ. */
static void test_types_of_joined_tensors(void)
{
	struct gen_model m = llama;
	struct gen_list *l = gen_tensors(&m);
	struct gen_tensor *k = gen_find(l, "model.layers.1.self_attn.k_proj.weight");
	struct gen_tensor *o = gen_find(l, "model.layers.1.self_attn.o_proj.weight");

	o->dtype = "BF16";
	o->bits = 16;
	check_opens(gen_write_list(&m, l), 1, 21);
	k->dtype = "F16";
	k->bits = 16;
	check_fails(gen_write_list(&m, l), -ENOTSUP,
		    SAYS("model.layers.1.self_attn.k_proj.weight", "expected F32 like",
			 "model.layers.1.self_attn.q_proj.weight", "found F16"));
	free(l);
}

/* Layers that the config has and the files have not. */
static void test_too_many_layers(void)
{
	struct gen_model m = llama;

	m.config = "{\"num_hidden_layers\":3}";
	check_fails(gen_write(&m), -EINVAL, SAYS("model.layers.2.", "not found"));
	m.config = "{\"num_hidden_layers\":200000000}";
	check_fails(gen_write(&m), -EINVAL, SAYS("200000000 layers, the files only 21 tensors"));
}

static void test_samples(void)
{
	static const char *const names[] = {"llama-stories260k", "opt-tinystories",
					    "gpt2-tinystories"};
	static const char *const families[] = {"llama", "opt", "gpt2"};
	/* the data of each file, as its size and header say */
	static const uint64_t bytes[] = {1045040 - 8 - 4904, 1004648 - 8 - 7264,
					 1001136 - 8 - 4264};

	for (size_t i = 0; i < CTN_ARRAY_LEN(names); i++) {
		struct ctn_checkpoint *ckpt = NULL;
		char dir[PATH_MAX];

		snprintf(dir, sizeof(dir), "%s/models/%s", ctn_tests_dir(), names[i]);
		CU_ASSERT_STRING_EQUAL(log_of_opening(dir, &ckpt), "");
		CU_ASSERT_STRING_EQUAL(ctn_family_name(ckpt->family), families[i]);
		CU_ASSERT_EQUAL(ckpt->bytes, bytes[i]);
		CU_ASSERT_TRUE(ckpt->arch.tied);
		ctn_checkpoint_close(ckpt);
	}
}

CTN_TESTS("checkpoint_folder", CTN_TEST(test_identity_of_files),
	  CTN_TEST(test_missing_files_are_all_named), CTN_TEST(test_stray_files_are_ignored),
	  CTN_TEST(test_index_with_other_names), CTN_TEST(test_bad_indexes),
	  CTN_TEST(test_numbered_set), CTN_TEST(test_no_files), CTN_TEST(test_links_of_a_cache),
	  CTN_TEST(test_truncated_file), CTN_TEST(test_prefixes), CTN_TEST(test_unknown_prefix),
	  CTN_TEST(test_heads), CTN_TEST(test_tensors_that_are_not_needed),
	  CTN_TEST(test_every_tensor_is_needed), CTN_TEST(test_every_shape_is_checked),
	  CTN_TEST(test_storage_types), CTN_TEST(test_types_of_joined_tensors),
	  CTN_TEST(test_too_many_layers), CTN_TEST(test_samples))
