"""Which texts does a page contain about its run: how far to trust the figures, and how to simulate the run again?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.basics.counts import number_of
from simulator.basics.dtypes import is_narrow
from simulator.basics.edition import VERSION
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
from simulator.step.training_spec import TrainingSpec

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
    simulated, closed = (sum(report[f"{kind}_collectives"] for report in rows) for kind in ("played", "closed_form"))
    return [
        ("collectives", f"{simulated:,} simulated transfer by transfer, {closed:,} computed by exact closed forms"),
        *(("constants", text) for text in dict.fromkeys(_constants(row) for row in compared.rows)),
    ]


def _constants(row: Row) -> str:
    """Return a text on the source of the constants, fitted to a framework and GPU, that slow a point's kernels down."""
    training = row.point.training
    if training is None or training.framework == "bare":
        return "no fitted constants (framework: bare)"
    framework, gpu = load_framework(training.framework, row.point.base), _gpu(row.point)
    # Constants by source: the framework itself, another framework whose constants are taken over, or "" (assumed).
    by = framework.fitted_to(gpu)
    # Constants of kernels that this step does not have say nothing about its times.
    absent = {
        name for name, used in (("compiled", training.compile), ("row_scaled", _scales_rows(training))) if not used
    }
    by = {whose: [name for name in names if name not in absent] for whose, names in by.items()}
    fitted, assumed = ", ".join(by.pop(framework.name, [])), ", ".join(by.pop("", []))
    borrowed = [f"carried over from {whose}: {', '.join(names)}" for whose, names in by.items() if names]
    texts = [
        f"fitted to its own measured runs: {fitted}" if fitted else "none is fitted to measured runs of its own",
        *borrowed,
        *([f"assumed: {assumed}"] if assumed else []),
    ]
    if gpu is not None and framework.chip(gpu) is None:
        texts.append(f"loss of {gpu.name} under sustained load: median of other chips")
    return f"constants with which {framework.name} slows kernels down: {'; '.join(texts)} (docs/validation.md)"


def _scales_rows(training: TrainingSpec) -> bool:
    """Return True if a step's matmuls in eight bits have a scale for each row."""
    dtypes = training.precision.resolved()
    return dtypes.scaling == "row" and is_narrow(dtypes.matmul)


def _gpu(point: Scenario) -> Gpu | None:
    """Return the GPU type of a point's cluster; None if it is not known without building the cluster."""
    try:
        gpu = point.cluster.gpu or topology_facts(point.cluster.topology, point.base).gpu
        return None if gpu is None else load_gpu(gpu, point.base)
    except ScenarioError:
        return None
