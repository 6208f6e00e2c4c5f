// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * A dma-buf of a frame has a lease of its own, so that the frame stays as long as the buffer. While
 * a device has it mapped, each of its folios has a reference, so that it stays where it is.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "compat.h"
#include "evict.h"
#include "export.h"

#if IS_ENABLED(CONFIG_DMA_SHARED_BUFFER)

/**
 * struct computron_export - what is exported
 * @pool: with a reference, and counted among its files
 * @f: the frame, leased
 * @writer: devices may write
 */
struct computron_export {
	struct computron_pool *pool;
	struct computron_frame *f;
	bool writer;
};

/* Walks over the pieces of a frame that lie in one folio each. */
struct piece {
	u32 run;
	u64 done; /* bytes of the run */
	struct folio *folio;
	u64 offset; /* in the folio */
	u32 bytes;
};

/* The next piece, at most @most bytes of it, with a reference to its folio. */
static bool next_piece(struct computron_export *e, u32 most, struct piece *p)
{
	u64 unit = e->pool->frames.unit_bytes, at;
	const struct computron_run *run;

	if (p->run == e->f->nr_runs)
		return false;
	run = &e->f->runs[p->run];
	at = run->first * unit + p->done;
	p->folio = filemap_get_folio(e->pool->memory.file->f_mapping, at >> PAGE_SHIFT);
	if (IS_ERR_OR_NULL(p->folio))
		return false;
	p->offset = at & (folio_size(p->folio) - 1);
	p->bytes =
		min3((u64)most, (u64)folio_size(p->folio) - p->offset, run->count * unit - p->done);
	p->done += p->bytes;
	if (p->done == run->count * unit) {
		p->run++;
		p->done = 0;
	}
	return true;
}

static void put_pieces(struct sg_table *table)
{
	struct scatterlist *sg;
	unsigned int i;

	for_each_sgtable_sg(table, sg, i) {
		if (sg_page(sg))
			put_page(sg_page(sg));
	}
}

/* -EAGAIN: the folios have changed meanwhile (they were made huge). */
static int fill_table(struct computron_export *e, u32 most, struct sg_table *table)
{
	u64 bytes = 0, all = e->f->units * e->pool->frames.unit_bytes;
	struct scatterlist *sg;
	struct piece p = {};
	u32 pieces = 0;
	int rc;

	while (next_piece(e, most, &p)) {
		folio_put(p.folio);
		pieces++;
		cond_resched();
	}
	rc = sg_alloc_table(table, max(pieces, 1U), GFP_KERNEL);
	if (rc)
		return rc;
	memset(&p, 0, sizeof(p));
	for (sg = table->sgl; sg && next_piece(e, most, &p); sg = sg_next(sg)) {
		sg_set_page(sg, folio_page(p.folio, p.offset >> PAGE_SHIFT), p.bytes, 0);
		bytes += p.bytes;
	}
	if (bytes == all && !sg)
		return 0;
	put_pieces(table);
	sg_free_table(table);
	return -EAGAIN;
}

static struct sg_table *export_map(struct dma_buf_attachment *attachment,
				   enum dma_data_direction dir)
{
	struct computron_export *e = attachment->dmabuf->priv;
	size_t most = round_down(dma_get_max_seg_size(attachment->dev), PAGE_SIZE);
	struct sg_table *table;
	int rc, tries = 3;

	if (!e->writer && dir != DMA_TO_DEVICE)
		return ERR_PTR(-EACCES);
	table = kzalloc(sizeof(*table), GFP_KERNEL);
	if (!table)
		return ERR_PTR(-ENOMEM);
	do {
		rc = fill_table(e, clamp_t(size_t, most, PAGE_SIZE, 1U << 30), table);
	} while (rc == -EAGAIN && --tries);
	if (rc)
		goto err_free;
	rc = dma_map_sgtable(attachment->dev, table, dir, 0);
	if (rc)
		goto err_pieces;
	return table;

err_pieces:
	put_pieces(table);
	sg_free_table(table);
err_free:
	kfree(table);
	return ERR_PTR(rc);
}

static void export_unmap(struct dma_buf_attachment *attachment, struct sg_table *table,
			 enum dma_data_direction dir)
{
	dma_unmap_sgtable(attachment->dev, table, dir, 0);
	put_pieces(table);
	sg_free_table(table);
	kfree(table);
}

static void end_export(struct computron_export *e)
{
	struct computron_pool *pool = e->pool;
	bool dead;

	spin_lock(&pool->frames.lock);
	computron_frame_release(&pool->frames, e->f, 1);
	pool->files--;
	dead = pool->dead;
	spin_unlock(&pool->frames.lock);
	if (dead)
		computron_evict_all(pool);
	computron_pool_put(pool);
	kfree(e);
}

static void export_release(struct dma_buf *buffer)
{
	end_export(buffer->priv);
}

static const struct dma_buf_ops export_ops = {
	.map_dma_buf = export_map,
	.unmap_dma_buf = export_unmap,
	.release = export_release,
};

bool computron_export_works(void)
{
	return true;
}

/**
 * computron_export() - a dma-buf of a frame
 * @pool: the pool
 * @ref: a CLEAN frame
 * @writer: devices may also write to it
 *
 * Context: process, may sleep.
 * Return: the file of the dma-buf, or an error pointer.
 */
struct file *computron_export(struct computron_pool *pool, const struct computron_ref *ref,
			      bool writer)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct computron_export *e;
	struct dma_buf *buffer;
	int rc;

	if (pool->memory.adopted)
		return ERR_PTR(-EOPNOTSUPP);
	e = kzalloc(sizeof(*e), GFP_KERNEL_ACCOUNT);
	if (!e)
		return ERR_PTR(-ENOMEM);
	rc = computron_pool_lock_frame(pool, ref, &e->f);
	if (!rc)
		rc = computron_frame_lease(&pool->frames, e->f);
	if (!rc)
		pool->files++;
	computron_pool_unlock(pool);
	if (rc) {
		kfree(e);
		return ERR_PTR(rc);
	}
	computron_pool_get(pool);
	e->pool = pool;
	e->writer = writer;
	info.ops = &export_ops;
	info.size = e->f->units * pool->frames.unit_bytes;
	info.flags = writer ? O_RDWR : O_RDONLY;
	info.priv = e;
	buffer = dma_buf_export(&info);
	if (IS_ERR(buffer)) {
		end_export(e);
		return ERR_CAST(buffer);
	}
	return buffer->file;
}

COMPAT_IMPORT_DMA_BUF;

#else

bool computron_export_works(void)
{
	return false;
}

struct file *computron_export(struct computron_pool *pool, const struct computron_ref *ref,
			      bool writer)
{
	return ERR_PTR(-EOPNOTSUPP);
}

#endif
