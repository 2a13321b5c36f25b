"""Check an own collective algorithm.

Checked are the proof without a clock, exact sums, bytes sent and the closed form, for several numbers of ranks. The
exit code is 1 if the algorithm breaks a law.
"""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.options import NoPlugins


def command(
    algorithm: Annotated[
        str, typer.Argument(metavar="FILE", help="File of an own collective algorithm, or an algorithm's name.")
    ],
    ranks: Annotated[
        list[int] | None,
        typer.Option("--ranks", min=2, max=64, metavar="N", help="Number of ranks. Repeatable; several if omitted."),
    ] = None,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.testing.algorithm_check import check_algorithm

    checked = check_algorithm(algorithm, ranks or None)
    for line in checked.lines():
        typer.echo(line)
    if not checked.holds:
        raise typer.Exit(1)
