// SPDX-License-Identifier: MIT
/* The safetensors reader: hostile, odd and plain files, one row a case. */
#include "ckpt_files.h"
#include "checkpoint/checkpoint.h"

#include <sys/resource.h>
#include <time.h>
#include <xxhash.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

/* Writes N, the header and `data` zero bytes; returns the path. */
static const char *write_raw(uint64_t n, const char *header, size_t header_len, size_t data)
{
	static char path[PATH_MAX];
	static unsigned int count;
	FILE *f;

	snprintf(path, sizeof(path), "%s/raw%u.safetensors", ctn_test_tmpdir(), count++);
	f = fopen(path, "we");
	if (!f || fwrite(&n, 8, 1, f) != 1 || fwrite(header, 1, header_len, f) != header_len) {
		perror(path);
		exit(2);
	}
	while (data--)
		putc_unlocked(0, f);
	if (fclose(f))
		exit(2);
	return path;
}

static const char *write_header(const char *header, size_t data)
{
	return write_raw(strlen(header), header, strlen(header), data);
}

#define T(dtype, shape, offsets) \
	"{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE(dtype, shape, offsets) "{\"w\":" T(dtype, shape, offsets) "}"

struct row {
	const char *what;
	const char *header;
	size_t data;
	const char *says; /* NULL: accepted; else a part of the message */
	unsigned int tensors;
};

static void check_row(const struct row *r)
{
	const char *path = write_header(r->header, r->data);
	struct ctn_err err = {0};
	struct ctn_container c;
	int rc = ctn_container_open(path, &c, &err);
	bool good;

	if (!r->says)
		good = rc == 0 && c.count == r->tensors;
	else
		good = rc == -EINVAL && strstr(err.msg, r->says) && strstr(err.msg, path) &&
		       !strchr(err.msg, '\n');
	if (!good)
		printf("# %s: %d %s\n", r->what, rc, err.msg);
	CU_ASSERT_TRUE(good);
	if (!rc)
		ctn_container_close(&c);
	unlink(path);
}

static void check_rows(const struct row *rows, size_t count)
{
	for (size_t i = 0; i < count; i++)
		check_row(&rows[i]);
}

/* ---- the first eight bytes ------------------------------------------------------------- */

static void test_too_small(void)
{
	char path[PATH_MAX];
	struct ctn_err err;
	struct ctn_container c;

	for (unsigned int n = 0; n < 8; n++) {
		gen_write_file(ctn_test_tmpdir(), "small.safetensors", "\2\0\0\0\0\0\0\0", n);
		gen_path(path, ctn_test_tmpdir(), "small.safetensors");
		CU_ASSERT_EQUAL(ctn_container_open(path, &c, &err), -EINVAL);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "at least 8 bytes"));
	}
}

static void test_header_length(void)
{
	static const struct {
		uint64_t n;
		const char *says;
	} cases[] = {
		{100000001, "at most 100000000, found 100000001"},
		{0xffffff000000003cull, "at most 100000000"},
		{UINT64_MAX, "at most 100000000"},
		/* within the limit, but not in the file */
		{100000000, "has 2 bytes after it, found 100000000"},
		{60, "has 2 bytes after it, found 60"},
		{3, "has 2 bytes after it, found 3"},
		{0, "found 0 bytes"},
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_err err = {0};
		struct ctn_container c;

		CU_ASSERT_EQUAL(ctn_container_open(write_raw(cases[i].n, "{}", 2, 0), &c, &err),
				-EINVAL);
		if (!strstr(err.msg, cases[i].says))
			printf("# %s\n", err.msg);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, cases[i].says));
	}
}

/* A download that broke off inside the header: at every byte of it. */
static void test_cut_header(void)
{
	static const char header[] = ONE("F32", "[2,3]", "[0,24]");
	const size_t n = sizeof(header) - 1;

	for (size_t len = 0; len < n; len++) {
		struct ctn_err err = {0};
		struct ctn_container c;

		CU_ASSERT_EQUAL(ctn_container_open(write_raw(n, header, len, 0), &c, &err),
				-EINVAL);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "bytes after it, found"));
	}
}

/* ---- the header's JSON ----------------------------------------------------------------- */

