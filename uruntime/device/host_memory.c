// SPDX-License-Identifier: MIT
/* Memory of a host device: see struct ctn_host_memory in host.h. */
#include "device/host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POISON 0xdb

/*
 * 2 MiB is the granule of CUDA, and what one page of page tables spans: the kernel moves it
 * as one entry. A small device (tests, demos with models of 1 MiB) would lose too much of
 * itself to rounding, so it gets 64 KiB.
 */
#define LARGE_DEVICE  (256 * CTN_MIB)
#define LARGE_GRANULE (2 * CTN_MIB)
#define SMALL_GRANULE (64 * CTN_KIB)

uint64_t ctn_host_memory_granule(uint64_t bytes)
{
	return bytes >= LARGE_DEVICE ? LARGE_GRANULE : SMALL_GRANULE;
}

/* ---- addresses -------------------------------------------------------------------------- */

static void *map_nothing(void *va, uint64_t bytes, int flags)
{
	return mmap(va, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1,
		    0);
}

/* Fresh addresses at a multiple of the granule, without memory. */
static void *new_addresses(uint64_t granule, uint64_t bytes)
{
	uint8_t *all, *va;
	uint64_t room, head;

	if (ctn_add_overflows(bytes, granule, &room))
		return NULL;
	all = map_nothing(NULL, room, 0);
	if (all == MAP_FAILED)
		return NULL;
	va = (uint8_t *)ctn_align_up((uintptr_t)all, granule);
	head = (uint64_t)(va - all);
	if (head)
		munmap(all, head);
	munmap(va + bytes, room - head - bytes);
	return va;
}

/* Moves page tables between the window and addresses; what lies at `to` is replaced. */
static bool move_pages(void *from, void *to, uint64_t bytes)
{
	return mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) !=
	       MAP_FAILED;
}

static bool map_file(const struct ctn_host_memory *memory, void *va, uint64_t offset,
		     uint64_t bytes)
{
	return mmap(va, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
		    memory->fd, (off_t)offset) != MAP_FAILED;
}

static int back_run(struct ctn_host_memory *memory, uint8_t *va, uint64_t offset, uint64_t bytes)
{
	if (memory->moves && move_pages(memory->window + offset, va, bytes))
		return 0;
	return map_file(memory, va, offset, bytes) ? 0 : -ENOMEM;
}

/*
 * The addresses lose their memory. If even that fails (the process has as many mappings as
 * the kernel allows), the old pages stay visible there until the addresses are backed anew
 * or given back; no account depends on it.
 */
static void unback_run(struct ctn_host_memory *memory, uint8_t *va, uint64_t offset, uint64_t bytes)
{
	if (memory->moves && !move_pages(va, memory->window + offset, bytes))
		map_file(memory, memory->window + offset, offset, bytes);
	if (map_nothing(va, bytes, MAP_FIXED) == MAP_FAILED)
		ctn_warn("device memory at %p: cannot take the mapping back: %s", (void *)va,
			 strerror(errno));
}

/* Whether this kernel moves shared mappings and leaves the source mapped (5.13). */
static bool kernel_moves_pages(struct ctn_host_memory *memory)
{
	void *va = new_addresses(memory->granule, memory->granule);
	bool moves;

	if (!va)
		return false;
	moves = move_pages(memory->window, va, memory->granule);
	if (moves)
		moves = move_pages(va, memory->window, memory->granule);
	munmap(va, memory->granule);
	return moves;
}

/* ---- the free list ---------------------------------------------------------------------- */

static uint32_t map_words(uint32_t granules)
{
	return (granules + 63) / 64;
}

/* The first granule at or after `from` that is free, or taken; `granules` if there is none. */
static uint32_t next_granule(const struct ctn_host_memory *memory, uint32_t from, bool is_free)
{
	while (from < memory->granules) {
		uint64_t word = memory->free_map[from / 64];

		word = (is_free ? word : ~word) & (~0ull << (from % 64));
		if (word)
			return CTN_MIN(from / 64 * 64 + (uint32_t)__builtin_ctzll(word),
				       memory->granules);
		from = (from / 64 + 1) * 64;
	}
	return memory->granules;
}

