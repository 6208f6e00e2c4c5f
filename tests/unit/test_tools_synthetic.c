// SPDX-License-Identifier: MIT
/* Synthetic checkpoints: what is in them, and that a folder in the cache is always complete. */
#include "test.h"
#include "sandbox.h"

#include "checkpoint/checkpoint.h"
#include "tools/synthetic.h"

#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* An empty cache of the running test. */
static void fresh_cache(void)
{
	static unsigned int n;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/cache%u", ctn_test_tmpdir(), n++);
	setenv("XDG_CACHE_HOME", path, 1);
}

static struct ctn_synthetic parsed(const char *value)
{
	struct ctn_synthetic s;
	struct ctn_err err = {0};

	if (ctn_synthetic_parse(value, &s, &err)) {
		fprintf(stderr, "%s: %s\n", value, err.msg);
		exit(2);
	}
	return s;
}

static void get(const char *value, char dir[PATH_MAX])
{
	struct ctn_synthetic s = parsed(value);
	struct ctn_err err = {0};
	char *found = NULL;

	CU_ASSERT_EQUAL(ctn_synthetic_get(&s, &found, &err), 0);
	if (!found)
		printf("# %s: %s\n", value, err.msg);
	snprintf(dir, PATH_MAX, "%s", found ? found : "");
	free(found);
}

/* How many names there are in the cache, and whether one of them is `name`. */
static unsigned int in_cache(const char *name, bool *there)
{
	char path[PATH_MAX];
	unsigned int n = 0;
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/computron", getenv("XDG_CACHE_HOME"));
	dir = opendir(path);
	*there = false;
	while (dir && (e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		n++;
		*there |= strcmp(e->d_name, name) == 0;
	}
	if (dir)
		closedir(dir);
	return n;
}

/* model.safetensors: length of the header, its text and the data. The caller frees *file. */
static const uint8_t *data_of(const char *dir, char **file, size_t *bytes)
{
	char path[PATH_MAX];
	uint64_t header;
	size_t len;

	snprintf(path, sizeof(path), "%s/model.safetensors", dir);
	*file = NULL;
	CU_ASSERT_EQUAL_FATAL(ctn_read_file(path, SIZE_MAX - 1, file, &len, NULL), 0);
	memcpy(&header, *file, sizeof(header));
	CU_ASSERT_FATAL(header < len - 8);
	*bytes = len - 8 - header;
	return (uint8_t *)*file + 8 + header;
}

static void test_bytes_and_shapes(void)
{
	static const struct {
		const char *value;
		double bytes;
		uint32_t tp, pp;
	} cases[] = {
		{"llama,bytes=1M", 1 << 20, 1, 6},    {"llama,bytes=20M", 20 << 20, 4, 2},
		{"opt,bytes=7654321", 7654321, 2, 3}, {"opt,bytes=20M", 20 << 20, 4, 2},
		{"gpt2,bytes=3M", 3 << 20, 2, 4},     {"gpt2,bytes=20M", 20 << 20, 4, 2},
	};

	fresh_cache();
	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_checkpoint *ckpt = NULL;
		struct ctn_plan *plan = NULL;
		struct ctn_err err = {0};
		char dir[PATH_MAX], *file;
		size_t bytes;

		get(cases[i].value, dir);
		data_of(dir, &file, &bytes);
		CU_ASSERT(bytes > 0.98 * cases[i].bytes && bytes < 1.02 * cases[i].bytes);
		CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open(dir, &ckpt, &err), 0);
		CU_ASSERT_EQUAL(strncmp(ctn_family_name(ckpt->family), cases[i].value,
					strcspn(cases[i].value, ",")),
				0);
		CU_ASSERT_EQUAL(ckpt->bytes, bytes); /* no tensor is stored that none uses */
		CU_ASSERT(ckpt->arch.layers >= 6);
		for (uint32_t t = 0; t < ckpt->tensor_count; t++)
			CU_ASSERT_EQUAL(ckpt->tensors[t].encoding.dtype, CTN_DTYPE_F16);
		CU_ASSERT_EQUAL(ctn_plan_build(ckpt, cases[i].tp, cases[i].pp, &plan, &err), 0);
		ctn_plan_free(plan);
		ctn_checkpoint_close(ckpt);
		free(file);
	}
}

