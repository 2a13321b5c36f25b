/* State of a running simulation: collectives in flight, streams of the ranks, the clock, the fabric. */
#ifndef PLAY_H
#define PLAY_H
#include "problem.h"
#include "clock.h"
#include "fabric.h"
#include "noise.h"

/* A transfer that waits for its rank to start, in a linked list: `next` indexes Live.blocked, -1 at the end. */
typedef struct {
    int32_t row, repetition, next;
} Blocked;

/* An instance in flight, from the first rank that comes to the last rank that is done.
 *
 * Three counters: `gathering` counts ranks whose stream has yet to come (used if TOGETHER), `missing` counts ranks that
 * have yet to start, and `unfinished` counts ranks that have yet to be done.
 */
typedef struct {
    double *started;      /* by participant; infinite until the rank starts, -infinite for servers and switches */
    int32_t *to_end;      /* by participant: rows of the participant whose last repetition has yet to end */
    int32_t *waiting;     /* by participant: first entry of its list of blocked transfers; -1: none */
    Blocked *blocked;
    int32_t blocked_count, blocked_room;
    double *ready;        /* by transfer: latest end among the transfers that it waits for */
    int32_t *pending;     /* by transfer: how many ends it still waits for, the channel included */
    uint64_t *noise;      /* by participant: state of the noise for its transfers; NULL: no noise */
    uint8_t *left;        /* by participant: 1 after its rank went on to the next operation */
    int32_t missing, gathering, unfinished;
    int32_t rows_left;    /* followed: rows whose last repetition has yet to end; servers may go on without ranks */
    int followed;         /* 1: the clock follows each transfer; 0: transfers are computed in order */
    uint32_t version;     /* of the instance's RANK_DONE events: older events are stale */
    double first_reach;   /* when the first rank started; infinite before */
} Live;

/* The kernel of one stream of a rank. `left` falls from 1 to 0; a whole kernel takes `alone` or `slowed` seconds. */
typedef struct {
    double left, since, alone, slowed;
    uint32_t version;
    int running, on_gpu;
} Kernels;

/* Instances in flight on one link. */
typedef struct {
    int32_t *instance, size, room;
} Users;

typedef struct {
    const Problem *p;
    Result *out;
    Clock clock;
    Fabric fabric;
    int64_t *stream_base;  /* [ranks], first entry of a rank in the arrays by stream */
    int32_t *position;     /* by stream: operations begun so far */
    uint8_t *busy;         /* by stream: 1 while the last operation begun is in progress */
    Kernels *kernels;      /* by stream */
    uint8_t *ended;        /* by rank and operation, indexed like Result.start */
    int32_t *in_flight;    /* by rank: collectives in flight that take SMs */
    double *speed;         /* by rank: factor on the usual speed of its GPU */
    Live **live;           /* by instance; NULL unless in flight */
    Users *users;          /* by link */
    int64_t streams;
    int broken, out_of_order;
} Play;

static void settle(Play *play, int32_t rank);

/* Index of an operation among the operations of all lists. */
static int64_t op_of(const Play *play, int32_t rank, int32_t place) {
    return play->p->list_begin[play->p->list_of[rank]] + place;
}

/* Schedule an event on the clock. */
static void happen(Play *play, double time, int what, int32_t who, int32_t also, uint32_t version) {
    if (!tell(&play->clock, time, 0, what, who, also, version)) play->broken = 1;
}

#endif
