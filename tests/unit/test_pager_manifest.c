// SPDX-License-Identifier: MIT
/* With a manifest: wrong bytes never become a model, and equal bytes become one frame. */
#include "manifest_fixture.h"
#include "pager_fixture.h"

#include <errno.h>

#define SPOILED 240u

static const char *const files[] = {
	"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
	"model.safetensors.index.json", "config.json", CTN_MANIFEST_NAME};

/* A model of two small files. */
static char *small_folder(void)
{
	const struct gen_model m = {.family = "llama",
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
	char *dir = copy_folder(gen_write(&m));

	write_manifest(dir);
	return dir;
}

/* Opens, plans, adds and loads; 0 only when all shards came. */
static int load_folder(struct rig *rig, const char *dir, void (*spoil)(const char *dir, void *arg),
		       void *arg, struct ctn_err *err)
{
	const uint32_t i = rig->models, devices[] = {0};
	int rc = ctn_checkpoint_open(dir, &rig->ckpt[i], err);

	if (rc)
		return rc;
	rc = ctn_plan_build(rig->ckpt[i], 1, 1, &rig->plan[i], err);
	if (rc) {
		ctn_checkpoint_close(rig->ckpt[i]);
		return rc;
	}
	rig->models++;
	if (spoil)
		spoil(dir, arg);
	CU_ASSERT_EQUAL_FATAL(ctn_pager_add_model(rig->pager, rig->plan[i], devices, err), (int)i);
	CU_ASSERT_EQUAL_FATAL(ctn_pager_load(rig->pager, i, 1, err), 0);
	CU_ASSERT_FATAL(settle(rig));
	CU_ASSERT_EQUAL(rig->loaded[i] + rig->failed[i], 1);
	if (rig->loaded[i])
		return 0;
	*err = rig->err;
	return err->code;
}

/* ---- spoiled folders --------------------------------------------------------------------- */

struct spoiling {
	enum { FLIP, TRUNCATE, SWAP } what;
	const char *file;
	uint64_t at;
	uint8_t bits;
};

/*
 * Where a wrong byte must be told. The header was read by the time a hidden one comes; the digest
 * of a tensor in the manifest only serves to name it.
 */
static void telling_bytes(const char *dir, const char *file, bool hidden, uint64_t *begin,
			  uint64_t *end)
{
	char path[PATH_MAX], *data;
	uint64_t header;
	size_t len;

	CU_ASSERT_EQUAL_FATAL(
		ctn_read_file(gen_path(path, dir, file), SIZE_MAX - 1, &data, &len, NULL), 0);
	*begin = 0;
	*end = len;
	if (strcmp(file, CTN_MANIFEST_NAME) == 0) {
		*end = (uint64_t)(strstr(data, "\"tensors\"") - data);
	} else if (hidden) {
		memcpy(&header, data, sizeof(header));
		*begin = sizeof(header) + header;
	}
	free(data);
}

static struct spoiling choose(const char *dir, uint64_t *seed, bool hidden)
{
	const uint64_t dice = gen_random(seed) % 10;
	uint64_t begin, end;
	struct spoiling s = {.what = dice < 7 ? FLIP : dice < 9 ? TRUNCATE : SWAP};

	/* Most often where the most bytes are, and there alone when the file must look the same. */
	s.file = files[gen_random(seed) % (hidden || gen_random(seed) % 2 ? 2 : 5)];
	if (hidden || strcmp(s.file, CTN_MANIFEST_NAME) == 0)
		s.what = s.what == SWAP ? FLIP : s.what;
	telling_bytes(dir, s.file, hidden, &begin, &end);
	s.at = begin + gen_random(seed) % (end - begin);
	s.bits = (uint8_t)(1u << gen_random(seed) % 8);
	return s;
}

/* The bytes of the same file of another model of the same shapes. */
static void swap_file(const char *dir, const char *name)
{
	char path[PATH_MAX], *data;
	size_t len;

	CU_ASSERT_EQUAL_FATAL(
		ctn_read_file(gen_path(path, dir, name), SIZE_MAX - 1, &data, &len, NULL), 0);
	for (size_t i = len / 2; i < len; i++)
		data[i] = (char)(data[i] ^ 0x11);
	gen_write_file(dir, name, data, len);
	free(data);
}

static void spoil(const char *dir, void *arg)
{
	const struct spoiling *s = arg;
	char path[PATH_MAX];

	switch (s->what) {
	case FLIP:
		flip(dir, s->file, s->at, s->bits);
		break;
	case TRUNCATE:
		CU_ASSERT_EQUAL(truncate(gen_path(path, dir, s->file), (off_t)s->at), 0);
		break;
	case SWAP:
		swap_file(dir, s->file);
		break;
	}
}

/* The texts say which files and tensors there are: a wrong one may be told by what is missed. */
static bool is_named(const struct ctn_err *err, const char *dir, const char *file)
{
	const bool text = strcmp(file, "config.json") == 0 || strstr(file, "index");

	return strstr(err->msg, file) || (text && strncmp(err->msg, dir, strlen(dir)) == 0);
}

static void test_no_spoiled_checkpoint_is_loaded(void)
{
	const char *text = getenv("CTN_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 16) : 0x5eed;
	uint32_t caught_late = 0;
	char *pristine = small_folder();

	printf("# seed %llx (CTN_SEED repeats this)\n", (unsigned long long)seed);
	for (uint32_t i = 0; i <= SPOILED; i++) {
		const bool none = i == SPOILED, hidden = i % 2;
		char *dir = copy_folder(pristine);
		struct spoiling s = choose(dir, &seed, hidden);
		struct ctn_pager_move_stats moves;
		struct ctn_err err = {0};
		struct rig rig;
		int rc;

		rig_open(&rig, "host,mem=8M", "plain", 8 * CTN_MIB);
		if (!hidden && !none)
			spoil(dir, &s);
		rc = load_folder(&rig, dir, hidden && !none ? spoil : NULL, &s, &err);
		ctn_pager_move_stats(rig.pager, CTN_PAGER_STAGE, &moves);
		if (none) {
			/* What was not spoiled is loaded: it is not the method that fails. */
			CU_ASSERT_EQUAL(rc, 0);
		} else {
			CU_ASSERT(rc < 0);
			CU_ASSERT(is_named(&err, dir, s.file));
			if (rc >= 0 || !is_named(&err, dir, s.file))
				printf("# %u: %d of %s at %llu: %d: %s\n", i, s.what, s.file,
				       (unsigned long long)s.at, rc, err.msg);
		}
		if (rig.models && !none) {
			caught_late++;
			CU_ASSERT_EQUAL(moves.failed, 1);
			CU_ASSERT_EQUAL(moves.ok, 0);
			expect_empty_device(&rig);
		}
		rig_close(&rig);
		free(dir);
	}
	CU_ASSERT(caught_late >= SPOILED / 2);
	free(pristine);
}

/* ---- one wrong byte ---------------------------------------------------------------------- */

static const struct gen_model big = {.family = "llama",
				     .layers = 2,
				     .hidden = 512,
				     .heads = 8,
				     .kv_heads = 8,
				     .head_dim = 64,
				     .ffn = 1024,
				     .vocab = 1500,
				     .embed_dim = 512,
				     .positions = 64};

static char *big_folder(void)
{
	return copy_folder(gen_write(&big));
}

/* The place in model.safetensors of a byte of a tensor. */
static uint64_t byte_of(const char *dir, const char *tensor, uint64_t byte)
{
	struct ctn_container c;
	char path[PATH_MAX];
	uint64_t at = 0;

	CU_ASSERT_EQUAL_FATAL(
		ctn_container_open(gen_path(path, dir, "model.safetensors"), &c, NULL), 0);
	for (uint32_t i = 0; i < c.count; i++) {
		if (strcmp(c.tensors[i].name, tensor) == 0)
			at = c.tensors[i].offset + byte;
	}
	ctn_container_close(&c);
	CU_ASSERT_FATAL(at > 0);
	return at;
}

/* Adds a model whose manifest, if any, is passed over. */
static void add_plain(struct rig *rig, const char *dir)
{
	const uint32_t i = rig->models++, devices[] = {0};
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open_plain(dir, &rig->ckpt[i], &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_plan_build(rig->ckpt[i], 1, 1, &rig->plan[i], &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pager_add_model(rig->pager, rig->plan[i], devices, &err), (int)i);
}

static void load_and_drop(struct rig *rig, uint32_t model, bool loads)
{
	const uint32_t loaded = rig->loaded[model], failed = rig->failed[model];
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(ctn_pager_load(rig->pager, model, 1, &err), 0);
	CU_ASSERT_FATAL(settle(rig));
	CU_ASSERT_EQUAL(rig->loaded[model], loaded + loads);
	CU_ASSERT_EQUAL(rig->failed[model], failed + !loads);
	CU_ASSERT_EQUAL(ctn_pager_drop(rig->pager, model), 0);
}

#define UP "model.layers.1.mlp.up_proj.weight"

static void expect_named(const struct rig *rig)
{
	CU_ASSERT_EQUAL(rig->err.code, -EBADMSG);
	CU_ASSERT_PTR_NOT_NULL(strstr(rig->err.msg, "model.safetensors"));
	CU_ASSERT_PTR_NOT_NULL(strstr(rig->err.msg, "part "));
}

static void test_a_failed_part_is_read_again(void)
{
	struct ctn_err err = {0};
	char *dir = big_folder();
	const uint64_t at = byte_of(dir, UP, 1234567);
	struct rig rig;

	write_manifest(dir);
	rig_open(&rig, "host,mem=256M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	flip(dir, "model.safetensors", at, 0x40);
	load_and_drop(&rig, 0, false);
	expect_named(&rig);
	CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.msg, UP));
	flip(dir, "model.safetensors", at, 0x40);
	load_and_drop(&rig, 0, true);
	rig_close(&rig);
	free(dir);
}

/* What was staged without a manifest has the key of what is wanted, and other bytes. */
static void test_a_frame_from_before_the_manifest_is_not_trusted(void)
{
	struct ctn_err err = {0};
	char *dir = big_folder();
	const uint64_t at = byte_of(dir, UP, 7);
	struct rig rig;

	write_manifest(dir);
	flip(dir, "model.safetensors", at, 1);
	rig_open(&rig, "host,mem=256M", "plain", 128 * CTN_MIB);
	add_plain(&rig, dir);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 1);
	load_and_drop(&rig, 0, true);
	/* Its frame goes, and the file is no better. */
	load_and_drop(&rig, 1, false);
	expect_named(&rig);
	/* With the right bytes in the file only that part is read again. */
	load_and_drop(&rig, 0, true);
	flip(dir, "model.safetensors", at, 1);
	load_and_drop(&rig, 1, true);
	CU_ASSERT(rig.staged > 0 && rig.staged < rig.ckpt[1]->bytes / 2);
	rig_close(&rig);
	free(dir);
}

static void test_a_frame_in_use_that_is_not_trusted_fails_the_load(void)
{
	struct ctn_err err = {0};
	struct ctn_frame_info info;
	char *dir = big_folder();
	struct rig rig;

	write_manifest(dir);
	flip(dir, "model.safetensors", byte_of(dir, UP, 7), 1);
	rig_open(&rig, "host,mem=256M", "plain", 128 * CTN_MIB);
	add_plain(&rig, dir);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 1);
	load_and_drop(&rig, 0, true);
	for (uint32_t i = 0; i < rig.plan[0]->part_count; i++) {
		CU_ASSERT_EQUAL_FATAL(ctn_pool_lookup(rig.pool, &rig.plan[0]->parts[i].key, &info),
				      0);
		CU_ASSERT_EQUAL(ctn_pool_lease(rig.pool, info.ref), 0);
	}
	load_and_drop(&rig, 1, false);
	expect_named(&rig);
	for (uint32_t i = 0; i < rig.plan[0]->part_count; i++) {
		CU_ASSERT_EQUAL_FATAL(ctn_pool_lookup(rig.pool, &rig.plan[0]->parts[i].key, &info),
				      0);
		ctn_pool_release(rig.pool, info.ref);
	}
	rig_close(&rig);
	free(dir);
}

