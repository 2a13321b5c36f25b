"""Which times would be predicted for a source's runs if this source were unknown?

Every constant fitted to the source's rows gets the value that other sources ask for, or without other sources the value
without effect. Facts about a framework's computation stay, because its code states them.

    source       replacement
    all          the chips' sustained load that the steps of the other sources ask for
    simumax      a B200's load in a loop of matmuls
    mlperf       a B200's load in bfloat16 for eight and four bits, too
    foundry      no attention to masked scores; bytes around collectives fitted to torchtitan's rows
    torchtitan   no cost of compiled kernels
    nanotron     torchtitan's host
    vtrain       nanotron's host
    llmq         other chips' sustained load on GeForce cards, and an H200's in a loop of matmuls
    internevo    all parts of the states travel at once
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulator.basics.arrays import Floats
from simulator.calibration.training_runs.cache import play_on
from simulator.calibration.training_runs.playing import PlayedRow, play_rows
from simulator.calibration.training_runs.rows import MeasuredRow, measured
from simulator.step.framework import Framework

# Search for the bytes per parameter: the start [B], the error from which outliers count linearly, and the maximum
# number of evaluations.
_START: Final = 10.0
_OUTLIER: Final = 0.05
_MOST_TRIED: Final = 12
# Slowdown of a B200's matmuls in a loop (catalog/measured/loaded.csv).
_LOOP: Final = 1.47
# The same of one H200, with the chip of an H100 (catalog/measured/kernels.csv).
_ONE_H200: Final = 1.21
# Source of each table, if named differently.
SOURCES: Final[Mapping[str, str]] = {
    "nanotron_cut": "nanotron",
    "torchtitan_cut": "torchtitan",
    "vtrain_composed": "vtrain",
}


def _without_foundry(known: Mapping[str, Framework], own: Framework) -> Framework:
    """Use torchtitan's copies around collectives; attention's masked half is unknown."""
    return own.with_constants(attention_masked=0.0, parameter_bytes=_of_torchtitan(known["torchtitan"]))


def _of_torchtitan(framework: Framework) -> float:
    """Fit bytes per parameter to torchtitan's rows; the shipped value is llm-foundry's."""
    import numpy as np
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    rows = [row for row in measured("torchtitan") if row.framework == framework.name]

    def off(constants: Floats) -> Floats:
        # The logarithm keeps the number positive.
        changed = framework.with_constants(parameter_bytes=float(np.exp(constants[0])))
        played = play_rows(rows, {framework.name: changed}, 1)
        return np.log([1.0 + outcome.time_error for outcome in played])

    start = [np.log(_START)]
    fitted = least_squares(off, start, loss="soft_l1", f_scale=_OUTLIER, max_nfev=_MOST_TRIED, diff_step=0.02)
    return float(np.exp(fitted.x[0]))


def _without_llmq(known: Mapping[str, Framework], own: Framework) -> Framework:
    """Give GeForce cards the median sustained load of the other chips, and one H100 that of one H200's matmuls."""
    # Without an entry, `Framework` uses the median of the other chips.
    others = {chip: load for chip, load in own.sustained.items() if chip != "GeForce"}
    return replace(own, sustained={**others, "H100": replace(others["H100"], of_one_gpu=_ONE_H200)})


def _with_b200(own: Framework, **facts: float | None) -> Framework:
    """Return a framework with other facts about the load of a B200."""
    return replace(own, sustained={**own.sustained, "B200": replace(own.sustained["B200"], **facts)})


# Sources without an entry have no fitted constants but those of chips.
_UNSEEN: Final[Mapping[str, Callable[[Mapping[str, Framework], Framework], Framework]]] = {
    "foundry": _without_foundry,
    "internevo": lambda known, own: own.with_constants(per_owner=0.0),
    "llmq": _without_llmq,
    "mlperf": lambda known, own: _with_b200(own, eight_bit=None),
    "nanotron": lambda known, own: own.with_constants(issue=known["torchtitan"].host.issue, issue_in_pipeline=0.0),
    "simumax": lambda known, own: _with_b200(own, time=_LOOP),
    "torchtitan": lambda known, own: own.with_constants(compiled=1.0),
    "vtrain": lambda known, own: own.with_constants(issue=known["nanotron"].host.issue),
}


def without(source: str, own: Framework, known: Mapping[str, Framework]) -> Framework:
    """Return a framework without the constants that were fitted to a source's rows; `known` are all as shipped."""
    own = replace(own, sustained={chip: load.without(source) for chip, load in own.sustained.items()})
    return _UNSEEN[source](known, own) if source in _UNSEEN else own


def source_of(row: MeasuredRow) -> str:
    """Return the source that measured a row, independent of the row's table."""
    return SOURCES.get(row.table, row.table)


def play_unseen(
    outcomes: Sequence[PlayedRow],
    known: Mapping[str, Framework],
    jobs: int = 2,
    kept: Path | None = None,
) -> tuple[PlayedRow, ...]:
    """Simulate rows as if their source were unknown; rows of sources without fitted constants stay unchanged.

    Rows in the file `kept` are not simulated again (`play_on`).
    """
    # Keyed by place, because the result must keep row order.
    found: dict[int, PlayedRow] = {}
    for source in dict.fromkeys(source_of(outcome.row) for outcome in outcomes):
        places = [place for place, outcome in enumerate(outcomes) if source_of(outcome.row) == source]
        rows = [outcomes[place].row for place in places]
        before = {name: known[name] for name in {row.framework for row in rows}}
        others = {name: without(source, framework, known) for name, framework in before.items()}
        # Nothing was fitted to this source: its rows are predictions already.
        if others == before:
            found |= {place: outcomes[place] for place in places}
            continue
        found |= dict(zip(places, play_on(rows, others, jobs, path=kept), strict=True))
    return tuple(found[place] for place in range(len(outcomes)))
