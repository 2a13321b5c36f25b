"""Which results and sentences does a plan report? Best settings, why others lose, the Pareto front, the cost.

Every number is a field of a simulated report, or computed here from such fields. Tables, JSON and pages use this data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

from simulator.basics.counts import number_of
from simulator.basics.sentence import capital
from simulator.basics.units import format_memory, format_time
from simulator.basics.work_unit import has_padding, rate_name, work_unit
from simulator.findings.budget import amounts, amounts_text, length_text
from simulator.findings.caveats import is_modelled, is_unmeasured, unmeasured_text
from simulator.findings.measured_range import outside_of_measured
from simulator.findings.pareto_front import on_front
from simulator.planner.cluster_sizes import ClusterSizeResult
from simulator.planner.explain import step_difference
from simulator.planner.infeasible import Remedy, SettingMemoryNeed
from simulator.planner.search import PlayedSetting, SearchResult
from simulator.planner.sensitivity import MachineChange
from simulator.planner.setting import precision_of, scenario_of
from simulator.records.measures import find
from simulator.records.memory_margin import margin_of
from simulator.scenario.answer_spec import BudgetSpec
from simulator.scenario.plan_spec import KEYS
from simulator.scenario.records import Scenario
from simulator.step.precision import PRECISIONS

# Step times that differ by less are reported as equal [%].
_SAME: Final = 0.05


def document(
    plan: SearchResult,
    budget: BudgetSpec | None = None,
    deadline: float | None = None,
    tried: Sequence[ClusterSizeResult] = (),
) -> dict[str, Any]:
    """Return a plan as a plain dict, for plan.json.

    Parameters
    ----------
    plan : SearchResult
        The search, complete or stopped.
    budget : BudgetSpec, optional
        Length and prices of the whole training; adds days, GPU hours and cost for each of the best settings.
    deadline : float, optional
        Longest time for the whole training [days].
    tried : sequence of ClusterSizeResult
        Plans for other numbers of GPUs; adds their simulated settings.
    """
    every = all_played(plan, tried)
    return {
        "sentences": sentences(plan, budget, deadline),
        "sequences": plan.sequences,
        "considered": plan.considered,
        "played": len(plan.played),
        "ended": plan.ended,
        "reasons": reasons(plan),
        "choices": {
            name: [_given(plan.base, name) if value is None else value for value in values]
            for name, values in plan.choices.values.items()
        },
        "why": dict(plan.choices.why),
        "best": [_of_one(plan, entry, budget) for entry in plan.best],
        "not_listed": not_listed(plan),
        "kinds": [
            {"kind": entry.setting.kind, "setting": entry.setting.text, "step_time_s": entry.step_time,
             "is_lower_bound": entry.is_bound}
            for entry in plan.kinds
        ],
        "outside_of_measured": outside_of_measured(scenario_of(plan.base, plan.best[0].setting)) if plan.best else [],
        "front": [
            {"number": entry.number, "gpus": entry.setting.gpus, "setting": entry.setting.text,
             "step_time_s": entry.step_time, "peak_memory_bytes": entry.report["peak_memory_bytes"]}
            for entry in front(every)
        ],
        "all_played": [
            {"number": entry.number, "setting": entry.setting.text, **entry.setting.values(), "bound_s": entry.bound,
             "step_time_s": entry.step_time, "fits": entry.fits, "mfu": entry.report["mfu"],
             "peak_memory_bytes": entry.report["peak_memory_bytes"]}
            for entry in sorted(every, key=lambda entry: (entry.step_time, entry.number))
        ],
        "sizes": [entry.to_dict() for entry in tried],
    }  # fmt: skip


def _given(base: Scenario, name: str) -> Any:
    """Return the scenario's value of a key that a plan leaves to the scenario; None if no single word says it."""
    value = reduce(getattr, KEYS[name].split("."), base)
    words = (word for word in PRECISIONS if base.training and precision_of(base.training, word) == value)
    return next(words, None) if name == "precision" else value


