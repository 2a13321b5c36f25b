"""What must be known to trust an answer: what `auto` took, which constants nobody measured, how far steps are off?

Rule: facts of the reports, in words; terminal and page take theirs from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from simulator.findings.comparison import Comparison, Row
from simulator.records.measures import Report, interval_width
from simulator.report.numbers.summary import BETWEEN

# Sentences of one kind; a page has all in report.json.
_MOST: Final = 3
_BORROWED: Final = "not measured here"


class Caveat(NamedTuple):
    """One thing that must be known.

    Attributes
    ----------
    topic : str
        "auto", "network" or "interval".
    text : str
        A sentence without its full stop.
    """

    topic: str
    text: str


def caveats(compared: Comparison) -> tuple[Caveat, ...]:
    """All of a scenario's points together."""
    rows = [(row, row.report) for row in compared.rows if row.report is not None]
    made = [*_auto(rows), *_network(rows)]
    if compared.kind == "training":
        made += _interval([report for _, report in rows])
    return tuple(made)


def _auto(rows: Sequence[tuple[Row, Report]]) -> Iterator[Caveat]:
    """Algorithms that `auto` took for a collective, each with the reason at its first point."""
    taken: dict[str, list[Report]] = {}
    for row, report in rows:
        if row.point.collective is not None and row.point.collective.algorithm == "auto":
            taken.setdefault(report["algorithm"], []).append(report)
    several = sum(map(len, taken.values())) > 1
    for name, reports in list(taken.items())[:_MOST]:
        where = f" in {len(reports)} point{'' if len(reports) == 1 else 's'}" if several else ""
        yield Caveat("auto", f"auto took {name}{where}: {reports[0]['why']}")


def _network(rows: Sequence[tuple[Row, Report]]) -> Iterator[Caveat]:
    """Topologies of which no collective was measured, and constants that were taken over from another machine."""
    unmeasured, borrowed = dict[str, None](), dict[str, None]()
    for row, report in rows:
        constants = sources(report)
        if is_best_case(report):
            topology = row.point.cluster.topology
            unmeasured[topology if isinstance(topology, str) else "this topology"] = None
        told = str(report.get("why", ""))
        borrowed |= dict.fromkeys(
            source.partition(";")[0] for source in constants if source.startswith(_BORROWED) and source not in told
        )
    if unmeasured:
        names = ", ".join(list(unmeasured)[:_MOST]) + (", ..." if len(unmeasured) > _MOST else "")
        yield Caveat("network", best_case(names))
    for source in list(borrowed)[:_MOST]:
        yield Caveat("network", f"constants of collectives are {source}")


def is_best_case(report: Report) -> bool:
    """Whether collectives ran of which nobody has measured any; not known of what an earlier version left."""
    return "constants" in report and report["constants"] is None and bool(report.get("algorithms", True))


def best_case(names: str) -> str:
    """Say what is not known of these topologies."""
    return (
        f"no collective that ran was measured on {names}: links carry all that they are rated at and nothing is paid "
        "to start, which is a best case"
    )


def sources(report: Report) -> list[str]:
    """Where the constants of a report's collectives were measured."""
    return [source for source in str(report.get("constants") or "").split(BETWEEN) if source]


def _interval(reports: Sequence[Report]) -> Iterator[Caveat]:
    """How far measured runs lie from such steps: the range from the surest to the least sure of the points."""
    known = [(width, report) for report in reports if (width := interval_width(report)) is not None]
    if not known:
        return
    half, less = (choose(one for one, _ in known) for choose in (max, min))
    near = (
        f"{100 * half:.0f} %" if round(100 * less) == round(100 * half) else f"{100 * less:.0f} to {100 * half:.0f} %"
    )
    text = f"80 % of measured runs like these lie within ±{near} of the predicted step time"
    if any(report["carried_over"] for _, report in known):
        text += "; no run of this framework or chip was measured, so that errors of others stand for it"
    if any(is_best_case(report) and report["exposed_comm_time_s"] > 0 for _, report in known):
        text += "; where no collective was measured, exposed communication may take as much longer as measured ones do"
    yield Caveat("interval", text)
