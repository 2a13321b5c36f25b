/* The core: simulates a program event by event. problem.h describes input and output.
 *
 * The rules equal those of the events engine, which serves as the reference in tests: a stream runs one operation at a
 * time, in order; a transfer enters its links at max(ready + latency, end of the transfer before it on its channel);
 * flows that meet share links max-min fairly (fabric.h); kernels run slower while a collective of their rank is in
 * flight.
 *
 * Example: two ranks, each with one kernel (rank 0: 1 s, rank 1: 3 s), then an all-reduce.
 *
 *     t = 0   settle(0), settle(1)             start_kernels schedules KERNEL_ENDS at 1 and 3
 *     t = 1   KERNEL_ENDS of rank 0            stream_done -> settle -> come -> reach: rank 0 waits
 *     t = 3   KERNEL_ENDS of rank 1            stream_done -> settle -> come -> reach: the last rank has come
 *                                              play_in_order computes all transfers, schedules RANK_DONE of both
 *     ...     RANK_DONE of each rank           participant_done -> stream_done -> settle
 *
 * A collective is computed in order only if it meets no other collective on its links, its own flows do not contend,
 * and no rank can be done before the last rank has come. If another collective comes to its links meanwhile, it is
 * followed by the clock from that moment on (`follow`).
 */
#include "border.h"
#include "transfers.h"

/* ---- ranks come to collectives ---- */

/* Reset the counters of a row's repetitions [from, until) to the state before any transfer has ended. */
static void set_waiting(const Play *play, Live *live, int64_t row, int32_t from, int32_t until) {
    const Problem *p = play->p;
    int32_t waits = p->row_waits[row], channel = p->row_route[row] >= 0;
    for (int32_t repetition = from; repetition < until; repetition++) {
        int64_t number = p->row_base[row] + repetition * p->row_stride[row];
        live->ready[number] = live->first_reach;
        live->pending[number] = waits + (repetition ? channel : p->row_follows[row]);
    }
}

/* Allocate and fill the counters for following an instance. `computed` is 1 on a switch from computing to following:
 * counters of a ring's later repetitions are then left to hand_over_round. */
static void open_transfers(Play *play, int64_t instance, Live *live, int computed) {
    const Problem *p = play->p;
    int32_t shape = p->shape[instance], participants = p->participants[shape];
    int64_t transfers = p->shape_transfers[shape];
    live->to_end = calloc((size_t)participants + 1, sizeof(int32_t));
    live->waiting = malloc(((size_t)participants + 1) * sizeof(int32_t));
    live->ready = malloc((size_t)transfers * sizeof(double) + 8);
    live->pending = malloc((size_t)transfers * sizeof(int32_t) + 8);
    if (!live->to_end || !live->waiting || !live->ready || !live->pending) {
        play->broken = 1;
        return;
    }
    for (int32_t i = 0; i < participants; i++) live->waiting[i] = -1;
    for (int64_t part = p->shape_part[shape]; part < p->shape_part[shape + 1]; part++) {
        int64_t first = p->shape_row[shape] + p->part_row[part];
        int32_t until = computed && p->part_ring[part] ? 1 : p->part_times[part];
        for (int64_t row = first; row < first + p->part_rows[part]; row++) {
            set_waiting(play, live, row, 0, until);
            if (p->row_route[row] < 0) continue;
            live->rows_left++;
            live->to_end[p->row_src[row]]++;
            live->to_end[p->row_dst[row]]++;
        }
    }
}

