"""How are the pages docs/validation.md and docs/validation_cut.md written? By `python -m
simulator.calibration.training_runs.page [FOLDER] [whole | cut] [KEPT]`.

Rule: all measured rows are played, and every number in a table is computed from them; only words (page_text.py,
cut_page_text.py) are written by hand. KEPT is a file of rows that are played already (`simulator validate --kept`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from simulator.calibration.training_runs import tables
from simulator.calibration.training_runs.checks import fitted_system
from simulator.calibration.training_runs.cut_page import write_cut
from simulator.calibration.training_runs.cut_rows import measured_cut
from simulator.calibration.training_runs.kept import play_on
from simulator.calibration.training_runs.page_text import (
    AIMS,
    BEFORE,
    CONSTANTS,
    KEPT_BACK,
    KERNELS,
    MEMORY,
    REMOVED,
    SHORT,
    UNSEEN,
    WORST,
)
from simulator.calibration.training_runs.playing import PlayedRow, frameworks, play_rows
from simulator.calibration.training_runs.rows import measured
from simulator.calibration.training_runs.summary import errors, is_fitted
from simulator.report.plots import style
from simulator.report.plots import validation as plot_validation


def write(folder: Path, jobs: int = 2) -> None:
    """Play all rows; write validation.md and images/validation.{png,svg} into a docs folder."""
    known = frameworks()
    outcomes = play_rows(measured(), known, jobs)
    fit_system = fitted_system(outcomes, known["llm_foundry"])
    fig = plot_validation.figure(_groups(outcomes), _finding(outcomes))
    style.save(fig, folder / "images", "validation", svg=True)
    memory = tables.memory(outcomes, "torchtitan")
    other = tables.memory(outcomes, "nanotron")
    parts = [
        BEFORE,
        tables.groups(outcomes).markdown(),
        AIMS,
        "![Simulated over measured tokens/s of every training run](images/validation.png)\n",
        WORST + tables.worst_rows(outcomes).markdown(),
        CONSTANTS + tables.constants(known, fit_system).markdown(),
        tables.counts(known).markdown(),
        REMOVED + tables.removed(fit_system, outcomes, known["llm_foundry"]).markdown(),
        KERNELS + tables.kernels_removed(outcomes, known["llm_foundry"], jobs).markdown(),
        KEPT_BACK + tables.kept_back(fit_system).markdown(),
        MEMORY + ("" if memory is None else memory.markdown()),
        UNSEEN + tables.steps(outcomes, "nanotron").markdown(),
        "" if other is None else other.markdown(),
        SHORT,
    ]
    (folder / "validation.md").write_text("\n".join(parts), encoding="utf-8")


def _groups(outcomes: Sequence[PlayedRow]) -> list[plot_validation.Group]:
    names = dict.fromkeys(outcome.row.group for outcome in outcomes)
    groups = []
    for name in names:
        own = [outcome for outcome in outcomes if outcome.row.group == name]
        groups.append(
            plot_validation.Group(
                name,
                tuple(outcome.row.tokens_per_s / outcome.row.gpus for outcome in own),
                tuple(outcome.tokens_per_s / outcome.row.gpus for outcome in own),
            )
        )
    return groups


def _finding(outcomes: Sequence[PlayedRow]) -> str:
    summary = errors("", [outcome.error for outcome in outcomes if is_fitted(outcome.row)])
    return (
        f"{summary.count} runs of llm-foundry in bfloat16 are off by {summary.median:.1%} in the middle, "
        f"90 % of them by less than {summary.most:.1%}; grey is ten per cent"
    )


def main(folder: str = "docs", page: str = "both", kept: str = "", jobs: str = "2") -> None:
    """Write the pages that are asked for."""
    if page != "cut":
        write(Path(folder), int(jobs))
    if page != "whole":
        write_cut(Path(folder), play_on(measured_cut(), frameworks(), int(jobs), kept=Path(kept) if kept else None))


if __name__ == "__main__":
    main(*sys.argv[1:])
