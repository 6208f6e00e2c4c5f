// SPDX-License-Identifier: MIT
/* Figures as JSON, as a table, and as curves of characters. */
#include "sim.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static json_t *one_policy(const struct ctn_sim_result *r, const struct ctn_sim_figures *f)
{
	double loads = (double)CTN_MAX(r->predicted_loads, (uint64_t)1);
	json_t *most = json_array();

	for (uint32_t i = 0; i < f->models; i++)
		json_array_append_new(most, json_real(f->model_max_s[i]));
	return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:I, s:f, "
			 "s:I, s:I, s:I, s:f, s:o}",
			 "mean_s", f->mean_s, "p50_s", f->p50_s, "p95_s", f->p95_s, "p99_s",
			 f->p99_s, "max_s", f->max_s, "ttft_mean_s", f->ttft_mean_s, "mean_load_s",
			 f->mean_load_s, "swaps", (json_int_t)r->swaps, "bytes_loaded",
			 (json_int_t)r->bytes_loaded, "requests", (json_int_t)r->count, "refused",
			 (json_int_t)f->refused, "fairness", f->fairness, "decisions",
			 (json_int_t)r->decisions, "load_error_mean_s", r->predicted_off_s / loads,
			 "late", (json_int_t)r->late, "bytes_staged", (json_int_t)r->bytes_staged,
			 "bytes_staged_ahead", (json_int_t)r->bytes_ahead, "turn_wait_max_s",
			 r->turn_wait_s, "max_s_by_model", most);
}

int ctn_sim_print_json(const struct ctn_sim_result *r, const struct ctn_sim_figures *f,
		       uint32_t count, struct ctn_err *err)
{
	json_t *policies = json_object(), *root;
	int rc = policies ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < count && !rc; i++)
		rc = json_object_set_new(policies, r[i].policy, one_policy(&r[i], &f[i]));
	root = json_pack("{s:o}", "policies", policies);
	if (rc || !root)
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
	else if (json_dumpf(root, stdout, JSON_INDENT(2)) || puts("") < 0)
		rc = ctn_err_set(err, -EIO, "standard output: not written");
	json_decref(root);
	return rc;
}

void ctn_sim_print_table(const struct ctn_sim_result *r, const struct ctn_sim_figures *f,
			 uint32_t count)
{
	printf("%-16s %9s %9s %9s %9s %9s %9s %8s %10s %7s %8s\n", "policy", "mean s", "p50 s",
	       "p95 s", "p99 s", "max s", "load s/rq", "swaps", "loaded GB", "refused", "fairness");
	for (uint32_t i = 0; i < count; i++)
		printf("%-16s %9.4f %9.4f %9.4f %9.4f %9.3f %9.5f %8llu %10.1f %7llu %8.3f\n",
		       r[i].policy, f[i].mean_s, f[i].p50_s, f[i].p95_s, f[i].p99_s, f[i].max_s,
		       f[i].mean_load_s, (unsigned long long)r[i].swaps,
		       (double)r[i].bytes_loaded / 1e9, (unsigned long long)f[i].refused,
		       f[i].fairness);
}

/* ---- curves ----------------------------------------------------------------------------- */

enum { COLUMNS = 72, ROWS = 16 };

/* Share of the requests that took at most `s`. */
static double share(const struct ctn_sim_figures *f, double s)
{
	size_t low = 0, high = f->served;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (f->sorted_s[middle] <= s)
			low = middle + 1;
		else
			high = middle;
	}
	return f->served ? (double)low / (double)f->served : 0;
}

void ctn_sim_print_cdf(const struct ctn_sim_result *r, const struct ctn_sim_figures *f,
		       uint32_t count)
{
	double least = HUGE_VAL, most = 0;
	char grid[ROWS + 1][COLUMNS + 1];

	for (uint32_t i = 0; i < count; i++) {
		if (f[i].served == 0)
			continue;
		least = CTN_MIN(least, f[i].sorted_s[0]);
		most = CTN_MAX(most, f[i].max_s);
	}
	if (most <= 0)
		return;
	least = CTN_MAX(least, most / 1e6);
	memset(grid, ' ', sizeof(grid));
	for (uint32_t i = 0; i < count; i++) {
		for (int x = 0; x < COLUMNS; x++) {
			double s = least * pow(most / least, (double)x / (COLUMNS - 1));
			int y = (int)lround(share(&f[i], s) * ROWS);

			grid[y][x] = (char)('a' + i);
		}
	}
	printf("\nshare of requests over latency\n");
	for (int y = ROWS; y >= 0; y--) {
		grid[y][COLUMNS] = '\0';
		printf("%4d %% |%s\n", 100 * y / ROWS, grid[y]);
	}
	printf("       %-*.4g s%*.4g s (logarithmic)\n", COLUMNS / 2, least, COLUMNS / 2 - 3, most);
	for (uint32_t i = 0; i < count; i++)
		printf("  %c %s\n", (char)('a' + i), r[i].policy);
}
