// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Memory of a pool in a file on a tmpfs mount of its own, which carries the policy: huge pages
 * always, and the NUMA node. Its pages are unevictable (no swap, no LRU scans) and not allocated as
 * movable (no migration when they are pinned for long).
 */
#include <linux/file.h>
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/shmem_fs.h>

#include "compat.h"
#include "memory.h"

#define UNIT_WITHOUT_HUGE (2ULL << 20)
/* 64 KiB pages have huge pages of 512 MiB: no unit for frames. */
#define UNIT_MAX (32ULL << 20)

/**
 * computron_memory_unit() - unit_bytes of pools that are not adopted
 *
 * Return: the size of a huge page, where that is reasonable.
 */
u64 computron_memory_unit(void)
{
#ifdef CONFIG_TRANSPARENT_HUGEPAGE
	if (HPAGE_PMD_SIZE >= UNIT_WITHOUT_HUGE && HPAGE_PMD_SIZE <= UNIT_MAX)
		return HPAGE_PMD_SIZE;
#endif
	return max_t(u64, UNIT_WITHOUT_HUGE, PAGE_SIZE);
}

/* Else a huge page would lie in many units, and show all of them where it is mapped. */
static bool units_are_huge(void)
{
#ifdef CONFIG_TRANSPARENT_HUGEPAGE
	return computron_memory_unit() == HPAGE_PMD_SIZE;
#else
	return false;
#endif
}

static struct vfsmount *mount_tmpfs(int node)
{
	struct file_system_type *type = get_fs_type("tmpfs");
	char huge[48], plain[32] = "";
	struct vfsmount *mnt = ERR_PTR(-EINVAL);

	if (!type)
		return ERR_PTR(-ENODEV);
	if (IS_ENABLED(CONFIG_NUMA) && node >= 0)
		snprintf(plain, sizeof(plain), "mpol=prefer:%d", node);
	snprintf(huge, sizeof(huge), "huge=always%s%s", plain[0] ? "," : "", plain);
	if (units_are_huge())
		mnt = vfs_kern_mount(type, SB_KERNMOUNT, "computron", huge);
	if (IS_ERR(mnt)) /* or the CPU has none */
		mnt = vfs_kern_mount(type, SB_KERNMOUNT, "computron", plain[0] ? plain : NULL);
	return mnt;
}

/**
 * computron_memory_open() - memory for a new pool
 * @m: to be filled
 * @bytes: size of the pool, a multiple of the unit
 * @node: NUMA node to prefer, or -1
 *
 * Return: 0 or a negative error.
 */
