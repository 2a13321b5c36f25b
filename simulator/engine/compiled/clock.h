/* The clock: a binary heap of events, ordered by time, then by priority, then in the order of scheduling.
 *
 * Events are never removed from the middle of the heap. An event carries the version of its owner (a flow, a kernel, an
 * instance). If the owner's version has grown since, the event is stale and its handler ignores it:
 *
 *     flow 3 is scheduled to end at t = 10 (version 0)
 *     t = 4: a second flow arrives, flow 3 gets slower, version becomes 1, a new end is scheduled at t = 13
 *     t = 10: the first event comes up with version 0 and is ignored
 */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>
#include <stdlib.h>

/* RATES_CHANGE: links and GPUs slow down or recover. FLOW_ENDS: end of a flow that has its links to itself. SHARED_ENDS: end of a flow that shares links. FLOW_ENTERS: the
 * latency of a flow has passed whose links were taken before. */
enum What { FLOW_ENDS, SHARED_ENDS, FLOW_ENTERS, SHARES_CHANGE, RATES_CHANGE, KERNEL_ENDS, RANK_STARTS, DURATION_ENDS, RANK_DONE };

typedef struct {
    double time;
    uint64_t order; /* priority in the top bits, then a running number */
    int32_t what, who, also; /* `who`: flow, rank or instance; `also`: stream or participant */
    uint32_t version; /* of the owner when the event was scheduled */
} Event;

typedef struct {
    Event *heap;
    int64_t size, room;
    uint64_t told;
    double now;
} Clock;

/* Return 1 if event `a` comes up before event `b`. */
static inline int before(const Event *a, const Event *b) {
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

/* Schedule an event; return 0 if memory is exhausted. With `last` the event comes after all other events of the same
 * time: shares are solved once per moment, when every flow of the moment has come or gone. */
static int tell(Clock *clock, double time, int last, int32_t what, int32_t who, int32_t also, uint32_t version) {
    if (clock->size == clock->room) {
        int64_t room = clock->room ? 2 * clock->room : 1024;
        Event *heap = realloc(clock->heap, (size_t)room * sizeof(Event));
        if (!heap) return 0;
        clock->heap = heap;
        clock->room = room;
    }
    /* Sift up: move parents down until the new event's place is found. */
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

/* Remove and return the first event. The last event of the heap fills the gap and is sifted down. */
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
