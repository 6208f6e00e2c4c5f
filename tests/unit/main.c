// SPDX-License-Identifier: MIT
/* The main program behind every file of tests/unit: see test.h. */
#include "test.h"

#include <CUnit/CUnit.h>
#include <CUnit/TestRun.h>
#include <ftw.h>
#include <limits.h>
#include <unistd.h>

static char skip_reason[256];
static char tmpdir[PATH_MAX];
static pid_t tmpdir_owner;

void ctn_test_skip(const char *reason)
{
	snprintf(skip_reason, sizeof(skip_reason), "%s", reason);
}

const char *ctn_tests_dir(void)
{
	const char *dir = getenv("CTN_TESTS_DIR");

	return dir ? dir : "tests";
}

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st;
	(void)flag;
	(void)ftw;
	return remove(path);
}

static void remove_tmpdir(void)
{
	if (tmpdir[0] && getpid() == tmpdir_owner)
		nftw(tmpdir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *ctn_test_tmpdir(void)
{
	const char *base = getenv("TMPDIR");

	if (tmpdir[0])
		return tmpdir;
	snprintf(tmpdir, sizeof(tmpdir), "%s/ctn-test-XXXXXX", base ? base : "/tmp");
	if (!mkdtemp(tmpdir)) {
		perror(tmpdir);
		exit(2);
	}
	tmpdir_owner = getpid();
	atexit(remove_tmpdir);
	return tmpdir;
}

static bool wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], name) == 0)
			return true;
	}
	return argc <= 1;
}

/* The failures that CUnit recorded since the last call, printed as it would print them. */
static unsigned int report_failures(unsigned int seen)
{
	CU_pFailureRecord rec = CU_get_failure_list();
	unsigned int n = 0;

	for (; rec; rec = rec->pNext, n++) {
		if (n < seen)
			continue;
		printf("# %s:%u: %s\n", rec->strFileName, rec->uiLineNumber, rec->strCondition);
	}
	return n;
}

int main(int argc, char **argv)
{
	unsigned int failures = 0, planned = 0, ran = 0, failed = 0;
	CU_pSuite suite;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (CU_initialize_registry() != CUE_SUCCESS)
		return 2;
	for (size_t i = 0; i < ctn_test_count; i++)
		planned += wanted(ctn_test_list[i].name, argc, argv);
	/* tests/run holds the verdicts against this: a test that ends the program shows. */
	printf("plan %u\n", planned);
	suite = CU_add_suite(ctn_test_suite, NULL, NULL);
	if (!suite)
		return 2;
	for (size_t i = 0; i < ctn_test_count; i++) {
		const struct ctn_test *t = &ctn_test_list[i];
		CU_pTest test;
		unsigned int now;

		if (!wanted(t->name, argc, argv))
			continue;
		test = CU_add_test(suite, t->name, t->fn);
		if (!test)
			return 2;
		skip_reason[0] = '\0';
		/* CUnit clears its failure list at the start of each run. */
		failures = 0;
		CU_run_test(suite, test);
		now = report_failures(failures);
		ran++;
		if (now > failures) {
			failed++;
			printf("not ok %s/%s\n", ctn_test_suite, t->name);
		} else if (skip_reason[0]) {
			printf("skip %s/%s: %s\n", ctn_test_suite, t->name, skip_reason);
		} else {
			printf("ok %s/%s\n", ctn_test_suite, t->name);
		}
		failures = now;
	}
	CU_cleanup_registry();
	if (ran == 0) {
		printf("# no test of that name\n");
		return 2;
	}
	return failed ? 1 : 0;
}