static void test_json(void)
{
	static const struct row rows[] = {
		{"byte 0xff", "{\"\xff\":1}", 0, "JSON", 0},
		{"overlong UTF-8", "{\"\xc0\xaf\":1}", 0, "JSON", 0},
		{"surrogate in UTF-8", "{\"\xed\xa0\x80\":1}", 0, "JSON", 0},
		{"half an object", "{", 0, "JSON", 0},
		{"an array", "[]", 0, "an object at the top", 0},
		{"null", "null", 0, "JSON", 0},
		{"a number", "7", 0, "JSON", 0},
		{"garbage after it", "{} x", 0, "JSON", 0},
		{"a second object", "{}{}", 0, "JSON", 0},
		{"single quotes", "{'a':1}", 0, "JSON", 0},
		{"trailing comma", "{\"__metadata__\":{},}", 0, "a name at byte 19", 0},
		{"no comma", "{\"__metadata__\":{}\"a\":{}}", 0, "a comma or the end", 0},
		{"no colon", "{\"a\" {}}", 0, "a colon at byte 5", 0},
		{"no value", "{\"a\":}", 0, "a value at byte 5", 0},
		{"a name without quotes", "{a:1}", 0, "a name at byte 1", 0},
		{"a name without end", "{\"a", 0, "a name at byte", 0},
		{"an escape at the end", "{\"a\\", 0, "a name at byte", 0},
		{"brackets that do not match", "{\"w\":{\"a\":[1}}}", 0, "JSON", 0},
		{"a bracket in a string", "{\"__metadata__\":{\"a\":\"}{][\\\"\"}}", 0, NULL, 0},
		{"padding", "{} \t\n\r  ", 0, NULL, 0},
		{"leading space", " \n{}", 0, NULL, 0},
		{"empty and a byte of data", "{}", 1, "found 11", 0},
		{"no tensor", "{}", 0, NULL, 0},
		{"a name twice",
		 "{\"w\":" T("U8", "[1]", "[0,1]") ",\"w\":" T("U8", "[1]", "[1,2]") "}", 2,
		 "\"w\" is given twice", 0},
		{"equal twins",
		 "{\"a.long.name.of.a.tensor.that.is.twice\":" T(
			 "U8", "[1]",
			 "[0,1]") ",\"a.long.name.of.a.tensor.that.is.twice\":" T("U8", "[1]",
										  "[0,1]") "}",
		 1, "\"a.long.name.of.a.tensor.that.is.twice\" is given twice", 0},
		{"a quoted name twice",
		 "{\"say \\\"a\\\\\":" T("U8", "[1]", "[0,1]") ",\"say \\u0022a\\\\\":" T(
			 "U8", "[1]", "[0,1]") "}",
		 1, "\"say \"a\\\" is given twice", 0},
		{"a field twice",
		 "{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
		 1, "\"dtype\" is given twice", 0},
		{"metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0,
		 "\"__metadata__\" is given twice", 0},
		{"metadata {}", "{\"__metadata__\":{}}", 0, NULL, 0},
		{"metadata null", "{\"__metadata__\":null}", 0, NULL, 0},
		{"metadata without format", "{\"__metadata__\":{\"a\":\"b\"}}", 0, NULL, 0},
		{"metadata with a number", "{\"__metadata__\":{\"a\":1}}", 0, "expected a string",
		 0},
		{"metadata nested", "{\"__metadata__\":{\"a\":{}}}", 0, "expected a string", 0},
		{"metadata a string", "{\"__metadata__\":\"x\"}", 0, "expected an object", 0},
	};

	check_rows(rows, CTN_ARRAY_LEN(rows));
}

static void test_deep_nesting(void)
{
	struct ctn_buf b = {0};
	struct row r = {"100,000 brackets", NULL, 0, "JSON", 0};

	ctn_buf_puts(&b, "{\"a\":");
	for (int i = 0; i < 100000; i++)
		ctn_buf_puts(&b, "[");
	r.header = b.data;
	check_row(&r);
	ctn_buf_free(&b);
}

/* A tree of this would take gigabytes. */
static void test_large_entry(void)
{
	struct ctn_buf b = {0};
	struct row r = {"an entry of 3 MB", NULL, 0, "\"w\": expected a value of at most 1048576",
			0};

	ctn_buf_puts(&b, "{\"w\":{\"x\":[[]");
	for (int i = 0; i < 1000000; i++)
		ctn_buf_puts(&b, ",[]");
	ctn_buf_puts(&b, "]}}");
	r.header = b.data;
	check_row(&r);
	ctn_buf_free(&b);
}

/* ---- tensors --------------------------------------------------------------------------- */

