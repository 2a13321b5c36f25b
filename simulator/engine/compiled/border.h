/* The border of the core: every entry of a problem lies inside the array that it indexes, or the problem is refused.
 *
 * Nothing behind the border checks an index again. fields.py has compared the lengths of arrays that belong together.
 * Numbers relative to a segment (places in a list, rows of a shape, routes of a routing) must lie in this segment.
 */
#ifndef BORDER_H
#define BORDER_H

#include <stdlib.h>
#include "problem.h"

/* An upper bound on first numbers of transfers, so that adding steps of a stride cannot overflow. */
#define FAR ((int64_t)1 << 62)

/* Return 1 if least <= entry < bound; otherwise note the array and its entry, and return 0. */
static inline int lies_in(Result *out, const char *array, int64_t entry, int64_t least, int64_t bound) {
    if (entry >= least && entry < bound) return 1;
    out->outside = array;
    out->entry = entry;
    return 0;
}

/* Return 1 if the offsets divide `whole` entries into segments. */
static int divides(Result *out, const char *array, const int64_t *begin, int64_t segments, int64_t whole) {
    if (!lies_in(out, array, begin[0], 0, 1) || !lies_in(out, array, begin[segments], whole, whole + 1)) return 0;
    for (int64_t i = 0; i < segments; i++)
        if (!lies_in(out, array, begin[i + 1], begin[i], whole + 1)) return 0;
    return 1;
}

#define NEED(condition) do { if (!(condition)) return 0; } while (0)
#define WITHIN(name, entry, least, bound) NEED(lies_in(out, #name, (entry), (least), (bound)))
#define EACH(name, count, least, bound) \
    for (int64_t each = 0; each < (count); each++) WITHIN(name, p->name[each], least, bound)
#define DIVIDES(name, segments, whole) NEED(divides(out, #name, p->name, n->segments, n->whole))

/* Offsets, and numbers of things of the whole problem. */
static int tables_inside(const Problem *p, const Lengths *n, Result *out) {
    DIVIDES(change_link_begin, changes, changed_links);
    DIVIDES(change_rank_begin, changes, changed_ranks);
    DIVIDES(avoided_begin, detours, avoided);
    DIVIDES(list_begin, lists, operations);
    DIVIDES(stream_begin, lists, streams);
    DIVIDES(queue_begin, streams, queued);
    DIVIDES(after_begin, operations, awaited);
    DIVIDES(group_begin, groups, members);
    DIVIDES(shape_row, shapes, rows);
    DIVIDES(shape_part, shapes, parts);
    DIVIDES(initial_begin, shapes, starters);
    DIVIDES(initial_list, starters, started);
    DIVIDES(inner_begin, rows, inner);
    DIVIDES(outer_begin, rows, outer);
    DIVIDES(route_begin, routes, taken);
    DIVIDES(busy_begin, routed, busy);
    EACH(change_link, n->changed_links, 0, n->links);
    EACH(change_rank, n->changed_ranks, 0, n->ranks);
    EACH(change_detour, n->changes, 0, n->detours);
    EACH(avoided_link, n->avoided, 0, n->links);
    EACH(list_of, n->ranks, 0, n->lists);
    EACH(group_rank, n->members, 0, n->ranks);
    EACH(route_link, n->taken, 0, n->links);
    EACH(busy_link, n->busy, 0, n->links);
    EACH(size_begin, n->tables, 0, n->sized + 1);
    for (int64_t i = 0; i < n->instances; i++) {
        WITHIN(group, p->group[i], 0, n->groups);
        WITHIN(shape, p->shape[i], -1, n->shapes);
        WITHIN(sizes, p->sizes[i], p->shape[i] < 0 ? -1 : 0, n->tables);
        WITHIN(routing, p->routing[i], p->shape[i] < 0 ? -1 : 0, n->routings);
        WITHIN(log_begin, p->log_begin[i], -1, n->logged + 1);
    }
    for (int64_t i = 0; i < n->routes; i++)
        WITHIN(longest_route, p->route_begin[i + 1] - p->route_begin[i], 0, p->longest_route + 1);
    for (int64_t i = 0; i < n->routed; i++)
        WITHIN(routing_route, p->routing_route[i], i ? p->routing_route[i - 1] : 0, n->routes + 1);
    return 1;
}

