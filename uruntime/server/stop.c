// SPDX-License-Identifier: MIT
#include "server/stop.h"

#include <string.h>

/* The longest stop string that ends at text + end; 0 when none does. */
static size_t ends_here(const struct ctn_stop *stops, size_t count, const char *text, size_t end)
{
	size_t longest = 0;

	for (size_t i = 0; i < count; i++) {
		size_t len = stops[i].len;

		if (len <= end && len > longest &&
		    memcmp(text + end - len, stops[i].text, len) == 0)
			longest = len;
	}
	return longest;
}

bool ctn_stop_find(const struct ctn_stop *stops, size_t count, const char *text, size_t len,
		   size_t seen, size_t *cut)
{
	size_t keep = 0;

	for (size_t end = seen + 1; end <= len; end++) {
		size_t match = ends_here(stops, count, text, end);

		if (match) {
			*cut = end - match;
			return true;
		}
	}
	for (size_t i = 0; i < count; i++) {
		size_t n = CTN_MIN(stops[i].len - 1, len);

		while (n > keep && memcmp(text + len - n, stops[i].text, n) != 0)
			n--;
		keep = CTN_MAX(keep, n);
	}
	*cut = len - keep;
	return false;
}
