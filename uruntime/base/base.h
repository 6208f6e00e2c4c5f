/* SPDX-License-Identifier: MIT */
/*
 * base: what every other folder stands on. Errors with context, log, clock, a growable
 * buffer, sizes and option lists, whole-file reads. No folder of the project is included
 * from here.
 */
#ifndef CTN_BASE_H
#define CTN_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <sys/types.h>

#define CTN_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define CTN_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define CTN_MAX(a, b)    ((a) > (b) ? (a) : (b))
#define CTN_KIB          ((uint64_t)1 << 10)
#define CTN_MIB          ((uint64_t)1 << 20)
#define CTN_GIB          ((uint64_t)1 << 30)
#define CTN_NSEC_PER_SEC 1000000000ull
#define CTN_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define CTN_CLEANUP(fn)  __attribute__((cleanup(fn)))

/* Rounds up or down to a multiple of a power of two. The caller rules out overflow. */
static inline uint64_t ctn_align_up(uint64_t v, uint64_t a)
{
	return (v + a - 1) & ~(a - 1);
}

static inline uint64_t ctn_align_down(uint64_t v, uint64_t a)
{
	return v & ~(a - 1);
}

static inline bool ctn_add_overflows(uint64_t a, uint64_t b, uint64_t *sum)
{
	return __builtin_add_overflow(a, b, sum);
}

static inline bool ctn_mul_overflows(uint64_t a, uint64_t b, uint64_t *product)
{
	return __builtin_mul_overflow(a, b, product);
}

/* ---- errors ---------------------------------------------------------------------------- */

/*
 * What went wrong, for a person: a negative errno and one line that names the thing, what
 * was expected and what was found. Functions return the code and fill `err` when it is not
 * NULL; a caller that only needs the code passes NULL.
 */
struct ctn_err {
	int code;
	char msg[508];
};

/* Makes one line of text for a person and for JSON of what may hold anything, a file's names for
 * one: bytes that are not UTF-8 and control characters become '?'. */
void ctn_one_line(char *text);

/* Sets code (a negative errno) and message, which becomes one line; returns code, so that
 * `return ctn_err_set(...)`
 * reads well. `err` may be NULL. Thread-safe for distinct `err`. */
int ctn_err_set(struct ctn_err *err, int code, const char *fmt, ...) CTN_PRINTF(3, 4);

/* Puts "PREFIX: " in front of the message that is there and keeps the code; returns it. Without
 * `err` the code is not known here: -EINVAL, so that a failure stays one. */
int ctn_err_prefix(struct ctn_err *err, const char *fmt, ...) CTN_PRINTF(2, 3);

/* ---- log ------------------------------------------------------------------------------- */

enum ctn_log_level { CTN_LOG_ERROR, CTN_LOG_WARN, CTN_LOG_INFO, CTN_LOG_DEBUG };

/* Lines go to stderr, one write(2) each, so that threads do not mix. Any thread. */
void ctn_log_set_level(enum ctn_log_level level);
void ctn_log(enum ctn_log_level level, const char *fmt, ...) CTN_PRINTF(2, 3);

#define ctn_error(...) ctn_log(CTN_LOG_ERROR, __VA_ARGS__)
#define ctn_warn(...)  ctn_log(CTN_LOG_WARN, __VA_ARGS__)
#define ctn_info(...)  ctn_log(CTN_LOG_INFO, __VA_ARGS__)
#define ctn_debug(...) ctn_log(CTN_LOG_DEBUG, __VA_ARGS__)

/* ---- assertions ------------------------------------------------------------------------ */

/*
 * Invariants of our own code, never of input. Live in builds with CTN_DEBUG (all tests),
 * absent from release builds.
 */
#ifdef CTN_DEBUG
_Noreturn void ctn_assert_failed(const char *expr, const char *file, int line);
#define CTN_ASSERT(e) ((e) ? (void)0 : ctn_assert_failed(#e, __FILE__, __LINE__))
#else
#define CTN_ASSERT(e) ((void)sizeof(!(e)))
#endif

/* ---- encodings and digests ------------------------------------------------------------- */

/* Every dtype that a safetensors header may name. What a kernel can compute with is asked
 * elsewhere. */
