/* Collectives: transfers followed by the clock, and transfers computed in order without the clock.
 *
 * A transfer enters its links at max(ready + latency, end of the transfer before it on its channel). `ready` is the
 * latest of three times: the ends of all transfers that it waits for, the start of its sender, the start of its
 * receiver.
 *
 * Followed. Each transfer has a counter `pending` of ends that it still waits for. The end that brings the counter to 0
 * starts the transfer as a flow of the fabric. Example, a chain over ranks 0, 1, 2 with two pieces:
 *
 *     number 0: 0 -> 1, piece 0    pending 0    started when rank 0 and rank 1 have started
 *     number 1: 0 -> 1, piece 1    pending 1    waits for 0 (channel)
 *     number 2: 1 -> 2, piece 0    pending 1    waits for 0 (the piece must have arrived)
 *     number 3: 1 -> 2, piece 1    pending 2    waits for 1 (arrival) and 2 (channel)
 *
 * In order. If no flow of the collective can meet another flow, every flow runs at its route's own rate. All times then
 * follow from the formula above when the last rank has come (`play_in_order`): transfers are computed by rising number,
 * because a transfer's number is higher than the numbers that it waits for. If another collective comes to the same
 * links later, `follow` computes the times once more and hands transfers that have not ended over to the clock.
 */
#ifndef TRANSFERS_H
#define TRANSFERS_H
#include "recurrence.h"
#include "streams.h"

/* Return the instance that a rank's collective operation belongs to, and the rank's participant number in `place`. */
static int64_t instance_of(const Play *play, int32_t rank, int64_t op, int32_t *place) {
    const Problem *p = play->p;
    int64_t at = (int64_t)p->op_member[op] * p->ranks + rank;
    *place = p->member_place[at];
    return p->op_instance[op] + p->member_group[at];
}

static int32_t group_size(const Problem *p, int64_t instance) {
    return (int32_t)(p->group_begin[p->group[instance] + 1] - p->group_begin[p->group[instance]]);
}

static void follow(Play *play, int64_t instance);

/* Return 1 if flows of two instances that take a common link may be on the link at the same time. */
static int may_meet(const Problem *p, int64_t one, int64_t other) {
    return p->lane[one] != p->lane[other] || p->lane[one] < 0;
}

/* Register an instance on its links. The instance and all instances that it may meet there must be followed. */
static void come_to_links(Play *play, int64_t instance) {
    const Problem *p = play->p;
    int32_t routing = p->routing[instance];
    for (int64_t k = p->busy_begin[routing]; k < p->busy_begin[routing + 1] && !play->broken; k++) {
        Users *users = &play->users[p->busy_link[k]];
        for (int32_t i = 0; i < users->size; i++) {
            if (!may_meet(p, instance, users->instance[i])) continue;
            play->live[instance]->followed = 1;
            if (!play->live[users->instance[i]]->followed) follow(play, users->instance[i]);
        }
        if (users->size == users->room) {
            int32_t room = users->room ? 2 * users->room : 4;
            users->instance = grown(users->instance, room, sizeof(int32_t), &play->broken);
            if (play->broken) return;
            users->room = room;
        }
        users->instance[users->size++] = (int32_t)instance;
    }
}

/* Remove an instance from the users of its links. */
static void leave_links(Play *play, int64_t instance) {
    const Problem *p = play->p;
    int32_t routing = p->routing[instance];
    /* Closed-form collectives take no links; an instance whose first rank has not started has not come to its links
     * yet. */
    if (routing < 0 || play->live[instance]->first_reach == INFINITY) return;
    for (int64_t k = p->busy_begin[routing]; k < p->busy_begin[routing + 1]; k++) {
        Users *users = &play->users[p->busy_link[k]];
        for (int32_t i = 0; i < users->size; i++)
            if (users->instance[i] == instance) {
                users->instance[i] = users->instance[--users->size];
                break;
            }
    }
}

/* Free the state of an instance. */
static void close_live(Play *play, int64_t instance) {
    Live *live = play->live[instance];
    if (!live) return;
    leave_links(play, instance);
    void *all[] = {live->started, live->to_end, live->waiting, live->blocked,
                   live->ready,   live->pending, live->noise,  live->left};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(live);
    play->live[instance] = NULL;
}

