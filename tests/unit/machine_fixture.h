/* SPDX-License-Identifier: MIT */
/* What stands below a pager: devices, a stage, a pool. */
#ifndef CTN_TEST_MACHINE_FIXTURE_H
#define CTN_TEST_MACHINE_FIXTURE_H

#include "pool_fixture.h"
#include "device/device.h"
#include "stage/stage.h"

/* Closes all, after holding that whoever was above has left no byte anywhere. */
static inline void machine_close(struct ctn_device **devices, uint32_t device_count,
				 struct ctn_stage *stage, struct ctn_pool *pool)
{
	struct ctn_pool_stats stats;

	for (uint32_t d = 0; d < device_count; d++) {
		struct ctn_device_memory mem;

		ctn_device_get_memory(devices[d], &mem);
		CU_ASSERT_EQUAL(mem.free, mem.total);
	}
	ctn_devices_close(devices, device_count);
	ctn_stage_close(stage);
	ctn_pool_get_stats(pool, false, &stats);
	CU_ASSERT_EQUAL(stats.loading_bytes, 0);
	CU_ASSERT_EQUAL(stats.leased_bytes, 0);
	ctn_pool_close(pool);
}

#endif
