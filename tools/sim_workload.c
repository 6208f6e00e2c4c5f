// SPDX-License-Identifier: MIT
/* Arrivals: drawn from gamma distributions, or read. */
#include "sim.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_TRACE    (256 * CTN_MIB)
#define MAX_MODELS   4096
#define MAX_ARRIVALS ((size_t)20000000)
#define MAX_AT_S     4e9 /* a million hours, and some */

int ctn_sim_workload_add(struct ctn_sim_workload *w, double at_s, uint32_t model, double deadline_s,
			 struct ctn_err *err)
{
	if (w->count == MAX_ARRIVALS)
		return ctn_err_set(err, -E2BIG, "expected at most %zu arrivals", MAX_ARRIVALS);
	if (!(at_s >= 0 && at_s <= MAX_AT_S))
		return ctn_err_set(err, -ERANGE, "an arrival at %g s: expected 0 to %g", at_s,
				   MAX_AT_S);
	if (w->count == w->cap) {
		size_t cap = CTN_MAX(2 * w->cap, (size_t)4096);
		struct ctn_sim_arrival *a = realloc(w->arrivals, cap * sizeof(*a));

		if (!a)
			return ctn_err_set(err, -ENOMEM, "out of memory");
		w->arrivals = a;
		w->cap = cap;
	}
	w->arrivals[w->count++] =
		(struct ctn_sim_arrival){(uint64_t)llround(at_s * 1e9), model, deadline_s};
	return 0;
}

void ctn_sim_workload_free(struct ctn_sim_workload *w)
{
	free(w->arrivals);
	*w = (struct ctn_sim_workload){0};
}

static int by_time(const void *a, const void *b)
{
	const struct ctn_sim_arrival *x = a, *y = b;

	if (x->at_ns != y->at_ns)
		return x->at_ns < y->at_ns ? -1 : 1;
	return x->model < y->model ? -1 : x->model > y->model;
}

/* ---- options ---------------------------------------------------------------------------- */

static int number(const struct ctn_opts *opts, const char *key, double fallback, double *v,
		  struct ctn_err *err)
{
	const char *s = ctn_opts_get(opts, key);
	char *end;

	*v = fallback;
	if (!s)
		return 0;
	*v = strtod(s, &end);
	if (end == s || *end || !(*v >= 0) || *v > 1e6)
		return ctn_err_set(err, -EINVAL, "%s: expected a number, found \"%s\"", key, s);
	return 0;
}

static int required(const struct ctn_opts *opts, const char *key, double *v, struct ctn_err *err)
{
	int rc = number(opts, key, 0, v, err);

	if (rc == 0 && *v <= 0)
		rc = ctn_err_set(err, -EINVAL, "expected %s=NUMBER, more than 0", key);
	return rc;
}

/* Numbers separated by commas into *list (the caller frees it). */
static int numbers(const char *key, const char *s, double **list, uint32_t *count,
		   struct ctn_err *err)
{
	double *v = calloc(strlen(s) + 1, sizeof(*v));
	uint32_t n = 0;

	if (!v)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	for (;;) {
		char *end;

		v[n] = strtod(s, &end);
		if (end == s || (*end && *end != ',') || !(v[n] > 0) || v[n] > 1e6) {
			free(v);
			return ctn_err_set(err, -EINVAL,
					   "%s: expected numbers over 0, found \"%s\"", key, s);
		}
		n++;
		if (!*end)
			break;
		s = end + 1;
	}
	*list = v;
	*count = n;
	return 0;
}

static int model_count(const struct ctn_opts *opts, uint32_t *models, struct ctn_err *err)
{
	const char *s = ctn_opts_get(opts, "models");
	uint64_t v = 0;
	int rc = ctn_parse_u64("models", s ? s : "", 1, MAX_MODELS, &v, err);

	*models = (uint32_t)v;
	return rc;
}

/* Shares of `count` models by popularity 1/k^s, or NULL. */
static double *shares(uint32_t count, double s)
{
	double *p = calloc(count, sizeof(*p)), sum = 0;

	for (uint32_t i = 0; p && i < count; i++)
		sum += p[i] = pow(i + 1, -s);
	for (uint32_t i = 0; p && i < count; i++)
		p[i] /= sum;
	return p;
}

/* ---- gamma ------------------------------------------------------------------------------ */

static int gamma_stream(struct ctn_sim_workload *w, uint32_t model, double rate, double cv,
			double end_s, uint64_t seed, struct ctn_err *err)
{
	double shape = 1 / (cv * cv);
	struct ctn_sim_random r;
	double at;
	int rc = 0;

	ctn_sim_random_init(&r, seed, model);
	at = ctn_sim_random_uniform(&r) * ctn_sim_random_gamma(&r, shape) / rate;
	while (at < end_s && rc == 0) {
		rc = ctn_sim_workload_add(w, at, model, 0, err);
		at += ctn_sim_random_gamma(&r, shape) / rate;
	}
	return rc;
}

static int gamma_rates(const struct ctn_opts *opts, double **rates, uint32_t *count,
		       struct ctn_err *err)
{
	const char *list = ctn_opts_get(opts, "rates");
	double total = 0, zipf = 0;
	int rc;