/* Create the state of an instance when its first rank comes. Arrays for following are added by open_transfers. */
static Live *open_live(Play *play, int64_t instance) {
    const Problem *p = play->p;
    Live *live = calloc(1, sizeof(Live));
    if (!live) {
        play->broken = 1;
        return NULL;
    }
    play->live[instance] = live;
    live->missing = live->gathering = live->unfinished = group_size(p, instance);
    live->first_reach = INFINITY;
    if (p->shape[instance] < 0) return live;
    int32_t shape = p->shape[instance], participants = p->participants[shape];
    live->started = malloc((size_t)participants * sizeof(double));
    live->left = calloc((size_t)participants + 1, 1);
    live->followed = !(p->flags[instance] & IN_ORDER);
    if (!live->started || !live->left) play->broken = 1;
    for (int32_t i = 0; live->started && i < participants; i++)
        live->started[i] = i < live->missing ? INFINITY : -INFINITY;
    if (p->noise_latency) {
        /* Servers and switches draw under numbers that no rank has; engine/jitter.py has the same constant. */
        const uint64_t behind_ranks = (uint64_t)1 << 32;
        live->noise = malloc((size_t)participants * sizeof(uint64_t));
        if (!live->noise) play->broken = 1;
        const int32_t *group = p->group_rank + p->group_begin[p->group[instance]];
        for (int32_t i = 0; live->noise && i < participants; i++) {
            uint64_t who = i < live->missing ? (uint64_t)p->noise_rank[group[i]] : behind_ranks + (uint64_t)(i - live->missing);
            live->noise[i] = noise_state(p->seed, who, (uint64_t)p->noise_number[instance]);
        }
    }
    return live;
}

/* Bytes of a transfer. Steady sizes are stored once per row, other sizes once per transfer. */
static double bytes_of(const Problem *p, int64_t instance, int32_t row, int32_t repetition) {
    int32_t sizes = p->sizes[instance];
    int64_t shape_row = p->shape_row[p->shape[instance]];
    int64_t at = p->size_steady[sizes] ? row - shape_row : p->row_log[row] + repetition * p->row_log_stride[row];
    return p->nbytes[p->size_begin[sizes] + at];
}

/* Latency of a transfer, with noise if the program has any [s]. */
static double latency_of(const Play *play, const Live *live, int64_t route, int32_t row, int32_t repetition) {
    const Problem *p = play->p;
    double latency = p->route_latency[route];
    if (!live->noise) return latency;
    uint64_t number = (uint64_t)p->row_noise[row] + (uint64_t)repetition * (uint64_t)p->row_noise_stride[row];
    return latency * factor(p->noise_latency, live->noise[p->row_src[row]], number);
}

/* Record when a transfer was on its links, if its instance is logged or its route is tapped. */
static void keep(Play *play, int64_t instance, int64_t route, int32_t row, int32_t repetition, double enter, double end) {
    const Problem *p = play->p;
    Result *out = play->out;
    if (p->log_begin[instance] >= 0) {
        int64_t at = p->log_begin[instance] + p->row_log[row] + repetition * p->row_log_stride[row];
        out->enter[at] = enter;
        out->through[at] = end;
    }
    if (!p->route_tapped[route]) return;
    if (out->taps == out->tap_room) {
        int64_t room = out->tap_room ? 2 * out->tap_room : 1024;
        out->tap = grown(out->tap, 3 * room, sizeof(double), &play->broken);
        if (play->broken) return;
        out->tap_room = room;
    }
    double *tap = out->tap + 3 * out->taps++;
    tap[0] = enter;
    tap[1] = end;
    tap[2] = (double)instance;
}

/* A rank has nothing left to do in a collective: end its operation and let its stream go on. */
static void participant_done(Play *play, int64_t instance, int32_t place) {
    const Problem *p = play->p;
    int32_t rank = p->group_rank[p->group_begin[p->group[instance]] + place];
    /* Find the stream that is at the instance; a rank has few streams. */
    int32_t list = p->list_of[rank], streams = (int32_t)(p->stream_begin[list + 1] - p->stream_begin[list]);
    for (int32_t stream = 0; stream < streams; stream++) {
        int64_t at = play->stream_base[rank] + stream;
        if (!play->busy[at]) continue;
        int32_t op_place = p->queue[p->queue_begin[p->stream_begin[list] + stream] + play->position[at] - 1], own;
        int64_t op = op_of(play, rank, op_place);
        if (p->op_kind[op] != COLLECTIVE || instance_of(play, rank, op, &own) != instance) continue;
        if (play->live[instance]->left) play->live[instance]->left[place] = 1;
        if (--play->live[instance]->unfinished == 0 && !play->live[instance]->rows_left) close_live(play, instance);
        stream_done(play, rank, stream);
        return;
    }
}

static void start_transfer(Play *play, int64_t instance, int32_t row, int32_t repetition, double since);

/* A transfer's wait for one other transfer ends now. `sets_ready` is 0 if the other is the predecessor on the channel:
 * the latency passes while the predecessor still sends, thus its end does not count as `ready`. */
static void release(Play *play, int64_t instance, int32_t row, int32_t repetition, int sets_ready) {
    const Problem *p = play->p;
    Live *live = play->live[instance];
    int64_t number = p->row_base[row] + repetition * p->row_stride[row];
    if (sets_ready) live->ready[number] = play->clock.now;
    if (--live->pending[number] == 0) start_transfer(play, instance, row, repetition, live->ready[number]);
}

