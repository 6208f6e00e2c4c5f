// SPDX-License-Identifier: MIT
/*
 * The digest of a rank is that of the bytes that its rectangles bring, in the order of the
 * plan: on one side as the device holds them, on the other as the files do. Neither side asks
 * the pool or the pager.
 */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define CHUNK CTN_MIB

/* ---- devices ---------------------------------------------------------------------------- */

/* Calls `fn` for every piece of what is resident, from the rank's layer `first` on. */
typedef int piece_fn(struct ctn_stream *stream, const struct ctn_piece *piece, void *va, void *arg);

static int each_piece(struct ctn_bench_rig *rig, uint32_t rank, uint32_t first, piece_fn *fn,
		      void *arg)
{
	const struct ctn_bench_side *side = rig->resident;
	const struct ctn_rank_plan *plan = &side->plan->ranks[rank];
	void *const *const *pieces = ctn_pager_pieces(rig->pager, side->model, rank);

	for (uint32_t i = first; i < plan->layer_count; i++) {
		for (uint32_t k = 0; k < plan->shards[i].piece_count; k++) {
			int rc = fn(rig->streams[rank], &plan->shards[i].pieces[k], pieces[i][k],
				    arg);

			if (rc)
				return rc;
		}
	}
	return ctn_stream_sync(rig->streams[rank]);
}

static int poison_piece(struct ctn_stream *stream, const struct ctn_piece *piece, void *va,
			void *arg)
{
	int rc = 0;

	for (uint64_t at = 0; at < piece->bytes && rc == 0; at += CHUNK)
		rc = ctn_stream_upload(stream, (uint8_t *)va + at, arg,
				       CTN_MIN(piece->bytes - at, (uint64_t)CHUNK));
	return rc;
}

int ctn_bench_poison_tail(struct ctn_bench_rig *rig, const uint32_t *keep, struct ctn_err *err)
{
	uint8_t *poison = malloc(CHUNK);
	int rc = poison ? 0 : -ENOMEM;

	if (poison)
		memset(poison, CTN_BENCH_POISON, CHUNK);
	for (uint32_t r = 0; r < rig->resident->plan->rank_count && rc == 0; r++)
		rc = each_piece(rig, r, keep[r], poison_piece, poison);
	free(poison);
	return rc ? ctn_err_set(err, rc, "cannot overwrite the devices' bytes: %s", strerror(-rc))
		  : 0;
}

int ctn_bench_poison(struct ctn_bench_rig *rig, struct ctn_err *err)
{
	static const uint32_t nothing[CTN_MAX_DEVICES];

	return ctn_bench_poison_tail(rig, nothing, err);
}

struct device_reader {
	XXH3_state_t *hash;
	uint8_t *buf;
	uint64_t bytes;
};

static int digest_piece(struct ctn_stream *stream, const struct ctn_piece *piece, void *va,
			void *arg)
{
	struct device_reader *reader = arg;
	int rc;

	if (reader->bytes < piece->bytes) {
		uint8_t *buf = realloc(reader->buf, piece->bytes);

		if (!buf)
			return -ENOMEM;
		reader->buf = buf;
		reader->bytes = piece->bytes;
	}
	rc = ctn_stream_download(stream, reader->buf, va, piece->bytes);
	if (rc == 0)
		rc = ctn_stream_sync(stream);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < piece->rect_count; i++) {
		const struct ctn_rect *rect = &piece->rects[i];

		for (uint64_t row = 0; row < rect->height; row++)
			XXH3_128bits_update(reader->hash,
					    reader->buf + rect->dst_offset + row * rect->dst_pitch,
					    rect->width);
	}
	return 0;
}

static void finish(XXH3_state_t *hash, struct ctn_digest *digest)
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
	memcpy(digest->bytes, canonical.digest, sizeof(digest->bytes));
}

int ctn_bench_verify(struct ctn_bench_rig *rig, struct ctn_err *err)
{
	const struct ctn_bench_side *side = rig->resident;
	struct device_reader reader = {.hash = XXH3_createState()};
	int rc = reader.hash ? 0 : -ENOMEM;

	for (uint32_t r = 0; r < side->plan->rank_count && rc == 0; r++) {
		struct ctn_digest found;

		XXH3_128bits_reset(reader.hash);
		rc = each_piece(rig, r, 0, digest_piece, &reader);
		if (rc)
			break;
		finish(reader.hash, &found);
		if (memcmp(&found, &side->digests[r], sizeof(found)) == 0)
			continue;
		rc = ctn_err_set(err, -EBADMSG,
				 "%s: %s does not hold the bytes of the files (rank %u of tp %u, "
				 "pp %u)",
				 side->dir, ctn_device_props(rig->devices[r])->id, r,
				 side->plan->tp, side->plan->pp);
	}
	if (rc && rc != -EBADMSG)
		ctn_err_set(err, rc, "%s: cannot read the devices back: %s", side->dir,
			    strerror(-rc));
	XXH3_freeState(reader.hash);
	free(reader.buf);
	return rc;
}

