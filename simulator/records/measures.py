"""Which numbers in a report can be compared, and in which words: time, speed, memory, bubble, error, loss?

A Measure reads its number from a report. Measures also store the direction (less or more is better) and the wording; no
other module does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, Literal

from simulator.basics.units import format_bandwidth, format_memory, format_time
from simulator.basics.work_unit import SAMPLE, TOKEN, USEFUL_TOKEN, rate_name, useful_rate, work_unit

Report = Mapping[str, Any]

# Smaller changes print "0.0 %" and are reported as no change.
SAME: Final = 5e-4
# Part of a step's time, in texts and pictures.
HOST_WAIT: Final = "waiting for the host"


@dataclass(frozen=True, slots=True)
class Measure:
    """A number in reports to be compared, with direction (less or more is better) and wording."""

    name: str  # name in a scenario's `answer`
    of: tuple[str, ...]  # kinds of scenarios: "collective", "training"
    # Value in SI units; None if the report has none.
    value: Callable[[Report], float | None]
    number: Callable[[float], str]  # formats the value for a table whose header names the measure
    noun: str  # noun for changes: "time" in "12 % less time"
    phrase: str = "{}"  # format for sentences: "{} of memory"
    best: Literal["least", "most"] = "least"  # direction of improvement
    # Adjective for the best value: "fastest", or an adjective of the noun ("highest" bus bandwidth)
    superlative: str = "lowest"
    # Key of the report's prediction interval for the value: "step_time_s", "peak_memory_bytes"; empty if there is none
    interval: str = ""
    verb: str = "has"  # verb between a setting and a change: "takes" 12 % less time
    is_share: bool = False  # whether the value is a share of the step, whose changes are told in percentage points

    @property
    def value_verb(self) -> str:
        """Verb between a setting and a value: "takes" 3 ms, "reaches" 40 % MFU.

        A time per token is shown as a speed: a setting takes 5 % more time per token, and reaches 57,659 tokens/s.
        """
        return "reaches" if "/s" in self.phrase else self.verb

    def text(self, value: float) -> str:
        """Return the value as text for a sentence, with unit and noun.

        >>> find("memory", "training").text(23.5 * 2**30)
        '23.5 GiB of memory'
        """
        return self.phrase.format(self.number(value))

    def amount_text(self, value: float) -> str:
        """Return the value as text with its unit, without the noun: "23.5 GiB", "57,659 tokens/s".

        >>> find("memory", "training").amount_text(2**30), find("speed", "training").amount_text(57659.0)
        ('1 GiB', '57,659 tokens/s')
        """
        return self.text(value) if "/s" in self.phrase else self.number(value)

    def uncertainty(self, *reports: Report) -> float:
        """Return the relative difference up to which two reports' values tie: the largest uncertainty (80 %) of times
        and speeds among the reports, and 0 for other measures.
        """
        # Peak memory follows from sizes of tensors: two settings share its error, and differences remain.
        if self.interval != _TIME:
            return 0.0
        return max((interval_width(report) or 0.0 for report in reports), default=0.0)

    def tied(self, first: Report, second: Report) -> bool:
        """Return True if two reports' values are equal, or differ by less than the uncertainty of a prediction.

        A lead below the error of measured runs may vanish on the real machine.

        >>> near = {"intervals": {"step_time_s_80_low": 1 / 1.1, "step_time_s_80_high": 1.1}}
        >>> TIME = find("time", "training")
        >>> TIME.tied({"step_time_s": 1.0, **near}, {"step_time_s": 1.05})
        True
        >>> TIME.tied({"step_time_s": 1.0}, {"step_time_s": 1.05})
        False
        """
        values = [value for report in (first, second) if (value := self.value(report)) is not None]
        if len(values) < 2:
            return False
        low, high = min(values), max(values)
        return low == high or (low > 0 and high / low - 1 <= self.uncertainty(first, second))

    def better(self, first: float, second: float) -> bool:
        """Return True if the value `first` is better than `second`: less or more, by this measure's direction.

        >>> find("time", "training").better(1.0, 2.0), find("speed", "training").better(1.0, 2.0)
        (True, False)
        """
        return first < second if self.best == "least" else first > second

    def rank(self, report: Report) -> float:
        """Return a number for sorting reports, the best first; reports without the value come last.

        >>> find("speed", "training").rank({"tokens_per_s": 9.0}), find("time", "training").rank({"step_time_s": 2.0})
        (-9.0, 2.0)
        """
        value = self.value(report)
        if value is None:
            return math.inf
        return value if self.best == "least" else -value

    def change_text(self, value: float, before: float) -> str:
        """Return the change from `before` to `value` as text: '16 % less time', '2.4x the time', 'the same time'.

        >>> TIME = find("time", "training")
        >>> TIME.change_text(0.84, 1.0), TIME.change_text(2.4, 1.0), TIME.change_text(1.0, 1.0)
        ('16 % less time', '2.4x the time', 'the same time')
        """
        # A change relative to 0 is undefined: state the value instead.
        if before == 0 or abs(value - before) <= SAME * abs(before):
            return f"the same {self.noun}" if value == before or before else self.text(value)
        change = value / before - 1
        if change >= 1:
            return f"{factor_text(value / before)} the {self.noun}"
        return f"{percent_text(abs(change))} {'less' if change < 0 else 'more'} {self.noun}"

    def sign_text(self, value: float, before: float) -> str:
        """Return the change from `before` to `value` as text with a sign, without the noun: '-16 %', '2.4x', '0 %'.

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
    """Return the relative error for the figure `key` not exceeded by 80 % of comparable measured runs; or None.

    The result is None if the report has no measured runs to compare.
    """
    ends = report.get("intervals") or {}
    low, high = (ends.get(f"{key}_80_{end}") for end in ("low", "high"))
    # Geometric half-width: f - 1, if the ends are prediction / f and prediction x f.
    return math.sqrt(high / low) - 1 if low and high else None


