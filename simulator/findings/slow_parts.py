"""What do slow links and slow GPUs of the cluster cost? The best point is simulated again without them.

Closed forms keep collectives off the links, so the slow link is often no report's bottleneck although it decides a
step's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from simulator.basics.units import format_time
from simulator.findings.comparison import Comparison, Row
from simulator.records.setting_text import label

# A smaller share of the point's time is told as no effect.
_LEAST: Final = 0.01
# Noun of the slow parts that a key of the cluster describes.
_PARTS: Final = {"cluster.link_factors": "slow link", "cluster.stragglers": "slow GPU"}


class SlowPart(NamedTuple):
    """The cost of a point's slow links or slow GPUs."""

    sentence: str  # without a full stop
    numbers: dict[str, Any]  # plain data: the key, the point, its time and its time without the slow parts [s]

    @property
    def decides(self) -> bool:
        """Return True if the slow parts cost at least 1 % of the point's time."""
        return bool(self.numbers["time_s"] - self.numbers["time_without_s"] >= _LEAST * self.numbers["time_s"])


def slow_parts(compared: Comparison, rows: Sequence[Row]) -> list[SlowPart]:
    """Return the cost of slow links and of slow GPUs, each for the first of the rows that has any.

    A scenario that compares points with and without the slow parts tells their cost itself; the list is then empty.
    """
    return [part for key in _PARTS for part in list(_of_key(compared, rows, key))[:1]]


def _of_key(compared: Comparison, rows: Sequence[Row], key: str) -> Iterator[SlowPart]:
    """Yield the cost of the slow parts under a key of the cluster, for each row whose points have no counterpart."""
    time = compared.measure("time")
    for row in rows:
        factors = getattr(row.point.cluster, key.rpartition(".")[2])
        slow = {name: factor for name, factor in factors.items() if factor < 1}
        settings = {**row.setting, **row.condition, key: {k: v for k, v in factors.items() if k not in slow}}
        if not slow or compared.has(settings):
            continue
        report = compared.further(settings)
        now, without = (None if outcome is None else time.value(outcome) for outcome in (row.report, report))
        if now is None or without is None:
            continue
        several = len(slow) > 1
        subject = f"the {_PARTS[key]}{'s' if several else ''} ({label(key, slow)})"
        verb, them = ("cost", "them") if several else ("costs", "it")
        at = f" with {compared.place(row)}" if len(compared.rows) > 1 else ""
        work = "step" if compared.kind == "training" else "collective"
        sentence = f"{subject} {verb} {format_time(now - without)}{at}; without {them}, the {work} takes " + (
            format_time(without)
        )
        part = SlowPart(sentence, {"of": key, "point": row.index, "time_s": now, "time_without_s": without})
        yield part if part.decides else part._replace(sentence=f"{subject} {verb} less than 1 % of the time{at}")
