// SPDX-License-Identifier: MIT
/* With a manifest: wrong bytes never become a model, and equal bytes become one frame. */
#include "manifest_fixture.h"
#include "pager_fixture.h"

#include <errno.h>

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

CTN_TESTS("pager_manifest", CTN_TEST(test_a_failed_part_is_read_again),
	  CTN_TEST(test_a_frame_from_before_the_manifest_is_not_trusted),
	  CTN_TEST(test_a_frame_in_use_that_is_not_trusted_fails_the_load),
	  CTN_TEST(test_a_tuned_model_shares_the_rest_unread),
	  CTN_TEST(test_equal_parts_on_their_way_are_awaited),
	  CTN_TEST(test_another_layout_is_not_shared))
