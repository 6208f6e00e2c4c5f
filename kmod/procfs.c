// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * procfs. A position in the tables is the serial of a pool, for frames with the number of a unit
 * below it, and 0 for the titles. No lock is held from row to row: pools and frames may come and
 * go.
 */
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "pool.h"
#include "procfs.h"

static struct proc_dir_entry *dir;

/* ---- pools ------------------------------------------------------------------------------ */

static void *pools_start(struct seq_file *m, loff_t *pos)
{
	struct computron_pool *pool;

	if (!*pos)
		return SEQ_START_TOKEN;
	pool = computron_pool_at(*pos);
	if (pool)
		*pos = pool->serial;
	return pool;
}

static void pools_stop(struct seq_file *m, void *v)
{
	if (v && v != SEQ_START_TOKEN)
		computron_pool_put(v);
}

static void *pools_next(struct seq_file *m, void *v, loff_t *pos)
{
	pools_stop(m, v);
	++*pos;
	return pools_start(m, pos);
}

static int pools_show(struct seq_file *m, void *v)
{
	struct computron_pool *pool = v;
	struct computron_pool_stat s;

	if (v == SEQ_START_TOKEN) {
		seq_puts(m, "name bytes used clean leased loading quarantined populated ");
		seq_puts(m, "huge node uid frames\n");
		return 0;
	}
	computron_pool_stat(pool, false, &s);
	seq_printf(m, "%s %llu %llu %llu %llu %llu %llu %llu %llu %d %u %llu\n", pool->name,
		   s.bytes, s.used, s.clean, s.leased, s.loading, s.quarantined, s.populated,
		   s.huge, s.node, from_kuid_munged(seq_user_ns(m), pool->uid), s.frames);
	return 0;
}

static const struct seq_operations pools_rows = {
	.start = pools_start,
	.next = pools_next,
	.stop = pools_stop,
	.show = pools_show,
};

/* ---- frames ----------------------------------------------------------------------------- */

#define UNIT_BITS 32

struct row {
	struct computron_pool *pool; /* with a reference, from start to stop */
	struct computron_frame_info info;
};

static bool describe(struct computron_pool *pool, u32 unit, struct computron_frame_info *info)
{
	struct computron_frames *t = &pool->frames;
	struct computron_frame *f;

	spin_lock(&t->lock);
	f = computron_frames_next(t, unit);
	if (f)
		computron_frame_describe(t, f, NULL, info);
	spin_unlock(&t->lock);
	return f;
}

static void frames_stop(struct seq_file *m, void *v)
{
	struct row *row = m->private;

	if (row->pool)
		computron_pool_put(row->pool);
	row->pool = NULL;
}

static void *frames_start(struct seq_file *m, loff_t *pos)
{
	struct row *row = m->private;
	u64 serial = *pos >> UNIT_BITS;
	u32 unit = (u32)*pos;

	if (!*pos)
		return SEQ_START_TOKEN;
	for (row->pool = computron_pool_at(serial); row->pool;
	     row->pool = computron_pool_after(row->pool), unit = 0) {
		if (row->pool->serial != serial)
			unit = 0;
		if (describe(row->pool, unit, &row->info)) {
			*pos = (loff_t)(row->pool->serial << UNIT_BITS | row->info.ref.id);
			return row;
		}
	}
	return NULL;
}

static void *frames_next(struct seq_file *m, void *v, loff_t *pos)
{
	frames_stop(m, v);
	++*pos;
	return frames_start(m, pos);
}

static const char *state_name(u32 state)
{
	switch (state) {
	case COMPUTRON_FRAME_LOADING:
		return "loading";
	case COMPUTRON_FRAME_CLEAN:
		return "clean";
	default:
		return "quarantined";
	}
}

static int frames_show(struct seq_file *m, void *v)
{
	const struct row *row = v;
	const struct computron_frame_info *i;

	if (v == SEQ_START_TOKEN) {
		seq_puts(m, "pool id generation state bytes charged huge leases extents key\n");
		return 0;
	}
	i = &row->info;
	seq_printf(m, "%s %llu %llu %s %llu %llu %llu %u %u %*phN\n", row->pool->name, i->ref.id,
		   i->ref.generation, state_name(i->state), i->bytes, i->charged, i->huge_bytes,
		   i->leases, i->extents, COMPUTRON_KEY_BYTES, i->key);
	return 0;
}

static const struct seq_operations frames_rows = {
	.start = frames_start,
	.next = frames_next,
	.stop = frames_stop,
	.show = frames_show,
};

/**
 * computron_procfs_init() - makes the tables
 *
 * Return: 0 or -ENOMEM.
 */
int computron_procfs_init(void)
{
	dir = proc_mkdir("computron", NULL);
	if (!dir)
		return -ENOMEM;
	if (!proc_create_seq("pools", 0444, dir, &pools_rows) ||
	    !proc_create_seq_private("frames", 0444, dir, &frames_rows, sizeof(struct row), NULL)) {
		computron_procfs_exit();
		return -ENOMEM;
	}
	return 0;
}

/**
 * computron_procfs_exit() - removes them, after their last readers
 */
void computron_procfs_exit(void)
{
	proc_remove(dir);
}
