"""Which model, cluster, batch and constraints does a user ask a plan about? They become a `PlanQuestion` here.

The command line, Python and a scenario's `plan:` section all use this module, with equal names, values and error
messages. Each constraint carries the text under which an error reports the constraint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.basics.errors import ScenarioError, one_of
from simulator.basics.sections import overlap
from simulator.basics.work_unit import SAMPLE
from simulator.model.load import load_model
from simulator.planner.size import refuse_too_large, warning_of
from simulator.planner.space import LARGEST_MICRO_BATCH, Choices, default_choices, gpus_per_node
from simulator.run.scenario_cluster import Clusters
from simulator.scenario.answer_spec import BudgetSpec
from simulator.scenario.load import load_scenario
from simulator.scenario.own_parts import runs_code
from simulator.scenario.plan_rules import value_of
from simulator.scenario.plan_spec import FOLLOWS, GPUS, KEYS, SAID_OR_CHOSEN, PlanSpec
from simulator.scenario.records import Scenario
from simulator.step.global_batch import SEQUENCES, sequences_of


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on a dimension of the search."""

    # The constraint in the user's notation, for errors: "--fix tp=8".
    where: str
    # Dimension: a name in `KEYS`, or `GPUS`. Empty for an excluded value, given without its dimension.
    name: str
    # Values that the search may choose; a single value if the dimension is fixed.
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """A plan's question: model and machine, batch, the user's constraints, and the wanted report."""

    base: Scenario  # keys shared by every setting
    # Global batch in sequences, and the wanted report; `said` and `without` have the constraints.
    plan: PlanSpec
    said: tuple[Constraint, ...] = ()  # dimensions fixed or restricted by the user
    without: tuple[Constraint, ...] = ()  # values excluded by the user
    budget: BudgetSpec | None = None  # length and prices of the whole training

    @property
    def sequences(self) -> int:
        """Global batch [sequences per step]."""
        return self.plan.sequences

    def choices(self, base: Scenario | None = None) -> Choices:
        """Return the values to search for each dimension, on the question's cluster, or on the cluster of the scenario
        `base`.
        """
        return choices_of(base or self.base, self.sequences, self.said, self.without)

    def announced(self) -> tuple[str, ...]:
        """Return the warnings before a search: if the search takes long, and for each part whose code runs on trust.

        Raises
        ------
        TooLargeError
            This machine cannot hold the cluster, or any step.
        ScenarioError
            A part cannot be loaded.
        """
        refuse_too_large(self.base, self.sequences, largest_micro_batch(self.said))
        for rule in self.said:
            for value in rule.values if rule.name in KEYS else ():
                if runs_code(KEYS[rule.name], value):
                    # Refused here if it may not run at all.
                    _value(rule.where, rule.name, value, self.base.base)
        return tuple(filter(None, [warning_of(self.base, self.sequences)]))

    @property
    def numbers(self) -> tuple[int, ...]:
        """GPU numbers named by the user, besides the base scenario's number."""
        return tuple(number for number in numbers_of(self.said) if number != self.base.cluster.world_size)

    @property
    def text(self) -> str:
        """The plan's question in words, for reports."""
        cluster, training = self.base.cluster, self.base.training
        if self.base.question or training is None:
            return self.base.question
        machine = cluster.topology if isinstance(cluster.topology, str) else "a custom topology"
        samples = load_model(training.model, training.seq_len, self.base.base).work_unit == SAMPLE
        work = f"{self.sequences:,} {'samples' if samples else f'sequences of {training.seq_len:,} tokens'}"
        return (
            f"Which settings train {self.model} fastest on {cluster.world_size:,} GPUs ({machine}), with "
            f"{work} per step?"
        )

    @property
    def model(self) -> str:
        """Name of the model; "this model" for a model without a name."""
        model = None if self.base.training is None else self.base.training.model
        return model if isinstance(model, str) else "this model"


