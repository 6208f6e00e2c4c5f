// SPDX-License-Identifier: MIT
/* The figures of `computron bench stage`. */
#include "bench.h"
#include "bench_stage.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Peer against itself: more than this, and nothing can be concluded. */
#define VARIATION_MAX 0.05
#define RATIO_MIN     0.95

int ctn_stage_samples_init(struct ctn_stage_samples *s, uint32_t rounds, uint32_t hash_rounds)
{
	*s = (struct ctn_stage_samples){0};
	s->ours = calloc(rounds, sizeof(*s->ours));
	s->peers = calloc(2 * (size_t)rounds, sizeof(*s->peers));
	s->hashed = calloc(hash_rounds, sizeof(*s->hashed));
	if (s->ours && s->peers && s->hashed)
		return 0;
	ctn_stage_samples_free(s);
	return -ENOMEM;
}

void ctn_stage_samples_free(struct ctn_stage_samples *s)
{
	free(s->ours);
	free(s->peers);
	free(s->hashed);
	*s = (struct ctn_stage_samples){0};
}

/* ---- figures of a run -------------------------------------------------------------------- */

static double gib(const struct ctn_stage_run *r)
{
	return (double)r->bytes / (double)CTN_GIB;
}

static double rate(const struct ctn_stage_run *r)
{
	return (double)r->bytes / r->seconds / 1e9;
}

static double cpu(const struct ctn_stage_run *r)
{
	return r->cpu_s / gib(r);
}

static double hash_cpu(const struct ctn_stage_run *r)
{
	return r->hash_cpu_s / gib(r);
}

static double hash_ratio(const struct ctn_stage_run *r)
{
	return r->hash_cpu_s / r->hash_alone_cpu_s;
}

static double hash_alone(const struct ctn_stage_run *r)
{
	return r->hash_alone_cpu_s;
}

static double seconds(const struct ctn_stage_run *r)
{
	return r->seconds;
}

static double reads(const struct ctn_stage_run *r)
{
	return (double)r->reads;
}

static double read_bytes(const struct ctn_stage_run *r)
{
	return r->reads ? (double)r->bytes / (double)r->reads : 0;
}

static double depth(const struct ctn_stage_run *r)
{
	return r->depth;
}

static double disk_reads(const struct ctn_stage_run *r)
{
	return (double)r->disk.reads;
}

static double disk_read_bytes(const struct ctn_stage_run *r)
{
	return r->disk.reads ? (double)r->disk.bytes / (double)r->disk.reads : 0;
}

/* The time of all reads together, over the time that they took together. */
static double disk_depth(const struct ctn_stage_run *r)
{
	return (double)r->disk.read_ms / 1e3 / r->seconds;
}

/* Every step-th of `count` runs. */
static double median(double (*of)(const struct ctn_stage_run *r), const struct ctn_stage_run *runs,
		     uint32_t count, uint32_t step, double *scratch)
{
	for (uint32_t i = 0; i < count; i++)
		scratch[i] = of(&runs[(size_t)i * step]);
	return ctn_bench_median(scratch, count);
}

static void compute_peer(const struct ctn_stage_samples *s, struct ctn_stage_figures *f,
			 double *scratch)
{
	uint32_t n = 2 * s->rounds;
	double before = median(rate, s->peers, s->rounds, 2, scratch);
	double after = median(rate, s->peers + 1, s->rounds, 2, scratch);

	f->peer_gb_per_s = median(rate, s->peers, n, 1, scratch);
	f->peer_cpu_s_per_gib = median(cpu, s->peers, n, 1, scratch);
	f->peer_variation = fabs(before - after) / fmin(before, after);
	f->ratio = f->gb_per_s / f->peer_gb_per_s;
	f->peer_reads = median(reads, s->peers, n, 1, scratch);
	f->peer_read_bytes = median(read_bytes, s->peers, n, 1, scratch);
	f->peer_depth = median(depth, s->peers, n, 1, scratch);
	f->peer_disk_reads = median(disk_reads, s->peers, n, 1, scratch);
	f->peer_disk_read_bytes = median(disk_read_bytes, s->peers, n, 1, scratch);
	f->peer_disk_depth = median(disk_depth, s->peers, n, 1, scratch);
	f->verdict = f->peer_variation > VARIATION_MAX ? "inconclusive"
		     : f->ratio < RATIO_MIN            ? "fail"
						       : "pass";
}

