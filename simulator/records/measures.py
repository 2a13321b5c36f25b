"""Which numbers of a report can be compared, and in which words: time, speed, memory, bubble, error, loss?

Rule: a measure reads one report; whether less or more of it is better, and how it is written, stand here alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Literal

from simulator.basics.units import format_bandwidth, format_memory, format_time

Report = Mapping[str, Any]

# Changes below this share are told as none: they would be written as 0.0 %.
SAME: Final = 5e-4


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a report.

    Attributes
    ----------
    name : str
        As `answer` names it in a scenario.
    of : tuple of str
        "collective", "training".
    value : function (report) -> float or None
        In SI units; None where the report has none.
    number : function (float) -> str
        The value as people read it, for a table that says what it is.
    noun : str
        "time", "peak memory": what "12 % less" is said of.
    phrase : str
        How a sentence says the number: "{} of memory".
    best : {"least", "most"}
    superlative : str
        What the best one is: "fastest".
    interval : str
        Key of a report's prediction interval that holds for it: "step_time_s", "peak_memory_bytes"; empty without.
    """

    name: str
    of: tuple[str, ...]
    value: Callable[[Report], float | None]
    number: Callable[[float], str]
    noun: str
    phrase: str = "{}"
    best: Literal["least", "most"] = "least"
    superlative: str = "lowest"
    interval: str = ""

    def text(self, value: float) -> str:
        """The value in a sentence."""
        return self.phrase.format(self.number(value))

    def uncertainty(self, report: Report) -> float:
        """Share by which 80 % of measured runs differ at most from predictions like this one; 0 without runs."""
        return interval_width(report, self.interval) or 0.0

    def better(self, one: float, other: float) -> bool:
        """Whether one value is better than another."""
        return one < other if self.best == "least" else one > other

    def change_text(self, value: float, before: float) -> str:
        """Say a change: '16 % less time', '2.4x the time', 'the same time'.

        Examples
        --------
        >>> TIME = find("time", "training")
        >>> TIME.change_text(0.84, 1.0), TIME.change_text(2.4, 1.0), TIME.change_text(1.0, 1.0)
        ('16 % less time', '2.4x the time', 'the same time')
        """
        if before == 0 or abs(value - before) <= SAME * abs(before):
            return f"the same {self.noun}" if value == before or before else f"{self.text(value)} {self.noun}"
        change = value / before - 1
        if change >= 1:
            return f"{factor_text(value / before)} the {self.noun}"
        return f"{percent_text(abs(change))} {'less' if change < 0 else 'more'} {self.noun}"

    def sign_text(self, value: float, before: float) -> str:
        """Say a change in a list whose head names the measure: '-16 %', '2.4x', '0 %'.

        Examples
        --------
        >>> TIME = find("time", "training")
        >>> TIME.sign_text(0.84, 1.0), TIME.sign_text(2.4, 1.0), TIME.sign_text(1.0, 1.0)
        ('-16 %', '2.4x', '0 %')
        """
        if before == 0:
            return "0 %" if value == before else self.text(value)
        change = value / before - 1
        if change >= 1:
            return factor_text(value / before)
        return "0 %" if abs(change) <= SAME else f"{'-' if change < 0 else '+'}{percent_text(abs(change))}"


def interval_width(report: Report, key: str = "step_time_s") -> float | None:
    """Share by which 80 % of measured runs like this one differ at most from their predictions; None without runs."""
    ends = report.get("intervals") or {}
    low, high = (ends.get(f"{key}_80_{end}") for end in ("low", "high"))
    return math.sqrt(high / low) - 1 if low and high else None


def percent_text(share: float) -> str:
    """Write a share in per cent: two digits below ten, whole ones above.

    Examples
    --------
    >>> percent_text(0.648), percent_text(0.0123)
    ('65 %', '1.2 %')
    """
    return f"{100 * share:.0f} %" if abs(share) >= 0.0995 else f"{100 * share:.2g} %"


def share_text(share: float) -> str:
    """Write a part of a step in per cent, to a tenth, as tables, sentences and pictures all write it.

    Examples
    --------
    >>> share_text(0.1568)
    '15.7 %'
    """
    return f"{100 * share:.1f} %"


def arrays_text(number: float) -> str:
    """Say how often a link carries the array.

    Examples
    --------
    >>> arrays_text(1.0), arrays_text(63 / 32)
    ('the array once', '1.97 times the array')
    """
    text = f"{number:.3g}"
    return "the array once" if text == "1" else f"{text} times the array"


def factor_text(ratio: float) -> str:
    """Write a ratio.

    Examples
    --------
    >>> factor_text(62.4), factor_text(1.234), factor_text(1.0456)
    ('62x', '1.2x', '1.05x')
    """
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x" if ratio >= 1.095 else f"{ratio:.3g}x"


