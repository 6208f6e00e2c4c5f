// SPDX-License-Identifier: MIT
/* The same curves as a picture. */
#include "sim.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 720, HEIGHT = 400, LEFT = 60, RIGHT = 170, TOP = 20, BOTTOM = 50, POINTS = 400 };

static const char *const colours[] = {"#1b6ca8", "#c0392b", "#27813f", "#8e44ad",
				      "#b7770d", "#444444", "#16a0a0", "#d35fa0"};

struct axis {
	double least, most;
};

static double x_of(const struct axis *a, double s)
{
	double part = log(s / a->least) / log(a->most / a->least);

	return LEFT + part * (WIDTH - LEFT - RIGHT);
}

static double y_of(double share)
{
	return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

static void grid(FILE *out, const struct axis *a)
{
	for (int i = 0; i <= 4; i++)
		fprintf(out,
			"<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" "
			"text-anchor=\"end\">%d %%</text>\n",
			LEFT, y_of(i / 4.0), WIDTH - RIGHT, LEFT - 6, y_of(i / 4.0) + 4, 25 * i);
	for (double s = pow(10, ceil(log10(a->least))); s <= a->most; s *= 10)
		fprintf(out,
			"<path d=\"M%.1f %dV%d\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%d\" "
			"text-anchor=\"middle\">%g s</text>\n",
			x_of(a, s), TOP, HEIGHT - BOTTOM, x_of(a, s), HEIGHT - BOTTOM + 18, s);
	fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">latency of a request</text>\n",
		(LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10);
}

static void curve(FILE *out, const struct axis *a, const struct ctn_sim_figures *f,
		  const char *name, uint32_t i)
{
	const char *colour = colours[i % CTN_ARRAY_LEN(colours)];

	fprintf(out, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" d=\"", colour);
	for (int p = 0; p <= POINTS && f->served; p++) {
		size_t rank = (size_t)((double)(f->served - 1) * p / POINTS);
		double s = CTN_MAX(f->sorted_s[rank], a->least);

		fprintf(out, "%c%.1f %.1f", p ? 'L' : 'M', x_of(a, s), y_of((double)p / POINTS));
	}
	fprintf(out, "\"/>\n<text x=\"%d\" y=\"%u\" fill=\"%s\">%s</text>\n", WIDTH - RIGHT + 14,
		TOP + 16 + 18 * i, colour, name);
}

int ctn_sim_write_svg(const char *path, const struct ctn_sim_result *r,
		      const struct ctn_sim_figures *f, uint32_t count, struct ctn_err *err)
{
	struct axis a = {HUGE_VAL, 0};
	FILE *out = fopen(path, "we");
	bool failed;

	if (!out)
		return ctn_err_set(err, -errno, "%s: %s", path, strerror(errno));
	for (uint32_t i = 0; i < count; i++) {
		if (f[i].served == 0)
			continue;
		a.least = CTN_MIN(a.least, f[i].sorted_s[0]);
		a.most = CTN_MAX(a.most, f[i].max_s);
	}
	a.least = CTN_MAX(CTN_MIN(a.least, a.most / 10), a.most / 1e6);
	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
		"font-family=\"sans-serif\" font-size=\"12\">\n"
		"<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
		WIDTH, HEIGHT, WIDTH, HEIGHT);
	if (a.most > 0) {
		grid(out, &a);
		for (uint32_t i = 0; i < count; i++)
			curve(out, &a, &f[i], r[i].policy, i);
	}
	fprintf(out, "</svg>\n");
	failed = ferror(out);
	if (fclose(out) || failed)
		return ctn_err_set(err, -EIO, "%s: not written", path);
	return 0;
}
