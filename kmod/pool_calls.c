// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Calls on pools.
 */
#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "call.h"
#include "export.h"
#include "pool.h"

static u64 features(void)
{
	u64 f = COMPUTRON_FEATURE_SHRINK;

	if (IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE) && has_transparent_hugepage())
		f |= COMPUTRON_FEATURE_HUGE;
	if (IS_ENABLED(CONFIG_HUGETLBFS))
		f |= COMPUTRON_FEATURE_ADOPT;
	if (computron_export_works())
		f |= COMPUTRON_FEATURE_DMABUF;
	return f;
}

int computron_call_info(struct computron_call *call, void *arg)
{
	struct computron_info *info = arg;

	info->abi = COMPUTRON_ABI;
	info->features = features();
	info->unit_bytes = computron_memory_unit();
	info->max_bytes = computron_pools_limit();
	computron_pools_count(&info->pools, &info->total_bytes);
	memset(info->version, 0, sizeof(info->version));
	strscpy(info->version, THIS_MODULE->version ? THIS_MODULE->version : "",
		sizeof(info->version));
	return 0;
}

/* Names come as arrays; the copies are made to end. */
static int name_ends(const char *name)
{
	return memchr(name, 0, COMPUTRON_NAME_BYTES) ? 0 : -EINVAL;
}

/* Makes the pool and its first file, and only then lets others find it. */
static int make_pool(struct computron_call *call, const struct computron_pool_wish *wish,
		     u64 *bytes)
{
	struct computron_pool *pool = computron_pool_find(wish->name);
	int rc;

	/* Most names that are taken are found here, before anything is charged. */
	if (pool) {
		computron_pool_put(pool);
		return -EEXIST;
	}
	pool = computron_pool_new(wish);
	if (IS_ERR(pool))
		return PTR_ERR(pool);
	*bytes = pool->bytes;
	rc = computron_call_give(call, computron_file_new(pool, true));
	if (!rc)
		rc = computron_pool_publish(pool);
	computron_pool_put(pool);
	return rc;
}

int computron_call_pool_create(struct computron_call *call, void *arg)
{
	struct computron_pool_create *create = arg;
	struct computron_pool_wish wish = {
		.bytes = create->bytes,
		.quota = create->quota,
		.floor = create->floor,
		.segment_bytes = create->segment_bytes,
		.node = create->node,
		.memfd = -1,
	};
	int rc = name_ends(create->name);

	if (rc)
		return rc;
	strscpy(wish.name, create->name, sizeof(wish.name));
	rc = make_pool(call, &wish, &create->bytes);
	create->fd = call->fd;
	return rc;
}

int computron_call_pool_adopt(struct computron_call *call, void *arg)
{
	struct computron_pool_adopt *adopt = arg;
	struct computron_pool_wish wish = {
		.quota = adopt->quota,
		.segment_bytes = adopt->segment_bytes,
		.node = adopt->node,
		.memfd = adopt->memfd,
	};
	int rc = name_ends(adopt->name);

	if (rc)
		return rc;
	if (adopt->reserved)
		return -EINVAL;
	if (adopt->memfd < 0)
		return -EBADF;
	strscpy(wish.name, adopt->name, sizeof(wish.name));
	rc = make_pool(call, &wish, &adopt->bytes);
	adopt->fd = call->fd;
	return rc;
}

int computron_call_pool_open(struct computron_call *call, void *arg)
{
	struct computron_pool_open *open = arg;
	bool writer = open->flags & COMPUTRON_OPEN_WRITE;
	struct computron_pool *pool;
	int rc;

	if (name_ends(open->name))
		return -EINVAL;
	pool = computron_pool_find(open->name);
	if (!pool)
		return -ENOENT;
	rc = -EACCES;
	if (!writer || ((call->filp->f_mode & FMODE_WRITE) && computron_pool_may_write(pool)))
		rc = computron_call_give(call, computron_file_new(pool, writer));
	open->bytes = pool->bytes;
	open->segment_bytes = pool->segment_bytes;
	open->node = pool->node;
	open->fd = call->fd;
	computron_pool_put(pool);
	return rc;
}

int computron_call_pool_destroy(struct computron_call *call, void *arg)
{
	struct computron_pool_destroy *destroy = arg;

	if (name_ends(destroy->name))
		return -EINVAL;
	return computron_pool_destroy(destroy->name, destroy->flags & COMPUTRON_DESTROY_OPEN);
}

static void describe(struct computron_pool *pool, struct computron_pool_info *info)
{
	struct computron_frames *t = &pool->frames;

	memset(info, 0, sizeof(*info));
	strscpy(info->name, pool->name, sizeof(info->name));
	info->bytes = pool->bytes;
	info->flags = pool->memory.adopted ? COMPUTRON_POOL_ADOPTED : 0;
	info->uid = from_kuid_munged(current_user_ns(), pool->uid);
	info->node = pool->node;
	spin_lock(&t->lock);
	info->used = ((u64)t->n.loading + t->n.clean + t->n.quarantined) * t->unit_bytes;
	info->frames = t->n.frames;
	spin_unlock(&t->lock);
}

int computron_call_pool_list(struct computron_call *call, void *arg)
{
	struct computron_pool_list *list = arg;
	struct computron_pool *pool = NULL;
	struct computron_pool_info info;
	u32 n = 0;
	int rc;

	list->total = 0;
	while ((pool = computron_pool_after(pool))) {
		list->total++;
		if (n == list->count)
			continue;
		describe(pool, &info);
		rc = computron_call_row(list->pools, n, list->row_bytes, &info, sizeof(info));
		if (rc) {
			computron_pool_put(pool);
			return rc;
		}
		n++;
	}
	list->count = n;
	return 0;
}

int computron_call_pool_stat(struct computron_call *call, void *arg)
{
	struct computron_pool_stat *stat = arg;

	computron_pool_stat(call->file->pool, stat->flags & COMPUTRON_STAT_SURVEY, stat);
	return 0;
}

int computron_call_pool_set(struct computron_call *call, void *arg)
{
	struct computron_pool *pool = call->file->pool;
	struct computron_frames *t = &pool->frames;
	struct computron_pool_set *set = arg;
	u64 floor = DIV64_U64_ROUND_UP(min(set->floor, pool->bytes), t->unit_bytes);

	if ((set->flags & COMPUTRON_SET_QUOTA) && set->quota > pool->bytes)
		return -EINVAL;
	spin_lock(&t->lock);
	if (set->flags & COMPUTRON_SET_QUOTA)
		t->quota = div64_u64(set->quota, t->unit_bytes);
	if (set->flags & COMPUTRON_SET_FLOOR)
		t->floor = floor;
	spin_unlock(&t->lock);
	return 0;
}

int computron_call_pool_hot(struct computron_call *call, void *arg)
{
	struct computron_pool_hot *hot = arg;

	return computron_file_hot(call->file, hot->offset, hot->bytes,
				  hot->flags & COMPUTRON_HOT_ON);
}

int computron_call_pool_memfd(struct computron_call *call, void *arg)
{
	struct computron_memory *memory = &call->file->pool->memory;
	struct computron_pool_memfd *memfd = arg;
	int rc;

	if (memfd->reserved)
		return -EINVAL;
	if (!memory->adopted)
		return -EOPNOTSUPP;
	rc = computron_call_give(call, get_file(memory->file));
	memfd->fd = call->fd;
	return rc;
}
