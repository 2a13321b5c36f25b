"""Which rules connect a plan (`plan`) with the rest of a scenario?

These rules look at the scenario as a whole. Scenarios that cannot be planned are refused here, for files and for
Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from simulator.basics.document import Key
from simulator.basics.errors import one_of
from simulator.basics.spec import Spec
from simulator.scenario import own_parts
from simulator.scenario.plan_spec import FOLLOWS, GPUS, KEYS, SAID_OR_CHOSEN, PlanSpec
from simulator.scenario.records import Scenario, adapter
from simulator.scenario.rule_violation import RuleViolation
from simulator.step.global_batch import sequences_of
from simulator.step.precision import PRECISIONS
from simulator.step.spec import Updater
from simulator.step.strategies.strategy import STRATEGIES

# Keys about points, which a plan does not have.
_TELLS: Final = ("answer", "baseline", "plots")


def conflicts(shape: Scenario, base: Path) -> Iterator[RuleViolation]:
    """Yield a violation for each broken rule between a scenario's `plan` and its other keys.

    `base` is the folder of the scenario.
    """
    plan, training = shape.plan, shape.training
    if plan is None:
        return
    if training is None:
        yield RuleViolation(
            ("plan",), ("needs a training, but the scenario simulates a collective; remove the key"), ("plan",), True
        )
        return
    # A plan chooses a single value for each key; an axis would need a plan for each value.
    for name in ("compare", "sweep"):
        if getattr(shape, name):
            message = f"excludes {name}, because a plan takes a single value of each key; remove one"
            yield RuleViolation(("plan",), message, ("plan", name), True)
    for name in _TELLS:
        if getattr(shape, name):
            yield RuleViolation(
                (name,), ("describes points, but a plan has its own answer; remove the key"), (name, "plan"), True
            )
    for key, message in not_planned(shape):
        yield RuleViolation(key, message, (".".join(map(str, key)), "plan"), True)
    yield from _keys_of_plan(shape, plan)
    yield from _choices(plan, shape.cluster.world_size, base)
    try:
        sequences_of(plan.global_batch, training.seq_len)
    except ValueError as error:
        yield RuleViolation(("plan", "global_batch"), str(error), ("plan.global_batch", "training.seq_len"))
    if plan.deadline is not None and (shape.budget is None or shape.budget.tokens is None):
        message = "needs the length of the training; write budget: {tokens: 1e12}"
        yield RuleViolation(("plan", "deadline"), message, ("plan.deadline", "budget"))
    if shape.budget is not None and shape.budget.tokens is None:
        yield RuleViolation(("budget",), "needs tokens, because plans compare settings by tokens", ("budget", "plan"))


def not_planned(scenario: Scenario | Scenario) -> Iterator[tuple[Key, str]]:
    """Yield (key, reason) for each scenario key that makes a plan's lower bounds of a step's time invalid."""
    jitter, training = scenario.cluster.jitter, scenario.training
    if jitter.compute or jitter.latency:
        yield ("cluster", "jitter"), "a plan excludes jitter, because random times may be shorter than any lower bound"
    if training is not None and training.lengths is not None:
        yield (
            ("training", "lengths"),
            "a plan is for documents of one length, of which its bounds are; use run or sweep",
        )
    if scenario.cluster.events:
        yield ("cluster", "events"), "a plan is for a machine on which nothing fails during a step; use run or sweep"
    # Bounds assume the GPU's own speed: slower ranks keep them valid, faster ranks do not.
    if any(factor > 1.0 for factor in scenario.cluster.stragglers.values()):
        yield (
            ("cluster", "stragglers"),
            ("a plan excludes factors above 1, because lower bounds assume the speed of the other ranks"),
        )
    if training is not None and training.numerics:
        yield ("training", "numerics"), "a plan only computes times; omit the key"


def value_of(name: str, value: Any, base: Path | None = None) -> Any:
    """Return the value of a plan's choice (such as tp), validated by the scenario key that the choice sets.

    Parameters
    ----------
    name : str
        Name of the choice.
    value
        The value as written.
    base : Path, optional
        Folder for the path of an own part. If given, the part is loaded, and the returned path is absolute.

    Raises
    ------
    ValueError
        The key cannot have the value, or plans exclude it; or the part cannot be loaded.

    Examples
    --------
    >>> value_of("tp", 8), value_of("precision", "bf16")
    (8, 'bf16')
    """
    if name == "precision":
        # A plan's precision is a short form, and `adapter` would also accept a mapping.
        if value not in PRECISIONS:
            raise ValueError(one_of(tuple(PRECISIONS), str(value)))
        return value
    key = "cluster.world_size" if name == GPUS else KEYS[name]
    try:
        read = adapter(key).validate_python(value)
    except ValidationError as error:
        # pydantic puts "Value error, " before the text of our own readers.
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
    read = read if base is None else own_parts.usable(key, read, base)
    # Plans place every state on ranks; parameter servers keep states elsewhere.
    shipped = name == "sharding" and (base is not None or read in STRATEGIES.names())
    if shipped and STRATEGIES.find(read).updater is Updater.SERVERS:
        raise ValueError(f"got {value!r}, whose servers hold states outside the ranks; a plan does not support servers")
    return read


def _keys_of_plan(shape: Scenario, plan: PlanSpec) -> Iterator[RuleViolation]:
    """Yield a violation for each training key in the file that a plan chooses itself."""
    choices = {**plan.fix, **plan.among}
    for name, dotted in KEYS.items():
        if _is_set(shape, dotted) and (name not in SAID_OR_CHOSEN or name in choices):
            what = "is also a choice of the plan; keep one" if name in choices else "is chosen by the plan"
            hint = "" if name in choices else f"; write plan: {{fix: {{{name}: ...}}}}"
            yield RuleViolation(tuple(dotted.split(".")), f"{what}{hint}", (dotted, "plan"), True)
    for dotted, why in FOLLOWS.items():
        if _is_set(shape, dotted):
            yield RuleViolation(tuple(dotted.split(".")), f"{why}; remove the key", (dotted, "plan"), True)


def _is_set(shape: Spec, dotted: str) -> bool:
    """Return True if a dotted key was written in the file, instead of left at the default."""
    *at, name = dotted.split(".")
    for inner in at:
        if inner not in shape.model_fields_set:
            return False
        shape = getattr(shape, inner)
    return name in shape.model_fields_set


def _choices(plan: PlanSpec, world_size: int, base: Path) -> Iterator[RuleViolation]:
    """Yield violations for values that a plan's choice cannot have, and for choices both fixed and open."""
    for name, value in plan.fix.items():
        yield from _value(("plan", "fix", name), name, value, base)
    for name, values in plan.among.items():
        at = ("plan", "among", name)
        if name in plan.fix:
            message = "contradicts plan.fix, which fixes the same name; omit one"
            yield RuleViolation(at, message, ("plan.fix", "plan.among"), True)
        if not values:
            yield RuleViolation(at, "got an empty list; give at least one value", ("plan.among",))
        for number, value in enumerate(values):
            yield from _value((*at, number), name, value, base)
        # The plan for world_size is reported in full; the other numbers of GPUs are compared with it.
        if name == GPUS and values and world_size not in values:
            message = (
                f"must contain cluster.world_size, {world_size}, because the report describes this number of GPUs in "
                "full"
            )
            yield RuleViolation(at, message, ("plan.among", "cluster.world_size"))


def _value(at: Key, name: str, value: Any, base: Path) -> Iterator[RuleViolation]:
    try:
        value_of(name, value, base)
    except ValueError as error:
        yield RuleViolation(at, str(error), (".".join(map(str, at[:2])),))