/* A rank starts a collective: its stream has come and the start-up time has passed. */
static void reach(Play *play, int64_t instance, int32_t place) {
    const Problem *p = play->p;
    Live *live = play->live[instance];
    double now = play->clock.now;
    if (live->first_reach == INFINITY) {
        come_to_links(play, instance);
        live->first_reach = now;
        if (live->followed) open_transfers(play, instance, live, 0);
        if (play->broken) return;
    }
    live->started[place] = now;
    live->missing--;
    if (!live->followed) {
        if (!live->missing) play_in_order(play, instance);
        return;
    }
    int64_t shape_row = p->shape_row[p->shape[instance]];
    int32_t chain = live->waiting[place];
    live->waiting[place] = -1;
    /* The list of blocked transfers is last in, first out. Reverse it, then start transfers in the order of blocking.
     */
    int32_t turned = -1;
    while (chain >= 0) {
        int32_t next = live->blocked[chain].next;
        live->blocked[chain].next = turned;
        turned = chain;
        chain = next;
    }
    while (turned >= 0 && !play->broken) {
        Blocked own = live->blocked[turned];
        turned = own.next;
        start_transfer(play, instance, own.row, own.repetition,
                       live->ready[p->row_base[own.row] + own.repetition * p->row_stride[own.row]]);
    }
    int64_t list = p->initial_begin[p->shape[instance]] + place;
    for (int64_t k = p->initial_list[list]; k < p->initial_list[list + 1] && !play->broken; k++)
        start_transfer(play, instance, (int32_t)(shape_row + p->initial[k]), 0, live->first_reach);
    if (live->to_end[place] == 0) happen(play, now, RANK_DONE, (int32_t)instance, place, live->version);
}

/* A stream comes to a collective. The start-up time passes next; under TOGETHER it begins when the last rank has come.
 */
static void come(Play *play, int32_t rank, int64_t op) {
    const Problem *p = play->p;
    int32_t place;
    int64_t instance = instance_of(play, rank, op, &place);
    Live *live = play->live[instance] ? play->live[instance] : open_live(play, instance);
    if (play->broken) return;
    double now = play->clock.now;
    if (p->shape[instance] < 0) {
        if (--live->missing == 0) happen(play, now + p->duration[instance], DURATION_ENDS, (int32_t)instance, 0, 0);
    } else if (p->flags[instance] & TOGETHER) {
        if (--live->gathering == 0)
            for (int32_t i = 0; i < group_size(p, instance); i++)
                happen(play, now + p->startup[instance], RANK_STARTS, (int32_t)instance, i, 0);
    } else if (p->startup[instance] > 0.0) {
        happen(play, now + p->startup[instance], RANK_STARTS, (int32_t)instance, place, 0);
    } else {
        reach(play, instance, place);
    }
}

/* Return 1 if all operations have ended that an operation waits for. */
static int may_begin(const Play *play, int32_t rank, int64_t op) {
    const Problem *p = play->p;
    for (int64_t k = p->after_begin[op]; k < p->after_begin[op + 1]; k++)
        if (!play->ended[p->out_begin[rank] + p->after[k]]) return 0;
    return 1;
}

/* Start every operation of a rank that can start now. */
static void settle(Play *play, int32_t rank) {
    const Problem *p = play->p;
    int32_t list = p->list_of[rank], streams = (int32_t)(p->stream_begin[list + 1] - p->stream_begin[list]);
    /* An operation on memory ends at once and may unblock another stream, so repeat until nothing starts. */
    for (int again = 1; again && !play->broken;) {
        again = 0;
        for (int32_t stream = 0; stream < streams && !play->broken; stream++) {
            int64_t own = p->stream_begin[list] + stream, at = play->stream_base[rank] + stream;
            int64_t length = p->queue_begin[own + 1] - p->queue_begin[own];
            while (!play->busy[at] && play->position[at] < length && !play->broken) {
                int32_t place = p->queue[p->queue_begin[own] + play->position[at]];
                int64_t op = op_of(play, rank, place);
                if (!may_begin(play, rank, op)) break;
                again = 1;
                play->position[at]++;
                play->busy[at] = 1;
                play->out->start[p->out_begin[rank] + place] = play->clock.now;
                if (p->op_kind[op] == MEMORY) {
                    end_op(play, rank, place, op);
                } else if (p->op_kind[op] == KERNEL) {
                    start_kernels(play, rank, stream, place, op);
                } else {
                    if (p->op_flags[op] & TAKES_SMS) communicate(play, rank, 1);
                    come(play, rank, op);
                }
            }
        }
    }
}

