// SPDX-License-Identifier: MIT
/*
 * A thousand checkpoints that are not what their manifests say: a bit is another one, a file is
 * cut, or another file stands in its place. None is ever loaded; each is named.
 */
#include "manifest_fixture.h"
#include "pager_fixture.h"

#include <errno.h>

#define CASES 1000u

enum what { FLIP, TRUNCATE, SWAP };

/* A file as it is, as it stands in a model of the same shapes, and its times. */
struct spoiled_file {
	const char *name;
	bool weights;
	char *right, *other;
	size_t len, other_len;
	struct timespec times[2];
	struct ctn_container tensors;
};

#define MAX_FILES 6

struct target {
	char *dir;
	struct spoiled_file files[MAX_FILES];
	uint32_t count, weights; /* those with weights come first */
};

struct spoiling {
	enum what what;
	struct spoiled_file *file;
	uint64_t at; /* flip: the byte; truncate: the length */
	uint8_t bits;
	bool late; /* between the checkpoint's opening and its load; looks like the right one */
	const char *tensor; /* that the byte belongs to, or NULL */
};

static uint64_t data_offset(const struct spoiled_file *f)
{
	return f->weights ? f->tensors.data_offset : 0;
}

/* ---- targets ----------------------------------------------------------------------------- */

/* The other model's: other weights behind the same header; for a text, the same but for a
 * space, which nothing but a digest of it could tell. */
static void make_other(struct spoiled_file *f, uint64_t *seed)
{
	f->other_len = f->weights ? f->len : f->len + 1;
	f->other = malloc(f->other_len);
	CU_ASSERT_PTR_NOT_NULL_FATAL(f->other);
	memcpy(f->other, f->right, f->len);
	if (!f->weights)
		f->other[f->len] = ' ';
	for (uint64_t i = data_offset(f); f->weights && i < f->len; i++)
		f->other[i] = (char)gen_random(seed);
}

