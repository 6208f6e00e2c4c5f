// SPDX-License-Identifier: MIT
/* Storage types to F32. */
#include "kernels/cpu/cpu.h"

#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

/* BF16 is the upper half of an F32. Eight at a time, which compilers turn into SIMD without
 * being told more about n. */
static void widen_bf16(float *dst, const uint16_t *src, size_t n)
{
	typedef uint16_t halves __attribute__((vector_size(16)));
	typedef uint32_t words __attribute__((vector_size(32)));
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		halves in;
		words out;

		memcpy(&in, src + i, sizeof(in));
		out = __builtin_convertvector(in, words) << 16;
		memcpy(dst + i, &out, sizeof(out));
	}
	for (; i < n; i++) {
		uint32_t bits = (uint32_t)src[i] << 16;

		memcpy(&dst[i], &bits, sizeof(bits));
	}
}

/*
 * Moves exponent and mantissa into place and corrects the exponent's bias by an exact
 * multiplication, which turns subnormals (exponent 0) into the right numbers too. Infinities
 * and NaNs get the full exponent, NaNs also the quiet bit, as F16C does.
 */
static float f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16;
	uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
	float v;

	memcpy(&v, &bits, sizeof(v));
	v *= 0x1p112f;
	memcpy(&bits, &v, sizeof(v));
	if ((h & 0x7c00) == 0x7c00) {
		bits |= 0x7f800000;
		if (h & 0x3ff)
			bits |= 0x00400000;
	}
	bits |= sign;
	memcpy(&v, &bits, sizeof(v));
	return v;
}

void ctn_cpu_widen_f16_portable(float *dst, const uint16_t *src, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = f16_to_f32(src[i]);
}

#ifdef __x86_64__
/* Asked once, before main: CPUID traps in virtual machines. */
static bool has_f16c;

__attribute__((constructor)) static void ask_f16c(void)
{
	unsigned int a, b, c, d;

	/* AVX2 says that the system saves the wide registers; F16C is a bit of its own. */
	__builtin_cpu_init();
	has_f16c =
		__builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool ctn_cpu_has_f16c(void)
{
	return has_f16c;
}

__attribute__((target("avx2,f16c"))) void ctn_cpu_widen_f16_f16c(float *dst, const uint16_t *src,
								 size_t n)
{
	size_t i = 0;

	for (; i + 8 <= n; i += 8)
		_mm256_storeu_ps(dst + i,
				 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i))));
	ctn_cpu_widen_f16_portable(dst + i, src + i, n - i);
}
#else
bool ctn_cpu_has_f16c(void)
{
	return false;
}

void ctn_cpu_widen_f16_f16c(float *dst, const uint16_t *src, size_t n)
{
	ctn_cpu_widen_f16_portable(dst, src, n);
}
#endif

void ctn_cpu_widen(float *dst, const void *src, enum ctn_dtype dtype, size_t n)
{
	CTN_ASSERT(dtype == CTN_DTYPE_F32 || dtype == CTN_DTYPE_F16 || dtype == CTN_DTYPE_BF16);
	if (dtype == CTN_DTYPE_F32)
		memcpy(dst, src, n * sizeof(float));
	else if (dtype == CTN_DTYPE_BF16)
		widen_bf16(dst, src, n);
	else if (ctn_cpu_has_f16c())
		ctn_cpu_widen_f16_f16c(dst, src, n);
	else
		ctn_cpu_widen_f16_portable(dst, src, n);
}
