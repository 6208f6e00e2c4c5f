// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * sysfs. The directory of a pool is an attribute group of its name, whose attributes know the pool:
 * to remove it waits for all who are reading it, so that they need no reference.
 */
#include <linux/kobject.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include "sysfs.h"

/**
 * struct figure - a file of a pool's directory
 * @name: of the file
 * @offset: of its value in struct computron_pool_stat
 * @survey: its value comes from looking at every page
 * @total: the module has it too, summed up
 */
struct figure {
	const char *name;
	u16 offset;
	bool survey;
	bool total;
};

#define FIGURE(field, look, sum)                                                       \
	{                                                                              \
		.name = #field, .offset = offsetof(struct computron_pool_stat, field), \
		.survey = (look), .total = (sum)                                       \
	}

static const struct figure figures[] = {
	FIGURE(bytes, false, true),
	FIGURE(quota, false, false),
	FIGURE(floor, false, false),
	FIGURE(used, false, true),
	FIGURE(loading, false, true),
	FIGURE(clean, false, true),
	FIGURE(quarantined, false, true),
	FIGURE(leased, false, true),
	FIGURE(reclaimable, false, true),
	FIGURE(hot, false, true),
	FIGURE(populated, false, true),
	FIGURE(huge, true, true),
	FIGURE(pinned, true, true),
	FIGURE(frames, false, true),
	FIGURE(files, false, true),
	FIGURE(allocs, false, false),
	FIGURE(seals, false, false),
	FIGURE(evictions, false, false),
	FIGURE(evicted_bytes, false, false),
	FIGURE(reclaims, false, false),
	FIGURE(reclaimed_bytes, false, false),
	FIGURE(refused, false, false),
};

/* Beside the figures: the huge share in percent, and the NUMA node. */
#define EXTRAS 2

static u64 value_of(struct computron_pool *pool, const struct figure *figure)
{
	struct computron_pool_stat stat;

	computron_pool_stat(pool, figure->survey, &stat);
	return *(const u64 *)((const char *)&stat + figure->offset);
}

/* ---- pools/NAME/ ------------------------------------------------------------------------ */

struct pool_attribute {
	struct kobj_attribute attr;
	struct computron_pool *pool;
	const struct figure *figure;
};

struct computron_sysfs_pool {
	struct attribute_group group;
	struct attribute *list[ARRAY_SIZE(figures) + EXTRAS + 1];
	struct pool_attribute attrs[ARRAY_SIZE(figures) + EXTRAS];
};

static struct kobject *pools_dir;

static struct pool_attribute *pool_attribute_of(struct kobj_attribute *attr)
{
	return container_of(attr, struct pool_attribute, attr);
}

static ssize_t show_figure(struct kobject *kobj, struct kobj_attribute *attr, char *to)
{
	struct pool_attribute *a = pool_attribute_of(attr);

	return sysfs_emit(to, "%llu\n", value_of(a->pool, a->figure));
}

static ssize_t show_huge_percent(struct kobject *kobj, struct kobj_attribute *attr, char *to)
{
	struct computron_pool_stat stat;

	computron_pool_stat(pool_attribute_of(attr)->pool, true, &stat);
	return sysfs_emit(to, "%llu\n", stat.used ? div64_u64(stat.huge * 100, stat.used) : 0);
}

static ssize_t show_node(struct kobject *kobj, struct kobj_attribute *attr, char *to)
{
	return sysfs_emit(to, "%d\n", pool_attribute_of(attr)->pool->node);
}

static void set_attribute(struct computron_sysfs_pool *dir, struct computron_pool *pool, u32 i,
			  const char *name,
			  ssize_t (*show)(struct kobject *, struct kobj_attribute *, char *))
{
	struct pool_attribute *a = &dir->attrs[i];

	sysfs_attr_init(&a->attr.attr);
	a->attr.attr.name = name;
	a->attr.attr.mode = 0444;
	a->attr.show = show;
	a->pool = pool;
	a->figure = i < ARRAY_SIZE(figures) ? &figures[i] : NULL;
	dir->list[i] = &a->attr.attr;
}