def sentences(plan: SearchResult, budget: BudgetSpec | None = None, deadline: float | None = None) -> list[str]:
    """Return the sentences that answer a plan: best setting, the training's cost, whether the deadline is met, and the
    next setting. A stopped search says so first.
    """
    # A stopped search may have proved the first place.
    sure = ", the first place is certain" if plan.certain else ""
    stopped = "" if plan.ended else f"Search stopped after {number_of(len(plan.played), 'simulated setting')}{sure}. "
    if not plan.best:
        if stopped:
            return [f"{stopped}No setting fits so far."]
        return [f"None of {plan.considered:,} settings fits."]
    best, report = plan.best[0], plan.best[0].report
    speed = f"{report['tokens_per_s_per_gpu']:,.0f} {rate_name(work_unit([report]))} per GPU"
    if has_padding([report]):
        # The share of padding is a key of the scenario, the same for every setting.
        speed += f" ({100 * report['tokens_used']:.3g} % of them useful, the others padding)"
    lead = f"{stopped}{'The fastest setting is' if sure or not stopped else 'Fastest so far:'}"
    lines = [
        f"{lead} {best.setting.text}: {format_time(best.step_time)} per step, {speed}, {100 * report['mfu']:.1f} % "
        f"MFU. Its peak memory is {format_memory(report['peak_memory_bytes'])}, mainly "
        f"{', '.join(f'{name} {format_memory(nbytes)}' for name, nbytes in holders(report))}."
    ]
    tight = margin_of(report).warning
    lines += [f"{capital(tight)}."] if tight else []
    if budget is not None and budget.tokens is not None:
        cost = amounts(report, best.setting.gpus, budget)
        lines.append(
            f"{length_text(budget.tokens, report)} take {amounts_text(cost, budget)} (estimate without failures and "
            "checkpoints)."
        )
        if deadline is not None:
            word = "met" if cost["days"] <= deadline else "missed"
            lines.append(f"The deadline of {deadline:g} days is {word} by {abs(deadline - cost['days']):.1f} days.")
    if len(plan.best) > 1:
        difference = step_difference(best, plan.best[1])
        more = f": {difference.text}" if difference.text else ""
        lines.append(
            f"The second setting ({plan.best[1].setting.text}) takes {100 * difference.whole / best.step_time:.1f} % "
            f"more time{more}."
        )
        # Predictions closer than their uncertainty may change places on a real machine.
        tied = ties(plan.best)
        if tied:
            most = 100 * (tied[-1].step_time / best.step_time - 1)
            width = find("time", "training").uncertainty(report, *(entry.report for entry in tied))
            who = (
                f"the other {number_of(len(tied), 'setting')}"
                if len(tied) == len(plan.best) - 1
                else ("the next setting" if len(tied) == 1 else f"the next {len(tied)} settings")
            )
            lines.append(
                f"The best setting ties with {who} in this list: at most {most:.1f} % more time, while measured step "
                f"times lie within ±{100 * width:.0f} % of such predictions. Try these settings too."
            )
    if is_unmeasured(report):
        topology = plan.base.cluster.topology
        name = topology if isinstance(topology, str) else "this topology"
        text = unmeasured_text(name, modelled=is_modelled(report))
        lines.append(f"{text[:1].upper()}{text[1:]}.")
    outsides = outside_of_measured(scenario_of(plan.base, best.setting))
    if outsides:
        lines.append(f"Outside the validated range: {'; '.join(outsides)}.")
    return lines


def not_listed(plan: SearchResult) -> str:
    """Return a sentence with the number of simulated settings that are not among the best, by reason; empty without
    such settings: "4 of 14 simulated settings are not in this list: 3 do not fit into memory, 1 is slower than the 10
    listed settings."
    """
    misfits, missing = sum(not entry.fits for entry in plan.played), len(plan.played) - len(plan.best)
    if not missing:
        return ""
    slower, listed = missing - misfits, number_of(len(plan.best), "listed setting")
    groups = [f"{misfits} {'does' if misfits == 1 else 'do'} not fit into memory"] if misfits else []
    groups += [f"{slower} {'is' if slower == 1 else 'are'} slower than the {listed}"] if slower else []
    verb = "is" if missing == 1 else "are"
    return (
        f"{missing} of {number_of(len(plan.played), 'simulated setting')} {verb} not in this list: {', '.join(groups)}."
    )


def kind_rows(plan: SearchResult) -> list[tuple[str, str, str]]:
    """Return for each kind of layout its name, its step time relative to the best setting, and its fastest setting.

    A kind without a simulated setting has a lower bound: "at least 9.37 s (+15 %)". Empty without a fitting setting.
    """
    if not plan.best:
        return []
    fastest = plan.best[0].step_time
    rows = []
    for kind in plan.kinds:
        more = f" (+{100 * (kind.step_time / fastest - 1):.1f} %)" if kind.step_time > fastest else ""
        rows.append((
            kind.setting.kind, f"{'at least ' if kind.is_bound else ''}{format_time(kind.step_time)}{more}",
            kind.setting.text,
        ))  # fmt: skip
    return rows


def ties(best: Sequence[PlayedSetting]) -> list[PlayedSetting]:
    """Return the settings in `best` that are slower than the first by less than the prediction's uncertainty, fastest
    first.
    """
    return [entry for entry in best[1:] if find("time", "training").tied(best[0].report, entry.report)]


