"""How do the memory peaks of several settings compare? A bar per setting, by category, against the capacity.

Bars share an axis from 0 and the category order, for comparing equal parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.units import byte_unit, format_memory
from simulator.records.memory_margin import MemoryMargin, margin_of
from simulator.report.plots import style
from simulator.report.plots.plot import ComparedPoints, ComparisonPlot
from simulator.report.plots.stacked_bars import stacked_bars
from simulator.report.plots.training.memory import (
    FARTHEST_LINE,
    bytes_axis,
    shown_categories,
    with_rest,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# More settings are not compared in a picture.
_MOST: Final = 40


@dataclass(frozen=True, slots=True)
class Peak:
    """The memory peak of a setting.

    Attributes
    ----------
    by_category : tuple of (str, int)
        [B]
    """

    label: str  # the setting: "zero3"
    by_category: tuple[tuple[str, int], ...]
    reserved: int = 0  # peak of reserved memory; the sum of the categories if 0 [B]
    # CUDA context and NCCL buffers, which decide with `reserved` whether the setting fits [B]
    beside: int = 0

    @property
    def nbytes(self) -> int:
        """Memory at the peak, summed over categories [B]."""
        return sum(nbytes for _, nbytes in self.by_category)

    def margin(self, capacity: float) -> MemoryMargin:
        """Return the setting's margin in a GPU with `capacity` bytes."""
        return MemoryMargin(self.reserved or self.nbytes, int(capacity), context=self.beside)


def peak_of_report(label: str, report: Mapping[str, Any]) -> Peak:
    """Return the memory peak in a step's report, as a dictionary."""
    margin = margin_of(report)
    by_category = tuple(report["peak_memory_by_category"].items())
    return Peak(label, by_category, margin.reserved, margin.process - margin.reserved)


def finding(peaks: Sequence[Peak], capacity: float = float("inf")) -> str:
    """Return a sentence on the highest and the lowest memory peak, their ratio, and the settings that do not fit.

    Peaks that are equal, or differ by less than the printed digits, are called equal.

    Raises
    ------
    ValueError
        No settings.

    Examples
    --------
    >>> gib = 2**30
    >>> finding([Peak("ddp", (("optimizer", 12 * gib),)), Peak("zero3", (("optimizer", 3 * gib),))], 8 * gib)
    'ddp needs 12 GiB, 4.0x as much as zero3 (3 GiB); ddp does not fit in 8 GiB'
    """
    if not peaks:
        raise ValueError("no settings to compare; give the peak of at least one setting")
    low = min(peaks, key=lambda peak: peak.nbytes)
    high = max(peaks, key=lambda peak: peak.nbytes)
    if format_memory(low.nbytes) == format_memory(high.nbytes):
        # Peaks that print the same text have no highest and no lowest.
        who = f"all {len(peaks)} settings peak at" if len(peaks) > 1 else f"{low.label} needs"
        return f"{who} {format_memory(high.nbytes)}{_who_fits(peaks, capacity)}"
    times = f"{high.nbytes / low.nbytes:.1f}x as much as" if low.nbytes else "more than"
    return (
        f"{high.label} needs {format_memory(high.nbytes)}, {times} {low.label} ({format_memory(low.nbytes)})"
        f"{_who_fits(peaks, capacity)}"
    )


def _who_fits(peaks: Sequence[Peak], capacity: float) -> str:
    """Return the end of a sentence naming the settings that do not fit; "" for infinite capacity."""
    if not isfinite(capacity):
        return ""
    margins = [peak.margin(capacity) for peak in peaks]
    if len(peaks) == 1:
        return f"; it {margins[0].verdict}"
    over = [peak.label for peak, margin in zip(peaks, margins, strict=True) if not margin.fits]
    if not over:
        return f"; all settings fit in {format_memory(capacity)}"
    if len(over) == len(peaks):
        return f"; no setting fits in {format_memory(capacity)}"
    who = f"{', '.join(over[:-1])} and {over[-1]} do" if len(over) > 1 else f"{over[0]} does"
    return f"; {who} not fit in {format_memory(capacity)}"


def composition(peaks: Sequence[Peak], capacity: float = float("inf"), *, title: str = "") -> Figure:
    """Return a figure with a bar of peak memory per setting, split by category, with the capacity as a line.

    Parameters
    ----------
    peaks : sequence of Peak
        Settings in the order of the bars, from the top.
    capacity : float
        [B]; no line if infinite, or so far away that everything else would be flat.
    title : str
        Replaces the finding.

    Raises
    ------
    ValueError
        No settings.
    """
    headline = title or finding(peaks, capacity)
    peak_bytes = [dict(peak.by_category) for peak in peaks]
    names = shown_categories(peak_bytes)
    bars = [with_rest(h, names) for h in peak_bytes]
    most_held = max(peak.nbytes for peak in peaks)
    near = capacity <= FARTHEST_LINE * most_held
    highest = max(most_held, capacity) if near else most_held
    with style.applied():
        fig = style.new_figure(9.0, 1.7 + 0.5 * len(peaks))
        axes = fig.subplots()
        axes.set_xlim(0, 1.22 * highest or 1.0)
        bytes_axis(axes.xaxis, highest, "HBM at the peak")
        factor = byte_unit(highest)[1]
        stacked_bars(axes, bars, names, style.colours(names), longest=highest, number=lambda n: f"{n / factor:.3g}")
        for place, peak in enumerate(peaks):
            over = isfinite(capacity) and not peak.margin(capacity).fits
            axes.annotate(format_memory(peak.nbytes) + (", too large" if over else ""), (peak.nbytes, place),
                          xytext=(4, 0), textcoords="offset points", ha="left", va="center", fontweight="bold",
                          fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0})  # fmt: skip
        axes.set_yticks(range(len(peaks)), [peak.label for peak in peaks])
        axes.set_ylim(len(peaks) - 0.45, -0.75 if near else -0.55)
        if near:
            _capacity_line(axes, capacity)
        fig.legend(loc="outside lower left", ncols=min(len(names), 5))
        style.set_title(fig, headline)
    return fig


def _capacity_line(axes: Axes, capacity: float) -> None:
    """Draw the memory capacity as a labelled vertical line."""
    axes.axvline(capacity, color=style.BLACK, linewidth=1.4, linestyle=(0, (6, 3)))
    axes.annotate(f"capacity {format_memory(capacity)}", (capacity, 1.0), xycoords=("data", "axes fraction"),
                  xytext=(-4, -2), textcoords="offset points", ha="right", va="top", fontsize=8.5)  # fmt: skip


def _of_steps(compared: ComparedPoints) -> dict[str, Figure]:
    """Return the memory-peak figure of compared training steps; empty for a single setting or too many."""
    peaks = [peak_of_report(label, report) for label, report in compared.rows]
    if not 1 < len(peaks) <= _MOST:
        return {}
    capacities = {report["capacity_bytes"] for _, report in compared.rows}
    # GPUs of several kinds have no common capacity.
    return {"memory_peaks": composition(peaks, float(capacities.pop()) if len(capacities) == 1 else float("inf"))}


PLOT = ComparisonPlot(figures=_of_steps)
