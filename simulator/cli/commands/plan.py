"""Find the fastest settings for a training on N GPUs.

The search excludes settings that are impossible, that do not fit into memory, and that are slower than the best
settings according to a lower bound. It simulates every other setting, therefore no faster setting is missed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.completion import names_of
from simulator.cli.number_options import as_days, as_length
from simulator.cli.options import AsJson, Cache, NoPlugins, OtherGpu, Settings, Tokens
from simulator.cli.settings import as_overrides
from simulator.sweeps.process_pool import number_of_processes, preload


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|SCENARIO",
            help=(
                "Model (catalog name, or path of a config.json) with --topology and --gpus, or a scenario with the "
                "key `plan`."
            ),
            autocompletion=names_of("model"),
        ),
    ],
    topology: Annotated[
        str | None, typer.Option(help="Topology: name or path.", autocompletion=names_of("topology"))
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Number of GPUs.")] = None,
    seq_len: Tokens = None,
    global_batch: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Global batch size per step, in tokens (4M) or sequences (512seq). [default: 4M; none for images]",
        ),
    ] = None,
    gpu: OtherGpu = None,
    fix: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Fix a value: tp=8. Repeatable.")] = None,
    among: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE,...", help="Restrict the search to these values: pp=1,2,4. Repeatable."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="Exclude a value from the search: zero3, interleaved. Repeatable."),
    ] = None,
    settings: Settings = None,
    best: Annotated[int | None, typer.Option(min=1, help="Number of settings to list. [default: 10]")] = None,
    tokens: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", parser=as_length, help="Number of tokens in the whole training: 15e12, 1T."),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0.0, help="Price per GPU hour, in any currency.")] = None,
    watts: Annotated[
        float | None,
        typer.Option(min=0.0, help="Power per GPU [W], including its share of host, network and cooling."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS", parser=as_days, help="Longest allowed duration of the training: 30 (days), 30d, 6w."
        ),
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Repeat the plan with twice the network bandwidth, one more network card, and twice the memory.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory for best.yaml, plan.json and report.html.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted plan in --out.")] = False,
    scheduler: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="Simulate on this Dask cluster.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help=("Number of processes; the number of cores if omitted."))
    ] = None,
    cache: Cache = None,
    no_plugins: NoPlugins = False,
    as_json: AsJson = False,
) -> None:
    # Same as in `sweep`: workers import while this process reads the question.
    jobs = number_of_processes(jobs, scheduler)
    pool = preload(__name__) if jobs is not None and jobs > 1 else None
    from simulator.cli.plan_question import question
    from simulator.cli.plan_search import Output, plan
    from simulator.sweeps.sweep import Backend

    options = {
        "topology": topology, "gpus": gpus, "seq_len": seq_len, "global_batch": global_batch, "gpu": gpu,
        "fix": fix or None, "among": among or None, "without": without or None, "best": best, "tokens": tokens,
        "price": price, "watts": watts, "deadline": deadline, "sensitivity": sensitivity or None,
    }  # fmt: skip
    plan(
        # A scenario with `plan` refuses any of the options that are present.
        question(
            source,
            {name: value for name, value in options.items() if value is not None},
            as_overrides(settings or ()),
        ),
        Backend(jobs, scheduler, cache, pool),
        Output(out, as_json, resume),
    )
