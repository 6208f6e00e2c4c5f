// SPDX-License-Identifier: MIT
/* The pool as people describe it. */
#include "test.h"
#include "pool/pool.h"

#include <errno.h>

static const struct ctn_pool_config before = {
	.bytes = 7, .bytes_wished = true, .hot_bytes = UINT64_MAX, .segment_bytes = 9, .node = -1};

static void test_what_is_named_is_set(void)
{
	struct ctn_pool_config cfg = before;
	struct ctn_opts opts;

	CU_ASSERT_EQUAL_FATAL(ctn_pool_parse_spec("kmod:big,size=3G,hot=512M,floor=1G,segment=64M",
						  &opts, &cfg, NULL),
			      0);
	CU_ASSERT_STRING_EQUAL(cfg.provider, "kmod");
	CU_ASSERT_STRING_EQUAL(cfg.name, "big");
	CU_ASSERT_EQUAL(cfg.bytes, 3221225472u);
	CU_ASSERT_EQUAL(cfg.hot_bytes, 536870912u);
	CU_ASSERT_EQUAL(cfg.floor_bytes, 1073741824u);
	CU_ASSERT_EQUAL(cfg.segment_bytes, 67108864u);
	ctn_opts_free(&opts);
}

static void test_the_rest_stays(void)
{
	struct ctn_pool_config cfg = before;
	struct ctn_opts opts;

	CU_ASSERT_EQUAL_FATAL(ctn_pool_parse_spec("size=1M", &opts, &cfg, NULL), 0);
	CU_ASSERT_PTR_NULL(cfg.provider);
	CU_ASSERT_PTR_NULL(cfg.name);
	CU_ASSERT_EQUAL(cfg.bytes, 1048576u);
	CU_ASSERT_FALSE(cfg.bytes_wished);
	CU_ASSERT_EQUAL(cfg.hot_bytes, before.hot_bytes);
	CU_ASSERT_EQUAL(cfg.segment_bytes, before.segment_bytes);
	ctn_opts_free(&opts);

	cfg = before;
	CU_ASSERT_EQUAL_FATAL(ctn_pool_parse_spec("plain", &opts, &cfg, NULL), 0);
	CU_ASSERT_STRING_EQUAL(cfg.provider, "plain");
	CU_ASSERT_PTR_NULL(cfg.name);
	CU_ASSERT_EQUAL(cfg.bytes, before.bytes);
	CU_ASSERT_TRUE(cfg.bytes_wished);
	ctn_opts_free(&opts);
}

static void test_what_is_wrong_is_named(void)
{
	static const struct {
		const char *spec, *word;
		int rc;
	} cases[] = {
		{"thp,size=1X", "size", -EINVAL},
		{"thp,hot=", "hot", -EINVAL},
		{"size=99999999999999999999", "size", -ERANGE},
		{"thp,colour=red", "colour", -EINVAL},
		{"size=1M,size=2M", "twice", -EINVAL},
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_pool_config cfg = before;
		struct ctn_err err = {0};
		struct ctn_opts opts;

		CU_ASSERT_EQUAL(ctn_pool_parse_spec(cases[i].spec, &opts, &cfg, &err), cases[i].rc);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, cases[i].word));
		ctn_opts_free(&opts);
	}
}

CTN_TESTS("pool_spec", CTN_TEST(test_what_is_named_is_set), CTN_TEST(test_the_rest_stays),
	  CTN_TEST(test_what_is_wrong_is_named))
