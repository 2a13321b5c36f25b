"""Which engine plays a program: the one that is asked for, or the one that gives the answer soonest.

Rule: both give one answer. Where arrays are carried the events engine plays: the order in which transfers end is theirs
to the last bit. Without a compiled core it plays everything, later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final, Literal

from simulator.basics.errors import SimulationError, TooLargeError
from simulator.basics.this_machine import lacking
from simulator.cluster.cluster import Cluster
from simulator.engine import events
from simulator.engine.compiled import engine as compiled
from simulator.engine.compiled import library
from simulator.engine.jitter import Jitter
from simulator.engine.recording import refuse_unfit_at_start
from simulator.payload.carry import Payload, carry_all
from simulator.records.program import Program
from simulator.records.timeline import Timeline

Engine = Literal["auto", "events", "compiled"]
# Operations that are kept without being asked for.
_MOST_KEPT: Final = 100_000
# Transfers that the events engine follows without being asked for it: beyond, they need tens of GiB.
_MOST_UNASKED: Final = 100_000_000
# Seen on one core (docs/speed.md, benchmarks/events.py), rounded up; flows that share links take longer, and more.
SECONDS_A_TRANSFER: Final = 2e-6
BYTES_A_TRANSFER: Final = 130


def whose(keep: Collection[int] | None, program: Program, operations: int) -> Collection[int] | None:
    """Ranks whose operations are kept of so many: those asked for, else all.

    Where these are too many it is the first rank of each list of operations, as of each stage of a pipeline; where even
    these are too many rank 0.
    """
    if keep is not None or operations <= _MOST_KEPT:
        return keep
    lists = program.lists
    few = sum(map(len, lists.lists)) <= _MOST_KEPT
    return tuple(lists.list_of.index(number) for number in range(len(lists.lists))) if few else (0,)


def chosen(engine: Engine, *, arrays: bool) -> tuple[Literal["events", "compiled"], str]:
    """Which engine plays, and why."""
    if engine != "auto":
        return engine, "as asked"
    if arrays:
        return "events", "it carries arrays"
    return ("compiled", "only times are asked for") if library.is_there() else ("events", "there is no compiled core")


def play(
    engine: Engine,
    program: Program,
    cluster: Cluster,
    *,
    jitter: Jitter | None = None,
    payloads: Mapping[str, Payload] | None = None,
    limit_memory: bool = True,
    allocator: str | None = None,
    keep: Collection[int] | None = None,
) -> Timeline:
    """Play a program; parameters and result are those of `events.execute`.

    Raises
    ------
    SimulationError
        As there; where the compiled engine is asked for and there is no core; and where more transfers would have to be
        followed than this machine can hold, or, unasked, than an hour allows.
    """
    by_events = partial(
        events.execute, program, cluster,
        jitter=jitter, payloads=payloads, limit_memory=limit_memory, allocator=allocator, keep=keep,
    )  # fmt: skip
    if limit_memory:
        refuse_unfit_at_start(program, cluster, allocator)
    refuse_too_many(engine, program, payload=bool(payloads))
    if chosen(engine, arrays=bool(payloads))[0] == "events":
        if engine == "auto" and not payloads:
            _refuse_endless(program)
        return by_events()
    timeline = compiled.execute(
        program, cluster, jitter=jitter, limit_memory=limit_memory, allocator=allocator, keep=keep,
        patient=engine == "compiled",
    )  # fmt: skip
    if payloads:
        carry_all(program, timeline, payloads)
    return timeline


def refuse_too_many(engine: Engine, program: Program, *, payload: bool) -> None:
    """Raise SimulationError where more transfers must be followed than fit into memory; nothing is written out yet."""
    if engine != "events" and not payload:
        return
    transfers = _followed(program)
    if engine == "events":
        _refuse_larger_than_memory(transfers, "engine: ", "engine: auto")
    elif engine == "auto":
        _refuse_larger_than_memory(transfers, "payload: with real arrays ", "payload: false")


def _refuse_endless(program: Program) -> None:
    """Nobody starts hours of events, or more than fit into memory, without having asked for it."""
    transfers, reason = _followed(program), "engine: there is no compiled core; "
    _refuse_larger_than_memory(transfers, reason, "collectives: closed_form")
    if transfers > _MOST_UNASKED:
        raise SimulationError(
            f"{reason}the events engine would have to follow {_effort(transfers)}; write engine: events to let it, or "
            "collectives: closed_form"
        )


def _refuse_larger_than_memory(transfers: int, reason: str, instead: str) -> None:
    short = lacking(transfers * BYTES_A_TRANSFER)
    if short:
        raise TooLargeError(
            f"{reason}the events engine would have to follow {_effort(transfers)}, which take about {short}; "
            f"write {instead}, or take fewer ranks"
        )


def _followed(program: Program) -> int:
    """Transfers that the events engine would have to follow."""
    lists = program.lists
    return sum(
        times * sum(op.schedule.length() for op in members if op.duration is None)
        for times, members in zip(lists.times, lists.kinds, strict=True)
    )


def _effort(transfers: int) -> str:
    return f"{transfers:.3g} transfers, about {transfers * SECONDS_A_TRANSFER / 3600:.2g} hours"
