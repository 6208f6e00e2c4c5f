// SPDX-License-Identifier: MIT
/*
 * The test provider "lossy": a plain pool that gives up unleased CLEAN frames at random, as a
 * kernel that reclaims memory would, and reports them. It wraps the plain pool and forwards
 * to it, so that what is tested above it is the real frame table.
 *
 * Locking: `lock` guards the dice and the list of losses; it is never held around a call of
 * the inner pool.
 */
#include "pool/pool_ops.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

struct loss {
	struct ctn_frame_ref ref;
	struct loss *prev, *next;
};

struct lossy {
	struct ctn_pool base;
	struct ctn_pool *inner;
	int event_fd; /* readable while `losses` is not empty */

	pthread_mutex_t lock;
	uint64_t rng;
	uint32_t one_in;
	struct loss *losses;
};

static struct lossy *lossy_of(struct ctn_pool *pool)
{
	return (struct lossy *)pool;
}

/* splitmix64 */
static uint64_t next_random(struct lossy *l)
{
	uint64_t z = l->rng += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* Queues the loss; the descriptor becomes readable with the first one. */
static void report(struct lossy *l, struct loss *loss)
{
	uint64_t one = 1;

	pthread_mutex_lock(&l->lock);
	DL_APPEND(l->losses, loss);
	if (write(l->event_fd, &one, sizeof(one)) != sizeof(one))
		ctn_warn("pool: a loss event cannot be announced: %s", strerror(errno));
	pthread_mutex_unlock(&l->lock);
}

/* Evicts one unleased CLEAN frame, beginning the search at a random one. */
static void lose_one(struct lossy *l, uint64_t random)
{
	struct ctn_frame_info *infos = NULL;
	struct loss *loss = calloc(1, sizeof(*loss));
	size_t n = ctn_pool_list(l->inner, NULL, 0);
	bool lost = false;

	if (n)
		infos = calloc(n, sizeof(*infos));
	/* Without memory nothing is lost: it is a test. */
	if (!loss || !infos)
		goto out;
	n = CTN_MIN(n, ctn_pool_list(l->inner, infos, n));
	for (size_t i = 0; i < n && !lost; i++) {
		const struct ctn_frame_info *info = &infos[(random + i) % n];

		if (info->state != CTN_FRAME_CLEAN || info->leases)
			continue;
		loss->ref = info->ref;
		lost = ctn_pool_evict(l->inner, info->ref) == 0;
	}
	if (lost) {
		report(l, loss);
		loss = NULL;
	}
out:
	free(infos);
	free(loss);
}

static void roll(struct lossy *l)
{
	uint64_t random = 0;
	bool lose;

	pthread_mutex_lock(&l->lock);
	lose = l->one_in && next_random(l) % l->one_in == 0;
	if (lose)
		random = next_random(l) >> 1;
	pthread_mutex_unlock(&l->lock);
	if (lose)
		lose_one(l, random);
}

void ctn_pool_lossy_set(struct ctn_pool *pool, uint64_t seed, uint32_t one_in)
{
	struct lossy *l = lossy_of(pool);

	CTN_ASSERT(pool->provider == &ctn_pool_provider_lossy);
	pthread_mutex_lock(&l->lock);
	l->rng = seed;
	l->one_in = one_in;
	pthread_mutex_unlock(&l->lock);
}

static int lossy_lookup(struct ctn_pool *pool, const struct ctn_frame_key *key,
			struct ctn_frame_info *info)
{
	roll(lossy_of(pool));
	return ctn_pool_lookup(lossy_of(pool)->inner, key, info);
}

static int lossy_lookup_content(struct ctn_pool *pool, const struct ctn_digest *digest,
				const uint8_t owner[CTN_OWNER_DATA], struct ctn_frame_info *info)
{
	roll(lossy_of(pool));
	return ctn_pool_lookup_content(lossy_of(pool)->inner, digest, owner, info);
}

static int lossy_lease(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	roll(lossy_of(pool));
	return ctn_pool_lease(lossy_of(pool)->inner, ref);
}

static int lossy_event_fd(struct ctn_pool *pool)
{
	return lossy_of(pool)->event_fd;
}

static bool lossy_next_loss(struct ctn_pool *pool, struct ctn_frame_ref *ref)
{
	struct lossy *l = lossy_of(pool);
	struct loss *loss;
	uint64_t count;

	pthread_mutex_lock(&l->lock);
	loss = l->losses;
	if (loss)
		DL_DELETE(l->losses, loss);
	if (loss && !l->losses && read(l->event_fd, &count, sizeof(count)) < 0)
		ctn_warn("pool: a loss event cannot be taken: %s", strerror(errno));
	pthread_mutex_unlock(&l->lock);
	if (!loss)
		return false;
	*ref = loss->ref;
	free(loss);
	return true;
}

/* ---- what is only passed on ------------------------------------------------------------ */

static int lossy_alloc(struct ctn_pool *pool, const struct ctn_frame_key *key, uint64_t bytes,
		       int node, struct ctn_frame_ref *ref)
{
	return ctn_pool_alloc(lossy_of(pool)->inner, key, bytes, node, ref);
}

static int lossy_commit(struct ctn_pool *pool, const struct ctn_extent *extents, uint32_t count)
{
	return ctn_pool_commit(lossy_of(pool)->inner, extents, count);
}

static int lossy_seal(struct ctn_pool *pool, struct ctn_frame_ref ref,
		      const struct ctn_digest *digest, const uint8_t owner[CTN_OWNER_DATA])
{
	return ctn_pool_seal(lossy_of(pool)->inner, ref, digest, owner);
}

static int lossy_abort(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	return ctn_pool_abort(lossy_of(pool)->inner, ref);
}

static size_t lossy_list(struct ctn_pool *pool, struct ctn_frame_info *infos, size_t max)
{
	return ctn_pool_list(lossy_of(pool)->inner, infos, max);
}

static void lossy_release(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	ctn_pool_release(lossy_of(pool)->inner, ref);
}

static int lossy_evict(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	return ctn_pool_evict(lossy_of(pool)->inner, ref);
}

static int lossy_extents(struct ctn_pool *pool, struct ctn_frame_ref ref,
			 const struct ctn_extent **extents, uint32_t *count)
{
	return ctn_pool_extents(lossy_of(pool)->inner, ref, extents, count);
}

static uint32_t lossy_segment_count(struct ctn_pool *pool)
{
	return ctn_pool_segment_count(lossy_of(pool)->inner);
}

static void lossy_segment(struct ctn_pool *pool, uint32_t i, struct ctn_segment *segment)
{
	ctn_pool_segment(lossy_of(pool)->inner, i, segment);
}

static void lossy_set_hot(struct ctn_pool *pool, uint32_t i, bool hot)
{
	ctn_pool_set_hot(lossy_of(pool)->inner, i, hot);
}

static int lossy_pin_segment(struct ctn_pool *pool, uint32_t i, ctn_pool_pin_fn *pin, void *arg)
{
	return ctn_pool_pin_segment(lossy_of(pool)->inner, i, pin, arg);
}

static void lossy_get_stats(struct ctn_pool *pool, bool with_proc, struct ctn_pool_stats *stats)
{
	ctn_pool_get_stats(lossy_of(pool)->inner, with_proc, stats);
}

static void lossy_close(struct ctn_pool *pool)
{
	struct lossy *l = lossy_of(pool);
	struct loss *loss, *next;

	ctn_pool_close(l->inner);
	DL_FOREACH_SAFE (l->losses, loss, next)
		free(loss);
	close(l->event_fd);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

static const struct ctn_pool_ops lossy_ops = {
	.close = lossy_close,
	.alloc = lossy_alloc,
	.commit = lossy_commit,
	.seal = lossy_seal,
	.abort = lossy_abort,
	.lookup = lossy_lookup,
	.lookup_content = lossy_lookup_content,
	.list = lossy_list,
	.lease = lossy_lease,
	.release = lossy_release,
	.evict = lossy_evict,
	.extents = lossy_extents,
	.event_fd = lossy_event_fd,
	.next_loss = lossy_next_loss,
	.segment_count = lossy_segment_count,
	.segment = lossy_segment,
	.set_hot = lossy_set_hot,
	.pin_segment = lossy_pin_segment,
	.get_stats = lossy_get_stats,
};

static int lossy_available(char *why, size_t len)
{
	return ctn_pool_provider_plain.available(why, len);
}

static int lossy_open(const struct ctn_pool_config *cfg, struct ctn_pool **pool,
		      struct ctn_err *err)
{
	struct ctn_pool_config inner = *cfg;
	struct lossy *l;
	uint64_t one_in = 0;
	int rc;

	if (cfg->name) {
		rc = ctn_parse_u64("pool: lossy", cfg->name, 0, UINT32_MAX, &one_in, err);
		if (rc)
			return rc;
	}
	l = calloc(1, sizeof(*l));
	if (!l)
		return ctn_err_set(err, -ENOMEM, "pool: out of memory");
	l->base.ops = &lossy_ops;
	l->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->event_fd < 0) {
		rc = ctn_err_set(err, -errno, "pool: eventfd: %s", strerror(errno));
		goto free_lossy;
	}
	l->one_in = (uint32_t)one_in;
	inner.name = NULL;
	inner.provider = ctn_pool_provider_plain.name;
	rc = ctn_pool_open(&inner, &l->inner, err);
	if (rc)
		goto close_fd;
	pthread_mutex_init(&l->lock, NULL);
	*pool = &l->base;
	return 0;

close_fd:
	close(l->event_fd);
free_lossy:
	free(l);
	return rc;
}

/* Never chosen by itself. */
const struct ctn_pool_provider ctn_pool_provider_lossy = {"lossy", false, lossy_available,
							  lossy_open};
