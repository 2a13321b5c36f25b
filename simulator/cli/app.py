"""The commands and their options. Nothing slow is imported here, therefore --help answers at once."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

import simulator
from simulator.cli.completion import LISTS, lists, names_of
from simulator.cli.guard import guarded as guarded
from simulator.cli.interruption import heed_interruptions
from simulator.cli.model_commands import kernels, memory, plan
from simulator.cli.options import (
    AsJson,
    Cache,
    Engine,
    NoReport,
    OtherGpu,
    Out,
    Parquet,
    Ranks,
    ScenarioName,
    Settings,
    Svg,
    Table,
    Trace,
    Transfers,
)

# `guard` prints errors, therefore typer's tracebacks are off. Without rich markup, brackets in help texts are literal.
app = typer.Typer(
    name="simulator",
    help="What would this training job do on that cluster? Plays it, event by event, and tells.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    """What would this training job do on that cluster? Plays it, event by event, and tells."""
    if version:
        typer.echo(simulator.__version__)
        # typer's way to end a command early with code 0.
        raise typer.Exit


@app.command()
def run(
    scenario: ScenarioName,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
    engine: Engine = None,
    transfers: Transfers = False,
    trace: Trace = False,
    ranks: Ranks = None,
    parquet: Parquet = False,
    cache: Cache = None,
    svg: Svg = False,
    table: Table = "small",
    no_report: NoReport = False,
) -> None:
    """Play a scenario, compare and sweep multiplied out.

    Its points are played one by one in this process; `sweep` plays them on several.
    """
    # Every command imports its modules here, and not at the top: importing networkx and numpy takes longer than --help.
    from simulator.cli.play import PlayOptions, play
    from simulator.cli.settings import as_full, as_ranks
    from simulator.sweeps.sweep import Backend

    # `run` simulates in its own process: a Backend with neither jobs nor scheduler.
    kept, backend, full = as_ranks(ranks), Backend(cache=cache), as_full(table)
    options = PlayOptions(
        out, as_json, engine, transfers, trace, kept, parquet, backend, svg=svg, full_table=full, page=not no_report
    )
    play(scenario, settings or [], options)


@app.command()
def sweep(
    scenario: ScenarioName,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
    engine: Engine = None,
    transfers: Transfers = False,
    trace: Trace = False,
    ranks: Ranks = None,
    parquet: Parquet = False,
    cache: Cache = None,
    svg: Svg = False,
    table: Table = "small",
    no_report: NoReport = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes of this machine; one a core otherwise.")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Dask cluster that plays instead, tcp://HOST:PORT (extra `distributed`)."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted sweep in --out.")] = False,
) -> None:
    """Play a scenario on several processes or on a Dask cluster.

    What it plays is what `run` plays, and --set means the same; an interrupted sweep goes on with --resume.
    """
    import os

    from simulator.sweeps.process_pool import preload

    # With a scheduler, the Dask cluster decides the number of processes.
    jobs = jobs if jobs or scheduler else os.cpu_count() or 1
    # Workers start importing now, while this process imports the modules below and reads the scenario.
    pool = preload(__name__) if jobs and jobs > 1 else None
    from simulator.cli.play import PlayOptions, play
    from simulator.cli.settings import as_full, as_ranks
    from simulator.sweeps.sweep import Backend

    backend = Backend(jobs, scheduler, cache, pool)
    kept, full = as_ranks(ranks), as_full(table)
    options = PlayOptions(
        out,
        as_json,
        engine,
        transfers,
        trace,
        kept,
        parquet,
        backend,
        resume,
        svg=svg,
        full_table=full,
        page=not no_report,
    )
    play(scenario, settings or [], options)


@app.command()
def collective(
    operation: Annotated[str, typer.Argument(help="all_reduce, all_gather, ...", metavar="OPERATION")],
    algorithm: Annotated[str, typer.Option(help="ring, tree, ..., or auto.")] = "auto",
    topology: Annotated[str, typer.Option(help="Name or path.", autocompletion=names_of("topology"))] = "star_100g",
    world_size: Annotated[int, typer.Option(help="Ranks.")] = 8,
    begin: Annotated[str, typer.Option(help="Smallest size; a bare number is bytes.")] = "8",
    end: Annotated[str, typer.Option(help="Largest size.")] = "1GiB",
    factor: Annotated[int, typer.Option(min=2, help="From one size to the next.")] = 2,
    dtype: Annotated[str, typer.Option(help="Of the elements.")] = "float32",
    gpu: OtherGpu = None,
    payload: Annotated[bool, typer.Option("--payload", help="Carry real arrays and count wrong elements.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the table of nccl-tests for a machine you do not have."""
    from simulator.cli.collective import ArraySizes, table

    table(
        operation,
        algorithm,
        topology,
        world_size,
        ArraySizes(begin, end, factor),
        dtype,
        gpu,
        payload=payload,
        as_json=as_json,
    )


