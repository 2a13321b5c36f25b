/* Ends of a ring's last repetition without computing the repetitions between. The formulas are derived in
 * collectives/recurrence.py (equal chunks, and chunks of two sizes).
 *
 * Hop k hands on what hop k - 1 brought, hop 0 what the last hop brought:
 *
 *     E_t(k) = max(E_{t-1}(k - 1) + latency(k), E_{t-1}(k)) + takes(k)
 *
 * Example: three hops, latency 0, takes (3, 1, 1), E_0 = (0, 0, 0).
 *
 *     E_1 = (3, 1, 1)    E_2 = (6, 4, 2)    E_3 = (9, 7, 5)
 *
 * E_3(1) = 7 is the longest path that ends at hop 1 after 3 rounds: start at hop 0, wait there twice (2 * 3), move on
 * to hop 1 (1). The closed formula maximises over all starting hops at once and needs about N log N steps in all,
 * instead of N steps per round.
 *
 * Positions unroll the ring: position x is hop x mod N, and the last lap begins at `offset`.
 */
#ifndef RECURRENCE_H
#define RECURRENCE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* N hops sorted by duration form N^2 pairs of a hop and a slower hop. Beyond this number per hop, computing all rounds
 * is cheaper than the formula. */
#define MOST_PAIRS 400

typedef struct {
    int32_t hops;
    double *end; /* of the round before on entry, of the last round on return */
    const double *latency;
    const double *takes; /* duration of a chunk [s], if all chunks are equal */
    const double *nbytes; /* bytes in the first round, if chunks have two sizes */
    double rate; /* of all hops, if chunks have two sizes */
} RingHops;

/* Running maximum of values[first .. last] for windows whose ends only move forward: a queue of candidates with falling
 * values, each position enters and leaves once. */
typedef struct {
    const double *values;
    int64_t *best, head, tail, next;
} Window;

static double window_largest(Window *window, int64_t first, int64_t last) {
    for (; window->next <= last; window->next++) {
        while (window->tail > window->head && window->values[window->best[window->tail - 1]] <= window->values[window->next])
            window->tail--;
        window->best[window->tail++] = window->next;
    }
    while (window->head < window->tail && window->best[window->head] < first) window->head++;
    return window->head < window->tail ? window->values[window->best[window->head]] : -INFINITY;
}

/* Longest paths that avoid the slowest hop, which is hop 0. Such a path waits at the slowest hop of its own way.
 *
 *     takes:   5  1  2  1  3  1        (hop 0 is the slowest of the ring)
 *     hop 1 leads ahead to hop 2, then hop 4: ever slower hops in the direction of travel
 *     hop 5 leads behind to hop 4: ever slower hops against the direction of travel
 *
 * A path from s to r with its slowest hop at `at` satisfies: `at` is reached from s by `ahead` and from r by `behind`.
 * First pass: best[at], over all s. Second pass: longest[r], over all `at`. Returns 0 if there are too many pairs.
 */
static int on_the_way(const double *start, const double *takes, int32_t n, int64_t rounds, int64_t offset, double *longest) {
    int32_t *behind = malloc((size_t)n * 5 * sizeof(int32_t)), *ahead = behind + n, *stack = ahead + n;
    int32_t *equal_first = stack + n, *equal_second = equal_first + n, top = 0, equals = 0;
    double *best = malloc((size_t)n * sizeof(double));
    int64_t pairs = 0;
    if (!behind || !best) pairs = INT64_MAX;
    for (int32_t hop = 0; pairs < INT64_MAX && hop < n; hop++) {
        behind[hop] = ahead[hop] = -1;
        best[hop] = longest[hop] = -INFINITY;
        if (takes[hop] == takes[0]) {
            top = 0;
            continue;
        }
        /* Pop all hops that are not slower than this hop: a stack with falling durations. */
        int32_t last = -1;
        while (top && takes[stack[top - 1]] <= takes[hop]) {
            last = stack[--top];
            if (takes[last] < takes[hop]) ahead[last] = hop;
        }
        if (last >= 0 && takes[last] == takes[hop]) {
            equal_first[equals] = last;
            equal_second[equals++] = hop;
        }
        if (top) behind[hop] = stack[top - 1];
        stack[top++] = hop;
        pairs += top;
    }
    int few = pairs <= (int64_t)MOST_PAIRS * n;
    if (few) {
        /* Of two equally slow hops the first leads ahead to whatever the second leads to. */
        for (int32_t i = equals - 1; i >= 0; i--) ahead[equal_first[i]] = ahead[equal_second[i]];
        for (int32_t hop = 0; hop < n; hop++)
            for (int32_t at = takes[hop] < takes[0] ? hop : -1; at >= 0; at = ahead[at]) {
                double value = start[hop] + (double)(hop + offset) * takes[at];
                if (value > best[at]) best[at] = value;
            }
        /* A path that reaches the first of two equally slow hops may as well wait at the second. */
        for (int32_t i = 0; i < equals; i++)
            if (best[equal_first[i]] > best[equal_second[i]]) best[equal_second[i]] = best[equal_first[i]];
        for (int32_t hop = 0; hop < n; hop++)
            for (int32_t at = takes[hop] < takes[0] ? hop : -1; at >= 0; at = behind[at]) {
                double value = best[at] + (double)(rounds - (hop + offset)) * takes[at];
                if (value > longest[hop]) longest[hop] = value;
            }
    }
    free(behind);
    free(best);
    return few;
}

