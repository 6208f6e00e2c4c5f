/* SPDX-License-Identifier: MIT */
/*
 * What the fuzz targets share. A target is one file, fuzz_FOLDER_WHAT.c, that feeds bytes to a
 * parser and holds what comes back against what the parser promises. It is linked with
 * libFuzzer to search, or with replay.c to run inputs that are there.
 */
#ifndef CTN_FUZZ_H
#define CTN_FUZZ_H

#include "base/base.h"

/* A promise that does not hold ends the process: that is what a fuzzer looks for. */
#define FUZZ_CHECK(e) ((e) ? (void)0 : fuzz_failed(#e, __FILE__, __LINE__))
_Noreturn void fuzz_failed(const char *expr, const char *file, int line);

/*
 * The target's one function: 0 when the parser took the input, else its negative errno. Of
 * equal bytes it is always the same, but for -ENOMEM.
 */
int fuzz_one(const uint8_t *data, size_t size);

/* libFuzzer's entry; calls fuzz_one. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* `rc` is 0, or one of the parser's documented errors with one line that says why. */
void fuzz_check_err(int rc, const struct ctn_err *err);

/* The target's own folder, below $TMPDIR; removed at exit. */
const char *fuzz_dir(void);
/* Makes a file in it, or replaces one. */
void fuzz_put(const char *name, const void *data, size_t size);
/* Makes a link in it, which may dangle. */
void fuzz_link(const char *name, const char *to);
/* Empties the folder. */
void fuzz_clear(void);

/* Cuts off the next field of an input whose fields end in NUL bytes. False: none is left. */
bool fuzz_field(const uint8_t **data, size_t *size, const char **field, size_t *len);

/* Which of the tensors of a tiny LLaMA, OPT and GPT-2 together a container holds. Their shapes:
 * see checkpoint.c. */
enum fuzz_share { FUZZ_WHOLE, FUZZ_FIRST_HALF, FUZZ_SECOND_HALF };
void fuzz_put_container(const char *name, enum fuzz_share share);

#endif
