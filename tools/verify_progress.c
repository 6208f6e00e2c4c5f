// SPDX-License-Identifier: MIT
#include "verify.h"

#include <stdio.h>
#include <unistd.h>

#define WIDTH 30u

void ctn_progress_begin(struct ctn_progress *p, uint64_t total)
{
	*p = (struct ctn_progress){
		.on = isatty(STDERR_FILENO) == 1, .total = total, .begun = ctn_now_ns()};
}

void ctn_progress_show(const struct ctn_progress *p, uint64_t done)
{
	const double seconds = (double)(ctn_now_ns() - p->begun) / CTN_NSEC_PER_SEC;
	const double share = p->total ? (double)done / (double)p->total : 1;
	const double rate = seconds > 0 ? (double)done / seconds : 0;
	const unsigned int filled = (unsigned int)(share * WIDTH);
	char bar[WIDTH + 1], at[32], total[32], speed[32], eta[32] = "--:--";

	if (!p->on)
		return;
	for (unsigned int i = 0; i < WIDTH; i++)
		bar[i] = i < filled ? '#' : '.';
	bar[WIDTH] = '\0';
	if (rate > 0) {
		const uint64_t left = (uint64_t)((double)(p->total - done) / rate + 0.5);

		snprintf(eta, sizeof(eta), "%llu:%02llu", (unsigned long long)left / 60,
			 (unsigned long long)left % 60);
	}
	fprintf(stderr, "\r[%s] %3.0f %%  %s of %s  %s/s  ETA %s\033[K", bar, 100 * share,
		ctn_format_size(done, at), ctn_format_size(p->total, total),
		ctn_format_size((uint64_t)rate, speed), eta);
}

void ctn_progress_clear(const struct ctn_progress *p)
{
	if (p->on)
		fputs("\r\033[K", stderr);
}
