"""The compiled engine: every event of a Program in compiled code, for one rank of each class where ranks are alike.

It gives the events engine's answer: to the bit where no flows share links, else to 1e-9.

From a Program to a Timeline
----------------------------
1.  `prepared` routes the collectives and, in large programs, asks `quotient` what stands for what. `partition` finds
    ranks, rows and links that behave alike by colour refinement (`colours`); `quotient` writes one of each down.
2.  `rows` writes a schedule's rounds down once, however often they are repeated; `shape` numbers them. `playable` puts
    rows, bytes and routes together. `problem` writes all of it into the flat arrays that problem.h explains
    (`operation_lists`, `instances`); `fields` has their names and types, `columns` puts them together.
3.  `core` calls the C library that `library` has built. core.c has the loop; streams.h plays streams and kernels,
    transfers.h collectives by the clock of clock.h; fabric.h shares links among flows; noise.h draws.
4.  A collective that meets no other on its links needs no clock: transfers.h computes its transfers in their order
    when the last rank has come, and hands it to the clock as soon as another one comes to its links. Rings of very
    many rounds have closed recurrences (recurrence.h).
5.  `timeline` writes the Timeline; `busiest_link` finds the bottleneck where there are too many transfers to book every
    link; `stuck` says who waits for whom where a program cannot go on.

An example: ZeRO-3 over 4,096 GPUs in nodes of 8 has 13 thousand million transfers. Refinement finds 256 classes of
ranks, so 256 ranks are played; their rings meet nobody, so each gather is computed in rounds of 256 rows, 0.6 ns each;
only the small sums at its end share cards, and are followed.

What proves what: tests/properties/test_engines.py holds the core to the events engine in thousands of drawn programs,
with and without quotient; test_fluid.py its shares to an independent solver; `simulator/basics/tolerances.py` lists
every comparison that allows for rounding.

Glossary
--------
row, repetition
    A transfer of a round, and the how-manieth time the round is played; together they are a transfer.
gate
    A row without a route: many transfers wait for it, and it for many.
instance
    A collective of one process group.
followed, in order
    Played event by event; computed in the order of its transfers' numbers, without a clock.
lane
    Instances whose flows never hold each other back, because a rank carries out one collective of a stream at a time.
link that matters
    A link on which flows can hold each other back; all others were pruned before (`engine.link_pruning`).
tap
    A route whose flows' times are noted, to see how a link was used.
class, quotient
    What behaves alike; the program in which one of each class is played.
playable
    A collective ready for the core: as it is, or one that stands for its class.
"""