/* ---- equal parts ------------------------------------------------------------------------- */

/* The same model but for a byte of each attention. */
static char *tuned_folder(const char *dir)
{
	char *tuned = copy_folder(dir);

	for (uint32_t i = 0; i < big.layers; i++) {
		char name[64];

		snprintf(name, sizeof(name), "model.layers.%u.self_attn.q_proj.weight", i);
		flip(tuned, "model.safetensors", byte_of(tuned, name, 99), 0x20);
	}
	write_manifest(tuned);
	return tuned;
}

/* The last run of a file may reach past its end. */
static uint64_t file_bytes(const struct ctn_plan *plan, uint32_t part)
{
	const struct ctn_part *p = &plan->parts[part];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < p->run_count; i++)
		bytes += CTN_MIN(p->runs[i].bytes,
				 plan->ckpt->files[p->runs[i].file].bytes - p->runs[i].file_offset);
	return bytes;
}

/* What a model reads and takes of the pool for the parts that differ, by the plan alone. */
static void differing(const struct ctn_plan *a, const struct ctn_plan *b, uint64_t *read,
		      uint64_t *charged)
{
	*read = *charged = 0;
	CU_ASSERT_EQUAL_FATAL(a->part_count, b->part_count);
	for (uint32_t i = 0; i < b->part_count; i++) {
		const struct ctn_digest da = naive_part_digest(a->ckpt, &a->parts[i]);
		const struct ctn_digest db = naive_part_digest(b->ckpt, &b->parts[i]);

		if (memcmp(&da, &db, sizeof(da)) == 0)
			continue;
		CU_ASSERT_EQUAL(b->parts[i].kind, CTN_PART_ATTENTION);
		*charged += ctn_align_up(b->parts[i].frame_bytes, CTN_EXTENT_ALIGN);
		*read += file_bytes(b, i);
	}
}

