// SPDX-License-Identifier: MIT
#include "base/base.h"

#include <errno.h>
#include <string.h>

static const struct {
	const char *name;
	unsigned int bits;
} dtypes[CTN_DTYPE_COUNT] = {
	[CTN_DTYPE_F4] = {"F4", 4},
	[CTN_DTYPE_F6_E2M3] = {"F6_E2M3", 6},
	[CTN_DTYPE_F6_E3M2] = {"F6_E3M2", 6},
	[CTN_DTYPE_BOOL] = {"BOOL", 8},
	[CTN_DTYPE_U8] = {"U8", 8},
	[CTN_DTYPE_I8] = {"I8", 8},
	[CTN_DTYPE_F8_E5M2] = {"F8_E5M2", 8},
	[CTN_DTYPE_F8_E4M3] = {"F8_E4M3", 8},
	[CTN_DTYPE_F8_E8M0] = {"F8_E8M0", 8},
	[CTN_DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
	[CTN_DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
	[CTN_DTYPE_I16] = {"I16", 16},
	[CTN_DTYPE_U16] = {"U16", 16},
	[CTN_DTYPE_F16] = {"F16", 16},
	[CTN_DTYPE_BF16] = {"BF16", 16},
	[CTN_DTYPE_I32] = {"I32", 32},
	[CTN_DTYPE_U32] = {"U32", 32},
	[CTN_DTYPE_F32] = {"F32", 32},
	[CTN_DTYPE_C64] = {"C64", 64},
	[CTN_DTYPE_F64] = {"F64", 64},
	[CTN_DTYPE_I64] = {"I64", 64},
	[CTN_DTYPE_U64] = {"U64", 64},
};

const char *ctn_dtype_name(enum ctn_dtype dtype)
{
	return dtypes[dtype].name;
}

unsigned int ctn_dtype_bits(enum ctn_dtype dtype)
{
	return dtypes[dtype].bits;
}

int ctn_dtype_parse(const char *name, enum ctn_dtype *dtype)
{
	for (unsigned int i = 0; i < CTN_DTYPE_COUNT; i++) {
		if (strcmp(dtypes[i].name, name) == 0) {
			*dtype = (enum ctn_dtype)i;
			return 0;
		}
	}
	return -ENOENT;
}
