"""What does a page say about its run in words: how far to trust it, how to play it again?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import simulator
from simulator.basics.counts import number_of
from simulator.basics.errors import ScenarioError
from simulator.cluster.build import facts as topology_facts
from simulator.cluster.cluster import Gpu
from simulator.cluster.gpu_file import load_gpu
from simulator.findings.answer import Answer
from simulator.findings.caveats import sources
from simulator.findings.comparison import Comparison, Row
from simulator.records.measures import Report
from simulator.scenario.records import Scenario
from simulator.step.framework import load_framework

# Algorithms and sources that a page has room for.
_MOST_TOLD: Final = 12


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
    files += [("plots/", "pictures")] if compared.scenario.plotted.kinds else []
    own = "spans and transfers of each point"
    return files + ([("points/", own)] if several else [("spans.csv", "operations"), ("transfers.csv", "transfers")])


def trust(compared: Comparison, answer: Answer) -> list[tuple[str, str]]:
    """What is played, what stands for it, which constants were fitted, how far measured runs lie from such figures."""
    rows = [row.report for row in compared.rows if row.report is not None]
    engines = sorted({outcome.engine for outcome in compared.outcomes if outcome.engine})
    facts = [("engine", ", ".join(engines))]
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
    facts += _of_collectives(rows)
    facts += answer.caveats
    if answer.further:
        facts.append(
            (
                "thresholds",
                f"found by playing {number_of(answer.further, 'point')} between those of the table, to 2 % or exactly",
            )
        )
    facts.append(("not modelled", "packets, congestion control, switch buffers, adaptive routing; see docs/design.md"))
    return facts


def _of_collectives(rows: Sequence[Report]) -> list[tuple[str, str]]:
    """Which algorithms ran in steps, and where the machines' constants of collectives were measured."""
    ran = dict.fromkeys(
        "; ".join(f"{name}: {taken}" for name, taken in report["algorithms"].items())
        for report in rows
        if report.get("algorithms")
    )
    measured = dict.fromkeys(source for report in rows for source in sources(report))
    told = [("algorithms", text) for text in ran] + [("constants of collectives", source) for source in measured]
    return told if len(told) <= _MOST_TOLD else [*told[:_MOST_TOLD], ("and more", "report.json has them all")]


def _of_training(compared: Comparison) -> list[tuple[str, str]]:
    rows = [row.report for row in compared.rows if row.report is not None]
    if not rows:
        return []
    played, closed = (sum(report[f"{kind}_collectives"] for report in rows) for kind in ("played", "closed_form"))
    return [
        ("collectives", f"{played:,} were played transfer by transfer, {closed:,} by exact closed forms"),
        *(("constants", text) for text in dict.fromkeys(_constants(row) for row in compared.rows)),
    ]


def _constants(row: Row) -> str:
    """Whose measured runs the constants were fitted to that slow a point's kernels down."""
    training = row.point.training
    if training is None or training.framework == "bare":
        return "no fitted constants (framework: bare)"
    framework, gpu = load_framework(training.framework), _gpu(row.point)
    by = framework.fitted_to(gpu)
    if not training.compile:
        by = {whose: [name for name in names if name != "compiled"] for whose, names in by.items()}
    own = ", ".join(by.pop(framework.name, [])) or "none"
    assumed = ", ".join(by.pop("", []))
    taken = [f"taken over from {whose}: {', '.join(names)}" for whose, names in by.items() if names]
    texts = [f"fitted to its own measured runs: {own}", *taken, *([f"assumed: {assumed}"] if assumed else [])]
    if gpu is not None and framework.chip(gpu) is None:
        texts.append(f"what {gpu.name} loses under sustained load: the middle of other chips")
    return f"those of {framework.name}, which slow kernels down; {'; '.join(texts)} (docs/validation.md)"


def _gpu(point: Scenario) -> Gpu | None:
    """The GPU of a point; None where only its cluster knows it."""
    try:
        gpu = point.cluster.gpu or topology_facts(point.cluster.topology, point.base).gpu
        return None if gpu is None else load_gpu(gpu, point.base)
    except ScenarioError:
        return None
