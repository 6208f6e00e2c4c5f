// SPDX-License-Identifier: MIT
/* With a manifest wrong bytes never become a model, wherever they were found. */
#include "tuned_fixture.h"

#include <errno.h>
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

CTN_TESTS("pager_manifest", CTN_TEST(test_a_failed_part_is_read_again),
	  CTN_TEST(test_a_frame_from_before_the_manifest_is_not_trusted),
	  CTN_TEST(test_a_frame_in_use_that_is_not_trusted_fails_the_load))
