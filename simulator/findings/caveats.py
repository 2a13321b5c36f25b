"""Which facts limit the trust in an answer: the choice of `auto`, unmeasured constants, the error of predicted steps?

Facts from the reports, in words, for terminal and page.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from simulator.basics.counts import number_of
from simulator.basics.errors import few
from simulator.basics.sections import varied
from simulator.basics.units import format_memory, format_time
from simulator.basics.work_unit import has_padding, useful_rate
from simulator.cluster.build import facts
from simulator.cluster.cluster import BORROWED
from simulator.cluster.library import MODELLED
from simulator.collectives.collective_plan import AS_REQUESTED
from simulator.findings.comparison import Comparison, Row
from simulator.findings.text import join_list
from simulator.records.measures import Report, interval_width
from simulator.records.memory_margin import margin_of
from simulator.report.numbers.idle_cards import IdleCards
from simulator.report.numbers.summary import BETWEEN
from simulator.scenario.records import PLACEMENT, Scenario

# Maximum number of sentences per kind; a page's report.json has the rest.
# Share of a step that waits for the host from which this is told.
_HOST_SHOWS: Final = 0.01
_MOST: Final = 3
# Share of a step that ranks wait for each other from which this is told.
_WAITING_SHOWS: Final = 0.01
# Algorithms over all cards of a node that NCCL has under the names of algorithms over one (NCCL_ALGO: Ring, Tree).
_IN_NCCL: Final = {"ring": "multi_ring", "tree": "double_binary_tree"}
# Words for the grades of `report.numbers.evidence`.
_EVIDENCE: Final = {
    "measured": "on kernels and collectives measured on this GPU and machine",
    "other_gpu": "on kernels and collectives measured on other GPUs or machines",
    "data_sheet": "on ratings of data sheets",
    "assumed": "on assumptions",
    "host": "on the host's time for each launch, as reported for other hosts",
}


class Caveat(NamedTuple):
    """A fact to know before trusting the answer."""

    # "auto", "proof", "network", "nodes", "cards", "padding", "memory", "interval", "evidence", "range" or "framework".
    topic: str
    text: str  # A sentence without its full stop


def caveats(compared: Comparison) -> tuple[Caveat, ...]:
    """Return the caveats (facts that limit the trust in an answer) of all points together."""
    rows = [(row, row.report) for row in compared.rows if row.report is not None]
    notes = [*_auto(rows), *_network(compared, rows), *_partly_used_nodes(compared)]
    if compared.kind == "training":
        # Memory and prediction intervals exist for training steps only.
        reports = [report for _, report in rows]
        notes += [
            *_cut_groups(compared),
            *_padding(compared, reports),
            *_uneven(reports),
            *_memory(compared),
            *_paged(rows),
        ]
        notes += [*_intervals(compared, rows), *_evidence(rows), *_range(rows), *_framework(compared.scenario)]
    else:
        notes += _idle_cards(compared)
    return tuple(notes)


def _auto(rows: Sequence[tuple[Row, Report]]) -> Iterator[Caveat]:
    """Yield a caveat for each algorithm that `auto` chose for a collective, with the reason at its first point, and for
    each algorithm whose proof took fewer ranks.
    """
    by_algorithm: dict[str, list[Report]] = {}
    for row, report in rows:
        if row.point.collective is not None and row.point.collective.algorithm == "auto":
            by_algorithm.setdefault(report["algorithm"], []).append(report)
        elif report.get("why", "").startswith(f"{AS_REQUESTED};"):
            yield Caveat("proof", f"{report['algorithm']} is {report['why'].partition('; ')[2]}")
    several = sum(map(len, by_algorithm.values())) > 1
    for name, reports in list(by_algorithm.items())[:_MOST]:
        where = f" for {number_of(len(reports), 'point')}" if several else ""
        yield Caveat("auto", f"auto chose {name}{where}: {reports[0]['why']}")


def _network(compared: Comparison, rows: Sequence[tuple[Row, Report]]) -> Iterator[Caveat]:
    """Yield caveats on topologies without measured collectives, and on constants taken over from another machine."""
    unmeasured, borrowed = dict[bool, dict[str, None]](), dict[str, dict[str, None]]()
    settings: dict[bool, dict[str, None]] = {}
    for row, report in rows:
        if is_unmeasured(report):
            topology = row.point.cluster.topology
            # A topology written inline in the scenario has no name.
            name = topology if isinstance(topology, str) else "this topology"
            unmeasured.setdefault(is_modelled(report), {})[name] = None
            settings.setdefault(is_modelled(report), {})[compared.name(row.setting)] = None
        reason = str(report.get("why", ""))
        # Skip a source that the report's own reason already mentions.
        for operation, source in _sources_by_operation(row, report):
            if source.startswith(BORROWED) and source not in reason:
                borrowed.setdefault(source.partition(";")[0], {})[operation] = None
    for modelled, names in unmeasured.items():
        # Settings whose collectives are not in the library have the links' rating.
        of = f" ({few(list(settings[modelled]), _MOST)})" if len(unmeasured) > 1 else ""
        yield Caveat("network", unmeasured_text(few(list(names), _MOST), modelled=modelled) + of)
    for source, operations in list(borrowed.items())[:_MOST]:
        yield Caveat("network", f"constants of {join_list(list(operations))} are {source}")


def _partly_used_nodes(compared: Comparison) -> Iterator[Caveat]:
    """Yield a caveat for each number of ranks that fills several nodes except the last, with the number of idle GPUs.

    Ranks take the first GPUs in order. A placement chooses the GPUs itself and needs no caveat.
    """
    clusters = [row.point.cluster for row in compared.rows if row.point.cluster.placement is None]
    sizes = {repr(cluster.topology): facts(cluster.topology, compared.scenario.base).node_size for cluster in clusters}
    pairs = dict.fromkeys((cluster.world_size, sizes[repr(cluster.topology)]) for cluster in clusters)
    partly = [(gpus, size) for gpus, size in pairs if size is not None and gpus > size and gpus % size]
    for gpus, size in partly[:_MOST]:
        last, idle = gpus % size, size - gpus % size
        yield Caveat(
            "nodes",
            f"{gpus:,} GPUs take {gpus // size + 1:,} nodes of {size} GPUs: the last node runs "
            f"{number_of(last, 'rank')}, and {number_of(idle, 'GPU')} of this node {'is' if idle == 1 else 'are'} idle",
        )


def _cut_groups(compared: Comparison) -> Iterator[Caveat]:
    """Yield a caveat for each kind of model-parallel groups that nodes cut into unequal parts."""
    texts = dict.fromkeys(_cut_group(row.point) for row in compared.rows)
    yield from (Caveat("nodes", text) for text in list(filter(None, texts))[:_MOST])


def _cut_group(point: Scenario) -> str:
    """Return a sentence on the model-parallel groups of a training that nodes cut into unequal parts, with the
    placement on fewer GPUs of each node that cuts them equally; empty without such groups or placement.
    """
    cluster, training = point.cluster, point.training
    machine = facts(cluster.topology, point.base)
    if training is None or machine.node_size is None or isinstance(cluster.placement, tuple):
        return ""
    from simulator.step.process_groups import Groups
    from simulator.step.rank_grid import parts_on_nodes

    size, layout = machine.node_size, training.parallelism
    grid = layout.grid(cluster.world_size)
    groups = Groups(grid, grid.holders, None, layout.cp, layout.ep, layout.expert_tensor)
    kinds = {"tp": groups.table("tensor"), "cp": groups.table("context"), "ep": groups.table("experts")}
    used = size if cluster.placement is None else cluster.placement[PLACEMENT.key]
    cut = {kind: parts for kind, ranks in kinds.items() if len(parts := parts_on_nodes(ranks, used)) > 1}
    # A placement that leaves half of each node idle is no remedy.
    for each in range(used - 1, size // 2, -1) if cut else ():
        fits = -(-cluster.world_size // each) * size <= (machine.max_ranks or math.inf)
        if fits and all(len(parts_on_nodes(ranks, each)) == 1 for ranks in kinds.values()):
            kind, parts = next(iter(cut.items()))
            return (
                f"{kind} groups of {kinds[kind].shape[1]} ranks have {parts[0]} to {parts[-1]} ranks on a node; with "
                f"cluster.placement {{{PLACEMENT.key}: {each}}}, every group has equally many on each of its nodes"
            )
    return ""


def _idle_cards(compared: Comparison) -> Iterator[Caveat]:
    """Yield a caveat if `auto`, simulated in the last condition with idle network cards, is faster than its points.

    It replaces the algorithm of the fastest point with idle cards; earlier conditions are not tried.
    """
    for condition in reversed(compared.conditions):
        rows = compared.under(condition)
        idle = [row for row in rows if (row.report or {}).get("idle_cards")]
        if not idle:
            continue
        best = min(idle, key=lambda row: (row.report or {})["time_s"])
        auto = compared.further({**best.setting, **best.condition, "collective.algorithm": "auto"}) or {}
        fastest = min((row.report or {})["time_s"] for row in rows)
        text = faster_by_auto(best.report or {}, auto) if auto and auto["time_s"] < fastest else ""
        if text:
            where = compared.where(condition)
            yield Caveat("cards", f"{text}{f' ({where})' if where else ''}")
        return


def faster_by_auto(report: Report, auto: Report) -> str:
    """Return a sentence on the choice of `auto` in place of a collective that leaves network cards idle; "" if the
    collective uses its cards, or if the choice leaves cards idle too or is slower.
    """
    if not report.get("idle_cards") or auto["idle_cards"] or auto["time_s"] >= report["time_s"]:
        return ""
    idle, name = IdleCards(**report["idle_cards"]), report["algorithm"]
    in_nccl = f" (NCCL's {name.title()} is {_IN_NCCL[name]})" if name in _IN_NCCL else ""
    return (
        f"{name} leaves {idle.cards - idle.used} of a node's {idle.cards} network cards idle{in_nccl}; algorithm "
        f"auto is {auto['algorithm']} here and takes {format_time(auto['time_s'])} instead of "
        f"{format_time(report['time_s'])}"
    )


def _sources_by_operation(row: Row, report: Report) -> Iterator[tuple[str, str]]:
    """Yield an operation of a collective and the source of its constants, for each source of a report."""
    by_operation = report.get("constants_by_operation")
    if by_operation:
        yield from ((operation, source) for operation, several in by_operation.items() for source in several)
        return
    # A collective has one operation; reports of training steps of earlier versions do not name the operations.
    operation = row.point.collective.operation if row.point.collective is not None else "collectives"
    yield from ((operation, source) for source in sources(report))


def _padding(compared: Comparison, reports: Sequence[Report]) -> Iterator[Caveat]:
    """Yield a caveat on the rates and the loss of steps with padding."""
    if not has_padding(reports):
        return
    shares = sorted({f"{100 * (1 - report['tokens_used']):.3g}" for report in reports}, key=float)
    share = shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]}"
    rates = {f"{useful_rate(report):,.0f}" for report in reports}
    rate = f" ({rates.pop()})" if len(rates) == 1 else ""
    training = compared.scenario.training
    key = "tokens_used" if training is None or training.lengths is None else "batching"
    yield Caveat(
        "padding",
        f"{share} % of the tokens are padding (training.{key}): tokens/s and MFU count padding, as most logs do; "
        f"useful tokens/s{rate}, budgets, goodput and the mean of a loss leave padding out",
    )


def _uneven(reports: Sequence[Report]) -> Iterator[Caveat]:
    """Yield caveats on steps that differ, and on the time that ranks with short documents wait for others."""
    for times in [report["step_times_s"] for report in reports if report.get("step_times_s")][:1]:
        ordered = sorted(times)
        ninth = ordered[max(0, -(-9 * len(ordered) // 10) - 1)]
        yield Caveat(
            "steps",
            f"{len(ordered)} different steps take {format_time(ordered[0])} to {format_time(ordered[-1])}, "
            f"90 % at most {format_time(ninth)}; the report is that of the median step",
        )
    lost = [
        1.0 - report["even_work_time_s"] / report["step_time_s"] for report in reports if report.get("even_work_time_s")
    ]
    if lost and max(lost) >= _WAITING_SHOWS:
        shares = " to ".join(f"{100 * max(0.0, share):.2g}" for share in dict.fromkeys((min(lost), max(lost))))
        where = "" if len(lost) == len(reports) else f", in {len(lost)} of {len(reports)} settings"
        yield Caveat(
            "lengths",
            f"ranks wait for the one with the most work{where}: if each had the mean work of its documents, the step "
            f"would be {shares} % shorter",
        )


def is_unmeasured(report: Report) -> bool:
    """Return True if no collective was measured on the report's topology: its times follow from the links.

    Reports of earlier versions lack the key `constants`; then the answer is unknown and False.
    """
    rated = "constants" in report and report["constants"] is None and bool(report.get("algorithms", True))
    return rated or is_modelled(report)


def is_modelled(report: Report) -> bool:
    """Return True if all collectives of a report have the times of the library's model."""
    return bool(sources(report)) and all(source.startswith(MODELLED) for source in sources(report))


