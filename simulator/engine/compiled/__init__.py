"""The compiled engine simulates every event in C, with one rank per class if ranks are alike.

Its answer equals the events engine's: to the bit if no flows share links, otherwise to 1e-9.

From a Program to a Timeline
----------------------------
1.  `prepared` routes the collectives. In large programs `partition` finds ranks, rows and links that behave alike by
    colour refinement (`colours`), and `quotient` builds a program with a single member per class.
2.  `rows` turns a schedule's rounds into a graph, with a repeated round written once; `shape` numbers the rows.
    `sized_collective` combines rows, bytes and routes. `problem` fills the flat arrays declared in problem.h
    (`operation_lists`, `instances`); `fields` lists their names and types, `columns` concatenates them.
3.  `core` calls the C library built by `library`. core.c contains the main loop; streams.h runs streams and kernels,
    transfers.h collectives, clock.h the event queue; fabric.h shares links among flows; noise.h draws noise.
4.  A collective without contention needs no clock: transfers.h computes its transfers in order when the last rank has
    come, and hands them over to the clock if another collective comes to the same links. Large rings have closed
    recurrences (recurrence.h).
5.  `timeline` builds the Timeline. `busiest_link` finds the bottleneck if there are too many transfers to book every
    link; in a deadlock, `deadlock` reports which operations wait for each other.

Example: ZeRO-3 over 4,096 GPUs in nodes with 8 GPUs has 13 thousand million transfers. Refinement finds 256 rank
classes, therefore 256 ranks are simulated. Their rings never contend, and each gather is computed in rounds with 256
rows, at 0.6 ns per row; only the small sums at the end share network cards and need the clock.

Tests: tests/properties/test_engines.py compares the core with the events engine on thousands of random programs, with
and without quotient. tests/unit/test_engine_fabric.py compares its rates with an independent solver.
`simulator/basics/tolerances.py` lists every comparison with a tolerance.

Glossary
--------
row, repetition
    A transfer of a round, and how often the round was carried out before. A pair of both is a transfer.
gate
    A row without a route: many transfers wait for the gate, and the gate waits for many transfers.
instance
    A collective of one process group.
followed, in order
    Simulated event by event; or computed in the order of transfer numbers, without a clock.
lane
    Instances whose flows never contend, because a rank runs one collective of a stream at a time.
link that matters
    A link on which flows can contend; all other links were pruned before (`engine.link_pruning`).
tap
    A route whose flow times are reported, to measure the use of a link.
class, quotient
    Vertices that behave alike; the program with one member of each class.
playable
    A collective in the form that the core needs: a collective of the program, or the representative of a class.
"""
