"""`simulator goodput`: how much work does a training do in days with failures, and how often should it save?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import typer

from simulator.cli.console import print_table, print_text
from simulator.cli.option_names import told_as_options
from simulator.reliability.question import Goodput, GoodputQuestion, goodput, waterfall
from simulator.report.tables.layout import Column
from simulator.scenario.load import load_scenario

# Option for each field of a question.
_OPTIONS: Final = {
    name: f"--{name}"
    for name in (
        "days", "tokens", "failures", "interval", "storage", "detection", "watchdog", "restart", "spares", "repair",
    )
}  # fmt: skip


def show(source: str, overrides: Mapping[str, str], asked: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what a training does in days with failures; `asked` maps the fields of a GoodputQuestion to values."""
    scenario = load_scenario(source, overrides)
    with told_as_options(_OPTIONS):
        found = goodput(GoodputQuestion(scenario, **asked))
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        _print(found)


def _print(found: Goodput) -> None:
    for sentence in found.sentences:
        print_text(sentence)
    print_text("\nWhere the time goes, in the mean of the runs")
    rows = [[name, f"{100 * share:.2f} %", f"{days:.2f}"] for name, share, days in waterfall(found)]
    print_table((Column("part", left=True), Column("share"), Column("days")), rows, keys=(0,), indent="  ")
