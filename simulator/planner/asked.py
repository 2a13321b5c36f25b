"""What is asked of a plan: a model on a cluster, the size of a step, and what may be chosen?

Rule: the command line, Python and a scenario's `plan:` come here with the same names and values, and are refused in the
same words; each says where a value stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.basics.errors import ScenarioError, one_of
from simulator.basics.sections import overlap
from simulator.model.load import load_model
from simulator.planner.size import refuse_too_large, warning_of
from simulator.planner.space import LARGEST_MICRO_BATCH, Choices, default_choices, gpus_per_node
from simulator.run.scenario_cluster import Clusters
from simulator.scenario.answer_spec import BudgetSpec
from simulator.scenario.global_batch import sequences_of
from simulator.scenario.load import load_scenario
from simulator.scenario.plan_rules import value_of
from simulator.scenario.plan_spec import BEST, FOLLOWS, GPUS, KEYS, SAID_OR_CHOSEN
from simulator.scenario.records import Scenario


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody says of one choice.

    Attributes
    ----------
    where : str
        Where it stands, for errors: "--fix tp=8".
    name : str
        Of `KEYS`, or `GPUS`.
    values : sequence
        All that may be chosen; a single one where it is fixed.
    """

    where: str
    name: str
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Question:
    """What a plan answers.

    Attributes
    ----------
    base : Scenario
        What all settings have in common.
    sequences : int
        Of a step, all ranks together.
    said : tuple of Said
        Of choices that are fixed, or made among these values.
    without : tuple of Said
        Values that are left out; their names are "".
    best : int
        How many settings are wanted.
    budget : BudgetSpec or None
        Of the whole training.
    deadline : float or None
        Days that it may take.
    sensitivity : bool
        Whether is told what other machines would change.
    """

    base: Scenario
    sequences: int
    said: tuple[Said, ...] = ()
    without: tuple[Said, ...] = ()
    best: int = BEST
    budget: BudgetSpec | None = None
    deadline: float | None = None
    sensitivity: bool = False

    def choices(self, base: Scenario | None = None) -> Choices:
        """What may be chosen: on the base's cluster, or on another one."""
        return choices_of(base or self.base, self.sequences, self.said, self.without)

    def announced(self) -> str:
        """Return a line of text if answering takes long, otherwise an empty text.

        Raises
        ------
        TooLargeError
            This machine cannot hold the cluster, or any step.
        """
        refuse_too_large(self.base, self.sequences, largest_micro_batch(self.said))
        return warning_of(self.base, self.sequences)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Other numbers of GPUs that are asked for by name."""
        return tuple(number for number in numbers_of(self.said) if number != self.base.cluster.world_size)

    @property
    def text(self) -> str:
        """The question in words."""
        cluster, training = self.base.cluster, self.base.training
        if self.base.question or training is None:
            return self.base.question
        machine = cluster.topology if isinstance(cluster.topology, str) else "a cluster of its own"
        return (
            f"How is {self.model} trained fastest on {cluster.world_size:,} GPUs ({machine}), {self.sequences:,} "
            f"sequences of {training.seq_len:,} tokens a step?"
        )

    @property
    def model(self) -> str:
        """What the model is called."""
        named = None if self.base.training is None else self.base.training.model
        return named if isinstance(named, str) else "this model"


def question_of(scenario: Scenario) -> Question:
    """What a scenario with `plan` asks for.

    Raises
    ------
    ScenarioError
        It has no `plan`.
    """
    plan, source = scenario.plan, scenario.source
    if plan is None:
        raise ScenarioError(f"{source}: has no plan; write for example 'plan: {{global_batch: 4M}}', or use run")
    said = [Said(f"{source}: plan.fix.{name}", name, (value,)) for name, value in plan.fix.items()]
    said += [Said(f"{source}: plan.among.{name}", name, values) for name, values in plan.among.items()]
    without = tuple(Said(f"{source}: plan.without: {value}", "", (value,)) for value in plan.without)
    base = scenario.replaced(plan=None, budget=None)
    return Question(base, plan.sequences, tuple(said), without, plan.best, scenario.budget, plan.deadline,
                    plan.sensitivity)  # fmt: skip


def numbers_of(said: Sequence[Said]) -> tuple[int, ...]:
    """Numbers of GPUs that somebody chooses among, fewest first; empty where nobody does.

    Raises
    ------
    ScenarioError
        One is no number of GPUs.
    """
    return tuple(sorted({_value(one.where, GPUS, value) for one in said if one.name == GPUS for value in one.values}))


def told_number(gpus: int | None, said: Sequence[Said], where: str) -> int | None:
    """The number of GPUs of which all is told: the asked one, or the most of those to choose among; None without both.

    Raises
    ------
    ScenarioError
        The asked one, which `where` names, is not among these.
    """
    numbers = numbers_of(said)
    if gpus is not None and numbers and gpus not in numbers:
        other = next(one.where for one in said if one.name == GPUS)
        raise ScenarioError(f"{where} {gpus}: contradicts {other}; name one of these, of which all is told")
    return max(numbers, default=None) if gpus is None else gpus


def base_scenario(
    model: str | Mapping[str, Any], cluster: Mapping[str, Any], seq_len: int, settings: Mapping[str, Any]
) -> Scenario:
    """What all settings of a plan have in common.

    Raises
    ------
    ScenarioError
        A key is wrong, or is what a plan chooses.
    """
    for key in settings:
        name = next((name for name, own in KEYS.items() if overlap(key, own)), None)
        if name is not None and name not in SAID_OR_CHOSEN:
            raise ScenarioError(f"--set {key}: is what a plan chooses; write --fix {name}=..., or --among")
        if key in FOLLOWS:
            raise ScenarioError(
                f"--set {key}: {FOLLOWS[key].replace('plan.global_batch', '--global-batch')}; leave it out"
            )
    training = {"model": model, "seq_len": seq_len}
    return load_scenario({"name": "plan", "cluster": dict(cluster), "training": training, "plots": []}, settings)


def batch_of(written: str | int, seq_len: int, where: str) -> int:
    """Sequences of a step, from a number of tokens, or of sequences (`global_batch.sequences_of`).

    Raises
    ------
    ScenarioError
        It is no number, or no whole number of sequences.
    """
    try:
        return sequences_of(str(written), seq_len)
    except ValueError as error:
        raise ScenarioError(f"{where} {written}: {error}") from error


def choices_of(base: Scenario, sequences: int, said: Sequence[Said], without: Sequence[Said]) -> Choices:
    """What may be chosen: defaults by model and machine, with what was said of them.

    Parameters
    ----------
    base : Scenario
    sequences : int
        Of a step, all ranks together.
    said : sequence of Said
    without : sequence of Said
        Values that are left out; a name is "" where only values are named.

    Raises
    ------
    ScenarioError
        A name or a value that there is not, or two that contradict each other.
    TooLargeError
        This machine cannot hold the cluster, or any step.
    """
    training = base.training
    if training is None:
        raise TypeError("a plan is of a training step")
    refuse_too_large(base, sequences, largest_micro_batch(said))
    model = load_model(training.model, training.seq_len, base.base)
    choices = default_choices(base, model, gpus_per_node(Clusters().of(base)), sequences)
    values, why, by = dict(choices.values), dict(choices.why), dict[str, str]()
    for one in said:
        if one.name not in (*KEYS, GPUS):
            raise ScenarioError(f"{one.where}: got {one.name!r}; {one_of((*KEYS, GPUS), one.name)}")
        if one.name in by:
            raise ScenarioError(f"{one.where}: contradicts {by[one.name]}; leave one of the two out")
        by[one.name] = one.where
        if one.name != GPUS:  # of which each is planned by itself
            values[one.name] = tuple(dict.fromkeys(_value(one.where, one.name, value) for value in one.values))
            why[one.name] = f"as {one.where} says"
    for one in without:
        for value in one.values:
            name = _name_of(one.where, value, values, by)
            values[name] = tuple(own for own in values[name] if str(own) != value) if name != value else ("none",)
            if not values[name]:
                raise ScenarioError(f"{one.where}: leaves no {name}; it contradicts {by.get(name, 'the rest')}")
    return Choices(values, why)


def largest_micro_batch(said: Sequence[Said]) -> int:
    """Return the sequences of the largest micro-batch that the search may choose."""
    values = (_value(one.where, one.name, value) for one in said if one.name == "micro_batch" for value in one.values)
    return max(map(int, values), default=LARGEST_MICRO_BATCH)


def _name_of(where: str, value: str, values: Mapping[str, Sequence[Any]], by: Mapping[str, str]) -> str:
    """Of which choice a word is a value; `offload` is the word for all of its values. `by` says who chose what."""
    if value == "offload":
        return value
    name = next((key for key, own in values.items() if value in [v for v in own if isinstance(v, str)]), "")
    chosen = next((key for key in by if not name and _takes(key, value)), None)
    if chosen is not None:
        raise ScenarioError(f"{where}: leaves nothing out, for {by[chosen]} is without it; leave one of the two out")
    if not name:
        known = sorted({str(v) for own in values.values() for v in own if isinstance(v, str)})
        raise ScenarioError(f"{where}: {one_of(known, value)}")
    return name


def _takes(name: str, value: str) -> bool:
    """Whether a word could be a value of a choice."""
    try:
        return bool(value_of(name, value))
    except ValueError:
        return False


def _value(where: str, name: str, value: Any) -> Any:
    """A value as the scenario's key takes it."""
    try:
        return value_of(name, value)
    except ValueError as error:
        raise ScenarioError(f"{where}: {error}") from error
