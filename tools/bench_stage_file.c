// SPDX-License-Identifier: MIT
/* A file as a checkpoint of one tensor in one part, its digest, and the counters of its disk. */
#include "bench_stage.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <xxhash.h>

#define CHUNK  CTN_MIB /* of a digest */
#define SECTOR 512u    /* of the block layer's counters, whatever the disk's is */

/* The bytes of the file alone, by plain reads: nothing of stage has a hand in it. */
static int digest_file(struct ctn_stage_file *f, struct ctn_err *err)
{
	XXH3_state_t *root = XXH3_createState();
	uint8_t *chunk = malloc(CHUNK);
	XXH128_canonical_t c;
	int rc = 0;

	if (!root || !chunk) {
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
		goto out;
	}
	XXH3_128bits_reset(root);
	for (uint64_t at = 0; at < f->tensor.bytes; at += CHUNK) {
		size_t n = (size_t)CTN_MIN(f->tensor.bytes - at, CHUNK);

		rc = ctn_pread_all(f->fd, chunk, n, at);
		if (rc) {
			ctn_err_set(err, rc, "%s: %s", f->file.path, strerror(-rc));
			goto out;
		}
		XXH128_canonicalFromHash(&c, XXH3_128bits(chunk, n));
		XXH3_128bits_update(root, c.digest, sizeof(c.digest));
	}
	XXH128_canonicalFromHash(&c, XXH3_128bits_digest(root));
	memcpy(f->digest.bytes, c.digest, sizeof(f->digest.bytes));
out:
	free(chunk);
	XXH3_freeState(root);
	return rc;
}

/* Where nothing was ever written, zeros come from nowhere. A file system that does not know says
 * that the first hole is at the end. */
static int check_holes(const struct ctn_stage_file *f, struct ctn_err *err)
{
	off_t hole;

	/* Pages that are not on the disk yet would count as data. */
	if (fsync(f->fd) != 0 && errno != EROFS && errno != EINVAL)
		return ctn_err_set(err, -errno, "%s: %s", f->file.path, strerror(errno));
	hole = lseek(f->fd, 0, SEEK_HOLE);
	if (hole < 0 || (uint64_t)hole >= f->file.bytes)
		return 0;
	return ctn_err_set(err, -ENODATA,
			   "%s: expected a file without holes, found one at byte %lld: it would be "
			   "read without the disk",
			   f->file.path, (long long)hole);
}

static void lay_out(struct ctn_stage_file *f, uint64_t bytes)
{
	uint64_t frame = ctn_align_up(bytes, CTN_IO_ALIGN);

	f->tensor = (struct ctn_tensor){.name = "file", .bytes = bytes};
	f->run = (struct ctn_run){.bytes = frame};
	f->part = (struct ctn_part){.frame_bytes = frame,
				    .tensor_bytes = bytes,
				    .runs = &f->run,
				    .run_count = 1,
				    .tensors = &f->part_tensor,
				    .tensor_count = 1};
	f->ckpt = (struct ctn_checkpoint){.files = &f->file,
					  .file_count = 1,
					  .tensors = &f->tensor,
					  .tensor_count = 1,
					  .bytes = bytes};
}

int ctn_stage_file_open(const char *path, uint64_t limit, struct ctn_stage_file *f,
			struct ctn_err *err)
{
	struct stat st;
	int rc;

	*f = (struct ctn_stage_file){0};
	f->fd = ctn_open_regular(path, NULL, err);
	if (f->fd < 0)
		return f->fd;
	f->file.path = realpath(path, NULL);
	if (!f->file.path || fstat(f->fd, &st) != 0) {
		rc = ctn_err_set(err, -errno, "%s: %s", path, strerror(errno));
		goto fail;
	}
	if (st.st_size == 0) {
		rc = ctn_err_set(err, -EINVAL, "%s: expected a file with bytes in it", path);
		goto fail;
	}
	f->file.bytes = (uint64_t)st.st_size;
	f->file.device = (uint64_t)st.st_dev;
	f->file.inode = (uint64_t)st.st_ino;
	f->file.mtime_ns =
		(int64_t)st.st_mtim.tv_sec * (int64_t)CTN_NSEC_PER_SEC + st.st_mtim.tv_nsec;
	lay_out(f, CTN_MIN(f->file.bytes, limit));
	rc = check_holes(f, err);
	if (rc == 0)
		rc = digest_file(f, err);
	if (rc == 0)
		return 0;
fail:
	ctn_stage_file_close(f);
	return rc;
}

void ctn_stage_file_close(struct ctn_stage_file *f)
{
	free(f->file.path);
	close(f->fd);
	*f = (struct ctn_stage_file){.fd = -1};
}

/* Documentation/block/stat.rst: read I/Os, merges, sectors, ticks. */
void ctn_disk_counts(const struct ctn_stage_file *f, struct ctn_disk_counts *counts)
{
	uint64_t merged, sectors;
	char path[64];
	FILE *file;

	*counts = (struct ctn_disk_counts){0};
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/stat", major(f->file.device),
		 minor(f->file.device));
	file = fopen(path, "re");
	if (!file)
		return;
	counts->known = fscanf(file, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &counts->reads,
			       &merged, &sectors, &counts->read_ms) == 4;
	if (counts->known)
		counts->bytes = sectors * SECTOR;
	fclose(file);
}

struct ctn_disk_counts ctn_disk_counts_between(const struct ctn_disk_counts *before,
					       const struct ctn_disk_counts *after)
{
	return (struct ctn_disk_counts){.known = before->known && after->known,
					.reads = after->reads - before->reads,
					.bytes = after->bytes - before->bytes,
					.read_ms = after->read_ms - before->read_ms};
}
