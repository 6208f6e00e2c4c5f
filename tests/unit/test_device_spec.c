// SPDX-License-Identifier: MIT
/* The --device value, the properties that it gives, and the memory that is taken without mem=. */
#include "test.h"
#include "device/host.h"

#include <errno.h>
#include <limits.h>
#include <sys/stat.h>

static void test_every_key_shows_in_the_properties(void)
{
	struct ctn_device *devices[CTN_MAX_DEVICES];
	const struct ctn_device_props *props;
	struct ctn_err err = {0};
	uint32_t count = 0;

	CU_ASSERT_EQUAL_FATAL(ctn_devices_open("host:4,mem=3M,link=200M,uplink=0-1:300M,3-3:50M,"
					       "layer_ms=2.5",
					       devices, &count, &err),
			      0);
	CU_ASSERT_EQUAL_FATAL(count, 4);
	for (uint32_t i = 0; i < 4; i++) {
		static const char *const ids[] = {"host:0", "host:1", "host:2", "host:3"};
		static const int uplinks[] = {0, 0, -1, 1};
		static const uint64_t rates[] = {300000000, 300000000, 0, 50000000};

		props = ctn_device_props(devices[i]);
		CU_ASSERT_STRING_EQUAL(props->id, ids[i]);
		CU_ASSERT_STRING_EQUAL(props->backend, "host");
		CU_ASSERT_EQUAL(props->mem_bytes, 3145728);
		CU_ASSERT_EQUAL(props->link_rate, 200000000);
		CU_ASSERT_EQUAL(props->uplink, uplinks[i]);
		CU_ASSERT_EQUAL(props->uplink_rate, rates[i]);
		CU_ASSERT_EQUAL(props->layer_ns, 2500000);
		CU_ASSERT_EQUAL(props->mem_bytes % props->granule, 0);
		CU_ASSERT_PTR_NOT_NULL(ctn_device_kernels(devices[i]));
	}
	ctn_devices_close(devices, count);
}

static void test_memory_is_never_more_than_asked_for(void)
{
	static const struct {
		const char *spec;
		uint64_t bytes, granule;
	} cases[] = {
		{"host,mem=1000000", 983040, 65536},              /* 15 x 64K */
		{"host,mem=268435455", 268369920, 65536},         /* 4095 x 64K */
		{"host,mem=257M", 268435456, 2097152},            /* 128 x 2M */
		{"host,mem=64K,link=0,layer_ms=0", 65536, 65536}, /* 0 is none */
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_device *devices[CTN_MAX_DEVICES];
		uint32_t count = 0;

		CU_ASSERT_EQUAL_FATAL(ctn_devices_open(cases[i].spec, devices, &count, NULL), 0);
		CU_ASSERT_EQUAL(count, 1);
		CU_ASSERT_EQUAL(ctn_device_props(devices[0])->mem_bytes, cases[i].bytes);
		CU_ASSERT_EQUAL(ctn_device_props(devices[0])->granule, cases[i].granule);
		CU_ASSERT_EQUAL(ctn_device_props(devices[0])->link_rate, 0);
		CU_ASSERT_EQUAL(ctn_device_props(devices[0])->uplink, -1);
		CU_ASSERT_EQUAL(ctn_device_props(devices[0])->layer_ns, 0);
		ctn_devices_close(devices, count);
	}
}

