/* SPDX-License-Identifier: MIT */
/*
 * Files with known bytes, a part over them that is laid out by hand, a frame for it, and the
 * truth to compare with: naive reads, and digests by the one-shot functions of libxxhash.
 */
#ifndef CTN_STAGE_FIXTURE_H
#define CTN_STAGE_FIXTURE_H

#include "test.h"
#include "pool_fixture.h"
#include "stage/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAX_TENSORS 16

struct span {
	uint32_t file;
	uint64_t offset;
	uint64_t bytes;
};

/* A checkpoint of up to two files and one part of it. Address-stable. */
struct sample {
	char paths[2][512];
	struct ctn_file files[2];
	struct ctn_tensor tensors[MAX_TENSORS];
	struct ctn_checkpoint ckpt;
	struct ctn_run runs[MAX_TENSORS];
	struct ctn_part_tensor part_tensors[MAX_TENSORS];
	struct ctn_part part;
	uint64_t run_bytes; /* of all runs, cut at the ends of the files */
};

static inline void write_file(const char *path, uint64_t bytes, uint64_t seed)
{
	FILE *f = fopen(path, "we");
	uint64_t x = seed * 2654435761u + 12345;

	for (uint64_t i = 0; f && i < bytes; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		if (putc_unlocked((int)(x >> 56), f) == EOF)
			break;
	}
	/* O_DIRECT would have to write it first, and stage would read it from the page cache. */
	if (!f || fflush(f) != 0 || fsync(fileno(f)) != 0 ||
	    posix_fadvise(fileno(f), 0, 0, POSIX_FADV_DONTNEED) != 0 || fclose(f) != 0) {
		perror(path);
		exit(2);
	}
}

static inline void identify_file(const char *path, struct ctn_file *file)
{
	struct stat st;

	if (stat(path, &st) != 0) {
		perror(path);
		exit(2);
	}
	memset(file, 0, sizeof(*file));
	file->path = (char *)path;
	file->bytes = (uint64_t)st.st_size;
	file->device = st.st_dev;
	file->inode = st.st_ino;
	file->mtime_ns = st.st_mtim.tv_sec * 1000000000ll + st.st_mtim.tv_nsec;
}

/* One run for each span, aligned outwards as O_DIRECT wants it. */
static inline void lay_out(struct sample *s, const struct span *spans, uint32_t count)
{
	uint64_t at = 0;

	s->run_bytes = 0;
	s->part.tensor_bytes = 0;
	s->part.run_count = 0;
	for (uint32_t i = 0; i < count; i++) {
		const struct ctn_file *file = &s->files[spans[i].file];
		uint64_t begin = spans[i].offset / 4096 * 4096;
		uint64_t end = (spans[i].offset + spans[i].bytes + 4095) / 4096 * 4096;
		struct ctn_run *run = &s->runs[s->part.run_count];

		s->tensors[i].file = spans[i].file;
		s->tensors[i].offset = spans[i].offset;
		s->tensors[i].bytes = spans[i].bytes;
		s->part_tensors[i].tensor = i;
		s->part_tensors[i].frame_offset = at + spans[i].offset - begin;
		s->part.tensor_bytes += spans[i].bytes;
		if (spans[i].bytes == 0)
			continue;
		*run = (struct ctn_run){spans[i].file, begin, end - begin, at};
		s->part.run_count++;
		s->run_bytes += CTN_MIN(end, file->bytes) - begin;
		at += end - begin;
	}
	s->part.runs = s->runs;
	s->part.tensors = s->part_tensors;
	s->part.tensor_count = count;
	s->part.frame_bytes = at;
	s->ckpt.files = s->files;
	s->ckpt.tensors = s->tensors;
	s->ckpt.tensor_count = count;
}

/* Two files of odd sizes; tensors that start anywhere, end at the ends of the files, are
 * empty, a byte, a chunk, a chunk and a byte, and longer than an extent of the frame. */
static inline void make_sample(struct sample *s, const char *dir, const char *name)
{
	static const struct span spans[] = {
		{0, 8 + 333, 1},
		{0, 5000, 0},
		{0, 4096, CTN_MIB},
		{1, 17, 3 * CTN_MIB + 1},
		{0, 1200001, CTN_MIB + 1},
		{0, 5 * CTN_MIB + 77 - 100000, 100000},
		{1, 4 * CTN_MIB + 4095 - 70000, 70000},
		{1, 123456, 2 * CTN_MIB - 7},
	};

	memset(s, 0, sizeof(*s));
	for (uint32_t i = 0; i < 2; i++) {
		snprintf(s->paths[i], sizeof(s->paths[i]), "%s/%s-%u", dir, name, i);
		write_file(s->paths[i], i ? 4 * CTN_MIB + 4095 : 5 * CTN_MIB + 77, i + 1);
		identify_file(s->paths[i], &s->files[i]);
	}
	s->ckpt.file_count = 2;
	lay_out(s, spans, CTN_ARRAY_LEN(spans));
}

