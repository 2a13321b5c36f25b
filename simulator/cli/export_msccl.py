"""`simulator export-msccl`: writes a collective algorithm as an MSCCL program."""

from __future__ import annotations

from pathlib import Path

import typer

from simulator.basics.atomic_files import write_atomically
from simulator.basics.errors import ScenarioError
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.algorithm_files import find_algorithm
from simulator.collectives.msccl.write import exported

# Elements of the array in each rank's part: many, so that every algorithm cuts into its usual number of pieces.
_PART = 2**20


def write(algorithm: str, operation: str, ranks: int, group_size: int | None, out: Path) -> None:
    """Write an algorithm's program for an operation over `ranks` ranks to the file `out`.

    `group_size` is the number of ranks in a node, for algorithms that need nodes.
    """
    found = find_algorithm(algorithm)
    if operation not in found.plans:
        raise ScenarioError(f"OPERATION: got {operation!r}; {algorithm} has {', '.join(found.operations)}")
    if group_size is not None and ranks % group_size:
        raise ScenarioError(f"--group-size: got {group_size}; must divide the {ranks} ranks")
    firsts = range(0, ranks, group_size) if group_size else ()
    nodes = tuple(tuple(range(first, first + (group_size or 0))) for first in firsts)
    try:
        schedule = found.plans[operation](CollectiveRequest(operation, ranks, ranks * _PART, nodes=nodes))
    except ValueError as error:
        raise ScenarioError(f"{algorithm}: {error}") from error
    write_atomically(out, exported(schedule))
    typer.echo(f"{out}: {schedule.length()} transfers of {algorithm} {operation} over {ranks} ranks")