/* Release all transfers that wait for this repetition of a row, inside its round and in later rounds. */
static void release_waiters(Play *play, int64_t instance, int32_t row, int32_t repetition) {
    const Problem *p = play->p;
    int64_t first_row = p->shape_row[p->shape[instance]];
    for (int64_t k = p->inner_begin[row]; k < p->inner_begin[row + 1]; k++) {
        int32_t later = repetition + p->inner_shift[k];
        if (later >= 0 && later < p->row_times[row])
            release(play, instance, (int32_t)(first_row + p->inner_row[k]), later, 1);
    }
    for (int64_t k = p->outer_begin[row]; k < p->outer_begin[row + 1]; k++)
        if (p->outer_at[k] == repetition)
            release(play, instance, (int32_t)(first_row + p->outer_row[k]), p->outer_times[k], 1);
}

/* Start a transfer that waits for no other transfer any more; `since` is the time when it became ready. */
static void start_transfer(Play *play, int64_t instance, int32_t row, int32_t repetition, double since) {
    const Problem *p = play->p;
    Live *live = play->live[instance];
    /* A gate carries nothing and ends at once. */
    if (p->row_route[row] < 0) {
        release_waiters(play, instance, row, repetition);
        return;
    }
    double src = live->started[p->row_src[row]], dst = live->started[p->row_dst[row]], now = play->clock.now;
    /* A participant that has not started holds the transfer back; `reach` starts it later. */
    if (src == INFINITY || dst == INFINITY) {
        int32_t participant = src == INFINITY ? p->row_src[row] : p->row_dst[row];
        if (live->blocked_count == live->blocked_room) {
            int32_t room = live->blocked_room ? 2 * live->blocked_room : 16;
            live->blocked = grown(live->blocked, room, sizeof(Blocked), &play->broken);
            if (play->broken) return;
            live->blocked_room = room;
        }
        live->blocked[live->blocked_count] = (Blocked){row, repetition, live->waiting[participant]};
        live->waiting[participant] = live->blocked_count++;
        return;
    }
    if (src > since) since = src;
    if (dst > since) since = dst;
    int32_t number = new_flow(&play->fabric);
    if (play->fabric.broken) return;
    Flow *flow = &play->fabric.flows[number];
    flow->row = row;
    flow->repetition = repetition;
    flow->instance = (int32_t)instance;
    choose_route(&play->fabric, flow);
    flow->enter = since + latency_of(play, live, flow->route, row, repetition);
    /* `ready + latency` lies in the past only if the predecessor on the channel ended last, at `now`. */
    if (flow->enter < now) flow->enter = now;
    flow->nbytes = bytes_of(p, instance, row, repetition);
    launch(&play->fabric, number);
}

/* A followed transfer has ended: record it, and release its successor on the channel and all transfers that wait for
 * it. */
static void transfer_ended(Play *play, int32_t number) {
    const Problem *p = play->p;
    Flow flow = play->fabric.flows[number];
    int64_t instance = flow.instance, first_row = p->shape_row[p->shape[instance]];
    drop_flow(&play->fabric, number);
    play->out->followed++;
    keep(play, instance, flow.route, flow.row, flow.repetition, flow.enter, play->clock.now);
    if (p->log_begin[instance] >= 0)
        play->out->took[p->log_begin[instance] + p->row_log[flow.row] + flow.repetition * p->row_log_stride[flow.row]] =
            flow.detour;
    /* The channel comes first: of two transfers that can start now, the transfer that queued on the channel is launched
     * first. The events engine has the same order. */
    int32_t next = p->row_next[flow.row], later = flow.repetition + p->row_next_shift[flow.row];
    if (next >= 0 && later < p->row_times[flow.row])
        release(play, instance, (int32_t)(first_row + next), later, 0);
    else if (p->row_exit[flow.row] >= 0)
        release(play, instance, (int32_t)(first_row + p->row_exit[flow.row]), 0, 0);
    release_waiters(play, instance, flow.row, flow.repetition);
    if (flow.repetition < p->row_times[flow.row] - 1) return;
    /* The last repetition of the row has ended. All earlier repetitions have ended before, because the channel is a
     * FIFO. */
    int32_t ends[2] = {p->row_src[flow.row], p->row_dst[flow.row]}, size = group_size(p, instance);
    Live *live = play->live[instance];
    live->rows_left--;
    int done[2] = {--live->to_end[ends[0]] == 0 && ends[0] < size, --live->to_end[ends[1]] == 0 && ends[1] < size};
    for (int side = 0; side < 2; side++)
        if (done[side]) participant_done(play, instance, ends[side]);
    /* A host may write on after its rank is done. */
    live = play->live[instance];
    if (live && !live->unfinished && !live->rows_left) close_live(play, instance);
}

/* ---- transfers computed in order, without the clock ----
 *
 * `follow` uses the same walk to hand transfers over to the clock.
 */
static double max2(double a, double b) { return a > b ? a : b; }

/* Scratch of one walk. A slot stands for a transfer; a ring's rows have one slot for all their repetitions. */
typedef struct {
    double *ready, *free_at; /* by slot: end of the awaited transfers, and end of the predecessor on the channel */
    double *done; /* by participant: end of its last transfer */
    int following; /* 1: hand transfers over to the clock; 0: compute their times */
} InOrder;

