/* The fabric: flows on links, each flow at its max-min fair share.
 *
 * A flow whose links are free takes them for itself from launch to end and costs one event. Rates are solved only if
 * flows meet, once per moment, after all other events of the moment. Example: one link of 10 B/s. Flow A of 100 B
 * enters at t = 0, flow B of 30 B at t = 4.
 *
 *     t = 0    A takes the link: FLOW_ENDS at 10
 *     t = 4    B finds the link taken. A is withdrawn with 60 B left; A and B join the link's members.
 *              solve: 5 B/s each: SHARED_ENDS of B at 10, of A at 16
 *     t = 10   B leaves. solve: A has 30 B left at 10 B/s: SHARED_ENDS of A at 13
 *
 * A solution opens only the rates that a change can affect. It starts with the flows on links where a flow has come or
 * gone ("dirty" links) and keeps all other rates fixed. If the result is unfair to a fixed flow, or a fixed flow takes
 * more than its fair share, the rate of this flow is opened too and the solution is repeated. Example: flow A takes
 * link 1 (10 B/s), B takes links 1 and 2, C takes link 2 (20 B/s); rates are A 5, B 5, C 15.
 *
 *     A ends, link 1 is dirty: open B, keep C at 15.  Result: B 5, held back by link 2, where C has 15: unfair.
 *     Open C too.                                     Result: B 10, C 10: fair.
 *
 * An allocation is max-min fair if, and only if, every flow has a bottleneck: a full link on which no flow is faster,
 * or the flow's own rate cap (Bertsekas & Gallager, "Data networks", 2nd ed. 1992, section 6.5.2). `unfair` checks this
 * condition, therefore the result equals a solution of all flows together.
 */
#ifndef FABRIC_H
#define FABRIC_H

#include <math.h>
#include <string.h>

#include "clock.h"
#include "problem.h"

/* Both tolerances are explained in basics/tolerances.py. */
#define ENDS_TOGETHER 1e-14
#define SUM_OF_RATES 1e-12
#define OWN_CAP (-1) /* bottleneck of a flow that is held back by its own rate cap */
/* After this many rounds of opening rates, all flows connected with the solution are opened at once. */
#ifndef MOST_ROUNDS /* benchmarks/ablation.py sets it to 0 */
#define MOST_ROUNDS 6
#endif

/* A flow is in one of three states: it has its links to itself; it waits for its enter event; it shares links. */
typedef struct {
    double end, enter, nbytes;
    double remaining, updated, rate; /* while it shares links: bytes left at time `updated` [B] */
    int64_t route;
    int32_t row, repetition, instance;
    int32_t detour; /* set of avoided links around which the route leads */
    int32_t bottleneck; /* link that limits the rate, or OWN_CAP */
    uint32_t version, free_since; /* free_since: last solution in which the rate was open */
} Flow;

/* Flows that share one link. */
typedef struct {
    int32_t *flow; /* flows on a link that share the link */
    int32_t *leg; /* by member: index of the link in the flow's route */
    int32_t size, room;
} Members;

typedef struct {
    const Problem *problem;
    Clock *clock;
    Flow *flows;
    int32_t *spot; /* [flows x longest_route], index of a flow among the members of a link */
    int32_t flow_count, flow_room, *free_flows, free_count;
    double *capacity; /* by link: its capacity now */
    double *until; /* by link: end of the flow that has it alone; infinite while the link is shared */
    int32_t *holder; /* by link: the flow that has it alone; -1: none */
    Members *members;
    int32_t *dirty, dirty_count; /* links whose members changed since the last solution */
    uint8_t *is_dirty;
    int32_t detour; /* set of links that routes avoid now */
    uint8_t *avoided; /* by link: 1 if routes avoid it now */
    int solving, broken;
    /* A solution: its number, flows with open rates, the links that they take, and scratch arrays indexed by these
     * links. */
    uint32_t solution, *link_seen;
    int32_t *open, *unfixed, open_count, open_room, *links, *link_place, link_count;
    double *room, *load, *share, *least_of_link, *least, *taken;
    uint8_t *fixed;
} Fabric;

/* Resize an array to `count` entries; on failure set `broken` and return the old array. */
static void *grown(void *old, int64_t count, size_t size, int *broken) {
    void *made = realloc(old, (size_t)(count > 0 ? count : 1) * size);
    if (!made) *broken = 1;
    return made ? made : old;
}