def _idle(report: Report) -> float | None:
    """Share of the step in which ranks neither compute nor communicate."""
    return report["bubble_time_s"] / report["step_time_s"] if report.get("step_time_s") else None


def _last_loss(report: Report) -> float | None:
    losses = (report.get("learning") or {}).get("losses") or ()
    return losses[-1] if losses else None


_STEP: Final = ("training",)
_TIME: Final = "step_time_s"
_COLLECTIVE: Final = ("collective",)
MEASURES: Final = (
    Measure("time", _COLLECTIVE, itemgetter("time_s"), format_time, "time", superlative="fastest"),
    Measure("busbw", _COLLECTIVE, itemgetter("busbw"), format_bandwidth, "bus bandwidth", "{}", "most", "highest"),
    Measure("error", _COLLECTIVE, itemgetter("max_abs_error"), "{:.2g}".format, "error", "an error of {}",
            superlative="most exact"),
    Measure("time", _STEP, itemgetter("step_time_s"), format_time, "time", superlative="fastest", interval=_TIME),
    Measure("time_per_token", _STEP, lambda r: 1 / r["tokens_per_s"], lambda v: f"{1 / v:,.0f}", "time a token",
            "{} tokens/s", superlative="fastest", interval=_TIME),
    Measure("speed", _STEP, itemgetter("tokens_per_s"), "{:,.0f}".format, "tokens/s", "{} tokens/s", "most", "fastest",
            _TIME),
    Measure("speed_per_gpu", _STEP, itemgetter("tokens_per_s_per_gpu"), "{:,.0f}".format, "tokens/s a GPU",
            "{} tokens/s a GPU", "most", "fastest", _TIME),
    Measure("mfu", _STEP, itemgetter("mfu"), share_text, "MFU", "{} MFU", "most", "best used", _TIME),
    Measure("model_flops", _STEP, itemgetter("model_flops_per_s_per_gpu"), lambda v: f"{v / 1e12:,.0f}",
            "model FLOP/s a GPU", "{} model TFLOP/s a GPU", "most", "best used", _TIME),
    Measure("memory", _STEP, itemgetter("peak_memory_bytes"), format_memory, "peak memory", "{} of memory",
            superlative="smallest", interval="peak_memory_bytes"),
    Measure("least_stage", _STEP, lambda r: min(r["peak_memory_by_stage"], default=None), format_memory,
            "memory of the least stage", "{} on the stage that holds least"),
    Measure("reserved", _STEP, itemgetter("peak_reserved_bytes"), format_memory, "reserved memory", "{} reserved",
            superlative="smallest"),
    Measure("bubble", _STEP, _idle, share_text, "idle time", "{} idle", superlative="least idle"),
    Measure("exposed", _STEP, itemgetter("exposed_comm_time_s"), format_time, "exposed communication",
            "{} of exposed communication"),
    Measure("communication", _STEP, itemgetter("comm_time_s"), format_time, "communication", "{} of communication"),
    Measure("recompute", _STEP, itemgetter("recompute_time_s"), format_time, "recomputation", "{} of recomputation"),
    Measure("loss", _STEP, _last_loss, "{:.4g}".format, "loss", "a loss of {}", superlative="lowest in loss"),
)  # fmt: skip


def names() -> tuple[str, ...]:
    """Every measure's name."""
    return tuple(dict.fromkeys(measure.name for measure in MEASURES))


def names_of(kind: str) -> tuple[str, ...]:
    """Names of the measures of "collective", or of "training"."""
    return tuple(measure.name for measure in MEASURES if kind in measure.of)


def find(name: str, kind: str) -> Measure:
    """The measure of that name of a kind of scenario."""
    return next(measure for measure in MEASURES if measure.name == name and kind in measure.of)


def for_reports(measure: Measure, reports: Sequence[Report]) -> Measure:
    """The measure itself, or the one that can be compared where it cannot.

    Times of steps that learn from unlike numbers of tokens are compared by the token, and shares of unlike peaks by the
    FLOP/s that they are shares of.
    """
    if measure not in (find("time", "training"), find("mfu", "training")) or not _all_steps(reports):
        return measure
    if measure.name == "mfu":
        peaks = [report["model_flops_per_s_per_gpu"] / report["mfu"] for report in reports if report["mfu"]]
        return measure if _alike(peaks) else find("model_flops", "training")
    tokens = [report["tokens_per_s"] * report["step_time_s"] for report in reports]
    return measure if _alike(tokens) else find("time_per_token", "training")


def _all_steps(reports: Sequence[Report]) -> bool:
    return bool(reports) and all("tokens_per_s" in report for report in reports)


def _alike(values: Sequence[float]) -> bool:
    return not values or max(values) - min(values) <= 1e-6 * max(values)
