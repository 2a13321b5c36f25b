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
    from simulator.results.run_differences import Change, RunDifferences

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
    found = differences(*runs)
    if page is not None:
        # The page needs more imports than the text.
        from simulator.results.page.diff_page import diff_page

        # The page shows both timelines of a point, and needs a point that both runs have.
        if not found.common:
            raise ScenarioError(f"--html: {first} and {second} have no common point; a page compares common points")
        write_atomically(page, diff_page((runs[0].folder, runs[1].folder), found))
        said = (main_difference(found, names), *found.sentences(names), f"Page: {page}")
        print_text(" ".join(sentence for sentence in said if sentence), indent="  ")
    elif as_json:
        typer.echo(json.dumps(_data(found), indent=2))
    else:
        _print(found, names)


def _data(found: RunDifferences) -> dict[str, Any]:
    return {
        "scenario": None if found.keys is None else [asdict(change) for change in found.keys],
        "points": {"both": len(found.common), "only_first": found.only[0], "only_second": found.only[1]},
        "differences": [
            {"settings": point.settings, **asdict(change)} for point in found.common for change in point.changes
        ],
    }


def _print(found: RunDifferences, names: tuple[str, str]) -> None:
    from simulator.results.main_difference import main_difference
    from simulator.results.run_differences import key_text

    if found.nothing:
        typer.echo("no difference: every figure is equal at every point")
        return
    main = main_difference(found, names)
    if main:
        print_text(main, indent="  ")
    # A lone report.json has no scenario.yaml beside it.
    if found.keys is None:
        typer.echo("Scenario keys were not compared, because a single report file has no scenario.")
    else:
        typer.echo("Scenario keys that differ:" if found.keys else "No scenario key differs.")
        for change in found.keys:
            print_text(f"  {change.key}: {key_text(change.first)} -> {key_text(change.second)}", indent="    ")
    for line in found.sentences(names):
        typer.echo(line)
    for name, own in zip(names, found.only, strict=True):
        # A sweep may have thousands of points that the other run lacks.
        for settings in own[:_MOST_NAMED]:
            print_text(f"  only in {name}: {_settings_text(settings)}", indent="    ")
        if len(own) > _MOST_NAMED:
            typer.echo(f"  only in {name}: {len(own) - _MOST_NAMED:,} more")
    for point in found.common:
        for change in point.changes:
            if not change.derived:
                print_text(f"{_settings(point.settings)}{_line(change)}", indent="  ")
    # Only --json lists the figures that follow from other figures.
    unlisted = [change.field for point in found.common for change in point.changes if change.derived]
    if unlisted:
        fields = ", ".join(dict.fromkeys(unlisted))
        print_text(f"Not listed: {len(unlisted):,} of {fields}; --json lists them.", indent="  ")


def _settings(settings: Mapping[str, Any]) -> str:
    """Return a point's settings before a figure; empty for the only point of a run."""
    return f"{_settings_text(settings)}: " if settings else ""


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "the only point"


def _line(change: Change) -> str:
    """Return a differing figure with both values and the relative change."""
    first, second = figure_texts(change.key, change.first, change.second)
    relative = relative_change_text(change.first, change.second)
    return f"{change.key}: {first} -> {second}{f' ({relative})' if relative else ''}"