enum ctn_dtype {
	CTN_DTYPE_F4,
	CTN_DTYPE_F6_E2M3,
	CTN_DTYPE_F6_E3M2,
	CTN_DTYPE_BOOL,
	CTN_DTYPE_U8,
	CTN_DTYPE_I8,
	CTN_DTYPE_F8_E5M2,
	CTN_DTYPE_F8_E4M3,
	CTN_DTYPE_F8_E8M0,
	CTN_DTYPE_F8_E4M3FNUZ,
	CTN_DTYPE_F8_E5M2FNUZ,
	CTN_DTYPE_I16,
	CTN_DTYPE_U16,
	CTN_DTYPE_F16,
	CTN_DTYPE_BF16,
	CTN_DTYPE_I32,
	CTN_DTYPE_U32,
	CTN_DTYPE_F32,
	CTN_DTYPE_C64,
	CTN_DTYPE_F64,
	CTN_DTYPE_I64,
	CTN_DTYPE_U64,
	CTN_DTYPE_COUNT
};

/* "BF16" and the like, and the size of an element in bits. */
const char *ctn_dtype_name(enum ctn_dtype dtype);
unsigned int ctn_dtype_bits(enum ctn_dtype dtype);
/* By exact name; -ENOENT. */
int ctn_dtype_parse(const char *name, enum ctn_dtype *dtype);

/* How the elements of a tensor are stored. Codec, group size and scales will join here. */
struct ctn_encoding {
	enum ctn_dtype dtype;
};

/* 128 bits of XXH3 in canonical (big-endian) byte order. */
struct ctn_digest {
	uint8_t bytes[16];
};

/* As 32 hexadecimal digits, lower case. Returns out. */
#define CTN_DIGEST_TEXT 33
char *ctn_digest_format(const struct ctn_digest *digest, char out[CTN_DIGEST_TEXT]);
/* -EINVAL for anything else. */
int ctn_digest_parse(const char *text, struct ctn_digest *digest);

/* ---- clock ----------------------------------------------------------------------------- */

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t ctn_now_ns(void);

/* ---- buffer ---------------------------------------------------------------------------- */

/*
 * A growable byte buffer, always NUL-terminated when data is not NULL. Zero-initialise;
 * free with ctn_buf_free. An append that cannot allocate sets `failed` and later appends do
 * nothing, so that a builder checks once at its end.
 */
struct ctn_buf {
	char *data;
	size_t len;
	size_t cap;
	bool failed;
};

void ctn_buf_append(struct ctn_buf *buf, const void *data, size_t len);
void ctn_buf_puts(struct ctn_buf *buf, const char *s);
void ctn_buf_printf(struct ctn_buf *buf, const char *fmt, ...) CTN_PRINTF(2, 3);
/* Forgets the content, keeps the memory. */
void ctn_buf_reset(struct ctn_buf *buf);
void ctn_buf_free(struct ctn_buf *buf);

/* ---- sizes, rates, option lists -------------------------------------------------------- */

/* "512M" -> bytes; K/M/G/T are powers of 1024; a bare number is bytes. -EINVAL, -ERANGE. */
int ctn_parse_size(const char *s, uint64_t *bytes, struct ctn_err *err);
/* "400M" -> bytes a second; K/M/G/T are powers of 1000. -EINVAL, -ERANGE. */
int ctn_parse_rate(const char *s, uint64_t *bytes_per_s, struct ctn_err *err);
/* Decimal with or without a minus, whole string, from -most to most. -EINVAL. `what` as below. */
int ctn_parse_signed(const char *what, const char *s, int32_t most, int32_t *v,
		     struct ctn_err *err);
/* Decimal, whole string, within [min, max]. -EINVAL, -ERANGE. `what` names it in the error. */
int ctn_parse_u64(const char *what, const char *s, uint64_t min, uint64_t max, uint64_t *v,
		  struct ctn_err *err);
/* Writes "1.5 MiB" and the like. Returns out. */
char *ctn_format_size(uint64_t bytes, char out[32]);

/*
 * An option value such as "host:2,mem=512M,uplink=0-1:300M,2-3:300M": comma-separated
 * tokens "key=value" or a bare "value"; a bare token after the first continues the value of
 * the one before it ("devices=0,2"), joined by a comma. A bare first token has key "".
 */
