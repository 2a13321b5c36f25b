/* Input and output of the core: flat arrays, filled in by problem.py; fields.py lists the same names and types.
 *
 * Times are in seconds, sizes in bytes, rates in bytes per second. Sizes and rates of flows with a priority p count in
 * units of p bytes, and a unit takes p times the capacity of a byte: equal shares are then weighted by priority.
 *
 * A "row" is one transfer of a schedule's round. A repeated round is written once, thus a transfer is a pair
 * (row, repetition). A "gate" is a row without a route: it ends together with the last of its awaited transfers. With a
 * gate, N transfers wait for the same M transfers with N + M entries instead of N x M.
 *
 * Example: ring all-reduce over ranks 0, 1, 2, 3. Its three rounds are carried out 1, 2 and 3 times, thus 12 rows stand
 * for 24 transfers:
 *
 *     part 0, times 1:  row 0: 0 -> 1   row 1: 1 -> 2   row  2: 2 -> 3   row  3: 3 -> 0    send the own chunk
 *     part 1, times 2:  row 4: 0 -> 1   row 5: 1 -> 2   row  6: 2 -> 3   row  7: 3 -> 0    add and hand on
 *     part 2, times 3:  row 8: 0 -> 1   row 9: 1 -> 2   row 10: 2 -> 3   row 11: 3 -> 0    hand on the sums
 *
 *     inner pair (row 4, row 5, shift 1): repetition i + 1 of row 5 waits for repetition i of row 4.
 *     outer pair (row 0 at 0, row 5 at 0): repetition 0 of row 5 waits for repetition 0 of row 0.
 *     ring_behind[row 5] = row 4.
 *
 * Offsets follow one convention: entries of item i are [begin[i], begin[i + 1]).
 */
#ifndef PROBLEM_H
#define PROBLEM_H

#include <stdint.h>

enum OpKind { KERNEL, COLLECTIVE, MEMORY };
/* ON_GPU: a slow GPU stretches the kernel. TAKES_SMS: kernels of the rank run slower while the collective lasts. */
enum OpFlag { ON_GPU = 1, TAKES_SMS = 2 };
/* TOGETHER: no rank starts before every rank has reached the collective. IN_ORDER: the collective's own flows do not
 * contend, and no rank is done before the last rank has reached it; such a collective may be computed without a clock.
 */
enum CollectiveFlag { TOGETHER = 1, IN_ORDER = 2 };
enum Outcome { PLAYED = 0, NO_MEMORY = 1, STUCK = 2, STOPPED = 3, OUT_OF_ORDER = 4, OUTSIDE = 5 };

