// SPDX-License-Identifier: MIT
/* Random numbers that are the same on every machine: xoshiro256**, seeded by splitmix64. */
#include "sim.h"

#include <math.h>

static uint64_t splitmix(uint64_t *x)
{
	uint64_t z = *x += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

void ctn_sim_random_init(struct ctn_sim_random *r, uint64_t seed, uint64_t stream)
{
	uint64_t x = seed;

	x = splitmix(&x) ^ stream * 0xd1342543de82ef95ull;
	for (size_t i = 0; i < CTN_ARRAY_LEN(r->state); i++)
		r->state[i] = splitmix(&x);
}

static uint64_t rotate(uint64_t x, int k)
{
	return x << k | x >> (64 - k);
}

uint64_t ctn_sim_random_u64(struct ctn_sim_random *r)
{
	uint64_t *s = r->state;
	uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotate(s[3], 45);
	return result;
}

double ctn_sim_random_uniform(struct ctn_sim_random *r)
{
	return (double)(ctn_sim_random_u64(r) >> 11) * 0x1p-53;
}

/* In (0, 1]: has a logarithm. */
static double positive(struct ctn_sim_random *r)
{
	return 1 - ctn_sim_random_uniform(r);
}

/* Marsaglia's polar method; the second value is not kept, so that streams do not depend on calls
 * before. */
static double normal(struct ctn_sim_random *r)
{
	double u, v, s;

	do {
		u = 2 * ctn_sim_random_uniform(r) - 1;
		v = 2 * ctn_sim_random_uniform(r) - 1;
		s = u * u + v * v;
	} while (s >= 1 || s == 0);
	return u * sqrt(-2 * log(s) / s);
}

/* Marsaglia and Tsang (2000); below shape 1 by G(k) = G(k + 1) U^(1/k). */
double ctn_sim_random_gamma(struct ctn_sim_random *r, double shape)
{
	double k = shape < 1 ? shape + 1 : shape;
	double d = k - 1.0 / 3, c = 1 / sqrt(9 * d), x, v;

	do {
		do {
			x = normal(r);
			v = 1 + c * x;
		} while (v <= 0);
		v = v * v * v;
	} while (log(positive(r)) >= 0.5 * x * x + d * (1 - v + log(v)));
	if (shape < 1)
		return d * v * exp(log(positive(r)) / shape) / shape;
	return d * v / shape;
}

double ctn_sim_random_weibull(struct ctn_sim_random *r, double shape)
{
	return exp(log(-log(positive(r)) + 0x1p-1000) / shape - lgamma(1 + 1 / shape));
}
