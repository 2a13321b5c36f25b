"""The compiled engine's route in: plays a Program in compiled code, one of each class where ranks are alike.

Rule: the events engine's answer, to 1e-9; to the bit where no flows share links and no closed recurrence is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from simulator.basics.errors import SimulationError, TooLargeError
from simulator.basics.garbage import collected_later
from simulator.basics.this_machine import lacking
from simulator.cluster.cluster import Cluster
from simulator.engine.compiled.busiest_link import busiest_link, link_use, routes_over
from simulator.engine.compiled.core import run
from simulator.engine.compiled.missing_times import refuse_missing_times
from simulator.engine.compiled.playable import Playable
from simulator.engine.compiled.prepared import REDUCED_FROM, Prepared, prepare
from simulator.engine.compiled.stuck import deadlock
from simulator.engine.compiled.timeline import TimelineWriter
from simulator.engine.jitter import Jitter
from simulator.engine.program_checks import check_program
from simulator.engine.progress import stage
from simulator.records.program import Program
from simulator.records.timeline import Timeline

# Beyond so many transfers only the busiest link's use is reported, because busy times of all links would need every
# transfer; when one is asked for, it is played for.
_MAX_BOOKED_TRANSFERS: Final = 2**19
# What the core holds of a transfer while its collective is followed.
_BYTES_A_TRANSFER: Final = 12
# Seen on one core (docs/speed.md): 0.2 us alone, 1 us and more where many share.
_SECONDS_A_SHARED_FLOW: Final = 0.5e-6


@collected_later()
def execute(
    program: Program,
    cluster: Cluster,
    *,
    jitter: Jitter | None = None,
    limit_memory: bool = True,
    allocator: str | None = None,
    keep: Collection[int] | None = None,
    patient: bool = True,
    reduced_from: int = REDUCED_FROM,
) -> Timeline:
    """Play a program to its end.

    Parameters and result are those of `engine.events.execute`, without payload; from `reduced_from` transfers on, ranks
    that are alike are played once, and who is not `patient` is told where it would take hours.

    Raises
    ------
    DeadlockError
    OutOfMemoryError
    ValueError
        As in the events engine.
    SimulationError
        There is no core, this machine has too little memory, or who is not patient would wait for more than an hour.
    """
    check_program(program, cluster)
    prepared = prepare(program, cluster, jitter or Jitter(), reduced_from)
    _refuse_larger_than_memory(prepared)
    if not patient:
        _refuse_endless(prepared)
    booked = prepared.transfers <= _MAX_BOOKED_TRANSFERS
    busiest = None if booked else busiest_link(prepared)
    stage("writing down")
    problem = prepared.problem(
        logged=prepared.instances if booked else (),
        tapped=routes_over(prepared, busiest[0]) if busiest is not None else None,
    )
    times = run(problem)
    if times.stuck:
        raise deadlock(prepared, problem, times)
    refuse_missing_times(prepared, problem, times)
    links = () if busiest is None else (link_use(prepared, *busiest, times.taps),)
    stage("telling what happened")
    writer = TimelineWriter(prepared, problem, times)
    return writer.timeline(keep, links, limit_memory=limit_memory, allocator=allocator)


def _refuse_larger_than_memory(prepared: Prepared) -> None:
    """Raise TooLargeError if a single collective needs more memory than this machine has."""
    largest = max((own.rows.transfers for own, _ in _followed(prepared)), default=0)
    short = lacking(largest * _BYTES_A_TRANSFER)
    if short:
        raise TooLargeError(
            f"engine: a collective of {largest:.3g} transfers whose flows share links would have to be followed, which "
            f"take about {short}; write collectives: closed_form, or take fewer ranks"
        )


def _refuse_endless(prepared: Prepared) -> None:
    """Raise SimulationError where following flows that share links would take more than an hour."""
    transfers = sum(times * own.rows.transfers for own, times in _followed(prepared))
    hours = transfers * _SECONDS_A_SHARED_FLOW / 3600
    if hours > 1:
        raise SimulationError(
            f"engine: {transfers:.3g} transfers whose flows share links would have to be followed, about {hours:.2g} "
            "hours; write engine: compiled to let it, or collectives: closed_form"
        )


def _followed(prepared: Prepared) -> Iterator[tuple[Playable, int]]:
    """What may have to be followed by the clock, and how often it is played."""
    for times, kind in zip(prepared.program.lists.times, prepared.kinds, strict=True):
        for own in kind.playables:
            if own is not None and not own.in_order:
                yield own, times