/* The first values of SplitMix64 with state 0, by its authors' reference implementation. */
static void test_values(void)
{
	static const uint64_t reference[] = {0xe220a8397b1dcdafu, 0x6e789e6aa1b965f4u,
					     0x06c45d188009454fu};
	char dir[PATH_MAX], *file;
	const uint8_t *data;
	unsigned int odd = 0;
	size_t bytes;

	fresh_cache();
	get("gpt2,bytes=1M", dir);
	data = data_of(dir, &file, &bytes);
	for (size_t i = 0; i < CTN_ARRAY_LEN(reference); i++) {
		for (size_t k = 0; k < 4; k++) {
			uint16_t random = (uint16_t)(reference[i] >> (16 * k)), value;

			memcpy(&value, data + 8 * i + 2 * k, sizeof(value));
			/* Sign and fraction are random. */
			CU_ASSERT_EQUAL(value & 0x83ff, random & 0x83ff);
		}
	}
	for (size_t i = 0; i < bytes; i += 2) {
		/* Exponent 9, which is 2^-6: small, finite, normal. */
		if ((data[i + 1] & 0x7c) != 9 << 2)
			odd++;
	}
	CU_ASSERT_EQUAL(odd, 0);
	free(file);
}

static void test_seeds(void)
{
	char dirs[3][PATH_MAX], *files[3];
	const uint8_t *data[3];
	size_t bytes[3];

	for (unsigned int i = 0; i < 3; i++) {
		fresh_cache();
		get(i < 2 ? "llama,bytes=1M,seed=7" : "llama,bytes=1M,seed=8", dirs[i]);
		data[i] = data_of(dirs[i], &files[i], &bytes[i]);
	}
	CU_ASSERT_STRING_NOT_EQUAL(dirs[0], dirs[1]);
	CU_ASSERT_EQUAL_FATAL(bytes[0], bytes[1]);
	CU_ASSERT_EQUAL_FATAL(bytes[0], bytes[2]);
	CU_ASSERT_EQUAL(memcmp(data[0], data[1], bytes[0]), 0);
	CU_ASSERT_NOT_EQUAL(memcmp(data[0], data[2], bytes[0]), 0);
	/* All that differs is the data: two models of one shape. */
	CU_ASSERT_EQUAL(memcmp(files[0], files[2], (size_t)(data[0] - (uint8_t *)files[0])), 0);
	for (unsigned int i = 0; i < 3; i++)
		free(files[i]);
}

