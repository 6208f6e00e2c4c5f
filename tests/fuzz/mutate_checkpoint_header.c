// SPDX-License-Identifier: MIT
/*
 * How a safetensors file is changed. Half of the time only its header is, and its length is put
 * right; else mutations hardly get past the first eight bytes.
 */
#include "fuzz.h"

#include <endian.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed);

#define INPUT_MAX 65536u

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed)
{
	static uint8_t rest[INPUT_MAX];
	uint64_t n;
	size_t behind;

	if (size <= 8 || size > INPUT_MAX || seed % 2)
		return LLVMFuzzerMutate(data, size, max);
	memcpy(&n, data, sizeof(n));
	n = le64toh(n);
	if (n > size - 8)
		n = size - 8;
	behind = size - 8 - n;
	if (behind >= max - 8)
		return LLVMFuzzerMutate(data, size, max);
	memcpy(rest, data + 8 + n, behind);
	n = LLVMFuzzerMutate(data + 8, n, max - 8 - behind);
	memcpy(data + 8 + n, rest, behind);
	size = 8 + n + behind;
	n = htole64(n);
	memcpy(data, &n, sizeof(n));
	return size;
}
