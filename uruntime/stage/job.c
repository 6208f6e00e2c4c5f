// SPDX-License-Identifier: MIT
/* A job: its runs cut into reads, its files opened and identified, its first failure. */
#include "stage/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* O_DIRECT wants what the plan and the pool promise; a broken promise is an error here, not
 * in the middle of the reads. */
static int check_layout(const struct ctn_checkpoint *ckpt, const struct ctn_part *part,
			const struct ctn_extent *extents, uint32_t count, struct ctn_err *err)
{
	uint64_t room = 0;

	for (uint32_t i = 0; i < count; i++) {
		if ((uintptr_t)extents[i].addr % CTN_IO_ALIGN || extents[i].bytes % CTN_IO_ALIGN)
			return ctn_err_set(err, -EINVAL,
					   "stage: extent %u of part %u is not aligned to %u bytes",
					   i, part->id, CTN_IO_ALIGN);
		room += extents[i].bytes;
	}
	for (uint32_t i = 0; i < part->run_count; i++) {
		const struct ctn_run *r = &part->runs[i];
		uint64_t size = r->file < ckpt->file_count ? ckpt->files[r->file].bytes : 0;

		if (r->bytes == 0 || r->file_offset % CTN_IO_ALIGN || r->bytes % CTN_IO_ALIGN ||
		    r->frame_offset % CTN_IO_ALIGN)
			return ctn_err_set(err, -EINVAL,
					   "stage: run %u of part %u is not aligned to %u bytes", i,
					   part->id, CTN_IO_ALIGN);
		/* Each read that is cut off begins before the end of the file. */
		if (r->file_offset >= size ||
		    r->bytes > ctn_align_up(size, CTN_IO_ALIGN) - r->file_offset)
			return ctn_err_set(err, -EINVAL,
					   "stage: run %u of part %u reaches past its file", i,
					   part->id);
		if (r->frame_offset > room || r->bytes > room - r->frame_offset)
			return ctn_err_set(
				err, -EINVAL,
				"stage: run %u of part %u reaches past its frame of %llu "
				"bytes",
				i, part->id, (unsigned long long)room);
	}
	return 0;
}

int ctn_job_new(struct ctn_stage *stage, const struct ctn_checkpoint *ckpt,
		const struct ctn_part *part, const struct ctn_extent *extents,
		uint32_t extent_count, struct ctn_stage_job **out, struct ctn_err *err)
{
	struct ctn_stage_job *job;
	int rc = check_layout(ckpt, part, extents, extent_count, err);

	if (rc)
		return rc;
	job = calloc(1, sizeof(*job));
	if (!job)
		goto no_memory;
	job->files = malloc(CTN_MAX(ckpt->file_count, 1u) * sizeof(*job->files));
	if (!job->files)
		goto no_memory;
	for (uint32_t i = 0; i < ckpt->file_count; i++)
		job->files[i].fd = -1;
	job->stage = stage;
	job->ckpt = ckpt;
	job->part = part;
	job->extents = extents;
	job->extent_count = extent_count;
	atomic_init(&job->cancelled, false);
	atomic_init(&job->refs, 1);
	*out = job;
	return 0;

no_memory:
	ctn_job_free(job);
	return ctn_err_set(err, -ENOMEM, "stage: out of memory");
}

void ctn_job_free(struct ctn_stage_job *job)
{
	if (!job)
		return;
	free(job->chunks);
	free(job->digests);
	free(job->tensor_digests);
	free(job->files);
	free(job);
}

bool ctn_job_live(const struct ctn_stage_job *job)
{
	return job->result.rc == 0 && !atomic_load_explicit(&job->cancelled, memory_order_acquire);
}

void ctn_job_fail(struct ctn_stage_job *job, int rc, const char *fmt, ...)
{
	char msg[sizeof(job->result.err.msg)];
	va_list ap;

	if (job->result.rc)
		return;
	va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	va_end(ap);
	job->result.rc = ctn_err_set(&job->result.err, rc, "%s", msg);
	atomic_store_explicit(&job->failed, true, memory_order_relaxed);
}

bool ctn_job_cut(const struct ctn_stage_job *job)
{
	return job->run == job->part->run_count;
}

