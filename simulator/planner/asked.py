"""What is asked of a plan: a model on a cluster, the size of a step, and what may be chosen?

Rule: the command line, Python and a scenario's `plan:` come here with the same names and values, and are refused in the
same words; each says where a value stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from simulator.basics.counts import TOKENS, parse_count
from simulator.errors import ScenarioError, one_of
from simulator.model.load import load_model
from simulator.planner.setting import KEYS
from simulator.planner.space import Choices, default_choices, gpus_per_node
from simulator.playing.scenario_cluster import Clusters
from simulator.scenario.load import load_scenario
from simulator.scenario.records import Scenario
from simulator.scenario.shape import adapter
from simulator.scenario.training_shape import PRECISIONS
from simulator.step.strategies import catalog as strategies
from simulator.step.strategies.strategy import Updater

# What a scenario may say for all settings, for a plan chooses it only where it is asked to.
_SAID_OR_CHOSEN: Final = ("precision", "framework")


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody says of one choice.

    Attributes
    ----------
    where : str
        Where it stands, for errors: "--fix tp=8".
    name : str
        Of `KEYS`.
    values : sequence
        All that may be chosen; a single one where it is fixed.
    """

    where: str
    name: str
    values: Sequence[Any]


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
        name = next((name for name, own in KEYS.items() if _overlap(key, own)), None)
        if name is not None and name not in _SAID_OR_CHOSEN:
            raise ScenarioError(f"--set {key}: is what a plan chooses; write --fix {name}=..., or --among")
    training = {"model": model, "seq_len": seq_len}
    return load_scenario({"name": "plan", "cluster": dict(cluster), "training": training, "plots": []}, settings)


def _overlap(key: str, other: str) -> bool:
    """Whether one of two keys is the other, or in it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def sequences_of(text: str | int, seq_len: int, where: str) -> int:
    """Sequences of a step, from a number of tokens, or of sequences.

    Raises
    ------
    ScenarioError
        It is no number, or no whole number of sequences.

    Examples
    --------
    >>> sequences_of("4M", 8192, "--global-batch"), sequences_of("512seq", 8192, "--global-batch")
    (512, 512)
    """
    written = str(text)
    if written.endswith("seq"):
        return _count(where, written.removesuffix("seq").strip())
    tokens = _count(where, written)
    if tokens % seq_len:
        raise ScenarioError(
            f"{where} {written}: {tokens:,} tokens are no whole number of sequences of {seq_len:,}; "
            f"write {max(1, tokens // seq_len) * seq_len}, or {max(1, tokens // seq_len)}seq"
        )
    return tokens // seq_len


def _count(where: str, text: str) -> int:
    try:
        return parse_count(text, TOKENS)
    except ValueError as error:
        raise ScenarioError(f"{where} {text}: {error}") from error


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
    """
    training = base.training
    if training is None:
        raise TypeError("a plan is of a training step")
    model = load_model(training.model, training.seq_len, base.base)
    choices = default_choices(base, model, gpus_per_node(Clusters().of(base)), sequences)
    values, why, by = dict(choices.values), dict(choices.why), dict[str, str]()
    for one in said:
        if one.name not in KEYS:
            raise ScenarioError(f"{one.where}: got {one.name!r}; {one_of(tuple(KEYS), one.name)}")
        if one.name in by:
            raise ScenarioError(f"{one.where}: contradicts {by[one.name]}; leave one of the two out")
        values[one.name] = tuple(dict.fromkeys(_value(one.where, one.name, value) for value in one.values))
        by[one.name], why[one.name] = one.where, f"as {one.where} says"
    for one in without:
        for value in one.values:
            name = _name_of(one.where, value, values)
            values[name] = tuple(own for own in values[name] if str(own) != value) if name != value else ("none",)
            if not values[name]:
                raise ScenarioError(f"{one.where}: leaves no {name}; it contradicts {by.get(name, 'the rest')}")
    return Choices(values, why)


def _name_of(where: str, value: str, values: Mapping[str, Sequence[Any]]) -> str:
    """Of which choice a word is a value; `offload` is the word for all of its values."""
    if value == "offload":
        return value
    name = next((key for key, own in values.items() if value in [v for v in own if isinstance(v, str)]), "")
    if not name:
        known = sorted({str(v) for own in values.values() for v in own if isinstance(v, str)})
        raise ScenarioError(f"{where}: {one_of(known, value)}")
    return name


def _value(where: str, name: str, value: Any) -> Any:
    """A value as the scenario's key takes it."""
    if name == "sharding" and value in strategies.names() and strategies.find(value).updater is Updater.SERVERS:
        raise ScenarioError(f"{where}: got {value!r}, whose servers hold what ranks do not; a plan is without")
    if name == "precision":
        if value not in PRECISIONS:
            raise ScenarioError(f"{where}: {one_of(tuple(PRECISIONS), str(value))}")
        return value
    try:
        return adapter(KEYS[name]).validate_python(value)
    except ValidationError as error:
        raise ScenarioError(f"{where}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