def unmeasured_text(names: str, *, modelled: bool) -> str:
    """Return a sentence that no collective was measured on the named topologies and which times its links give."""
    basis = (
        "times follow a model of the library, with the shares of bandwidth and the start-ups of other machines"
        if modelled
        else "times assume rated link bandwidths and no start-up cost"
    )
    return f"no collective of this run was measured on {names}; {basis}"


def sources(report: Report) -> list[str]:
    """Return the sources of the measured constants behind a report's collectives."""
    return [source for source in str(report.get("constants") or "").split(BETWEEN) if source]


def _memory(compared: Comparison) -> Iterator[Caveat]:
    """Yield a caveat on points with less free memory than a process may need beyond the model; the tightest warns."""
    tight = []
    for row in compared.rows:
        report = row.report
        if report is not None and row.fits:
            margin = margin_of(report)
            tight += [(-margin.free, compared.place(row), margin.warning)] if margin.warning else []
    if tight:
        names = [name for *_, name, _ in sorted(tight)]
        more = f" (also {join_list(names[:-1][:_MOST])})" if len(names) > 1 else ""
        _, name, text = max(tight)
        where = f" with {name}{more}" if len(compared.rows) > 1 else ""
        yield Caveat("memory", f"{text}{where}")


def assumed_framework(scenario: Scenario) -> str:
    """Return the framework that a training scenario has by default; "" if the scenario or an axis names frameworks."""
    training, axes = scenario.training, varied({**scenario.compare, **scenario.sweep})
    if training is None or "framework" in training.model_fields_set or "training.framework" in axes:
        return ""
    return training.framework


