"""Which plan do the options of `simulator plan`, or a scenario with `plan`, ask for?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from simulator.basics import document as documents
from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.basics.work_unit import SAMPLE
from simulator.cli.option_names import told_as_options
from simulator.cli.warnings_output import print_warnings
from simulator.model.load import load_model, sequence_length
from simulator.planner.plan_question import (
    Constraint,
    PlanQuestion,
    batch_of,
    largest_number,
    plan_question,
    shared_scenario,
)
from simulator.run.checks import warnings_of
from simulator.scenario.answer_spec import BudgetSpec
from simulator.scenario.load import load_scenario
from simulator.scenario.plan_spec import BEST
from simulator.scenario.records import Scenario

# Defaults for a model given on the command line; for scenarios, the keys' own defaults apply.
_BATCH: Final = "4M"
# Option for each scenario key.
_OPTIONS: Final = {
    "cluster.topology": "--topology",
    "cluster.world_size": "--gpus",
    "cluster.gpu": "--gpu",
    "training.model": "MODEL",
    "training.seq_len": "--seq-len",
}


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of `simulator plan`; None or empty if not given."""

    topology: str | None = None
    gpus: int | None = None
    seq_len: int | None = None
    global_batch: str | None = None
    gpu: str | None = None
    fix: Sequence[str] = ()
    among: Sequence[str] = ()
    without: Sequence[str] = ()
    best: int | None = None
    tokens: float | None = None
    price: float | None = None
    watts: float | None = None
    deadline: float | None = None
    sensitivity: bool | None = None


def question(source: str, options: PlanOptions, settings: Mapping[str, str]) -> PlanQuestion:
    """Return the question for the planner, about a model if a topology is given, otherwise about a scenario.

    Raises
    ------
    ScenarioError
        An option is missing, does not apply to scenarios, or has an invalid value.
    """
    # --topology distinguishes both forms: a model needs a machine, a scenario has one.
    if options.topology is None:
        return _of_scenario(source, options, settings)
    texts_of_option = (("--fix", options.fix), ("--among", options.among))
    constraints = tuple(_said(option, text) for option, texts in texts_of_option for text in texts)
    # --gpus, or the largest number in `--among gpus=...`.
    gpus = largest_number(options.gpus, constraints, "--gpus")
    if gpus is None:
        raise ScenarioError("--gpus: missing; write for example --gpus 8, or --among gpus=8,16")
    seq_len = sequence_length(options.seq_len, source)
    base = _base(source, options, gpus, seq_len, settings)
    return PlanQuestion(
        base,
        batch_of(_global_batch(options, base), seq_len, "--global-batch"),
        constraints,
        tuple(Constraint(f"--without {text}", "", [text]) for text in options.without),
        options.best or BEST,
        _budget(options),
        options.deadline,
        options.sensitivity or False,
    )


def _global_batch(options: PlanOptions, base: Scenario) -> str:
    """Return the global batch as written, or the default for a model of sequences.

    Raises
    ------
    ScenarioError
        The batch is missing, and the model's samples are no sequences.
    """
    model = None if base.training is None else load_model(base.training.model, base.training.seq_len, base.base)
    if options.global_batch is None and model is not None and model.work_unit == SAMPLE:
        raise ScenarioError(
            f"--global-batch: missing; the default is {_BATCH} tokens, and a sample of {model.name} is no sequence; "
            "write the number of samples, for example --global-batch 256seq"
        )
    return options.global_batch or _BATCH


def _of_scenario(source: str, options: PlanOptions, settings: Mapping[str, str]) -> PlanQuestion:
    """Return the planner's question from a scenario's `plan`; of the options only --set may be given."""
    # A model without topology: the most likely mistake gets its own message.
    if registry.shipped("model", source) is not None or source.endswith(".json"):
        raise ScenarioError(
            "--topology: missing; the plan of a model needs a machine; write for example --topology dgx_h100 --gpus 8"
        )
    # A scenario's own `plan` replaces these options.
    excess = next((field.name for field in fields(options) if getattr(options, field.name) not in (None, ())), None)
    if excess is not None:
        # Field names are the options' names with underscores.
        option = f"--{excess.replace('_', '-')}"
        message = f"applies to a model with --topology; {source} is a scenario; change its keys with --set"
        raise ScenarioError(f"{option}: {message}")
    scenario = load_scenario(source, settings)
    print_warnings(warnings_of(scenario))
    return plan_question(scenario)


def _base(model: str, options: PlanOptions, gpus: int, seq_len: int, settings: Mapping[str, str]) -> Scenario:
    cluster: dict[str, Any] = {"topology": options.topology, "world_size": gpus}
    if options.gpu is not None:
        cluster["gpu"] = options.gpu
    with told_as_options(_OPTIONS):
        return shared_scenario(model, cluster, seq_len, settings)


def _budget(options: PlanOptions) -> BudgetSpec | None:
    """Return the length and prices of the whole training from the options; prices and deadline need a length."""
    needing_tokens = {"--price": options.price, "--watts": options.watts, "--deadline": options.deadline}
    if options.tokens is None:
        option = next((name for name, value in needing_tokens.items() if value is not None), None)
        if option is not None:
            raise ScenarioError(f"{option}: needs --tokens, the length of the training; write --tokens 1e12")
        return None
    return BudgetSpec(tokens=options.tokens, price=options.price, watts=options.watts)


def _said(option: str, text: str) -> Constraint:
    where = f"{option} {text}"
    name, equals, written = (part.strip() for part in text.partition("="))
    if not equals or not written:
        raise ScenarioError(f"{where}: must be NAME=VALUE, such as {option} tp=8")
    # --fix takes one value, which may contain commas; --among takes several.
    pieces = [written] if option == "--fix" else written.split(",")
    return Constraint(where, name, [documents.parse(piece.strip(), where).data for piece in pieces])
