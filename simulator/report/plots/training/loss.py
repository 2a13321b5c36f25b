"""How does the loss of real trainings fall, by step and by simulated time?

Draws the reports' numbers and computes none. Crosses are skipped steps, a square is a stopped training, a diamond the
last loss before NaN. If all runs take the same time, a panel over time would repeat the first panel; instead it shows
each run's distance from the first run, and runs that coincide with the first appear only there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simulator.basics.units import format_time
from simulator.report.plots import style
from simulator.report.plots.plot import ComparedPoints, ComparisonPlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = tuple[str, Mapping[str, Any]]
Learned = tuple[str, Mapping[str, Any]]
# Last losses that differ by more than this share are named in the title; closer losses coincide in the picture.
_APART: Final = 0.005
# Total characters per row of the legend.
_LEGEND: Final = 120
# Below float32's resolution of a loss. The axis is linear below this value, which puts equal runs at 0.
_NOTHING: Final = 1e-8


def figure(rows: Sequence[Row]) -> Figure:
    """Return a figure with a loss line for each real training run: a panel by step, a panel by simulated time.

    Parameters
    ----------
    rows : sequence of (label, training report with `learning`)
    """
    runs = [(label, _numbers(report["learning"])) for label, report in rows]
    with style.applied():
        fig = style.new_figure(11.0, 4.4 + 0.1 * len(runs))
        by_step, second = fig.subplots(1, 2, sharey=not _same_times(runs))
        colours = style.colours([label for label, _ in runs])
        # With equal times, the second panel shows the runs that the first panel cannot separate.
        visible = _distinct_runs(runs) if _same_times(runs) else runs
        for (label, learning), width in zip(visible, _widths(visible), strict=True):
            near = f" ({len(runs) - len(visible)} more within {100 * _APART:g} %)" if label == runs[0][0] else ""
            text = f"{label}{near if len(visible) < len(runs) else ''}"
            _line(by_step, range(len(learning["losses"])), learning, colours[label], width, text)
            if not _same_times(runs):
                _line(second, learning["ended_s"], learning, colours[label], width, label)
        _step_axis(by_step)
        by_step.set_ylabel("loss (nats per token)")
        if _same_times(runs):
            _distances(fig, second, runs, colours)
        else:
            style.time_axis(second, max(max(learning["ended_s"], default=0.0) for _, learning in runs))
            second.set_xlabel(f"simulated {second.get_xlabel()}")
        _legend(fig, by_step, visible, _LEGEND // 2 if _same_times(runs) else _LEGEND)
        style.set_title(fig, finding(rows))
    return fig


def _step_axis(axes: Axes) -> None:
    """Label an axis with whole training steps."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("step (from 0)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(fig: Figure, axes: Axes, runs: Sequence[Learned], letters: int) -> None:
    """Draw a legend below the panels: the runs, and the markers for skipped steps, stopped runs and NaN losses."""
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    for marker, happened in (("x", "skipped"), ("s", "stopped"), ("D", "then NaN")):
        hits = (_last_before_nan(learning) is not None if marker == "D" else learning[happened] for _, learning in runs)
        if any(hits):
            handles.append(Line2D([], [], color=style.BLACK, marker=marker, linestyle="none"))
            labels.append(happened)
    fig.legend(handles, labels, loc="outside lower left", ncols=_columns(labels, letters), alignment="left")


