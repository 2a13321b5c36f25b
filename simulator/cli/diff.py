"""`simulator diff`: which scenario keys, points and figures differ between two runs?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import typer

from simulator.basics.atomic_files import write_atomically
from simulator.basics.errors import ScenarioError
from simulator.cli.console import print_text
from simulator.results.run_differences import Change, RunDifferences, differences, key_text, read_run

# Most points named that only one run has; the rest is counted.
_MOST_NAMED: Final = 5


def show(first: Path, second: Path, *, as_json: bool, page: Path | None = None) -> None:
    """Print the differences between the runs in two directories, or write a page with both runs."""
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
        print_text(f"{' '.join(found.sentences(names))} Page: {page}", indent="  ")
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
    if found.nothing:
        typer.echo("no difference: every figure is equal at every point")
        return
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
            print_text(f"  only in {name}: {_settings(settings)}", indent="    ")
        if len(own) > _MOST_NAMED:
            typer.echo(f"  only in {name}: {len(own) - _MOST_NAMED:,} more")
    for point in found.common:
        for change in point.changes:
            first, second = _figures(change)
            line = f"{_settings(point.settings)}: {change.key}: {first} -> {second}{_relative(change)}"
            print_text(line, indent="  ")


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "the point"


def _figures(change: Change) -> tuple[str, str]:
    """Format a changed figure's two values with six digits, or with every digit if six digits are equal."""
    short = tuple(f"{value:.6g}" if isinstance(value, float) else str(value) for value in (change.first, change.second))
    return (short[0], short[1]) if short[0] != short[1] else (str(change.first), str(change.second))


def _relative(change: Change) -> str:
    a, b = change.first, change.second
    # Relative changes exist only for numbers, and not from 0.
    if isinstance(a, int | float) and isinstance(b, int | float) and a:
        return f" ({(b - a) / a:+.3%})"
    return ""
