"""How did the loss of real trainings fall, by step and by simulated time?

Rule: draws reports' numbers, computes none. Crosses are steps that were skipped, a square is where a training stopped,
a diamond the last loss before NaN. Where all runs take the same time a panel against time would repeat the first; it
then shows how far each run's loss is from the first run's, and runs on the first run's line are drawn there alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simulator.basics.units import format_time
from simulator.report.plots import style
from simulator.report.plots.plot import Comparison, ComparisonPlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = tuple[str, Mapping[str, Any]]
Learned = tuple[str, Mapping[str, Any]]
# Last losses that differ by more than this share are named in the title; closer ones lie on each other in the picture.
_APART: Final = 0.005
# Characters of all labels of a row of the legend together.
_LEGEND: Final = 120
# Smaller than float32 resolves of a loss: the axis is linear below it, so that runs without any difference stand at 0.
_NOTHING: Final = 1e-8


def figure(rows: Sequence[Row]) -> Figure:
    """Draw two panels, a line for each run.

    Parameters
    ----------
    rows : sequence of (label, training report with `learning`)
    """
    runs = [(label, _numbers(report["learning"])) for label, report in rows]
    with style.applied():
        fig = style.new_figure(11.0, 4.4 + 0.1 * len(runs))
        by_step, second = fig.subplots(1, 2, sharey=not _same_times(runs))
        colours = style.colours([label for label, _ in runs])
        apart = _apart(runs) if _same_times(runs) else runs
        for (label, learning), width in zip(apart, _widths(apart), strict=True):
            near = f", and {len(runs) - len(apart)} within {100 * _APART:g} %" if label == runs[0][0] else ""
            shown = f"{label}{near if len(apart) < len(runs) else ''}"
            _line(by_step, range(len(learning["losses"])), learning, colours[label], width, shown)
            if not _same_times(runs):
                _line(second, learning["ended_s"], learning, colours[label], width, label)
        _step_axis(by_step)
        by_step.set_ylabel("loss (nats a token)")
        if _same_times(runs):
            _distances(fig, second, runs, colours)
        else:
            style.time_axis(second, max(max(learning["ended_s"], default=0.0) for _, learning in runs))
            second.set_xlabel(f"simulated {second.get_xlabel()}")
        _legend(fig, by_step, apart, _LEGEND // 2 if _same_times(runs) else _LEGEND)
        style.set_title(fig, finding(rows))
    return fig


def _step_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("step, the first is 0")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(fig: Figure, axes: Axes, runs: Sequence[Learned], letters: int) -> None:
    """Write the runs below the panels, and what the marks on their lines mean."""
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    for marker, happened in (("x", "skipped"), ("s", "stopped"), ("D", "then NaN")):
        there = (_last_before_nan(own) is not None if marker == "D" else own[happened] for _, own in runs)
        if any(there):
            handles.append(Line2D([], [], color=style.BLACK, marker=marker, linestyle="none"))
            labels.append(happened)
    fig.legend(handles, labels, loc="outside lower left", ncols=_columns(labels, letters), alignment="left")


def _columns(labels: Sequence[str], letters: int) -> int:
    """Columns of a legend in which a row has so many letters at most."""
    return min(len(labels), max(1, letters // (max(map(len, labels)) + 6)))


def _apart(runs: Sequence[Learned]) -> list[Learned]:
    """The first run, and the runs that a reader sees beside its line: ended early, at NaN, or at another loss."""
    first = np.array(runs[0][1]["losses"])
    shown = [runs[0]]
    for run in runs[1:]:
        own = np.array(run[1]["losses"])
        common = min(len(own), len(first))
        near = np.isfinite(own).all() and np.allclose(own[:common], first[:common], rtol=_APART)
        if not near or run[1]["stopped"] or run[1]["skipped"] or common < len(first):
            shown.append(run)
    return shown


def _distances(fig: Figure, axes: Axes, runs: Sequence[Learned], colours: Mapping[str, str]) -> None:
    """Draw how far each run is from the first, with a legend of its own, which also names runs without a distance."""
    from matplotlib.lines import Line2D

    equal = [label for label, learning in runs[1:] if not _distance(axes, runs[0][1], learning, colours[label], label)]
    _step_axis(axes)
    axes.set_yscale("symlog", linthresh=_NOTHING)
    axes.set_ylim(0)
    axes.set_ylabel(f"distance from {runs[0][0]!r} (nats)")
    handles, labels = axes.get_legend_handles_labels()
    handles += [Line2D([], [], linestyle="none") for _ in equal]
    words = [*labels, *(f"{label}: no distance" for label in equal)]
    fig.legend(handles, words, loc="outside lower right", ncols=_columns(words, _LEGEND // 2), alignment="left")


def _numbers(learning: Mapping[str, Any]) -> Mapping[str, Any]:
    """A training's numbers, with nan for a loss that is not finite, which JSON writes as null."""
    return {**learning, "losses": [float("nan") if loss is None else loss for loss in learning["losses"]]}