/* Equal chunks. `rounds` must be at least hops - 2. Returns 0 if the formula costs too much or memory is exhausted. */
static int advance_even(RingHops *ring, int64_t rounds) {
    int32_t n = ring->hops, turn = 0;
    /* Rotate the slowest hop to position 0: no chain of ever slower hops then wraps round the end. */
    for (int32_t k = 1; k < n; k++)
        if (ring->takes[k] > ring->takes[turn]) turn = k;
    int64_t laps = (rounds + n - 1) / n, length = (laps + 1) * n, offset = laps * n;
    double *takes = malloc((size_t)n * 2 * sizeof(double)), *longest = takes + n;
    double *start = malloc((size_t)length * 3 * sizeof(double)), *passed = start + length, *value = passed + length;
    int64_t *best = malloc((size_t)length * sizeof(int64_t));
    int solved = takes && start && best;
    if (solved) {
        double slowest = ring->takes[turn], sum = 0.0;
        for (int32_t k = 0; k < n; k++) takes[k] = ring->takes[(turn + k) % n];
        /* passed: latencies and durations up to position x. value: the start of a path from x that waits at the slowest
         * hop. */
        for (int64_t x = 0, k = turn; x < length; x++, k = k + 1 == n ? 0 : k + 1) {
            sum += ring->latency[k] + ring->takes[k];
            passed[x] = sum;
            start[x] = ring->end[k] - sum;
            value[x] = start[x] + (double)x * slowest;
        }
        solved = on_the_way(start + offset, takes, n, rounds, offset, longest);
        Window window = {value, best, 0, 0, 0};
        /* Paths that pass the slowest hop start anywhere up to its last position `last`, at most `rounds` positions
         * back. */
        int64_t last = offset;
        for (int32_t k = 0; solved && k < n; k++) {
            if (takes[k] == slowest) last = offset + k;
            int64_t asked = offset + k, first = asked - rounds;
            if (last < first) continue;
            if (window.next < first) window.next = first;
            double behind = window_largest(&window, first, last) + (double)(rounds - asked) * slowest;
            if (behind > longest[k]) longest[k] = behind;
        }
        for (int32_t k = 0; solved && k < n; k++) ring->end[(turn + k) % n] = longest[k] + passed[offset + k];
    }
    free(takes);
    free(start);
    free(best);
    return solved;
}

/* Chunks of two sizes on hops of one rate. Returns 0 for three or more sizes, or if memory is exhausted. */
static int advance_uneven(RingHops *ring, int64_t rounds) {
    int32_t n = ring->hops;
    double small = ring->nbytes[0], large = ring->nbytes[0];
    for (int32_t k = 1; k < n; k++) {
        small = ring->nbytes[k] < small ? ring->nbytes[k] : small;
        large = ring->nbytes[k] > large ? ring->nbytes[k] : large;
    }
    for (int32_t k = 0; k < n; k++)
        if (ring->nbytes[k] != small && ring->nbytes[k] != large) return 0;
    int64_t laps = (rounds + n - 1) / n, length = (laps + 1) * n, offset = laps * n;
    /* Extra time of a large chunk on a hop [s]. */
    double more = (large - small) / ring->rate, sum = 0.0;
    double *start = malloc((size_t)length * 3 * sizeof(double)), *passed = start + length, *with_large = passed + length;
    int64_t *counted = malloc(((size_t)length * 4 + 2) * sizeof(int64_t)), *nearest = counted + length;
    int64_t *best = nearest + length + 1, *others = best + length, count = 0;
    int solved = start && counted;
    if (solved) {
        /* counted: large chunks up to position x. with_large: the start of a path that makes all its moves with a large
         * chunk. */
        for (int64_t x = 0; x < length; x++) {
            int32_t k = (int32_t)(x % n);
            sum += ring->latency[k];
            count += ring->nbytes[k] > small;
            passed[x] = sum;
            counted[x] = count;
            start[x] = ring->end[k] - sum;
            with_large[x] = start[x] + more * (double)(count - x);
        }
        /* Position of the first large chunk at or after x. */
        nearest[length] = ring->nbytes[0] > small ? length : length + 1;
        for (int64_t x = length - 1; x >= 0; x--) nearest[x] = ring->nbytes[x % n] > small ? x : nearest[x + 1];
        Window at_large = {with_large, best, 0, 0, 0}, before = {start, others, 0, 0, 0};
        for (int64_t asked = offset; asked < length; asked++) {
            /* From position `at_hand` on, a path can meet a large chunk and move with it; from earlier positions it
             * cannot. */
            int64_t first = asked - rounds, at_hand = nearest[first + 1] - 1;
            at_hand = at_hand < first ? first : at_hand > asked + 1 ? asked + 1 : at_hand;
            double longest = -INFINITY;
            if (at_hand <= asked) {
                if (at_large.next < at_hand) at_large.next = at_hand;
                longest = window_largest(&at_large, at_hand, asked) + more * (double)(asked - counted[first]);
            }
            if (at_hand > first) {
                if (before.next < first) before.next = first;
                double none = window_largest(&before, first, at_hand - 1);
                if (none > longest) longest = none;
            }
            ring->end[asked - offset] = longest + passed[asked] + (double)rounds * small / ring->rate;
        }
    }
    free(start);
    free(counted);
    return solved;
}

#endif