static void test_found_again(void)
{
	char dir[PATH_MAX], again[PATH_MAX], file[PATH_MAX + 32];
	struct stat before, after;

	fresh_cache();
	get("opt,bytes=1M,seed=3", dir);
	snprintf(file, sizeof(file), "%s/model.safetensors", dir);
	CU_ASSERT_EQUAL_FATAL(stat(file, &before), 0);
	get("opt,bytes=1M,seed=3", again);
	CU_ASSERT_STRING_EQUAL(dir, again);
	CU_ASSERT_EQUAL_FATAL(stat(file, &after), 0);
	CU_ASSERT_EQUAL(before.st_ino, after.st_ino);
	CU_ASSERT_EQUAL(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
}

/* What a writer left that was killed half-way is written anew. */
static void test_partial_is_not_used(void)
{
	char dir[PATH_MAX], partial[PATH_MAX + 16], file[PATH_MAX + 64];
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_err err = {0};
	bool there;
	FILE *f;

	fresh_cache();
	get("llama,bytes=1M", dir);
	snprintf(partial, sizeof(partial), "%s.partial", dir);
	CU_ASSERT_EQUAL_FATAL(rename(dir, partial), 0);
	snprintf(file, sizeof(file), "%s/model.safetensors", partial);
	f = fopen(file, "r+");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	for (unsigned int i = 0; i < 2 << 20; i++)
		fputc(0xff, f);
	fclose(f);
	get("llama,bytes=1M", dir);
	CU_ASSERT_EQUAL(ctn_checkpoint_open(dir, &ckpt, &err), 0);
	ctn_checkpoint_close(ckpt);
	CU_ASSERT_EQUAL(in_cache(strrchr(dir, '/') + 1, &there), 1);
	CU_ASSERT(there);
}

static int get_in_child(void)
{
	struct ctn_synthetic s = parsed("gpt2,bytes=4M");
	struct ctn_checkpoint *ckpt;
	char *dir;
	int rc = ctn_synthetic_get(&s, &dir, NULL);

	if (rc == 0)
		rc = ctn_checkpoint_open(dir, &ckpt, NULL);
	return rc ? 1 : 0;
}

static void test_many_writers(void)
{
	enum { WRITERS = 6 };
	pid_t pids[WRITERS];
	bool there;

	fresh_cache();
	fflush(NULL);
	for (unsigned int i = 0; i < WRITERS; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			_exit(get_in_child());
	}
	for (unsigned int i = 0; i < WRITERS; i++) {
		int status = -1;

		CU_ASSERT_EQUAL(waitpid(pids[i], &status, 0), pids[i]);
		CU_ASSERT_EQUAL(status, 0);
	}
	CU_ASSERT_EQUAL(in_cache("gpt2-4194304-seed0-v1", &there), 1);
	CU_ASSERT(there);
}

static int full_disk(uint32_t nr, int arg, uint32_t value)
{
	struct ctn_synthetic s = parsed("llama,bytes=3M");
	struct ctn_err err = {0};
	char *dir;

	if (ctn_refuse(nr, arg, value, ENOSPC))
		return 2;
	if (ctn_synthetic_get(&s, &dir, &err) != -ENOSPC)
		return 3;
	return strstr(err.msg, "no room") && strstr(err.msg, "llama-3145728") ? 0 : 4;
}

static int full_at_once(void)
{
	return full_disk(SYS_fallocate, -1, 0);
}

/* As on a file system that cannot reserve: the first write of 1 MiB fails. */
static int full_later(void)
{
	return full_disk(SYS_write, 2, 1 << 20);
}

static void test_full_disk(void)
{
	char dir[PATH_MAX];
	bool there;

	fresh_cache();
	CU_ASSERT_EQUAL(ctn_in_child(full_at_once), 0);
	CU_ASSERT_EQUAL(in_cache("", &there), 0);
	CU_ASSERT_EQUAL(ctn_in_child(full_later), 0);
	CU_ASSERT_EQUAL(in_cache("", &there), 0);
	get("llama,bytes=3M", dir);
	CU_ASSERT_EQUAL(in_cache("llama-3145728-seed0-v1", &there), 1);
	CU_ASSERT(there);
}

static void test_places(void)
{
	struct ctn_synthetic s = parsed("llama,bytes=1M");
	char home[PATH_MAX], want[PATH_MAX + 64], *dir = NULL;
	struct ctn_err err = {0};

	setenv("XDG_CACHE_HOME", "/dev/null", 1);
	CU_ASSERT_EQUAL(ctn_synthetic_get(&s, &dir, &err), -ENOTDIR);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "/dev/null"));
	CU_ASSERT_PTR_NULL(dir);

	unsetenv("XDG_CACHE_HOME");
	snprintf(home, sizeof(home), "%s/home", ctn_test_tmpdir());
	CU_ASSERT_EQUAL_FATAL(mkdir(home, 0700), 0);
	setenv("HOME", home, 1);
	CU_ASSERT_EQUAL_FATAL(ctn_synthetic_get(&s, &dir, &err), 0);
	snprintf(want, sizeof(want), "%s/.cache/computron/", home);
	CU_ASSERT_EQUAL(strncmp(dir, want, strlen(want)), 0);
	free(dir);

	setenv("HOME", "/dev/null", 1);
	setenv("TMPDIR", ctn_test_tmpdir(), 1);
	CU_ASSERT_EQUAL_FATAL(ctn_synthetic_get(&s, &dir, &err), 0);
	snprintf(want, sizeof(want), "%s/computron-", ctn_test_tmpdir());
	CU_ASSERT_EQUAL(strncmp(dir, want, strlen(want)), 0);
	free(dir);
}

static void test_bad_options(void)
{
	static const struct {
		const char *value;
		int rc;
		const char *says;
	} cases[] = {
		{"", -EINVAL, "llama"},
		{"bloom,bytes=1M", -EINVAL, "bloom"},
		{"bytes=1M", -EINVAL, "llama"},
		{"llama", -EINVAL, "bytes"},
		{"llama,bytes=", -EINVAL, "number"},
		{"llama,bytes=1M,seed=-1", -EINVAL, "seed"},
		{"llama,bytes=1M,sede=1", -EINVAL, "sede"},
		{"llama,bytes=1M,bytes=2M", -EINVAL, "bytes"},
	};
	struct ctn_synthetic s;
	char *dir;

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_err err = {0};

		CU_ASSERT_EQUAL(ctn_synthetic_parse(cases[i].value, &s, &err), cases[i].rc);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, cases[i].says));
	}
	fresh_cache();
	for (uint64_t bytes = 0; bytes <= 400000; bytes += 200000) {
		struct ctn_err err = {0};

		s = (struct ctn_synthetic){.family = "llama", .bytes = bytes};
		CU_ASSERT_EQUAL(ctn_synthetic_get(&s, &dir, &err), -ERANGE);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "bytes"));
	}
}

CTN_TESTS("tools_synthetic", CTN_TEST(test_bytes_and_shapes), CTN_TEST(test_values),
	  CTN_TEST(test_seeds), CTN_TEST(test_found_again), CTN_TEST(test_partial_is_not_used),
	  CTN_TEST(test_many_writers), CTN_TEST(test_full_disk), CTN_TEST(test_places),
	  CTN_TEST(test_bad_options))