int ctn_stage_compute(const struct ctn_stage_samples *s, struct ctn_stage_figures *f)
{
	double *scratch = calloc(2 * (size_t)CTN_MAX(s->rounds, s->hash_rounds), sizeof(*scratch));
	uint32_t n = s->rounds;
	double alone;

	if (!scratch)
		return -ENOMEM;
	*f = (struct ctn_stage_figures){.method = s->ours[0].method};
	f->gb_per_s = median(rate, s->ours, n, 1, scratch);
	f->cpu_s_per_gib = median(cpu, s->ours, n, 1, scratch);
	f->reads = median(reads, s->ours, n, 1, scratch);
	f->read_bytes = median(read_bytes, s->ours, n, 1, scratch);
	f->depth = median(depth, s->ours, n, 1, scratch);
	f->disk_reads = median(disk_reads, s->ours, n, 1, scratch);
	f->disk_read_bytes = median(disk_read_bytes, s->ours, n, 1, scratch);
	f->disk_depth = median(disk_depth, s->ours, n, 1, scratch);
	f->hash_cpu_s_per_gib = median(hash_cpu, s->hashed, s->hash_rounds, 1, scratch);
	f->hash_ratio = median(hash_ratio, s->hashed, s->hash_rounds, 1, scratch);
	alone = CTN_MAX(median(seconds, s->ours, n, 1, scratch),
			median(hash_alone, s->hashed, s->hash_rounds, 1, scratch));
	f->hash_time_ratio = median(seconds, s->hashed, s->hash_rounds, 1, scratch) / alone;
	/* A disk that changed its mind half way is known by the slowest. */
	for (uint32_t i = 0; i < n; i++)
		f->method = CTN_MAX(f->method, s->ours[i].method);
	if (s->with_peer)
		compute_peer(s, f, scratch);
	free(scratch);
	return 0;
}

/* ---- telling ----------------------------------------------------------------------------- */

static int dump(json_t *root)
{
	int rc = root ? json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : -1;

	json_decref(root);
	if (rc)
		return -ENOMEM;
	putchar('\n');
	return 0;
}

static json_t *requests(double count, double bytes, double at_depth, double disk_count,
			double disk_bytes, double at_disk_depth)
{
	return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "reads", count, "read_bytes", bytes,
			 "depth", at_depth, "disk_reads", disk_count, "disk_read_bytes", disk_bytes,
			 "disk_depth", at_disk_depth);
}

static int print_json(const struct ctn_stage_file *file, const struct ctn_stage_rig_config *cfg,
		      const struct ctn_stage_samples *s, const struct ctn_stage_figures *f)
{
	json_t *root = json_pack(
		"{s:f, s:f, s:f, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:I, s:i, s:i, s:b, s:s, s:s, "
		"s:o}",
		"gb_per_s", f->gb_per_s, "cpu_s_per_gib", f->cpu_s_per_gib, "hash_cpu_s_per_gib",
		f->hash_cpu_s_per_gib, "method", ctn_stage_method_name(f->method), "provider",
		s->provider, "huge_ratio", s->huge_ratio, "populate_s_per_gib", s->populate_s,
		"register_s_per_gib", s->register_s, "hash_ratio", f->hash_ratio, "hash_time_ratio",
		f->hash_time_ratio, "bytes", (json_int_t)file->file.bytes, "rounds", (int)s->rounds,
		"depth", (int)cfg->depth, "cached", (int)cfg->cached, "method_why", s->method_why,
		"provider_why", s->pool_why, "requests",
		requests(f->reads, f->read_bytes, f->depth, f->disk_reads, f->disk_read_bytes,
			 f->disk_depth));
	int rc = 0;

	if (s->with_peer)
		rc = json_object_update_new(
			root, json_pack("{s:f, s:f, s:s, s:f, s:f, s:o}", "peer_gb_per_s",
					f->peer_gb_per_s, "ratio", f->ratio, "verdict", f->verdict,
					"peer_variation", f->peer_variation, "peer_cpu_s_per_gib",
					f->peer_cpu_s_per_gib, "peer_requests",
					requests(f->peer_reads, f->peer_read_bytes, f->peer_depth,
						 f->peer_disk_reads, f->peer_disk_read_bytes,
						 f->peer_disk_depth)));
	if (rc) {
		json_decref(root);
		return -ENOMEM;
	}
	return dump(root);
}

static void row(const char *name, double value, const char *format, ...) CTN_PRINTF(3, 4);

static void row(const char *name, double value, const char *format, ...)
{
	va_list ap;

	printf("%-20s %10.4f  ", name, value);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	putchar('\n');
}

/* What was asked of the disk, by both: equal work when the rates cannot be compared. */
static void print_requests(const struct ctn_stage_figures *f, bool with_peer)
{
	static const char format[] = "%-20s %10.0f %12.1f %8.1f %12.0f %12.1f %8.1f\n";

	printf("\n%-20s %10s %12s %8s %12s %12s %8s\n", "requests", "count", "KiB each", "depth",
	       "at the disk", "KiB each", "depth");
	printf(format, "stage", f->reads, f->read_bytes / 1024, f->depth, f->disk_reads,
	       f->disk_read_bytes / 1024, f->disk_depth);
	if (with_peer)
		printf(format, "peer", f->peer_reads, f->peer_read_bytes / 1024, f->peer_depth,
		       f->peer_disk_reads, f->peer_disk_read_bytes / 1024, f->peer_disk_depth);
}

