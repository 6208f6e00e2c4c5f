// SPDX-License-Identifier: MIT
/* Test builds: what a piece holds on its device is read back and compared with its frames. */
#include "pager/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK (64 * 1024)

/* True if `bytes` linear bytes of the frame from `offset` are those at `data`. */
static bool frame_equals(const struct pager_part *part, uint64_t offset, const uint8_t *data,
			 uint64_t bytes)
{
	for (uint32_t i = 0; i < part->extent_count && bytes; i++) {
		const struct ctn_extent *e = &part->extents[i];
		uint64_t n;

		if (offset >= e->bytes) {
			offset -= e->bytes;
			continue;
		}
		n = CTN_MIN(bytes, e->bytes - offset);
		if (memcmp(e->addr + offset, data, n) != 0)
			return false;
		data += n;
		bytes -= n;
		offset = 0;
	}
	return bytes == 0;
}

static int verify_row(struct ctn_stream *stream, const struct pager_part *part, uint64_t src,
		      const uint8_t *dst, uint64_t width, uint8_t *buf)
{
	while (width) {
		uint64_t n = CTN_MIN(width, (uint64_t)CHUNK);
		int rc = ctn_stream_download(stream, buf, dst, n);

		if (rc == 0)
			rc = ctn_stream_sync(stream);
		if (rc)
			return rc;
		if (!frame_equals(part, src, buf, n))
			return -EIO;
		src += n;
		dst += n;
		width -= n;
	}
	return 0;
}

int pager_verify(struct pager_piece *pc, struct ctn_err *err)
{
	struct pager_model *m = pc->shard->rank->model;
	struct pager_device *dev = &m->pager->devices[pc->frame->device];
	uint8_t *buf = malloc(CHUNK);
	int rc = buf ? 0 : -ENOMEM;

	for (uint32_t k = 0; k < pc->plan->rect_count && rc == 0; k++) {
		const struct ctn_rect *rect = &pc->plan->rects[k];
		const uint8_t *dst = (uint8_t *)pc->frame->va + rect->dst_offset;

		for (uint64_t row = 0; row < rect->height && rc == 0; row++)
			rc = verify_row(dev->verify, &m->parts[rect->part],
					rect->src_offset + row * rect->src_pitch,
					dst + row * rect->dst_pitch, rect->width, buf);
	}
	free(buf);
	if (rc)
		return ctn_err_set(
			err, rc, "layer %u on %s does not hold the bytes of its frames: %s",
			pc->shard->plan->layer, ctn_device_props(dev->dev)->id, strerror(-rc));
	return 0;
}
