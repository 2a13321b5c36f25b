"""`simulator diff`: what changed between two runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from simulator.basics.atomic_files import write_atomically
from simulator.basics.input_files import MOST_DATA, read_json
from simulator.cli.console import print_text
from simulator.errors import ScenarioError
from simulator.sweeps.outcome import PointOutcome, read_outcome
from simulator.sweeps.table import row

_NOTHING: Final = {"engine": None, "report": None}


def show(first: Path, second: Path, *, as_json: bool, page: Path | None = None) -> None:
    """Print every report figure that differs, with its change; or leave a page that shows both runs."""
    points = _points(first), _points(second)
    changes = differences(*points)
    if page is not None:
        _write_page(page, (first, second), points, changes)
        return
    if as_json:
        typer.echo(json.dumps({"differences": changes}, indent=2))
        return
    if not changes:
        typer.echo("no difference: every figure of every point is the same")
        return
    for change in changes:
        settings = ", ".join(f"{k}={v}" for k, v in change["settings"].items()) or "the point"
        line = f"{settings}: {change['key']}: {change['first']} -> {change['second']}{_relative(change)}"
        print_text(line, indent="  ")


def _write_page(
    page: Path,
    runs: tuple[Path, Path],
    points: tuple[Mapping[str, Any], Mapping[str, Any]],
    changes: Sequence[Mapping[str, Any]],
) -> None:
    from simulator.results.page.diff_page import diff_page

    if not set(points[0]) & set(points[1]):
        raise ScenarioError(f"--html: {runs[0]} and {runs[1]} have no point in common, so that nothing can be compared")

    places = [{key: number for number, key in enumerate(own)} for own in points]
    pairs = [
        {"settings": points[0][key]["settings"], "places": (places[0][key], places[1][key])}
        for key in points[0]
        if key in points[1]
    ]
    folders = (_folder(runs[0]), _folder(runs[1]))
    write_atomically(page, diff_page(folders, pairs, changes))
    typer.echo(f"{len(changes)} figures differ over {len(pairs)} points that both have: {page}")


def _folder(run: Path) -> Path:
    """A run's directory, also where its report.json was named."""
    return run.parent if run.is_file() else run


def _points(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder if folder.is_file() else folder / "report.json"
    try:
        points = read_json(path, most=MOST_DATA)["points"]
        outcomes = [read_outcome(0, _NOTHING | point).to_dict() for point in points]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ScenarioError) and error.__cause__ is None:  # a file that is too large to be read
            raise
        raise ScenarioError(
            f"{path}: is no report of a run; give the directory that `simulator run` printed"
        ) from error
    return {json.dumps(point["settings"], sort_keys=True): point for point in outcomes}


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Figures that differ between two sets of points, points matched by their settings."""
    changes: list[dict[str, Any]] = []
    for key in dict.fromkeys([*first, *second]):
        settings = (first.get(key) or second[key])["settings"]
        a, b = (_figures(points.get(key)) for points in (first, second))
        if key not in first or key not in second:
            # All figures of a missing point would differ; one line that it is missing suffices.
            a, b = ({"point": figures["point"]} for figures in (a, b))
        changes += [
            {"settings": settings, "key": name, "first": a.get(name), "second": b.get(name)}
            for name in dict.fromkeys([*a, *b])
            if a.get(name) != b.get(name)
        ]
    return changes


def _figures(point: Mapping[str, Any] | None) -> dict[str, Any]:
    if point is None:
        return {"point": "missing"}
    return {"point": "there"} | row(PointOutcome(0, {}, point["engine"], point["report"], point.get("error")))


def _relative(change: Mapping[str, Any]) -> str:
    a, b = change["first"], change["second"]
    if isinstance(a, int | float) and isinstance(b, int | float) and a:
        return f" ({(b - a) / a:+.3%})"
    return ""
