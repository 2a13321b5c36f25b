"""Which options and arguments are shared by several commands? Each is the type of a command's parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.completion import names_of
from simulator.cli.number_options import as_tokens

# Completion proposes names from the catalog; the shell itself completes paths.
ScenarioName = Annotated[
    str,
    typer.Argument(
        help="Name of a shipped scenario, or path of a file.", metavar="SCENARIO", autocompletion=names_of("scenario")
    ),
]
ModelName = Annotated[
    str,
    typer.Argument(help="Catalog name, or path of a Hugging Face config.json.", autocompletion=names_of("model")),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE[,VALUE...]", help="Change a key; several values make an axis. Repeatable."
    ),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where results go; runs/NAME-0001 otherwise.")]
# With --json, stdout holds nothing but JSON; warnings and progress go to stderr.
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout, and nothing else there.")]
Engine = Annotated[str | None, typer.Option("--engine", metavar="NAME", help="auto, events or compiled.")]
Transfers = Annotated[bool, typer.Option("--transfers", help="Keep every transfer, however many there are.")]
Trace = Annotated[
    bool, typer.Option("--trace", help="Write traces for Perfetto, and a step's memory snapshot for memory_viz.")
]
Ranks = Annotated[
    str | None,
    typer.Option("--ranks", metavar="A,B-C", help="Whose operations are kept; all, or in a large job rank 0's."),
]
Parquet = Annotated[bool, typer.Option("--parquet", help="Leave the table as table.parquet too (extra `parquet`).")]
# A cached outcome has figures but no spans and transfers, therefore --trace and --transfers exclude --cache.
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache", metavar="DIR", help="Take outcomes that are in DIR (they leave no spans), and keep new ones."
    ),
]
OtherGpu = Annotated[
    str | None, typer.Option("--gpu", help="Instead of the topology's own.", autocompletion=names_of("gpu"))
]
Tokens = Annotated[
    int, typer.Option("--seq-len", metavar="TOKENS", parser=as_tokens, help="Tokens of a sequence; 8k is 8192.")
]
Svg = Annotated[bool, typer.Option("--svg", help="Write pictures as SVG too.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Leave out report.html, and what it draws of each point.")]
Table = Annotated[str, typer.Option("--table", metavar="KIND", help="small: what the question varies; full: all.")]