static uint64_t clean_bytes(struct rig *rig)
{
	struct ctn_pool_stats s;

	ctn_pool_get_stats(rig->pool, false, &s);
	return s.clean_bytes;
}

static void test_a_tuned_model_shares_the_rest_unread(void)
{
	static const char *const providers[] = {"plain", "lossy"};
	char *dir = big_folder(), *tuned;

	write_manifest(dir);
	tuned = tuned_folder(dir);
	for (size_t i = 0; i < CTN_ARRAY_LEN(providers); i++) {
		struct ctn_pager_model_stats stats;
		uint64_t read, charged, alone, host[MAX_MODELS];
		struct ctn_err err = {0};
		struct rig rig;

		rig_open(&rig, "host,mem=512M", providers[i], 128 * CTN_MIB);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, tuned, 2, 1, &err), 1);
		differing(rig.plan[0], rig.plan[1], &read, &charged);
		CU_ASSERT(read > 0 && read < rig.ckpt[1]->bytes / 2);
		load_and_drop(&rig, 0, true);
		alone = clean_bytes(&rig);
		ctn_pager_model_stats(rig.pager, 1, &stats);
		CU_ASSERT(stats.host_bytes > 0 && stats.host_bytes < stats.host_total);
		load_and_drop(&rig, 1, true);
		CU_ASSERT_EQUAL(rig.staged, read);
		ctn_pager_model_stats(rig.pager, 1, &stats);
		CU_ASSERT_EQUAL(rig.moved, stats.device_total);
		CU_ASSERT_EQUAL(clean_bytes(&rig), alone + charged);
		for (uint32_t m = 0; m < 2; m++) {
			ctn_pager_model_stats(rig.pager, m, &stats);
			CU_ASSERT_EQUAL(stats.host_bytes, stats.host_total);
		}
		/* Each frame could be freed once, for one of the two. */
		ctn_pager_host_evictable(rig.pager, host);
		CU_ASSERT_EQUAL(host[0] + host[1], alone + charged);
		CU_ASSERT_EQUAL(host[1], charged);
		CU_ASSERT_EQUAL(ctn_pager_check(rig.pager, &err), 0);
		/* Without the frames of the other it reads its own, which the other shares then. */
		CU_ASSERT_EQUAL(ctn_pager_drop_host(rig.pager, 0, UINT64_MAX), alone);
		load_and_drop(&rig, 1, true);
		CU_ASSERT(rig.staged > rig.ckpt[1]->bytes / 2);
		load_and_drop(&rig, 0, true);
		CU_ASSERT_EQUAL(rig.staged, read);
		rig_close(&rig);
	}
	free(tuned);
	free(dir);
}

