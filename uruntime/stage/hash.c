// SPDX-License-Identifier: MIT
/*
 * Digests on the way. What was read is told byte by byte to the chunks that it belongs to; a chunk
 * that has all its bytes goes to the hash threads. Whoever drops the last reference of a job, be it
 * one of these or the I/O thread, makes the root of its tree, holds it against the manifest, and
 * ends it.
 */
#include "stage/private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * CTN_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* ---- the tree ---------------------------------------------------------------------------- */

static size_t chunks_of(const struct ctn_stage_job *job, uint32_t i)
{
	uint64_t bytes = job->ckpt->tensors[job->part->tensors[i].tensor].bytes;

	return bytes / CTN_CHUNK_BYTES + (bytes % CTN_CHUNK_BYTES != 0);
}

static void cut_tensor(struct ctn_stage_job *job, uint32_t i, size_t *n)
{
	const struct ctn_part_tensor *t = &job->part->tensors[i];
	uint64_t bytes = job->ckpt->tensors[t->tensor].bytes;

	for (uint64_t at = 0; at < bytes; at += CTN_CHUNK_BYTES) {
		struct chunk *c = &job->chunks[*n];

		c->job = job;
		c->frame_offset = t->frame_offset + at;
		c->bytes = (uint32_t)CTN_MIN(bytes - at, CTN_CHUNK_BYTES);
		c->missing = c->bytes;
		c->index = (*n)++;
	}
}

static int by_place(const void *a, const void *b)
{
	const struct chunk *x = a, *y = b;

	return (x->frame_offset > y->frame_offset) - (x->frame_offset < y->frame_offset);
}

int ctn_hash_prepare(struct ctn_stage_job *job)
{
	const struct ctn_part *part = job->part;
	size_t n = 0;

	for (uint32_t i = 0; i < part->tensor_count; i++)
		job->chunk_count += chunks_of(job, i);
	job->chunks = calloc(job->chunk_count + 1, sizeof(*job->chunks));
	job->digests = calloc(job->chunk_count + 1, sizeof(*job->digests));
	job->tensor_digests = calloc(part->tensor_count + (size_t)1, sizeof(*job->tensor_digests));
	/* ctn_job_free frees what there is. */
	if (!job->chunks || !job->digests || !job->tensor_digests)
		return -ENOMEM;
	for (uint32_t i = 0; i < part->tensor_count; i++)
		cut_tensor(job, i, &n);
	qsort(job->chunks, job->chunk_count, sizeof(*job->chunks), by_place);
	return 0;
}

/* ---- the end of a job -------------------------------------------------------------------- */

/* The root, and that of each tensor, by the digests of the chunks. */
static void make_digests(struct ctn_stage_job *job)
{
	size_t n = 0;

	for (uint32_t i = 0; i < job->part->tensor_count; i++) {
		size_t count = chunks_of(job, i);

		ctn_digest_root(&job->digests[n], count, &job->tensor_digests[i]);
		n += count;
	}
	ctn_digest_root(job->digests, job->chunk_count, &job->result.digest);
	job->result.tensor_digests = job->tensor_digests;
	job->result.has_digest = true;
}

static bool same(const struct ctn_digest *a, const struct ctn_digest *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

/* All that the manifest says of the part, or the first tensor whose bytes are others. */
static void hold_against_manifest(struct ctn_stage_job *job)
{
	const struct ctn_part *part = job->part;
	char expected[CTN_DIGEST_TEXT], found[CTN_DIGEST_TEXT];

	for (uint32_t i = 0; i < part->tensor_count; i++) {
		const struct ctn_tensor *t = &job->ckpt->tensors[part->tensors[i].tensor];

		if (same(&job->tensor_digests[i], &part->tensors[i].digest))
			continue;
		ctn_job_fail(job, -EBADMSG,
			     "%.200s: part %u: tensor %.100s: the bytes are not those of the "
			     "manifest (" CTN_MANIFEST_NAME "): expected digest %s, found %s",
			     job->ckpt->files[t->file].path, part->id, t->name,
			     ctn_digest_format(&part->tensors[i].digest, expected),
			     ctn_digest_format(&job->tensor_digests[i], found));
		return;
	}
	if (same(&job->result.digest, &part->digest))
		return;
	ctn_job_fail(job, -EBADMSG,
		     "%.200s/" CTN_MANIFEST_NAME
		     ": part %u: digest: expected %s, which its tensors, "
		     "each as it should be, have, found %s",
		     job->ckpt->dir, part->id, ctn_digest_format(&job->result.digest, found),
		     ctn_digest_format(&part->digest, expected));
}

static void conclude(struct ctn_stage_job *job)
{
	struct ctn_stage *stage = job->stage;
	uint64_t begun = cpu_ns();

	if (atomic_load(&job->skipped))
		ctn_job_fail(job, -ECANCELED, "cancelled while its chunks were looked at");
	if (job->result.rc == 0 && job->others) {
		job->result.equal = !atomic_load(&job->differs);
	} else if (job->result.rc == 0 && job->chunks) {
		make_digests(job);
		if (job->part->has_digest)
			hold_against_manifest(job);
		if (job->result.rc)
			job->result.has_digest = false;
	}
	if (job->chunks) {
		pthread_mutex_lock(&stage->lock);
		stage->stats.hash_cpu_nanoseconds +=
			atomic_load(&job->hash_ns) + (cpu_ns() - begun);
		pthread_mutex_unlock(&stage->lock);
	}
	ctn_stage_end_job(job);
}

void ctn_job_release(struct ctn_stage_job *job, size_t refs)
{
	if (atomic_fetch_sub_explicit(&job->refs, refs, memory_order_acq_rel) == refs)
		conclude(job);
}

/* ---- to the hash threads ----------------------------------------------------------------- */

static void submit(struct ctn_stage_job *job, struct chunk *head, struct chunk **tail, size_t n)
{
	struct hasher *h = &job->stage->hasher;

	atomic_fetch_add_explicit(&job->refs, n, memory_order_relaxed);
	*tail = NULL;
	pthread_mutex_lock(&h->lock);
	*h->tail = head;
	h->tail = tail;
	pthread_cond_signal(&h->cond);
	pthread_mutex_unlock(&h->lock);
}

/* The first chunk that ends behind an offset. */
static size_t first_behind(const struct ctn_stage_job *job, uint64_t offset)
{
	size_t low = 0, high = job->chunk_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (job->chunks[mid].frame_offset + job->chunks[mid].bytes > offset)
			high = mid;
		else
			low = mid + 1;
	}
	return low;
}

