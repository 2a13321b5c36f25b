"""How does a plot's module declare itself? By its data source and its drawing function.

There is a class for each data source: all compared points, a point's timeline, a schedule. A plot with another source
adds a class here, and `results/pictures.py` supplies the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from simulator.records.memory_margin import MemoryMargin, margin_of_timeline
from simulator.records.schedule import Schedule
from simulator.records.timeline import Timeline
from simulator.report.numbers.algorithm_crossovers import Crossing, ScalingPoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Throughput(NamedTuple):
    """Speed and MFU of a training run on a given number of GPUs.

    Attributes
    ----------
    tokens_per_s, mfu : float
        Throughput of all GPUs [tokens/s or samples/s]; model FLOPs utilisation.
    low, high : float or None
        80 % prediction interval of the throughput; None if unknown.
    """

    line: str  # settings shared with points that differ only in the number of GPUs
    gpus: int  # number of GPUs
    tokens_per_s: float
    mfu: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class ComparedPoints:
    """All simulated points of a scenario."""

    rows: Sequence[tuple[str, Mapping[str, Any]]]  # reports as plain data, as in report.json
    times: Sequence[ScalingPoint] = ()  # collectives: time by algorithm, workers and size
    crossings: Sequence[Crossing] = ()  # collectives: searched crossovers
    throughputs: Sequence[Throughput] = ()  # training steps on clusters of several sizes; empty for a single size


@dataclass(frozen=True, slots=True)
class CloseUp:
    """A simulated point of a sweep with its whole timeline, for plots of a single point."""

    timeline: Timeline
    capacity: float  # HBM of a GPU [B]
    groups: Mapping[str, Sequence[int]] | None = None  # given if lanes name the ranks
    slow: tuple[int, ...] = ()  # stragglers declared by the scenario, which are always drawn

    @property
    def margin(self) -> MemoryMargin | None:
        """Margin of the rank with the least free memory; None if nothing is allocated, or memory is not limited."""
        if self.timeline.peak is None or not isfinite(self.capacity):
            return None
        return margin_of_timeline(self.timeline, lambda _: int(self.capacity))


@dataclass(frozen=True, slots=True)
class Plot:
    """Base class of plots: a plot's module declares an instance as PLOT; the module's name is the plot's name."""


@dataclass(frozen=True, slots=True)
class ComparisonPlot(Plot):
    """A plot of all points together."""

    figures: Callable[[ComparedPoints], Mapping[str, Figure]]  # empty if there is nothing to compare


@dataclass(frozen=True, slots=True)
class CloseUpPlot(Plot):
    """A plot of a single simulated point's timeline."""

    figure: Callable[[CloseUp], Figure | None]  # None if there is nothing to see, or too much
    links: bool = False  # if True, the plot shows links: the point is simulated without closed forms, which use no link


@dataclass(frozen=True, slots=True)
class SchedulePlot(Plot):
    """A plot of a collective's schedule (rounds of transfers), without times."""

    figure: Callable[[Schedule], Figure | None]
