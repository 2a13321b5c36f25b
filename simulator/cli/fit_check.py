"""`simulator fit-check`: does a training fit on my cards, on how many would it fit, and which changes help?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import typer

from simulator.basics.units import format_memory
from simulator.basics.work_unit import rate_name
from simulator.cli.console import print_table, print_text
from simulator.cli.option_names import told_as_options
from simulator.report.tables.layout import Column
from simulator.sizing.answer import FitCheck
from simulator.sizing.question import FitQuestion
from simulator.sizing.search import fit_check

# Option for each scenario key, and for each parameter that no scenario has.
_OPTIONS: Final = {
    "cluster.gpu": "--gpu",
    "cluster.world_size": "--gpus",
    "training.model": "MODEL",
    "training.seq_len": "--seq-len",
    "training.micro_batch_size": "--micro-batch-size",
    "training.optimizer": "--optimizer",
    "training.framework": "--framework",
    "training.lora.rank": "--rank",
    "training.lora.targets": "--method",
    "method": "--method",
    "rank": "--rank",
}


def show(asked: Mapping[str, Any], *, as_json: bool) -> None:
    """Print whether a training fits, with the changes that help; end with exit code 1 if it does not fit.

    `asked` maps the fields of a FitQuestion to values.
    """
    with told_as_options(_OPTIONS):
        found = fit_check(FitQuestion(**asked))
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        _print(found)
    # A script sees from the exit code that the training does not fit.
    if not found.fits:
        raise typer.Exit(1)


def _print(found: FitCheck) -> None:
    rate = f"{rate_name(found.question.work_unit)} per GPU"
    for sentence in found.sentences:
        print_text(sentence)
    if found.fits:
        print_text(f"Speed: {found.tokens_per_s_per_gpu:,.0f} {rate}.")
        return
    if not found.changes:
        return
    print_text("\nChanges with which it fits, each simulated; speed is relative to the training as asked")
    rows = [
        [
            one.text,
            format_memory(one.margin.process),
            format_memory(one.margin.free),
            f"{one.tokens_per_s_per_gpu:,.0f}",
            f"{one.speed:.0%}",
        ]
        for one in found.changes
    ]
    columns = (Column("change", left=True), *map(Column, ("process", "free", rate, "speed")))
    print_table(columns, rows, keys=(0,), indent="  ")
    for warning in filter(None, (one.warning for one in found.changes)):
        print_text(warning)
