/* SPDX-License-Identifier: MIT */
/*
 * A thin layer over CUnit for the programs in tests/unit: one file, one suite, one list of
 * tests. The program prints "plan N", each test "ok SUITE/NAME", "not ok SUITE/NAME" or "skip
 *SUITE/NAME: why", the lines that tests/run counts; CUnit prints what failed and where. The exit
 *status is non-zero when a test failed.
 *
 *	static void test_adds(void)
 *	{
 *		CU_ASSERT_EQUAL(1 + 1, 2);
 *	}
 *
 *	CTN_TESTS("sums", CTN_TEST(test_adds))
 *
 * A program takes test names as arguments to run only those.
 */
#ifndef CTN_TEST_H
#define CTN_TEST_H

#include <CUnit/Basic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ctn_test {
	const char *name;
	void (*fn)(void);
};

extern const char *const ctn_test_suite;
extern const struct ctn_test ctn_test_list[];
extern const size_t ctn_test_count;

/* Ends the running test as skipped; the reason must stand in tests/skips.list. */
#define CTN_SKIP(reason)               \
	do {                           \
		ctn_test_skip(reason); \
		return;                \
	} while (0)

void ctn_test_skip(const char *reason);

/* Folder with the files of the source tree's tests/ (from CTN_TESTS_DIR, set by make). */
const char *ctn_tests_dir(void);

/* A fresh empty folder under $TMPDIR or /tmp, removed with all that is in it at exit. */
const char *ctn_test_tmpdir(void);

#define CTN_TEST(f)   \
	{             \
#f, f \
	}
#define CTN_TESTS(suite, ...)                                  \
	const char *const ctn_test_suite = suite;              \
	const struct ctn_test ctn_test_list[] = {__VA_ARGS__}; \
	const size_t ctn_test_count = sizeof(ctn_test_list) / sizeof(ctn_test_list[0]);

#endif
