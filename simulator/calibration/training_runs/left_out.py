"""What would be predicted of a source's runs if that source had never been seen?

Rule: every constant that was fitted to a source's rows takes the geometric mean of the values that other sources gave
to the same constant of other frameworks, or, where there are none, the value at which it has no effect. Facts about how
a framework computes stay: they are told by its code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import geometric_mean
from typing import Final

from simulator.calibration.training_runs.playing import PlayedRow, each_played
from simulator.calibration.training_runs.rows import Changes, MeasuredRow
from simulator.step.framework import Framework

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


def _mean(known: Mapping[str, Framework], name: str, others: Sequence[str]) -> float:
    return geometric_mean([float(getattr(known[other], name)) for other in others])


def _without_foundry(known: Mapping[str, Framework], own: Framework) -> Framework:
    """The masked half of attention and copies around collectives are its rows' alone.

    The chips' sustained load is not: with the shipped figures dgxc's rows on H100 and vTrain's on A100 are off by 1 or
    2 % in the middle (docs/validation.md), so that fits to these would give nearly the same.
    """
    return replace(
        own,
        elementwise=_mean(known, "elementwise", ("nanotron", "megatron_2021")),
        attention_masked=0.0,
        parameter_bytes=0.0,
    )


def _without_nanotron(known: Mapping[str, Framework], own: Framework) -> Framework:
    return replace(
        own,
        elementwise=_mean(known, "elementwise", ("llm_foundry", "megatron_2021")),
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
        others = {name: unseen.framework(known, framework) for name, framework in known.items()}
        rows = [outcomes[place].row for place in places]
        for place, outcome in zip(places, each_played(rows, others, jobs, unseen.changes), strict=True):
            found[place] = outcome
            if advance is not None:
                advance()
    return tuple(found[place] for place in range(len(outcomes)))