/**
 * computron_sysfs_add() - makes the directory of a pool
 * @pool: the pool
 *
 * Context: computron_pools_mutex is held.
 * Return: 0 or a negative error.
 */
int computron_sysfs_add(struct computron_pool *pool)
{
	struct computron_sysfs_pool *dir;
	int rc;
	u32 i;

	lockdep_assert_held(&computron_pools_mutex);
	dir = kzalloc(sizeof(*dir), GFP_KERNEL_ACCOUNT);
	if (!dir)
		return -ENOMEM;
	for (i = 0; i < ARRAY_SIZE(figures); i++)
		set_attribute(dir, pool, i, figures[i].name, show_figure);
	set_attribute(dir, pool, i++, "huge_percent", show_huge_percent);
	set_attribute(dir, pool, i++, "node", show_node);
	dir->group.name = pool->name;
	dir->group.attrs = dir->list;
	rc = sysfs_create_group(pools_dir, &dir->group);
	if (rc) {
		kfree(dir);
		return rc;
	}
	pool->sysfs = dir;
	return 0;
}

/**
 * computron_sysfs_remove() - removes it, after its last reader
 * @pool: the pool
 *
 * Context: computron_pools_mutex is held.
 */
void computron_sysfs_remove(struct computron_pool *pool)
{
	lockdep_assert_held(&computron_pools_mutex);
	sysfs_remove_group(pools_dir, &pool->sysfs->group);
	kfree(pool->sysfs);
	pool->sysfs = NULL;
}

/* ---- totals ------------------------------------------------------------------------------ */

struct total_attribute {
	struct device_attribute attr;
	const struct figure *figure;
};

static ssize_t show_total(struct device *dev, struct device_attribute *attr, char *to)
{
	const struct figure *figure = container_of(attr, struct total_attribute, attr)->figure;
	struct computron_pool *pool = NULL;
	u64 sum = 0;

	while ((pool = computron_pool_after(pool)))
		sum += value_of(pool, figure);
	return sysfs_emit(to, "%llu\n", sum);
}

static ssize_t max_bytes_show(struct device *dev, struct device_attribute *attr, char *to)
{
	return sysfs_emit(to, "%llu\n", computron_pools_limit());
}
static DEVICE_ATTR_RO(max_bytes);

static struct total_attribute totals[ARRAY_SIZE(figures)];
static struct attribute *total_list[ARRAY_SIZE(figures) + 2];
static const struct attribute_group total_group = {.attrs = total_list};

/* Of the misc device; filled by init. */
const struct attribute_group *computron_sysfs_groups[] = {&total_group, NULL};

/**
 * computron_sysfs_prepare() - before the device is registered
 */
void computron_sysfs_prepare(void)
{
	u32 i, n = 0;

	for (i = 0; i < ARRAY_SIZE(figures); i++) {
		if (!figures[i].total)
			continue;
		sysfs_attr_init(&totals[i].attr.attr);
		totals[i].attr.attr.name = figures[i].name;
		totals[i].attr.attr.mode = 0444;
		totals[i].attr.show = show_total;
		totals[i].figure = &figures[i];
		total_list[n++] = &totals[i].attr.attr;
	}
	total_list[n++] = &dev_attr_max_bytes.attr;
	total_list[n] = NULL;
}

/**
 * computron_sysfs_init() - the directory of pools
 * @dev: the misc device
 *
 * Return: 0 or -ENOMEM.
 */
int computron_sysfs_init(struct device *dev)
{
	pools_dir = kobject_create_and_add("pools", &dev->kobj);
	return pools_dir ? 0 : -ENOMEM;
}

/**
 * computron_sysfs_exit() - removes it
 */
void computron_sysfs_exit(void)
{
	kobject_put(pools_dir);
}