static uint32_t free_granules(const struct ctn_host_memory *memory)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < map_words(memory->granules); i++)
		n += (uint32_t)__builtin_popcountll(memory->free_map[i]);
	return n;
}

/* The first run of `want` free granules; -1 when there is none. */
static int64_t find_run(const struct ctn_host_memory *memory, uint32_t want)
{
	uint32_t start = 0;

	for (;;) {
		uint32_t end;

		start = next_granule(memory, start, true);
		if (start == memory->granules)
			return -1;
		end = next_granule(memory, start, false);
		if (end - start >= want)
			return start;
		start = end;
	}
}

/* Takes `want` free granules, which exist: one run if there is one, else the first ones. */
static void take_granules(struct ctn_host_memory *memory, uint32_t *backing, uint32_t want)
{
	int64_t run = find_run(memory, want);
	uint32_t g = run < 0 ? 0 : (uint32_t)run;

	for (uint32_t i = 0; i < want; i++, g++) {
		g = next_granule(memory, g, true);
		CTN_ASSERT(g < memory->granules);
		memory->free_map[g / 64] &= ~(1ull << (g % 64));
		backing[i] = g + 1;
	}
}

static void give_granules(struct ctn_host_memory *memory, uint32_t *backing, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t g = backing[i] - 1;

		CTN_ASSERT(backing[i] && !(memory->free_map[g / 64] & 1ull << (g % 64)));
		memory->free_map[g / 64] |= 1ull << (g % 64);
		backing[i] = 0;
	}
}

/* ---- reservations ----------------------------------------------------------------------- */

