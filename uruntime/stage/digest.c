// SPDX-License-Identifier: MIT
/* The digest of a part: see stage.h. */
#include "stage/private.h"

#include <errno.h>
#include <string.h>

/* The states live on the stack, so that hashing cannot fail: that needs their definition. */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
/* The functions that look for AVX2 and AVX-512 when they run. */
#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif
#endif

#define CHUNK CTN_MIB

/* Where linear offset `at` lies: the address, and how many bytes follow it there. */
static const uint8_t *locate(const struct ctn_extent *extents, uint32_t count, uint64_t at,
			     uint64_t *left)
{
	for (uint32_t i = 0; i < count; i++) {
		if (at < extents[i].bytes) {
			*left = extents[i].bytes - at;
			return extents[i].addr + at;
		}
		at -= extents[i].bytes;
	}
	CTN_ASSERT(!"a tensor reaches past its frame");
	*left = 0;
	return NULL;
}

static XXH128_hash_t hash_chunk(const struct ctn_extent *extents, uint32_t count, uint64_t at,
				uint64_t bytes)
{
	uint64_t left;
	const uint8_t *p = locate(extents, count, at, &left);
	XXH3_state_t state;

	if (left >= bytes)
		return XXH3_128bits(p, bytes);
	XXH3_128bits_reset(&state);
	while (bytes && p) {
		uint64_t n = CTN_MIN(bytes, left);

		XXH3_128bits_update(&state, p, n);
		at += n;
		bytes -= n;
		if (bytes)
			p = locate(extents, count, at, &left);
	}
	return XXH3_128bits_digest(&state);
}

int ctn_digest_part(const struct ctn_checkpoint *ckpt, const struct ctn_part *part,
		    const struct ctn_extent *extents, uint32_t extent_count,
		    const atomic_bool *stop, struct ctn_digest *digest)
{
	XXH128_canonical_t canonical;
	XXH3_state_t root;

	XXH3_128bits_reset(&root);
	for (uint32_t i = 0; i < part->tensor_count; i++) {
		const struct ctn_part_tensor *t = &part->tensors[i];
		uint64_t bytes = ckpt->tensors[t->tensor].bytes;

		for (uint64_t at = 0; at < bytes; at += CHUNK) {
			if (stop && atomic_load_explicit(stop, memory_order_acquire))
				return -ECANCELED;
			XXH128_canonicalFromHash(
				&canonical, hash_chunk(extents, extent_count, t->frame_offset + at,
						       CTN_MIN(bytes - at, CHUNK)));
			XXH3_128bits_update(&root, canonical.digest, sizeof(canonical.digest));
		}
	}
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&root));
	memcpy(digest->bytes, canonical.digest, sizeof(digest->bytes));
	return 0;
}

void ctn_part_digest(const struct ctn_checkpoint *ckpt, const struct ctn_part *part,
		     const struct ctn_extent *extents, uint32_t extent_count,
		     struct ctn_digest *digest)
{
	ctn_digest_part(ckpt, part, extents, extent_count, NULL, digest);
}

void ctn_tensor_digest(const struct ctn_checkpoint *ckpt, const struct ctn_part *part, uint32_t i,
		       const struct ctn_extent *extents, uint32_t extent_count,
		       struct ctn_digest *digest)
{
	const struct ctn_part alone = {.tensors = &part->tensors[i], .tensor_count = 1};

	ctn_digest_part(ckpt, &alone, extents, extent_count, NULL, digest);
}
