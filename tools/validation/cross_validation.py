"""What would be predicted of a source's runs if that source had never been seen?

Rule: every constant that was fitted to a source's rows takes the value that rows of the likest other framework give,
one that runs eager kernels too, or merged ones; where there is none, the value at which it has no effect. Where that
framework's shipped value is the source's own, it is fitted anew to that framework's rows. Facts about how a framework
computes stay: they are told by its code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from simulator.basics.arrays import Floats
from simulator.calibration.training_runs.playing import PlayedRow, each_played, play_rows
from simulator.calibration.training_runs.rows import Changes, MeasuredRow, measured
from simulator.step.framework import Framework

# Where the search for an eager framework's two numbers begins (a factor, and B a parameter), from where on errors count
# by their size and no longer by its square, and how often the search goes on at most.
_START: Final = (2.0, 10.0)
_OUTLIER: Final = 0.05
_MOST_TRIED: Final = 12
# Tables of one source.
SOURCES: Final[Mapping[str, str]] = {"nanotron_cut": "nanotron", "vtrain_composed": "vtrain"}


@dataclass(frozen=True, slots=True)
class Unseen:
    """What is known without one source.

    Attributes
    ----------
    framework : function (the frameworks as shipped, one of them) -> Framework
        What is left of it.
    changes : Changes
        Constants of the source's GPUs.
    """

    framework: Callable[[Mapping[str, Framework], Framework], Framework] = field(default=lambda known, own: own)
    changes: Changes = ()


def _without_foundry(known: Mapping[str, Framework], own: Framework) -> Framework:
    """Eager kernels and copies around collectives as torchtitan's rows have them; attention's masked half is unknown.

    The chips' sustained load is not: with the shipped figures dgxc's rows on H100 and vTrain's on A100 are off by 1 or
    2 % in the middle (docs/validation.md), so that fits to these would give nearly the same.
    """
    elementwise, parameter_bytes = _of_torchtitan(known["torchtitan"])
    return replace(own, elementwise=elementwise, attention_masked=0.0, parameter_bytes=parameter_bytes)


def _of_torchtitan(framework: Framework) -> tuple[float, float]:
    """Elementwise time and bytes a parameter that its own rows ask for; those that it ships with are llm-foundry's."""
    import numpy as np
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    rows = measured("torchtitan")

    def off(constants: Floats) -> Floats:
        elementwise, parameter_bytes = np.exp(constants).tolist()
        changed = replace(framework, elementwise=elementwise, parameter_bytes=parameter_bytes)
        played = play_rows(rows, {framework.name: changed}, 1)
        return np.log([1.0 + outcome.time_error for outcome in played])

    found = least_squares(off, np.log(_START), loss="soft_l1", f_scale=_OUTLIER, max_nfev=_MOST_TRIED, diff_step=0.02)
    elementwise, parameter_bytes = np.exp(found.x).tolist()
    return elementwise, parameter_bytes


def _without_nanotron(known: Mapping[str, Framework], own: Framework) -> Framework:
    """As llm-foundry, which runs eager kernels too, with the only other host whose kernels were told apart."""
    return replace(
        own,
        elementwise=known["llm_foundry"].elementwise,
        streaming=1.0,
        issue=known["megatron_2021"].issue,
        issue_in_pipeline=0.0,
    )


def _without_vtrain(known: Mapping[str, Framework], own: Framework) -> Framework:
    """The rows of SC21 ask for the same elementwise kernels."""
    return replace(own, issue=known["nanotron"].issue)


def _without_simumax(known: Mapping[str, Framework], own: Framework) -> Framework:
    """A chip that nobody has measured takes the middle of those that somebody has."""
    return replace(own, sustained={chip: load for chip, load in own.sustained.items() if chip != "B200"})


# Sources that gave no constant change nothing: dgxc, and the runs of SC21 beside vTrain's.
UNSEEN: Final[Mapping[str, Unseen]] = {
    "foundry": Unseen(_without_foundry),
    "torchtitan": Unseen(lambda known, own: replace(own, compiled=1.0)),
    "nanotron": Unseen(_without_nanotron),
    "vtrain": Unseen(_without_vtrain),
    "simumax": Unseen(_without_simumax, (("elementwise", 1.0),)),
}


def source_of(row: MeasuredRow) -> str:
    """Who measured it, whatever table it stands in."""
    return SOURCES.get(row.table, row.table)


def play_unseen(
    outcomes: Sequence[PlayedRow],
    known: Mapping[str, Framework],
    jobs: int = 2,
    advance: Callable[[], None] | None = None,
) -> tuple[PlayedRow, ...]:
    """Play rows as if nobody had seen their source; those of sources that gave no constant are as they were."""
    found: dict[int, PlayedRow] = {}
    for source in dict.fromkeys(source_of(outcome.row) for outcome in outcomes):
        places = [place for place, outcome in enumerate(outcomes) if source_of(outcome.row) == source]
        unseen = UNSEEN.get(source)
        if unseen is None:
            found |= {place: outcomes[place] for place in places}
            continue
        rows = [outcomes[place].row for place in places]
        others = {name: unseen.framework(known, known[name]) for name in {row.framework for row in rows}}
        for place, outcome in zip(places, each_played(rows, others, jobs, unseen.changes), strict=True):
            found[place] = outcome
            if advance is not None:
                advance()
    return tuple(found[place] for place in range(len(outcomes)))
