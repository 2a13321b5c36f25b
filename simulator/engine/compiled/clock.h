/* The clock: what happens next, a binary heap by time, then by priority, then in the order in which it was told. */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>
#include <stdlib.h>

enum What { FLOW_ENDS, SHARED_ENDS, FLOW_ENTERS, SHARES_CHANGE, KERNEL_ENDS, RANK_STARTS, DURATION_ENDS, RANK_DONE };

typedef struct {
    double time;
    uint64_t order;   /* priority in the highest bits; shares are solved after all else of a moment */
    int32_t what, who, also;
    uint32_t version; /* an event whose owner has moved on is stale, and nothing happens */
} Event;

typedef struct {
    Event *heap;
    int64_t size, room;
    uint64_t told;
    double now;
} Clock;

static inline int before(const Event *a, const Event *b) {
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

/* Returns 0 where there is no memory. */
static int tell(Clock *clock, double time, int last, int32_t what, int32_t who, int32_t also, uint32_t version) {
    if (clock->size == clock->room) {
        int64_t room = clock->room ? 2 * clock->room : 1024;
        Event *heap = realloc(clock->heap, (size_t)room * sizeof(Event));
        if (!heap) return 0;
        clock->heap = heap;
        clock->room = room;
    }
    Event event = {time, ((uint64_t)last << 62) | clock->told++, what, who, also, version};
    int64_t place = clock->size++;
    while (place > 0) {
        int64_t parent = (place - 1) / 2;
        if (!before(&event, &clock->heap[parent])) break;
        clock->heap[place] = clock->heap[parent];
        place = parent;
    }
    clock->heap[place] = event;
    return 1;
}

static Event next_event(Clock *clock) {
    Event first = clock->heap[0], moved = clock->heap[--clock->size];
    int64_t place = 0, child;
    while ((child = 2 * place + 1) < clock->size) {
        if (child + 1 < clock->size && before(&clock->heap[child + 1], &clock->heap[child])) child++;
        if (!before(&clock->heap[child], &moved)) break;
        clock->heap[place] = clock->heap[child];
        place = child;
    }
    clock->heap[place] = moved;
    return first;
}

#endif