/* ---- files ------------------------------------------------------------------------------ */

struct file_reader {
	const struct ctn_plan *plan;
	int *fds; /* of the checkpoint's files */
	XXH3_state_t *hash;
	uint8_t *buf; /* CHUNK */
};

/* The run that brings byte `offset` of the frame. */
static const struct ctn_run *find_run(const struct ctn_part *part, uint64_t offset)
{
	for (uint32_t i = 0; i < part->run_count; i++) {
		const struct ctn_run *run = &part->runs[i];

		if (offset >= run->frame_offset && offset - run->frame_offset < run->bytes)
			return run;
	}
	return NULL;
}

static int digest_row(const struct file_reader *reader, const struct ctn_part *part,
		      uint64_t offset, uint64_t width)
{
	while (width) {
		const struct ctn_run *run = find_run(part, offset);
		uint64_t within, n;
		int rc;

		if (!run)
			return -ENODATA;
		within = offset - run->frame_offset;
		n = CTN_MIN(CTN_MIN(width, run->bytes - within), (uint64_t)CHUNK);
		rc = ctn_pread_all(reader->fds[run->file], reader->buf, n,
				   run->file_offset + within);
		if (rc)
			return rc;
		XXH3_128bits_update(reader->hash, reader->buf, n);
		offset += n;
		width -= n;
	}
	return 0;
}

static int digest_rects(const struct file_reader *reader, const struct ctn_piece *piece)
{
	for (uint32_t i = 0; i < piece->rect_count; i++) {
		const struct ctn_rect *rect = &piece->rects[i];
		const struct ctn_part *part = &reader->plan->parts[rect->part];

		for (uint64_t row = 0; row < rect->height; row++) {
			int rc = digest_row(reader, part, rect->src_offset + row * rect->src_pitch,
					    rect->width);

			if (rc)
				return rc;
		}
	}
	return 0;
}

static int digest_rank(const struct file_reader *reader, const struct ctn_rank_plan *rank)
{
	int rc = 0;

	for (uint32_t i = 0; i < rank->layer_count && rc == 0; i++) {
		for (uint32_t k = 0; k < rank->shards[i].piece_count && rc == 0; k++)
			rc = digest_rects(reader, &rank->shards[i].pieces[k]);
	}
	return rc;
}

int ctn_bench_file_byte(const struct ctn_bench_side *side, uint32_t part, uint64_t offset,
			uint8_t *byte)
{
	const struct ctn_run *run = find_run(&side->plan->parts[part], offset);
	int fd, rc;

	if (!run)
		return -ENODATA;
	fd = ctn_open_regular(side->plan->ckpt->files[run->file].path, NULL, NULL);
	if (fd < 0)
		return fd;
	rc = ctn_pread_all(fd, byte, 1, run->file_offset + (offset - run->frame_offset));
	close(fd);
	return rc;
}

int ctn_bench_digest_files(const struct ctn_bench_side *side, struct ctn_err *err)
{
	const struct ctn_checkpoint *ckpt = side->plan->ckpt;
	struct file_reader reader = {.plan = side->plan, .hash = XXH3_createState()};
	uint32_t opened = 0;
	int rc = 0;

	reader.buf = malloc(CHUNK);
	reader.fds = calloc(CTN_MAX(ckpt->file_count, 1u), sizeof(*reader.fds));
	if (!reader.hash || !reader.buf || !reader.fds) {
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
		goto out;
	}
	for (; opened < ckpt->file_count; opened++) {
		reader.fds[opened] = ctn_open_regular(ckpt->files[opened].path, NULL, err);
		if (reader.fds[opened] < 0) {
			rc = reader.fds[opened];
			goto out;
		}
	}
	for (uint32_t r = 0; r < side->plan->rank_count && rc == 0; r++) {
		XXH3_128bits_reset(reader.hash);
		rc = digest_rank(&reader, &side->plan->ranks[r]);
		finish(reader.hash, &side->digests[r]);
	}
	if (rc)
		ctn_err_set(err, rc, "%s: cannot read its files: %s", side->dir, strerror(-rc));
out:
	while (opened > 0)
		close(reader.fds[--opened]);
	XXH3_freeState(reader.hash);
	free(reader.fds);
	free(reader.buf);
	return rc;
}