def _framework(scenario: Scenario) -> Iterator[Caveat]:
    """Yield a caveat on the framework that every point has.

    The caveat does not depend on whether the file names the framework: the written-out scenario of a run names it. The
    page says besides which constants were fitted to the framework's own runs, for each GPU.
    """
    training, axes = scenario.training, varied({**scenario.compare, **scenario.sweep})
    if training is not None and training.framework != "bare" and "training.framework" not in axes:
        text = f"kernels and memory are those of the framework {Path(training.framework).stem}"
        yield Caveat("framework", f"{text} (training.framework; `simulator list frameworks` lists others)")


def _paged(rows: Sequence[tuple[Row, Report]]) -> Iterator[Caveat]:
    """Yield a caveat on the states that paged optimizers hold on the host."""
    away = [states for row, report in rows if (states := _states_on_host(report)) and _pages(row)]
    if away:
        yield Caveat(
            "memory",
            f"up to {format_memory(max(away))} of a paged optimizer's states leave each GPU for the host; the update "
            "copies them in and out at half of the PCIe bandwidth, the best case of managed memory",
        )


def _states_on_host(report: Report) -> int:
    """Return the model states of a rank in its host's memory [B]; 0 in reports of earlier versions."""
    return int(report.get("host_memory_bytes", 0)) - int(report.get("host_activation_bytes", 0))


