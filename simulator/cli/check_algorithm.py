"""`simulator check-algorithm`: prints which laws of collectives an algorithm keeps."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from simulator.testing.algorithm_check import check_algorithm


def show(algorithm: str, ranks: Sequence[int]) -> None:
    """Check an algorithm by name or path, and print a line for each law; exit with code 1 if a law is broken."""
    checked = check_algorithm(algorithm, ranks or None)
    for line in checked.lines():
        typer.echo(line)
    if not checked.holds:
        raise typer.Exit(1)