/* How many reservations begin at or before `va`. */
static size_t rank_of(const struct ctn_host_memory *memory, const void *va)
{
	size_t low = 0, high = memory->reservation_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if ((uintptr_t)memory->reservations[mid]->va <= (uintptr_t)va)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* The reservation that holds all of [va, va + bytes), or NULL. */
static struct ctn_host_reservation *find_reservation(const struct ctn_host_memory *memory,
						     const void *va, uint64_t bytes)
{
	size_t rank = rank_of(memory, va);
	struct ctn_host_reservation *r;
	uint64_t end;

	if (rank == 0)
		return NULL;
	r = memory->reservations[rank - 1];
	if (ctn_add_overflows((uintptr_t)va - (uintptr_t)r->va, bytes, &end) ||
	    end > r->granules * memory->granule)
		return NULL;
	return r;
}

static int add_reservation(struct ctn_host_memory *memory, struct ctn_host_reservation *r)
{
	size_t rank;

	if (memory->reservation_count == memory->reservation_room) {
		size_t room = CTN_MAX(16, 2 * memory->reservation_room);
		void *all = realloc(memory->reservations, room * sizeof(*memory->reservations));

		if (!all)
			return -ENOMEM;
		memory->reservations = all;
		memory->reservation_room = room;
	}
	rank = rank_of(memory, r->va);
	memmove(&memory->reservations[rank + 1], &memory->reservations[rank],
		(memory->reservation_count - rank) * sizeof(*memory->reservations));
	memory->reservations[rank] = r;
	memory->reservation_count++;
	return 0;
}

int ctn_host_memory_reserve(struct ctn_host_memory *memory, uint64_t bytes, void **va)
{
	struct ctn_host_reservation *r;
	uint64_t rounded;
	int rc;

	if (bytes == 0)
		return -EINVAL;
	if (ctn_add_overflows(bytes, memory->granule - 1, &rounded))
		return -ENOMEM;
	rounded = ctn_align_down(rounded, memory->granule);
	if (rounded / memory->granule > UINT32_MAX)
		return -ENOMEM;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->granules = (uint32_t)(rounded / memory->granule);
	r->va = new_addresses(memory->granule, rounded);
	if (!r->va) {
		rc = -ENOMEM;
		goto free_reservation;
	}
	pthread_mutex_lock(&memory->lock);
	rc = add_reservation(memory, r);
	pthread_mutex_unlock(&memory->lock);
	if (rc)
		goto free_addresses;
	*va = r->va;
	return 0;
free_addresses:
	munmap(r->va, rounded);
free_reservation:
	free(r);
	return rc;
}

void ctn_host_memory_unreserve(struct ctn_host_memory *memory, void *va, uint64_t bytes)
{
	struct ctn_host_reservation *r;
	size_t rank;

	pthread_mutex_lock(&memory->lock);
	rank = rank_of(memory, va);
	r = find_reservation(memory, va, bytes);
	CTN_ASSERT(r && r->va == va && r->mapped == 0 &&
		   r->granules * memory->granule == ctn_align_up(bytes, memory->granule));
	memmove(&memory->reservations[rank - 1], &memory->reservations[rank],
		(memory->reservation_count - rank) * sizeof(*memory->reservations));
	memory->reservation_count--;
	pthread_mutex_unlock(&memory->lock);
	munmap(r->va, r->granules * memory->granule);
	free(r);
}

/* ---- map and unmap ---------------------------------------------------------------------- */

/* How many of `count` granules, from the first, follow each other in memory. */
static uint32_t run_length(const uint32_t *backing, uint32_t count)
{
	uint32_t n = 1;

	while (n < count && backing[n] == backing[n - 1] + 1)
		n++;
	return n;
}

static void unback(struct ctn_host_memory *memory, uint8_t *va, const uint32_t *backing,
		   uint32_t count)
{
	uint64_t granule = memory->granule;

	for (uint32_t i = 0, n; i < count; i += n) {
		n = run_length(backing + i, count - i);
		unback_run(memory, va + i * granule, (backing[i] - 1) * granule, n * granule);
	}
}

static int back(struct ctn_host_memory *memory, uint8_t *va, const uint32_t *backing,
		uint32_t count)
{
	uint64_t granule = memory->granule;
	int rc;

	for (uint32_t i = 0, n; i < count; i += n) {
		n = run_length(backing + i, count - i);
		rc = back_run(memory, va + i * granule, (backing[i] - 1) * granule, n * granule);
		if (rc) {
			unback(memory, va, backing, i);
			return rc;
		}
	}
	return 0;
}

/* The table of a reservation lives while something is mapped in it. */
static void drop_empty_table(struct ctn_host_reservation *r)
{
	if (r->mapped)
		return;
	free(r->backing);
	r->backing = NULL;
}

static int map_locked(struct ctn_host_memory *memory, uint8_t *va, uint64_t bytes)
{
	struct ctn_host_reservation *r = find_reservation(memory, va, bytes);
	uint32_t first, count;
	int rc;

	if (!r || bytes == 0 || ((uintptr_t)va | bytes) % memory->granule)
		return -EINVAL;
	first = (uint32_t)((uint64_t)(va - r->va) / memory->granule);
	count = (uint32_t)(bytes / memory->granule);
	for (uint32_t i = first; r->backing && i < first + count; i++) {
		if (r->backing[i])
			return -EEXIST;
	}
	if (count > free_granules(memory))
		return -ENOSPC;
	if (!r->backing) {
		r->backing = calloc(r->granules, sizeof(*r->backing));
		if (!r->backing)
			return -ENOMEM;
	}
	take_granules(memory, r->backing + first, count);
	rc = back(memory, va, r->backing + first, count);
	if (rc) {
		give_granules(memory, r->backing + first, count);
		drop_empty_table(r);
		return rc;
	}
	r->mapped += count;
	return 0;
}

int ctn_host_memory_map(struct ctn_host_memory *memory, void *va, uint64_t bytes)
{
	int rc;

	pthread_mutex_lock(&memory->lock);
	rc = map_locked(memory, va, bytes);
	pthread_mutex_unlock(&memory->lock);
	return rc;
}

void ctn_host_memory_unmap(struct ctn_host_memory *memory, void *va, uint64_t bytes, bool poison)
{
	struct ctn_host_reservation *r;
	uint32_t first, count;

	/* Outside the lock: until it has been unmapped, the range is the caller's. */
	if (poison)
		memset(va, POISON, bytes);
	pthread_mutex_lock(&memory->lock);
	r = find_reservation(memory, va, bytes);
	CTN_ASSERT(r && r->backing && ((uintptr_t)va | bytes) % memory->granule == 0);
	first = (uint32_t)((uint64_t)((uint8_t *)va - r->va) / memory->granule);
	count = (uint32_t)(bytes / memory->granule);
	unback(memory, va, r->backing + first, count);
	give_granules(memory, r->backing + first, count);
	r->mapped -= count;
	drop_empty_table(r);
	pthread_mutex_unlock(&memory->lock);
}

bool ctn_host_memory_contains(struct ctn_host_memory *memory, const void *va, uint64_t bytes)
{
	struct ctn_host_reservation *r;
	uint64_t offset;
	bool all;

	if (bytes == 0)
		return true;
	pthread_mutex_lock(&memory->lock);
	r = find_reservation(memory, va, bytes);
	all = r && r->backing;
	offset = all ? (uint64_t)((const uint8_t *)va - r->va) : 0;
	for (uint64_t i = offset / memory->granule;
	     all && i <= (offset + bytes - 1) / memory->granule; i++)
		all = r->backing[i] != 0;
	pthread_mutex_unlock(&memory->lock);
	return all;
}

/* ---- the account ------------------------------------------------------------------------ */

static uint64_t walk_mappings(const struct ctn_host_memory *memory)
{
	uint64_t mapped = 0;

	for (size_t i = 0; i < memory->reservation_count; i++) {
		const struct ctn_host_reservation *r = memory->reservations[i];

		for (uint32_t g = 0; r->backing && g < r->granules; g++)
			mapped += r->backing[g] != 0;
	}
	return mapped;
}

void ctn_host_memory_get(struct ctn_host_memory *memory, struct ctn_device_memory *figures)
{
	pthread_mutex_lock(&memory->lock);
	figures->total = memory->granules * memory->granule;
	figures->free = free_granules(memory) * memory->granule;
	figures->mapped = walk_mappings(memory) * memory->granule;
	pthread_mutex_unlock(&memory->lock);
	CTN_ASSERT(figures->free + figures->mapped == figures->total);
}

/* ---- init and destroy ------------------------------------------------------------------- */

int ctn_host_memory_init(struct ctn_host_memory *memory, const char *name, uint64_t bytes)
{
	int rc;

	*memory = (struct ctn_host_memory){.granule = ctn_host_memory_granule(bytes)};
	memory->granules = (uint32_t)(bytes / memory->granule);
	memory->free_map = calloc(map_words(memory->granules), sizeof(*memory->free_map));
	if (!memory->free_map)
		return -ENOMEM;
	for (uint32_t g = 0; g < memory->granules; g++)
		memory->free_map[g / 64] |= 1ull << (g % 64);
	memory->fd = memfd_create(name, MFD_CLOEXEC);
	if (memory->fd < 0 || ftruncate(memory->fd, (off_t)bytes)) {
		rc = -errno;
		goto fail;
	}
	memory->window = new_addresses(memory->granule, bytes);
	if (!memory->window || !map_file(memory, memory->window, 0, bytes)) {
		rc = -ENOMEM;
		goto fail;
	}
	rc = -pthread_mutex_init(&memory->lock, NULL);
	if (rc)
		goto fail;
	memory->moves = kernel_moves_pages(memory);
	return 0;
fail:
	if (memory->window)
		munmap(memory->window, bytes);
	if (memory->fd >= 0)
		close(memory->fd);
	free(memory->free_map);
	return rc;
}

void ctn_host_memory_destroy(struct ctn_host_memory *memory)
{
	CTN_ASSERT(memory->reservation_count == 0);
	CTN_ASSERT(free_granules(memory) == memory->granules);
	pthread_mutex_destroy(&memory->lock);
	munmap(memory->window, memory->granules * memory->granule);
	close(memory->fd);
	free(memory->reservations);
	free(memory->free_map);
}
