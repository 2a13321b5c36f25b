/* Seeded noise: a factor exp(sigma z) that depends only on (seed, rank, operation, number); equal to engine/noise.py.
 * Counters instead of a running generator: adding a rank or a transfer leaves all other draws unchanged. */
#ifndef NOISE_H
#define NOISE_H

#include <stdint.h>

/* The finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014). */
static inline uint64_t mixed(uint64_t state) {
    uint64_t z = state + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Mix rank and operation into the seed; `factor` mixes in the number of the transfer. */
static inline uint64_t noise_state(uint64_t seed, uint64_t rank, uint64_t op) {
    return mixed(mixed(mixed(seed) ^ rank) ^ op);
}

/* Draw a factor: interpolate between two neighbours of a table with 4097 quantiles of exp(sigma z). */
static inline double factor(const double *table, uint64_t state, uint64_t number) {
    state = mixed(state ^ number);
    /* The top 12 bits choose one of 4096 intervals, the next 40 bits the position inside the interval. */
    const double *part = table + (state >> 52);
    double inside = (double)((state >> 12) & 0xFFFFFFFFFFu) * 0x1p-40;
    return part[0] + inside * (part[1] - part[0]);
}

#endif