/* Return 0 if memory is exhausted. */
static int fabric_open(Fabric *fabric, const Problem *problem, Clock *clock) {
    memset(fabric, 0, sizeof *fabric);
    fabric->problem = problem;
    fabric->clock = clock;
    size_t links = (size_t)problem->links + 1;
    fabric->capacity = malloc(links * sizeof(double));
    fabric->until = malloc(links * sizeof(double));
    fabric->holder = malloc(links * sizeof(int32_t));
    fabric->members = calloc(links, sizeof(Members));
    fabric->dirty = malloc(links * sizeof(int32_t));
    fabric->is_dirty = calloc(links, 1);
    fabric->avoided = calloc(links, 1);
    fabric->link_seen = calloc(links, sizeof(uint32_t));
    fabric->links = malloc(links * sizeof(int32_t));
    fabric->link_place = malloc(links * sizeof(int32_t));
    fabric->room = malloc(links * sizeof(double));
    fabric->load = malloc(links * sizeof(double));
    fabric->share = malloc(links * sizeof(double));
    fabric->least_of_link = malloc(links * sizeof(double));
    fabric->taken = malloc(links * sizeof(double));
    if (!fabric->capacity || !fabric->until || !fabric->holder || !fabric->members || !fabric->dirty || !fabric->is_dirty || !fabric->avoided ||
        !fabric->link_seen || !fabric->links || !fabric->link_place || !fabric->room || !fabric->load ||
        !fabric->share || !fabric->least_of_link || !fabric->taken)
        return 0;
    for (int64_t link = 0; link < problem->links; link++) {
        fabric->capacity[link] = problem->capacity[link];
        /* Flows on a link whose capacity changes always count as sharing it, hence a change finds them. */
        fabric->until[link] = problem->changing[link] ? INFINITY : -INFINITY;
        fabric->holder[link] = -1;
    }
    return 1;
}

