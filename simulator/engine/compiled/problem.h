/* What the core plays and what it gives back: flat arrays, filled in by problem.py; fields.py has the same names.
 *
 * Times are in seconds, sizes in bytes, rates in bytes per second. "Rows" are the transfers of a schedule's rounds, a
 * repeated round written once; a transfer is a row and a repetition. A gate is a row without a route: it ends in the
 * moment in which all that it waits for has ended, so that N transfers can wait for the same M without N x M entries.
 */
#ifndef PROBLEM_H
#define PROBLEM_H

#include <stdint.h>

enum OpKind { KERNEL, COLLECTIVE, MEMORY };
enum OpFlag { ON_GPU = 1, TAKES_SMS = 2 };
enum CollectiveFlag { TOGETHER = 1, IN_ORDER = 2 }; /* IN_ORDER: its own flows do not contend, and no rank is done before all have come */
enum Outcome { PLAYED = 0, NO_MEMORY = 1, STUCK = 2, STOPPED = 3, OUT_OF_ORDER = 4 };

/* Called now and then with the time played and the events so far; anything but 0 stops the play. */

typedef struct {
    /* the fabric */
    int64_t links;
    const double *capacity;

    /* ranks: each plays one of the lists of operations */
    int64_t ranks;
    const int32_t *list_of;      /* [ranks] */
    const double *speed;         /* [ranks], 1 for a healthy GPU */
    const int64_t *out_begin;    /* [ranks], where a rank's times begin in `start` and `end` */

    /* lists: their operations, and the queue of each of their streams */
    const int64_t *list_begin;   /* [lists + 1], into the operations */
    const int64_t *stream_begin; /* [lists + 1], into the streams */
    const int64_t *queue_begin;  /* [streams + 1], into `queue` */
    const int32_t *queue;        /* places in the list, in order of issue */

    /* operations */
    const uint8_t *op_kind, *op_flags;
    const int32_t *op_stream;    /* which of the list's streams */
    const double *op_alone, *op_contended; /* of kernels, without and beside communication */
    const int64_t *after_begin;  /* [operations + 1] */
    const int32_t *after;        /* places in the list */
    const int32_t *op_instance;  /* of collectives: number of the first instance, */
    const int32_t *op_member;    /* and row of the membership tables */
    const int32_t *member_group; /* [tables x ranks], to be added to op_instance */
    const int32_t *member_place; /* [tables x ranks], which participant of it the rank is */

    /* instances: a collective of one process group */
    int64_t instances;
    const int32_t *shape, *sizes, *routing, *group; /* -1 for shape, sizes and routing where the duration is given */
    const uint8_t *flags;
    const double *startup, *duration;
    const int32_t *noise_number;
    const int32_t *lane;         /* instances of one lane never contend with each other; -1: of none */
    const int64_t *log_begin;    /* where the transfers' enters and ends are written; -1: nowhere */

    /* groups of ranks */
    const int64_t *group_begin;  /* [groups + 1] */
    const int32_t *group_rank;

    /* shapes of schedules */
    const int32_t *participants; /* [shapes], ranks, then servers and switches */
    const int64_t *shape_transfers, *shape_slots; /* gates included; slots of a play in order */
    const int64_t *shape_row;    /* [shapes + 1], into the rows */
    const int64_t *initial_begin;/* [shapes + 1], into the initial lists' offsets: one list a participant */
    const int64_t *initial_list; /* [initial offsets], into `initial` */
    const int32_t *initial;      /* rows whose first repetition waits for no transfer, by the rank that lets it start */

    /* rows; `row` numbers within a shape are relative to its first row */
    const int32_t *row_src, *row_dst, *row_route; /* -1 for gates */
    const int64_t *row_base, *row_stride;         /* number of the first repetition, and from one to the next */
    const int64_t *row_log, *row_log_stride;      /* the same as the schedule numbers them, without gates */
    const int64_t *row_slot, *row_slot_stride;    /* the same for a play in order */
    const int32_t *row_times, *row_waits;
    const uint8_t *row_follows;                   /* whether another is before the first repetition on the channel */
    const int32_t *row_next, *row_next_shift;     /* which comes next on the channel, in this repetition or the next */
    const int32_t *row_exit;                      /* and which after the last repetition; -1: none */
    const int32_t *row_noise, *row_noise_stride;  /* how many transfers of its sender are before it */
    const int64_t *inner_begin;                   /* [rows + 1] */
    const int32_t *inner_row, *inner_shift;       /* who waits for it, so many repetitions later */
    const int64_t *outer_begin;                   /* [rows + 1] */
    const int32_t *outer_at, *outer_row, *outer_times; /* who waits for its repetition `outer_at`, and in which */
    const int64_t *shape_part;                    /* [shapes + 1], into the parts */
    const int32_t *part_row, *part_rows, *part_times;
    const uint8_t *part_ring;                     /* 1: rows only hand on what the ring's row behind brought; 2: in the
                                                     first repetition too, from the same rows of the round before */
    const uint8_t *part_moves;                    /* whether what a row of a ring carries moves on with the chunk */
    const int32_t *ring_behind;                   /* [rows], that row */

    /* sizes */
    const int64_t *size_begin;   /* [sizes], into `nbytes` */
    const uint8_t *size_steady;  /* one number a row, or one a transfer */
    const double *nbytes;

    /* routings: routes with the links on which flows can hold each other back */
    const int64_t *routing_route;/* [routings], into the routes */
    const double *route_latency, *route_rate;
    const uint8_t *route_capped, *route_tapped;
    const int64_t *route_begin;  /* [routes + 1], into the links */
    const int32_t *route_link;
    const double *route_weight;
    int64_t longest_route;
    const int64_t *busy_begin;   /* [routings + 1], into the links that matter of all of a routing's routes, each once */
    const int32_t *busy_link;

    /* noise */
    const double *noise_compute, *noise_latency; /* tables of factors (noise.py); NULL: none */
    uint64_t seed;
    const int64_t *noise_rank;   /* [ranks], number under which a rank draws */
} Problem;

typedef struct {
    double *start, *end;         /* of operations, by rank and place in its list */
    double *enter, *through;     /* of logged transfers */
    double *tap;                 /* (enter, end, instance) of transfers on tapped routes; freed with core_free */
    int64_t taps, tap_room;
    int64_t events, followed, in_order;
    /* Another thread reads how far the play is, and asks it to stop. */
    volatile int64_t ended;      /* operations */
    volatile double now;
    volatile int32_t stop;
} Result;

#endif
