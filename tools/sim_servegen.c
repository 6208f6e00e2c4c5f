// SPDX-License-Identifier: MIT
/*
 * ServeGen's clients as models: NAME-0.csv, NAME-1.csv, ... of a folder, in the order of their
 * numbers. A line is a window: start (s), requests/s, CV of the gaps, their distribution, its shape
 * and scale.
 *
 * Gaps are drawn with mean 1 and the window's shape; time runs through them at the window's rate,
 * so that a gap that is longer than its window goes on in the next one at the next one's rate. With
 * all rates made smaller by one factor a burst keeps its shape, and becomes longer.
 */
#include "sim.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CLIENTS 4096

struct window {
	double start_s, rate, shape;
	bool weibull;
};

struct client {
	char *path;
	uint32_t number;
	struct window *windows;
	size_t count;
};

static int read_window(char *line, struct window *w)
{
	char *field[6], *p = line;

	for (int i = 0; i < 6; i++) {
		field[i] = p;
		p = strchr(p, ',');
		if (!p != (i == 5))
			return -EINVAL;
		if (p)
			*p++ = '\0';
	}
	w->start_s = strtod(field[0], NULL);
	w->rate = strtod(field[1], NULL);
	w->weibull = strcmp(field[3], "Weibull") == 0;
	w->shape = strtod(field[4], NULL);
	if (!(w->start_s >= 0 && w->start_s <= 1e9 && w->rate >= 0 && w->rate <= 1e9))
		return -EINVAL;
	if (w->rate == 0)
		return 0;
	return (w->weibull || strcmp(field[3], "Gamma") == 0) && w->shape > 0 ? 0 : -EINVAL;
}

static int read_client(struct client *c, struct ctn_err *err)
{
	char *data, *save = NULL;
	size_t len, lines = 1;
	int rc = ctn_read_file(c->path, 64 * CTN_MIB, &data, &len, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < len; i++)
		lines += data[i] == '\n' || data[i] == '\r';
	c->windows = calloc(lines, sizeof(*c->windows));
	if (!c->windows)
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
	for (char *s = strtok_r(data, "\r\n", &save); s && !rc; s = strtok_r(NULL, "\r\n", &save)) {
		struct window *w = &c->windows[c->count];

		rc = read_window(s, w);
		if (!rc && c->count && w->start_s <= w[-1].start_s)
			rc = -EINVAL;
		c->count++;
		if (rc)
			ctn_err_set(err, rc,
				    "%s:%zu: expected start,rate,cv,Gamma|Weibull,shape,scale in "
				    "order of time",
				    c->path, c->count);
	}
	free(data);
	return rc;
}

/* The window's end: the next one's start; the last is as long as the one before it. */
static double window_end(const struct client *c, size_t i)
{
	if (i + 1 < c->count)
		return c->windows[i + 1].start_s;
	return i ? 2 * c->windows[i].start_s - c->windows[i - 1].start_s : HUGE_VAL;
}

static double mean_rate(const struct client *c)
{
	double sum = 0, length = window_end(c, c->count - 1) - c->windows[0].start_s;

	for (size_t i = 0; i < c->count; i++)
		sum += c->windows[i].rate * (window_end(c, i) - c->windows[i].start_s);
	return sum / length;
}

static double draw_gap(struct ctn_sim_random *r, const struct window *w)
{
	return w->weibull ? ctn_sim_random_weibull(r, w->shape) : ctn_sim_random_gamma(r, w->shape);
}

static int client_arrivals(const struct client *c, uint32_t model, double factor, double end_s,
			   uint64_t seed, struct ctn_sim_workload *w, struct ctn_err *err)
{
	struct ctn_sim_random r;
	double gap = -1;

	ctn_sim_random_init(&r, seed, model);
	for (size_t i = 0; i < c->count && c->windows[i].start_s < end_s; i++) {
		const struct window *win = &c->windows[i];
		double rate = win->rate * factor, at = win->start_s;
		double until = CTN_MIN(window_end(c, i), end_s);

		if (rate == 0)
			continue;
		if (gap < 0) /* the first one: somewhere inside a gap */
			gap = draw_gap(&r, win) * ctn_sim_random_uniform(&r);
		while (at + gap / rate < until) {
			int rc;

			at += gap / rate;
			rc = ctn_sim_workload_add(w, at, model, 0, err);
			if (rc)
				return rc;
			gap = draw_gap(&r, win);
		}
		gap -= (until - at) * rate;
	}
	return 0;
}

/* ---- the folder ------------------------------------------------------------------------- */

static int add_client(struct client **clients, uint32_t *count, const char *dir, const char *name,
		      struct ctn_err *err)
{
	const char *dash = strrchr(name, '-');
	char *end = NULL;
	unsigned long number = dash ? strtoul(dash + 1, &end, 10) : 0;
	struct client *list;

	if (!dash || end == dash + 1 || strcmp(end, ".csv"))
		return 0;
	if (*count == MAX_CLIENTS)
		return ctn_err_set(err, -EINVAL, "expected at most %d clients", MAX_CLIENTS);
	list = realloc(*clients, (*count + 1) * sizeof(*list));
	if (!list)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	*clients = list;
	list[*count] =
		(struct client){.number = (uint32_t)number, .path = ctn_path_join(dir, name)};
	if (!list[*count].path)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	(*count)++;
	return 0;
}

static int by_number(const void *a, const void *b)
{
	const struct client *x = a, *y = b;

	return x->number < y->number ? -1 : x->number > y->number;
}

static int read_folder(const char *dir, struct client **clients, uint32_t *count,
		       struct ctn_err *err)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	int rc = 0;

	if (!d)
		return ctn_err_set(err, -errno, "%s: %s", dir, strerror(errno));
	while (!rc && (e = readdir(d)))
		rc = add_client(clients, count, dir, e->d_name, err);
	closedir(d);
	if (!rc && *count == 0)
		rc = ctn_err_set(err, -ENOENT, "%s: expected files NAME-NUMBER.csv, found none",
				 dir);
	if (*count)
		qsort(*clients, *count, sizeof(**clients), by_number);
	for (uint32_t i = 0; i < *count && !rc; i++) {
		rc = read_client(&(*clients)[i], err);
		if (!rc && (*clients)[i].count < 2)
			rc = ctn_err_set(err, -EINVAL, "%s: expected two windows or more",
					 (*clients)[i].path);
	}
	return rc;
}

int ctn_sim_servegen(const char *dir, double rate, double hours, uint64_t seed,
		     struct ctn_sim_workload *w, struct ctn_err *err)
{
	struct client *clients = NULL;
	double total = 0, end_s = 0;
	int rc = read_folder(dir, &clients, &w->models, err);

	for (uint32_t i = 0; i < w->models && !rc; i++) {
		total += mean_rate(&clients[i]);
		end_s = CTN_MAX(end_s, window_end(&clients[i], clients[i].count - 1));
	}
	if (!rc && !(total > 0))
		rc = ctn_err_set(err, -EINVAL, "%s: all rates are 0", dir);
	if (hours > 0)
		end_s = CTN_MIN(end_s, hours * 3600);
	for (uint32_t i = 0; i < w->models && !rc; i++)
		rc = client_arrivals(&clients[i], i, rate / total, end_s, seed, w, err);
	w->end_ns = (uint64_t)(end_s * 1e9);
	for (uint32_t i = 0; clients && i < w->models; i++) {
		free(clients[i].path);
		free(clients[i].windows);
	}
	free(clients);
	return rc;
}
