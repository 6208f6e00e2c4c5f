// SPDX-License-Identifier: MIT
/* The pool as people describe it: --pool of the daemon and of the benchmarks. */
#include "pool/pool.h"

#include <string.h>

uint64_t ctn_pool_default_bytes(void)
{
	uint64_t bytes;

	return ctn_memory_usable("", &bytes) ? CTN_GIB : bytes / 4;
}

int ctn_pool_parse_spec(const char *spec, struct ctn_opts *opts, struct ctn_pool_config *cfg,
			struct ctn_err *err)
{
	static const char *const known[] = {"", "size", "hot", "floor", "segment", NULL};
	uint64_t *const sizes[] = {NULL, &cfg->bytes, &cfg->hot_bytes, &cfg->floor_bytes,
				   &cfg->segment_bytes};
	int rc = ctn_opts_parse(spec, opts, err);
	char *colon;

	if (rc == 0)
		rc = ctn_opts_check(opts, "options", known, err);
	for (size_t i = 1; known[i] && rc == 0; i++) {
		const char *value = ctn_opts_get(opts, known[i]);

		if (!value)
			continue;
		rc = ctn_parse_size(value, sizes[i], err);
		if (rc)
			ctn_err_prefix(err, "%s", known[i]);
	}
	if (rc == 0 && ctn_opts_get(opts, "size"))
		cfg->bytes_wished = false;
	if (rc || opts->items[0].key[0])
		return rc;
	cfg->provider = opts->items[0].value;
	colon = strchr(opts->items[0].value, ':');
	if (colon) {
		*colon = '\0';
		cfg->name = colon + 1;
	}
	return 0;
}