/* Operations, their streams and results. `widest` has an entry per table of process groups, -1 at first. */
static int lists_inside(const Problem *p, const Lengths *n, Result *out, int64_t *widest) {
    EACH(member_group, n->memberships, 0, n->instances + 1);
    for (int64_t list = 0; list < n->lists; list++) {
        int64_t places = p->list_begin[list + 1] - p->list_begin[list];
        int64_t streams = p->stream_begin[list + 1] - p->stream_begin[list];
        for (int64_t k = p->queue_begin[p->stream_begin[list]]; k < p->queue_begin[p->stream_begin[list + 1]]; k++)
            WITHIN(queue, p->queue[k], 0, places);
        for (int64_t op = p->list_begin[list]; op < p->list_begin[list + 1]; op++) {
            WITHIN(op_kind, p->op_kind[op], 0, MEMORY + 1);
            WITHIN(op_stream, p->op_stream[op], 0, streams);
            WITHIN(op_work, p->op_work[op], -1, n->worked / (n->ranks ? n->ranks : 1));
            for (int64_t k = p->after_begin[op]; k < p->after_begin[op + 1]; k++) WITHIN(after, p->after[k], 0, places);
            if (p->op_kind[op] != COLLECTIVE) continue;
            WITHIN(op_member, p->op_member[op], 0, n->memberships / (n->ranks ? n->ranks : 1));
            WITHIN(op_instance, p->op_instance[op], 0, n->instances);
            const int32_t *group = p->member_group + p->op_member[op] * n->ranks;
            const int32_t *place = p->member_place + p->op_member[op] * n->ranks;
            int64_t *most = widest + p->op_member[op];
            if (*most < 0) {
                for (int64_t rank = 0; rank < n->ranks; rank++)
                    if (group[rank] > *most) *most = group[rank];
                WITHIN(member_group, p->op_instance[op] + *most, 0, n->instances);
                /* Families of one table have equal groups: the first operation of each table speaks for all. */
                for (int64_t rank = 0; rank < n->ranks; rank++) {
                    int32_t own = p->group[p->op_instance[op] + group[rank]];
                    WITHIN(member_place, place[rank], 0, p->group_begin[own + 1] - p->group_begin[own]);
                }
            }
            WITHIN(member_group, p->op_instance[op] + *most, 0, n->instances);
        }
    }
    for (int64_t rank = 0; rank < n->ranks; rank++) {
        int64_t places = p->list_begin[p->list_of[rank] + 1] - p->list_begin[p->list_of[rank]];
        WITHIN(out_begin, p->out_begin[rank], 0, n->results + 1 - places);
    }
    return 1;
}

/* One row of a shape without its route and its numbers of transfers; `first` is the first row of the shape. */
static int row_inside(const Problem *p, const Lengths *n, Result *out, int64_t row, int64_t first, int64_t rows,
                      int64_t participants) {
    int32_t times = p->row_times[row];
    WITHIN(row_src, p->row_src[row], 0, participants);
    WITHIN(row_dst, p->row_dst[row], 0, participants);
    WITHIN(row_next, p->row_next[row], -1, rows);
    WITHIN(row_exit, p->row_exit[row], -1, rows);
    WITHIN(row_next_shift, p->row_next_shift[row], -1, 2);
    WITHIN(row_waits, p->row_waits[row], 0, n->inner + n->outer + 1);
    WITHIN(ring_behind, p->ring_behind[row], 0, rows);
    for (int64_t k = p->inner_begin[row]; k < p->inner_begin[row + 1]; k++) {
        WITHIN(inner_row, p->inner_row[k], 0, rows);
        WITHIN(inner_shift, p->inner_shift[k], 0, times);
    }
    for (int64_t k = p->outer_begin[row]; k < p->outer_begin[row + 1]; k++) {
        WITHIN(outer_row, p->outer_row[k], 0, rows);
        WITHIN(outer_times, p->outer_times[k], 0, p->row_times[first + p->outer_row[k]]);
        WITHIN(outer_at, p->outer_at[k], 0, times);
    }
    return 1;
}

/* A shape: its parts, rows, participants and numbers of transfers. Sets the transfers that are logged, and the last
 * route. */