def _same_times(runs: Sequence[Learned]) -> bool:
    """Whether several runs took the same time for each step, as far as they came."""
    if len(runs) < 2:
        return False
    common = min(len(learning["ended_s"]) for _, learning in runs)
    first = runs[0][1]["ended_s"][:common]
    return all(np.allclose(learning["ended_s"][:common], first, rtol=1e-3) for _, learning in runs)


def _widths(runs: Sequence[Learned]) -> list[float]:
    """Line widths: where losses coincide, thinner lines above thicker ones keep every run visible."""
    last = [learning["losses"][-1] for _, learning in runs if learning["losses"] and not learning["stopped"]]
    alike = len(last) < 2 or max(last) - min(last) <= _APART * min(last) or not np.isfinite(last).all()
    more = min(1.6, 6.0 / len(runs)) if alike else 0.0
    return [1.5 + more * (len(runs) - 1 - number) for number in range(len(runs))]


def _line(
    axes: Axes, along: Sequence[float], learning: Mapping[str, Any], colour: str, width: float, label: str
) -> None:
    losses, skipped = learning["losses"], list(learning["skipped"])
    # A line through a single step would not be seen, so it is a point.
    axes.plot(along, losses, "o" if len(losses) == 1 else "-", color=colour, label=label, linewidth=width)
    axes.plot([along[n] for n in skipped], [losses[n] for n in skipped], "x", color=style.BLACK, markersize=6)
    last = _last_before_nan(learning)
    if last is not None:
        axes.plot(along[last : last + 1], losses[last : last + 1], "D", color=colour, markersize=8,
                  markeredgecolor=style.BLACK)  # fmt: skip
    if learning["stopped"] and losses:
        axes.plot(along[-1:], losses[-1:], "s", color=colour, markersize=9, markeredgecolor=style.BLACK)


def _last_before_nan(learning: Mapping[str, Any]) -> int | None:
    """The step of the last loss that is a number, where later ones are NaN."""
    sound = np.isfinite(learning["losses"])
    return None if sound.all() or not sound.any() else int(np.flatnonzero(sound)[-1])


def _distance(axes: Axes, first: Mapping[str, Any], learning: Mapping[str, Any], colour: str, label: str) -> bool:
    """Draw a run's distance from the first run; False where there is none as far as both have numbers."""
    common = min(len(first["losses"]), len(learning["losses"]))
    apart = np.abs(np.array(learning["losses"][:common]) - np.array(first["losses"][:common]))
    if not np.nanmax(apart, initial=0.0) > 0:
        return False
    axes.plot(range(common), apart, color=colour, linewidth=1.5, label=label)
    return True


def finding(rows: Sequence[Row]) -> str:
    """Say how far the runs' losses differ at the end, and which run ends first."""
    known = [(label, _numbers(report["learning"])) for label, report in rows if report["learning"]["losses"]]
    whole = [(label, learning) for label, learning in known if not learning["stopped"]]
    cut = [(label, learning) for label, learning in known if learning["stopped"]]
    ends = [f"{label} ends before step {len(learning['losses'])}" for label, learning in cut]
    lost = [label for label, learning in whole if not np.isfinite(learning["losses"][-1])]
    ends += [f"{label} ends at NaN" for label in lost]
    sound = [(label, learning) for label, learning in whole if label not in lost]
    if not sound:
        return "; ".join(ends) or "nothing was learned"
    return "; ".join([*_sound(sound), *ends])


def _sound(runs: Sequence[Learned]) -> list[str]:
    first, best = min(runs, key=lambda run: run[1]["ended_s"][-1])
    soon = best["ended_s"][-1]
    steps = f"{len(best['losses'])} steps after {format_time(soon)}"
    if len(runs) == 1:
        return [f"{first} has done {steps}: loss {best['losses'][-1]:.4g}"]
    last = [learning["losses"][-1] for _, learning in runs]
    apart = max(last) - min(last)
    when = [] if _same_times(runs) else [f"{first} has done {steps}, first of all"]
    if apart <= _APART * min(last):
        alike = "one loss to the last digit" if apart == 0 else f"losses within {apart:.1g} of each other"
        return [f"{alike} at the end", *when]
    low, high = runs[int(np.argmin(last))][0], runs[int(np.argmax(last))][0]
    half = soon / 2
    midway = [_at(learning, half) for _, learning in runs]
    ahead = runs[int(np.argmin(midway))][0]
    if ahead == low or not when:
        return [f"{low} ends at a loss of {min(last):.3g}, {high} at {max(last):.3g}", *when]
    return [
        f"{ahead} is ahead at first ({min(midway):.3g} after {format_time(half)})",
        f"{low} ends lowest, at {min(last):.3g}",
    ]


def _at(learning: Mapping[str, Any], time: float) -> float:
    """The loss of the last step that had ended by a time [s]; the first loss before any had."""
    known = sum(end <= time for end in learning["ended_s"])
    return float(learning["losses"][max(0, known - 1)])


def _of_real_training(compared: Comparison) -> dict[str, Figure]:
    learned = [row for row in compared.rows if row[1]["learning"]]
    return {"loss": figure(learned)} if learned else {}


PLOT = ComparisonPlot(figures=_of_real_training)