/* One file, one tensor in the middle of it. */
static inline void make_plain_sample(struct sample *s, const char *dir, const char *name,
				     uint64_t bytes)
{
	struct span span = {0, 1000, bytes - 3000};

	memset(s, 0, sizeof(*s));
	snprintf(s->paths[0], sizeof(s->paths[0]), "%s/%s", dir, name);
	write_file(s->paths[0], bytes, 7);
	identify_file(s->paths[0], &s->files[0]);
	s->ckpt.file_count = 1;
	lay_out(s, &span, 1);
}

/* A LOADING frame in a pool of 2 MiB holes, so that it has an extent for each of them. */
struct frame_of {
	struct ctn_pool *pool;
	struct ctn_frame_ref ref;
	const struct ctn_extent *extents;
	uint32_t count;
};

static inline void take_frame(struct frame_of *f, struct ctn_pool *pool, const struct sample *s,
			      unsigned int key_number)
{
	struct ctn_frame_key key = ctn_test_key(key_number);

	f->pool = pool;
	if (ctn_pool_alloc(pool, &key, CTN_MAX(s->part.frame_bytes, 1u), -1, &f->ref) != 0 ||
	    ctn_pool_extents(pool, f->ref, &f->extents, &f->count) != 0 ||
	    ctn_pool_commit(pool, f->extents, f->count) != 0) {
		fprintf(stderr, "no frame of %llu bytes\n",
			(unsigned long long)s->part.frame_bytes);
		exit(2);
	}
	for (uint32_t i = 0; i < f->count; i++)
		memset(f->extents[i].addr, 0xee, f->extents[i].bytes);
}

static inline struct ctn_pool *fragmented_pool(uint64_t segment_bytes)
{
	struct ctn_pool *pool = ctn_test_pool(NULL, 64 * CTN_MIB, segment_bytes, false);
	struct ctn_frame_ref refs[32];
	const struct ctn_extent *extents;
	uint32_t count;

	for (unsigned int i = 0; i < 32; i++)
		refs[i] = ctn_test_clean(pool, 1000 + i, 2 * CTN_MIB);
	for (unsigned int i = 0; i < 32; i++) {
		if (ctn_pool_extents(pool, refs[i], &extents, &count) == 0 &&
		    (uintptr_t)extents[0].addr / CTN_EXTENT_ALIGN % 2)
			ctn_pool_evict(pool, refs[i]);
	}
	return pool;
}

/* The bytes of a tensor as they lie in the frame, made contiguous. */
static inline void copy_out(const struct frame_of *f, uint64_t at, uint8_t *to, uint64_t bytes)
{
	uint64_t begin = 0;

	for (uint32_t i = 0; i < f->count; begin += f->extents[i++].bytes) {
		for (; bytes && at >= begin && at < begin + f->extents[i].bytes; bytes--, at++)
			*to++ = f->extents[i].addr[at - begin];
	}
}

static inline uint8_t *read_naively(const struct ctn_file *file, const struct ctn_tensor *t)
{
	uint8_t *data = malloc(t->bytes + 1);
	FILE *f = fopen(file->path, "re");

	if (!data || !f || fseek(f, (long)t->offset, SEEK_SET) != 0 ||
	    fread(data, 1, t->bytes, f) != t->bytes) {
		perror(file->path);
		exit(2);
	}
	/* Stage is to find it as it was. */
	posix_fadvise(fileno(f), 0, 0, POSIX_FADV_DONTNEED);
	fclose(f);
	return data;
}

/* How many tensors in the frame differ from their files; the digest that the files say. */
static inline unsigned int compare(const struct sample *s, const struct frame_of *f,
				   struct ctn_digest *expected)
{
	struct {
		XXH128_canonical_t chunk[64];
	} list;
	XXH128_canonical_t root;
	unsigned int wrong = 0;
	size_t n = 0;

