"""Do prediction intervals contain as many runs as stated? Checked by cross-validation over sources.

A source's runs are simulated without constants fitted to this source. Their intervals come from the errors of the
other sources, simulated in the same way. With honest intervals, 80 % of the runs lie inside the 80 % interval."""

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
    """Coverage for the runs of a source.

    Attributes
    ----------
    source : str
        The source left out.
    runs : int
        Number of its runs.
    inside : tuple of float
        Shares of the runs inside the 80 % and 95 % intervals.
    """

    source: str
    runs: int
    inside: tuple[float, ...]


def coverage(residuals: Sequence[Residual], quantity: Quantity) -> tuple[Coverage, ...]:
    """Return how often each source's runs lie inside intervals from the other sources."""
    found = []
    for source in dict.fromkeys(one.source for one in residuals):
        others = [one for one in residuals if one.source != source]
        mine = [one for one in residuals if one.source == source and quantity in one.unseen]
        if mine:
            found.append(Coverage(source, len(mine), _inside(mine, others, quantity)))
    return tuple(found)


def _inside(mine: Sequence[Residual], others: Sequence[Residual], quantity: Quantity) -> tuple[float, ...]:
    # Runs with equal traits have the same interval, and few traits exist.
    @cache
    def of(traits: Traits) -> PredictionInterval:
        return prediction_interval(traits, quantity, others, unseen=True)

    hits = [[abs(one.unseen[quantity]) <= math.log(width) for width in of(one.traits).width] for one in mine]
    return tuple(fmean(column) for column in zip(*hits, strict=True))


def coverage_table(residuals: Sequence[Residual]) -> Table:
    """Return the coverage of times and memory by source, and the mean over sources."""
    rows = []
    quantities: tuple[Quantity, ...] = ("time", "memory")
    for quantity in quantities:
        parts = coverage(residuals, quantity)
        rows += [(quantity, part.source, str(part.runs), *(f"{share:.0%}" for share in part.inside)) for part in parts]
        # Sources count equally: large sources would otherwise decide alone.
        means = (fmean(part.inside[n] for part in parts) for n in range(2))
        rows.append((quantity, "mean of sources", "", *(f"{mean:.0%}" for mean in means)))
    head = ("of", "source left out", "runs", "inside 80 %", "inside 95 %")
    return Table("runs inside their intervals", head, tuple(rows))