static void test_fields(void)
{
	static const struct row rows[] = {
		{"plain", ONE("F32", "[2,3]", "[0,24]"), 24, NULL, 1},
		{"no dtype", "{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
		 "expected dtype, shape and data_offsets", 0},
		{"no shape", "{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1,
		 "expected dtype, shape and data_offsets", 0},
		{"no data_offsets", "{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1,
		 "expected dtype, shape and data_offsets", 0},
		{"extra field",
		 "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":[{}]}}", 1,
		 NULL, 1},
		{"an array", "{\"w\":[\"F32\",[1],[0,4]]}", 4, "expected an object", 0},
		{"a number", "{\"w\":1}", 0, "expected an object", 0},
		{"one offset", ONE("U8", "[1]", "[0]"), 1, "expected [begin, end]", 0},
		{"three offsets", ONE("U8", "[1]", "[0,1,2]"), 1, "expected [begin, end]", 0},
		{"offsets as text", ONE("U8", "[1]", "[\"0\",\"1\"]"), 1, "expected [begin, end]",
		 0},
		{"offsets as reals", ONE("U8", "[1]", "[0.0,1.0]"), 1, "expected [begin, end]", 0},
		{"negative offset", ONE("U8", "[1]", "[-1,0]"), 1, "expected [begin, end]", 0},
		{"end before begin", ONE("U8", "[1]", "[1,0]"), 1, "expected [begin, end]", 0},
		{"unknown dtype", ONE("F99", "[1]", "[0,1]"), 1, "\"w\": unknown dtype \"F99\"", 0},
		{"lower case", ONE("f32", "[1]", "[0,4]"), 4, "unknown dtype \"f32\"", 0},
		{"dtype a number", "{\"w\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
		 "expected dtype", 0},
		{"shape an object",
		 "{\"w\":{\"dtype\":\"U8\",\"shape\":{},\"data_offsets\":[0,1]}}", 1,
		 "expected dtype", 0},
		{"negative dimension", ONE("U8", "[-1]", "[0,1]"), 1, "integers from 0", 0},
		{"real dimension", ONE("U8", "[1.0]", "[0,1]"), 1, "integers from 0", 0},
		{"exponent", ONE("U8", "[1e3]", "[0,1000]"), 1000, "integers from 0", 0},
		{"2^64 as dimension", ONE("U8", "[18446744073709551616]", "[0,1]"), 1, "JSON", 0},
		{"fewer bytes than the shape", ONE("F32", "[2]", "[0,4]"), 4,
		 "expected 8 bytes, found 4", 0},
		{"more bytes than the shape", ONE("F32", "[2]", "[0,12]"), 12,
		 "expected 8 bytes, found 12", 0},
		{"product overflows", ONE("U8", "[2,9223372036854775807,3]", "[0,1]"), 1,
		 "overflows 64 bits", 0},
		{"bytes overflow", ONE("I32", "[2,4611686018427387904]", "[0,1]"), 1,
		 "overflows 64 bits", 0},
		{"product overflows, beyond what JSON may hold",
		 ONE("U8", "[2,18446744073709551614]", "[0,1]"), 1, "JSON", 0},
		{"bytes overflow, largest dimension",
		 ONE("I32", "[2,9223372036854775807]", "[0,1]"), 1, "overflows 64 bits", 0},
		{"overflow before a 0",
		 ONE("U8", "[9223372036854775807,9223372036854775807,0]", "[0,0]"), 0,
		 "overflows 64 bits", 0},
		{"0 before a huge one", ONE("U8", "[0,9223372036854775807]", "[0,0]"), 0, NULL, 1},
		{"scalar", ONE("F32", "[]", "[0,4]"), 4, NULL, 1},
		{"F4 pair", ONE("F4", "[1,2]", "[0,1]"), 1, NULL, 1},
		{"F4 of 12 bits", ONE("F4", "[1,3]", "[0,1]"), 1, "not a whole number of bytes", 0},
		{"F4 pair in 2 bytes", ONE("F4", "[1,2]", "[0,2]"), 2, "expected 1 bytes, found 2",
		 0},
		{"F6 of 24 bits", ONE("F6_E2M3", "[4]", "[0,3]"), 3, NULL, 1},
	};

	check_rows(rows, CTN_ARRAY_LEN(rows));
}

