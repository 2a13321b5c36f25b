"""What does a plot's file declare: what it is drawn from, and by which function?

Rule: one class for each thing that a plot may be drawn from: all points compared, one point's timeline, a schedule. A
plot that needs something else adds a class here, and says in `results/pictures.py` where that comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from simulator.records.schedule import Schedule
from simulator.records.timeline import Timeline
from simulator.report.numbers.scaling import Crossing, ScalingPoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Throughput(NamedTuple):
    """How fast one point of a training sweep is.

    Attributes
    ----------
    line : str
        What it has in common with others but their number of GPUs.
    gpus : int
    tokens_per_s, mfu : float
    low, high : float or None
        Between these 80 % of measured runs lie [tokens/s]; None where nothing is known.
    """

    line: str
    gpus: int
    tokens_per_s: float
    mfu: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All points of a scenario that were played.

    Attributes
    ----------
    rows : sequence of (label, report)
        Each report as plain data, as report.json has it.
    times : sequence of ScalingPoint
        Of collectives: time by algorithm, workers and size.
    crossings : sequence of Crossing
        Of collectives: where the lead changes, as it was searched for.
    throughputs : sequence of Throughput
        Of training steps on clusters of several sizes; empty where there is one size.
    """

    rows: Sequence[tuple[str, Mapping[str, Any]]]
    times: Sequence[ScalingPoint] = ()
    crossings: Sequence[Crossing] = ()
    throughputs: Sequence[Throughput] = ()


@dataclass(frozen=True, slots=True)
class CloseUp:
    """One point, played again to be looked at.

    Attributes
    ----------
    timeline : Timeline
    capacity : float
        HBM of a GPU [B].
    groups : mapping of a collective's name to ranks, or None
        Where lanes are to name them.
    slow : tuple of int
        Ranks that are slower than others by the scenario's word: they are always among those drawn.
    """

    timeline: Timeline
    capacity: float
    groups: Mapping[str, Sequence[int]] | None = None
    slow: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """What a plot's module declares as PLOT; the plot's name in scenario files is the name of its module."""


@dataclass(frozen=True, slots=True)
class ComparisonPlot(Plot):
    """A plot of all points together.

    Attributes
    ----------
    figures : function (Comparison) -> mapping of file name to figure
        Empty where there is nothing to compare.
    """

    figures: Callable[[Comparison], Mapping[str, Figure]]


@dataclass(frozen=True, slots=True)
class CloseUpPlot(Plot):
    """A plot of one played point.

    Attributes
    ----------
    figure : function (CloseUp) -> figure or None
        None where there is nothing to see, or too much.
    links : bool
        Whether it shows links: the point is then played without closed forms, which are on no link.
    """

    figure: Callable[[CloseUp], Figure | None]
    links: bool = False


@dataclass(frozen=True, slots=True)
class SchedulePlot(Plot):
    """A plot of a schedule, without a clock.

    Attributes
    ----------
    figure : function (Schedule) -> figure or None
    """

    figure: Callable[[Schedule], Figure | None]
