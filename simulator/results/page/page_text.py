"""What does a page say about its run in words: how far to trust it, how to play it again?"""

from __future__ import annotations

import simulator
from simulator.basics.counts import number_of
from simulator.findings.answer import Answer, chosen_by_auto
from simulator.findings.comparison import Comparison
from simulator.report.numbers.measures import interval_width
from simulator.scenario.records import Scenario


def reproduction(scenario: Scenario) -> list[tuple[str, str]]:
    """What to type, and with what it was played."""
    return [
        ("the same again", "simulator rerun DIRECTORY, where this page lies; or simulator run scenario.yaml"),
        ("seed", str(scenario.seed)),
        ("simulator", simulator.__version__),
    ]


def files_beside(compared: Comparison) -> list[tuple[str, str]]:
    """Files that a run leaves beside its page, as relative paths, and what is in each."""
    several = len(compared.rows) > 1
    files = [("report.json", "all figures"), ("scenario.yaml", "every default written out"), ("run.json", "versions")]
    files += [("table.csv", "a row for each point")] if several else []
    files += [("plots/", "pictures")] if compared.scenario.plots else []
    own = "spans and transfers of each point"
    return files + ([("points/", own)] if several else [("spans.csv", "operations"), ("transfers.csv", "transfers")])


def trust(compared: Comparison, answer: Answer) -> list[tuple[str, str]]:
    """What is played, what stands for it, which constants were fitted, how far measured runs lie from such figures."""
    rows = [row.report for row in compared.rows if row.report is not None]
    engines = sorted({outcome.engine for outcome in compared.outcomes if outcome.engine})
    facts = [("engine", ", ".join(engines)), ("algorithm", "; ".join(chosen_by_auto(compared)))]
    if compared.kind == "collective":
        wrong = [report["wrong"] for report in rows if report["wrong"] is not None]
        facts.append(("transfers", "every one is played as an event; times come out of routes, latencies and shares"))
        if wrong:
            facts.append(
                (
                    "numbers",
                    f"real arrays were added up in {number_of(len(wrong), 'point')}; wrong elements: {sum(wrong):,}",
                )
            )
        exact = [r for r in rows if r["predicted_s"]]
        if exact:
            off = max(abs(r["time_s"] / r["predicted_s"] - 1) for r in exact)
            facts.append(
                (
                    "closed forms",
                    f"exact formulas: of {number_of(len(exact), 'point')}; the largest difference is {off:.1e}",
                )
            )
    else:
        facts += _of_training(compared)
    if answer.further:
        facts.append(
            (
                "thresholds",
                f"found by playing {number_of(answer.further, 'point')} between those of the table, to 2 % or exactly",
            )
        )
    facts.append(("not modelled", "packets, congestion control, switch buffers, adaptive routing; see docs/design.md"))
    return facts


def _of_training(compared: Comparison) -> list[tuple[str, str]]:
    rows = [row.report for row in compared.rows if row.report is not None]
    if not rows:
        return []
    frameworks = sorted({row.point.training.framework for row in compared.rows if row.point.training is not None})
    played, closed = (sum(report[f"{kind}_collectives"] for report in rows) for kind in ("played", "closed_form"))
    fitted = f"kernels are slowed by constants fitted to measured runs of {', '.join(frameworks)}"
    facts = [
        ("collectives", f"{played:,} were played transfer by transfer, {closed:,} by exact closed forms"),
        ("constants", fitted if frameworks != ["bare"] else "no fitted constants (framework: bare)"),
    ]
    known = [width for report in rows if (width := interval_width(report)) is not None]
    if known:
        around = max(known)
        carried = any(report["carried_over"] for report in rows)
        text = f"80 % of measured runs like these lie within ±{100 * around:.0f} % of the predicted step time"
        text += "; no run of this framework or chip was measured, so errors of others stand for it" if carried else ""
        facts.append(("interval", text))
    return facts
