// SPDX-License-Identifier: MIT
/* The input is the YAML file of computrond; what it says is then read as the daemon does. */
#include "fuzz.h"
#include "daemon/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAME "config.yaml"

static void check_lists(const struct ctn_options *o)
{
	const char *const values[] = {o->device, o->pool};

	for (size_t i = 0; i < CTN_ARRAY_LEN(values); i++) {
		struct ctn_opts opts;
		struct ctn_err err = {0};
		int rc;

		if (!values[i])
			continue;
		rc = ctn_opts_parse(values[i], &opts, &err);
		fuzz_check_err(rc, &err);
		if (rc)
			continue;
		for (size_t k = 0; k < opts.count; k++)
			FUZZ_CHECK(ctn_opts_get(&opts, opts.items[k].key) == opts.items[k].value);
		ctn_opts_free(&opts);
	}
}

static void check(const struct ctn_options *o)
{
	struct ctn_err err = {0};
	uint64_t v;

	for (size_t i = 0; i < o->model_count; i++) {
		const struct ctn_model_option *m = &o->models[i];

		FUZZ_CHECK(m->name[0] && m->dir[0]);
		FUZZ_CHECK(!m->devices == !m->device_count);
	}
	check_lists(o);
	if (o->max_body)
		fuzz_check_err(ctn_parse_size(o->max_body, &v, &err), &err);
	if (o->max_queue)
		fuzz_check_err(ctn_parse_u64("max-queue", o->max_queue, 1, 1u << 20, &v, &err),
			       &err);
}

int fuzz_one(const uint8_t *data, size_t size)
{
	struct ctn_options o = {0};
	struct ctn_err err = {0};
	char *path;
	int rc;

	fuzz_put(NAME, data, size);
	path = ctn_path_join(fuzz_dir(), NAME);
	if (!path)
		return -ENOMEM;
	rc = ctn_config_read(path, &o, &err);
	free(path);
	fuzz_check_err(rc, &err);
	if (!rc)
		check(&o);
	ctn_options_free(&o);
	return rc;
}
