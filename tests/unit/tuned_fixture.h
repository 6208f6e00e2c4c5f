/* SPDX-License-Identifier: MIT */
/* A model whose parts are frames of their own, and one that differs from it in attention alone. */
#ifndef CTN_TEST_TUNED_FIXTURE_H
#define CTN_TEST_TUNED_FIXTURE_H

#include "manifest_fixture.h"
#include "pager_fixture.h"

static const struct gen_model big = {GEN_BIG(2, 1500)};

static inline char *big_folder(void)
{
	return copy_folder(gen_write(&big));
}

/* The place in model.safetensors of a byte of a tensor. */
static inline uint64_t byte_of(const char *dir, const char *tensor, uint64_t byte)
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
static inline void add_plain(struct rig *rig, const char *dir)
{
	const uint32_t i = rig->models++, devices[] = {0};
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open_plain(dir, &rig->ckpt[i], &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_plan_build(rig->ckpt[i], 1, 1, &rig->plan[i], &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pager_add_model(rig->pager, rig->plan[i], devices, &err), (int)i);
}

static inline void load_and_drop(struct rig *rig, uint32_t model, bool loads)
{
	const uint32_t loaded = rig->loaded[model], failed = rig->failed[model];
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(ctn_pager_load(rig->pager, model, 1, &err), 0);
	CU_ASSERT_FATAL(settle(rig));
	CU_ASSERT_EQUAL(rig->loaded[model], loaded + loads);
	CU_ASSERT_EQUAL(rig->failed[model], failed + !loads);
	CU_ASSERT_EQUAL(ctn_pager_drop(rig->pager, model), 0);
}

/* The last run of a file may reach past its end. */
static inline uint64_t file_bytes(const struct ctn_plan *plan, uint32_t part)
{
	const struct ctn_part *p = &plan->parts[part];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < p->run_count; i++)
		bytes += CTN_MIN(p->runs[i].bytes,
				 plan->ckpt->files[p->runs[i].file].bytes - p->runs[i].file_offset);
	return bytes;
}

static inline uint64_t model_bytes(const struct ctn_plan *plan)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < plan->part_count; i++)
		bytes += file_bytes(plan, i);
	return bytes;
}

/* The model and its tuned one, 0 and 1, with manifests, in a pool that has room for both. The
 * caller frees the two paths. */
static inline void rig_open_tuned(struct rig *rig, char **dir, char **tuned)
{
	struct ctn_err err = {0};

	*dir = big_folder();
	write_manifest(*dir);
	*tuned = tuned_folder(*dir, 5);
	write_manifest(*tuned);
	rig_open(rig, "host,mem=512M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(rig, *dir, 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(rig, *tuned, 1, 1, &err), 1);
}

/* What a model reads and takes of the pool for the parts that differ, by the plan alone. */
static inline void differing(const struct ctn_plan *a, const struct ctn_plan *b, uint64_t *read,
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

static inline uint64_t clean_bytes(struct rig *rig)
{
	struct ctn_pool_stats s;

	ctn_pool_get_stats(rig->pool, false, &s);
	return s.clean_bytes;
}

#endif
