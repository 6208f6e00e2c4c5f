// SPDX-License-Identifier: MIT
/* With a manifest wrong bytes never become a model, wherever they were found. */
#include "tuned_fixture.h"

#include <errno.h>
#include <jansson.h>

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

/* A fine-tune made by copying the folder of its base, manifest and all: the sizes and headers are
 * those of the base, and what the manifest says of the weights is in memory. */
static void test_a_copied_manifest_shares_nothing(void)
{
	struct ctn_err err = {0};
	char *dir = big_folder(), *tuned;

	write_manifest(dir);
	tuned = tuned_folder(dir, 5);
	for (int resident = 0; resident < 2; resident++) {
		struct rig rig;

		rig_open(&rig, "host,mem=512M", "plain", 128 * CTN_MIB);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, tuned, 1, 1, &err), 1);
		if (resident) {
			CU_ASSERT_EQUAL_FATAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
			CU_ASSERT_FATAL(settle(&rig));
		} else {
			load_and_drop(&rig, 0, true);
		}
		load_and_drop(&rig, 1, false);
		expect_named(&rig);
		CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.msg, tuned));
		rig_close(&rig);
	}
	free(tuned);
	free(dir);
}

/* The tensors are as they should be, the part is not what the manifest makes of them. */
static void test_a_wrong_digest_of_a_part(void)
{
	char *dir = big_folder(), path[PATH_MAX];
	struct ctn_err err = {0};
	json_t *root, *part;
	struct rig rig;

	write_manifest(dir);
	root = json_load_file(gen_path(path, dir, CTN_MANIFEST_NAME), 0, NULL);
	part = json_array_get(json_object_get(root, "parts"), 1);
	CU_ASSERT_PTR_NOT_NULL_FATAL(part);
	json_object_set_new(part, "digest", json_string("0123456789abcdef0123456789abcdef"));
	CU_ASSERT_EQUAL(json_dump_file(root, path, 0), 0);
	json_decref(root);
	rig_open(&rig, "host,mem=256M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	load_and_drop(&rig, 0, false);
	CU_ASSERT_EQUAL(rig.err.code, -EBADMSG);
	CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.msg, CTN_MANIFEST_NAME));
	CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.msg, "part 1: digest"));
	CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.msg, "found 0123456789abcdef"));
	rig_close(&rig);
	free(dir);
}

/* Without a manifest the first bytes that were read are those that count: a file that was written
 * in place, its time put back, is found out when a part of it comes again. */
static void test_bytes_that_are_others_than_before(void)
{
	struct ctn_err err = {0};
	char *dir = big_folder();
	const uint64_t at = byte_of(dir, UP, 4321);
	struct rig rig;

	rig_open(&rig, "host,mem=256M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	load_and_drop(&rig, 0, true);
	flip(dir, "model.safetensors", at, 2);
	/* What is in memory is what was read. */
	load_and_drop(&rig, 0, true);
	CU_ASSERT(ctn_pager_drop_host(rig.pager, 0, UINT64_MAX) > 0);
	load_and_drop(&rig, 0, false);
	expect_named(&rig);
	CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.msg, "changed since"));
	flip(dir, "model.safetensors", at, 2);
	load_and_drop(&rig, 0, true);
	rig_close(&rig);
	free(dir);
}

CTN_TESTS("pager_manifest", CTN_TEST(test_a_failed_part_is_read_again),
	  CTN_TEST(test_a_frame_from_before_the_manifest_is_not_trusted),
	  CTN_TEST(test_a_frame_in_use_that_is_not_trusted_fails_the_load),
	  CTN_TEST(test_a_copied_manifest_shares_nothing), CTN_TEST(test_a_wrong_digest_of_a_part),
	  CTN_TEST(test_bytes_that_are_others_than_before))