	for (uint32_t i = 0; i < s->part.tensor_count; i++) {
		const struct ctn_tensor *t = &s->tensors[i];
		uint8_t *truth = read_naively(&s->files[t->file], t);
		uint8_t *got = malloc(t->bytes + 1);

		copy_out(f, s->part_tensors[i].frame_offset, got, t->bytes);
		wrong += memcmp(truth, got, t->bytes) != 0;
		for (uint64_t at = 0; at < t->bytes; at += 1048576)
			XXH128_canonicalFromHash(&list.chunk[n++],
						 XXH3_128bits(truth + at, t->bytes - at < 1048576
										  ? t->bytes - at
										  : 1048576));
		free(got);
		free(truth);
	}
	XXH128_canonicalFromHash(&root, XXH3_128bits(&list, n * sizeof(list.chunk[0])));
	memcpy(expected->bytes, root.digest, 16);
	return wrong;
}

/* ---- running a job --------------------------------------------------------------------- */

struct waiter {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	unsigned int calls;
	struct ctn_stage_result result;
};

static inline void waiter_init(struct waiter *w)
{
	memset(w, 0, sizeof(*w));
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->cond, NULL);
}

static inline void waiter_done(void *arg, const struct ctn_stage_result *result)
{
	struct waiter *w = arg;

	pthread_mutex_lock(&w->lock);
	w->calls++;
	w->result = *result;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
}

static inline void waiter_wait(struct waiter *w)
{
	pthread_mutex_lock(&w->lock);
	while (!w->calls)
		pthread_cond_wait(&w->cond, &w->lock);
	pthread_mutex_unlock(&w->lock);
}

static inline struct ctn_stage *open_stage(struct ctn_pool *pool, int method, uint32_t depth,
					   const struct ctn_stage_sys *sys)
{
	struct ctn_stage_config cfg = {
		.pool = pool, .method = method, .queue_depth = depth, .hash = true, .sys = sys};
	struct ctn_err err = {0};
	struct ctn_stage *stage;

	if (ctn_stage_open(&cfg, &stage, &err) != 0) {
		fprintf(stderr, "%s\n", err.msg);
		exit(2);
	}
	return stage;
}

static inline struct ctn_stage_result run_job(struct ctn_stage *stage, const struct sample *s,
					      const struct frame_of *f)
{
	struct ctn_stage_result refused = {0};
	struct ctn_stage_job *job;
	struct waiter w;

	waiter_init(&w);
	refused.rc = ctn_stage_submit(stage, &s->ckpt, &s->part, f->extents, f->count, waiter_done,
				      &w, &job, &refused.err);
	if (refused.rc)
		return refused;
	waiter_wait(&w);
	return w.result;
}

/* ---- what this machine has ------------------------------------------------------------- */

static inline bool has_uring(void)
{
	struct io_uring ring;

	if (io_uring_queue_init(2, &ring, 0) != 0)
		return false;
	io_uring_queue_exit(&ring);
	return true;
}

/* Sparse tables of buffers came with Linux 5.19. */
static inline bool kernel_has_fixed(void)
{
	return has_uring() && ctn_test_kernel_at_least(5, 19);
}

/* Root may lock what it likes, others up to their limit. */
static inline bool may_lock(uint64_t bytes)
{
	struct rlimit lim;

	return geteuid() == 0 || (getrlimit(RLIMIT_MEMLOCK, &lim) == 0 &&
				  (lim.rlim_cur == RLIM_INFINITY || lim.rlim_cur >= bytes));
}

/* With what the tests register at the most. */
static inline bool has_fixed(void)
{
	return kernel_has_fixed() && may_lock(64 * CTN_MIB);
}

static inline bool takes_direct(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);

	if (fd < 0)
		return false;
	close(fd);
	return true;
}

static inline bool has_direct(void)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/direct", ctn_test_tmpdir());
	write_file(path, 1, 1);
	return takes_direct(path);
}

/* Why a method cannot be had here; NULL: it can. */
static inline const char *method_lacks(enum ctn_stage_method method)
{
	if (method == CTN_STAGE_URING_FIXED && !has_fixed())
		return "no io_uring with registered buffers: the kernel, or the limit on locked "
		       "memory";
	if (method == CTN_STAGE_URING && !has_uring())
		return "no io_uring";
	return method == CTN_STAGE_BUFFERED || has_direct() ? NULL : "no O_DIRECT";
}

#define NEEDS_METHOD(method)                               \
	do {                                               \
		const char *lacks_ = method_lacks(method); \
		if (lacks_)                                \
			CTN_SKIP(lacks_);                  \
	} while (0)

static inline enum ctn_stage_method best_method(const char *path)
{
	if (!takes_direct(path))
		return CTN_STAGE_BUFFERED;
	if (!has_uring())
		return CTN_STAGE_PREAD;
	return has_fixed() ? CTN_STAGE_URING_FIXED : CTN_STAGE_URING;
}

#endif
