"""How much HBM does a rank use over time, by category, and how far is this from the capacity?

Memory changes in steps, so areas are steps without smoothing; the peak is always drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Final, Literal

from simulator.basics.units import byte_unit, format_memory, format_time
from simulator.records.memory_margin import MemoryMargin
from simulator.records.timeline import MemorySample, by_rank
from simulator.report.numbers.memory_steps import thinned
from simulator.report.plots import style
from simulator.report.plots.plot import CloseUp, CloseUpPlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# The smallest of more categories are merged: more layers are indistinguishable.
_MOST_CATEGORIES: Final = 8
# More steps than pixels are invisible; the highest of each bin is kept.
_MOST_STEPS: Final = 2000
# White edges between layers would hide thin layers if more steps lie side by side.
_MOST_EDGES: Final = 300
# A capacity beyond this multiple of the peak is not drawn: its line would flatten everything else.
FARTHEST_LINE: Final = 2.5
# Above this multiple of the peak, the allocator loses memory to fragmentation: show the reserved memory too.
_HOLES: Final = 1.05
# Categories below this share of the peak have no bytes in the legend.
_NOTHING: Final = 1e-3


def peak_of(samples: Sequence[MemorySample]) -> MemorySample:
    """Return the memory sample of a rank with the most bytes; ties go to the first.

    Raises
    ------
    ValueError
        No samples, or samples of several ranks.
    """
    if not samples:
        raise ValueError("no memory samples; a program without allocations has no memory to draw")
    ranks = sorted({sample.rank for sample in samples})
    if len(ranks) > 1:
        raise ValueError(f"got samples of ranks {ranks[0]}, {ranks[1]}, ...; must be of one rank")
    return max(samples, key=lambda sample: (sample.nbytes, -sample.time))


def finding(samples: Sequence[MemorySample], margin: MemoryMargin | None = None) -> str:
    """Return a sentence on a rank's memory peak: bytes, time, largest category, and whether the step fits.

    Examples
    --------
    >>> gib = 2**30
    >>> sample = MemorySample(0, 0.5, 6 * gib, (("activations", 4 * gib), ("parameters", 2 * gib)))
    >>> finding([sample], MemoryMargin(7 * gib, 8 * gib))
    'rank 0 peaks at 6 GiB after 500 ms (67 % activations); the step fits in 8 GiB (reserved memory 7 GiB, 1 GiB free)'
    """
    peak = peak_of(samples)
    sentence = f"rank {peak.rank} peaks at {format_memory(peak.nbytes)} after {format_time(peak.time)}"
    if peak.nbytes:
        name, most = max(peak.by_category, key=lambda item: item[1])
        sentence += f" ({style.percent(most / peak.nbytes)} {name})"
    return f"{sentence}; the step {margin.verdict}" if margin else sentence


def over_time(
    samples: Sequence[MemorySample],
    capacity: float = float("inf"),
    *,
    reserved: Sequence[tuple[float, int]] = (),
    end: float | None = None,
    title: str = "",
) -> Figure:
    """Return a figure of a rank's memory over time, stacked by category, with the capacity as a line.

    Parameters
    ----------
    samples : sequence of MemorySample
        Samples of a rank, in order.
    capacity : float
        [B]; no line if infinite.
    reserved : sequence of (float, int)
        Bytes that an allocator holds from the device: start [s], [B]; the difference from the areas is cached or lost
        to fragmentation.
    end : float, optional
        End of the last sample's validity [s]; its own time if omitted.
    title : str
        Replaces the finding.

    Raises
    ------
    ValueError
        No samples, or samples of several ranks.
    """
    peak = peak_of(samples)
    last = max(samples[-1].time, samples[-1].time if end is None else end)
    names, layers, times = _layers(samples, last)
    colour = style.colours(names)
    with style.applied():
        fig = style.new_figure(9.0, 4.6)
        axes = fig.subplots()
        bottom = [0.0] * len(times)
        # Stack from the bottom: each area starts at the previous area's top.
        for name in names:
            top = [low + value for low, value in zip(bottom, layers[name], strict=True)]
            axes.fill_between(times, bottom, top, step="post", color=colour[name], linewidth=0, label=name)
            if len(times) <= _MOST_EDGES:
                axes.step(times, top, where="post", color="white", linewidth=0.5)
            bottom = top
        axes.set_xlim(min(0.0, times[0]), last if last > times[0] else times[0] + 1e-9)
        style.time_axis(axes, last)
        if reserved:
            axes.step([*(time for time, _ in reserved), last], [*(n for _, n in reserved), reserved[-1][1]],
                      where="post", color=style.BLACK, linewidth=1.2, label="reserved")  # fmt: skip
        most = max([peak.nbytes, *(nbytes for _, nbytes in reserved)])
        # The label of the capacity stands on the side away from the peak.
        highest = _capacity_line(axes, capacity, most, left=2 * peak.time > times[0] + last)
        axes.set_ylim(0, 1.12 * highest or 1.0)
        bytes_axis(axes.yaxis, highest, "HBM in use")
        _mark_peak(axes, peak)
        handles, labels = axes.get_legend_handles_labels()
        peak_bytes = with_rest(dict(peak.by_category), names)
        if reserved:
            peak_bytes["reserved"] = max(nbytes for _, nbytes in reserved)
        entries = [
            f"{name}  {format_memory(peak_bytes[name])}" if peak_bytes.get(name, 0) > _NOTHING * peak.nbytes else name
            for name in labels
        ]
        # Reversed: the legend's order from the top is the stack's order from the top.
        axes.legend(handles[::-1], entries[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0),
                    title="memory at the peak", alignment="left")  # fmt: skip
        style.set_title(fig, title or finding(samples))
    return fig


def _layers(samples: Sequence[MemorySample], end: float) -> tuple[list[str], dict[str, list[float]], list[float]]:
    """Return the areas to stack: category names from the bottom up, bytes per name and sample, and sample times [s]."""
    steps = thinned(samples, end, _MOST_STEPS)
    steps.append(MemorySample(steps[-1].rank, end, steps[-1].nbytes, steps[-1].by_category))
    by_sample = [dict(sample.by_category) for sample in steps]
    names = shown_categories(by_sample)
    heights = [with_rest(by_category, names) for by_category in by_sample]
    return names, {name: [h[name] for h in heights] for name in names}, [sample.time for sample in steps]


def shown_categories(by_sample: Sequence[Mapping[str, int]]) -> list[str]:
    """Return the memory categories to show, from the bottom up: the largest, and a last one for the rest.

    >>> shown_categories([{"activations": 2, "buffers": 0}, {"parameters": 1}])
    ['parameters', 'activations']
    """
    most: dict[str, int] = {}
    for by_category in by_sample:
        for name, nbytes in by_category.items():
            most[name] = max(most.get(name, 0), nbytes)
    names = sorted((name for name in most if most[name]), key=lambda name: (-most[name], name))
    if len(names) > _MOST_CATEGORIES:
        names = [*names[: _MOST_CATEGORIES - 1], style.REST]
    order = list(style.MEMORY)
    # Unknown categories lie between the usual ones and the rest.
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order) - 1.5, name))


def with_rest(by_category: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """Return {name: bytes} for the shown names; bytes of other categories go to the name for the rest, if shown.

    >>> with_rest({"parameters": 4, "buffers": 1, "context": 2}, ["parameters", style.REST])
    {'parameters': 4, 'other': 3}
    """
    parts = {name: by_category.get(name, 0) for name in names}
    if style.REST in parts:
        parts[style.REST] += sum(nbytes for name, nbytes in by_category.items() if name not in parts)
    return parts


def _capacity_line(axes: Axes, capacity: float, highest: float, *, left: bool) -> float:
    """Draw the capacity as a labelled line if it is near the peak; return the highest value of the axis [B]."""
    place = 0.005 if left else 0.995
    side: Literal["left", "right"] = "left" if left else "right"
    if not isfinite(capacity):
        return highest
    if capacity > FARTHEST_LINE * highest:
        axes.text(place, 0.985, f"capacity {format_memory(capacity)} (beyond the axis)", transform=axes.transAxes,
                  ha=side, va="top", color=style.GREY, fontsize=8.5,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0})  # fmt: skip
        return highest
    axes.axhline(capacity, color=style.BLACK, linewidth=1.4, linestyle=(0, (6, 3)))
    axes.annotate(f"capacity {format_memory(capacity)}", (place, capacity), xycoords=("axes fraction", "data"),
                  xytext=(0, 3), textcoords="offset points", ha=side, va="bottom", fontsize=8.5,
                  bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0})  # fmt: skip
    return max(highest, capacity)


def bytes_axis(axis: Axis, highest: float, label: str) -> None:
    """Label an axis of bytes in a unit (MiB, GiB, ...) suitable for the highest value [B]."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    unit, factor = byte_unit(highest)
    axis.set_major_locator(MultipleLocator(tick_step(highest / factor) * factor))
    axis.set_major_formatter(FuncFormatter(lambda nbytes, _: f"{nbytes / factor:g}"))
    axis.set_label_text(f"{label} ({unit})")
    axis.grid(visible=True)


