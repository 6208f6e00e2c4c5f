// SPDX-License-Identifier: MIT
#include "test.h"
#include "base/base.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_sizes_are_powers_of_1024(void)
{
	uint64_t v = 0;

	CU_ASSERT_EQUAL(ctn_parse_size("512M", &v, NULL), 0);
	CU_ASSERT_EQUAL(v, 536870912);
	CU_ASSERT_EQUAL(ctn_parse_size("1.5k", &v, NULL), 0);
	CU_ASSERT_EQUAL(v, 1536);
	CU_ASSERT_EQUAL(ctn_parse_size("7", &v, NULL), 0);
	CU_ASSERT_EQUAL(v, 7);
	CU_ASSERT_EQUAL(ctn_parse_size("", &v, NULL), -EINVAL);
	CU_ASSERT_EQUAL(ctn_parse_size("-1", &v, NULL), -EINVAL);
	CU_ASSERT_EQUAL(ctn_parse_size("1MB", &v, NULL), -EINVAL);
	CU_ASSERT_EQUAL(ctn_parse_size("18446744073709551615T", &v, NULL), -ERANGE);
	CU_ASSERT_EQUAL(ctn_parse_size("99999999999999999999", &v, NULL), -ERANGE);
}

static void test_rates_are_powers_of_1000(void)
{
	uint64_t v = 0;

	CU_ASSERT_EQUAL(ctn_parse_rate("400M", &v, NULL), 0);
	CU_ASSERT_EQUAL(v, 400000000);
}

static void test_option_lists(void)
{
	static const char *const known[] = {"", "mem", "uplink", NULL};
	struct ctn_err err = {0};
	struct ctn_opts opts;

	CU_ASSERT_EQUAL_FATAL(
		ctn_opts_parse("host:4,mem=512M,uplink=0-1:300M,2-3:300M", &opts, &err), 0);
	CU_ASSERT_EQUAL(opts.count, 3);
	CU_ASSERT_STRING_EQUAL(ctn_opts_get(&opts, ""), "host:4");
	CU_ASSERT_STRING_EQUAL(ctn_opts_get(&opts, "uplink"), "0-1:300M,2-3:300M");
	CU_ASSERT_EQUAL(ctn_opts_check(&opts, "--device", known, &err), 0);
	ctn_opts_free(&opts);

	CU_ASSERT_EQUAL(ctn_opts_parse("a=1,a=2", &opts, &err), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "given twice"));
	CU_ASSERT_EQUAL(ctn_opts_parse("=1", &opts, &err), -EINVAL);

	CU_ASSERT_EQUAL_FATAL(ctn_opts_parse("host,colour=red", &opts, &err), 0);
	CU_ASSERT_EQUAL(ctn_opts_check(&opts, "--device", known, &err), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "colour"));
	ctn_opts_free(&opts);
}

static void test_only_regular_files_are_read(void)
{
	char path[4096];
	struct ctn_err err = {0};
	uint64_t size;
	char *data;
	size_t len;

	snprintf(path, sizeof(path), "%s/fifo", ctn_test_tmpdir());
	CU_ASSERT_EQUAL_FATAL(mkfifo(path, 0600), 0);
	CU_ASSERT_EQUAL(ctn_open_regular(path, &size, &err), -EINVAL);
	CU_ASSERT_EQUAL(ctn_open_regular(ctn_test_tmpdir(), &size, &err), -EINVAL);

	snprintf(path, sizeof(path), "%s/link", ctn_test_tmpdir());
	CU_ASSERT_EQUAL_FATAL(symlink("nowhere", path), 0);
	CU_ASSERT_EQUAL(ctn_read_file(path, 10, &data, &len, &err), -ENOENT);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "nowhere"));
}

static void test_buffer_grows_and_terminates(void)
{
	struct ctn_buf buf = {0};

	for (int i = 0; i < 1000; i++)
		ctn_buf_printf(&buf, "%d,", i);
	CU_ASSERT_FALSE(buf.failed);
	CU_ASSERT_EQUAL(buf.len, strlen(buf.data));
	CU_ASSERT_STRING_EQUAL(buf.data + buf.len - 4, "999,");
	ctn_buf_free(&buf);
}

/* Files of the kernel have no size, or that of a page, and less in them. */
static void test_texts_of_the_kernel(void)
{
	char *text = NULL, name[64], expected[32];

	CU_ASSERT_EQUAL_FATAL(ctn_read_text("/proc/self/status", &text), 0);
	CU_ASSERT_EQUAL(sscanf(text, "Name: %63s", name), 1);
	snprintf(expected, sizeof(expected), "Pid:\t%d\n", (int)getpid());
	CU_ASSERT_PTR_NOT_NULL(strstr(text, expected));
	free(text);
	/* The first processor that is there is number 0. */
	CU_ASSERT_EQUAL_FATAL(ctn_read_text("/sys/devices/system/cpu/online", &text), 0);
	CU_ASSERT_EQUAL(text[0], '0');
	CU_ASSERT_EQUAL(text[strlen(text) - 1], '\n');
	free(text);
	CU_ASSERT_EQUAL(ctn_read_text("/proc/self/no-such-file", &text), -ENOENT);
}

/* What a file says may be in a message: it stays one line of UTF-8. */
static void test_errors_are_one_line(void)
{
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL(ctn_err_set(&err, -EINVAL, "a%s", "\n\x1b[1m\x7f \xe2\x82\xac\xff\xe2\x82"),
			-EINVAL);
	CU_ASSERT_STRING_EQUAL(err.msg, "a??[1m? \xe2\x82\xac???");
	CU_ASSERT_EQUAL(ctn_err_prefix(&err, "b\t\xc2\x85"), -EINVAL);
	CU_ASSERT_STRING_EQUAL(err.msg, "b???: a??[1m? \xe2\x82\xac???");
}

static void test_numbers_with_a_sign(void)
{
	static const char *const bad[] = {"",    "-",  "9",  "-9",        "+1",
					  "--1", "1x", " 1", "4294967297"};
	struct ctn_err err;
	int32_t v = 0;

	CU_ASSERT_EQUAL(ctn_parse_signed("n", "-8", 8, &v, NULL), 0);
	CU_ASSERT_EQUAL(v, -8);
	CU_ASSERT_EQUAL(ctn_parse_signed("n", "8", 8, &v, NULL), 0);
	CU_ASSERT_EQUAL(v, 8);
	for (size_t i = 0; i < CTN_ARRAY_LEN(bad); i++) {
		CU_ASSERT_EQUAL(ctn_parse_signed("n", bad[i], 8, &v, &err), -EINVAL);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "n: expected -8 to 8, found \""));
	}
	CU_ASSERT_EQUAL(v, 8);
}

CTN_TESTS("base", CTN_TEST(test_sizes_are_powers_of_1024), CTN_TEST(test_rates_are_powers_of_1000),
	  CTN_TEST(test_option_lists), CTN_TEST(test_numbers_with_a_sign),
	  CTN_TEST(test_only_regular_files_are_read), CTN_TEST(test_buffer_grows_and_terminates),
	  CTN_TEST(test_texts_of_the_kernel), CTN_TEST(test_errors_are_one_line))
