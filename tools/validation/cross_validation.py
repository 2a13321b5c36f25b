"""Which times would be predicted for a source's runs if this source were unknown?

Every constant fitted to the source's rows gets the value from the most similar other framework (also eager kernels, or
also merged kernels); without such a framework, the value without effect. If the similar framework's own value was taken
from the source, that value is fitted again to the framework's rows. Facts about a framework's computation stay, because
its code states them.

    source       replacement
    foundry      torchtitan's eager numbers, fitted to torchtitan's rows
    torchtitan   no cost of compiled kernels; llm-foundry's load of an A100
    fms          torchtitan's eager kernels
    nanotron     llm-foundry's eager kernels; megatron_2021's host
    vtrain       nanotron's host
    llmq         other chips' sustained load on GeForce cards
    internevo    llm-foundry's eager kernels; all parts of the states travel at once
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from simulator.basics.arrays import Floats
from simulator.calibration.training_runs.cache import play_on
from simulator.calibration.training_runs.playing import PlayedRow, play_rows
from simulator.calibration.training_runs.rows import Changes, MeasuredRow, measured
from simulator.step.framework import Framework

# Search for an eager framework's two numbers: the start (a factor, and bytes per parameter), the error from which
# outliers count linearly, and the maximum number of evaluations.
_START: Final = (2.0, 10.0)
_OUTLIER: Final = 0.05
_MOST_TRIED: Final = 12
# Source of each table, if named differently.
SOURCES: Final[Mapping[str, str]] = {
    "nanotron_cut": "nanotron",
    "torchtitan_cut": "torchtitan",
    "vtrain_composed": "vtrain",
}


@dataclass(frozen=True, slots=True)
class Unseen:
    """Knowledge without a source.

    Attributes
    ----------
    framework : function (frameworks as shipped, one framework) -> Framework
        Returns the framework without the source's constants.
    changes : Changes
        Changed constants for the source's GPUs.
    """

    framework: Callable[[Mapping[str, Framework], Framework], Framework] = field(default=lambda known, own: own)
    changes: Changes = ()


def _without_foundry(known: Mapping[str, Framework], own: Framework) -> Framework:
    """Use torchtitan's eager kernels and copies around collectives; attention's masked half is unknown.

    The chips' sustained load is kept: fits to the rows of dgxc on H100 (1.18 instead of 1.14) and of vTrain on A100
    give nearly the same load.
    """
    elementwise, parameter_bytes = _of_torchtitan(known["torchtitan"])
    return own.with_constants(elementwise=elementwise, attention_masked=0.0, parameter_bytes=parameter_bytes)


def _of_torchtitan(framework: Framework) -> tuple[float, float]:
    """Fit elementwise time and bytes per parameter to torchtitan's rows; the shipped values are llm-foundry's."""
    import numpy as np
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    rows = measured("torchtitan")

    def off(constants: Floats) -> Floats:
        # Logarithms keep both numbers positive.
        elementwise, parameter_bytes = np.exp(constants).tolist()
        changed = framework.with_constants(elementwise=elementwise, parameter_bytes=parameter_bytes)
        played = play_rows(rows, {framework.name: changed}, 1)
        return np.log([1.0 + outcome.time_error for outcome in played])

    found = least_squares(off, np.log(_START), loss="soft_l1", f_scale=_OUTLIER, max_nfev=_MOST_TRIED, diff_step=0.02)
    elementwise, parameter_bytes = np.exp(found.x).tolist()
    return elementwise, parameter_bytes


def _without_torchtitan(known: Mapping[str, Framework], own: Framework) -> Framework:
    """Use llm-foundry's load of an A100; merged kernels need only their ideal traffic."""
    sustained = {**own.sustained, "A100": known["llm_foundry"].sustained["A100"]}
    return own.with_constants(compiled=1.0, sustained=sustained)


def _without_nanotron(known: Mapping[str, Framework], own: Framework) -> Framework:
    """Use llm-foundry's eager kernels, and the only other measured host."""
    return own.with_constants(
        elementwise=known["llm_foundry"].kernels.elementwise,
        issue=known["megatron_2021"].host.issue,
        issue_in_pipeline=0.0,
    )


def _without_vtrain(known: Mapping[str, Framework], own: Framework) -> Framework:
    """Use nanotron's host; SC21's rows confirm the elementwise kernels."""
    return own.with_constants(issue=known["nanotron"].host.issue)


def _without_llmq(known: Mapping[str, Framework], own: Framework) -> Framework:
    """Give GeForce cards the median sustained load of the other chips."""
    # Without an entry, `Framework` uses the median of the other chips.
    return replace(own, sustained={chip: load for chip, load in own.sustained.items() if chip != "GeForce"})


def _without_dgxc(known: Mapping[str, Framework], own: Framework) -> Framework:
    """Use llm-foundry's load of an H100."""
    return replace(own, sustained={**own.sustained, "H100": known["llm_foundry"].sustained["H100"]})


def _without_mlperf(known: Mapping[str, Framework], own: Framework) -> Framework:
    """Use a B200's load in bfloat16 for eight and four bits, too."""
    return replace(own, sustained={**own.sustained, "B200": replace(own.sustained["B200"], eight_bit=None)})


# Sources without fitted constants change nothing: SC21's runs beside vTrain's, and SimuMax's.
UNSEEN: Final[Mapping[str, Unseen]] = {
    "dgxc": Unseen(_without_dgxc),
    "foundry": Unseen(_without_foundry),
    "mlperf": Unseen(_without_mlperf),
    "torchtitan": Unseen(_without_torchtitan),
    "fms": Unseen(lambda known, own: own.with_constants(elementwise=known["torchtitan"].kernels.elementwise)),
    "nanotron": Unseen(_without_nanotron),
    "vtrain": Unseen(_without_vtrain),
    "llmq": Unseen(_without_llmq),
    "internevo": Unseen(
        lambda known, own: own.with_constants(elementwise=known["llm_foundry"].kernels.elementwise, per_owner=0.0)
    ),
}


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
        unseen = UNSEEN.get(source)
        # Nothing was fitted to this source: its rows are predictions already.
        if unseen is None:
            found |= {place: outcomes[place] for place in places}
            continue
        rows = [outcomes[place].row for place in places]
        others = {name: unseen.framework(known, known[name]) for name in {row.framework for row in rows}}
        found |= dict(zip(places, play_on(rows, others, jobs, path=kept, changes=unseen.changes), strict=True))
    return tuple(found[place] for place in range(len(outcomes)))
