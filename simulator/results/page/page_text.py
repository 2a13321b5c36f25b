"""Which texts does a page contain about its run: how far to trust the figures, and how to simulate the run again?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.basics.counts import number_of
from simulator.basics.edition import VERSION
from simulator.findings.answer import Answer
from simulator.findings.caveats import sources
from simulator.findings.comparison import Comparison
from simulator.records.measures import Report
from simulator.scenario.records import Scenario

# Maximum algorithms and sources to list on a page.
_MOST_TOLD: Final = 12


def reproduction(scenario: Scenario) -> list[tuple[str, str]]:
    """Return (name, text) pairs for repeating the scenario's run: command, seed and version."""
    return [
        ("command", "simulator rerun DIRECTORY (the directory of this page), or simulator run scenario.yaml"),
        ("seed", str(scenario.seed)),
        ("simulator", VERSION),
    ]


def files_beside(compared: Comparison) -> list[tuple[str, str]]:
    """Return (relative path, description) pairs of the files beside a run's page."""
    several = len(compared.rows) > 1
    files = [("report.json", "all figures"), ("scenario.yaml", "scenario with all defaults"), ("run.json", "versions")]
    files += [("table.csv", "a row for each point")] if several else []
    files += [("plots/", "pictures")] if compared.scenario.plotted.kinds else []
    if several:
        return [*files, ("points/", "spans, transfers and use of links of each point")]
    return [
        *files,
        ("spans.csv", "operations"),
        ("transfers.csv", "transfers"),
        ("links.csv", "use of links over time"),
    ]


def trust(compared: Comparison, answer: Answer) -> list[tuple[str, str]]:
    """Return (topic, text) pairs on the trust in a run: engines, closed forms, fitted constants, measured errors."""
    rows = [row.report for row in compared.rows if row.report is not None]
    engines = sorted({outcome.engine for outcome in compared.outcomes if outcome.engine})
    facts = [("engine", ", ".join(engines))]
    if compared.kind == "collective":
        wrong = [report["wrong"] for report in rows if report["wrong"] is not None]
        facts.append(
            ("transfers", "every transfer is an event; times follow from routes, latencies and shares of bandwidth")
        )
        if wrong:
            facts.append(
                (
                    "numbers",
                    f"real arrays were summed in {number_of(len(wrong), 'point')}; wrong elements: {sum(wrong):,}",
                )
            )
        # Only points with an exact closed form have a prediction to compare.
        exact = [r for r in rows if r["predicted_s"]]
        if exact:
            off = max(abs(r["time_s"] / r["predicted_s"] - 1) for r in exact)
            facts.append(
                (
                    "closed forms",
                    f"exact formulas for {number_of(len(exact), 'point')}; largest relative difference {off:.1e}",
                )
            )
    else:
        facts += _of_training(compared)
    facts += _of_collectives(rows)
    facts += answer.caveats
    if answer.further:
        facts.append(
            (
                "thresholds",
                f"found by simulating {number_of(answer.further, 'further point')}, to 2 % or exactly",
            )
        )
    facts.append(("not modelled", "packets, congestion control, switch buffers, adaptive routing; see docs/design.md"))
    return facts


def _of_collectives(rows: Sequence[Report]) -> list[tuple[str, str]]:
    """Return (topic, text) pairs: the collectives' algorithms in the steps, and sources of measured constants."""
    # dict.fromkeys keeps each text once, in the points' order.
    ran = dict.fromkeys(
        "; ".join(f"{name}: {algorithm}" for name, algorithm in report["algorithms"].items())
        for report in rows
        if report.get("algorithms")
    )
    measured = dict.fromkeys(source for report in rows for source in sources(report))
    pairs = [("algorithms", text) for text in ran] + [("constants of collectives", source) for source in measured]
    return pairs if len(pairs) <= _MOST_TOLD else [*pairs[:_MOST_TOLD], ("more", "report.json has the complete list")]


def _of_training(compared: Comparison) -> list[tuple[str, str]]:
    rows = [row.report for row in compared.rows if row.report is not None]
    if not rows:
        return []
    # Imported late, because a collective has no parts of a step.
    from simulator.findings.measured_range import source_of_constants

    simulated, closed = (sum(report[f"{kind}_collectives"] for report in rows) for kind in ("played", "closed_form"))
    return [
        ("collectives", f"{simulated:,} simulated transfer by transfer, {closed:,} computed by exact closed forms"),
        *(("constants", text) for text in dict.fromkeys(source_of_constants(row.point) for row in compared.rows)),
    ]