def plan_question(scenario: Scenario) -> PlanQuestion:
    """Return the plan's question from the `plan` section of a scenario.

    Raises
    ------
    ScenarioError
        The scenario has no `plan`.
    """
    plan, source = scenario.plan, scenario.source
    if plan is None:
        raise ScenarioError(
            f"{source}: has no plan; write for example 'plan: {{global_batch: 4M}}', or use `simulator run`"
        )
    rules = [Constraint(f"{source}: plan.fix.{name}", name, (value,)) for name, value in plan.fix.items()]
    rules += [Constraint(f"{source}: plan.among.{name}", name, values) for name, values in plan.among.items()]
    without = tuple(Constraint(f"{source}: plan.without: {value}", "", (value,)) for value in plan.without)
    # Settings are simulated as ordinary scenarios, without the plan.
    base = scenario.replaced(plan=None, budget=None)
    return PlanQuestion(base, plan, tuple(rules), without, scenario.budget)


def numbers_of(rules: Sequence[Constraint]) -> tuple[int, ...]:
    """Return the numbers of GPUs in the user's constraints, ascending; empty without a constraint on GPUs.

    Raises
    ------
    ScenarioError
        A value is not a number of GPUs.

    Examples
    --------
    >>> numbers_of([Constraint("--among gpus=16,8", "gpus", [16, 8]), Constraint("--fix tp=8", "tp", [8])])
    (8, 16)
    """
    return tuple(
        sorted({_value(rule.where, GPUS, value) for rule in rules if rule.name == GPUS for value in rule.values})
    )


def largest_number(gpus: int | None, rules: Sequence[Constraint], where: str) -> int | None:
    """Return the number of GPUs whose plan is reported in full: `gpus`, or the largest number to choose among.

    Returns
    -------
    int or None
        None if neither `gpus` nor a constraint on `gpus` is given.

    Raises
    ------
    ScenarioError
        `gpus`, given by the option `where`, is not among the constraint's numbers.

    Examples
    --------
    >>> largest_number(None, [Constraint("--among gpus=8,16", "gpus", [8, 16])], "--gpus")
    16
    >>> largest_number(32, [], "--gpus")
    32
    """
    numbers = numbers_of(rules)
    if gpus is not None and numbers and gpus not in numbers:
        other = next(rule.where for rule in rules if rule.name == GPUS)
        raise ScenarioError(
            f"{where} {gpus}: contradicts {other}; write a number from this list (the report describes this number "
            "of GPUs in full)"
        )
    return max(numbers, default=None) if gpus is None else gpus


def shared_scenario(
    model: str | Mapping[str, Any], cluster: Mapping[str, Any], seq_len: int, settings: Mapping[str, Any]
) -> Scenario:
    """Return a scenario with the keys shared by all of a plan's settings: model, cluster, sequence length, further
    settings.

    Raises
    ------
    ScenarioError
        A key is wrong, or is a dimension of the search.
    """
    for key in settings:
        # A key set for every setting must not be a dimension of the search, nor contain one.
        name = next((name for name, scenario_key in KEYS.items() if overlap(key, scenario_key)), None)
        if name is not None and name not in SAID_OR_CHOSEN:
            raise ScenarioError(f"--set {key}: is chosen by the plan; write --fix {name}=..., or --among")
        if key in FOLLOWS:
            raise ScenarioError(
                f"--set {key}: {FOLLOWS[key].replace('plan.global_batch', '--global-batch')}; omit the key"
            )
    training = {"model": model, "seq_len": seq_len}
    return load_scenario({"name": "plan", "cluster": dict(cluster), "training": training, "plots": []}, settings)


def batch_of(written: str | int, seq_len: int, where: str) -> str:
    """Return the global batch in sequences, from text in tokens or in sequences.

    Raises
    ------
    ScenarioError
        The text is not a number, or not a whole number of sequences.

    Examples
    --------
    >>> batch_of("4M", 4096, "--global-batch"), batch_of("512seq", 4096, "--global-batch")
    ('1024seq', '512seq')
    """
    try:
        return f"{sequences_of(str(written), seq_len)}{SEQUENCES}"
    except ValueError as error:
        raise ScenarioError(f"{where} {written}: {error}") from error


