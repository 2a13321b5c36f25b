"""Do intervals keep their word: do runs of a source that was left out fall inside as often as said?

Rule: a source's runs are taken as if nobody had seen it, and so are the errors of all others, from which their
intervals are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from simulator.calibration.table import Table
from simulator.report.numbers.prediction_intervals import (
    PredictionInterval,
    Quantity,
    Residual,
    Traits,
    prediction_interval,
)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of one source's runs.

    Attributes
    ----------
    source : str
    runs : int
    inside : tuple of float
        Shares of them inside the intervals of 80 and 95 %.
    """

    source: str
    runs: int
    inside: tuple[float, ...]


def coverage(residuals: Sequence[Residual], quantity: Quantity) -> tuple[Coverage, ...]:
    """How often the runs of each source lie inside intervals from all others."""
    found = []
    for source in dict.fromkeys(one.source for one in residuals):
        others = [one for one in residuals if one.source != source]
        mine = [one for one in residuals if one.source == source and quantity in one.unseen]
        if mine:
            found.append(Coverage(source, len(mine), _inside(mine, others, quantity)))
    return tuple(found)


def _inside(mine: Sequence[Residual], others: Sequence[Residual], quantity: Quantity) -> tuple[float, ...]:
    @cache
    def of(traits: Traits) -> PredictionInterval:
        return prediction_interval(traits, quantity, others, unseen=True)

    hits = [[abs(one.unseen[quantity]) <= math.log(width) for width in of(one.traits).width] for one in mine]
    return tuple(fmean(column) for column in zip(*hits, strict=True))


def coverage_table(residuals: Sequence[Residual]) -> Table:
    """Of times and of memory, source by source, and their mean."""
    rows = []
    quantities: tuple[Quantity, ...] = ("time", "memory")
    for quantity in quantities:
        parts = coverage(residuals, quantity)
        rows += [(quantity, part.source, str(part.runs), *(f"{share:.0%}" for share in part.inside)) for part in parts]
        means = (fmean(part.inside[n] for part in parts) for n in range(2))
        rows.append((quantity, "mean of sources", "", *(f"{mean:.0%}" for mean in means)))
    head = ("of", "source left out", "runs", "inside 80 %", "inside 95 %")
    return Table("runs inside their intervals", head, tuple(rows))
