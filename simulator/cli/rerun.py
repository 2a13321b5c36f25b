"""`simulator rerun`: a run again, from what it left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer

from simulator import run_directory
from simulator.cli.play import progress
from simulator.errors import ScenarioError
from simulator.scenario.load import load_scenario, points
from simulator.sweep import play_points


def rerun(folder: Path, out: Path | None) -> None:
    """Play the directory's scenario again; exit code 1 if a figure differs."""
    left, report = folder / "scenario.yaml", folder / "report.json"
    if not left.is_file() or not report.is_file():
        raise ScenarioError(f"{folder}: holds no finished run (scenario.yaml and report.json); give a run's directory")
    scenario = load_scenario(left)
    numbered = list(enumerate(points(scenario)))
    with tempfile.TemporaryDirectory() as scratch:
        target = run_directory.create(scenario.name, out) if out else Path(scratch)
        run_directory.begin(target, scenario)
        keeper = run_directory.Keeper(target, len(numbered) == 1)
        outcomes = []
        with progress(len(numbered), what=scenario.name) as step:
            for outcome in play_points(numbered, 1, keeper if out else None):
                outcomes.append(outcome)
                step()
        if out:
            run_directory.finish(target, scenario, outcomes, 0.0)
    if run_directory.report_text(outcomes) == report.read_text(encoding="utf-8"):
        typer.echo(f"{folder}: played again, the report is the same to the byte")
        return
    typer.echo(f"{folder}: played again, the report differs; `rerun --out DIR` and `diff` show where", err=True)
    raise typer.Exit(1)