static void test_equal_parts_on_their_way_are_awaited(void)
{
	struct ctn_pager_move_stats moves;
	uint64_t read, charged, all = 0;
	char *dir = big_folder(), *tuned;
	struct ctn_err err = {0};
	struct rig rig;

	write_manifest(dir);
	tuned = tuned_folder(dir);
	rig_open(&rig, "host,mem=512M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, tuned, 1, 1, &err), 1);
	differing(rig.plan[0], rig.plan[1], &read, &charged);
	for (uint32_t i = 0; i < rig.plan[0]->part_count; i++)
		all += file_bytes(rig.plan[0], i);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 1, 2, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	CU_ASSERT_EQUAL(rig.loaded[1], 1);
	ctn_pager_move_stats(rig.pager, CTN_PAGER_STAGE, &moves);
	CU_ASSERT_EQUAL(moves.bytes, all + read);
	rig_close(&rig);
	free(tuned);
	free(dir);
}

/* Equal bytes at other places in the frame: the digest is the same, the frame is of no use. */
static void test_another_layout_is_not_shared(void)
{
	struct gen_model odd = big;
	char *dir = big_folder(), *other;
	struct ctn_err err = {0};
	struct rig rig;

	write_manifest(dir);
	odd.odd = 64;
	other = copy_folder(gen_write(&odd));
	write_manifest(other);
	rig_open(&rig, "host,mem=512M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, other, 1, 1, &err), 1);
	for (uint32_t i = 0; i < rig.plan[0]->part_count; i++)
		CU_ASSERT_EQUAL(memcmp(&rig.plan[0]->parts[i].digest, &rig.plan[1]->parts[i].digest,
				       sizeof(struct ctn_digest)),
				0);
	load_and_drop(&rig, 0, true);
	load_and_drop(&rig, 1, true);
	CU_ASSERT(rig.staged >= rig.ckpt[1]->bytes);
	rig_close(&rig);
	free(other);
	free(dir);
}

CTN_TESTS("pager_manifest", CTN_TEST(test_no_spoiled_checkpoint_is_loaded),
	  CTN_TEST(test_a_failed_part_is_read_again),
	  CTN_TEST(test_a_frame_from_before_the_manifest_is_not_trusted),
	  CTN_TEST(test_a_frame_in_use_that_is_not_trusted_fails_the_load),
	  CTN_TEST(test_a_tuned_model_shares_the_rest_unread),
	  CTN_TEST(test_equal_parts_on_their_way_are_awaited),
	  CTN_TEST(test_another_layout_is_not_shared))
