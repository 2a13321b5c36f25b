/* What is under way: instances that are played, streams of ranks, the clock, the fabric. */
#ifndef PLAY_H
#define PLAY_H
#include "problem.h"
#include "clock.h"
#include "fabric.h"
#include "noise.h"

typedef struct {
    int32_t row, repetition, next;
} Blocked;

typedef struct { /* an instance while it is played */
    double *started;      /* by participant; infinite before its rank has come */
    int32_t *to_end;      /* by participant: rows whose last repetition it has yet to see through */
    int32_t *waiting;     /* by participant: chain of transfers that wait for its rank to start; -1 */
    Blocked *blocked;
    int32_t blocked_count, blocked_room;
    double *ready;        /* by transfer */
    int32_t *pending;     /* by transfer: what it still waits for */
    uint64_t *noise;      /* by participant */
    uint8_t *left;        /* by participant: whether its rank has gone on */
    int32_t missing, gathering, unfinished;
    int followed;
    uint32_t version;     /* of its events RANK_DONE */
    double first_reach;
} Live;

typedef struct {
    double left, since, alone, slowed;
    uint32_t version;
    int running;
} Kernels; /* of one stream of a rank */

typedef struct { /* instances that are under way on a link */
    int32_t *instance, size, room;
} Users;

typedef struct {
    const Problem *p;
    Result *out;
    Clock clock;
    Fabric fabric;
    int64_t *stream_base;  /* [ranks], into the arrays by stream */
    int32_t *position;     /* by stream: how many of its operations have been begun */
    uint8_t *busy;         /* by stream: whether the last of these is still under way */
    Kernels *kernels;      /* by stream */
    uint8_t *ended;        /* by operation of each rank, as `start` */
    int32_t *in_flight;    /* by rank: collectives that take SMs */
    Live **live;           /* by instance */
    Users *users;          /* by link */
    int64_t streams;
    int broken, out_of_order;
} Play;

static void settle(Play *play, int32_t rank);

static int64_t op_of(const Play *play, int32_t rank, int32_t place) {
    return play->p->list_begin[play->p->list_of[rank]] + place;
}

static void happen(Play *play, double time, int what, int32_t who, int32_t also, uint32_t version) {
    if (!tell(&play->clock, time, 0, what, who, also, version)) play->broken = 1;
}

#endif
