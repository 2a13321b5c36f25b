"""`simulator fit`: fits a machine's or a GPU's constants to measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from simulator.basics.atomic_files import write_atomically
from simulator.calibration.gpu_fit import ROUNDS, GpuFit, fit_gpu, read_figures
from simulator.calibration.machines import fit_all, machine_text, to_yaml
from simulator.cli.progress import progress


def show(
    paths: Sequence[Path],
    topology: str | None,
    world_size: int | None,
    operation: str | None,
    algorithm: str | None,
    out: Path | None,
) -> None:
    """Fit a machine's constants to measured sweeps, print the result, and print or write the topology section."""
    found = fit_all(paths, topology=topology, world_size=world_size, operation=operation, algorithm=algorithm)
    _tell(machine_text(found), to_yaml(*found.fits), out)


def show_gpu(path: Path, base: str, out: Path | None) -> None:
    """Fit a GPU's kernel speeds to measurements, print the residuals, and print or write the GPU file."""
    figures = read_figures(path)
    with progress(ROUNDS, what=f"fitting to {path.name}", counted="rounds of the search") as advance:
        found = fit_gpu(figures, base, advance)
    _tell(_text(found), found.to_yaml(), out)


def _tell(text: str, file: str, out: Path | None) -> None:
    """Print a fit's result, and write its YAML to the file `out`, or print the YAML if `out` is None."""
    # Without a file, YAML goes to stdout; the text then goes to stderr, and the output can be piped.
    typer.echo(text, err=out is None)
    if out is None:
        typer.echo(file, nl=False)
    else:
        write_atomically(out, file)
        typer.echo(f"written: {out}")


def _text(found: GpuFit) -> str:
    lines = [f"{'kind':<12} {'error':>7}  measurement"]
    lines += [f"{one.kind:<12} {one.error:>+7.1%}  {one.name}" for one in found.residuals]
    # In order of first appearance.
    kinds = dict.fromkeys(one.kind for one in found.residuals)
    lines += ["", "median |error|: " + ", ".join(f"{kind} {found.median(kind):.1%}" for kind in kinds)]
    lines += [f"not determined: {text}" for text in found.untold]
    return "\n".join(lines)