struct ctn_opt {
	char *key;
	char *value;
};

struct ctn_opts {
	struct ctn_opt *items;
	size_t count;
};

/* -EINVAL for an empty key or a key given twice, -ENOMEM. Free with ctn_opts_free. */
int ctn_opts_parse(const char *s, struct ctn_opts *opts, struct ctn_err *err);
/* The value of `key`, or NULL. */
const char *ctn_opts_get(const struct ctn_opts *opts, const char *key);
/* -EINVAL naming the first key that is not in the NULL-terminated list `known`. */
int ctn_opts_check(const struct ctn_opts *opts, const char *what, const char *const *known,
		   struct ctn_err *err);
void ctn_opts_free(struct ctn_opts *opts);

/* ---- mailbox --------------------------------------------------------------------------- */

/*
 * From many threads to the one that owns the mailbox. A mail is embedded in what it is about
 * and is in one mailbox at a time; posting allocates nothing and never waits for the owner.
 */
struct ctn_mail {
	struct ctn_mail *next;
	void (*take)(struct ctn_mail *mail); /* in the owner's thread; may free the mail */
};

struct ctn_mailbox {
	pthread_mutex_t lock;
	struct ctn_mail *head, **tail;
	int fd; /* an eventfd, readable when there is mail or it was woken */
};

int ctn_mailbox_init(struct ctn_mailbox *box);
void ctn_mailbox_destroy(struct ctn_mailbox *box);
/* Any thread. */
void ctn_mailbox_post(struct ctn_mailbox *box, struct ctn_mail *mail);
/* Makes the descriptor readable without a mail. Any thread. */
void ctn_mailbox_wake(struct ctn_mailbox *box);
/* Takes all mail that is there, in the order of posting. The owner's thread. */
void ctn_mailbox_take(struct ctn_mailbox *box);

/* ---- memory ---------------------------------------------------------------------------- */

/*
 * The least memory limit of the cgroups (v1 or v2) from this process's own up to the root;
 * UINT64_MAX: none. `root` is put in front of every path ("" in service).
 */
uint64_t ctn_memory_group_limit(const char *root);
/* Bytes that this process may count on: the smaller of MemAvailable and of that limit. -ENODATA
 * when /proc/meminfo does not tell. */
int ctn_memory_usable(const char *root, uint64_t *bytes);

/* ---- files ----------------------------------------------------------------------------- */

/*
 * Reads a whole regular file into *data (malloc'ed, NUL-terminated, the caller frees it).
 * Refuses what is not a regular file (no hang on a FIFO) and what is longer than `max`
 * (-EFBIG). Short reads and EINTR are handled.
 */
int ctn_read_file(const char *path, size_t max, char **data, size_t *len, struct ctn_err *err);

/*
 * Reads the first 64 KiB of a file of procfs, sysfs or cgroupfs into *text (NUL-terminated, the
 * caller frees it): these have no size, or a wrong one, until they are read.
 */
int ctn_read_text(const char *path, char **text);

/*
 * Opens a regular file read-only (O_CLOEXEC), following symbolic links, never blocking on
 * what is not one. Says where a dangling link points. Returns an fd or a negative errno.
 */
int ctn_open_regular(const char *path, uint64_t *size, struct ctn_err *err);

/* pread until `len` bytes, EINTR and short reads handled. -ENODATA if the file ends first. */
int ctn_pread_all(int fd, void *data, size_t len, uint64_t offset);

/* Joins "dir/name"; NULL when out of memory. The caller frees it. */
char *ctn_path_join(const char *dir, const char *name);

/* ---- YAML ------------------------------------------------------------------------------ */

struct fy_node; /* of libfyaml */

typedef int ctn_yaml_fn(void *arg, struct fy_node *root, struct ctn_err *err);

/*
 * Reads a YAML file of up to a MiB and calls `read` with the root of its document, NULL when there
 * is none. What is not UTF-8, not YAML or more than one document is refused by file and line.
 */
int ctn_yaml_read(const char *path, ctn_yaml_fn *read, void *arg, struct ctn_err *err);

/* NULL for what is no plain value: a list, a mapping, an alias, null, a NUL inside. */
const char *ctn_yaml_scalar(struct fy_node *node);

#endif