static void test_tiling(void)
{
	static const struct row rows[] = {
		{"begins late", ONE("U8", "[1]", "[1,2]"), 2, "begin at 0, found 1 (hole)", 0},
		{"hole", "{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[3,5]") "}", 5,
		 "\"b\": data_offsets: expected to begin at 2, found 3 (hole)", 0},
		{"overlap", "{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[1,3]") "}",
		 3, "\"b\": data_offsets: expected to begin at 2, found 1 (overlap)", 0},
		{"the same bytes",
		 "{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[0,2]") "}", 2,
		 "overlap", 0},
		{"hole at the end", ONE("U8", "[2]", "[0,2]"), 4,
		 "expected 63 bytes by the header, found 65", 0},
		{"2 bytes short", ONE("U8", "[4]", "[0,4]"), 2,
		 "expected 65 bytes by the header, found 63 (truncated?)", 0},
		{"4 MiB claimed, a byte there", ONE("U8", "[4194304]", "[0,4194304]"), 1,
		 "(truncated?)", 0},
		{"2^60 claimed", ONE("U8", "[1152921504606846976]", "[0,1152921504606846976]"), 1,
		 "(truncated?)", 0},
		{"empty tensors at one place",
		 "{\"z\":" T("F32", "[2,0]", "[4,4]") ",\"y\":" T("U8", "[0]", "[4,4]") ",\"a\":" T(
			 "F32", "[1]", "[0,4]") ",\"m\":" T("U8", "[3]", "[4,7]") "}",
		 7, NULL, 4},
		{"an empty tensor elsewhere",
		 "{\"a\":" T("F32", "[2]", "[0,8]") ",\"e\":" T("F32", "[0]", "[4,4]") "}", 8,
		 "overlap", 0},
		{"header order is not offset order",
		 "{\"b\":" T("U8", "[2]", "[2,4]") ",\"a\":" T("U8", "[2]", "[0,2]") "}", 4, NULL,
		 2},
	};

	check_rows(rows, CTN_ARRAY_LEN(rows));
}

/* 16 GB by the header, 4 MB in the file: refused for what it is, and nothing is taken for it. */
static void test_many_tensors_on_one_range(void)
{
	struct ctn_buf b = {0};
	struct row r = {"100,000 tensors on one range", NULL, 160000, "overlap", 0};
	struct rusage usage;

	ctn_buf_puts(&b, "{");
	for (unsigned int i = 0; i < 100000; i++)
		ctn_buf_printf(&b,
			       "%s\"w%u\":{\"dtype\":\"U8\",\"shape\":[160000],\"data_offsets\":[0,"
			       "160000]}",
			       i ? "," : "", i);
	ctn_buf_puts(&b, "}");
	r.header = b.data;
	check_row(&r);
	ctn_buf_free(&b);
	getrusage(RUSAGE_SELF, &usage);
	CU_ASSERT(SANITIZED || usage.ru_maxrss < 512 * 1024);
}

/* Weights are not judged: an infinity, both kinds of NaN, a subnormal. */
static void test_odd_values(void)
{
	static const uint32_t values[] = {0x7f800000, 0x7fc00000, 0xff800001, 0x00000001};
	static const char header[] = ONE("F32", "[2,2]", "[0,16]");
	const uint64_t n = sizeof(header) - 1;
	char file[sizeof(n) + sizeof(header) - 1 + sizeof(values)], path[PATH_MAX];
	struct ctn_container c;

	memcpy(file, &n, sizeof(n));
	memcpy(file + sizeof(n), header, n);
	memcpy(file + sizeof(n) + n, values, sizeof(values));
	gen_write_file(ctn_test_tmpdir(), "odd.safetensors", file, sizeof(file));
	gen_path(path, ctn_test_tmpdir(), "odd.safetensors");
	CU_ASSERT_EQUAL_FATAL(ctn_container_open(path, &c, NULL), 0);
	CU_ASSERT_EQUAL(c.tensors[0].bytes, sizeof(values));
	ctn_container_close(&c);
}