/* ---- the simulation ---- */

/* End a flow that shares its links, and all flows that end at the same time up to rounding. Without the tolerance, each
 * of them would change the shares of the remaining flows once more. */
static void shared_flow_ends(Play *play, int32_t number) {
    Fabric *fabric = &play->fabric;
    Clock *clock = &play->clock;
    leave(fabric, number);
    if (fabric->dirty_count) solve_soon(fabric);
    transfer_ended(play, number);
    double bound = clock->now * (1.0 + ENDS_TOGETHER);
    while (clock->size && clock->heap[0].what == SHARED_ENDS && clock->heap[0].time <= bound && !play->broken) {
        Event event = next_event(clock);
        if (fabric->flows[event.who].version != event.version) continue;
        leave(fabric, event.who);
        if (fabric->dirty_count) solve_soon(fabric);
        transfer_ended(play, event.who);
    }
}

/* Links and GPUs slow down or recover at one of the program's moments of change. */
static void rates_change(Play *play, int32_t change) {
    const Problem *p = play->p;
    for (int64_t k = p->change_link_begin[change]; k < p->change_link_begin[change + 1]; k++)
        change_capacity(&play->fabric, p->change_link[k], p->change_capacity[k]);
    for (int64_t k = p->change_rank_begin[change]; k < p->change_rank_begin[change + 1]; k++)
        change_speed(play, p->change_rank[k], p->change_speed[k]);
    reroute(&play->fabric, p->change_detour[change]);
}

/* Handle one event. Stale events (older versions) are ignored. */
static void happens(Play *play, const Event *event) {
    const Problem *p = play->p;
    Fabric *fabric = &play->fabric;
    int64_t instance = event->who;
    switch (event->what) {
    case FLOW_ENDS:
        if (fabric->flows[event->who].version == event->version) transfer_ended(play, event->who);
        break;
    case FLOW_ENTERS:
        if (fabric->flows[event->who].version == event->version) enter(fabric, event->who);
        break;
    case SHARED_ENDS:
        if (fabric->flows[event->who].version == event->version) shared_flow_ends(play, event->who);
        break;
    case SHARES_CHANGE:
        solve(fabric);
        break;
    case RATES_CHANGE:
        rates_change(play, event->who);
        break;
    case KERNEL_ENDS: {
        Kernels *kernels = &play->kernels[play->stream_base[event->who] + event->also];
        if (kernels->version != event->version || !kernels->running) break;
        kernels->running = 0;
        stream_done(play, event->who, event->also);
        break;
    }
    case RANK_STARTS:
        reach(play, instance, event->also);
        break;
    case DURATION_ENDS:
        for (int32_t i = 0, size = group_size(p, instance); i < size && !play->broken; i++)
            participant_done(play, instance, i);
        break;
    case RANK_DONE:
        if (play->live[instance] && play->live[instance]->version == event->version) participant_done(play, instance, event->also);
        break;
    }
}

