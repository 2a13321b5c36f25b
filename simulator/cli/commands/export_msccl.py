"""Write a collective algorithm as a program of MSCCL (XML).

The program is read back and proved before it is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.basics.atomic_files import write_atomically
from simulator.basics.errors import ScenarioError
from simulator.cli.options import NoPlugins
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.algorithm_files import find_algorithm
from simulator.collectives.msccl.xml_writer import exported

# Elements of the array in each rank's part: many, so that every algorithm cuts into its usual number of pieces.
_PART = 2**20


def command(
    algorithm: Annotated[str, typer.Argument(metavar="ALGORITHM", help="Algorithm: a name, or the path of a file.")],
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="Operation: all_reduce, all_gather, ...")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="XML file to write.")],
    ranks: Annotated[int, typer.Option("--ranks", min=2, max=256, metavar="N", help="Number of ranks.")] = 8,
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks in a node, for hierarchical and multi_ring.")
    ] = None,
    no_plugins: NoPlugins = False,
) -> None:
    record = find_algorithm(algorithm)
    if operation not in record.plans:
        raise ScenarioError(f"OPERATION: got {operation!r}; {algorithm} has {', '.join(record.operations)}")
    if group_size is not None and ranks % group_size:
        raise ScenarioError(f"--group-size: got {group_size}; must divide the {ranks} ranks")
    firsts = range(0, ranks, group_size) if group_size else ()
    nodes = tuple(tuple(range(first, first + (group_size or 0))) for first in firsts)
    try:
        schedule = record.plans[operation](CollectiveRequest(operation, ranks, ranks * _PART, nodes=nodes))
    except ValueError as error:
        raise ScenarioError(f"{algorithm}: {error}") from error
    write_atomically(out, exported(schedule))
    typer.echo(f"{out}: {schedule.length()} transfers of {algorithm} {operation} over {ranks} ranks")