static void print_text(const struct ctn_stage_file *file, const struct ctn_stage_rig_config *cfg,
		       const struct ctn_stage_samples *s, const struct ctn_stage_figures *f)
{
	char size[32];

	printf("%s of %s, %s the page cache, by %s into a pool of provider %s, %u rounds\n",
	       ctn_format_size(file->file.bytes, size), file->file.path,
	       cfg->cached ? "in" : "not in", ctn_stage_method_name(f->method), s->provider,
	       s->rounds);
	if (s->method_why[0])
		printf("why this method: %s\n", s->method_why);
	if (s->pool_why[0])
		printf("why this provider: %s\n", s->pool_why);
	printf("the bytes of every round were verified by digest\n\n");
	row("gb_per_s", f->gb_per_s, "10^9 bytes a second, median");
	row("cpu_s_per_gib", f->cpu_s_per_gib, "CPU seconds a GiB, of user and kernel, median");
	row("hash_cpu_s_per_gib", f->hash_cpu_s_per_gib, "of the digest, in rounds of their own");
	row("hash_ratio", f->hash_ratio, "of that to the digest made with nothing else going on");
	row("hash_time_ratio", f->hash_time_ratio,
	    "of the time with a digest to that of reading, or hashing, alone");
	row("huge_ratio", s->huge_ratio, "of the frame's memory that is in huge pages");
	if (s->with_peer) {
		row("peer_gb_per_s", f->peer_gb_per_s, "fio, before and after each round, median");
		row("peer_cpu_s_per_gib", f->peer_cpu_s_per_gib, "of fio");
		row("ratio", f->ratio, "of gb_per_s to the peer's; %.2f is asked for", RATIO_MIN);
		row("peer_variation", f->peer_variation, "between the peers before and after: %s",
		    f->verdict);
	}
	print_requests(f, s->with_peer);
}

static int flush(struct ctn_err *err)
{
	return fflush(stdout) == 0 ? 0 : ctn_err_set(err, -errno, "stdout: %s", strerror(errno));
}

int ctn_stage_report(const struct ctn_stage_file *file, const struct ctn_stage_rig_config *cfg,
		     const struct ctn_stage_samples *s, bool json, struct ctn_err *err)
{
	struct ctn_stage_figures f;
	int rc = ctn_stage_compute(s, &f);

	if (rc == 0 && json)
		rc = print_json(file, cfg, s, &f);
	else if (rc == 0)
		print_text(file, cfg, s, &f);
	return rc ? ctn_err_set(err, rc, "out of memory") : flush(err);
}

/* ---- the table --------------------------------------------------------------------------- */

static int table_json(const struct ctn_stage_file *file, const struct ctn_stage_row *rows,
		      uint32_t count)
{
	json_t *list = json_array();
	int rc = 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct ctn_stage_row *r = &rows[i];
		const struct ctn_stage_figures *f = &r->figures;

		rc |= json_array_append_new(
			list,
			r->err.code
				? json_pack("{s:s, s:s, s:s}", "method", r->method, "provider",
					    r->provider, "why", r->err.msg)
				: json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f}", "method",
					    r->method, "provider", r->provider, "gb_per_s",
					    f->gb_per_s, "cpu_s_per_gib", f->cpu_s_per_gib,
					    "hash_cpu_s_per_gib", f->hash_cpu_s_per_gib,
					    "huge_ratio", r->huge_ratio, "populate_s_per_gib",
					    r->populate_s, "register_s_per_gib", r->register_s));
	}
	if (rc) {
		json_decref(list);
		return -ENOMEM;
	}
	return dump(json_pack("{s:I, s:o}", "bytes", (json_int_t)file->file.bytes, "table", list));
}

int ctn_stage_table(const struct ctn_stage_file *file, const struct ctn_stage_row *rows,
		    uint32_t count, bool json, struct ctn_err *err)
{
	char size[32];

	if (json)
		return table_json(file, rows, count) ? ctn_err_set(err, -ENOMEM, "out of memory")
						     : flush(err);
	printf("%s of %s\n\n%-12s %-8s %10s %14s %14s %7s %14s %14s\n",
	       ctn_format_size(file->file.bytes, size), file->file.path, "METHOD", "PROVIDER",
	       "GB/s", "CPU s/GiB", "HASH s/GiB", "HUGE", "POPULATE s/GiB", "REGISTER s/GiB");
	for (uint32_t i = 0; i < count; i++) {
		const struct ctn_stage_figures *f = &rows[i].figures;

		printf("%-12s %-8s ", rows[i].method, rows[i].provider);
		if (rows[i].err.code)
			printf("%s\n", rows[i].err.msg);
		else
			printf("%10.3f %14.4f %14.4f %6.0f%% %14.4f %14.4f\n", f->gb_per_s,
			       f->cpu_s_per_gib, f->hash_cpu_s_per_gib, 100 * rows[i].huge_ratio,
			       rows[i].populate_s, rows[i].register_s);
	}
	return flush(err);
}