/* Pass a transfer's end on to the slots of its successor on the channel and of all transfers that wait for it. */
static void see_through(Play *play, int64_t instance, InOrder *slots, int32_t row, int32_t repetition, double end) {
    const Problem *p = play->p;
    int64_t first_row = p->shape_row[p->shape[instance]];
    int32_t next = p->row_next[row], later = repetition + p->row_next_shift[row];
    if (p->row_route[row] >= 0) {
        if (next >= 0 && later < p->row_times[row]) {
            int64_t to = first_row + next;
            slots->free_at[p->row_slot[to] + later * p->row_slot_stride[to]] = end;
        } else if (p->row_exit[row] >= 0) {
            slots->free_at[p->row_slot[first_row + p->row_exit[row]]] = end;
        }
    }
    for (int64_t k = p->inner_begin[row]; k < p->inner_begin[row + 1]; k++) {
        int64_t to = first_row + p->inner_row[k];
        later = repetition + p->inner_shift[k];
        if (later < 0 || later >= p->row_times[row]) continue;
        double *ready = &slots->ready[p->row_slot[to] + later * p->row_slot_stride[to]];
        *ready = max2(*ready, end);
    }
    for (int64_t k = p->outer_begin[row]; k < p->outer_begin[row + 1]; k++) {
        if (p->outer_at[k] != repetition) continue;
        int64_t to = first_row + p->outer_row[k];
        double *ready = &slots->ready[p->row_slot[to] + p->outer_times[k] * p->row_slot_stride[to]];
        *ready = max2(*ready, end);
    }
}

/* Record a transfer whose times were computed, and count it. */
static void keep_computed(Play *play, int64_t instance, int32_t row, int32_t repetition, double enter, double end) {
    const Problem *p = play->p;
    keep(play, instance, p->routing_route[p->routing[instance]] + p->row_route[row], row, repetition, enter, end);
    play->out->in_order++;
}

/* Hand a transfer over to the clock in its present state: ended, in flight, or still waiting.
 *
 * The walk goes in order of numbers, and ended transfers lower `pending` and raise `ready` of their waiters here. A
 * counter above 0 therefore means that a transfer it waits for has not ended yet; the clock will start it.
 */
static void hand_over(Play *play, int64_t instance, int32_t row, int32_t repetition, double enter, double end) {
    const Problem *p = play->p;
    Live *live = play->live[instance];
    int64_t first_row = p->shape_row[p->shape[instance]], number = p->row_base[row] + repetition * p->row_stride[row];
    int gate = p->row_route[row] < 0;
    if (live->pending[number]) return;
    /* In flight or about to start; a gate has no flow and is released by the ends that it waits for. */
    if (end > play->clock.now) {
        if (gate) return;
        int32_t src = p->row_src[row], dst = p->row_dst[row];
        /* Transfers that wait for nothing are started by `reach` when their rank comes. */
        int initial = !p->row_waits[row] && !p->row_follows[row] && repetition == 0;
        int32_t starter = src < group_size(p, instance) ? src : dst;
        if (initial && live->started[starter] == INFINITY) return;
        /* One of its participants is missing: start_transfer puts it into the list of blocked transfers. */
        if (enter == INFINITY) {
            start_transfer(play, instance, row, repetition, live->ready[number]);
            return;
        }
        int32_t made = new_flow(&play->fabric);
        if (play->fabric.broken) return;
        Flow *flow = &play->fabric.flows[made];
        flow->route = p->routing_route[p->routing[instance]] + p->row_route[row];
        flow->detour = 0; /* with detours, every collective is followed from its beginning */
        flow->enter = enter;
        flow->nbytes = bytes_of(p, instance, row, repetition);
        flow->row = row;
        flow->repetition = repetition;
        flow->instance = (int32_t)instance;
        /* An entered flow may share its links with other flows of its own instance. The links are wide enough for all
         * of them, thus the bytes left follow from the route's rate. */
        if (enter > play->clock.now)
            launch(&play->fabric, made);
        else
            come_in(&play->fabric, made, (end - play->clock.now) * p->route_rate[flow->route]);
        return;
    }
    /* If ranks are missing, the instance has never been computed, and this transfer was not recorded yet. Example:
     * ranks 0 and 1 of an all-gather over 0, 1, 2 exchange their parts while rank 2 is late. */
    if (!gate && live->missing) keep_computed(play, instance, row, repetition, enter, end);
    int32_t next = p->row_next[row], later = repetition + p->row_next_shift[row];
    if (!gate && next >= 0 && later < p->row_times[row])
        live->pending[p->row_base[first_row + next] + later * p->row_stride[first_row + next]]--;
    else if (!gate && p->row_exit[row] >= 0)
        live->pending[p->row_base[first_row + p->row_exit[row]]]--;
    for (int64_t k = p->inner_begin[row]; k < p->inner_begin[row + 1]; k++) {
        int64_t to = first_row + p->inner_row[k];
        later = repetition + p->inner_shift[k];
        if (later < 0 || later >= p->row_times[row]) continue;
        number = p->row_base[to] + later * p->row_stride[to];
        live->pending[number]--;
        live->ready[number] = max2(live->ready[number], end);
    }
    for (int64_t k = p->outer_begin[row]; k < p->outer_begin[row + 1]; k++) {
        if (p->outer_at[k] != repetition) continue;
        int64_t to = first_row + p->outer_row[k];
        number = p->row_base[to] + p->outer_times[k] * p->row_stride[to];
        live->pending[number]--;
        live->ready[number] = max2(live->ready[number], end);
    }
    if (gate || repetition < p->row_times[row] - 1) return;
    live->rows_left--;
    live->to_end[p->row_src[row]]--;
    live->to_end[p->row_dst[row]]--;
}

