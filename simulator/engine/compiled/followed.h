/* Collectives whose transfers are followed by the clock: a transfer enters its links at max(ready + latency, end of the
 * transfer before it on its channel), and is released when all that it waits for have ended. */
#ifndef FOLLOWED_H
#define FOLLOWED_H
#include "streams.h"

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

/* Whether flows of two instances that take one link may be on it at once. */
static int may_meet(const Problem *p, int64_t one, int64_t other) {
    return p->lane[one] != p->lane[other] || p->lane[one] < 0;
}

/* An instance comes to its links. It and whoever it may meet there must be followed. */
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

static void leave_links(Play *play, int64_t instance) {
    const Problem *p = play->p;
    int32_t routing = p->routing[instance];
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
        const uint64_t behind_ranks = (uint64_t)1 << 32; /* jitter.py: servers draw under numbers that no rank has */
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

static double bytes_of(const Problem *p, int64_t instance, int32_t row, int32_t repetition) {
    int32_t sizes = p->sizes[instance];
    int64_t shape_row = p->shape_row[p->shape[instance]];
    int64_t at = p->size_steady[sizes] ? row - shape_row : p->row_log[row] + repetition * p->row_log_stride[row];
    return p->nbytes[p->size_begin[sizes] + at];
}

static double latency_of(const Play *play, const Live *live, int64_t route, int32_t row, int32_t repetition) {
    const Problem *p = play->p;
    double latency = p->route_latency[route];
    if (!live->noise) return latency;
    uint64_t number = (uint64_t)p->row_noise[row] + (uint64_t)repetition * (uint64_t)p->row_noise_stride[row];
    return latency * factor(p->noise_latency, live->noise[p->row_src[row]], number);
}

/* Keeps when a transfer was on its links, where somebody wants to know. */
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

/* A rank has nothing left to do in a collective. */
static void participant_done(Play *play, int64_t instance, int32_t place) {
    const Problem *p = play->p;
    int32_t rank = p->group_rank[p->group_begin[p->group[instance]] + place];
    /* Which of its streams is at the instance: a rank has few. */
    int32_t list = p->list_of[rank], streams = (int32_t)(p->stream_begin[list + 1] - p->stream_begin[list]);
    for (int32_t stream = 0; stream < streams; stream++) {
        int64_t at = play->stream_base[rank] + stream;
        if (!play->busy[at]) continue;
        int32_t op_place = p->queue[p->queue_begin[p->stream_begin[list] + stream] + play->position[at] - 1], own;
        int64_t op = op_of(play, rank, op_place);
        if (p->op_kind[op] != COLLECTIVE || instance_of(play, rank, op, &own) != instance) continue;
        if (play->live[instance]->left) play->live[instance]->left[place] = 1;
        if (--play->live[instance]->unfinished == 0) close_live(play, instance);
        stream_done(play, rank, stream);
        return;
    }
}

static void start_transfer(Play *play, int64_t instance, int32_t row, int32_t repetition, double since);

/* Something that a transfer waits for has ended now. `sets_ready`: not so for the transfer before it on its channel,
 * because latency passes while that is still sending. */
static void release(Play *play, int64_t instance, int32_t row, int32_t repetition, int sets_ready) {
    const Problem *p = play->p;
    Live *live = play->live[instance];
    int64_t number = p->row_base[row] + repetition * p->row_stride[row];
    if (sets_ready) live->ready[number] = play->clock.now;
    if (--live->pending[number] == 0) start_transfer(play, instance, row, repetition, live->ready[number]);
}

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

static void start_transfer(Play *play, int64_t instance, int32_t row, int32_t repetition, double since) {
    const Problem *p = play->p;
    Live *live = play->live[instance];
    if (p->row_route[row] < 0) { /* a gate */
        release_waiters(play, instance, row, repetition);
        return;
    }
    double src = live->started[p->row_src[row]], dst = live->started[p->row_dst[row]], now = play->clock.now;
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
    flow->route = p->routing_route[p->routing[instance]] + p->row_route[row];
    flow->enter = since + latency_of(play, live, flow->route, row, repetition);
    if (flow->enter < now) flow->enter = now; /* the transfer before it on its channel ended last, now */
    flow->nbytes = bytes_of(p, instance, row, repetition);
    flow->row = row;
    flow->repetition = repetition;
    flow->instance = (int32_t)instance;
    launch(&play->fabric, number);
}

static void transfer_ended(Play *play, int32_t number) {
    const Problem *p = play->p;
    Flow flow = play->fabric.flows[number];
    int64_t instance = flow.instance, first_row = p->shape_row[p->shape[instance]];
    drop_flow(&play->fabric, number);
    play->out->followed++;
    keep(play, instance, flow.route, flow.row, flow.repetition, flow.enter, play->clock.now);
    /* The channel first: of two transfers that can start now the one that queued comes first. */
    int32_t next = p->row_next[flow.row], later = flow.repetition + p->row_next_shift[flow.row];
    if (next >= 0 && later < p->row_times[flow.row])
        release(play, instance, (int32_t)(first_row + next), later, 0);
    else if (p->row_exit[flow.row] >= 0)
        release(play, instance, (int32_t)(first_row + p->row_exit[flow.row]), 0, 0);
    release_waiters(play, instance, flow.row, flow.repetition);
    if (flow.repetition < p->row_times[flow.row] - 1) return;
    /* Last of its row: of all earlier repetitions the channel sees to it that they have ended. */
    int32_t ends[2] = {p->row_src[flow.row], p->row_dst[flow.row]}, size = group_size(p, instance);
    Live *live = play->live[instance];
    int done[2] = {--live->to_end[ends[0]] == 0 && ends[0] < size, --live->to_end[ends[1]] == 0 && ends[1] < size};
    for (int side = 0; side < 2; side++)
        if (done[side]) participant_done(play, instance, ends[side]);
}

#endif