@app.command()
def check(scenario: ScenarioName, settings: Settings = None) -> None:
    """Tell all faults of a scenario or of a topology file.

    Of a scenario without any: what playing it takes; of a topology: what machine it is.
    """
    from simulator.cli.check_topology import check_topology, is_topology

    # The file's keys decide: `check` accepts scenarios and topologies.
    if is_topology(scenario):
        check_topology(scenario, settings or [])
        return
    from simulator.cli.check import check as checked

    checked(scenario, settings or [])


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The new file is NAME.yaml.", metavar="NAME")],
    question: Annotated[str, typer.Option(help="The question that the scenario answers.")] = "What do we want to know?",
    training: Annotated[bool, typer.Option("--training", help="Of a training step instead of a collective.")] = False,
) -> None:
    """Write a scenario to start from."""
    from simulator.cli.new import write

    # The template differs in its main section.
    write(name, question, "training" if training else "collective")


@app.command("list")
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(LISTS)}.",
            autocompletion=lists,
        ),
    ],
) -> None:
    """List what can be named in a scenario."""
    from simulator.cli.listing import show

    show(kind)


@app.command()
def show(
    topology: Annotated[
        str,
        typer.Argument(
            help="Name, or path of a topology file or of a graph.",
            metavar="TOPOLOGY",
            autocompletion=names_of("topology"),
        ),
    ],
    world_size: Annotated[int | None, typer.Option(min=1, help="Ranks; as many as fit in two nodes otherwise.")] = None,
    gpu: OtherGpu = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Picture to write; TOPOLOGY.png otherwise.")] = None,
    svg: Svg = False,
) -> None:
    """Draw a topology with its bandwidths."""
    from simulator.cli.show import show as shown

    shown(topology, world_size, out, gpu, svg=svg)


# The order here is the order in `--help`.
for _command in (memory, plan, kernels):
    app.command()(_command)


@app.command()
def schema(
    kind: Annotated[str, typer.Argument(help="scenario or topology.", metavar="KIND")] = "scenario",
) -> None:
    """Print the JSON schema of scenario or topology files."""
    from simulator.cli.schema import show

    show(kind)


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Another one.")],
    as_json: AsJson = False,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Leave a page instead: both timelines, one cursor.")
    ] = None,
) -> None:
    """Compare scenario keys, points and figures of two runs."""
    from simulator.cli.diff import show

    show(first, second, as_json=as_json, page=page)


@app.command()
def plot(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    kind: Annotated[str, typer.Option("--kind", metavar="NAME", help="timeline, memory, ...; see `list plots`.")],
    point: Annotated[
        list[str] | None,
        typer.Option("--point", metavar="KEY=VALUE", help="A setting of the point to look at; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="PNG to write; in RUN/plots otherwise.")
    ] = None,
    svg: Svg = False,
) -> None:
    """Draw one more picture of a finished run.

    A point that is looked at closely is played again.
    """
    from simulator.cli.plot import plot as drawn

    drawn(folder, kind, point or [], out, svg=svg)


@app.command()
def rerun(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where results go; they are not kept otherwise.")
    ] = None,
    trace: Trace = False,
) -> None:
    """Play a run again, and say whether the results are the same."""
    from simulator.cli.rerun import rerun as again

    again(folder, out, trace=trace)


@app.command()
def fit(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="SWEEP... | gpu FILE",
            help="Outputs of nccl-tests, or CSV files with size and time; or gpu, and what tools/measure_gpu.py wrote.",
        ),
    ],
    topology: Annotated[
        str | None, typer.Option(help="The machine it was measured on.", autocompletion=names_of("topology"))
    ] = None,
    world_size: Annotated[int | None, typer.Option(help="Ranks, where the file does not say.")] = None,
    operation: Annotated[str | None, typer.Option(help="all_reduce, ..., where the file does not say.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="What the machine ran; the best otherwise.")] = None,
    base: Annotated[str, typer.Option(metavar="GPU", help="Of gpu FILE: whose data sheet it has.")] = "h100_sxm",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the section for a topology file, or the GPU file, here.")
    ] = None,
) -> None:
    """Fit a machine's or a GPU's constants to measurements.

    A machine's start-up and rates to one sweep or several, as a topology file; or a GPU's kernels.
    """
    from simulator.cli.fitting import show, show_gpu

    # `fit gpu FILE` and `fit SWEEP...` share the command; a sweep's file called "gpu" needs a path, such as ./gpu.
    if str(paths[0]) == "gpu" and len(paths) == 2:
        show_gpu(paths[1], base, out)
        return
    show(paths, topology, world_size, operation, algorithm, out)


@app.command()
def validate(
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="foundry, vtrain, nanotron_cut, ...; all otherwise.")
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Your own measured runs instead; docs/validation.md has the columns."
        ),
    ] = None,
    every: Annotated[int, typer.Option(min=1, metavar="K", help="Each K-th row alone.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    kept: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where played rows are kept, to go on when interrupted."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play measured training steps, and print how far off they are."""
    from simulator.cli.validate import show

    show(source, own, every, jobs, kept, as_json=as_json)


def run_app() -> None:
    """Run the command line; print errors for the user as lines on stderr, and exit with their code."""
    sys.exit(guarded(_run))


def _run() -> object:
    # Inside `guarded`: a signal that arrives right after the handler's installation is then caught.
    heed_interruptions()
    for stream in (sys.stdout, sys.stderr):
        # Characters unknown to the terminal are written as escapes; a scenario's question may hold any character.
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    # Without standalone mode, typer raises errors instead of exiting, and `guarded` handles them.
    return app(prog_name="simulator", standalone_mode=False)
