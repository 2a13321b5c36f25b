"""The compiled engine: when every operation of a Program starts and ends, computed as arrays over ranks.

It gives the events engine's answer to 1e-9, or none: where it cannot prove its answer it raises `DeclinedError`, and
`engine: auto` falls back on the events engine.

From a Program to a Timeline
----------------------------
1.  `spmd` merges the ranks' lists of operations into one list of SPMD operations, with arrays over ranks.
2.  `engine` repeats a time sweep over this list until a sweep finds no contention that it did not account for.
3.  `time_sweep` takes the operations in an order of their dependencies and computes start and end of each; `kernels`
    does so for kernels that are slowed while a collective is in flight.
4.  `group_solver` computes a collective for all its process groups at once. Groups that look alike share one
    `collective_solver`, which assumes that flows share no link, except inside flow groups.
5.  `layout` cuts a collective into batches of transfers and pipelined rings before any time is known (`flow_groups`
    finds the flows of a batch that share links and solves their shares); `rounds` computes enter and end of each
    transfer of a layout, with the closed recurrences of `collectives.recurrence` and `collectives.uneven`.
6.  After the sweep, `contention_filter` names operations that could together overload a link, from bounds;
    `contention` then looks flow by flow. Operations that do contend are co-scheduled from the next sweep on.
7.  `co_scheduled` plays co-scheduled operations with the events engine, whose max-min fair shares are exact.
    `symmetry_reduction` first shrinks them: `transfer_table` and `refinement` (with `colours`) find which ranks,
    transfers and links behave alike, and `quotient_schedule` writes one of each class out.
8.  When a sweep has settled, `engine` writes the Timeline; `busiest_link` finds the bottleneck where there are too many
    transfers to book every link.

`simulator/basics/tolerances.py` lists every comparison that allows for rounding, and which rounding it covers.

Glossary
--------
SPMD operation
    What all ranks do at one index of their programs (single program, multiple data): a kernel, a memory operation, or a
    collective with all its process groups.
process group
    The ranks that take part in one collective.
flow
    A transfer while its bytes are on their route; it occupies every link of its route.
link that matters
    A link on which flows can slow each other down; all others were pruned before (`engine.link_pruning`).
demand
    What a flow takes of a link when it is alone there [B/s].
contention
    Flows on one link at one time whose demands exceed its capacity, and whose shares were not solved together.
flow group
    Flows whose shares were solved together: those of a batch that enter at one time, are connected by shared links and
    end at one time, so that their shares never change; or all that the events engine played together.
slot
    Where the enter and end of a transfer are kept while a collective is computed.
pipelined ring
    Repeated rounds in which each transfer forwards what its predecessor on the ring delivered; one step of a layout.
co-scheduled operations
    SPMD operations that contend with each other and are therefore solved together.
origin
    The time from which the times of a cached answer are counted, so that it can be reused later in the program.
ready time
    When everything that an operation waits for has ended.
colour refinement
    Repeatedly relabelling the vertices of a graph by their neighbours' labels until no class splits any more.
quotient schedule
    A collective with one participant, transfer and link for each equivalence class.
"""