typedef struct {
    /* The fabric: links of the cluster, then the HBM of each rank. */
    int64_t links;
    const double *capacity;      /* [links] */
    /* Changes during the simulation: moments in order, each with the new capacities of links and speeds of ranks. */
    int64_t changes;
    const double *change_time;   /* [changes] */
    const int64_t *change_link_begin, *change_rank_begin; /* [changes + 1] */
    const int32_t *change_link, *change_rank;
    const double *change_capacity; /* [changed links] */
    const double *change_speed;  /* [changed ranks], factor on the usual speed */
    const uint8_t *changing;     /* [links], 1 if the capacity changes at some moment */
    /* Detours: sets of links that routes avoid from a moment of change on; detour 0 avoids none. Avoided links change. */
    int64_t detours;
    const int32_t *change_detour;  /* [changes] */
    const int64_t *avoided_begin;  /* [detours + 1] */
    const int32_t *avoided_link;

    /* Ranks. Each rank runs one of the lists of operations. */
    int64_t ranks;
    const int32_t *list_of;      /* [ranks] */
    const double *speed;         /* [ranks], 1 for a healthy GPU */
    const int64_t *out_begin;    /* [ranks], first entry of the rank in `start` and `end` */

    /* Lists: the operations of each list, and one queue per stream. */
    const int64_t *list_begin;   /* [lists + 1], into the operations */
    const int64_t *stream_begin; /* [lists + 1], into the streams */
    const int64_t *queue_begin;  /* [streams + 1], into `queue` */
    const int32_t *queue;        /* places in the list, in order of issue */

    /* Operations. A "place" is the index of an operation in its list. */
    const uint8_t *op_kind, *op_flags;
    const int32_t *op_stream;    /* index among the streams of the list */
    const double *op_alone, *op_contended; /* kernels: duration without and beside communication */
    const int32_t *op_work;      /* kernels: row of `work`; -1: none */
    const double *work;          /* [rows][ranks], factors on the durations */
    const int64_t *after_begin;  /* [operations + 1] */
    const int32_t *after;        /* places of operations that must end first */
    /* Collectives. The instance of rank r is op_instance + member_group[op_member][r]. */
    const int32_t *op_instance;  /* first instance of the collective's family */
    const int32_t *op_member;    /* row of the two membership tables */
    const int32_t *member_group; /* [tables x ranks], index of the rank's group in the family */
    const int32_t *member_place; /* [tables x ranks], participant number of the rank in its group */

    /* Instances. An instance is a collective of one process group. */
    int64_t instances;
    /* Indices into the tables below; shape, sizes and routing are -1 if the duration is given in closed form. */
    const int32_t *shape, *sizes, *routing, *group;
    const uint8_t *flags;        /* of enum CollectiveFlag */
    const double *startup, *duration;
    const int32_t *noise_number; /* number under which the instance draws its latencies */
    const int32_t *lane;         /* two instances of one lane never contend; -1: the instance belongs to no lane */
    const int64_t *log_begin;    /* first entry in `enter` and `through`; -1: transfers are not logged */

    /* Process groups. */
    const int64_t *group_begin;  /* [groups + 1] */
    const int32_t *group_rank;

    /* Shapes. A shape is a schedule without sizes and links, shared by equal collectives. */
    const int32_t *participants; /* [shapes], ranks, then servers and switches */
    /* [shapes] each: transfers and gates, and slots of an in-order computation. */
    const int64_t *shape_transfers, *shape_slots;
    const int64_t *shape_row;    /* [shapes + 1], into the rows */
    /* Rows whose first repetition waits for no transfer, in one list per participant that starts them. */
    const int64_t *initial_begin;/* [shapes + 1], into initial_list */
    const int64_t *initial_list; /* [initial offsets], into `initial` */
    const int32_t *initial;

    /* Rows. Row numbers in the columns below are relative to the first row of the shape. */
    const int32_t *row_src, *row_dst, *row_route; /* route -1: the row is a gate */
    /* Three numberings of transfers: number of repetition i = base + i * stride. */
    const int64_t *row_base, *row_stride;         /* all transfers and gates of the shape */
    const int64_t *row_log, *row_log_stride;      /* transfers without gates: the schedule's own numbers */
    const int64_t *row_slot, *row_slot_stride;    /* slots of an in-order computation; one slot per row of a ring */
    const int32_t *row_times, *row_waits;         /* repetitions; transfers awaited by each, without its channel */
    /* Channels are FIFOs. Within a round the next row sends in the same repetition (shift 0) or the next (shift 1). */
    const uint8_t *row_follows;                   /* 1: another row precedes the first repetition on the channel */
    const int32_t *row_next, *row_next_shift;
    const int32_t *row_exit;                      /* next row after the last repetition, in a later round; -1: none */
    /* Transfers of the same sender before the first repetition, and added by each repetition: indices of noise. */
    const int32_t *row_noise, *row_noise_stride;
    /* Waits inside a round: repetition i + inner_shift of inner_row waits for repetition i of this row. */
    const int64_t *inner_begin;                   /* [rows + 1] */
    const int32_t *inner_row, *inner_shift;
    /* Waits between rounds: repetition outer_times of outer_row waits for repetition outer_at of this row. */
    const int64_t *outer_begin;                   /* [rows + 1] */
    const int32_t *outer_at, *outer_row, *outer_times;

    /* Parts: the rounds of a shape with their repetitions. */
    const int64_t *shape_part;                    /* [shapes + 1], into the parts */
    const int32_t *part_row, *part_rows, *part_times;
    /* 0: no ring. 1: from the second repetition on, each row only hands on the chunk of the ring's row behind. 2: the
     * first repetition does so too, with the chunks of the same rows of the round before. */
    const uint8_t *part_ring;
    const uint8_t *part_moves;                    /* 1: a chunk keeps its size on its way round the ring */
    const int32_t *ring_behind;                   /* [rows], the row whose chunk this row hands on */

    /* Sizes of transfers [B]. */
    const int64_t *size_begin;   /* [sizes], into `nbytes` */
    const uint8_t *size_steady;  /* 1: one number per row; 0: one number per transfer */
    const double *nbytes;

    /* Routings: the routes of a collective, with only the links on which flows can hold each other back. Those of
     * detour k stand k * routings places behind the usual ones. */
    int64_t routings;
    const int64_t *routing_route;/* [detours x routings], into the routes */
    const double *route_latency, *route_rate;
    /* Capped: route_rate is below capacity / weight of every link of the route, thus a bound of its own. Tapped: times
     * of the route's flows are reported in `tap`. */
    const uint8_t *route_capped, *route_tapped;
    const int64_t *route_begin;  /* [routes + 1], into the links */
    const int32_t *route_link;
    const double *route_weight;  /* capacity of the link taken by a flow of rate 1: 1, or 3 for a reduction in HBM; times the
                                  * priority */
    int64_t longest_route;
    const int64_t *busy_begin;   /* [detours x routings + 1], into busy_link: the distinct links of a routing */
    const int32_t *busy_link;

    /* Noise: tables of factors (noise.py); NULL: no noise. */
    const double *noise_compute, *noise_latency;
    uint64_t seed;
    const int64_t *noise_rank;   /* [ranks], number under which a rank draws */
} Problem;

/* Numbers of entries of the arrays above, for the check of every index before the simulation (border.h): `results` of
 * `start` and `end`, `logged` of `enter` and `through`, `routed` detours times routings. */
typedef struct {
    int64_t links, changes, changed_links, changed_ranks, avoided, ranks, queued, operations, worked, awaited,
        memberships, instances, members, shapes, started, rows, inner, outer, parts, tables, routes, sized,
        taken, busy, routed, lists, streams, groups, starters, detours, routings, results, logged;
} Lengths;

typedef struct {
    double *start, *end;         /* of operations, by rank and place in its list */
    double *enter, *through;     /* of logged transfers */
    int32_t *took;               /* of logged transfers: the detour whose route they took */
    double *tap;                 /* triples (enter, end, instance) of flows on tapped routes; core_free frees them */
    int64_t taps, tap_room;
    int64_t events, followed, in_order;
    const char *outside;         /* under OUTSIDE: the array that has `entry`, which lies outside the array it indexes */
    int64_t entry;
    /* A second thread reads these while the core runs, and sets `stop` to end the simulation early. */
    volatile int64_t ended;      /* operations */
    volatile double now;
    volatile int32_t stop;
} Result;

#endif
