"""Does each number and fact about a framework earn its place? An ablation: simulate the rows without the number.

Nothing is fitted again, therefore the result is the whole effect of a number. llm-foundry's numbers were fitted
together; for them, `checks` in simulator/calibration/training_runs removes one and fits the rest again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.calibration.machines.records import constants
from simulator.calibration.training_runs.playing import PlayedRow, play_on_cluster, play_rows
from simulator.calibration.training_runs.rows import MeasuredRow, cluster_of
from simulator.calibration.training_runs.summary import Errors, apart, errors
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.step.framework import BARE, Framework

# Numbers and facts are told apart by type; a new constant of Framework is therefore included automatically.
NUMBERS: Final = tuple(name for name, value in BARE.constants.items() if isinstance(value, float))
FACTS: Final = tuple(name for name, value in BARE.constants.items() if name == "loss" or isinstance(value, bool))
SUSTAINED: Final = "sustained"
# Most rows per framework, every k-th of them: enough for a median.
_MOST_ROWS: Final = 20
# A row depends on a constant if changing the constant by this factor moves the row's time by at least this share.
_CHANGE: Final = 1.1
_MOVES: Final = 1e-3


@dataclass(frozen=True, slots=True)
class AblationRow:
    """Errors over a framework's rows after removal of a constant or fact.

    Attributes
    ----------
    framework, what : str
        Framework, and the removed number or fact (empty for none).
    """

    framework: str
    what: str
    time: Errors  # errors of step times
    memory: Errors | None  # errors of peak memory; None without measured memory


def own(framework: Framework) -> tuple[str, ...]:
    """Return the names of a framework's constants and facts that differ from bare kernels."""
    found = [name for name in (*NUMBERS, *FACTS) if framework.constants[name] != BARE.constants[name]]
    return (*found, *([SUSTAINED] if framework.sustained else []))


def without(framework: Framework, what: str) -> Framework:
    """Return the framework with the constant or fact `what` as for bare kernels."""
    return framework.with_constants(**{what: BARE.constants[what]})


def ablation(outcomes: Sequence[PlayedRow], known: Mapping[str, Framework], jobs: int = 2) -> Iterator[AblationRow]:
    """Yield for each framework the simulated rows' errors, first with shipped constants, then without each constant and
    fact.
    """
    for name, framework in known.items():
        played = _some(outcomes, name)
        if not played:
            continue
        yield _taken(name, "", played)
        for what in own(framework):
            rows = [outcome.row for outcome in played]
            yield _taken(name, what, play_rows(rows, {name: without(framework, what)}, jobs))


def _some(outcomes: Sequence[PlayedRow], name: str) -> list[PlayedRow]:
    # Disturbed and composed rows would hide small effects.
    disturbed = apart([outcome.row for outcome in outcomes])
    whole = [o for place, o in enumerate(outcomes) if o.row.timed and place not in disturbed]
    mine = [outcome for outcome in whole if outcome.row.framework == name]
    # Ceiling division: at most _MOST_ROWS rows, spread evenly.
    return mine[:: max(1, -(-len(mine) // _MOST_ROWS))]


def _taken(name: str, what: str, played: Sequence[PlayedRow]) -> AblationRow:
    peaks = [outcome.memory_error for outcome in played if outcome.memory_error is not None]
    time = errors(what, [outcome.time_error for outcome in played])
    return AblationRow(name, what, time, errors(what, peaks) if peaks else None)


def behind(row: MeasuredRow, framework: Framework) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the framework's constants, and of the machine's collective constants, on which a measured
    row's simulated time depends.

    A constant counts if changing it by a tenth moves the time by a thousandth or more. Equal constants in several
    sections of a machine count once.
    """
    cluster = cluster_of(row.gpu, row.gpus, (), row.topology)
    as_it_is = play_on_cluster(cluster, row, framework).step_time

    def moves(other: Cluster, changed: Framework) -> bool:
        return abs(play_on_cluster(other, row, changed).step_time / as_it_is - 1.0) >= _MOVES

    numbers = [
        name
        for name in NUMBERS
        if framework.constants[name] != BARE.constants[name]
        and moves(cluster, framework.with_constants(**{name: framework.constants[name] * _CHANGE}))
    ]
    # Sections with equal values share constants of one measurement; the dict keeps each (name, value) once.
    sections = {**{f"{op} in a node": one for op, one in cluster.in_node.items()}, **cluster.collectives}
    names = {(name, value): f"{op} {name}" for op, one in sections.items() for name, value in constants(one).items()}
    machine = [told for (name, value), told in names.items() if moves(_changed(cluster, name, value), framework)]
    return (*numbers, *([SUSTAINED] if framework.sustained else [])), tuple(machine)


def _changed(cluster: Cluster, name: str, value: float) -> Cluster:
    """Return the cluster with a collective constant changed by a tenth in every section that has this value."""

    def one(machine: MachineCollective) -> MachineCollective:
        if getattr(machine, name) != value:
            return machine
        changed: Any = round(value * _CHANGE) if name == "chunks" else value * _CHANGE
        return replace(machine, **{name: changed})

    collectives = {operation: one(machine) for operation, machine in cluster.collectives.items()}
    in_node = {operation: one(machine) for operation, machine in cluster.in_node.items()}
    return replace(cluster, collectives=collectives, in_node=in_node)
