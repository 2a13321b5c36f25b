/* Seeded noise: a factor exp(sigma z) that depends on who and what alone; as engine/noise.py, draw by draw. */
#ifndef NOISE_H
#define NOISE_H

#include <math.h>
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

static inline double factor(double sigma, uint64_t state, uint64_t number) {
    const double pi = 3.14159265358979323846;
    state = mixed(state ^ number);
    /* Node & Muller 1958; the first uniform is kept away from 0. */
    double first = (double)(mixed(state) >> 11) * 0x1p-53 + 0x1p-54;
    double second = (double)(mixed(state ^ 0xA5A5A5A5u) >> 11) * 0x1p-53;
    return exp(sigma * sqrt(-2.0 * log(first)) * cos(2.0 * pi * second));
}

#endif
