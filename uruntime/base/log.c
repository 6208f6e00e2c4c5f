// SPDX-License-Identifier: MIT
#include "base/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int log_level = CTN_LOG_INFO;

void ctn_log_set_level(enum ctn_log_level level)
{
	atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

void ctn_log(enum ctn_log_level level, const char *fmt, ...)
{
	static const char *const names[] = {"error", "warn", "info", "debug"};
	char line[1024];
	struct timespec ts;
	struct tm tm;
	va_list ap;
	size_t len;
	int n;

	if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
		return;
	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	len = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
	n = snprintf(line + len, sizeof(line) - len, ".%03ldZ %s ", ts.tv_nsec / 1000000,
		     names[level]);
	len += (size_t)n;
	va_start(ap, fmt);
	n = vsnprintf(line + len, sizeof(line) - len - 1, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	len = CTN_MIN(len + (size_t)n, sizeof(line) - 2);
	line[len++] = '\n';
	/* A log line that cannot be written has nowhere to be reported. */
	if (write(STDERR_FILENO, line, len) < 0)
		return;
}

uint64_t ctn_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * CTN_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}
