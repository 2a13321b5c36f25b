"""The page docs/validation.md and its figure.

`python -m simulator.calibration.training_runs.page` plays all rows and writes both.

Rule: every number on the page is computed here; only words are written by hand. Like a balance sheet.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from simulator.calibration.training_runs import sheets
from simulator.calibration.training_runs.checks import system
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
from simulator.calibration.training_runs.playing import Outcome, frameworks, play_rows
from simulator.calibration.training_runs.rows import measured
from simulator.calibration.training_runs.summary import errors, is_fitted
from simulator.report.plots import style
from simulator.report.plots import validation as plot_validation


def write(folder: Path, jobs: int = 2) -> None:
    """Play all rows; write validation.md and images/validation.{png,svg} into a docs folder."""
    known = frameworks()
    outcomes = play_rows(measured(), known, jobs)
    held = system(outcomes, known["llm_foundry"])
    drawn = plot_validation.figure(_groups(outcomes), _finding(outcomes))
    style.save(drawn, folder / "images", "validation")
    memory = sheets.memory(outcomes, "torchtitan")
    other = sheets.memory(outcomes, "nanotron")
    parts = [
        BEFORE,
        sheets.groups(outcomes).markdown(),
        AIMS,
        "![Simulated over measured tokens/s of every training run](images/validation.png)\n",
        WORST + sheets.worst_rows(outcomes).markdown(),
        CONSTANTS + sheets.constants(known, held).markdown(),
        sheets.counts(known).markdown(),
        REMOVED + sheets.removed(held, outcomes, known["llm_foundry"]).markdown(),
        KERNELS + sheets.kernels_removed(outcomes, known["llm_foundry"], jobs).markdown(),
        KEPT_BACK + sheets.kept_back(held).markdown(),
        MEMORY + ("" if memory is None else memory.markdown()),
        UNSEEN + sheets.steps(outcomes, "nanotron").markdown(),
        "" if other is None else other.markdown(),
        SHORT,
    ]
    (folder / "validation.md").write_text("\n".join(parts), encoding="utf-8")


def _groups(outcomes: Sequence[Outcome]) -> list[plot_validation.Group]:
    names = dict.fromkeys(outcome.row.group for outcome in outcomes)
    found = []
    for name in names:
        own = [outcome for outcome in outcomes if outcome.row.group == name]
        found.append(
            plot_validation.Group(
                name,
                tuple(outcome.row.tokens_per_s / outcome.row.gpus for outcome in own),
                tuple(outcome.tokens_per_s / outcome.row.gpus for outcome in own),
            )
        )
    return found


def _finding(outcomes: Sequence[Outcome]) -> str:
    found = errors("", [outcome.error for outcome in outcomes if is_fitted(outcome.row)])
    return (
        f"{found.count} runs of llm-foundry in bfloat16 are off by {found.median:.1%} in the middle, 90 % of them by "
        f"less than {found.most:.1%}; grey is ten per cent"
    )


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
