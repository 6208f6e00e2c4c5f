/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Tracepoints: /sys/kernel/tracing/events/computron.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM computron

#if !defined(COMPUTRON_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define COMPUTRON_TRACE_H

#include <linux/tracepoint.h>

#include "include/uapi/linux/computron.h"

/* clang-format off */

DECLARE_EVENT_CLASS(computron_frame,
	TP_PROTO(const char *pool, const struct computron_ref *ref, u64 bytes, s64 what),
	TP_ARGS(pool, ref, bytes, what),
	TP_STRUCT__entry(
		__array(char, pool, COMPUTRON_NAME_BYTES)
		__field(u64, id)
		__field(u64, generation)
		__field(u64, bytes)
		__field(s64, what)
	),
	TP_fast_assign(
		strscpy(__entry->pool, pool, COMPUTRON_NAME_BYTES);
		__entry->id = ref->id;
		__entry->generation = ref->generation;
		__entry->bytes = bytes;
		__entry->what = what;
	),
	TP_printk("pool=%s id=%llu generation=%llu bytes=%llu what=%lld", __entry->pool, __entry->id,
		  __entry->generation, __entry->bytes, __entry->what)
);

/* what: bytes in huge pages, -1 before populate */
DEFINE_EVENT(computron_frame, computron_alloc,
	TP_PROTO(const char *pool, const struct computron_ref *ref, u64 bytes, s64 what),
	TP_ARGS(pool, ref, bytes, what)
);

/* what: bytes in huge pages */
DEFINE_EVENT(computron_frame, computron_seal,
	TP_PROTO(const char *pool, const struct computron_ref *ref, u64 bytes, s64 what),
	TP_ARGS(pool, ref, bytes, what)
);

/* what: leases after it */
DEFINE_EVENT(computron_frame, computron_lease,
	TP_PROTO(const char *pool, const struct computron_ref *ref, u64 bytes, s64 what),
	TP_ARGS(pool, ref, bytes, what)
);

/* what: 1 because memory was short, 0 by request */
DEFINE_EVENT(computron_frame, computron_evict,
	TP_PROTO(const char *pool, const struct computron_ref *ref, u64 bytes, s64 what),
	TP_ARGS(pool, ref, bytes, what)
);

/* what: the error */
DEFINE_EVENT(computron_frame, computron_refuse,
	TP_PROTO(const char *pool, const struct computron_ref *ref, u64 bytes, s64 what),
	TP_ARGS(pool, ref, bytes, what)
);

/* clang-format on */

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