/* When a transfer enters its links, by the rule of transfers (records/transfer_rule.py). */
static double enters(Play *play, int64_t instance, int32_t row, int32_t repetition, double ready, double free_at) {
    const Problem *p = play->p;
    const Live *live = play->live[instance];
    int64_t route = p->routing_route[p->routing[instance]] + p->row_route[row];
    ready = max2(ready, max2(live->started[p->row_src[row]], live->started[p->row_dst[row]]));
    return max2(ready + latency_of(play, live, route, row, repetition), free_at);
}

/* Duration of a transfer at its route's own rate [s]. */
static double takes_alone(const Play *play, int64_t instance, int32_t row, int32_t repetition) {
    const Problem *p = play->p;
    int64_t route = p->routing_route[p->routing[instance]] + p->row_route[row];
    return bytes_of(p, instance, row, repetition) / p->route_rate[route];
}

/* Compute one transfer, or hand it over to the clock; return its end. */
static double in_order(
    Play *play, int64_t instance, const InOrder *slots, int32_t row, int32_t repetition, double ready, double free_at) {
    const Problem *p = play->p;
    if (p->row_route[row] < 0) {
        if (slots->following) hand_over(play, instance, row, repetition, ready, ready);
        return ready;
    }
    double enter = enters(play, instance, row, repetition, ready, free_at);
    double end = enter + takes_alone(play, instance, row, repetition);
    if (slots->following) {
        hand_over(play, instance, row, repetition, enter, end);
        return end;
    }
    keep_computed(play, instance, row, repetition, enter, end);
    return end;
}

/* Return 1 if no transfer of the instance needs individual treatment: no hand-over, no noise, no log. */
static int is_plain(const Play *play, int64_t instance, const InOrder *slots) {
    const Problem *p = play->p;
    return !slots->following && !play->live[instance]->noise && p->log_begin[instance] < 0;
}

/* Return 1 if a row of the round takes a tapped route. */
static int is_tapped(const Play *play, int64_t instance, int64_t row, int32_t rows) {
    const Problem *p = play->p;
    int64_t route = p->routing_route[p->routing[instance]];
    for (int32_t k = 0; k < rows; k++)
        if (p->route_tapped[route + p->row_route[row + k]]) return 1;
    return 0;
}

/* Sort the rows of a round into rings: each row follows the row whose chunk it hands on.
 *
 *     behind = {3, 0, 1, 2}  (row 0 hands on row 3's chunk, ...)   ->   one ring, order 0, 1, 2, 3
 *     behind = {1, 0, 3, 2}                                        ->   two rings, order 0, 1 | 2, 3
 *
 * Returns the number of rings; `begin` has the offset of each. Returns 0 if two rows hand on the chunk of the same row,
 * which happens with rows that stand for a whole class.
 */
static int32_t ring_order(const int32_t *behind, int32_t rows, int32_t *order, int32_t *begin, int32_t *after) {
    for (int32_t k = 0; k < rows; k++) after[k] = -1;
    for (int32_t k = 0; k < rows; k++) {
        if (after[behind[k]] >= 0) return 0;
        after[behind[k]] = k;
    }
    int32_t rings = 0, count = 0;
    for (int32_t first = 0; first < rows; first++) {
        if (after[first] < 0) continue;
        begin[rings++] = count;
        for (int32_t k = first; after[k] >= 0;) {
            int32_t next = after[k];
            order[count++] = k;
            after[k] = -1;
            k = next;
        }
    }
    begin[rings] = count;
    return rings;
}

/* Smaller rings are computed round by round, at 0.5 ns per transfer, and their ends equal the events engine's to the
 * bit. The closed recurrence rounds differently. */
#ifndef SOLVE_FROM /* benchmarks/ablation.py raises it out of reach */
#define SOLVE_FROM 200000
#endif

/* Ends of a large ring's last repetition by the closed recurrence (recurrence.h). Returns 0 if the recurrence does not
 * apply, or if single transfers must be recorded.
 *
 * `end` contains the ends of the round before on entry: the ring's first repetition, or the preceding round if the ring
 * is joined to it (part_ring 2).
 */