def choices_of(base: Scenario, sequences: int, rules: Sequence[Constraint], without: Sequence[Constraint]) -> Choices:
    """Return the values to search: defaults for the model and the machine, with the user's constraints.

    Parameters
    ----------
    sequences : int
        Global batch [sequences per step].
    rules : sequence of Constraint
        Dimensions fixed or restricted by the user.
    without : sequence of Constraint
        Values excluded by the user; their `name` is empty.

    Raises
    ------
    ScenarioError
        A name or a value is unknown, or two constraints contradict each other.
    TooLargeError
        This machine cannot hold the cluster, or any step.
    """
    training = base.training
    if training is None:
        raise TypeError("a plan is of a training step")
    # Refuse before building the cluster, which may be too large itself.
    refuse_too_large(base, sequences, largest_micro_batch(rules))
    model = load_model(training.model, training.seq_len, base.base)
    choices = default_choices(base, model, gpus_per_node(Clusters().of(base)), sequences)
    values, why, by = dict(choices.values), dict(choices.why), dict[str, str]()
    for rule in rules:
        if rule.name not in (*KEYS, GPUS):
            raise ScenarioError(f"{rule.where}: got {rule.name!r}; {one_of((*KEYS, GPUS), rule.name)}")
        if rule.name in by:
            raise ScenarioError(f"{rule.where}: contradicts {by[rule.name]}; omit one")
        by[rule.name] = rule.where
        # Each number of GPUs is planned separately, hence `gpus` is no dimension of a search.
        if rule.name != GPUS:
            read = (_value(rule.where, rule.name, value, base.base) for value in rule.values)
            values[rule.name] = tuple(dict.fromkeys(read))
            why[rule.name] = f"given by {rule.where}"
    for rule in without:
        for value in rule.values:
            name = _name_of(rule.where, value, values, by)
            # `without offload` leaves only "none".
            values[name] = (
                tuple(choice for choice in values[name] if str(choice) != value) if name != value else ("none",)
            )
            if not values[name]:
                raise ScenarioError(
                    f"{rule.where}: leaves no {name}; contradicts {by.get(name, 'the other constraints')}"
                )
    return Choices(values, why)


def largest_micro_batch(rules: Sequence[Constraint]) -> int:
    """Return the largest micro-batch that the search may choose under the user's constraints [sequences]."""
    values = (
        _value(rule.where, rule.name, value) for rule in rules if rule.name == "micro_batch" for value in rule.values
    )
    return max(map(int, values), default=LARGEST_MICRO_BATCH)


def _name_of(where: str, value: str, values: Mapping[str, Sequence[Any]], by: Mapping[str, str]) -> str:
    """Return the dimension with a value to exclude; the word `offload` excludes every value of that dimension.

    `by` maps each constrained dimension to its constraint, for the error message.
    """
    if value == "offload":
        return value
    name = next((key for key, choices in values.items() if value in [v for v in choices if isinstance(v, str)]), "")
    # The value is valid, but a constraint on its dimension has already removed it.
    excluding = next((key for key in by if not name and _takes(key, value)), None)
    if excluding is not None:
        raise ScenarioError(f"{where}: excludes nothing, because {by[excluding]} already excludes this value; omit one")
    if not name:
        names = sorted({str(v) for choices in values.values() for v in choices if isinstance(v, str)})
        raise ScenarioError(f"{where}: {one_of(names, value)}")
    return name


def _takes(name: str, value: str) -> bool:
    """Return True if the search dimension `name` accepts a value."""
    try:
        return bool(value_of(name, value))
    except ValueError:
        return False


def _value(where: str, name: str, value: Any, base: Path | None = None) -> Any:
    """Return a user's value for the search dimension `name`, in the scenario key's form; raise ScenarioError, naming
    `where`. `base` is the folder for the paths of own parts.
    """
    try:
        return value_of(name, value, base)
    except ValueError as error:
        raise ScenarioError(f"{where}: {error}") from error