	if (list)
		return numbers("rates", list, rates, count, err);
	rc = model_count(opts, count, err);
	if (!rc)
		rc = required(opts, "rate", &total, err);
	if (!rc)
		rc = number(opts, "zipf", 0, &zipf, err);
	if (rc)
		return rc;
	*rates = shares(*count, zipf);
	for (uint32_t i = 0; *rates && i < *count; i++)
		(*rates)[i] *= total;
	return *rates ? 0 : ctn_err_set(err, -ENOMEM, "out of memory");
}

static int parse_gamma(const struct ctn_opts *opts, double hours, uint64_t seed,
		       struct ctn_sim_workload *w, struct ctn_err *err)
{
	static const char *const known[] = {"rates", "cv", "models", "rate", "zipf", NULL};
	const char *cv_list = ctn_opts_get(opts, "cv");
	double *rates = NULL, *cvs = NULL;
	double end_s = (hours > 0 ? hours : 1) * 3600;
	uint32_t cv_count;
	int rc = ctn_opts_check(opts, "gamma", known, err);

	if (!rc)
		rc = gamma_rates(opts, &rates, &w->models, err);
	if (!rc)
		rc = numbers("cv", cv_list ? cv_list : "1", &cvs, &cv_count, err);
	for (uint32_t i = 0; i < w->models && !rc; i++)
		rc = gamma_stream(w, i, rates[i], cvs[CTN_MIN(i, cv_count - 1)], end_s, seed, err);
	w->end_ns = (uint64_t)(end_s * 1e9);
	free(rates);
	free(cvs);
	return rc;
}

/* ---- files ------------------------------------------------------------------------------ */

/* "2023-11-16 18:17:03.9799600" -> seconds since the epoch. */
static bool read_timestamp(const char *s, char **end, double *at)
{
	struct tm tm = {0};
	char *rest = strptime(s, "%Y-%m-%d %H:%M:%S", &tm);

	if (!rest)
		return false;
	*at = (double)timegm(&tm);
	*end = rest;
	if (*rest == '.')
		*at += strtod(rest, end);
	return true;
}

/* Words: neither a number, nor what would be one. */
static bool is_header(const char *s)
{
	return strncasecmp(s, "nan", 3) != 0 && strncasecmp(s, "inf", 3) != 0 &&
	       (isalpha((unsigned char)s[0]) || s[0] == '#' || s[0] == '"');
}

/* Calls line() for each line that is not empty, but for a header. */
static int read_lines(const char *path, int (*line)(void *arg, char *text, struct ctn_err *err),
		      void *arg, struct ctn_err *err)
{
	static const char bom[] = "\xef\xbb\xbf";
	char *data, *s, *next;
	size_t len;
	uint32_t number_of_line = 0;
	int rc = ctn_read_file(path, MAX_TRACE, &data, &len, err);

	if (rc)
		return rc;
	if (strlen(data) != len)
		rc = ctn_err_set(err, -EINVAL, "%s: expected text, found a NUL at byte %zu", path,
				 strlen(data));
	next = data + (strncmp(data, bom, 3) == 0 ? 3 : 0);
	while (!rc && (s = strsep(&next, "\n"))) {
		number_of_line++;
		len = strlen(s);
		if (len && s[len - 1] == '\r')
			s[len - 1] = '\0';
		if (strchr(s, '\r')) /* what follows would be left out */
			rc = ctn_err_set(err, -EINVAL, "expected lines that end in a line feed");
		else if (s[0] && !(number_of_line == 1 && is_header(s)))
			rc = line(arg, s, err);
		if (rc)
			ctn_err_prefix(err, "%s:%u", path, number_of_line);
	}
	free(data);
	return rc;
}

struct azure {
	struct ctn_sim_workload *w;
	struct ctn_sim_random random;
	const double *share;
	double first_s, end_s;
	bool started;
};

static uint32_t draw(struct ctn_sim_random *r, const double *share, uint32_t count)
{
	double u = ctn_sim_random_uniform(r);
	uint32_t i = 0;

	while (i + 1 < count && u >= share[i])
		u -= share[i++];
	return i;
}

static int azure_line(void *arg, char *text, struct ctn_err *err)
{
	struct azure *a = arg;
	double at;
	char *end;

	if (!read_timestamp(text, &end, &at) || *end != ',')
		return ctn_err_set(err, -EINVAL,
				   "expected TIMESTAMP,ContextTokens,GeneratedTokens, found \"%s\"",
				   text);
	if (!a->started)
		a->first_s = at;
	a->started = true;
	at = CTN_MAX(at - a->first_s, 0);
	if (at >= a->end_s)
		return 0;
	return ctn_sim_workload_add(a->w, at, draw(&a->random, a->share, a->w->models), 0, err);
}