/* Allocate the state of a simulation; return 0 if memory is exhausted. */
static int open_play(Play *play, const Problem *p, Result *out) {
    memset(play, 0, sizeof *play);
    play->p = p;
    play->out = out;
    if (!fabric_open(&play->fabric, p, &play->clock)) return 0;
    play->stream_base = malloc(((size_t)p->ranks + 1) * sizeof(int64_t));
    if (!play->stream_base) return 0;
    int64_t streams = 0, operations = 0;
    for (int64_t rank = 0; rank < p->ranks; rank++) {
        int32_t list = p->list_of[rank];
        play->stream_base[rank] = streams;
        streams += p->stream_begin[list + 1] - p->stream_begin[list];
        operations += p->list_begin[list + 1] - p->list_begin[list];
    }
    play->position = calloc((size_t)streams + 1, sizeof(int32_t));
    play->busy = calloc((size_t)streams + 1, 1);
    play->kernels = calloc((size_t)streams + 1, sizeof(Kernels));
    play->ended = calloc((size_t)operations + 1, 1);
    play->in_flight = calloc((size_t)p->ranks + 1, sizeof(int32_t));
    play->speed = malloc(((size_t)p->ranks + 1) * sizeof(double));
    for (int64_t rank = 0; play->speed && rank < p->ranks; rank++) play->speed[rank] = 1.0;
    play->live = calloc((size_t)p->instances + 1, sizeof(Live *));
    play->users = calloc((size_t)p->links + 1, sizeof(Users));
    play->streams = streams;
    return play->speed && play->position && play->busy && play->kernels && play->ended && play->in_flight && play->live && play->users;
}

static void close_play(Play *play) {
    if (play->live)
        for (int64_t instance = 0; instance < play->p->instances; instance++) close_live(play, instance);
    for (int64_t link = 0; play->users && link < play->p->links; link++) free(play->users[link].instance);
    fabric_close(&play->fabric);
    void *all[] = {play->users,      play->clock.heap, play->stream_base, play->position, play->busy,
                   play->kernels,    play->ended,       play->in_flight, play->live,     play->speed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Return 1 if any stream still runs or waits. */
static int unfinished(const Play *play) {
    const Problem *p = play->p;
    for (int64_t rank = 0; rank < p->ranks; rank++) {
        int32_t list = p->list_of[rank];
        for (int64_t own = p->stream_begin[list]; own < p->stream_begin[list + 1]; own++) {
            int64_t at = play->stream_base[rank] + own - p->stream_begin[list];
            if (play->busy[at] || play->position[at] < p->queue_begin[own + 1] - p->queue_begin[own]) return 1;
        }
    }
    return 0;
}

/* Deadlock: no event is left, and computed collectives wait for ranks that never come. Transfers that need only the
 * ranks that have come are simulated nevertheless, as in the events engine; both engines then report the same time. */
static void follow_the_rest(Play *play) {
    for (int64_t instance = 0; instance < play->p->instances && !play->broken; instance++) {
        const Live *live = play->live[instance];
        if (live && live->started && !live->followed && live->first_reach < INFINITY) follow(play, instance);
    }
}

/* Simulate a program; returns an Outcome. Called by core.py, after core_border. */
int32_t core_play(const Problem *problem, Result *result) {
    Play play;
    int32_t outcome = PLAYED;
    int stuck = 0;
    if (!open_play(&play, problem, result)) play.broken = 1;
    /* Scheduled first: a change precedes everything else that happens at its moment. */
    for (int32_t change = 0; change < problem->changes && !play.broken; change++)
        happen(&play, problem->change_time[change], RATES_CHANGE, change, 0, 0);
    for (int32_t rank = 0; rank < problem->ranks && !play.broken; rank++) settle(&play, rank);
    while (!play.broken && !play.fabric.broken && !play.out_of_order) {
        if (!play.clock.size) {
            if (stuck || !unfinished(&play)) break;
            stuck = 1;
            follow_the_rest(&play);
            continue;
        }
        Event event = next_event(&play.clock);
        play.clock.now = event.time;
        happens(&play, &event);
        result->events++;
        result->now = play.clock.now;
        if (result->stop) {
            outcome = STOPPED;
            break;
        }
    }
    if (play.broken || play.fabric.broken)
        outcome = NO_MEMORY;
    else if (play.out_of_order)
        outcome = OUT_OF_ORDER;
    else if (stuck)
        outcome = STUCK;
    result->now = play.clock.now;
    close_play(&play);
    return outcome;
}

/* Free what core_play allocated in the result. */
void core_free(Result *result) {
    free(result->tap);
    result->tap = NULL;
}