static int solved(Play *play, int64_t instance, const InOrder *slots, int64_t part, int64_t row, double *end) {
    const Problem *p = play->p;
    int32_t rows = p->part_rows[part], joined = p->part_ring[part] == 2, rounds = p->part_times[part] - !joined;
    int64_t route = p->routing_route[p->routing[instance]], first_row = p->shape_row[p->shape[instance]];
    int steady = p->size_steady[p->sizes[instance]];
    if ((int64_t)rows * rounds < SOLVE_FROM || !is_plain(play, instance, slots)) return 0;
    /* Unequal chunks must travel with the ring, otherwise the sizes of later repetitions are unknown here. */
    if (is_tapped(play, instance, row, rows) || (!steady && !p->part_moves[part])) return 0;
    int32_t *order = malloc(((size_t)rows * 4 + 2) * sizeof(int32_t)), *begin = order + rows, *behind = begin + rows + 1;
    double *column = malloc((size_t)rows * 4 * sizeof(double));
    int done = order && column;
    for (int32_t k = 0; done && k < rows; k++) behind[k] = p->ring_behind[row + k] - (int32_t)(row - first_row);
    int32_t rings = done ? ring_order(behind, rows, order, begin, behind + rows) : 0;
    done = rings > 0;
    for (int32_t number = 0; done && number < rings; number++) {
        int32_t at = begin[number], hops = begin[number + 1] - at;
        double *latency = column + rows, *takes = latency + rows, *nbytes = takes + rows;
        RingHops ring = {hops, column + at, latency, takes, nbytes, p->route_rate[route + p->row_route[row + order[at]]]};
        done = rounds >= hops - 2;
        for (int32_t k = 0; k < hops; k++) {
            int32_t own = (int32_t)row + order[at + k];
            double rate = p->route_rate[route + p->row_route[own]];
            latency[k] = p->route_latency[route + p->row_route[own]];
            nbytes[k] = bytes_of(p, instance, own, !joined);
            takes[k] = nbytes[k] / rate;
            column[at + k] = end[order[at + k]];
            /* The recurrence for two chunk sizes needs equal rates on all hops. */
            done &= steady || rate == ring.rate;
        }
        done = done && (steady ? advance_even(&ring, rounds) : advance_uneven(&ring, rounds));
    }
    for (int32_t k = 0; done && k < rows; k++) end[order[k]] = column[k];
    if (done) play->out->in_order += (int64_t)rows * rounds;
    free(order);
    free(column);
    return done;
}

/* One repetition of a ring: each hop hands on the chunk that the hop behind it brought.
 *
 * GCC compiles the function twice, with and without AVX2 (four hops per instruction); the loader picks one version.
 */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx2", "default")))
#endif
void ring_turn(double *restrict then, const double *restrict now, const double *restrict latency,
               const double *restrict takes, int32_t hops) {
    then[0] = max2(now[hops - 1] + latency[0], now[0]) + takes[0];
    for (int32_t k = 1; k < hops; k++) {
        double come = now[k - 1] + latency[k];
        then[k] = (come > now[k] ? come : now[k]) + takes[k];
    }
}

/* The rows of one ring, in the order of its hops. */
typedef struct {
    const int32_t *row; /* relative to the first row of the round */
    int32_t hops;
    double *now, *then, *latency, *takes;
} Ring;

/* All repetitions of one ring after the first. `ring.now` contains the ends of the first repetition on entry, and of
 * the last on return. */
static void go_round_ring(Play *play, int64_t instance, int64_t first, Ring ring, int32_t times, int32_t *tapped) {
    const Problem *p = play->p;
    int64_t route = p->routing_route[p->routing[instance]];
    int32_t taps = 0;
    for (int32_t k = 0; k < ring.hops; k++) {
        int64_t own = first + ring.row[k];
        ring.latency[k] = p->route_latency[route + p->row_route[own]];
        ring.takes[k] = bytes_of(p, instance, (int32_t)own, 0) / p->route_rate[route + p->row_route[own]];
        if (p->route_tapped[route + p->row_route[own]]) tapped[taps++] = k;
    }
    for (int32_t repetition = 1; repetition < times && !play->broken; repetition++) {
        ring_turn(ring.then, ring.now, ring.latency, ring.takes, ring.hops);
        for (int32_t i = 0; i < taps; i++) {
            int32_t k = tapped[i];
            double enter = max2(ring.now[k ? k - 1 : ring.hops - 1] + ring.latency[k], ring.now[k]);
            int64_t own = first + ring.row[k];
            keep(play, instance, route + p->row_route[own], (int32_t)own, repetition, enter, ring.then[k]);
        }
        double *swapped = ring.now;
        ring.now = ring.then;
        ring.then = swapped;
    }
    /* `now` and `then` were swapped times - 1 times; copy the result into the array of the caller. */
    if (times % 2 == 0) memcpy(ring.then, ring.now, (size_t)ring.hops * sizeof(double));
}

