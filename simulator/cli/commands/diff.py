"""Compare scenario keys, points and figures of two runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simulator.basics.atomic_files import write_atomically
from simulator.basics.errors import ScenarioError
from simulator.cli.console import print_text
from simulator.cli.options import AsJson, NoPlugins
from simulator.results.figure_text import figure_texts, relative_change_text

if TYPE_CHECKING:
    from simulator.results.run_differences import RunDifferences, ValueChange

# Most points named that only one run has; the rest is counted.
_MOST_NAMED: Final = 5


def command(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the second run.")],
    as_json: AsJson = False,
    page: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a page with both timelines and a common cursor, instead of text."
        ),
    ] = None,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.results.main_difference import main_difference
    from simulator.results.run_differences import differences, read_run

    runs, names = (read_run(first), read_run(second)), (str(first), str(second))
    # Equal settings make common points; keys, points and figures are compared.
    changes = differences(*runs)
    if page is not None:
        # The page needs more imports than the text.
        from simulator.results.page.diff_page import diff_page

        # The page shows both timelines of a point, and needs a point that both runs have.
        if not changes.common:
            raise ScenarioError(f"--html: {first} and {second} have no common point; a page compares common points")
        write_atomically(page, diff_page((runs[0].folder, runs[1].folder), changes))
        sentences = (main_difference(changes, names), *changes.sentences(names), f"Page: {page}")
        print_text(" ".join(sentence for sentence in sentences if sentence), indent="  ")
    elif as_json:
        typer.echo(json.dumps(_data(changes), indent=2))
    else:
        _print(changes, names)


def _data(changes: RunDifferences) -> dict[str, Any]:
    return {
        "scenario": None if changes.keys is None else [asdict(change) for change in changes.keys],
        "points": {"both": len(changes.common), "only_first": changes.only[0], "only_second": changes.only[1]},
        "differences": [
            {"settings": point.settings, **asdict(change)} for point in changes.common for change in point.changes
        ],
    }


def _print(changes: RunDifferences, names: tuple[str, str]) -> None:
    from simulator.results.main_difference import main_difference
    from simulator.results.run_differences import key_text

    if changes.nothing:
        typer.echo("no difference: every figure is equal at every point")
        return
    main = main_difference(changes, names)
    if main:
        print_text(main, indent="  ")
    # A lone report.json has no scenario.yaml beside it.
    if changes.keys is None:
        typer.echo("Scenario keys were not compared, because a single report file has no scenario.")
    else:
        typer.echo("Scenario keys that differ:" if changes.keys else "No scenario key differs.")
        for change in changes.keys:
            print_text(f"  {change.key}: {key_text(change.first)} -> {key_text(change.second)}", indent="    ")
    for line in changes.sentences(names):
        typer.echo(line)
    for name, lacking in zip(names, changes.only, strict=True):
        # A sweep may have thousands of points that the other run lacks.
        for settings in lacking[:_MOST_NAMED]:
            print_text(f"  only in {name}: {_settings_text(settings)}", indent="    ")
        if len(lacking) > _MOST_NAMED:
            typer.echo(f"  only in {name}: {len(lacking) - _MOST_NAMED:,} more")
    for point in changes.common:
        for change in point.changes:
            if not change.derived:
                print_text(f"{_settings(point.settings)}{_line(change)}", indent="  ")
    # Only --json lists the figures that follow from other figures.
    unlisted = [change.field for point in changes.common for change in point.changes if change.derived]
    if unlisted:
        fields = ", ".join(dict.fromkeys(unlisted))
        print_text(f"Not listed: {len(unlisted):,} of {fields}; --json lists them.", indent="  ")


def _settings(settings: Mapping[str, Any]) -> str:
    """Return a point's settings before a figure; empty for the only point of a run."""
    return f"{_settings_text(settings)}: " if settings else ""


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "the only point"


def _line(change: ValueChange) -> str:
    """Return a differing figure with both values and the relative change."""
    first, second = figure_texts(change.key, change.first, change.second)
    relative = relative_change_text(change.first, change.second)
    return f"{change.key}: {first} -> {second}{f' ({relative})' if relative else ''}"
