// SPDX-License-Identifier: MIT
/* The digest of a part: see stage.h. */
#include "stage/private.h"

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

const uint8_t *ctn_locate(const struct ctn_extent *extents, uint32_t count, uint64_t at,
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

static void put(XXH128_hash_t hash, struct ctn_digest *digest)
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, hash);
	memcpy(digest->bytes, canonical.digest, sizeof(digest->bytes));
}

void ctn_digest_chunk(const struct ctn_extent *extents, uint32_t count, uint64_t at, uint64_t bytes,
		      struct ctn_digest *digest)
{
	uint64_t left;
	const uint8_t *p = ctn_locate(extents, count, at, &left);
	XXH3_state_t state;

	if (left >= bytes) {
		put(XXH3_128bits(p, bytes), digest);
		return;
	}
	XXH3_128bits_reset(&state);
	while (bytes && p) {
		uint64_t n = CTN_MIN(bytes, left);

		XXH3_128bits_update(&state, p, n);
		at += n;
		bytes -= n;
		if (bytes)
			p = ctn_locate(extents, count, at, &left);
	}
	put(XXH3_128bits_digest(&state), digest);
}

void ctn_digest_root(const struct ctn_digest *chunks, size_t count, struct ctn_digest *digest)
{
	put(XXH3_128bits(chunks, count * sizeof(*chunks)), digest);
}

void ctn_part_digest(const struct ctn_checkpoint *ckpt, const struct ctn_part *part,
		     const struct ctn_extent *extents, uint32_t extent_count,
		     struct ctn_digest *digest)
{
	XXH3_state_t root;

	XXH3_128bits_reset(&root);
	for (uint32_t i = 0; i < part->tensor_count; i++) {
		const struct ctn_part_tensor *t = &part->tensors[i];
		uint64_t bytes = ckpt->tensors[t->tensor].bytes;

		for (uint64_t at = 0; at < bytes; at += CTN_CHUNK_BYTES) {
			struct ctn_digest chunk;

			ctn_digest_chunk(extents, extent_count, t->frame_offset + at,
					 CTN_MIN(bytes - at, CTN_CHUNK_BYTES), &chunk);
			XXH3_128bits_update(&root, chunk.bytes, sizeof(chunk.bytes));
		}
	}
	put(XXH3_128bits_digest(&root), digest);
}