static int shape_inside(const Problem *p, const Lengths *n, Result *out, int64_t shape, int64_t *sent, int64_t *last) {
    int64_t first = p->shape_row[shape], rows = p->shape_row[shape + 1] - first, participants = p->participants[shape];
    int64_t covered = 0, every = 0, slots = 0;
    WITHIN(participants, participants, p->initial_begin[shape + 1] - p->initial_begin[shape],
           p->initial_begin[shape + 1] - p->initial_begin[shape] + 1);
    *sent = 0;
    *last = -1;
    for (int64_t part = p->shape_part[shape]; part < p->shape_part[shape + 1]; part++) {
        WITHIN(part_row, p->part_row[part], covered, covered + 1);
        WITHIN(part_rows, p->part_rows[part], 0, rows + 1 - covered);
        WITHIN(part_times, p->part_times[part], 0, (int64_t)1 << 31);
        covered += p->part_rows[part];
        for (int64_t row = first + p->part_row[part]; row < first + covered; row++) {
            /* A ring computed in order has one slot a row, whatever its repetitions; gates have no place in a log. */
            int64_t times = p->row_times[row];
            NEED(lies_in(out, "row_times or part_times", times, p->part_times[part], (int64_t)p->part_times[part] + 1));
            WITHIN(row_route, p->row_route[row], -1, n->routes);
            every += times;
            slots += p->part_ring[part] ? 1 : times;
            if (p->row_route[row] >= 0) *sent += times;
            if (p->row_route[row] > *last) *last = p->row_route[row];
        }
    }
    WITHIN(part_rows, covered, rows, rows + 1);
    WITHIN(shape_transfers, p->shape_transfers[shape], every, every + 1);
    WITHIN(shape_slots, p->shape_slots[shape], slots, slots + 1);
    for (int64_t part = p->shape_part[shape]; part < p->shape_part[shape + 1]; part++)
        for (int64_t row = first + p->part_row[part]; row < first + p->part_row[part] + p->part_rows[part]; row++) {
            int64_t after = p->row_times[row] - 1, in_slots = p->part_ring[part] ? 0 : after;
            NEED(row_inside(p, n, out, row, first, rows, participants));
            WITHIN(row_base, p->row_base[row], 0, FAR);
            WITHIN(row_log, p->row_log[row], 0, FAR);
            WITHIN(row_slot, p->row_slot[row], 0, FAR);
            WITHIN(row_stride, p->row_stride[row], 0, rows + 1);
            WITHIN(row_log_stride, p->row_log_stride[row], 0, rows + 1);
            WITHIN(row_slot_stride, p->row_slot_stride[row], 0, rows + 1);
            WITHIN(row_base, p->row_base[row] + after * p->row_stride[row], 0, every);
            WITHIN(row_slot, p->row_slot[row] + in_slots * p->row_slot_stride[row], 0, slots);
            if (p->row_route[row] >= 0) WITHIN(row_log, p->row_log[row] + after * p->row_log_stride[row], 0, *sent);
        }
    for (int64_t k = p->initial_list[p->initial_begin[shape]]; k < p->initial_list[p->initial_begin[shape + 1]]; k++)
        WITHIN(initial, p->initial[k], 0, rows);
    return 1;
}

/* An instance that plays a shape with `sent` logged transfers and routes up to `last`: its log, sizes and routes. */
static int instance_inside(const Problem *p, const Lengths *n, Result *out, int64_t instance, int64_t sent, int64_t last) {
    int32_t shape = p->shape[instance], sizes = p->sizes[instance];
    int64_t needed = p->size_steady[sizes] ? p->shape_row[shape + 1] - p->shape_row[shape] : sent;
    if (p->log_begin[instance] >= 0) WITHIN(log_begin, p->log_begin[instance] + sent, 0, n->logged + 1);
    WITHIN(size_begin, p->size_begin[sizes] + needed, 0, n->sized + 1);
    for (int64_t at = p->routing[instance]; at < n->routed; at += n->routings) {
        int64_t end = at + 1 < n->routed ? p->routing_route[at + 1] : n->routes;
        WITHIN(row_route, last, -1, end - p->routing_route[at]);
    }
    return 1;
}

/* Return PLAYED if the core touches no memory but its own with this problem, whose arrays have the given lengths;
 * otherwise OUTSIDE (with the array in the result) or NO_MEMORY. Called by core.py, once before core_play. */
int32_t core_border(const Problem *p, const Lengths *n, Result *out) {
    int64_t tables = n->ranks ? n->memberships / n->ranks : 0;
    int64_t *widest = malloc(((size_t)tables + 1) * sizeof(int64_t));
    int64_t *sent = malloc(((size_t)n->shapes + 1) * sizeof(int64_t));
    int64_t *last = malloc(((size_t)n->shapes + 1) * sizeof(int64_t));
    int inside = widest && sent && last;
    int32_t outcome = inside ? OUTSIDE : NO_MEMORY;
    for (int64_t i = 0; inside && i < tables; i++) widest[i] = -1;
    inside = inside && tables_inside(p, n, out) && lists_inside(p, n, out, widest);
    for (int64_t shape = 0; inside && shape < n->shapes; shape++)
        inside = shape_inside(p, n, out, shape, sent + shape, last + shape);
    for (int64_t i = 0; inside && i < n->instances; i++)
        if (p->shape[i] >= 0) inside = instance_inside(p, n, out, i, sent[p->shape[i]], last[p->shape[i]]);
    free(widest);
    free(sent);
    free(last);
    return inside ? PLAYED : outcome;
}

#endif
