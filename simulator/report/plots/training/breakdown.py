"""How does a step's time split? A bar per run: kernels, recompute, optimizer, exposed communication, idle time.

Draws the reports' numbers and computes none. Exposed communication is communication without concurrent compute.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.units import format_memory
from simulator.basics.work_unit import rate_name, work_unit
from simulator.records.measures import HOST_WAIT
from simulator.report.plots import style
from simulator.report.plots.plot import ComparedPoints, ComparisonPlot
from simulator.report.plots.stacked_bars import stacked_bars

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PASSES: Final = "forward and backward"
_IDLE: Final = "idle"
# A part that is nowhere wider than this share of the longest bar would only lengthen the legend.
_THINNEST: Final = 0.002
# More bars cannot be compared.
_MOST: Final = 40
# Letters per line of a label: longer lines would leave no room for the bars.
_LABEL: Final = 40


def parts(report: Mapping[str, Any], *, by: str = "kind") -> dict[str, float]:
    """Return a training report's step time split into parts: {part: seconds}.

    Exposed communication is listed by kind, or by "dimension" of parallelism.

    >>> parts({"compute_time_s": 5.0, "recompute_time_s": 1.0, "optimizer_time_s": 0.5, "bubble_time_s": 0.0,
    ...        "exposed_comm_time_by_kind": {"all_gather": 0.25}})
    {'forward and backward': 3.5, 'recompute': 1.0, 'optimizer': 0.5, 'exposed all_gather': 0.25, 'idle': 0.0}
    """
    recompute, optimizer = report["recompute_time_s"], report["optimizer_time_s"]
    exposed = {f"exposed {kind}": seconds for kind, seconds in report[f"exposed_comm_time_by_{by}"].items()}
    passes = {_PASSES: report["compute_time_s"] - recompute - optimizer, "recompute": recompute, "optimizer": optimizer}
    waited = report.get("host_wait_time_s", 0.0)
    return passes | exposed | ({HOST_WAIT: waited} if waited else {}) | {_IDLE: report["bubble_time_s"]}


def coloured_parts(report: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return the parts of a report's step time that a bar shows, with their colours: {part: (seconds, colour)}."""
    bar = parts(report)
    names = _part_names([bar], sum(bar.values()))
    return {name: (bar[name], colour) for name, colour in _colours(names).items()}


