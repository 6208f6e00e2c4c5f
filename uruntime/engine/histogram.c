// SPDX-License-Identifier: MIT
/* Histograms and the names that metrics use. */
#include "engine/state.h"

const double ctn_histogram_bounds[CTN_HISTOGRAM_BUCKETS - 1] = {
	0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};

void histogram_add(struct ctn_histogram *h, double seconds)
{
	int i = 0;

	while (i < CTN_HISTOGRAM_BUCKETS - 1 && seconds > ctn_histogram_bounds[i])
		i++;
	h->buckets[i]++;
	h->count++;
	h->sum_s += seconds;
}

const char *ctn_outcome_name(enum ctn_outcome outcome)
{
	static const char *const names[CTN_OUTCOMES] = {"ok", "cancelled", "timeout", "error",
							"refused"};

	return names[outcome];
}

const char *ctn_move_name(enum ctn_move move)
{
	static const char *const names[CTN_MOVES] = {"stage", "load", "drop_device", "drop_host"};

	return names[move];
}

const char *ctn_move_outcome_name(enum ctn_move_outcome outcome)
{
	static const char *const names[CTN_MOVE_OUTCOMES] = {"ok", "failed", "cancelled"};

	return names[outcome];
}

const char *ctn_ahead_name(enum ctn_ahead outcome)
{
	static const char *const names[CTN_AHEAD_OUTCOMES] = {"hit", "cancelled", "dropped"};

	return names[outcome];
}

const char *ctn_predicted_name(enum ctn_predicted what)
{
	static const char *const names[CTN_PREDICTED] = {"load", "stage", "step"};

	return names[what];
}