static void fabric_close(Fabric *fabric) {
    if (fabric->members)
        for (int64_t link = 0; link < fabric->problem->links; link++) {
            free(fabric->members[link].flow);
            free(fabric->members[link].leg);
        }
    void *all[] = {fabric->capacity, fabric->flows, fabric->spot, fabric->free_flows, fabric->until, fabric->holder, fabric->members,
                   fabric->dirty, fabric->is_dirty, fabric->avoided, fabric->link_seen, fabric->open, fabric->unfixed, fabric->links,
                   fabric->link_place, fabric->room, fabric->load, fabric->share, fabric->least_of_link,
                   fabric->taken, fabric->least, fabric->fixed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static int32_t new_flow(Fabric *fabric) {
    if (fabric->free_count) return fabric->free_flows[--fabric->free_count];
    if (fabric->flow_count == fabric->flow_room) {
        int64_t room = fabric->flow_room ? 2 * (int64_t)fabric->flow_room : 256;
        int64_t legs = room * (fabric->problem->longest_route + 1);
        fabric->flows = grown(fabric->flows, room, sizeof(Flow), &fabric->broken);
        fabric->spot = grown(fabric->spot, legs, sizeof(int32_t), &fabric->broken);
        fabric->free_flows = grown(fabric->free_flows, room, sizeof(int32_t), &fabric->broken);
        if (fabric->broken) return -1;
        fabric->flow_room = (int32_t)room;
    }
    fabric->flows[fabric->flow_count].version = 0;
    fabric->flows[fabric->flow_count].free_since = 0;
    return fabric->flow_count++;
}

/* Recycle a flow's number. The new version makes events of the old flow stale. */
static void drop_flow(Fabric *fabric, int32_t flow) {
    fabric->flows[flow].version++;
    fabric->free_flows[fabric->free_count++] = flow;
}

static void flow_event(Fabric *fabric, double time, int what, int32_t flow) {
    if (!tell(fabric->clock, time, 0, what, flow, 0, fabric->flows[flow].version)) fabric->broken = 1;
}

/* Take all links of the route until the end that follows from the route's rate. The links are held from now on,
 * although the bytes only flow after `enter`; a flow that arrives meanwhile withdraws this one. */
static void take(Fabric *fabric, int32_t number) {
    const Problem *p = fabric->problem;
    Flow *flow = &fabric->flows[number];
    flow->end = flow->enter + flow->nbytes / p->route_rate[flow->route];
    for (int64_t leg = p->route_begin[flow->route]; leg < p->route_begin[flow->route + 1]; leg++) {
        fabric->until[p->route_link[leg]] = flow->end;
        fabric->holder[p->route_link[leg]] = number;
    }
    flow_event(fabric, flow->end, FLOW_ENDS, number);
}

/* Release links that a flow held for itself. Its scheduled end becomes stale. */
static void withdraw(Fabric *fabric, int32_t number) {
    const Problem *p = fabric->problem;
    Flow *flow = &fabric->flows[number];
    flow->version++;
    for (int64_t leg = p->route_begin[flow->route]; leg < p->route_begin[flow->route + 1]; leg++) {
        int32_t link = p->route_link[leg];
        if (fabric->holder[link] == number) {
            fabric->until[link] = -INFINITY;
            fabric->holder[link] = -1;
        }
    }
}

/* Schedule a solution at the end of the present moment, unless one is scheduled already. */
static void solve_soon(Fabric *fabric) {
    if (fabric->solving) return;
    fabric->solving = 1;
    if (!tell(fabric->clock, fabric->clock->now, 1, SHARES_CHANGE, 0, 0, 0)) fabric->broken = 1;
}

static void mark_dirty(Fabric *fabric, int32_t link) {
    if (fabric->is_dirty[link]) return;
    fabric->is_dirty[link] = 1;
    fabric->dirty[fabric->dirty_count++] = link;
}

/* Add a flow to the members of all its links. Its rate is 0 until the solution at the end of the moment. */
static void join(Fabric *fabric, int32_t number, double remaining) {
    const Problem *p = fabric->problem;
    Flow *flow = &fabric->flows[number];
    flow->remaining = remaining;
    flow->updated = fabric->clock->now;
    flow->rate = 0.0;
    flow->bottleneck = OWN_CAP;
    int32_t *spot = fabric->spot + (int64_t)number * (p->longest_route + 1);
    int64_t first = p->route_begin[flow->route];
    for (int64_t leg = first; leg < p->route_begin[flow->route + 1]; leg++) {
        int32_t link = p->route_link[leg];
        Members *members = &fabric->members[link];
        fabric->until[link] = INFINITY;
        fabric->holder[link] = -1;
        if (members->size == members->room) {
            int32_t room = members->room ? 2 * members->room : 4;
            members->flow = grown(members->flow, room, sizeof(int32_t), &fabric->broken);
            members->leg = grown(members->leg, room, sizeof(int32_t), &fabric->broken);
            if (fabric->broken) return;
            members->room = room;
        }
        spot[leg - first] = members->size;
        members->flow[members->size] = number;
        members->leg[members->size++] = (int32_t)(leg - first);
        mark_dirty(fabric, link);
    }
    solve_soon(fabric);
}

/* Remove a flow from the members of its links. The last member fills the gap, and its `spot` is updated. */
static void leave(Fabric *fabric, int32_t number) {
    const Problem *p = fabric->problem;
    Flow *flow = &fabric->flows[number];
    int32_t *spot = fabric->spot + (int64_t)number * (p->longest_route + 1);
    int64_t first = p->route_begin[flow->route];
    for (int64_t leg = first; leg < p->route_begin[flow->route + 1]; leg++) {
        int32_t link = p->route_link[leg];
        Members *members = &fabric->members[link];
        int32_t place = spot[leg - first], last = --members->size;
        members->flow[place] = members->flow[last];
        members->leg[place] = members->leg[last];
        fabric->spot[(int64_t)members->flow[place] * (p->longest_route + 1) + members->leg[place]] = place;
        if (members->size)
            mark_dirty(fabric, link);
        else
            fabric->until[link] = p->changing[link] ? INFINITY : -INFINITY;
    }
}

/* Bring in a flow with `remaining` bytes that enters now: take the links if they are free, otherwise share them. */
static void come_in(Fabric *fabric, int32_t number, double remaining) {
    const Problem *p = fabric->problem;
    Flow *flow = &fabric->flows[number];
    double now = fabric->clock->now;
    int alone = 1;
    for (int64_t leg = p->route_begin[flow->route]; leg < p->route_begin[flow->route + 1]; leg++) {
        int32_t link = p->route_link[leg];
        /* The holder's end has passed: the link is free. */
        if (fabric->until[link] <= now) continue;
        if (fabric->members[link].size || p->changing[link]) {
            alone = 0;
            continue;
        }
        int32_t other = fabric->holder[link];
        Flow *holder = &fabric->flows[other];
        withdraw(fabric, other);
        /* The holder's latency has not passed yet. It gives the link back and looks again at its own enter time. */
        if (holder->enter > now) {
            flow_event(fabric, holder->enter, FLOW_ENTERS, other);
        } else {
            /* A holder that entered at this very moment keeps its exact size. A product of time and rate would differ
             * in the last bit, and the result would depend on which of two simultaneous flows was first. */
            double left = (holder->end - now) * p->route_rate[holder->route];
            join(fabric, other, holder->enter == now ? holder->nbytes : left);
            alone = 0;
        }
    }
    if (alone)
        take(fabric, number);
    else
        join(fabric, number, remaining);
}

/* Give a flow the route that its transfer takes at present. */
static void choose_route(Fabric *fabric, Flow *flow) {
    const Problem *p = fabric->problem;
    flow->detour = fabric->detour;
    flow->route = p->routing_route[p->routing[flow->instance] + flow->detour * p->routings] + p->row_route[flow->row];
}

/* Return 1 if a flow's route takes an avoided link. */
static int is_blocked(const Fabric *fabric, const Flow *flow) {
    const Problem *p = fabric->problem;
    for (int64_t leg = p->route_begin[flow->route]; leg < p->route_begin[flow->route + 1]; leg++)
        if (fabric->avoided[p->route_link[leg]]) return 1;
    return 0;
}

/* The latency of a flow has passed. */
static void enter(Fabric *fabric, int32_t number) {
    fabric->flows[number].enter = fabric->clock->now;
    /* The route may have been chosen before its links were avoided. */
    if (fabric->detour && is_blocked(fabric, &fabric->flows[number])) choose_route(fabric, &fabric->flows[number]);
    come_in(fabric, number, fabric->flows[number].nbytes);
}

/* Send a flow that enters now or later. Free links are taken at once; otherwise the flow looks again when it enters. */
static void launch(Fabric *fabric, int32_t number) {
    const Problem *p = fabric->problem;
    Flow *flow = &fabric->flows[number];
    double now = fabric->clock->now;
    for (int64_t leg = p->route_begin[flow->route]; leg < p->route_begin[flow->route + 1]; leg++)
        if (fabric->until[p->route_link[leg]] > now) {
            if (flow->enter > now)
                flow_event(fabric, flow->enter, FLOW_ENTERS, number);
            else
                enter(fabric, number);
            return;
        }
    take(fabric, number);
}

/* Open the rate of a flow; its links belong to the solution from now on. */
static void open_rate(Fabric *fabric, int32_t number) {
    const Problem *p = fabric->problem;
    Flow *flow = &fabric->flows[number];
    if (flow->free_since == fabric->solution) return;
    flow->free_since = fabric->solution;
    flow->remaining -= flow->rate * (fabric->clock->now - flow->updated);
    flow->updated = fabric->clock->now;
    fabric->open[fabric->open_count++] = number;
    for (int64_t leg = p->route_begin[flow->route]; leg < p->route_begin[flow->route + 1]; leg++) {
        int32_t link = p->route_link[leg];
        if (fabric->link_seen[link] == fabric->solution) continue;
        fabric->link_seen[link] = fabric->solution;
        fabric->link_place[link] = fabric->link_count;
        fabric->links[fabric->link_count++] = link;
    }
}

static void open_all_on(Fabric *fabric, int32_t link) {
    const Members *members = &fabric->members[link];
    for (int32_t k = 0; k < members->size; k++) open_rate(fabric, members->flow[k]);
}

/* For each link of the solution, sum up the rates of fixed flows (`taken`) and the weights of open flows (`load`). The
 * remaining capacity (`room`) is what open flows share. */
static void leave_room(Fabric *fabric) {
    const Problem *p = fabric->problem;
    for (int32_t k = 0; k < fabric->link_count; k++) {
        const Members *members = &fabric->members[fabric->links[k]];
        fabric->load[k] = fabric->taken[k] = 0.0;
        for (int32_t i = 0; i < members->size; i++) {
            const Flow *flow = &fabric->flows[members->flow[i]];
            double weight = p->route_weight[p->route_begin[flow->route] + members->leg[i]];
            if (flow->free_since == fabric->solution)
                fabric->load[k] += weight;
            else
                fabric->taken[k] += weight * flow->rate;
        }
        double room = fabric->capacity[fabric->links[k]] - fabric->taken[k];
        fabric->room[k] = room > 0.0 ? room : 0.0;
    }
}

/* Max-min fair rates of the open flows, by progressive filling.
 *
 * Each pass computes for each link its share = room / load, and for each flow the smallest share on its route or its
 * cap, if that is smaller. A link that has the smallest share for every flow on it is the bottleneck of these flows; a
 * flow's cap is its bottleneck if no share is smaller. All such flows are fixed in the same pass, because bottlenecks
 * that have no flow in common do not influence each other.
 *
 *     links 1: 10 B/s, 2: 20 B/s, 3: 6 B/s; flows A: 1, B: 1 + 2, C: 2, D: 3, E: 3
 *     pass 1: shares 5, 10, 3. Links 1 and 3 are bottlenecks: A = B = 5, D = E = 3.
 *     pass 2: link 2 has 15 left for C alone: C = 15.
 */
static void fill(Fabric *fabric) {
    const Problem *p = fabric->problem;
    int32_t *open = fabric->unfixed, count = fabric->open_count;
    memcpy(open, fabric->open, (size_t)count * sizeof(int32_t));
    while (count) {
        for (int32_t k = 0; k < fabric->link_count; k++) {
            fabric->share[k] = fabric->load[k] > 0.0 ? fabric->room[k] / fabric->load[k] : INFINITY;
            fabric->least_of_link[k] = INFINITY;
        }
        for (int32_t i = 0; i < count; i++) {
            int64_t route = fabric->flows[open[i]].route;
            double least = p->route_capped[route] ? p->route_rate[route] : INFINITY;
            for (int64_t leg = p->route_begin[route]; leg < p->route_begin[route + 1]; leg++) {
                double share = fabric->share[fabric->link_place[p->route_link[leg]]];
                if (share < least) least = share;
            }
            fabric->least[i] = least;
            for (int64_t leg = p->route_begin[route]; leg < p->route_begin[route + 1]; leg++) {
                int32_t k = fabric->link_place[p->route_link[leg]];
                if (least < fabric->least_of_link[k]) fabric->least_of_link[k] = least;
            }
        }
        for (int32_t i = 0; i < count; i++) {
            Flow *flow = &fabric->flows[open[i]];
            flow->bottleneck = OWN_CAP;
            fabric->fixed[i] = p->route_capped[flow->route] && p->route_rate[flow->route] <= fabric->least[i];
            int64_t end = p->route_begin[flow->route + 1];
            for (int64_t leg = p->route_begin[flow->route]; !fabric->fixed[i] && leg < end; leg++) {
                int32_t k = fabric->link_place[p->route_link[leg]];
                fabric->fixed[i] = fabric->least_of_link[k] >= fabric->share[k];
                flow->bottleneck = p->route_link[leg];
            }
        }
        int32_t left = 0;
        for (int32_t i = 0; i < count; i++) {
            int32_t number = open[i];
            if (!fabric->fixed[i]) {
                open[left++] = number;
                continue;
            }
            Flow *flow = &fabric->flows[number];
            flow->rate = fabric->least[i];
            for (int64_t leg = p->route_begin[flow->route]; leg < p->route_begin[flow->route + 1]; leg++) {
                int32_t k = fabric->link_place[p->route_link[leg]];
                /* Rounding may leave a room slightly below zero. */
                double room = fabric->room[k] - flow->rate * p->route_weight[leg];
                fabric->room[k] = room > 0.0 ? room : 0.0;
                fabric->load[k] -= p->route_weight[leg];
                fabric->taken[k] += flow->rate * p->route_weight[leg];
            }
        }
        /* Impossible: the smallest share or cap of all always fixes its flows. */
        if (left == count) {
            fabric->broken = 1;
            return;
        }
        count = left;
    }
}

/* Open rates of fixed flows that the solution violates, and return 1 if there are any.
 *
 * A fixed flow on a link of the solution is opened in two cases. It can be faster: the link was its bottleneck, and the
 * link is no longer full or carries a faster flow. It takes too much: the link holds back an open flow that is slower.
 */
static int unfair(Fabric *fabric) {
    int32_t open_before = fabric->open_count, links = fabric->link_count;
    for (int32_t k = 0; k < links; k++) {
        int32_t link = fabric->links[k];
        const Members *members = &fabric->members[link];
        int full = fabric->taken[k] >= fabric->capacity[link] * (1.0 - SUM_OF_RATES);
        double fastest = 0.0, held_back = INFINITY;
        for (int32_t i = 0; i < members->size; i++) {
            const Flow *flow = &fabric->flows[members->flow[i]];
            if (flow->rate > fastest) fastest = flow->rate;
            if (flow->free_since == fabric->solution && flow->bottleneck == link && flow->rate < held_back)
                held_back = flow->rate;
        }
        for (int32_t i = 0; i < members->size; i++) {
            const Flow *flow = &fabric->flows[members->flow[i]];
            if (flow->free_since == fabric->solution) continue;
            int wronged = flow->bottleneck == link && (!full || flow->rate < fastest * (1.0 - SUM_OF_RATES));
            if (wronged || flow->rate > held_back * (1.0 + SUM_OF_RATES)) open_rate(fabric, members->flow[i]);
        }
    }
    return fabric->open_count > open_before;
}

/* Grow the scratch arrays to the number of flows. */
static void make_room(Fabric *fabric) {
    if (fabric->open_room >= fabric->flow_room) return;
    fabric->open = grown(fabric->open, fabric->flow_room, sizeof(int32_t), &fabric->broken);
    fabric->unfixed = grown(fabric->unfixed, fabric->flow_room, sizeof(int32_t), &fabric->broken);
    fabric->least = grown(fabric->least, fabric->flow_room, sizeof(double), &fabric->broken);
    fabric->fixed = grown(fabric->fixed, fabric->flow_room, 1, &fabric->broken);
    fabric->open_room = fabric->flow_room;
}

/* Solve the rates that the moment's changes can affect, and schedule the ends of the flows concerned. */
static void solve(Fabric *fabric) {
    fabric->solving = 0;
    make_room(fabric);
    if (fabric->broken) return;
    fabric->solution++;
    fabric->open_count = fabric->link_count = 0;
    for (int32_t i = 0; i < fabric->dirty_count; i++) {
        fabric->is_dirty[fabric->dirty[i]] = 0;
        open_all_on(fabric, fabric->dirty[i]);
    }
    fabric->dirty_count = 0;
    int rounds = 0;
    do {
        /* The change reaches far: open the whole connected component. open_rate appends the links of each opened flow,
         * thus link_count grows during this loop. */
        if (++rounds > MOST_ROUNDS)
            for (int32_t k = 0; k < fabric->link_count; k++) open_all_on(fabric, fabric->links[k]);
        leave_room(fabric);
        fill(fabric);
    } while (!fabric->broken && unfair(fabric));
    for (int32_t i = 0; i < fabric->open_count && !fabric->broken; i++) {
        Flow *flow = &fabric->flows[fabric->open[i]];
        double left = flow->remaining > 0.0 ? flow->remaining : 0.0;
        flow->version++;
        /* A flow on a link that is down waits for the link's return, unless it has no byte left to send. */
        if (flow->rate > 0.0 || left == 0.0)
            flow_event(fabric, fabric->clock->now + (left > 0.0 ? left / flow->rate : 0.0), SHARED_ENDS,
                       fabric->open[i]);
    }
}

/* Avoid the links of a detour from now on: flows on these links are sent again from their beginning, on their present
 * routes. A flow whose present route takes such a link, too, has no other route and stays. */
static void reroute(Fabric *fabric, int32_t detour) {
    const Problem *p = fabric->problem;
    if (detour == fabric->detour) return;
    for (int64_t k = p->avoided_begin[fabric->detour]; k < p->avoided_begin[fabric->detour + 1]; k++)
        fabric->avoided[p->avoided_link[k]] = 0;
    fabric->detour = detour;
    for (int64_t k = p->avoided_begin[detour]; k < p->avoided_begin[detour + 1]; k++) fabric->avoided[p->avoided_link[k]] = 1;
    for (int64_t k = p->avoided_begin[detour]; k < p->avoided_begin[detour + 1] && !fabric->broken; k++) {
        Members *members = &fabric->members[p->avoided_link[k]];
        for (int32_t i = 0; i < members->size && !fabric->broken;) {
            int32_t number = members->flow[i];
            Flow *flow = &fabric->flows[number], moved = *flow;
            choose_route(fabric, &moved);
            if (is_blocked(fabric, &moved)) {
                i++;
                continue;
            }
            /* The last member fills the place of the flow that leaves. */
            leave(fabric, number);
            flow->version++;
            flow->route = moved.route;
            flow->detour = detour;
            enter(fabric, number);
        }
    }
    if (fabric->dirty_count) solve_soon(fabric);
}

/* Give a link a new capacity from now on; flows on it get new rates at the end of the moment. */
static void change_capacity(Fabric *fabric, int32_t link, double capacity) {
    fabric->capacity[link] = capacity;
    if (!fabric->members[link].size) return;
    mark_dirty(fabric, link);
    solve_soon(fabric);
}

#endif