def percent_text(share: float) -> str:
    """Return a share (0 to 1) as text in per cent: two digits below ten, otherwise whole numbers.

    >>> percent_text(0.648), percent_text(0.0123)
    ('65 %', '1.2 %')
    """
    # From 9.95 % on, two digits form a whole number.
    return f"{100 * share:.0f} %" if abs(share) >= 0.0995 else f"{100 * share:.2g} %"


def share_text(share: float) -> str:
    """Return a share (0 to 1) as text in per cent with one decimal: "15.7 %".

    >>> share_text(0.1568)
    '15.7 %'
    """
    return f"{100 * share:.1f} %"


def arrays_text(number: float) -> str:
    """Return text for the traffic of a link in multiples of the collective's array: "1.5x the array".

    >>> arrays_text(1.0), arrays_text(63 / 32)
    ('1x the array', '1.97x the array')
    """
    return f"{number:.3g}x the array"


def factor_text(ratio: float) -> str:
    """Return a ratio as text with "x": whole from 10 on, otherwise with two or three digits.

    >>> factor_text(62.4), factor_text(1.234), factor_text(1.0456)
    ('62x', '1.2x', '1.05x')
    """
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x" if ratio >= 1.095 else f"{ratio:.3g}x"


def _idle(report: Report) -> float | None:
    """Return the idle share of a step's time in a report (pipeline bubble), 0 to 1; None without a step time."""
    return report["bubble_time_s"] / report["step_time_s"] if report.get("step_time_s") else None


def _exposed_share(report: Report) -> float | None:
    """Return the share of exposed communication in a step's time in a report, 0 to 1; None without a step time."""
    return report["exposed_comm_time_s"] / report["step_time_s"] if report.get("step_time_s") else None


def _last_loss(report: Report) -> float | None:
    """Return the loss of the last training step in a report; None if the report has no losses."""
    losses = (report.get("learning") or {}).get("losses") or ()
    return losses[-1] if losses else None


_STEP: Final = ("training",)
_TIME: Final = "step_time_s"


def _speeds(unit: str) -> tuple[Measure, ...]:
    """Return the measures of a training step's speed, in a unit of work: "token" or "sample"."""
    rate, useful = rate_name(unit), USEFUL_TOKEN if unit == TOKEN else unit
    return (
        Measure("time_per_token", _STEP, lambda r: 1 / r["tokens_per_s"], lambda v: f"{1 / v:,.0f}", f"time per {unit}",
                f"{{}} {rate}", superlative="fastest", interval=_TIME, verb="takes"),
        Measure("speed", _STEP, itemgetter("tokens_per_s"), "{:,.0f}".format, rate, f"{{}} {rate}", "most", "fastest",
                _TIME, verb="reaches"),
        Measure("time_per_useful_token", _STEP, lambda r: 1 / useful_rate(r), lambda v: f"{1 / v:,.0f}",
                f"time per {useful}", f"{{}} {rate_name(useful)}", superlative="fastest", interval=_TIME, verb="takes"),
        Measure("useful_speed", _STEP, useful_rate, "{:,.0f}".format, rate_name(useful), f"{{}} {rate_name(useful)}",
                "most", "fastest", _TIME, verb="reaches"),
        Measure("speed_per_gpu", _STEP, itemgetter("tokens_per_s_per_gpu"), "{:,.0f}".format, f"{rate} per GPU",
                f"{{}} {rate} per GPU", "most", "fastest", _TIME, verb="reaches"),
    )  # fmt: skip


