/* Streams run one operation at a time, in order. Kernels run slower while a collective of their rank is in flight. */
#ifndef STREAMS_H
#define STREAMS_H
#include "play.h"

/* ---- kernels, slowed beside communication ---- */

/* Time that a whole kernel takes at the present speed, beside communication or not [s]; infinite on a dead GPU. */
static double pace_of(const Play *play, int32_t rank, const Kernels *kernels, int beside) {
    double pace = beside ? kernels->slowed : kernels->alone, speed = play->speed[rank];
    if (!kernels->on_gpu || speed == 1.0 || pace == 0.0) return pace;
    return speed > 0.0 ? pace / speed : INFINITY;
}

/* Schedule the end of a stream's kernel at the present pace; the earlier end becomes stale. */
static void time_kernels(Play *play, int32_t rank, int32_t stream) {
    Kernels *kernels = &play->kernels[play->stream_base[rank] + stream];
    double pace = pace_of(play, rank, kernels, play->in_flight[rank] > 0);
    double left = kernels->left > 0.0 ? kernels->left : 0.0;
    kernels->version++;
    if (left == 0.0 || pace < INFINITY)
        happen(play, play->clock.now + (left > 0.0 ? left * pace : 0.0), KERNEL_ENDS, rank, stream, kernels->version);
}

/* Record the progress of a rank's running kernels at the pace until now, which is about to change. */
static void settle_kernels(Play *play, int32_t rank, int beside) {
    const Problem *p = play->p;
    int32_t list = p->list_of[rank], streams = (int32_t)(p->stream_begin[list + 1] - p->stream_begin[list]);
    double now = play->clock.now;
    for (int32_t stream = 0; stream < streams; stream++) {
        Kernels *kernels = &play->kernels[play->stream_base[rank] + stream];
        if (!kernels->running) continue;
        double pace = pace_of(play, rank, kernels, beside);
        /* A pace of 0 means that the kernel takes no time: nothing is left. */
        kernels->left -= pace > 0.0 ? (now - kernels->since) / pace : kernels->left;
        kernels->since = now;
    }
}

/* Schedule the ends of a rank's running kernels anew, at the present pace. */
static void time_all_kernels(Play *play, int32_t rank) {
    const Problem *p = play->p;
    int32_t list = p->list_of[rank], streams = (int32_t)(p->stream_begin[list + 1] - p->stream_begin[list]);
    for (int32_t stream = 0; stream < streams; stream++)
        if (play->kernels[play->stream_base[rank] + stream].running) time_kernels(play, rank, stream);
}

/* Count a collective of a rank in (+1) or out (-1). If the first one begins or the last one ends, all running kernels
 * of the rank change their pace:
 *
 *     alone = 2 s, slowed = 4 s, a collective is in flight from t = 1 to t = 2
 *     t = 0: left 1.00, end expected at 2
 *     t = 1: left 0.50, end expected at 1 + 0.50 * 4 = 3
 *     t = 2: left 0.25, end expected at 2 + 0.25 * 2 = 2.5
 */
static void communicate(Play *play, int32_t rank, int change) {
    int was = play->in_flight[rank] > 0;
    play->in_flight[rank] += change;
    if (was == (play->in_flight[rank] > 0)) return;
    settle_kernels(play, rank, was);
    time_all_kernels(play, rank);
}

/* Change the speed of a rank's GPU to a factor of its usual speed; 0 stops its kernels. */
static void change_speed(Play *play, int32_t rank, double speed) {
    settle_kernels(play, rank, play->in_flight[rank] > 0);
    play->speed[rank] = speed;
    time_all_kernels(play, rank);
}

/* Start a kernel. Stragglers, noise and the rank's own work stretch both durations alike. */
static void start_kernels(Play *play, int32_t rank, int32_t stream, int32_t place, int64_t op) {
    const Problem *p = play->p;
    double speed = p->op_flags[op] & ON_GPU ? p->speed[rank] : 1.0, noise = 1.0;
    if (p->noise_compute)
        noise = factor(p->noise_compute, noise_state(p->seed, (uint64_t)p->noise_rank[rank], (uint64_t)place), 0);
    double stretch = noise / speed;
    if (p->op_work[op] >= 0) stretch *= p->work[(int64_t)p->op_work[op] * p->ranks + rank];
    Kernels *kernels = &play->kernels[play->stream_base[rank] + stream];
    kernels->alone = p->op_alone[op] * stretch;
    kernels->slowed = p->op_contended[op] * stretch;
    kernels->on_gpu = (p->op_flags[op] & ON_GPU) != 0;
    kernels->left = 1.0;
    kernels->since = play->clock.now;
    kernels->running = 1;
    time_kernels(play, rank, stream);
}

/* ---- streams of operations ---- */

/* Record the end of an operation and free its stream. */
static void end_op(Play *play, int32_t rank, int32_t place, int64_t op) {
    const Problem *p = play->p;
    int64_t at = p->out_begin[rank] + place;
    play->ended[at] = 1;
    play->out->end[at] = play->clock.now;
    play->out->ended++;
    play->busy[play->stream_base[rank] + p->op_stream[op]] = 0;
    if (p->op_kind[op] == COLLECTIVE && p->op_flags[op] & TAKES_SMS) communicate(play, rank, -1);
}

/* End the operation in progress on a stream, then start all operations of the rank that have become free to start. */
static void stream_done(Play *play, int32_t rank, int32_t stream) {
    const Problem *p = play->p;
    int64_t own = p->stream_begin[p->list_of[rank]] + stream;
    int32_t place = p->queue[p->queue_begin[own] + play->position[play->stream_base[rank] + stream] - 1];
    end_op(play, rank, place, op_of(play, rank, place));
    settle(play, rank);
}

#endif
