"""The compiled engine's entry: simulates a Program in C, with one rank per class if ranks are alike.

The answer equals the events engine's to 1e-9; it is equal to the bit if no flows share links and no closed recurrence
is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from simulator.basics.errors import SimulationError, TooLargeError
from simulator.basics.garbage import collected_later
from simulator.basics.host_memory import shortage_text
from simulator.basics.progress import stage
from simulator.cluster.cluster import Cluster
from simulator.engine.compiled.busiest_link import busiest_link, link_use, routes_over
from simulator.engine.compiled.core import run
from simulator.engine.compiled.deadlock import deadlock
from simulator.engine.compiled.missing_times import refuse_missing_times
from simulator.engine.compiled.prepared import REDUCED_FROM, CoreProgram, prepare
from simulator.engine.compiled.sized_collective import SizedCollective
from simulator.engine.compiled.timeline_builder import TimelineWriter
from simulator.engine.jitter import Jitter
from simulator.engine.program_checks import check_program
from simulator.records.program import Program
from simulator.records.timeline import Timeline

# Above this number only the busiest link's use is reported, because busy times for every link need every transfer's
# times. Logs requested later come from a second run.
_MAX_BOOKED_TRANSFERS: Final = 2**19
# The core's memory for each transfer in a followed collective [B]: 8 for `ready`, 4 for `pending`.
_BYTES_A_TRANSFER: Final = 12
# Measured on one core (docs/speed.md): 0.2 us for a flow alone, 1 us and more if many flows share.
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
    """Simulate a program on a cluster with the compiled engine; return the Timeline.

    Parameters and result equal those in `engine.events.execute`, without payload. From `reduced_from` transfers on, one
    rank per class is simulated. Unless `patient`, a simulation longer than an hour is refused.

    Raises
    ------
    DeadlockError
        As in the events engine.
    OutOfMemoryError
        As in the events engine.
    ValueError
        As in the events engine.
    SimulationError
        The core is missing, this machine has too little memory, or the simulation takes over an hour and `patient` is
        False.
    """
    check_program(program, cluster)
    prepared = prepare(program, cluster, jitter or Jitter(), reduced_from)
    _refuse_larger_than_memory(prepared)
    if not patient:
        _refuse_endless(prepared)
    # With detours the busiest link is known only after the simulation.
    booked = prepared.transfers <= _MAX_BOOKED_TRANSFERS or len(cluster.avoided) > 1
    busiest = None if booked else busiest_link(prepared)
    stage("preparing the simulation")
    problem = prepared.problem(
        logged=prepared.instances if booked else (),
        tapped=routes_over(prepared, busiest[0]) if busiest is not None else None,
    )
    times = run(problem)
    if times.stuck:
        raise deadlock(prepared, problem, times)
    refuse_missing_times(prepared, problem, times)
    links = () if busiest is None else (link_use(prepared, *busiest, times.taps),)
    stage("writing the timeline")
    writer = TimelineWriter(prepared, problem, times)
    return writer.timeline(keep, links, limit_memory=limit_memory, allocator=allocator)


def _refuse_larger_than_memory(prepared: CoreProgram) -> None:
    """Raise TooLargeError if a single collective needs more memory than this machine has."""
    largest = max((sized.rows.transfers for sized, _ in _followed(prepared)), default=0)
    short = shortage_text(largest * _BYTES_A_TRANSFER)
    if short:
        raise TooLargeError(
            f"engine: a collective of {largest:.3g} transfers whose flows share links would have to be followed, which "
            f"take about {short}; write collectives: closed_form, or take fewer ranks"
        )


def _refuse_endless(prepared: CoreProgram) -> None:
    """Raise SimulationError if flows that share links would take more than an hour."""
    transfers = sum(times * sized.rows.transfers for sized, times in _followed(prepared))
    hours = transfers * _SECONDS_A_SHARED_FLOW / 3600
    if hours > 1:
        raise SimulationError(
            f"engine: {transfers:.3g} transfers whose flows share links would have to be followed, about {hours:.2g} "
            "hours; write engine: compiled to let it, or collectives: closed_form"
        )


def _followed(prepared: CoreProgram) -> Iterator[tuple[SizedCollective, int]]:
    """Yield each collective that may need event-by-event simulation, and how often the program runs the collective."""
    for times, kind in zip(prepared.program.lists.times, prepared.kinds, strict=True):
        for sized in kind.playables:
            if sized is not None and not sized.in_order:
                yield sized, times