_COLLECTIVE: Final = ("collective",)
# Names occur twice if both kinds of scenarios have the measure; `find` distinguishes them by kind.
MEASURES: Final = (
    Measure("time", _COLLECTIVE, itemgetter("time_s"), format_time, "time", superlative="fastest", verb="takes"),
    Measure("busbw", _COLLECTIVE, itemgetter("busbw"), format_bandwidth, "bus bandwidth", "{}", "most", "highest",
            verb="reaches"),
    Measure("error", _COLLECTIVE, itemgetter("max_abs_error"), "{:.2g}".format, "error", "an error of {}"),
    Measure("time", _STEP, itemgetter("step_time_s"), format_time, "time", superlative="fastest", interval=_TIME,
            verb="takes"),
    *_speeds(TOKEN),
    Measure("mfu", _STEP, itemgetter("mfu"), share_text, "MFU", "{} MFU", "most", "highest", _TIME, verb="reaches"),
    Measure("hfu", _STEP, itemgetter("hfu"), share_text, "HFU", "{} HFU", "most", "highest", _TIME, verb="reaches"),
    Measure("model_flops", _STEP, itemgetter("model_flops_per_s_per_gpu"), lambda v: f"{v / 1e12:,.0f}",
            "model FLOP/s per GPU", "{} model TFLOP/s per GPU", "most", "highest", _TIME, verb="reaches"),
    Measure("memory", _STEP, itemgetter("peak_memory_bytes"), format_memory, "peak memory", "{} of memory",
            interval="peak_memory_bytes", verb="needs"),
    Measure("least_stage", _STEP, lambda r: min(r["peak_memory_by_stage"], default=None), format_memory,
            "memory of the emptiest stage", "{} on the emptiest stage", verb="needs"),
    Measure("reserved", _STEP, itemgetter("peak_reserved_bytes"), format_memory, "reserved memory",
            "{} of reserved memory", verb="needs"),
    Measure("bubble", _STEP, _idle, share_text, "idle time", "{} idle time", is_share=True),
    Measure("exposed", _STEP, itemgetter("exposed_comm_time_s"), format_time, "exposed communication",
            "{} of exposed communication"),
    Measure("exposed_share", _STEP, _exposed_share, share_text, "share of exposed communication",
            "{} exposed communication", is_share=True),
    Measure("communication", _STEP, itemgetter("comm_time_s"), format_time, "communication", "{} of communication"),
    Measure("recompute", _STEP, itemgetter("recompute_time_s"), format_time, "recompute", "{} of recompute"),
    Measure("loss", _STEP, _last_loss, "{:.4g}".format, "loss", "a loss of {}"),
)  # fmt: skip

_IN_SAMPLES: Final = MappingProxyType({measure.name: measure for measure in _speeds(SAMPLE)})


def names() -> tuple[str, ...]:
    """Return the names of all measures."""
    return tuple(dict.fromkeys(measure.name for measure in MEASURES))


def names_of(kind: str) -> tuple[str, ...]:
    """Return the names of the measures for scenarios of a kind: "collective" or "training".

    >>> names_of("collective")[:3]
    ('time', 'busbw', 'error')
    """
    return tuple(measure.name for measure in MEASURES if kind in measure.of)


def find(name: str, kind: str, unit: str = TOKEN) -> Measure:
    """Return the measure with this name, for scenarios of a kind: "collective" or "training".

    Speeds are told in the given unit of work (see `work_unit`).

    >>> find("speed", "training").noun, find("speed", "training", "sample").noun
    ('tokens/s', 'samples/s')
    """
    if unit == SAMPLE and name in _IN_SAMPLES:
        return _IN_SAMPLES[name]
    return next(measure for measure in MEASURES if measure.name == name and kind in measure.of)


def for_reports(measure: Measure, reports: Sequence[Report]) -> Measure:
    """Return the measure, or a replacement by which the given reports can be compared fairly.

    Step times are compared per token if steps have different numbers of tokens, and per useful token if their shares of
    padding differ. MFU is replaced by model FLOP/s if peak
    FLOP/s differ. Speeds are told in the unit of the reports' models.
    """
    unit = work_unit(reports)
    if measure.name in _IN_SAMPLES:
        return find(measure.name, "training", unit)
    if measure not in (find("time", "training"), find("mfu", "training")) or not _all_steps(reports):
        return measure
    if measure.name == "mfu":
        peaks = [report["model_flops_per_s_per_gpu"] / report["mfu"] for report in reports if report["mfu"]]
        # MFU relates to a GPU's peak, and peaks that differ make shares incomparable.
        return measure if _alike(peaks) else find("model_flops", "training")
    if not _alike([report.get("tokens_used", 1.0) for report in reports]):
        return find("time_per_useful_token", "training", unit)
    tokens = [report["tokens_per_s"] * report["step_time_s"] for report in reports]
    # Steps with more tokens take longer without being slower.
    return measure if _alike(tokens) else find("time_per_token", "training", unit)


def recomputes(reports: Sequence[Report]) -> bool:
    """Return True if a report of a training step counts recomputed FLOPs: its HFU is above its MFU."""
    return any(report.get("hfu", 0.0) > (1 + 1e-9) * report.get("mfu", 0.0) for report in reports)


def _all_steps(reports: Sequence[Report]) -> bool:
    """Return True if there are reports, and every report comes from a training step."""
    return bool(reports) and all("tokens_per_s" in report for report in reports)


def _alike(values: Sequence[float]) -> bool:
    """Return True if the values agree to a relative 1e-6; also if there are none."""
    return not values or max(values) - min(values) <= 1e-6 * max(values)