void ctn_hash_arrived(struct ctn_stage_job *job, uint64_t begin, uint64_t bytes)
{
	struct chunk *head = NULL, **tail = &head;
	uint64_t end = begin + bytes;
	size_t n = 0;

	for (size_t i = first_behind(job, begin); i < job->chunk_count; i++) {
		struct chunk *c = &job->chunks[i];
		uint64_t from = CTN_MAX(begin, c->frame_offset);

		if (c->frame_offset >= end)
			break;
		CTN_ASSERT(c->missing >= CTN_MIN(end, c->frame_offset + c->bytes) - from);
		c->missing -= (uint32_t)(CTN_MIN(end, c->frame_offset + c->bytes) - from);
		if (c->missing)
			continue;
		*tail = c;
		tail = &c->next;
		n++;
	}
	if (n)
		submit(job, head, tail, n);
}

void ctn_hash_all(struct ctn_stage_job *job)
{
	struct chunk *head = NULL, **tail = &head;

	for (size_t i = 0; i < job->chunk_count; i++) {
		*tail = &job->chunks[i];
		tail = &job->chunks[i].next;
	}
	/* Nobody else has a reference: it may end before this returns. */
	atomic_store_explicit(&job->refs, 0, memory_order_relaxed);
	submit(job, head, tail, job->chunk_count);
}

/* ---- the hash threads -------------------------------------------------------------------- */

static void look_at(struct chunk *c)
{
	struct ctn_stage_job *job = c->job;

	if (!job->others)
		ctn_digest_chunk(job->extents, job->extent_count, c->frame_offset, c->bytes,
				 &job->digests[c->index]);
	else if (!atomic_load_explicit(&job->differs, memory_order_relaxed) &&
		 !ctn_chunk_equal(job, c))
		atomic_store_explicit(&job->differs, true, memory_order_relaxed);
}

/* Chunks of one job, at least one; with the last of them the job may be gone. */
static void hash_batch(struct chunk *c, size_t n)
{
	struct ctn_stage_job *job = c->job;
	uint64_t begun = cpu_ns();

	for (size_t i = 0; i < n; i++, c = c->next) {
		if (atomic_load_explicit(&job->failed, memory_order_relaxed) ||
		    atomic_load_explicit(&job->cancelled, memory_order_acquire)) {
			atomic_store_explicit(&job->skipped, true, memory_order_relaxed);
			break;
		}
		look_at(c);
	}
	atomic_fetch_add_explicit(&job->hash_ns, cpu_ns() - begun, memory_order_relaxed);
	ctn_job_release(job, n);
}

/* What is first in the queue, and small ones of the same job behind it. Under the lock. */
static struct chunk *take_batch(struct hasher *h, size_t *n)
{
	struct chunk *head = h->head, *last = head;
	uint64_t bytes;

	*n = 0;
	if (!head)
		return NULL;
	*n = 1;
	bytes = head->bytes;
	while (last->next && last->next->job == head->job &&
	       bytes + last->next->bytes <= CTN_CHUNK_BYTES) {
		last = last->next;
		bytes += last->bytes;
		++*n;
	}
	h->head = last->next;
	if (!h->head)
		h->tail = &h->head;
	else
		pthread_cond_signal(&h->cond);
	return head;
}

static void *hasher_main(void *arg)
{
	struct hasher *h = arg;

	for (;;) {
		struct chunk *batch;
		size_t n;

		pthread_mutex_lock(&h->lock);
		while (!h->head && !h->stop)
			pthread_cond_wait(&h->cond, &h->lock);
		batch = take_batch(h, &n);
		pthread_mutex_unlock(&h->lock);
		if (!batch)
			return NULL;
		hash_batch(batch, n);
	}
}

/* Half of the processors at the most: the others read, and compute. */
static uint32_t thread_count(void)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN) / 2;

	return cpus < 1 ? 1 : (uint32_t)CTN_MIN(cpus, CTN_MAX_HASH_THREADS);
}

/* Fewer threads than wished are slower, none is an error. */
int ctn_hasher_open(struct hasher *h)
{
	uint32_t wished = thread_count();
	int rc = 0;

	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->cond, NULL);
	h->tail = &h->head;
	while (h->count < wished && rc == 0) {
		rc = -pthread_create(&h->threads[h->count], NULL, hasher_main, h);
		h->count += rc == 0;
	}
	if (h->count)
		return 0;
	ctn_hasher_close(h);
	return rc;
}

void ctn_hasher_close(struct hasher *h)
{
	pthread_mutex_lock(&h->lock);
	h->stop = true;
	pthread_cond_broadcast(&h->cond);
	pthread_mutex_unlock(&h->lock);
	for (uint32_t i = 0; i < h->count; i++)
		pthread_join(h->threads[i], NULL);
	pthread_cond_destroy(&h->cond);
	pthread_mutex_destroy(&h->lock);
}