/* All repetitions of a round after the first, ring by ring. Returns 0 if the rows do not form rings or memory is
 * exhausted. */
static int go_plain(Play *play, int64_t instance, int64_t row, int32_t rows, int32_t times, double *end) {
    const Problem *p = play->p;
    int64_t first_row = p->shape_row[p->shape[instance]];
    int32_t *order = malloc(((size_t)rows * 4 + 2) * sizeof(int32_t)), *begin = order + rows, *after = begin + rows + 1;
    double *now = malloc((size_t)rows * 4 * sizeof(double));
    int32_t rings = 0;
    if (order && now) {
        int32_t *behind = after + rows;
        for (int32_t k = 0; k < rows; k++) behind[k] = p->ring_behind[row + k] - (int32_t)(row - first_row);
        rings = ring_order(behind, rows, order, begin, after);
    }
    for (int32_t number = 0; number < rings; number++) {
        int32_t at = begin[number], hops = begin[number + 1] - at;
        for (int32_t k = 0; k < hops; k++) now[k] = end[order[at + k]];
        Ring ring = {order + at, hops, now, now + hops, now + 2 * hops, now + 3 * hops};
        go_round_ring(play, instance, row, ring, times, after);
        for (int32_t k = 0; k < hops; k++) end[order[at + k]] = now[k];
    }
    if (rings) play->out->in_order += (int64_t)rows * (times - 1);
    free(order);
    free(now);
    return rings > 0;
}

static void set_waiting(const Play *play, Live *live, int64_t row, int32_t from, int32_t until);

/* Hand a ring's repetitions after the first over to the clock.
 *
 * Most repetitions have usually ended when another collective comes to the links, and a ring may have 1e8 transfers.
 * Repetitions that have ended are skipped; counters are filled in only from the first repetition that has not ended.
 */
static void hand_over_round(Play *play, int64_t instance, int64_t row, int32_t rows, int32_t times, double *end) {
    const Problem *p = play->p;
    Live *live = play->live[instance];
    int32_t shift = (int32_t)(row - p->shape_row[p->shape[instance]]);
    double *behind = malloc((size_t)rows * 2 * sizeof(double)), *enter = behind + rows;
    if (!behind) play->broken = 1;
    int handing = 0;
    for (int32_t repetition = 1; repetition < times && !play->broken; repetition++) {
        int ended = !handing && repetition < times - 1;
        memcpy(behind, end, (size_t)rows * sizeof(double));
        for (int32_t k = 0; k < rows; k++) {
            int32_t own = (int32_t)(row + k);
            enter[k] = enters(play, instance, own, repetition, behind[p->ring_behind[own] - shift], behind[k]);
            end[k] = enter[k] + takes_alone(play, instance, own, repetition);
            ended &= end[k] <= play->clock.now;
        }
        if (ended) {
            for (int32_t k = 0; k < rows && live->missing; k++)
                keep_computed(play, instance, (int32_t)(row + k), repetition, enter[k], end[k]);
            continue;
        }
        /* First repetition that has not ended: fill in the counters of this and all later repetitions, then count the
         * ends of the skipped repetition before. */
        for (int32_t k = 0; k < rows && !handing; k++) {
            int64_t number = p->row_base[row + k] + repetition * p->row_stride[row + k];
            double brought = behind[p->ring_behind[row + k] - shift];
            set_waiting(play, live, row + k, repetition, times);
            live->pending[number] -= (brought <= play->clock.now) + (behind[k] <= play->clock.now);
            if (brought <= play->clock.now) live->ready[number] = brought;
        }
        handing = 1;
        for (int32_t k = 0; k < rows; k++) hand_over(play, instance, (int32_t)(row + k), repetition, enter[k], end[k]);
    }
    free(behind);
}

/* Repetitions of a ring's round after the first. `end` contains the ends of the first on entry, and of the last on
 * return. */
static void go_round(Play *play, int64_t instance, const InOrder *slots, int64_t row, int32_t rows, int32_t times, double *end) {
    const Problem *p = play->p;
    if (slots->following) {
        hand_over_round(play, instance, row, rows, times, end);
        return;
    }
    if (p->size_steady[p->sizes[instance]] && is_plain(play, instance, slots) &&
        go_plain(play, instance, row, rows, times, end))
        return;
    int32_t shift = (int32_t)(row - p->shape_row[p->shape[instance]]);
    double *behind = malloc((size_t)rows * sizeof(double));
    if (!behind) play->broken = 1;
    for (int32_t repetition = 1; repetition < times && !play->broken; repetition++) {
        memcpy(behind, end, (size_t)rows * sizeof(double));
        for (int32_t k = 0; k < rows; k++) {
            double ready = behind[p->ring_behind[row + k] - shift];
            end[k] = in_order(play, instance, slots, (int32_t)(row + k), repetition, ready, behind[k]);
        }
    }
    free(behind);
}