def _pages(row: Row) -> bool:
    """Return True if the point's optimizer is paged."""
    # Imported late, here and below, because a collective has no parts of a step.
    from simulator.step.optimizers.optimizer import OPTIMIZERS

    training = row.point.training
    return training is not None and OPTIMIZERS.find(training.optimizer.name, row.point.base).paged


# What an interval is of, and its key in a report.
_STEP_TIME: Final = "step time", "step_time_s"
_PEAK: Final = "peak memory", "peak_memory_bytes"


def _intervals(compared: Comparison, rows: Sequence[tuple[Row, Report]]) -> Iterator[Caveat]:
    """Yield caveats with the uncertainty of the predicted memory if the answer asks what fits, else of the time."""
    findings = {request.finding for request in compared.scenario.answer}
    measures = {name for request in compared.scenario.answer for name in request.of}
    of_memory = findings == {"fit"} or (bool(measures) and measures <= {"memory", "reserved", "least_stage"})
    yield from _interval(rows, *(_PEAK if of_memory else _STEP_TIME))


def _interval(rows: Sequence[tuple[Row, Report]], name: str, key: str) -> Iterator[Caveat]:
    """Yield a caveat with the 80 % uncertainty of the predictions `key`: its range over all reports."""
    from simulator.findings.measured_range import is_list_of_layers, unmeasured_kinds

    reports = [report for _, report in rows]
    if key == _STEP_TIME[1]:
        for reason in dict.fromkeys(report["unpredictable"] for report in reports if report.get("unpredictable")):
            yield Caveat("interval", f"not predictable: {reason}")
    intervals = [(width, report) for report in reports if (width := interval_width(report, key)) is not None]
    if not intervals:
        return
    high, low = (choose(width for width, _ in intervals) for choose in (max, min))
    percent = (
        f"{100 * high:.0f} %" if round(100 * low) == round(100 * high) else f"{100 * low:.0f} to {100 * high:.0f} %"
    )
    foreign = [row for row, _ in rows if is_list_of_layers(row.point)]
    if len(foreign) == len(rows):
        yield Caveat(
            "interval",
            f"uncertainty of the {name}: at least ±{percent}; no model like this one is among the measured "
            "runs, and this range holds 95 % of the transformers of unseen sources",
        )
        return
    similar = not any(report["carried_over"] for _, report in intervals)
    runs = f"{'comparable ' if similar else ''}measured runs"
    text = f"uncertainty (80 %) of the {name}: ±{percent}, from the errors of {runs}"
    # Eight bits were measured, but only on some chips.
    dtypes = {
        f"{dtype} on this chip" if dtype.startswith("float8") else dtype: None
        for _, report in intervals
        if (dtype := report.get("unmeasured_dtype"))
    }
    # No measurement covers these runs: the interval uses errors from other frameworks or chips.
    unmeasured = {kinds: None for row, _ in rows if (kinds := unmeasured_kinds(row.point))}
    is_carried_over = any(report["carried_over"] and not report.get("unmeasured_dtype") for _, report in intervals)
    if is_carried_over and unmeasured:
        cases = " or ".join(f"{framework} with {' and '.join(kinds)}" for framework, kinds in unmeasured)
        text += f"; no run of {cases} was measured, therefore the larger errors of unseen sources are used"
    elif is_carried_over:
        text += "; this framework or chip was never measured, therefore errors of other frameworks or chips are used"
    if dtypes:
        text += (
            f"; no training step with matmuls in {' or '.join(dtypes)} was measured, therefore the larger errors "
            "of unseen sources are used"
        )
    if key != _STEP_TIME[1]:
        yield Caveat("interval", text)
        return
    updates = [report for row, report in rows if _states_on_host(report) and not _pages(row)]
    if any(report["optimizer_time_s"] > 0 for report in updates):
        text += "; the rate of the host's update is known within a factor of ten, which widens the interval"
    if any(report.get("host_wait_time_s", 0.0) > _HOST_SHOWS * report["step_time_s"] for _, report in intervals):
        text += "; hosts differ by a factor of two in the time of a launch, which widens the interval"
    # Communication on an unmeasured network may be slower than its rated speed.
    if any(is_unmeasured(report) and report["exposed_comm_time_s"] > 0 for _, report in intervals):
        text += "; on unmeasured networks, exposed communication adds the error of measured collectives"
    yield Caveat("interval", text)