static void test_every_dtype(void)
{
	static const struct {
		const char *name;
		unsigned int bits;
	} dtypes[] = {
		{"BOOL", 8},    {"U8", 8},      {"I8", 8},          {"F8_E5M2", 8},
		{"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
		{"I16", 16},    {"U16", 16},    {"F16", 16},        {"BF16", 16},
		{"I32", 32},    {"U32", 32},    {"F32", 32},        {"F64", 64},
		{"I64", 64},    {"U64", 64},    {"C64", 64},        {"F4", 4},
		{"F6_E2M3", 6}, {"F6_E3M2", 6},
	};

	CU_ASSERT_EQUAL(CTN_ARRAY_LEN(dtypes), CTN_DTYPE_COUNT);
	for (size_t i = 0; i < CTN_ARRAY_LEN(dtypes); i++) {
		struct ctn_container c;
		char header[200];

		snprintf(header, sizeof(header),
			 "{\"w\":{\"dtype\":\"%s\",\"shape\":[4],\"data_offsets\":[0,%u]}}",
			 dtypes[i].name, dtypes[i].bits / 2);
		CU_ASSERT_EQUAL_FATAL(
			ctn_container_open(write_header(header, dtypes[i].bits / 2), &c, NULL), 0);
		CU_ASSERT_STRING_EQUAL(ctn_dtype_name(c.tensors[0].encoding.dtype), dtypes[i].name);
		CU_ASSERT_EQUAL(c.tensors[0].bytes, dtypes[i].bits / 2);
		ctn_container_close(&c);
	}
}

/* Data start at 8+N, whatever N is; tensors begin at any byte. */
static void test_unaligned_data(void)
{
	static const char header[] =
		"{\"f\":" T("F32", "[2,1]", "[3,11]") ",\"b\":" T("BOOL", "[3]", "[0,3]") "}   ";
	const uint64_t n = sizeof(header) - 1;
	XXH128_canonical_t digest;
	struct ctn_container c;

	CU_ASSERT_EQUAL_FATAL(ctn_container_open(write_header(header, 11), &c, NULL), 0);
	CU_ASSERT_STRING_EQUAL(c.format->name, "safetensors");
	CU_ASSERT_NOT_EQUAL(n % 8, 0);
	CU_ASSERT_EQUAL(c.data_offset, 8 + n);
	CU_ASSERT_EQUAL(c.file_bytes, 8 + n + 11);
	CU_ASSERT_EQUAL_FATAL(c.count, 2);
	CU_ASSERT_STRING_EQUAL(c.tensors[0].name, "b");
	CU_ASSERT_EQUAL(c.tensors[0].offset, 8 + n);
	CU_ASSERT_EQUAL(c.tensors[0].bytes, 3);
	CU_ASSERT_STRING_EQUAL(c.tensors[1].name, "f");
	CU_ASSERT_EQUAL(c.tensors[1].offset, 8 + n + 3);
	CU_ASSERT_EQUAL(c.tensors[1].rank, 2);
	CU_ASSERT_EQUAL(c.tensors[1].shape[0], 2);
	CU_ASSERT_EQUAL(c.tensors[1].shape[1], 1);
	XXH128_canonicalFromHash(&digest, XXH3_128bits(header, n));
	CU_ASSERT_EQUAL(memcmp(c.header.bytes, digest.digest, 16), 0);
	ctn_container_close(&c);
}

static void test_names(void)
{
	static const struct row rows[] = {
		{"NUL", "{\"a\\u0000b\":" T("U8", "[1]", "[0,1]") "}", 1, "JSON", 0},
		{"lone surrogate", "{\"a\\ud800b\":" T("U8", "[1]", "[0,1]") "}", 1, "JSON", 0},
		{"no text", "{\"\":" T("U8", "[1]", "[0,1]") "}", 1, NULL, 1},
		{"a line break in a message", "{\"a\\nb\":" T("F99", "[1]", "[0,1]") "}", 1,
		 "a\\x0ab", 0},
	};
	static const char odd[] = "../\xc3\xa9\"/\xf0\x9f\x98\x80\\";
	struct ctn_buf long_name = {0};
	struct ctn_container c;

	check_rows(rows, CTN_ARRAY_LEN(rows));
	CU_ASSERT_EQUAL_FATAL(
		ctn_container_open(write_header("{\"../\\u00e9\\\"/\\ud83d\\ude00\\\\\":" T(
							"U8", "[1]", "[0,1]") "}",
						1),
				   &c, NULL),
		0);
	CU_ASSERT_STRING_EQUAL(c.tensors[0].name, odd);
	ctn_container_close(&c);

	ctn_buf_puts(&long_name, "{\"");
	for (int i = 0; i < 10000; i++)
		ctn_buf_puts(&long_name, "n");
	ctn_buf_puts(&long_name, "\":" T("U8", "[1]", "[0,1]") "}");
	CU_ASSERT_EQUAL_FATAL(ctn_container_open(write_header(long_name.data, 1), &c, NULL), 0);
	CU_ASSERT_EQUAL(strlen(c.tensors[0].name), 10000);
	ctn_container_close(&c);
	ctn_buf_free(&long_name);
}

/* ---- what is no file, and what is a large one ------------------------------------------ */

static void test_not_regular(void)
{
	const char *dir = gen_dir();
	char path[PATH_MAX];
	struct ctn_err err;
	struct ctn_container c;

	CU_ASSERT_EQUAL(mkdir(gen_path(path, dir, "d.safetensors"), 0700), 0);
	CU_ASSERT_EQUAL(ctn_container_open(path, &c, &err), -EINVAL);
	CU_ASSERT_EQUAL(mkfifo(gen_path(path, dir, "f.safetensors"), 0600), 0);
	CU_ASSERT_EQUAL(ctn_container_open(path, &c, &err), -EINVAL);
	CU_ASSERT_EQUAL(symlink("/dev/zero", gen_path(path, dir, "z.safetensors")), 0);
	CU_ASSERT_EQUAL(ctn_container_open(path, &c, &err), -EINVAL);
	CU_ASSERT_EQUAL(symlink("l.safetensors", gen_path(path, dir, "l.safetensors")), 0);
	CU_ASSERT_EQUAL(ctn_container_open(path, &c, &err), -ELOOP);
	CU_ASSERT_EQUAL(symlink("../blobs/0a1b", gen_path(path, dir, "x.safetensors")), 0);
	CU_ASSERT_EQUAL(ctn_container_open(path, &c, &err), -ENOENT);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "../blobs/0a1b"));
	CU_ASSERT_EQUAL(ctn_container_open(gen_path(path, dir, "model.bin"), &c, &err), -ENOTSUP);
	/* The name that is asked for decides, not what it is a link to. */
	gen_write_file(dir, "0a1b", "\2\0\0\0\0\0\0\0{}", 10);
	CU_ASSERT_EQUAL(symlink("0a1b", gen_path(path, dir, "y.safetensors")), 0);
	CU_ASSERT_EQUAL(ctn_container_open(path, &c, &err), 0);
	ctn_container_close(&c);
}