def sensitivity_sentence(fix: MachineChange) -> str:
    """Return a sentence telling by how much a change to the machine shortens the step."""
    same = _less(fix.same, fix.before)
    if fix.best.step_time >= fix.same:
        return f"With {fix.change}, the best setting takes {same} and remains the fastest."
    best = _less(fix.best.step_time, fix.before)
    return (
        f"With {fix.change}, the best setting takes {same}, and the fastest setting ({fix.best.setting.text}) takes "
        f"{best}."
    )


def _less(after: float, before: float) -> str:
    """Return a phrase telling how much shorter or longer the time `after` is than `before`: "3.1 % less time"."""
    share = 100 * (1 - after / before)
    if abs(share) < _SAME:
        return "the same time"
    return f"{abs(share):.1f} % {'less' if share > 0 else 'more'} time"


def reasons(plan: SearchResult) -> dict[str, int]:
    """Return the number of settings that the search did not simulate, by reason, commonest reason first."""
    counts = {**plan.refused.counts, "do not fit into memory": plan.do_not_fit}
    counts["pruned: their lower bound is slower than the best settings"] = plan.slower
    counts["not examined yet"] = plan.pending
    counts |= {f"could not be simulated: {error}": count for error, count in plan.failed.items()}
    return {reason: count for reason, count in sorted(counts.items(), key=lambda pair: -pair[1]) if count}


def all_played(plan: SearchResult, tried: Sequence[ClusterSizeResult] = ()) -> list[PlayedSetting]:
    """Return the simulated settings from a plan and from the plans for other GPU numbers, numbered consecutively, this
    plan's first.
    """
    every, before = list(plan.played), plan.considered
    for other in (size.plan for size in tried if size.plan is not None and size.plan is not plan):
        # Each plan numbers its settings from 0; ties need unique numbers.
        every += [replace(size, number=before + size.number) for size in other.played]
        before += other.considered
    return every


def front(settings: Iterable[PlayedSetting]) -> list[PlayedSetting]:
    """Return the settings on the Pareto front for step time, peak memory and number of GPUs, among fitting settings,
    fastest first.
    """
    # Equal settings go to the lowest number.
    fitting = sorted((entry for entry in settings if entry.fits), key=lambda entry: entry.number)
    return on_front(fitting, lambda entry: (entry.step_time, entry.report["peak_memory_bytes"], entry.setting.gpus))


def holders(report: dict[str, Any], most: int = 3) -> list[tuple[str, int]]:
    """Return the `most` largest memory categories at a step's peak, with their bytes [B], largest first.

    >>> holders({"peak_memory_by_category": {"gradients": 2, "parameters": 4, "buffers": 0}})
    [('parameters', 4), ('gradients', 2)]
    """
    every = sorted(report["peak_memory_by_category"].items(), key=lambda pair: -pair[1])
    return [(name, nbytes) for name, nbytes in every[:most] if nbytes]


def exposed(report: dict[str, Any]) -> str:
    """Return a text with the share of step time in exposed communication, and the largest kind of parallelism.

    >>> exposed({"exposed_comm_time_by_dimension": {"tp": 0.1}, "exposed_comm_time_s": 0.1, "step_time_s": 2.0})
    '5.0 % (tp)'
    """
    by = {name: seconds for name, seconds in report["exposed_comm_time_by_dimension"].items() if seconds > 0}
    most = f" ({max(by, key=lambda name: by[name])})" if by else ""
    return f"{100 * report['exposed_comm_time_s'] / report['step_time_s']:.1f} %{most}"


def _of_one(plan: SearchResult, entry: PlayedSetting, budget: BudgetSpec | None) -> dict[str, Any]:
    """Return a simulated setting as a plain dict, with the difference from the best setting and the cost."""
    difference = step_difference(plan.best[0], entry)
    return {
        "number": entry.number,
        "text": entry.setting.text,
        "setting": dict(entry.setting.overrides()),
        "bound_s": entry.bound,
        "exposed": exposed(entry.report),
        "report": entry.report,
        "against_best": {"whole_s": difference.whole, "parts_s": difference.parts, "text": difference.text},
        "budget": None if budget is None else amounts(entry.report, entry.setting.gpus, budget),
    }


def impossible_document(possible: Sequence[str]) -> dict[str, Any]:
    """Return plain data for a plan without feasible settings; `possible` lists options under which settings exist."""
    return {"nearest": None, "ways": [], "possible": list(possible)}


def nearest_document(need: SettingMemoryNeed, ways: Sequence[Remedy]) -> dict[str, Any]:
    """Return plain data for a plan in which no setting fits: the setting with the least memory, and changes
    that help.
    """
    return {
        "nearest": {"setting": need.setting.text, "needs_bytes": need.nbytes, "capacity_bytes": need.capacity},
        "ways": [
            {"change": way.change, "setting": way.need.setting.text, "needs_bytes": way.need.nbytes} for way in ways
        ],
    }
