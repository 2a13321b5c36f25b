"""`simulator fit`: a machine's constants from its own measurements."""

from __future__ import annotations

from pathlib import Path

import typer

from simulator.basics.whole_files import write_whole
from simulator.calibration.machines import fit, to_yaml, told


def show(
    path: Path,
    topology: str | None,
    world_size: int | None,
    operation: str | None,
    algorithm: str | None,
    out: Path | None,
) -> None:
    """Fit, tell, and print (or write) the YAML section."""
    found = fit(path, topology=topology, world_size=world_size, operation=operation, algorithm=algorithm)
    typer.echo(told(found), err=out is None)
    if out is None:
        typer.echo(to_yaml(found), nl=False)
    else:
        write_whole(out, to_yaml(found))
        typer.echo(f"written: {out}")
