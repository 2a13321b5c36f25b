"""Which options and arguments are shared by several commands? Each is the type of a command's parameter."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from simulator.basics.foreign_code import NO_PLUGINS
from simulator.cli.completion import names_of
from simulator.cli.number_options import as_tokens


def _forbid_plugins(context: typer.Context, is_set: bool) -> bool:
    """Set the variable that forbids plugins until the command ends, if the option was given; return the option."""
    if is_set:
        before = os.environ.get(NO_PLUGINS)
        # Worker processes inherit the environment.
        os.environ[NO_PLUGINS] = "1"
        context.call_on_close(lambda: _restore(NO_PLUGINS, before))
    return is_set


def _restore(name: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before


# Completion proposes names from the catalog; the shell itself completes paths.
ScenarioName = Annotated[
    str,
    typer.Argument(
        help="Shipped scenario's name, or path to a scenario file.",
        metavar="SCENARIO",
        autocompletion=names_of("scenario"),
    ),
]
ModelName = Annotated[
    str,
    typer.Argument(
        help="Model: catalog name, or path of a config.json or of a file of layers.", autocompletion=names_of("model")
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE[,VALUE...]",
        help="Change a key. Several values make an axis of the sweep. Repeatable.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Directory for the results; runs/NAME-0001 if omitted.")
]
AnswerOut = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Directory for report.html, tables and pictures; none if omitted."),
]
# With --json, stdout holds nothing but JSON; warnings and progress go to stderr.
AsJson = Annotated[bool, typer.Option("--json", help="Print a single JSON document on stdout.")]
Engine = Annotated[
    str | None, typer.Option("--engine", metavar="NAME", help="Simulation engine: auto, events or compiled.")
]
Transfers = Annotated[bool, typer.Option("--transfers", help="Keep all transfers, whatever their number.")]
Trace = Annotated[
    bool,
    typer.Option("--trace", help="Write traces for Perfetto, and memory snapshots of training steps for memory_viz."),
]
Ranks = Annotated[
    str | None,
    typer.Option(
        "--ranks",
        metavar="A,B-C",
        help="Ranks whose operations are kept; if omitted, all ranks, or rank 0 in a large job.",
    ),
]
Parquet = Annotated[bool, typer.Option("--parquet", help="Also write the table as table.parquet (extra `parquet`).")]
# A cached outcome has figures but no spans and transfers, therefore --trace and --transfers exclude --cache.
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        help="Cache of outcomes: reuse outcomes in DIR, and add new outcomes. Reused outcomes have no timeline.",
    ),
]
NoPlugins = Annotated[
    bool,
    typer.Option(
        "--no-plugins",
        callback=_forbid_plugins,
        help="Run no code from Python files or installed packages that an input names.",
    ),
]
OtherGpu = Annotated[
    str | None, typer.Option("--gpu", help="Override the topology's GPU.", autocompletion=names_of("gpu"))
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--seq-len",
        metavar="TOKENS",
        parser=as_tokens,
        help="Sequence length in tokens; 8k is 8192. [default: 2048, or the model's learned positions if fewer]",
    ),
]
Svg = Annotated[bool, typer.Option("--svg", help="Also write pictures as SVG.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Do not write report.html and the data of its drawings.")]
Table = Annotated[
    str,
    typer.Option("--table", metavar="KIND", help="Printed table: small (differing columns) or full (every column)."),
]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Arguments and options of `run`, which `sweep` has too."""

    scenario: ScenarioName
    settings: Settings = None
    out: Out = None
    as_json: AsJson = False
    engine: Engine = None
    transfers: Transfers = False
    trace: Trace = False
    ranks: Ranks = None
    parquet: Parquet = False
    cache: Cache = None
    svg: Svg = False
    table: Table = "small"
    no_report: NoReport = False
    no_plugins: NoPlugins = False


T = TypeVar("T")


def takes(options: Callable[..., T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Return a decorator for a command that takes a record: the record's fields become the command's options."""
    hints = get_type_hints(options, include_extras=True)

    def decorate(command: Callable[[T], None]) -> Callable[..., None]:
        def with_options(**values: Any) -> None:
            command(options(**values))

        signature = inspect.signature(options)
        fields = [field.replace(annotation=hints[name]) for name, field in signature.parameters.items()]
        # typer reads both.
        with_options.__signature__ = inspect.Signature(fields)  # type: ignore[attr-defined]
        with_options.__annotations__ = hints
        return with_options

    return decorate
