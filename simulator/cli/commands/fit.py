"""Fit a machine's or a GPU's constants to measurements.

The result is a section of a topology file (a machine's start-up times and rates), or a GPU file (kernel speeds).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.basics.atomic_files import write_atomically
from simulator.cli.completion import names_of
from simulator.cli.options import NoPlugins
from simulator.cli.progress import progress

if TYPE_CHECKING:
    from simulator.calibration.gpu_fit import GpuFit


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="SWEEP... | gpu FILE",
            help=(
                "Outputs of nccl-tests, or CSV files with size and time; or the word gpu and an output of "
                "tools/measure_gpu.py."
            ),
        ),
    ],
    topology: Annotated[
        str | None, typer.Option(help="Topology of the measured machine.", autocompletion=names_of("topology"))
    ] = None,
    world_size: Annotated[int | None, typer.Option(help="Number of ranks, if the file does not say.")] = None,
    operation: Annotated[
        str | None, typer.Option(help="Operation (all_reduce, ...), if the file does not say.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Algorithm of the measured machine; the best match if omitted.")
    ] = None,
    base: Annotated[
        str, typer.Option(metavar="GPU", help="For gpu FILE: GPU of the catalog with the same data sheet.")
    ] = "h100_sxm",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the result: a section of a topology file, or a GPU file."),
    ] = None,
    no_plugins: NoPlugins = False,
) -> None:
    # `fit gpu FILE` and `fit SWEEP...` share the command; a sweep's file called "gpu" needs a path, such as ./gpu.
    from simulator.calibration.machines import fit_all, machine_text, to_yaml

    if str(paths[0]) == "gpu" and len(paths) == 2:
        _fit_gpu(paths[1], base, out)
        return
    machine = fit_all(paths, topology=topology, world_size=world_size, operation=operation, algorithm=algorithm)
    _tell(machine_text(machine), to_yaml(*machine.fits), out)


def _fit_gpu(path: Path, base: str, out: Path | None) -> None:
    """Fit a GPU's kernel speeds to measurements, print the residuals, and print or write the GPU file."""
    from simulator.calibration.gpu_fit import ROUNDS, fit_gpu, read_figures

    figures = read_figures(path)
    with progress(ROUNDS, what=f"fitting to {path.name}", counted="rounds of the search") as advance:
        fit = fit_gpu(figures, base, advance)
    _tell(_text(fit), fit.to_yaml(), out)


def _tell(text: str, file: str, out: Path | None) -> None:
    """Print a fit's result, and write its YAML to the file `out`, or print the YAML if `out` is None."""
    # Without a file, YAML goes to stdout; the text then goes to stderr, and the output can be piped.
    typer.echo(text, err=out is None)
    if out is None:
        typer.echo(file, nl=False)
    else:
        write_atomically(out, file)
        typer.echo(f"written: {out}")


def _text(fit: GpuFit) -> str:
    lines = [f"{'kind':<12} {'error':>7}  measurement"]
    lines += [f"{residual.kind:<12} {residual.error:>+7.1%}  {residual.name}" for residual in fit.residuals]
    # In order of first appearance.
    kinds = dict.fromkeys(residual.kind for residual in fit.residuals)
    lines += ["", "median |error|: " + ", ".join(f"{kind} {fit.median(kind):.1%}" for kind in kinds)]
    lines += [f"not determined: {text}" for text in fit.untold]
    return "\n".join(lines)