def figure(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Figure:
    """Return a figure with a bar of step time per run (at most the forty fastest), with speed and memory beside it.

    If runs process different numbers of tokens or samples per step, bars are a GPU's time per token or sample.

    Parameters
    ----------
    rows : sequence of (label, training report)
    """
    fastest = _fastest(rows)
    reports = [report for _, report in fastest]
    # For a model cut over ranks, the question is the cost of each dimension of parallelism.
    cut = any({"tp", "cp", "ep", "pp"} & set(report["comm_time_by_dimension"]) for report in reports)
    shares = _shares(reports)
    bars = [
        {name: seconds * share for name, seconds in parts(report, by="dimension" if cut else "kind").items()}
        for report, share in zip(reports, shares, strict=True)
    ]
    longest = max(sum(bar.values()) for bar in bars)
    names = _part_names(bars, longest)
    rate = rate_name(work_unit(reports))
    with style.applied():
        fig = style.new_figure(11.0, 1.9 + 0.42 * len(fastest) + 0.2 * (len(names) // 4))
        axes = fig.subplots()
        stacked_bars(axes, bars, names, _colours(names))
        farthest = max(longest, _intervals(axes, reports, shares))
        for row, report in enumerate(reports):
            axes.text(1.01, row, _beside(report, rate), transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
        axes.set_yticks(range(len(fastest)), [textwrap.fill(label, _LABEL) for label, _ in fastest])
        axes.set_xlim(0, farthest * 1.03)
        style.time_axis(axes, farthest)
        if set(shares) != {1.0}:
            axes.set_xlabel(axes.get_xlabel().replace("time", f"GPU time per {work_unit(reports)}"))
        fig.legend(loc="outside lower left", ncols=5)
        left_out = f" (the fastest {len(fastest)} of {len(rows)} settings)" if len(fastest) < len(rows) else ""
        style.set_title(fig, finding(rows) + left_out)
    return fig


def _fastest(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the forty runs with most tokens/s per GPU, in their given order."""
    order = sorted(range(len(rows)), key=lambda place: (-rows[place][1]["tokens_per_s_per_gpu"], place))
    return [rows[place] for place in sorted(order[:_MOST])]


def _shares(reports: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return a factor for each report's times: 1, or 1 / (tokens per GPU and step) if runs differ in these tokens."""
    tokens = [report["tokens_per_s_per_gpu"] * report["step_time_s"] for report in reports]
    if max(tokens) - min(tokens) <= 1e-6 * max(tokens):
        return [1.0] * len(reports)
    return [1.0 / number for number in tokens]


def _beside(report: Mapping[str, Any], rate: str) -> str:
    """Return the text beside a bar: speed (with the name `rate`), MFU, peak memory, and whether the step fits."""
    fits = "" if report["fits"] else ", does not fit"
    memory = format_memory(report["peak_memory_bytes"])
    return f"{report['tokens_per_s']:,.0f} {rate}, {style.percent(report['mfu'])} MFU, {memory}{fits}"


def _intervals(axes: Axes, reports: Sequence[Mapping[str, Any]], shares: Sequence[float]) -> float:
    """Draw the 80 % interval of the step time, times the run's share, at each bar's end; return the highest end."""
    intervals = [
        (place, *(end * shares[place] for end in _interval(report)))
        for place, report in enumerate(reports)
        if report.get("intervals")
    ]
    for place, low, high in intervals:
        label = "uncertainty (80 %) of the step time" if place == intervals[0][0] else None
        axes.plot([low, high], [place, place], color=style.BLACK, linewidth=1.4, marker="|", markersize=8, label=label)
    return max((high for _, _, high in intervals), default=0.0)


def _interval(report: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends [s] of a report's 80 % prediction interval of step time; the step time twice if unknown."""
    ends = report.get("intervals") or {}
    time = report["step_time_s"]
    return ends.get("step_time_s_80_low", time), ends.get("step_time_s_80_high", time)


def _part_names(bars: Sequence[Mapping[str, float]], longest: float) -> list[str]:
    """Return the names of parts long enough to draw: kernels, then exposed communication by size, then waiting and idle
    time.
    """
    widest: dict[str, float] = {}
    for bar in bars:
        for name, seconds in bar.items():
            widest[name] = max(widest.get(name, 0.0), seconds)
    visible = [name for name in widest if widest[name] > _THINNEST * longest]
    kernels = [name for name in visible if name in (_PASSES, "recompute", "optimizer")]
    exposed = sorted((name for name in visible if name.startswith("exposed ")), key=lambda name: -widest[name])
    return [*kernels, *exposed, *(name for name in (HOST_WAIT, _IDLE) if name in visible)]


def _colours(names: Sequence[str]) -> dict[str, str]:
    """Return {part of a step: colour}; communication has the same colours as in timelines."""
    kinds = {name: name.removeprefix("exposed ").replace(_PASSES, "forward") for name in names}
    by_kind = style.colours(kinds.values())
    return {name: by_kind[kind] for name, kind in kinds.items()}


def finding(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return a sentence on the fastest run fitting in memory, and its share of exposed communication.

    More GPUs process more tokens in any case: runs with different numbers of GPUs are compared by the speed of a GPU.
    """
    fitting = [row for row in rows if row[1].get("fits", True)] or rows
    # True if the number of GPUs is the same in every run.
    one_size = len({round(report["tokens_per_s"] / report["tokens_per_s_per_gpu"]) for _, report in rows}) == 1
    speed = "tokens_per_s" if one_size else "tokens_per_s_per_gpu"
    label, best = max(fitting, key=lambda row: row[1][speed])
    exposed = best["exposed_comm_time_s"] / best["step_time_s"]
    among = "" if len(fitting) == len(rows) else " among fitting settings"
    # Steps with different numbers of tokens have no fastest; compare rates.
    unequal = set(_shares([report for _, report in rows])) != {1.0}
    most = f"{label} has the highest throughput{among}: " if unequal or not one_size else f"{label} is fastest{among}: "
    name = f"{label}: " if len(rows) == 1 else most
    rate = rate_name(work_unit(report for _, report in rows))
    hidden = f"{style.percent(exposed)} of the step is exposed communication"
    return f"{name}{best[speed]:,.0f} {rate}{'' if one_size else ' per GPU'}; {hidden}"


def _of_steps(compared: ComparedPoints) -> dict[str, Figure]:
    """Return the breakdown figure of compared training steps, by name; empty without points."""
    return {"breakdown": figure(compared.rows)} if compared.rows else {}


PLOT = ComparisonPlot(figures=_of_steps)