def _columns(labels: Sequence[str], letters: int) -> int:
    """Return the number of legend columns for at most `letters` letters per row."""
    return min(len(labels), max(1, letters // (max(map(len, labels)) + 6)))


def _distinct_runs(runs: Sequence[Learned]) -> list[Learned]:
    """Return the first run, and runs with visibly different losses, skipped steps or an early end."""
    first = np.array(runs[0][1]["losses"])
    visible = [runs[0]]
    for run in runs[1:]:
        losses = np.array(run[1]["losses"])
        common = min(len(losses), len(first))
        near = np.isfinite(losses).all() and np.allclose(losses[:common], first[:common], rtol=_APART)
        if not near or run[1]["stopped"] or run[1]["skipped"] or common < len(first):
            visible.append(run)
    return visible


def _distances(fig: Figure, axes: Axes, runs: Sequence[Learned], colours: Mapping[str, str]) -> None:
    """Draw |loss - first run's loss| by step for each run; without a difference, only the legend names the run."""
    from matplotlib.lines import Line2D

    equal = [label for label, learning in runs[1:] if not _distance(axes, runs[0][1], learning, colours[label], label)]
    _step_axis(axes)
    axes.set_yscale("symlog", linthresh=_NOTHING)
    axes.set_ylim(0)
    axes.set_ylabel(f"loss difference from {runs[0][0]} (nats)")
    handles, labels = axes.get_legend_handles_labels()
    handles += [Line2D([], [], linestyle="none") for _ in equal]
    words = [*labels, *(f"{label}: no difference" for label in equal)]
    fig.legend(handles, words, loc="outside lower right", ncols=_columns(words, _LEGEND // 2), alignment="left")


def _numbers(learning: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a training's numbers with NaN in place of missing losses (JSON stores non-finite losses as null)."""
    return {**learning, "losses": [float("nan") if loss is None else loss for loss in learning["losses"]]}


def _same_times(runs: Sequence[Learned]) -> bool:
    """Return True if there are several runs and each common step ended at the same simulated time in all of them."""
    if len(runs) < 2:
        return False
    common = min(len(learning["ended_s"]) for _, learning in runs)
    first = runs[0][1]["ended_s"][:common]
    return all(np.allclose(learning["ended_s"][:common], first, rtol=1e-3) for _, learning in runs)


def _widths(runs: Sequence[Learned]) -> list[float]:
    """Return a line width [pt] per run: if losses coincide, later lines are thinner and every run stays visible."""
    last = [learning["losses"][-1] for _, learning in runs if learning["losses"] and not learning["stopped"]]
    coincide = len(last) < 2 or max(last) - min(last) <= _APART * min(last) or not np.isfinite(last).all()
    more = min(1.6, 6.0 / len(runs)) if coincide else 0.0
    return [1.5 + more * (len(runs) - 1 - number) for number in range(len(runs))]


def _line(
    axes: Axes, along: Sequence[float], learning: Mapping[str, Any], colour: str, width: float, label: str
) -> None:
    """Draw a run's losses as a line, with marks at skipped steps, a stop, and the last loss before NaN."""
    losses, skipped = learning["losses"], list(learning["skipped"])
    # A line through a single step would be invisible: draw a point.
    axes.plot(along, losses, "o" if len(losses) == 1 else "-", color=colour, label=label, linewidth=width)
    axes.plot([along[n] for n in skipped], [losses[n] for n in skipped], "x", color=style.BLACK, markersize=6)
    last = _last_before_nan(learning)
    if last is not None:
        axes.plot(along[last : last + 1], losses[last : last + 1], "D", color=colour, markersize=8,
                  markeredgecolor=style.BLACK)  # fmt: skip
    if learning["stopped"] and losses:
        axes.plot(along[-1:], losses[-1:], "s", color=colour, markersize=9, markeredgecolor=style.BLACK)


def _last_before_nan(learning: Mapping[str, Any]) -> int | None:
    """Return the number of the last step with a finite loss; None if every loss is finite, or none."""
    sound = np.isfinite(learning["losses"])
    return None if sound.all() or not sound.any() else int(np.flatnonzero(sound)[-1])


def _distance(axes: Axes, first: Mapping[str, Any], learning: Mapping[str, Any], colour: str, label: str) -> bool:
    """Draw a run's |loss - first run's loss| by step; return False, and draw nothing, if there is no difference."""
    common = min(len(first["losses"]), len(learning["losses"]))
    distances = np.abs(np.array(learning["losses"][:common]) - np.array(first["losses"][:common]))
    if not np.nanmax(distances, initial=0.0) > 0:
        return False
    axes.plot(range(common), distances, color=colour, linewidth=1.5, label=label)
    return True


def finding(rows: Sequence[Row]) -> str:
    """Return a sentence on how far the last losses of the runs differ, and which run ends first."""
    runs = [(label, _numbers(report["learning"])) for label, report in rows if report["learning"]["losses"]]
    complete = [(label, learning) for label, learning in runs if not learning["stopped"]]
    cut = [(label, learning) for label, learning in runs if learning["stopped"]]
    ends = [f"{label} stops before step {len(learning['losses'])}" for label, learning in cut]
    lost = [label for label, learning in complete if not np.isfinite(learning["losses"][-1])]
    ends += [f"{label} ends with loss NaN" for label in lost]
    sound = [(label, learning) for label, learning in complete if label not in lost]
    if not sound:
        return "; ".join(ends) or "no run completed a step"
    return "; ".join([*_sound(sound), *ends])


def _sound(runs: Sequence[Learned]) -> list[str]:
    """Return sentence parts on runs with a finite last loss: first run to end, difference of last losses."""
    first, best = min(runs, key=lambda run: run[1]["ended_s"][-1])
    soon = best["ended_s"][-1]
    steps = f"{len(best['losses'])} steps"
    if len(runs) == 1:
        return [f"{first} completes {steps} after {format_time(soon)} with loss {best['losses'][-1]:.4g}"]
    last = [learning["losses"][-1] for _, learning in runs]
    spread = max(last) - min(last)
    when = [] if _same_times(runs) else [f"{first} completes {steps} first, after {format_time(soon)}"]
    if spread <= _APART * min(last):
        return ["all last losses are equal" if spread == 0 else f"last losses differ by at most {spread:.1g}", *when]
    low, high = runs[int(np.argmin(last))][0], runs[int(np.argmax(last))][0]
    half = soon / 2
    # The losses at half of the fastest run's time may have another order than the last losses.
    midway = [_at(learning, half) for _, learning in runs]
    ahead = runs[int(np.argmin(midway))][0]
    if ahead == low or not when:
        return [f"last loss: {low} {min(last):.3g} (lowest), {high} {max(last):.3g} (highest)", *when]
    return [
        f"{ahead} is ahead at first (loss {min(midway):.3g} after {format_time(half)})",
        f"{low} has the lowest last loss ({min(last):.3g})",
    ]


def _at(learning: Mapping[str, Any], time: float) -> float:
    """Return the loss of the last training step completed by a time [s]; the first loss if no step is completed."""
    count = sum(end <= time for end in learning["ended_s"])
    return float(learning["losses"][max(0, count - 1)])


def _of_real_training(compared: ComparedPoints) -> dict[str, Figure]:
    """Return the loss figure of compared points; empty without real training."""
    learned = [row for row in compared.rows if row[1]["learning"]]
    return {"loss": figure(learned)} if learned else {}


PLOT = ComparisonPlot(figures=_of_real_training)
