"""Which pipeline stage needs most memory, and for which category? A bar per stage at the stage's peak.

A single rank represents each stage: the first whose operations are kept.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

from simulator.basics.units import format_memory
from simulator.records.memory_margin import MemoryMargin
from simulator.records.timeline import MemorySample, by_rank
from simulator.report.plots import style
from simulator.report.plots.plot import CloseUp, CloseUpPlot
from simulator.report.plots.stacked_bars import stacked_bars
from simulator.report.plots.training.memory import (
    FARTHEST_LINE,
    bytes_axis,
    peak_of,
    shown_categories,
    with_rest,
)
from simulator.report.plots.training.pipeline import first_of_stages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH: Final = 9.0


def finding(peaks: list[MemorySample], margin: MemoryMargin | None = None) -> str:
    """Return a sentence on the pipeline stages with most and least peak memory, and whether the step fits.

    Examples
    --------
    >>> samples = [MemorySample(0, 0.0, 3 * 2**30, (("activations", 3 * 2**30),)), MemorySample(1, 0.0, 2**30, ())]
    >>> finding(samples)
    'stage 0 needs the most memory (3 GiB, 100 % activations), stage 1 the least (1 GiB)'
    """
    order = sorted(range(len(peaks)), key=lambda stage: (-peaks[stage].nbytes, stage))
    most, least = peaks[order[0]], peaks[order[-1]]
    name, largest = max(most.by_category, key=lambda item: item[1])
    of_it = style.percent(largest / most.nbytes)
    return (
        f"stage {order[0]} needs the most memory ({format_memory(most.nbytes)}, {of_it} {name}), stage {order[-1]} the "
        f"least ({format_memory(least.nbytes)})" + (f"; the step {margin.verdict}" if margin else "")
    )


def figure(close_up: CloseUp) -> Figure | None:
    """Return a figure with a bar of peak memory per pipeline stage, by category; None without a pipeline."""
    samples = by_rank(close_up.timeline.memory)
    ranks = [rank for rank in first_of_stages(close_up.timeline) if rank in samples]
    if len(ranks) < 2:
        return None
    peaks = [peak_of(samples[rank]) for rank in ranks]
    by_stage = [dict(peak.by_category) for peak in peaks]
    names, highest = shown_categories(by_stage), float(max(peak.nbytes for peak in peaks))
    with style.applied():
        fig = style.new_figure(_WIDTH, 1.9 + 0.36 * len(peaks))
        axes = fig.subplots()
        stacked_bars(axes, [with_rest(by_category, names) for by_category in by_stage], names, style.colours(names))
        if isfinite(close_up.capacity) and close_up.capacity <= FARTHEST_LINE * highest:
            line = axes.axvline(close_up.capacity, color=style.BLACK, linewidth=1.4, linestyle=(0, (6, 3)))
            line.set_label(f"capacity {format_memory(close_up.capacity)}")
            highest = max(highest, close_up.capacity)
        axes.set_yticks(range(len(peaks)), [f"stage {stage} (rank {rank})" for stage, rank in enumerate(ranks)])
        axes.set_xlim(0, highest * 1.04)
        bytes_axis(axes.xaxis, highest, "peak memory of the stage")
        fig.legend(loc="outside lower left", ncols=4, frameon=False)
        style.set_title(fig, finding(peaks, close_up.margin))
    return fig


PLOT = CloseUpPlot(figure=figure)