/* A header of 90 MB: within 20 s and 1.5 GiB. */
static void test_a_million_tensors(void)
{
	const unsigned int count = 1000000;
	struct timespec before, after;
	struct ctn_buf b = {0};
	struct ctn_container c;
	struct ctn_err err = {0};
	struct rusage usage;
	double seconds;

	ctn_buf_puts(&b, "{");
	for (unsigned int i = 0; i < count; i++) {
		/* Offsets in another order than names. */
		const unsigned int at = (unsigned int)((uint64_t)i * 7919 % count);

		ctn_buf_printf(&b,
			       "%s\"model.layers.%u.mlp.weight\":"
			       "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%u,%u]}",
			       i ? "," : "", i, at, at + 1);
	}
	ctn_buf_puts(&b, "}");
	CU_ASSERT_FALSE_FATAL(b.failed);
	CU_ASSERT(b.len > 90000000 && b.len < 100000000);
	const char *path = write_raw(b.len, b.data, b.len, count);

	ctn_buf_free(&b);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	CU_ASSERT_EQUAL_FATAL(ctn_container_open(path, &c, &err), 0);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	seconds = (double)(after.tv_sec - before.tv_sec) +
		  1e-9 * (double)(after.tv_nsec - before.tv_nsec);
	getrusage(RUSAGE_SELF, &usage);
	printf("# %u tensors: %.2f s, %ld KiB\n", count, seconds, usage.ru_maxrss);
	CU_ASSERT_TRUE(seconds < (SANITIZED ? 60 : 20));
	CU_ASSERT_TRUE(SANITIZED || usage.ru_maxrss < 1536 * 1024);
	CU_ASSERT_EQUAL(c.count, count);
	CU_ASSERT_STRING_EQUAL(c.tensors[7919].name, "model.layers.1.mlp.weight");
	ctn_container_close(&c);
	unlink(path);
}

CTN_TESTS("checkpoint_safetensors", CTN_TEST(test_too_small), CTN_TEST(test_header_length),
	  CTN_TEST(test_cut_header), CTN_TEST(test_json), CTN_TEST(test_deep_nesting),
	  CTN_TEST(test_large_entry), CTN_TEST(test_fields), CTN_TEST(test_tiling),
	  CTN_TEST(test_many_tensors_on_one_range), CTN_TEST(test_odd_values),
	  CTN_TEST(test_every_dtype), CTN_TEST(test_unaligned_data), CTN_TEST(test_names),
	  CTN_TEST(test_not_regular), CTN_TEST(test_a_million_tensors))
