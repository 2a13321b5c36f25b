"""Which engine simulates a program? The requested engine; under `auto`, the engine that answers first.

Both engines give the same answer. With real arrays, `auto` takes the events engine, because arrays follow the exact
order in which transfers end. Without a compiled core the events engine simulates everything, more slowly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal

from simulator.basics.errors import SimulationError, TooLargeError
from simulator.basics.host_memory import shortage_text
from simulator.cluster.cluster import Cluster
from simulator.collectives.payload.carry import Payload, carry_all
from simulator.engine.compiled import engine as compiled
from simulator.engine.compiled import library
from simulator.engine.jitter import Jitter
from simulator.engine.recording import refuse_unfit_at_start
from simulator.records.program import Program
from simulator.records.timeline import Timeline

Engine = Literal["auto", "events", "compiled"]
# Most operations whose spans are kept by default.
_MOST_KEPT: Final = 100_000
# Most transfers for the events engine unless it was requested: more need tens of GiB.
_MOST_UNASKED: Final = 100_000_000
# Measured on one core (docs/speed.md, benchmarks/events.py) and rounded up; flows that share links take longer and more
# memory.
SECONDS_A_TRANSFER: Final = 2e-6
BYTES_A_TRANSFER: Final = 130


def whose(keep: Collection[int] | None, program: Program, operations: int) -> Collection[int] | None:
    """Return the ranks whose operations are kept, out of `operations` in total; None for every rank.

    If `keep` is None and there are too many operations, the first rank of each list is kept (such as each pipeline
    stage), or only rank 0 if even these have too many.
    """
    if keep is not None or operations <= _MOST_KEPT:
        return keep
    lists = program.lists
    few = sum(map(len, lists.lists)) <= _MOST_KEPT
    return tuple(lists.list_of.index(number) for number in range(len(lists.lists))) if few else (0,)


def chosen(engine: Engine, *, arrays: bool) -> tuple[Literal["events", "compiled"], str]:
    """Return the engine to use, "events" or "compiled", and the reason; `arrays` is True with real arrays."""
    if engine != "auto":
        return engine, "as requested"
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
    """Simulate a program on a cluster with the chosen engine; return the Timeline.

    Parameters and result equal those in `events.execute`.

    Raises
    ------
    SimulationError
        As in `events.execute`; also if the compiled engine is requested but missing, if this machine cannot hold the
        transfers, or if the simulation would take over an hour without having been requested.
    """
    # Cheap checks first, before anything is routed or written out.
    if limit_memory:
        refuse_unfit_at_start(program, cluster, allocator)
    refuse_too_many(engine, program, payload=bool(payloads))
    if chosen(engine, arrays=bool(payloads))[0] == "events":
        # Whoever requests the events engine, or arrays, accepts the time.
        if engine == "auto" and not payloads:
            _refuse_endless(program)
        # Imported late, because most simulations need the compiled engine alone.
        from simulator.engine import events

        return events.execute(
            program, cluster, jitter=jitter, payloads=payloads, limit_memory=limit_memory, allocator=allocator,
            keep=keep,
        )  # fmt: skip
    timeline = compiled.execute(
        program, cluster, jitter=jitter, limit_memory=limit_memory, allocator=allocator, keep=keep,
        patient=engine == "compiled",
    )  # fmt: skip
    if payloads:
        carry_all(program, timeline, payloads)
    return timeline


def refuse_too_many(engine: Engine, program: Program, *, payload: bool) -> None:
    """Raise SimulationError if the events engine is needed and memory cannot hold the program's transfers.

    Transfers are only counted for the check.
    """
    if engine != "events" and not payload:
        return
    transfers = _followed(program)
    if engine == "events":
        _refuse_larger_than_memory(transfers, "engine: ", "engine: auto")
    elif engine == "auto":
        _refuse_larger_than_memory(transfers, "payload: with real arrays ", "payload: false")


def _refuse_endless(program: Program) -> None:
    """Raise SimulationError if the events engine, chosen for lack of a compiled core, needs too much time or memory."""
    transfers, reason = _followed(program), "engine: there is no compiled core; "
    _refuse_larger_than_memory(transfers, reason, "collectives: closed_form")
    if transfers > _MOST_UNASKED:
        raise SimulationError(
            f"{reason}the events engine would have to follow {_effort(transfers)}; write engine: events to let it, or "
            "collectives: closed_form"
        )


def _refuse_larger_than_memory(transfers: int, reason: str, instead: str) -> None:
    """Raise TooLargeError if this machine's memory cannot hold `transfers` transfers in the events engine.

    The message begins with `reason` and proposes the setting `instead`.
    """
    short = shortage_text(transfers * BYTES_A_TRANSFER)
    if short:
        raise TooLargeError(
            f"{reason}the events engine would have to follow {_effort(transfers)}, which take about {short}; "
            f"write {instead}, or take fewer ranks"
        )


def _followed(program: Program) -> int:
    """Return the number of transfers that the events engine would simulate for a program."""
    lists = program.lists
    return sum(
        times * sum(op.schedule.length() for op in members if op.duration is None)
        for times, members in zip(lists.times, lists.kinds, strict=True)
    )


def _effort(transfers: int) -> str:
    """Return a text with the number of transfers and the estimated hours to simulate them."""
    return f"{transfers:.3g} transfers, about {transfers * SECONDS_A_TRANSFER / 3600:.2g} hours"
