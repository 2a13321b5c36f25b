/* Seeded noise: a factor exp(sigma z) that depends on who and what alone; as engine/noise.py, draw by draw. */
#ifndef NOISE_H
#define NOISE_H

#include <stdint.h>

/* SplitMix64's finaliser (Steele, Lea & Flood, OOPSLA 2014). */
static inline uint64_t mixed(uint64_t state) {
    uint64_t z = state + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* What rank and operation make of the seed; a transfer's number is mixed in by `factor`. */
static inline uint64_t noise_state(uint64_t seed, uint64_t rank, uint64_t op) {
    return mixed(mixed(mixed(seed) ^ rank) ^ op);
}

/* A draw: between two of the 4097 entries of a table of exp(sigma z). */
static inline double factor(const double *table, uint64_t state, uint64_t number) {
    state = mixed(state ^ number);
    const double *part = table + (state >> 52);
    double inside = (double)((state >> 12) & 0xFFFFFFFFFFu) * 0x1p-40;
    return part[0] + inside * (part[1] - part[0]);
}

#endif
