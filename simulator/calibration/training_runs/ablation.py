"""Does each number and fact of a framework earn its place? Its rows are played without it, everything else as it is.

Rule: nothing is fitted again, so what is seen is the whole weight of a number; llm-foundry's, fitted together,
are taken away and the others fitted again in `checks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from simulator.calibration.machines.records import constants
from simulator.calibration.training_runs.playing import PlayedRow, play_on_cluster, play_rows
from simulator.calibration.training_runs.rows import MeasuredRow, cluster_of
from simulator.calibration.training_runs.summary import Errors, apart, errors
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.step.framework import BARE, Framework

NUMBERS: Final = tuple(f.name for f in fields(Framework) if isinstance(getattr(BARE, f.name), float))
FACTS: Final = tuple(f.name for f in fields(Framework) if isinstance(getattr(BARE, f.name), bool))
SUSTAINED: Final = "sustained"
# At most so many rows of a framework are played, each k-th of them: enough for a median.
_MOST_ROWS: Final = 20
# A constant stands behind a row if the row's time moves so much when it is changed by this factor.
_CHANGE: Final = 1.1
_MOVES: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Taken:
    """Errors of a framework's rows without one of its numbers or facts.

    Attributes
    ----------
    framework, what : str
        What was taken away; empty for nothing.
    time : Errors
        Of steps' times.
    memory : Errors or None
        Of peak memory; None where no row has it.
    """

    framework: str
    what: str
    time: Errors
    memory: Errors | None


def own(framework: Framework) -> tuple[str, ...]:
    """Numbers and facts that differ from those of bare kernels."""
    found = [name for name in (*NUMBERS, *FACTS) if getattr(framework, name) != getattr(BARE, name)]
    return (*found, *([SUSTAINED] if framework.sustained else []))


def without(framework: Framework, what: str) -> Framework:
    """The framework with one number or fact as bare kernels have it."""
    return replace(framework, **{what: getattr(BARE, what)})


def ablation(outcomes: Sequence[PlayedRow], known: Mapping[str, Framework], jobs: int = 2) -> Iterator[Taken]:
    """For each framework its rows as they are, then without each of its numbers and facts."""
    for name, framework in known.items():
        played = _some(outcomes, name)
        if not played:
            continue
        yield _taken(name, "", played)
        for what in own(framework):
            rows = [outcome.row for outcome in played]
            yield _taken(name, what, play_rows(rows, {name: without(framework, what)}, jobs))


def _some(outcomes: Sequence[PlayedRow], name: str) -> list[PlayedRow]:
    disturbed = apart([outcome.row for outcome in outcomes])
    whole = [o for place, o in enumerate(outcomes) if o.row.timed and place not in disturbed]
    mine = [outcome for outcome in whole if outcome.row.framework == name]
    return mine[:: max(1, -(-len(mine) // _MOST_ROWS))]


def _taken(name: str, what: str, played: Sequence[PlayedRow]) -> Taken:
    peaks = [outcome.memory_error for outcome in played if outcome.memory_error is not None]
    time = errors(what, [outcome.time_error for outcome in played])
    return Taken(name, what, time, errors(what, peaks) if peaks else None)


def behind(row: MeasuredRow, framework: Framework) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Numbers of a framework, and constants of a machine's collectives, on which the time of a row depends.

    Those that move it by a thousandth or more when they change by a tenth; a machine's constant that several of its
    sections have in common is one.
    """
    cluster = cluster_of(row.gpu, row.gpus, (), row.topology)
    as_it_is = play_on_cluster(cluster, row, framework).step_time

    def moves(other: Cluster, changed: Framework) -> bool:
        return abs(play_on_cluster(other, row, changed).step_time / as_it_is - 1.0) >= _MOVES

    numbers = [
        name
        for name in NUMBERS
        if getattr(framework, name) != getattr(BARE, name)
        and moves(cluster, replace(framework, **{name: getattr(framework, name) * _CHANGE}))
    ]
    sections = {**{f"{op} in a node": one for op, one in cluster.in_node.items()}, **cluster.collectives}
    names = {(name, value): f"{op} {name}" for op, one in sections.items() for name, value in constants(one).items()}
    machine = [told for (name, value), told in names.items() if moves(_changed(cluster, name, value), framework)]
    return (*numbers, *([SUSTAINED] if framework.sustained else [])), tuple(machine)


def _changed(cluster: Cluster, name: str, value: float) -> Cluster:
    """The cluster with a constant of its collectives changed wherever it has this value."""

    def one(machine: MachineCollective) -> MachineCollective:
        if getattr(machine, name) != value:
            return machine
        changed: Any = round(value * _CHANGE) if name == "chunks" else value * _CHANGE
        return replace(machine, **{name: changed})

    collectives = {operation: one(machine) for operation, machine in cluster.collectives.items()}
    in_node = {operation: one(machine) for operation, machine in cluster.in_node.items()}
    return replace(cluster, collectives=collectives, in_node=in_node)
