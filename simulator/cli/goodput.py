"""`simulator goodput`: how much work does a training do in days with failures, and how often should it save?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import typer

from simulator.cli.console import print_table, print_text
from simulator.cli.option_names import told_as_options
from simulator.reliability.question import (
    Comparison,
    Goodput,
    GoodputQuestion,
    compared,
    goodput,
    waterfall,
)
from simulator.reliability.renewal import Category
from simulator.report.tables.layout import Column
from simulator.scenario.days_file import DaysFile, load_days

# Option for each field of a question.
_OPTIONS: Final = {
    name: f"--{name}"
    for name in (
        "days", "tokens", "failures", "interval", "storage", "detection", "watchdog", "restart", "spares", "repair",
    )
}  # fmt: skip


def show(source: str, overrides: Mapping[str, str], asked: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what a training does in days with failures.

    `asked` maps the fields of a GoodputQuestion to values of options; None where an option is not given, and the file
    or the usual value counts.
    """
    file = load_days(source, overrides)
    with told_as_options(_OPTIONS):
        found = _answer(file, {name: value for name, value in asked.items() if value is not None})
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return
    if file.question:
        print_text(f"{file.question}\n")
    for sentence in found.sentences:
        print_text(sentence)
    if isinstance(found, Comparison):
        _print_comparison(found)
    else:
        _print_waterfall(found)


def _answer(file: DaysFile, options: Mapping[str, Any]) -> Goodput | Comparison:
    """Return the answer to a file of days, whose values options replace; an option also replaces a comparison."""
    given = _fields(file.given)
    # Days and tokens exclude each other: the option counts.
    if {"days", "tokens"} & set(options):
        given = {name: value for name, value in given.items() if name not in ("days", "tokens")}
    given |= options
    if file.along is None or file.along in options:
        return goodput(GoodputQuestion(file.scenario, **given))
    along = file.along
    questions = {
        written: GoodputQuestion(file.scenario, **(given | _fields({along: value}))) for written, value in file.values
    }
    return compared(questions, along)


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a GoodputQuestion for keys of a file, which counts failures of 1,000 nodes."""
    return {name: value / 1000.0 if name == "failures" else value for name, value in given.items()}


def _print_waterfall(found: Goodput) -> None:
    print_text("\nWhere the time goes, in the mean of the runs")
    rows = [[name, f"{100 * share:.2f} %", f"{days:.2f}"] for name, share, days in waterfall(found)]
    print_table((Column("part", left=True), Column("share"), Column("days")), rows, keys=(0,), indent="  ")


def _print_comparison(found: Comparison) -> None:
    print_text("\nShares of the time, in the mean of the runs, and what comes of it (middle of the runs)")
    columns: tuple[Category, ...] = ("useful", "checkpoint", "lost work", "waiting for spares", "restart")
    rows = [
        [value, *(f"{100 * answer.outlook.shares[name]:.2f} %" for name in columns), answer.middle]
        for value, answer in zip(found.values, found.answers, strict=True)
    ]
    headings = (Column(found.along, left=True), *map(Column, columns), Column("result"))
    print_table(headings, rows, keys=(0,), indent="  ")
