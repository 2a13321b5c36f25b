"""Where a step's time goes: one bar a run, cut into kernels, recomputation, optimizer, bare communication and idling.

Rule: draws reports' numbers, computes none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from simulator.report import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PARTS: Final = ("forward and backward", "recompute", "optimizer", "communication that nothing hides", "idle")


def parts(report: Mapping[str, Any]) -> tuple[float, ...]:
    """Seconds of each part of a training report; they add up to the step.

    Examples
    --------
    >>> parts({"compute_time_s": 5.0, "recompute_time_s": 1.0, "optimizer_time_s": 0.5, "exposed_comm_time_s": 0.25,
    ...        "bubble_time_s": 0.0})
    (3.5, 1.0, 0.5, 0.25, 0.0)
    """
    recompute, optimizer = report["recompute_time_s"], report["optimizer_time_s"]
    passes = report["compute_time_s"] - recompute - optimizer
    return passes, recompute, optimizer, report["exposed_comm_time_s"], report["bubble_time_s"]


def figure(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Figure:
    """Draw a bar for each run.

    Parameters
    ----------
    rows : sequence of (label, training report)
    """
    with style.applied():
        drawn = style.new_figure(9.0, 1.6 + 0.42 * len(rows))
        axes = drawn.subplots()
        colours = style.colours(_PARTS)
        left = [0.0] * len(rows)
        for i, part in enumerate(_PARTS):
            widths = [parts(report)[i] for _, report in rows]
            axes.barh(range(len(rows)), widths, left=left, color=colours[part], label=part, height=0.7)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for i, (_, report) in enumerate(rows):
            axes.text(left[i], i, f" {report['mfu']:.0%} MFU", va="center", fontsize=9)
        axes.set_yticks(range(len(rows)), [label for label, _ in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, max(left) * 1.12)
        style.time_axis(axes, max(left))
        axes.set_ylabel("")
        drawn.legend(loc="outside lower left", ncols=3, frameon=False)
        style.set_title(drawn, finding(rows))
    return drawn


def finding(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Say which run is fastest, and what its communication costs it."""
    label, best = min(rows, key=lambda row: row[1]["step_time_s"])
    bare = best["exposed_comm_time_s"] / best["step_time_s"]
    name = f"{label}: " if len(rows) == 1 else f"{label} is fastest: "
    return f"{name}{best['step_time_s']:.3g} s a step, {bare:.0%} of it communication that nothing hides"
