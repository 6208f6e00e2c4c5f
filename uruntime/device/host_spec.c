// SPDX-License-Identifier: MIT
/* The --device value of the host backend: host[:N],mem=,link=,uplink=,layer_ms=. */
#include "device/host.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MEM_MAX      (CTN_GIB << 14)
#define LAYER_MS_MAX 60000

/* "A-B:RATE" */
static int parse_uplink(char *s, const struct ctn_host_spec *spec,
			struct ctn_host_uplink_spec *uplink, struct ctn_err *err)
{
	char *dash = strchr(s, '-'), *colon = strchr(s, ':');
	uint64_t first, last;
	int rc;

	if (!dash || !colon || dash > colon)
		return ctn_err_set(err, -EINVAL, "expected A-B:RATE, found \"%s\"", s);
	*dash = '\0';
	*colon = '\0';
	rc = ctn_parse_u64("first device", s, 0, spec->devices - 1, &first, err);
	if (rc)
		return rc;
	rc = ctn_parse_u64("last device", dash + 1, first, spec->devices - 1, &last, err);
	if (rc)
		return rc;
	rc = ctn_parse_rate(colon + 1, &uplink->rate, err);
	if (rc)
		return rc;
	if (uplink->rate == 0)
		return ctn_err_set(err, -EINVAL, "devices %s-%s: expected a rate above 0", s,
				   dash + 1);
	uplink->first = (uint32_t)first;
	uplink->last = (uint32_t)last;
	for (uint32_t i = 0; i < spec->uplink_count; i++) {
		const struct ctn_host_uplink_spec *other = &spec->uplinks[i];

		if (uplink->first <= other->last && other->first <= uplink->last)
			return ctn_err_set(err, -EINVAL,
					   "devices %s-%s: one of them has an uplink already", s,
					   dash + 1);
	}
	return 0;
}

static int parse_uplinks(const char *value, struct ctn_host_spec *spec, struct ctn_err *err)
{
	char *copy = strdup(value), *save = NULL;
	int rc = 0;

	if (!copy)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	for (char *s = strtok_r(copy, ",", &save); s && !rc; s = strtok_r(NULL, ",", &save)) {
		struct ctn_host_uplink_spec uplink;

		rc = parse_uplink(s, spec, &uplink, err);
		/* Groups do not overlap, so there is room for as many as there are devices. */
		if (!rc)
			spec->uplinks[spec->uplink_count++] = uplink;
	}
	if (!rc && spec->uplink_count == 0)
		rc = ctn_err_set(err, -EINVAL, "expected A-B:RATE, found \"\"");
	free(copy);
	return rc;
}

static int parse_mem(const char *value, struct ctn_host_spec *spec, struct ctn_err *err)
{
	uint64_t bytes, granule;
	int rc = ctn_parse_size(value, &bytes, err);

	if (rc)
		return rc;
	if (bytes > MEM_MAX)
		return ctn_err_set(err, -ERANGE, "expected at most 16T, found %s", value);
	granule = ctn_host_memory_granule(bytes);
	if (bytes < granule)
		return ctn_err_set(err, -ERANGE, "expected at least %lluK, found %s",
				   (unsigned long long)(granule / CTN_KIB), value);
	spec->mem_bytes = ctn_align_down(bytes, granule);
	return 0;
}

static int parse_link(const char *value, struct ctn_host_spec *spec, struct ctn_err *err)
{
	return ctn_parse_rate(value, &spec->link_rate, err);
}

/* Milliseconds, possibly with a fraction: a small model's layers take less than one. */
static int parse_layer_ms(const char *value, struct ctn_host_spec *spec, struct ctn_err *err)
{
	double ms;
	char *end;

	if (!isdigit((unsigned char)value[0]))
		return ctn_err_set(err, -EINVAL, "expected milliseconds, found \"%s\"", value);
	ms = strtod(value, &end);
	if (*end)
		return ctn_err_set(err, -EINVAL, "expected milliseconds, found \"%s\"", value);
	if (!(ms <= LAYER_MS_MAX))
		return ctn_err_set(err, -ERANGE, "expected at most %d, found %s", LAYER_MS_MAX,
				   value);
	spec->layer_ns = (uint64_t)(ms * 1e6);
	return 0;
}

int ctn_host_spec_parse(const char *args, const struct ctn_opts *opts, struct ctn_host_spec *spec,
			struct ctn_err *err)
{
	static const struct {
		const char *key;
		int (*parse)(const char *value, struct ctn_host_spec *spec, struct ctn_err *err);
	} keys[] = {{"mem", parse_mem},
		    {"link", parse_link},
		    {"uplink", parse_uplinks},
		    {"layer_ms", parse_layer_ms}};
	static const char *const known[] = {"", "mem", "link", "uplink", "layer_ms", NULL};
	uint64_t devices = 1;
	int rc;

	*spec = (struct ctn_host_spec){0};
	rc = ctn_opts_check(opts, "options", known, err);
	if (rc)
		return rc;
	if (*args) {
		rc = ctn_parse_u64("number of devices", args, 1, CTN_MAX_DEVICES, &devices, err);
		if (rc)
			return rc;
	}
	spec->devices = (uint32_t)devices;
	for (size_t i = 0; i < CTN_ARRAY_LEN(keys); i++) {
		const char *value = ctn_opts_get(opts, keys[i].key);

		if (!value)
			continue;
		rc = keys[i].parse(value, spec, err);
		if (rc) {
			ctn_err_prefix(err, "%s", keys[i].key);
			return rc;
		}
	}
	return 0;
}
