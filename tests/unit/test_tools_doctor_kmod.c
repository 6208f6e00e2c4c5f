// SPDX-License-Identifier: MIT
/* What `computron doctor` finds of the kernel module. */
#include "test.h"
#include "kmod_fixture.h"
#include "tools/doctor.h"

static struct ctn_finding ask(const struct module *m, uint64_t bytes)
{
	struct ctn_doctor d = {
		.root = "", .pool_bytes = bytes, .kmod_sys = m->fake ? m->sys : NULL};

	ctn_doctor_examine(&d);
	for (uint32_t i = 0; i < d.count; i++) {
		if (strcmp(d.findings[i].name, "kernel module") == 0)
			return d.findings[i];
	}
	return (struct ctn_finding){.name = "none"};
}

static void test_a_module_that_serves(void)
{
	struct ctn_finding f;
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	if (m.fake)
		fake_kmod_faults(m.fake)->max_bytes = 64 * CTN_MIB;
	pool = module_pool(&m, 24 * CTN_MIB, 0);
	f = ask(&m, 40 * CTN_MIB);
	CU_ASSERT_EQUAL(f.state, CTN_DOCTOR_OK);
	CU_ASSERT_PTR_NOT_NULL(strstr(f.got, "1 pools, 24.00 MiB of at most "));
	CU_ASSERT_STRING_EQUAL(f.why, "");
	/* It has made none itself. */
	CU_ASSERT_EQUAL(strcmp(ask(&m, 40 * CTN_MIB).got, f.got), 0);
	if (m.fake) {
		f = ask(&m, 41 * CTN_MIB);
		CU_ASSERT_EQUAL(f.state, CTN_DOCTOR_WORSE);
		CU_ASSERT_PTR_NOT_NULL(strstr(f.why, "leaves 41943040 bytes"));
		CU_ASSERT_PTR_NOT_NULL(strstr(f.mend, "echo 68157440 >"));
	}
	ctn_pool_close(pool);
	module_free(&m);
}

static void test_a_module_that_does_not(void)
{
	static const struct {
		int open, info;
		uint64_t unit;
		const char *why, *mend;
	} cases[] = {
		{-ENOENT, 0, 0, "no /dev/computron", "modprobe computron"},
		{-EACCES, 0, 0, "not permitted", "usermod -aG computron"},
		{0, -ENOTTY, 0, "no computron module", "dkms-install"},
		{0, 0, 4096, "units of 4096 bytes", "dkms-install"},
	};
	struct module m;

	module_new(&m);
	NEEDS_FAKE(&m);
	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_finding f;

		fake_kmod_faults(m.fake)->open = cases[i].open;
		fake_kmod_faults(m.fake)->info = cases[i].info;
		fake_kmod_faults(m.fake)->unit = cases[i].unit;
		f = ask(&m, 8 * CTN_MIB);
		CU_ASSERT_EQUAL(f.state, CTN_DOCTOR_WORSE);
		CU_ASSERT_PTR_NOT_NULL(strstr(f.why, cases[i].why));
		CU_ASSERT_PTR_NOT_NULL(strstr(f.mend, cases[i].mend));
	}
	fake_kmod_faults(m.fake)->open = 0;
	fake_kmod_faults(m.fake)->info = 0;
	fake_kmod_faults(m.fake)->unit = 0;
	module_free(&m);
}

CTN_TESTS("tools_doctor_kmod", CTN_TEST(test_a_module_that_serves),
	  CTN_TEST(test_a_module_that_does_not))