static void add_file(struct target *t, const char *name, uint64_t *seed)
{
	struct spoiled_file *f = &t->files[t->count];
	char path[PATH_MAX];
	struct stat st;

	if (access(gen_path(path, t->dir, name), F_OK) != 0)
		return;
	CU_ASSERT_FATAL(t->count < MAX_FILES);
	t->count++;
	f->name = name;
	f->weights = strstr(name, ".safetensors") && !strstr(name, ".json");
	t->weights += f->weights;
	CU_ASSERT_EQUAL_FATAL(ctn_read_file(path, SIZE_MAX - 1, &f->right, &f->len, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(stat(path, &st), 0);
	f->times[0] = st.st_atim;
	f->times[1] = st.st_mtim;
	if (f->weights)
		CU_ASSERT_EQUAL_FATAL(ctn_container_open(path, &f->tensors, NULL), 0);
	make_other(f, seed);
}

/* Takes a folder over; writes its manifest. */
static void target_open(struct target *t, char *dir, uint64_t *seed)
{
	static const char *const names[] = {"model.safetensors",
					    "model-00001-of-00002.safetensors",
					    "model-00002-of-00002.safetensors",
					    "model.safetensors.index.json",
					    "config.json",
					    "tokenizer.json",
					    "tokenizer_config.json",
					    CTN_MANIFEST_NAME};

	*t = (struct target){.dir = dir};
	write_manifest(dir);
	for (size_t i = 0; i < CTN_ARRAY_LEN(names); i++)
		add_file(t, names[i], seed);
}

static void target_close(struct target *t)
{
	for (uint32_t i = 0; i < t->count; i++) {
		free(t->files[i].right);
		free(t->files[i].other);
		if (t->files[i].weights)
			ctn_container_close(&t->files[i].tensors);
	}
	free(t->dir);
}

static void put(const struct target *t, const struct spoiled_file *f, const char *bytes, size_t len,
		bool keep_times)
{
	char path[PATH_MAX];
	int fd = open(gen_path(path, t->dir, f->name), O_WRONLY | O_TRUNC | O_CLOEXEC);

	CU_ASSERT_FATAL(fd >= 0);
	CU_ASSERT_EQUAL_FATAL(write(fd, bytes, len), (ssize_t)len);
	if (keep_times)
		CU_ASSERT_EQUAL(futimens(fd, f->times), 0);
	close(fd);
}

/* ---- spoiling ---------------------------------------------------------------------------- */

static const char *tensor_of(const struct spoiled_file *f, uint64_t byte)
{
	for (uint32_t i = 0; f->weights && i < f->tensors.count; i++) {
		const struct ctn_tensor *t = &f->tensors.tensors[i];

		if (byte >= t->offset && byte - t->offset < t->bytes)
			return t->name;
	}
	return NULL;
}

static struct spoiling choose(struct target *t, uint64_t *seed)
{
	const uint64_t dice = gen_random(seed) % 10;
	struct spoiling s = {.what = dice < 6 ? FLIP : dice < 8 ? TRUNCATE : SWAP};
	uint64_t begin;

	/* Most often where the most bytes are, and there alone once it is open. */
	s.late = gen_random(seed) % 2;
	s.file = &t->files[gen_random(seed) %
			   (s.late || gen_random(seed) % 2 ? t->weights : t->count)];
	/* Another manifest, but for a space, is as good. */
	if (s.what == SWAP && strcmp(s.file->name, CTN_MANIFEST_NAME) == 0)
		s.what = FLIP;
	/* Of a file that was opened already the header was read. */
	begin = s.late ? data_offset(s.file) : 0;
	s.at = begin + gen_random(seed) % (s.file->len - begin);
	s.bits = (uint8_t)(1u << gen_random(seed) % 8);
	if (s.what == FLIP)
		s.tensor = tensor_of(s.file, s.at);
	return s;
}

static void spoil(const struct target *t, const struct spoiling *s)
{
	struct spoiled_file *f = s->file;

	switch (s->what) {
	case FLIP:
		f->right[s->at] = (char)(f->right[s->at] ^ s->bits);
		put(t, f, f->right, f->len, s->late);
		f->right[s->at] = (char)(f->right[s->at] ^ s->bits);
		break;
	case TRUNCATE:
		put(t, f, f->right, s->at, s->late);
		break;
	case SWAP:
		put(t, f, f->other, f->other_len, s->late);
		break;
	}
}

/* ---- loading ----------------------------------------------------------------------------- */

/* Opens, plans, adds and loads; 0 only when all shards came. `s` may be NULL. */
static int load(struct rig *rig, const struct target *t, const struct spoiling *s,
		struct ctn_err *err)
{
	const uint32_t i = rig->models, devices[] = {0};
	int rc;

	if (s && !s->late)
		spoil(t, s);
	rc = ctn_checkpoint_open(t->dir, &rig->ckpt[i], err);
	if (rc)
		return rc;
	rc = ctn_plan_build(rig->ckpt[i], 1, 1, &rig->plan[i], err);
	if (rc) {
		ctn_checkpoint_close(rig->ckpt[i]);
		return rc;
	}
	rig->models++;
	if (s && s->late)
		spoil(t, s);
	CU_ASSERT_EQUAL_FATAL(ctn_pager_add_model(rig->pager, rig->plan[i], devices, err), (int)i);
	CU_ASSERT_EQUAL_FATAL(ctn_pager_load(rig->pager, i, 1, err), 0);
	CU_ASSERT_FATAL(settle(rig));
	CU_ASSERT_EQUAL(rig->loaded[i] + rig->failed[i], 1);
	if (rig->failed[i]) {
		*err = rig->err;
		rc = err->code;
		expect_empty_device(rig);
	}
	ctn_pager_drop(rig->pager, i);
	/* The next must read its own. */
	ctn_pager_drop_host(rig->pager, i, UINT64_MAX);
	return rc;
}

/* The file, and the tensor where it is one. The texts say which files and tensors there are: a
 * wrong one may be told by what is missed. */
static bool is_named(const struct ctn_err *err, const struct target *t, const struct spoiling *s)
{
	const char *name = s->file->name;
	const bool says_others = strcmp(name, "config.json") == 0 || strstr(name, "index");

	if (s->tensor && !strstr(err->msg, s->tensor))
		return false;
	return strstr(err->msg, name) ||
	       (says_others && strncmp(err->msg, t->dir, strlen(t->dir)) == 0);
}

/* True when it was caught, and named. */
static bool is_caught(struct rig *rig, const struct target *t, const struct spoiling *s)
{
	struct ctn_err err = {0};
	int rc = load(rig, t, s, &err);

	put(t, s->file, s->file->right, s->file->len, true);
	if (rc < 0 && is_named(&err, t, s))
		return true;
	printf("# not caught: %d of %s at %llu (%s), bits %x, %s: %d: %s\n", s->what, s->file->name,
	       (unsigned long long)s->at, s->tensor ? s->tensor : "no tensor", s->bits,
	       s->late ? "late" : "early", rc, err.msg);
	return false;
}

static uint64_t seed_of_run(void)
{
	const char *text = getenv("CTN_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 16) : 0x5eed;

	printf("# seed %llx (CTN_SEED repeats this)\n", (unsigned long long)seed);
	return seed;
}

/* One after the other on one pager, until that has as many models as it can take. */
static void spoil_many(struct target *t, uint32_t cases, uint64_t *seed)
{
	uint32_t caught = 0, late = 0;
	struct rig rig;

	rig_open(&rig, "host,mem=32M", "plain", 32 * CTN_MIB);
	for (uint32_t i = 0; i < cases; i++) {
		struct spoiling s = choose(t, seed);

		if (rig.models == MAX_MODELS - 1) {
			struct ctn_err err = {0};

			/* What is not spoiled loads: neither the rig nor the folder is broken. */
			CU_ASSERT_EQUAL(load(&rig, t, NULL, &err), 0);
			rig_close(&rig);
			rig_open(&rig, "host,mem=32M", "plain", 32 * CTN_MIB);
		}
		caught += is_caught(&rig, t, &s);
		late += s.late;
	}
	rig_close(&rig);
	CU_ASSERT_EQUAL(caught, cases);
	CU_ASSERT(late > cases / 3 && late < cases - cases / 3);
}

static void test_a_thousand_spoiled_checkpoints(void)
{
	/* The one: two small files, one part. The other: parts that are frames of their own. */
	const struct gen_model two_files = {.family = "llama",
					    .layers = 2,
					    .hidden = 64,
					    .heads = 4,
					    .kv_heads = 4,
					    .head_dim = 16,
					    .ffn = 96,
					    .vocab = 200,
					    .embed_dim = 64,
					    .positions = 64,
					    .files = 2};
	const struct gen_model parts = {.family = "gpt2",
					.layers = 2,
					.hidden = 256,
					.heads = 4,
					.kv_heads = 4,
					.head_dim = 64,
					.ffn = 1024,
					.vocab = 300,
					.embed_dim = 256,
					.positions = 64};
	const struct {
		const struct gen_model *gen;
		const char *model;
		uint32_t cases;
	} targets[] = {{&two_files, NULL, 370},
		       {&parts, NULL, 150},
		       {NULL, "llama-stories260k", 160},
		       {NULL, "opt-tinystories", 160},
		       {NULL, "gpt2-tinystories", 160}};
	uint64_t seed = seed_of_run();
	uint32_t all = 0;

	for (size_t i = 0; i < CTN_ARRAY_LEN(targets); i++) {
		struct target t;

		target_open(&t,
			    copy_folder(targets[i].gen ? gen_write(targets[i].gen)
						       : sample(targets[i].model)),
			    &seed);
		spoil_many(&t, targets[i].cases, &seed);
		all += targets[i].cases;
		target_close(&t);
	}
	CU_ASSERT_EQUAL(all, CASES);
}

CTN_TESTS("pager_integrity", CTN_TEST(test_a_thousand_spoiled_checkpoints))