void ctn_job_next(struct ctn_stage_job *job, struct request *r)
{
	const struct ctn_run *run = &job->part->runs[job->run];
	uint64_t linear = run->frame_offset + job->run_done;
	const struct ctn_extent *e;
	uint64_t inside;

	/* Runs ascend in the frame: the extent never has to go back. */
	while (linear - job->extent_begin >= job->extents[job->extent].bytes)
		job->extent_begin += job->extents[job->extent++].bytes;
	e = &job->extents[job->extent];
	inside = linear - job->extent_begin;

	memset(r, 0, sizeof(*r));
	r->job = job;
	r->file = run->file;
	r->offset = run->file_offset + job->run_done;
	r->frame_offset = linear;
	r->addr = e->addr + inside;
	r->len = CTN_MIN(CTN_MIN(run->bytes - job->run_done, e->bytes - inside), CTN_READ_BYTES);
	r->segment = e->segment;
	job->run_done += r->len;
	if (job->run_done == run->bytes) {
		job->run++;
		job->run_done = 0;
	}
}

/* -ESTALE, naming what is not as it was. */
static int identify(const struct ctn_file *file, int fd, struct ctn_err *err)
{
	struct stat st;
	int64_t mtime_ns;

	if (fstat(fd, &st) != 0)
		return ctn_err_set(err, -errno, "%s: %s", file->path, strerror(errno));
	mtime_ns = (int64_t)st.st_mtim.tv_sec * (int64_t)CTN_NSEC_PER_SEC + st.st_mtim.tv_nsec;
	if ((uint64_t)st.st_dev == file->device && (uint64_t)st.st_ino == file->inode &&
	    (uint64_t)st.st_size == file->bytes && mtime_ns == file->mtime_ns)
		return 0;
	return ctn_err_set(err, -ESTALE,
			   "%s: changed since it was registered: expected device %llu, inode %llu, "
			   "%llu bytes, mtime %lld ns; found device %llu, inode %llu, %llu bytes, "
			   "mtime %lld ns",
			   file->path, (unsigned long long)file->device,
			   (unsigned long long)file->inode, (unsigned long long)file->bytes,
			   (long long)file->mtime_ns, (unsigned long long)st.st_dev,
			   (unsigned long long)st.st_ino, (unsigned long long)st.st_size,
			   (long long)mtime_ns);
}

/* Whether a file that was opened for direct reads is better read from the page cache. */
static bool prefers_cache(struct ctn_stage_job *job, uint32_t file, int fd)
{
	char why[256];

	if (job->stage->forced >= 0 || !ctn_job_cached(job, file, fd))
		return false;
	snprintf(why, sizeof(why), "%.200s is in the page cache", job->ckpt->files[file].path);
	ctn_stage_note(job->stage, why);
	return true;
}

/* Opened without blocking (something else may stand in its place by now), read with it:
 * otherwise io_uring would answer -EAGAIN. */
static int open_file(struct ctn_stage_job *job, uint32_t index, bool direct, struct job_file *out,
		     struct ctn_err *err)
{
	const struct ctn_stage_sys *sys = &job->stage->sys;
	const struct ctn_file *file = &job->ckpt->files[index];
	int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (direct ? O_DIRECT : 0);
	int fd, rc;

	do {
		fd = sys->open(sys->ctx, file->path, flags);
	} while (fd == -EINTR);
	if (fd < 0)
		return ctn_err_set(err, fd, "%s: %s", file->path, strerror(-fd));
	rc = identify(file, fd, err);
	if (rc)
		goto close_fd;
	direct = direct && !prefers_cache(job, index, fd);
	flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags & ~(O_NONBLOCK | (direct ? 0 : O_DIRECT))) != 0) {
		rc = ctn_err_set(err, -errno, "%s: %s", file->path, strerror(errno));
		goto close_fd;
	}
	if (!direct)
		posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	*out = (struct job_file){fd, direct};
	return 0;

close_fd:
	close(fd);
	return rc;
}

int ctn_job_file(struct ctn_stage_job *job, uint32_t file, bool direct, const struct job_file **out,
		 struct ctn_err *err)
{
	*out = &job->files[file];
	return job->files[file].fd < 0 ? open_file(job, file, direct, &job->files[file], err) : 0;
}

int ctn_job_recheck(struct ctn_stage_job *job, struct ctn_err *err)
{
	for (uint32_t i = 0; i < job->ckpt->file_count; i++) {
		int rc = job->files[i].fd < 0
				 ? 0
				 : identify(&job->ckpt->files[i], job->files[i].fd, err);

		if (rc)
			return rc;
	}
	return 0;
}

void ctn_job_close_files(struct ctn_stage_job *job)
{
	for (uint32_t i = 0; i < job->ckpt->file_count; i++) {
		if (job->files[i].fd >= 0)
			close(job->files[i].fd);
		job->files[i].fd = -1;
	}
}