int computron_memory_open(struct computron_memory *m, u64 bytes, int node)
{
	struct address_space *mapping;
	int rc;

	m->adopted = false;
	m->unit_bytes = computron_memory_unit();
	m->page_bytes = PAGE_SIZE;
	m->mnt = mount_tmpfs(node);
	if (IS_ERR(m->mnt)) {
		rc = PTR_ERR(m->mnt);
		goto err_none;
	}
	m->file = shmem_file_setup_with_mnt(m->mnt, "computron", bytes, COMPAT_NORESERVE);
	if (IS_ERR(m->file)) {
		rc = PTR_ERR(m->file);
		/* tmpfs says so when it gets no inode; this mount has no other limit. */
		if (rc == -ENOSPC)
			rc = -ENOMEM;
		goto err_unmount;
	}
	mapping = m->file->f_mapping;
	mapping_set_unevictable(mapping);
	/* Rather an error than a killed process. */
	mapping_set_gfp_mask(mapping, GFP_HIGHUSER | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
	return 0;

err_unmount:
	kern_unmount(m->mnt);
err_none:
	m->mnt = NULL;
	m->file = NULL;
	return rc;
}

/**
 * computron_memory_let_go() - gives up the file
 * @m: filled by open or adopt; computron_memory_close has to follow
 *
 * Return: whether somebody else has it, who keeps it and the pages of its own: as long as
 * computron_memory_in_use says.
 */
bool computron_memory_let_go(struct computron_memory *m)
{
	bool shared = m->mnt && file_count(m->file) > 1;

	fput(m->file);
	m->file = NULL;
	return shared;
}

/**
 * computron_memory_in_use() - whether there is a file yet
 * @m: memory that was let go
 *
 * Return: true as long as there is.
 */
bool computron_memory_in_use(const struct computron_memory *m)
{
	bool in_use;

	/* Which allows two references. The one is ours. */
	mntget(m->mnt);
	in_use = !may_umount(m->mnt);
	mntput(m->mnt);
	return in_use;
}

/**
 * computron_memory_close() - gives up what open or adopt took
 * @m: filled by one of them, or all zero
 *
 * Writable mappings keep the file and its pages.
 */
void computron_memory_close(struct computron_memory *m)
{
	if (m->file)
		fput(m->file);
	if (m->mnt)
		kern_unmount(m->mnt);
	m->file = NULL;
	m->mnt = NULL;
}

/* Where an offset is in the page cache: offset >> this. */
static unsigned int index_shift(const struct computron_memory *m)
{
	return m->adopted ? computron_adopted_shift(m) : PAGE_SHIFT;
}

/* The folio at an offset, with a reference, or NULL. Sets where it ends. */
static struct folio *folio_at(struct computron_memory *m, u64 offset, u64 *end)
{
	struct folio *folio = filemap_get_folio(m->file->f_mapping, offset >> index_shift(m));

	if (IS_ERR_OR_NULL(folio)) {
		*end = offset + m->page_bytes;
		return NULL;
	}
	*end = round_down(offset, folio_size(folio)) + folio_size(folio);
	return folio;
}

static bool is_huge(const struct computron_memory *m, struct folio *folio)
{
	return folio_test_large(folio) && folio_size(folio) >= m->unit_bytes;
}

/**
 * computron_memory_survey() - looks at the pages of a range
 * @m: the memory
 * @offset: of the range
 * @bytes: of it
 * @locks: whether to look for locked pages too
 * @s: added to
 */
void computron_memory_survey(struct computron_memory *m, u64 offset, u64 bytes, bool locks,
			     struct computron_survey *s)
{
	u64 end = offset + bytes, next;
	struct folio *folio;

	for (; offset < end; offset = next) {
		folio = folio_at(m, offset, &next);
		if (folio) {
			s->present += min(next, end) - offset;
			if (m->adopted || is_huge(m, folio))
				s->huge += min(next, end) - offset;
			if (folio_maybe_dma_pinned(folio))
				s->pinned = true;
			if (locks && folio_test_locked(folio))
				s->locked = true;
			folio_put(folio);
		}
		cond_resched();
	}
}

/**
 * computron_memory_present() - whether any page of a range is there
 * @m: the memory
 * @offset: of the range
 * @bytes: of it, not 0
 *
 * Return: true when there is one.
 */
bool computron_memory_present(struct computron_memory *m, u64 offset, u64 bytes)
{
	struct computron_survey s = {};

	if (m->adopted) {
		computron_memory_survey(m, offset, bytes, false, &s);
		return s.present;
	}
	return filemap_range_has_page(m->file->f_mapping, offset, offset + bytes - 1);
}

/* Reads one page in, huge if that can be. Sets where it ends. */
static int read_in(struct computron_memory *m, u64 offset, u64 *end, bool *huge)
{
	struct address_space *mapping = m->file->f_mapping;
	struct page *found;
	struct folio *folio;

	found = shmem_read_mapping_page_gfp(mapping, offset >> PAGE_SHIFT,
					    mapping_gfp_mask(mapping));
	if (IS_ERR(found))
		return PTR_ERR(found);
	folio = page_folio(found);
	*end = round_down(offset, folio_size(folio)) + folio_size(folio);
	*huge = is_huge(m, folio);
	folio_put(folio);
	return 0;
}

/*
 * Makes the kernel compact memory until a huge page is free. tmpfs itself does not try hard by
 * default; the page allocator gives the next who asks the page that was freed last.
 */
static bool make_room(struct computron_memory *m, int node)
{
#ifdef CONFIG_TRANSPARENT_HUGEPAGE
	unsigned int order = get_order(m->unit_bytes);
	struct page *page;

	page = alloc_pages_node(node >= 0 ? node : numa_mem_id(), GFP_TRANSHUGE & ~__GFP_MOVABLE,
				order);
	if (!page)
		return false;
	__free_pages(page, order);
	return true;
#else
	return false;
#endif
}

static int populate_unit(struct computron_memory *m, u64 offset, int node)
{
	u64 end = offset + m->unit_bytes, next;
	bool huge, fresh = !computron_memory_present(m, offset, m->unit_bytes);
	int rc;

	rc = read_in(m, offset, &next, &huge);
	if (!rc && fresh && !huge && units_are_huge() && make_room(m, node)) {
		shmem_truncate_range(file_inode(m->file), offset, next - 1);
		rc = read_in(m, offset, &next, &huge);
	}
	for (offset = next; !rc && offset < end; offset = next) {
		if (fatal_signal_pending(current))
			return -EINTR;
		rc = read_in(m, offset, &next, &huge);
		cond_resched();
	}
	return rc;
}

/**
 * computron_memory_populate() - gives a range its memory, zeroed
 * @m: the memory
 * @offset: of the range, in whole units
 * @bytes: of it, likewise
 * @node: NUMA node to prefer, or -1
 *
 * What is there already stays as it is.
 *
 * Return: 0, -ENOMEM, -EINTR: some of it has memory then.
 */
int computron_memory_populate(struct computron_memory *m, u64 offset, u64 bytes, int node)
{
	u64 end = offset + bytes;
	int rc;

	for (; offset < end; offset += m->unit_bytes) {
		if (fatal_signal_pending(current))
			return -EINTR;
		rc = m->adopted ? computron_adopted_populate(m, offset, m->unit_bytes)
				: populate_unit(m, offset, node);
		if (rc)
			return rc == -EINTR ? rc : -ENOMEM;
		cond_resched();
	}
	return 0;
}

/**
 * computron_memory_end_faults() - faults that have a page of a range have ended
 * @m: the memory, not adopted
 * @offset: of the range
 * @bytes: of it
 * @wait: for them
 *
 * A fault holds the lock of its page until that is mapped.
 *
 * Return: true; without @wait also false: there may be one.
 */
bool computron_memory_end_faults(struct computron_memory *m, u64 offset, u64 bytes, bool wait)
{
	u64 end = offset + bytes;
	struct folio *folio;
	bool ended = true;

	while (ended && offset < end) {
		folio = folio_at(m, offset, &offset);
		if (folio) {
			if (wait)
				folio_lock(folio);
			else
				ended = folio_trylock(folio);
			if (ended)
				folio_unlock(folio);
			folio_put(folio);
		}
		cond_resched();
	}
	return ended;
}

/**
 * computron_memory_unmap() - takes a range out of all page tables
 * @m: the memory
 * @offset: of the range
 * @bytes: of it
 *
 * Writable mappings fault it in again when it is touched. Mappings of memfds of huge pages are not
 * for us to change (they have locks that only their file system knows), and are all of writers; the
 * file unmaps what is punched.
 */
void computron_memory_unmap(struct computron_memory *m, u64 offset, u64 bytes)
{
	if (!m->adopted)
		unmap_mapping_range(m->file->f_mapping, offset, bytes, 0);
}

/**
 * computron_memory_punch() - gives the memory of a range back
 * @m: the memory
 * @offset: of the range, in whole units
 * @bytes: of it, likewise
 *
 * May be called from reclaim, unless adopted. Pages that are in use elsewhere live until that ends.
 *
 * Return: 0; a negative error when adopted and the memfd does not let us: the pages are still
 * there.
 */
int computron_memory_punch(struct computron_memory *m, u64 offset, u64 bytes)
{
	if (m->adopted)
		return computron_adopted_punch(m, offset, bytes);
	shmem_truncate_range(file_inode(m->file), offset, offset + bytes - 1);
	return 0;
}

/**
 * computron_memory_populated() - memory that the pool takes
 * @m: the memory
 *
 * Return: bytes, by the kernel's count of the pages of the file.
 */
u64 computron_memory_populated(const struct computron_memory *m)
{
	return (u64)READ_ONCE(m->file->f_mapping->nrpages) << index_shift(m);
}
