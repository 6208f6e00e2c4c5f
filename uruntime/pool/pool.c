// SPDX-License-Identifier: MIT
/* The public functions: choice of the provider, and dispatch to it. */
#include "pool/pool_ops.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* In order of preference. */
static const struct ctn_pool_provider *const providers[] = {
	&ctn_pool_provider_kmod,  &ctn_pool_provider_hugetlb, &ctn_pool_provider_thp,
	&ctn_pool_provider_plain, &ctn_pool_provider_lossy,
};

static const struct ctn_pool_provider *find_provider(const char *name)
{
	for (size_t i = 0; i < CTN_ARRAY_LEN(providers); i++) {
		if (strcmp(providers[i]->name, name) == 0)
			return providers[i];
	}
	return NULL;
}

const char *ctn_pool_provider_name(uint32_t i)
{
	for (size_t k = 0; k < CTN_ARRAY_LEN(providers); k++) {
		if (providers[k]->automatic && i-- == 0)
			return providers[k]->name;
	}
	return NULL;
}

static void add_reason(char *why, size_t len, const char *name, const char *reason)
{
	size_t n = strlen(why);

	snprintf(why + n, len - n, "%s%s: %.160s", n ? "; " : "", name, reason);
}

static int open_named(const struct ctn_pool_config *cfg, struct ctn_pool **pool,
		      struct ctn_err *err)
{
	const struct ctn_pool_provider *p = find_provider(cfg->provider);
	char why[200] = "";
	int rc;

	if (!p)
		return ctn_err_set(err, -ENOENT, "pool: there is no provider \"%s\"",
				   cfg->provider);
	/* That of a lossy one says how often it loses a frame. */
	if (cfg->name && p != &ctn_pool_provider_kmod && p != &ctn_pool_provider_lossy)
		return ctn_err_set(err, -EINVAL,
				   "pool: provider %s: its pools have no names, found \"%s\"",
				   p->name, cfg->name);
	rc = p->available(why, sizeof(why));
	if (rc)
		return ctn_err_set(err, rc, "pool: provider %s: %s", p->name, why);
	rc = p->open(cfg, pool, err);
	if (rc)
		return rc;
	(*pool)->provider = p;
	(*pool)->why[0] = '\0';
	if (p != providers[0])
		add_reason((*pool)->why, sizeof((*pool)->why), p->name, "was asked for");
	return 0;
}

static int open_best(const struct ctn_pool_config *cfg, struct ctn_pool **pool, struct ctn_err *err)
{
	char reasons[512] = "", why[200] = "";
	int rc = -ENOTSUP;

	for (size_t i = 0; i < CTN_ARRAY_LEN(providers); i++) {
		const struct ctn_pool_provider *p = providers[i];
		struct ctn_err e = {0};

		if (!p->automatic)
			continue;
		rc = p->available(why, sizeof(why));
		if (rc) {
			add_reason(reasons, sizeof(reasons), p->name, why);
			continue;
		}
		rc = p->open(cfg, pool, &e);
		if (rc == 0) {
			(*pool)->provider = p;
			memcpy((*pool)->why, reasons, sizeof(reasons));
			return 0;
		}
		add_reason(reasons, sizeof(reasons), p->name, e.msg);
	}
	return ctn_err_set(err, rc, "pool: no provider works: %s", reasons);
}

int ctn_pool_open(const struct ctn_pool_config *cfg, struct ctn_pool **pool, struct ctn_err *err)
{
	uint64_t segment = cfg->segment_bytes;

	*pool = NULL;
	if (cfg->bytes < CTN_EXTENT_ALIGN)
		return ctn_err_set(
			err, -EINVAL, "pool: size %llu is less than one extent of %llu bytes",
			(unsigned long long)cfg->bytes, (unsigned long long)CTN_EXTENT_ALIGN);
	if (segment % CTN_EXTENT_ALIGN)
		return ctn_err_set(
			err, -EINVAL, "pool: segments of %llu bytes are no multiple of %llu bytes",
			(unsigned long long)segment, (unsigned long long)CTN_EXTENT_ALIGN);
	return cfg->provider ? open_named(cfg, pool, err) : open_best(cfg, pool, err);
}

void ctn_pool_close(struct ctn_pool *pool)
{
	if (pool)
		pool->ops->close(pool);
}

int ctn_pool_alloc(struct ctn_pool *pool, const struct ctn_frame_key *key, uint64_t bytes, int node,
		   struct ctn_frame_ref *ref)
{
	return pool->ops->alloc(pool, key, bytes, node, ref);
}

int ctn_pool_commit(struct ctn_pool *pool, const struct ctn_extent *extents, uint32_t count)
{
	return pool->ops->commit(pool, extents, count);
}

int ctn_pool_seal(struct ctn_pool *pool, struct ctn_frame_ref ref, const struct ctn_digest *digest,
		  const uint8_t owner[CTN_OWNER_DATA])
{
	return pool->ops->seal(pool, ref, digest, owner);
}

int ctn_pool_abort(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	return pool->ops->abort(pool, ref);
}

int ctn_pool_lookup(struct ctn_pool *pool, const struct ctn_frame_key *key,
		    struct ctn_frame_info *info)
{
	return pool->ops->lookup(pool, key, info);
}

int ctn_pool_lookup_content(struct ctn_pool *pool, const struct ctn_digest *digest,
			    const uint8_t owner[CTN_OWNER_DATA], struct ctn_frame_info *info)
{
	return pool->ops->lookup_content(pool, digest, owner, info);
}

size_t ctn_pool_list(struct ctn_pool *pool, struct ctn_frame_info *infos, size_t max)
{
	return pool->ops->list(pool, infos, max);
}

int ctn_pool_lease(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	return pool->ops->lease(pool, ref);
}

void ctn_pool_release(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	pool->ops->release(pool, ref);
}

int ctn_pool_evict(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	return pool->ops->evict(pool, ref);
}

int ctn_pool_extents(struct ctn_pool *pool, struct ctn_frame_ref ref,
		     const struct ctn_extent **extents, uint32_t *count)
{
	return pool->ops->extents(pool, ref, extents, count);
}

int ctn_pool_event_fd(struct ctn_pool *pool)
{
	return pool->ops->event_fd ? pool->ops->event_fd(pool) : -1;
}

bool ctn_pool_next_loss(struct ctn_pool *pool, struct ctn_frame_ref *ref)
{
	return pool->ops->next_loss && pool->ops->next_loss(pool, ref);
}

int ctn_pool_export(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	return pool->ops->export_frame ? pool->ops->export_frame(pool, ref) : -ENOTSUP;
}

uint32_t ctn_pool_segment_count(struct ctn_pool *pool)
{
	return pool->ops->segment_count(pool);
}

void ctn_pool_segment(struct ctn_pool *pool, uint32_t i, struct ctn_segment *segment)
{
	pool->ops->segment(pool, i, segment);
}

void ctn_pool_set_hot(struct ctn_pool *pool, uint32_t segment, bool hot)
{
	pool->ops->set_hot(pool, segment, hot);
}

int ctn_pool_pin_segment(struct ctn_pool *pool, uint32_t segment, ctn_pool_pin_fn *pin, void *arg)
{
	return pool->ops->pin_segment(pool, segment, pin, arg);
}

void ctn_pool_get_stats(struct ctn_pool *pool, bool with_proc, struct ctn_pool_stats *stats)
{
	memset(stats, 0, sizeof(*stats));
	pool->ops->get_stats(pool, with_proc, stats);
	stats->provider = pool->provider->name;
	memcpy(stats->why, pool->why, sizeof(stats->why));
}
