"""How are docs/validation.md and docs/validation_cut.md written?

    python -m tools.validation.training_page [FOLDER] [KEPT] [JOBS]

Every measured row is simulated, and every number in a table is computed from the rows. Only words (in training_text.py
and cut_text.py) are written by hand. KEPT is a file with rows simulated before (`simulator validate --kept`). Rows
simulated now are added to it: after an interruption, the same command simulates the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from simulator.calibration.training_runs import validation_tables
from simulator.calibration.training_runs.cache import play_on
from simulator.calibration.training_runs.cut_rows import all_measured, measured_cut
from simulator.calibration.training_runs.fine_tuning_rows import failed_fine_tuning, measured_fine_tuning
from simulator.calibration.training_runs.playing import PlayedRow, frameworks, play_rows
from simulator.calibration.training_runs.rows import measured
from simulator.calibration.training_runs.summary import apart, errors
from simulator.calibration.training_runs.user_rows import columns
from simulator.model.parameters import total
from simulator.report.numbers.prediction_intervals import TABLE, Residual
from simulator.report.plots import style
from tools.validation import error_plot as plot_validation
from tools.validation import training_tables
from tools.validation.after_calibration import calibration_table, play_calibrated
from tools.validation.coverage import coverage_table
from tools.validation.cross_validation import play_unseen, source_of
from tools.validation.cut_page import cut_of, gpu_of, gpus_of, size_of, write_cut
from tools.validation.residuals import residuals, write_residuals
from tools.validation.training_text import (
    AFTER_CALIBRATION,
    APART,
    BEFORE,
    CALIBRATION,
    CONSTANTS,
    FINE_TUNING,
    FRAMEWORKS,
    INTERVALS,
    MEMORY,
    NETWORK,
    OWN,
    SHORT,
    WORST,
)


def write(
    folder: Path,
    outcomes: Sequence[PlayedRow],
    unseen: Sequence[PlayedRow],
    found: Sequence[Residual],
    jobs: int = 2,
) -> None:
    """Write validation.md and images/validation.{png,svg} into a docs folder, from rows with and without own source,
    and their residuals.
    """
    whole = [outcome for outcome in outcomes if outcome.row.table in {row.table for row in measured()}]
    # Disturbed runs, and rows composed of profiled pieces, appear in the first table only.
    disturbed = apart([outcome.row for outcome in outcomes])
    calm = [n for n, outcome in enumerate(outcomes) if outcome.row.timed and n not in disturbed]
    timed = [outcomes[n] for n in calm]
    title = finding([outcome.error for outcome in timed], len(disturbed))
    style.save(plot_validation.figure(_groups(timed), title), folder / "images", "validation", svg=True)
    memory = validation_tables.memory(whole, "torchtitan")
    parts = [
        BEFORE,
        training_tables.overview(outcomes, unseen, "source", _named(outcomes, disturbed)).markdown(),
        APART,
        *(_part(outcomes, unseen, calm, title, key, order) for title, key, order in _PARTS),
        "![Simulated over measured tokens/s of every training run](images/validation.png)\n",
        FINE_TUNING + _fine_tuning(outcomes, unseen, jobs),
        WORST + validation_tables.worst_rows(timed).markdown(),
        INTERVALS + coverage_table(found).markdown() + NETWORK,
        CALIBRATION + calibration_table(found).markdown() + AFTER_CALIBRATION,
        FRAMEWORKS + training_tables.of_frameworks(frameworks()).markdown(),
        CONSTANTS,
        MEMORY + ("" if memory is None else memory.markdown()),
        OWN + columns(),
        SHORT,
    ]
    (folder / "validation.md").write_text("\n".join(parts), encoding="utf-8")


def _named(outcomes: Sequence[PlayedRow], disturbed: frozenset[int]) -> Callable[[PlayedRow], str]:
    # Identity, because rows may be equal.
    ids = {id(outcomes[place]) for place in disturbed}

    def name(outcome: PlayedRow) -> str:
        table = outcome.row.table
        if id(outcome) in ids:
            return f"{source_of(outcome.row)}, disturbed"
        return f"{table}, eight bits" if outcome.row.eight_bit else table

    return name


# Title, group and order of each table.
_PARTS: Final[tuple[tuple[str, Callable[[PlayedRow], str], Callable[[PlayedRow], float]], ...]] = (
    ("framework", lambda outcome: outcome.row.framework, lambda outcome: 0.0),
    ("GPU", gpu_of, lambda outcome: 0.0),
    ("size", size_of, lambda outcome: total(outcome.row.transformer)),
    ("number of GPUs", gpus_of, lambda outcome: outcome.row.gpus),
    ("parallelism", cut_of, lambda outcome: 0.0),
)


def _part(
    outcomes: Sequence[PlayedRow],
    unseen: Sequence[PlayedRow],
    places: Sequence[int],
    title: str,
    key: Callable[[PlayedRow], str],
    order: Callable[[PlayedRow], float],
) -> str:
    # Sorted for the order of the table's lines; a stable sort keeps equal rows in table order.
    ordered = sorted(places, key=lambda place: order(outcomes[place]))
    own, others = ([rows[place] for place in ordered] for rows in (outcomes, unseen))
    return training_tables.overview(own, others, title, key).markdown()


def _fine_tuning(outcomes: Sequence[PlayedRow], unseen: Sequence[PlayedRow], jobs: int) -> str:
    """Return the table of fine-tuning runs by source and method, and a sentence on the runs without a result."""
    sources = {row.table for row in measured_fine_tuning()}
    places = [n for n, outcome in enumerate(outcomes) if outcome.row.table in sources]
    table = _part(outcomes, unseen, places, "source and method", _method, lambda outcome: 0.0)
    fit = sum(outcomes[place].fits for place in places)
    failed = play_rows(failed_fine_tuning(), frameworks(), jobs)
    refused = sum(not outcome.fits for outcome in failed)
    return (
        f"{table}\nOf the {len(places)} runs that ran, {fit} are said to fit; of the {len(failed)} runs without a "
        f"result, {refused} are said not to fit.\n"
    )


def _method(outcome: PlayedRow) -> str:
    spec = outcome.row.spec
    if spec is None or not spec.lora.rank:
        return f"{outcome.row.table}, full"
    base = spec.lora.base if spec.lora.base != "params" else spec.precision.params
    return f"{outcome.row.table}, LoRA on {base}"


def _groups(outcomes: Sequence[PlayedRow]) -> list[plot_validation.Group]:
    groups = []
    for name in dict.fromkeys(source_of(outcome.row) for outcome in outcomes):
        own = [outcome for outcome in outcomes if source_of(outcome.row) == name]
        groups.append(
            plot_validation.Group(
                name,
                tuple(outcome.row.tokens_per_s / outcome.row.gpus for outcome in own),
                tuple(outcome.tokens_per_s / outcome.row.gpus for outcome in own),
            )
        )
    return groups


def finding(relative: Sequence[float], disturbed: int) -> str:
    """Return a sentence about the errors of timed runs, without disturbed runs, which are counted.

    Examples
    --------
    >>> finding([0.1, -0.2, 0.3], 2)
    'Median error 20.0% over 3 of 5 timed runs (2 disturbed ones left out), 90 % below 30.0%; grey: ±10 %, hollow: \
beyond the axis'
    """
    summary = errors("", relative)
    return (
        f"Median error {summary.median:.1%} over {summary.count} of {summary.count + disturbed} timed runs "
        f"({disturbed} disturbed ones left out), 90 % below {summary.most:.1%}; grey: ±10 %, hollow: beyond the axis"
    )


def main(folder: str = "docs", kept: str = "", jobs: str = "2") -> None:
    """Simulate everything; write both pages, and the residuals for prediction intervals."""
    known = frameworks()
    file = Path(kept) if kept else None
    outcomes = play_on(all_measured(), known, int(jobs), path=file)
    # Simulates every row again, with different constants.
    unseen = play_unseen(outcomes, known, int(jobs), file)
    predicted = play_calibrated([outcome.row for outcome in outcomes], known, int(jobs), file)
    found = residuals(outcomes, unseen, predicted)
    write_residuals(TABLE, found)
    write(Path(folder), outcomes, unseen, found, int(jobs))
    cut = {row.table for row in measured_cut()}
    write_cut(Path(folder), [outcome for outcome in outcomes if outcome.row.table in cut])


if __name__ == "__main__":
    main(*sys.argv[1:])