static int parse_azure(const struct ctn_opts *opts, double hours, uint64_t seed,
		       struct ctn_sim_workload *w, struct ctn_err *err)
{
	static const char *const known[] = {"", "models", "zipf", NULL};
	struct azure a = {.w = w, .end_s = hours > 0 ? hours * 3600 : HUGE_VAL};
	const char *path = ctn_opts_get(opts, "");
	double zipf = 0;
	double *share = NULL;
	int rc = ctn_opts_check(opts, "azure", known, err);

	if (!rc && !path)
		rc = ctn_err_set(err, -EINVAL, "expected azure:FILE,models=N");
	if (!rc)
		rc = model_count(opts, &w->models, err);
	if (!rc)
		rc = number(opts, "zipf", 0, &zipf, err);
	if (rc)
		return rc;
	share = shares(w->models, zipf);
	if (!share)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	a.share = share;
	ctn_sim_random_init(&a.random, seed, 0);
	rc = read_lines(path, azure_line, &a, err);
	free(share);
	return rc;
}

static int csv_line(void *arg, char *text, struct ctn_err *err)
{
	struct ctn_sim_workload *w = arg;
	char *end, *last = text;
	double at = strtod(text, &end), deadline_s = 0;
	unsigned long model = MAX_MODELS;

	if (*end == ',' && isdigit((unsigned char)end[1]))
		model = strtoul(end + 1, &last, 10);
	if (end == text || !(at >= 0) || at > 1e9 || model >= MAX_MODELS || (*last && *last != ','))
		return ctn_err_set(err, -EINVAL,
				   "expected \"seconds,model[,deadline]\", found \"%s\"", text);
	if (*last && last[1]) {
		deadline_s = strtod(last + 1, &end);
		if ((*end && *end != ',') || !(deadline_s > 0) || deadline_s > 1e6)
			return ctn_err_set(
				err, -EINVAL,
				"expected a deadline in seconds after the arrival, found "
				"\"%s\"",
				last + 1);
	}
	w->models = CTN_MAX(w->models, (uint32_t)model + 1);
	return ctn_sim_workload_add(w, at, (uint32_t)model, deadline_s, err);
}

/* Drops what comes after the last hour. */
static void cut(struct ctn_sim_workload *w, double hours)
{
	while (hours > 0 && w->count && (double)w->arrivals[w->count - 1].at_ns >= hours * 3600e9)
		w->count--;
}

static int parse_servegen(const struct ctn_opts *opts, double hours, uint64_t seed,
			  struct ctn_sim_workload *w, struct ctn_err *err)
{
	static const char *const known[] = {"", "rate", NULL};
	const char *dir = ctn_opts_get(opts, "");
	double rate = 0;
	int rc = ctn_opts_check(opts, "servegen", known, err);

	if (!rc && !dir)
		rc = ctn_err_set(err, -EINVAL, "expected servegen:DIR,rate=R");
	if (!rc)
		rc = required(opts, "rate", &rate, err);
	w->mixed_sizes = true;
	return rc ? rc : ctn_sim_servegen(dir, rate, hours, seed, w, err);
}

/* ---- all of them ------------------------------------------------------------------------ */

static int parse_kind(const char *kind, size_t len, const struct ctn_opts *opts, double hours,
		      uint64_t seed, struct ctn_sim_workload *w, struct ctn_err *err)
{
	static const struct {
		const char *name;
		int (*parse)(const struct ctn_opts *opts, double hours, uint64_t seed,
			     struct ctn_sim_workload *w, struct ctn_err *err);
	} kinds[] = {{"gamma", parse_gamma}, {"azure", parse_azure}, {"servegen", parse_servegen}};

	for (size_t i = 0; i < CTN_ARRAY_LEN(kinds); i++) {
		if (strlen(kinds[i].name) == len && strncmp(kinds[i].name, kind, len) == 0)
			return kinds[i].parse(opts, hours, seed, w, err);
	}
	return ctn_err_set(err, -EINVAL, "expected gamma:, azure:, servegen: or csv:");
}

int ctn_sim_workload_parse(const char *spec, double hours, uint64_t seed,
			   struct ctn_sim_workload *w, struct ctn_err *err)
{
	const char *colon = strchr(spec, ':');
	struct ctn_opts opts = {0};
	int rc;

	*w = (struct ctn_sim_workload){0};
	if (!colon) {
		rc = ctn_err_set(err, -EINVAL, "expected KIND:OPTIONS");
	} else if (strncmp(spec, "csv:", 4) == 0) {
		rc = read_lines(colon + 1, csv_line, w, err);
	} else {
		rc = ctn_opts_parse(colon + 1, &opts, err);
		if (!rc)
			rc = parse_kind(spec, (size_t)(colon - spec), &opts, hours, seed, w, err);
		ctn_opts_free(&opts);
	}
	if (!rc) {
		qsort(w->arrivals, w->count, sizeof(*w->arrivals), by_time);
		cut(w, hours);
		if (w->count == 0)
			rc = ctn_err_set(err, -EINVAL, "it has no arrivals");
	}
	if (rc) {
		ctn_sim_workload_free(w);
		return ctn_err_prefix(err, "workload \"%s\"", spec);
	}
	if (!w->end_ns)
		w->end_ns = w->arrivals[w->count - 1].at_ns;
	return 0;
}
