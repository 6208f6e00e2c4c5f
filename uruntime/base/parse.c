// SPDX-License-Identifier: MIT
#include "base/base.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A decimal number, possibly with a fraction, and one unit letter that is a power of `base`. */
static int parse_scaled(const char *what, const char *s, uint64_t base, uint64_t *out,
			struct ctn_err *err)
{
	static const char units[] = "KMGT";
	uint64_t whole, scale = 1, fraction = 0, fraction_div = 1, v;
	char *end;
	const char *unit;

	if (!isdigit((unsigned char)s[0]))
		return ctn_err_set(err, -EINVAL, "%s \"%s\": expected a number such as 512M", what,
				   s);
	errno = 0;
	whole = strtoull(s, &end, 10);
	if (errno == ERANGE)
		return ctn_err_set(err, -ERANGE, "%s \"%s\": too large", what, s);
	if (*end == '.') {
		for (end++; isdigit((unsigned char)*end); end++) {
			if (fraction_div >= 1000000)
				continue;
			fraction = fraction * 10 + (uint64_t)(*end - '0');
			fraction_div *= 10;
		}
	}
	if (*end) {
		unit = strchr(units, toupper((unsigned char)*end));
		if (!unit || end[1])
			return ctn_err_set(err, -EINVAL,
					   "%s \"%s\": expected a number and K, M, G or T", what,
					   s);
		for (const char *u = units; u <= unit; u++)
			scale *= base;
	}
	if (ctn_mul_overflows(whole, scale, &v) ||
	    ctn_add_overflows(
		    v, (uint64_t)((double)fraction / (double)fraction_div * (double)scale), &v))
		return ctn_err_set(err, -ERANGE, "%s \"%s\": too large", what, s);
	*out = v;
	return 0;
}

int ctn_parse_size(const char *s, uint64_t *bytes, struct ctn_err *err)
{
	return parse_scaled("size", s, 1024, bytes, err);
}

int ctn_parse_rate(const char *s, uint64_t *bytes_per_s, struct ctn_err *err)
{
	return parse_scaled("rate", s, 1000, bytes_per_s, err);
}

int ctn_parse_u64(const char *what, const char *s, uint64_t min, uint64_t max, uint64_t *v,
		  struct ctn_err *err)
{
	unsigned long long n;
	char *end;

	if (!isdigit((unsigned char)s[0]))
		return ctn_err_set(err, -EINVAL, "%s: expected a number, found \"%s\"", what, s);
	errno = 0;
	n = strtoull(s, &end, 10);
	if (*end)
		return ctn_err_set(err, -EINVAL, "%s: expected a number, found \"%s\"", what, s);
	if (errno == ERANGE || n < min || n > max)
		return ctn_err_set(err, -ERANGE, "%s: expected %llu to %llu, found %s", what,
				   (unsigned long long)min, (unsigned long long)max, s);
	*v = n;
	return 0;
}

int ctn_parse_signed(const char *what, const char *s, int32_t most, int32_t *v, struct ctn_err *err)
{
	bool minus = s[0] == '-';
	uint64_t n = 0;

	if (ctn_parse_u64(what, s + minus, 0, (uint64_t)most, &n, NULL))
		return ctn_err_set(err, -EINVAL, "%s: expected %d to %d, found \"%s\"", what, -most,
				   most, s);
	*v = minus ? -(int32_t)n : (int32_t)n;
	return 0;
}

char *ctn_format_size(uint64_t bytes, char out[32])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double v = (double)bytes;
	size_t unit = 0;

	while (v >= 1024 && unit + 1 < CTN_ARRAY_LEN(units)) {
		v /= 1024;
		unit++;
	}
	if (unit == 0)
		snprintf(out, 32, "%llu B", (unsigned long long)bytes);
	else
		snprintf(out, 32, "%.2f %s", v, units[unit]);
	return out;
}

static int opts_add(struct ctn_opts *opts, const char *key, size_t key_len, const char *value,
		    size_t value_len)
{
	struct ctn_opt *items = realloc(opts->items, (opts->count + 1) * sizeof(*items));
	struct ctn_opt *item;

	if (!items)
		return -ENOMEM;
	opts->items = items;
	item = &items[opts->count];
	item->key = strndup(key, key_len);
	item->value = strndup(value, value_len);
	if (!item->key || !item->value) {
		free(item->key);
		free(item->value);
		return -ENOMEM;
	}
	opts->count++;
	return 0;
}

static int opts_continue(struct ctn_opt *item, const char *value, size_t len)
{
	size_t old = strlen(item->value);
	char *v = realloc(item->value, old + 1 + len + 1);

	if (!v)
		return -ENOMEM;
	v[old] = ',';
	memcpy(v + old + 1, value, len);
	v[old + 1 + len] = '\0';
	item->value = v;
	return 0;
}

int ctn_opts_parse(const char *s, struct ctn_opts *opts, struct ctn_err *err)
{
	const char *token = s;
	int rc = 0;

	*opts = (struct ctn_opts){0};
	for (;;) {
		size_t len = strcspn(token, ",");
		const char *eq = memchr(token, '=', len);
		char key[64];

		if (eq) {
			size_t key_len = (size_t)(eq - token);

			if (key_len == 0 || key_len >= sizeof(key)) {
				rc = ctn_err_set(err, -EINVAL, "\"%s\": expected key=value", s);
				goto fail;
			}
			memcpy(key, token, key_len);
			key[key_len] = '\0';
			if (ctn_opts_get(opts, key)) {
				rc = ctn_err_set(err, -EINVAL, "\"%s\": %s is given twice", s, key);
				goto fail;
			}
			rc = opts_add(opts, key, key_len, eq + 1, len - key_len - 1);
		} else if (opts->count == 0) {
			rc = opts_add(opts, "", 0, token, len);
		} else {
			rc = opts_continue(&opts->items[opts->count - 1], token, len);
		}
		if (rc) {
			ctn_err_set(err, rc, "out of memory");
			goto fail;
		}
		if (!token[len])
			return 0;
		token += len + 1;
	}
fail:
	ctn_opts_free(opts);
	return rc;
}

const char *ctn_opts_get(const struct ctn_opts *opts, const char *key)
{
	for (size_t i = 0; i < opts->count; i++) {
		if (strcmp(opts->items[i].key, key) == 0)
			return opts->items[i].value;
	}
	return NULL;
}

int ctn_opts_check(const struct ctn_opts *opts, const char *what, const char *const *known,
		   struct ctn_err *err)
{
	for (size_t i = 0; i < opts->count; i++) {
		const char *const *k = known;

		while (*k && strcmp(*k, opts->items[i].key) != 0)
			k++;
		if (!*k)
			return ctn_err_set(err, -EINVAL, "%s: unknown key \"%s\"", what,
					   opts->items[i].key);
	}
	return 0;
}

void ctn_opts_free(struct ctn_opts *opts)
{
	for (size_t i = 0; i < opts->count; i++) {
		free(opts->items[i].key);
		free(opts->items[i].value);
	}
	free(opts->items);
	*opts = (struct ctn_opts){0};
}
