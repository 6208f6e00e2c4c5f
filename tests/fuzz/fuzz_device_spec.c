// SPDX-License-Identifier: MIT
/* The input is the value of --device. */
#include "fuzz.h"
#include "device/host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void check(const struct ctn_host_spec *spec)
{
	FUZZ_CHECK(spec->devices >= 1 && spec->uplink_count <= spec->devices);
	for (uint32_t i = 0; i < spec->uplink_count; i++) {
		const struct ctn_host_uplink_spec *u = &spec->uplinks[i];

		FUZZ_CHECK(u->rate && u->first <= u->last && u->last < spec->devices);
	}
}

int fuzz_one(const uint8_t *data, size_t size)
{
	char *text = strndup((const char *)data, size);
	struct ctn_host_spec spec;
	struct ctn_err err = {0};
	struct ctn_opts opts;
	const char *kind;
	int rc;

	if (!text)
		return -ENOMEM;
	rc = ctn_opts_parse(text, &opts, &err);
	free(text);
	fuzz_check_err(rc, &err);
	if (rc)
		return rc;
	kind = ctn_opts_get(&opts, "");
	rc = ctn_host_spec_parse(kind ? kind : "", &opts, &spec, &err);
	fuzz_check_err(rc, &err);
	if (!rc)
		check(&spec);
	ctn_opts_free(&opts);
	return rc;
}