/* Compute all transfers of an instance by rising number, round by round.
 *
 * Rounds that are no rings pass every end on to its waiters through slots. A ring's repetitions only need the ends of
 * the repetition before (`end`), thus only its last ends are passed on.
 */
static void walk_in_order(Play *play, int64_t instance, InOrder *slots) {
    const Problem *p = play->p;
    Live *live = play->live[instance];
    int32_t shape = p->shape[instance], participants = p->participants[shape];
    int64_t slot_count = p->shape_slots[shape];
    double *end = NULL;
    slots->ready = malloc((size_t)slot_count * sizeof(double) + 8);
    slots->free_at = malloc((size_t)slot_count * sizeof(double) + 8);
    if (!slots->ready || !slots->free_at) play->broken = 1;
    for (int64_t i = 0; !play->broken && i < slot_count; i++) {
        slots->ready[i] = live->first_reach;
        slots->free_at[i] = -INFINITY;
    }
    for (int32_t i = 0; i < participants; i++) slots->done[i] = live->started[i];
    for (int64_t part = p->shape_part[shape]; !play->broken && part < p->shape_part[shape + 1]; part++) {
        int32_t rows = p->part_rows[part], times = p->part_times[part];
        int64_t row = p->shape_row[shape] + p->part_row[part];
        int ring = p->part_ring[part];
        end = grown(end, rows, sizeof(double), &play->broken);
        /* A joined ring is solved from the round before; other rings need their first repetition, computed below. */
        int done = !play->broken && ring == 2 && solved(play, instance, slots, part, row, end);
        for (int32_t repetition = 0; repetition < (ring ? 1 : times) && !done && !play->broken; repetition++)
            for (int32_t k = 0; k < rows; k++) {
                int64_t slot = p->row_slot[row + k] + repetition * p->row_slot_stride[row + k];
                end[k] = in_order(play, instance, slots, (int32_t)(row + k), repetition, slots->ready[slot], slots->free_at[slot]);
                if (!ring) see_through(play, instance, slots, (int32_t)(row + k), repetition, end[k]);
            }
        if (ring == 1) done = !play->broken && solved(play, instance, slots, part, row, end);
        if (ring && !done && !play->broken) go_round(play, instance, slots, row, rows, times, end);
        for (int32_t k = 0; k < rows && ring && !play->broken; k++)
            see_through(play, instance, slots, (int32_t)(row + k), times - 1, end[k]);
        for (int32_t k = 0; k < rows && !play->broken; k++) {
            if (p->row_route[row + k] < 0) continue;
            double *src = &slots->done[p->row_src[row + k]], *dst = &slots->done[p->row_dst[row + k]];
            *src = max2(*src, end[k]);
            *dst = max2(*dst, end[k]);
        }
    }
    free(slots->ready);
    free(slots->free_at);
    free(end);
}

/* Compute an instance when its last rank has come, and schedule when each rank is done. */
static void play_in_order(Play *play, int64_t instance) {
    const Problem *p = play->p;
    InOrder slots = {.done = malloc((size_t)p->participants[p->shape[instance]] * sizeof(double) + 8)};
    if (!slots.done) {
        play->broken = 1;
        return;
    }
    walk_in_order(play, instance, &slots);
    for (int32_t i = 0; !play->broken && i < group_size(p, instance); i++) {
        /* A rank that is done before the last rank comes contradicts the flag IN_ORDER: the collective should have been
         * followed. */
        if (slots.done[i] < play->clock.now) play->out_of_order = 1;
        happen(play, slots.done[i], RANK_DONE, (int32_t)instance, i, play->live[instance]->version);
    }
    free(slots.done);
}

static void open_transfers(Play *play, int64_t instance, Live *live, int computed);

/* Switch an instance that was computed, or was to be computed, to being followed by the clock. */
static void follow(Play *play, int64_t instance) {
    const Problem *p = play->p;
    Live *live = play->live[instance];
    Result *out = play->out;
    live->followed = 1;
    /* The scheduled RANK_DONE events become stale. */
    live->version++;
    open_transfers(play, instance, live, 1);
    InOrder slots = {.done = malloc((size_t)p->participants[p->shape[instance]] * sizeof(double) + 8), .following = 1};
    if (!slots.done) play->broken = 1;
    if (play->broken) return;
    int64_t kept = 0;
    /* Drop recorded flows that have not ended yet; they are recorded again at their true end. */
    for (int64_t i = 0; i < out->taps; i++) {
        const double *tap = out->tap + 3 * i;
        if (tap[2] == (double)instance && tap[1] > play->clock.now) continue;
        memmove(out->tap + 3 * kept++, tap, 3 * sizeof(double));
    }
    out->taps = kept;
    walk_in_order(play, instance, &slots);
    for (int32_t i = 0; !play->broken && i < group_size(p, instance); i++)
        if (live->to_end[i] == 0 && !live->left[i] && live->started[i] < INFINITY)
            happen(play, play->clock.now, RANK_DONE, (int32_t)instance, i, live->version);
    free(slots.done);
}

#endif
