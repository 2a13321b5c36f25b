"""`simulator validate`: plays all measured training steps and prints the errors of the simulated times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import typer

from simulator.calibration.training_runs import tables
from simulator.calibration.training_runs.checks import fitted_system, left_out, without_any
from simulator.calibration.training_runs.fitting import LinearSystem
from simulator.calibration.training_runs.playing import PlayedRow, frameworks, play_rows
from simulator.calibration.training_runs.rows import measured
from simulator.calibration.training_runs.summary import by_group, is_fitted, worst
from simulator.cli.progress import progress
from simulator.step.framework import Framework


def show(table: str | None, jobs: int, *, as_json: bool) -> None:
    """Play the rows and print groups, worst rows, constants and checks."""
    rows = measured(table)
    known = frameworks()
    with progress(len(rows), what="measured rows") as advance:
        outcomes = play_rows(rows, known, jobs, advance)
    fit_system = fitted_system(outcomes, known["llm_foundry"]) if any(is_fitted(row) for row in rows) else None
    if as_json:
        typer.echo(json.dumps(_document(outcomes, fit_system, known["llm_foundry"]), indent=2))
        return
    names = dict.fromkeys(row.table for row in rows)
    parts = [tables.groups(outcomes), *(tables.memory(outcomes, name) for name in names)]
    parts += [tables.worst_rows(outcomes)]
    parts += [tables.constants(known, fit_system), tables.counts(known)]
    if fit_system is not None:
        parts += [tables.kept_back(fit_system), tables.removed(fit_system, outcomes, known["llm_foundry"])]
    typer.echo("\n\n".join(part.text() for part in parts if part is not None))
    fitting = sum(outcome.fits for outcome in outcomes)
    typer.echo(f"\n{fitting} of {len(outcomes)} rows fit into memory when played; all of them did when measured")


def _document(outcomes: Sequence[PlayedRow], fit_system: LinearSystem | None, framework: Framework) -> dict[str, Any]:
    reasons = {outcome.row.source + outcome.row.name: why for outcome, why in worst(outcomes)}
    points = [
        {
            "row": asdict(outcome.row),
            "group": outcome.row.group,
            "step_time_s": outcome.step_time,
            "tokens_per_s": outcome.tokens_per_s,
            "error": outcome.error,
            "peak_memory_bytes": outcome.peak,
            "memory_error": outcome.memory_error,
            "fits": outcome.fits,
            "reason": reasons.get(outcome.row.source + outcome.row.name),
        }
        for outcome in outcomes
    ]
    document: dict[str, Any] = {"groups": [asdict(group) for group in by_group(outcomes)], "rows": points}
    if fit_system is not None:
        document["left_out"] = [{"fitted": asdict(a), "kept_back": asdict(b)} for a, b in left_out(fit_system)]
        document["removed"] = [asdict(summary) for summary in without_any(fit_system, outcomes, framework)]
    return document
