// SPDX-License-Identifier: MIT
/* Frequencies of rotary positions, and how checkpoints scale them for longer contexts. */
#include "model/decoder.h"

#include <math.h>

/*
 * Llama 3: waves that are short against the original context stay, long ones are stretched by
 * `factor`, those between are blended.
 */
static double scale_llama3(const struct ctn_rope *rope, double freq)
{
	double wavelength = 2 * 3.14159265358979323846 / freq;
	double longest = rope->original_positions / rope->low_freq_factor;
	double shortest = rope->original_positions / rope->high_freq_factor;
	double blend;

	if (wavelength < shortest)
		return freq;
	if (wavelength > longest)
		return freq / rope->factor;
	blend = (rope->original_positions / wavelength - rope->low_freq_factor) /
		(rope->high_freq_factor - rope->low_freq_factor);
	return (1 - blend) * freq / rope->factor + blend * freq;
}

void ctn_rope_frequencies(const struct ctn_rope *rope, uint32_t head_dim, float *inv_freq)
{
	for (uint32_t i = 0; i < head_dim / 2; i++) {
		double freq = pow(rope->theta, -2.0 * i / head_dim);

		if (rope->scaling == CTN_ROPE_LINEAR)
			freq /= rope->factor;
		else if (rope->scaling == CTN_ROPE_LLAMA3)
			freq = scale_llama3(rope, freq);
		inv_freq[i] = (float)freq;
	}
}
