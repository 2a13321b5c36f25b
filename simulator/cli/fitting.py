"""`simulator fit`: a machine's constants from its own measurements."""

from __future__ import annotations

from pathlib import Path

import typer

from simulator.basics.atomic_files import write_atomically
from simulator.calibration.machines import fit, fit_text, to_yaml


def show(
    path: Path,
    topology: str | None,
    world_size: int | None,
    operation: str | None,
    algorithm: str | None,
    out: Path | None,
) -> None:
    """Fit, tell, and print (or write) the YAML section."""
    fitted = fit(path, topology=topology, world_size=world_size, operation=operation, algorithm=algorithm)
    typer.echo(fit_text(fitted), err=out is None)
    if out is None:
        typer.echo(to_yaml(fitted), nl=False)
    else:
        write_atomically(out, to_yaml(fitted))
        typer.echo(f"written: {out}")