def tick_step(highest: float) -> float:
    """Return the distance of axis ticks: 1, 2 or 5 times a power of ten, with at most eight ticks up to `highest`.

    >>> tick_step(80.0), tick_step(3.0)
    (10.0, 0.5)
    """
    power = 10.0 ** math.floor(math.log10(highest / 8)) if highest > 0 else 1.0
    return next(step * power for step in (1, 2, 5, 10) if highest / (step * power) <= 8 + 1e-9)


def _mark_peak(axes: Axes, peak: MemorySample) -> None:
    """Mark a memory peak with a triangle and its bytes as a label inside the axes."""
    left, right = axes.get_xlim()
    place = (peak.time - left) / (right - left)
    side: Literal["left", "center", "right"] = "left" if place < 0.1 else "right" if place > 0.9 else "center"
    axes.plot([peak.time], [peak.nbytes], marker="v", markersize=7, color=style.BLACK, markeredgecolor="white",
              linestyle="none", clip_on=False)  # fmt: skip
    axes.annotate(f"peak {format_memory(peak.nbytes)}", (peak.time, peak.nbytes), xytext=(0, 7), fontsize=8.5,
                  textcoords="offset points", ha=side, va="bottom", fontweight="bold",
                  bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0})  # fmt: skip


def _of_point(close_up: CloseUp) -> Figure | None:
    """Return the memory figure of the simulated point's rank with the highest peak."""
    peak, end, capacity = close_up.timeline.peak, close_up.timeline.end, close_up.capacity
    if peak is None:
        return None
    samples = by_rank(close_up.timeline.memory)[peak.rank]
    nbytes = close_up.timeline.reserved.get(peak.rank, 0)
    reserved = [(0.0, nbytes)] if nbytes > _HOLES * peak.nbytes else []
    return over_time(samples, capacity, end=end, reserved=reserved, title=finding(samples, close_up.margin))


PLOT = CloseUpPlot(figure=_of_point)