static void test_bad_values_are_refused_by_name(void)
{
	static const struct {
		const char *spec;
		int rc;
		const char *names;
	} cases[] = {
		{"", -EINVAL, "backend"},
		{"mem=1M", -EINVAL, "backend"},
		{"cuda", -ENOTSUP, "this build has no cuda backend"},
		{"cuda:0,1", -ENOTSUP, "this build has no cuda backend"},
		{"hos,mem=1M", -ENOTSUP, "no hos backend"},
		{"host,colour=red", -EINVAL, "colour"},
		{"host,mem=1M,mem=2M", -EINVAL, "mem"},
		{"host:0,mem=1M", -ERANGE, "number of devices"},
		{"host:65,mem=1M", -ERANGE, "number of devices"},
		{"host:x,mem=1M", -EINVAL, "number of devices"},
		{"host:2:2,mem=1M", -EINVAL, "number of devices"},
		{"host:1,2,mem=1M", -EINVAL, "number of devices"},
		{"host,mem=", -EINVAL, "mem"},
		{"host,mem=lots", -EINVAL, "mem"},
		{"host,mem=0", -ERANGE, "mem"},
		{"host,mem=65535", -ERANGE, "mem"},
		{"host,mem=17T", -ERANGE, "mem"},
		{"host,mem=1M,link=fast", -EINVAL, "link"},
		{"host,mem=1M,link=-1", -EINVAL, "link"},
		{"host,mem=1M,layer_ms=", -EINVAL, "layer_ms"},
		{"host,mem=1M,layer_ms=1ms", -EINVAL, "layer_ms"},
		{"host,mem=1M,layer_ms=60001", -ERANGE, "layer_ms"},
		{"host,mem=1M,layer_ms=nan", -EINVAL, "layer_ms"},
		{"host:2,mem=1M,uplink=", -EINVAL, "uplink"},
		{"host:2,mem=1M,uplink=0-1", -EINVAL, "uplink"},
		{"host:2,mem=1M,uplink=0:1M", -EINVAL, "uplink"},
		{"host:2,mem=1M,uplink=0-2:1M", -ERANGE, "uplink"},
		{"host:2,mem=1M,uplink=1-0:1M", -ERANGE, "uplink"},
		{"host:2,mem=1M,uplink=0-1:0", -EINVAL, "uplink"},
		{"host:2,mem=1M,uplink=0-1:", -EINVAL, "uplink"},
		{"host:4,mem=1M,uplink=0-2:1M,2-3:1M", -EINVAL, "uplink"},
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_device *devices[CTN_MAX_DEVICES];
		struct ctn_err err = {0};
		uint32_t count = 0;
		int rc = ctn_devices_open(cases[i].spec, devices, &count, &err);

		CU_ASSERT_EQUAL(rc, cases[i].rc);
		CU_ASSERT_EQUAL(err.code, cases[i].rc);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, cases[i].names));
		if (rc != cases[i].rc || !strstr(err.msg, cases[i].names))
			printf("# %s: %d %s\n", cases[i].spec, rc, err.msg);
		if (rc == 0)
			ctn_devices_close(devices, count);
	}
}

/* As many groups as there can be devices, and one more, which must be one of theirs. */
static void test_a_group_too_many_is_refused(void)
{
	struct ctn_device *devices[CTN_MAX_DEVICES];
	struct ctn_buf spec = {0};
	struct ctn_err err = {0};
	uint32_t count = 0;

	ctn_buf_printf(&spec, "host:%u,mem=1M,uplink=", CTN_MAX_DEVICES);
	for (unsigned int i = 0; i <= CTN_MAX_DEVICES; i++)
		ctn_buf_printf(&spec, "%s%u-%u:1M", i ? "," : "", i % CTN_MAX_DEVICES,
			       i % CTN_MAX_DEVICES);
	CU_ASSERT_EQUAL(ctn_devices_open(spec.data, devices, &count, &err), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "devices 0-0: one of them has an uplink already"));
	ctn_buf_free(&spec);
}

/* ---- memory by default ------------------------------------------------------------------ */

static void test_default_memory_is_half_for_all_devices_together(void)
{
	struct ctn_device *devices[CTN_MAX_DEVICES];
	uint64_t limit, sum = 0;
	uint32_t count = 0;

	CU_ASSERT_EQUAL_FATAL(ctn_memory_usable("", &limit), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_devices_open("host:2", devices, &count, NULL), 0);
	CU_ASSERT_EQUAL(count, 2);
	for (uint32_t i = 0; i < count; i++)
		sum += ctn_device_props(devices[i])->mem_bytes;
	/* What is available changes from moment to moment on a shared machine. */
	CU_ASSERT(sum > limit / 4);
	CU_ASSERT(sum < limit);
	ctn_devices_close(devices, count);
}

CTN_TESTS("device_spec", CTN_TEST(test_every_key_shows_in_the_properties),
	  CTN_TEST(test_memory_is_never_more_than_asked_for),
	  CTN_TEST(test_bad_values_are_refused_by_name), CTN_TEST(test_a_group_too_many_is_refused),
	  CTN_TEST(test_default_memory_is_half_for_all_devices_together))