def _evidence(rows: Sequence[tuple[Row, Report]]) -> Iterator[Caveat]:
    """Yield a caveat with the kinds of evidence behind the steps' kernels and exposed collectives."""
    shares = [
        {**report["time_by_evidence"], "host": report.get("host_wait_time_s", 0.0)}
        for _, report in rows
        if any(report.get("time_by_evidence", {}).values())
    ]
    if shares:
        yield Caveat("evidence", _evidence_text(shares))


def _evidence_text(times: Iterable[Mapping[str, float]]) -> str:
    """Return a clause on the evidence behind one or several steps, from their times by grade [s], not all of them 0.

    >>> _evidence_text([{"measured": 0.0, "other_gpu": 1.8, "data_sheet": 0.0, "assumed": 0.2, "host": 0.0}])
    '90 % of the time rests on kernels and collectives measured on other GPUs or machines, 10 % on assumptions'
    """
    shares = [{grade: seconds / sum(by.values()) for grade, seconds in by.items()} for by in times]
    told: list[str] = []
    for grade, words in _EVIDENCE.items():
        low, high = (round(100 * choose(share[grade] for share in shares)) for choose in (min, max))
        if high:
            percent = f"{low} %" if low == high else f"{low} to {high} %"
            told.append(f"{percent}{'' if told else ' of the time rests'} {words}")
    return ", ".join(told)


def _range(rows: Sequence[tuple[Row, Report]]) -> Iterator[Caveat]:
    """Yield a caveat for each trait of the simulated steps that no measured run has, with the number of its points."""
    from simulator.findings.measured_range import outside_of_measured

    counts = Counter(text for row, _ in rows for text in outside_of_measured(row.point))
    for text, count in counts.most_common(_MOST):
        where = "" if count == len(rows) else f" ({count} of {number_of(len(rows), 'point')})"
        yield Caveat("range", f"outside the validated range: {text}{where}")
