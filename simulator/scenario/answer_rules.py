"""Which rules connect a scenario's report (`answer`, `baseline`, `budget`) with its job and axes?

The rules look at the whole scenario, while most rules look at single points.

Example: `answer: [change]` compares settings, and is refused without `compare`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pydantic import ValidationError

from simulator.basics.errors import one_of
from simulator.basics.reading import shown
from simulator.records import measures
from simulator.scenario import axes
from simulator.scenario.answer_spec import AGAINST, ALONG, BudgetSpec, FindingSpec
from simulator.scenario.records import KINDS, Scenario, adapter, axis_keys, is_axis_key
from simulator.scenario.rule_violation import RuleViolation

_SIZE: Final = "cluster.world_size"
# "From how many GPUs on ...?", "from which number of GPUs on ...?"
_ASKS_FROM: Final = re.compile(r"\bfrom (?:how many|which|what)\b.*\bon\b", re.IGNORECASE)
# Findings that contain a value of the axis.
_TURNING: Final = ("threshold", "best", "fit")


def conflicts(shape: Scenario) -> Iterator[RuleViolation]:
    """Yield a violation for each broken rule between a scenario's `answer`, `baseline`, `budget` and other keys."""
    yield from _baseline(shape)
    for place, entry in enumerate(shape.answer):
        yield from _finding(shape, place, entry)
    if shape.budget is not None:
        yield from _budget(shape, shape.budget)


def without_threshold(shape: Scenario, question: str) -> Iterator[RuleViolation]:
    """Yield a warning if a question asks for a number of GPUs and no finding searches this number."""
    axis = next((kind for kind in axes.KINDS if _SIZE in getattr(shape, kind)), None)
    if axis is None or not _ASKS_FROM.search(question):
        return
    # Without `answer`, compared settings have the finding "best", which names crossovers.
    searched = any(entry.finding in _TURNING for entry in shape.answer) if shape.answer else bool(shape.compare)
    if not searched:
        write = f"answer: [{{finding: threshold, of: [MEASURE], along: {_SIZE}, above: VALUE}}]"
        message = f"the question asks for a number of GPUs; to search it, write '{write}'"
        yield RuleViolation((axis, _SIZE), message, ("answer",))


def _baseline(shape: Scenario) -> Iterator[RuleViolation]:
    # A baseline names one of the compared settings, otherwise there is nothing to compare with.
    for key, value in shape.baseline.items():
        at = ("baseline", key)
        if key not in shape.compare:
            compared = ", ".join(shape.compare) or "nothing"
            yield RuleViolation(
                at, f"is not a key of compare; a baseline needs a key of compare ({compared})", ("baseline",), True
            )
        elif value not in shape.compare[key]:
            values = ", ".join(map(shown, shape.compare[key]))
            yield RuleViolation(at, f"got {shown(value)}; must be one of the compared values: {values}", ("baseline",))


def _finding(shape: Scenario, place: int, entry: FindingSpec) -> Iterator[RuleViolation]:
    at = ("answer", place)
    # Measures depend on the kind: a collective has no tokens per second.
    for number, name in enumerate(entry.of):
        if name not in measures.names_of(shape.kind):
            names = ", ".join(measures.names_of(shape.kind))
            yield RuleViolation(
                (*at, "of", number), (f"got {name!r}; measures of {KINDS[shape.kind]} are {names}"), ("answer",)
            )
    if entry.above is not None and entry.finding != "threshold":
        yield RuleViolation((*at, "above"), "belongs to threshold; remove the key", ("answer",), True)
    if entry.finding in AGAINST and not shape.compare and entry.above is None:
        hint = "; add above: VALUE to search for a value instead" if entry.finding == "threshold" else ""
        yield RuleViolation(
            at, f"{entry.finding} compares settings, but the scenario has no key compare{hint}", ("answer", "compare")
        )
    # An effect may be found along either kind of axis.
    if entry.finding == "effect" and not (shape.sweep or shape.compare):
        message = "effect needs a swept or compared key, but the scenario has neither sweep nor compare"
        yield RuleViolation(at, message, ("answer", "sweep"))
    if entry.finding == "fit" and shape.training is None:
        yield RuleViolation(
            at, ("fit needs the memory of a training step, but the scenario simulates a collective"), ("answer",)
        )
    if entry.finding == "learned" and (shape.training is None or not shape.training.numerics):
        yield RuleViolation(at, "learned needs real training; add training.numerics: true", ("answer",))
    yield from _along(shape, place, entry)


# Keys of an entry in `answer`: `along` names an axis key, `between` gives two values for it.
def _along(shape: Scenario, place: int, entry: FindingSpec) -> Iterator[RuleViolation]:
    at = ("answer", place)
    if entry.along is None:
        if entry.finding == "threshold":
            yield RuleViolation(at, "threshold needs a key to search along; add along: KEY", ("answer",))
        if entry.between is not None:
            yield RuleViolation((*at, "between"), "needs along; add along: KEY, or remove between", ("answer",), True)
        return
    if entry.finding not in ALONG:
        yield RuleViolation((*at, "along"), f"{entry.finding} takes no key along; remove the key", ("answer",), True)
    elif not is_axis_key(entry.along):
        yield RuleViolation((*at, "along"), f"got {entry.along!r}; {one_of(axis_keys(), entry.along)}", ("answer",))
    elif entry.finding == "effect":
        if entry.along not in {**shape.sweep, **shape.compare}:
            yield RuleViolation(
                (*at, "along"), ("is neither swept nor compared; name a swept or compared key"), ("answer", "sweep")
            )
        # Without a sweep over the key, the search needs both ends.
    elif entry.along not in shape.sweep and entry.between is None:
        yield RuleViolation(
            (*at, "along"), ("is not swept; add between: [FIRST, LAST], or add this key to sweep"), ("answer", "sweep")
        )
    if entry.between is not None and is_axis_key(entry.along):
        for number, value in enumerate(entry.between):
            if not _can_have(entry.along, value):
                message = f"got {shown(value)}, which {entry.along} cannot have"
                yield RuleViolation((*at, "between", number), message, ("answer",))
    if entry.between is not None and entry.finding == "effect":
        yield RuleViolation(
            (*at, "between"), "belongs to threshold; an effect uses the swept values; remove the key", ("answer",), True
        )
    if entry.between is not None and len(entry.between) != 2:
        yield RuleViolation((*at, "between"), f"got {len(entry.between)} values; must be [FIRST, LAST]", ("answer",))


def _can_have(key: str, value: Any) -> bool:
    try:
        adapter(key).validate_python(value)
    except ValidationError:
        return False
    return True


def _budget(shape: Scenario, budget: BudgetSpec) -> Iterator[RuleViolation]:
    if shape.training is None:
        yield RuleViolation(
            ("budget",),
            ("needs a training, but the scenario simulates a collective; remove the key"),
            ("budget",),
            True,
        )
    # Exactly one: each follows from the other and the batch.
    elif (budget.tokens is None) == (budget.steps is None):
        yield RuleViolation(("budget",), "needs either tokens or steps; write for example {tokens: 1e12}", ("budget",))
