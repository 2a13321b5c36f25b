"""Which plan do the options of `simulator plan`, or a scenario with `plan`, ask for?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

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
from simulator.scenario.plan_spec import PlanSpec
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


def question(source: str, options: Mapping[str, Any], settings: Mapping[str, str]) -> PlanQuestion:
    """Return the question for the planner, about a model if a topology is given, otherwise about a scenario.

    `options` are the given options of `simulator plan`, by name, with underscores, in the order of the command.

    Raises
    ------
    ScenarioError
        An option is missing, does not apply to scenarios, or has an invalid value.
    """
    # --topology distinguishes both forms: a model needs a machine, a scenario has one.
    if "topology" not in options:
        return _of_scenario(source, options, settings)
    constraints = tuple(_said(f"--{name}", text) for name in ("fix", "among") for text in options.get(name, ()))
    # --gpus, or the largest number in `--among gpus=...`.
    gpus = largest_number(options.get("gpus"), constraints, "--gpus")
    if gpus is None:
        raise ScenarioError("--gpus: missing; write for example --gpus 8, or --among gpus=8,16")
    seq_len = sequence_length(options.get("seq_len"), source)
    base = _base(source, options, gpus, seq_len, settings)
    batch = batch_of(_global_batch(options, base), seq_len, "--global-batch")
    report = {name: options[name] for name in ("best", "deadline", "sensitivity") if name in options}
    return PlanQuestion(
        base,
        PlanSpec.model_construct(global_batch=batch, **report),
        constraints,
        tuple(Constraint(f"--without {text}", "", [text]) for text in options.get("without", ())),
        _budget(options),
    )


def _global_batch(options: Mapping[str, Any], base: Scenario) -> str:
    """Return the global batch as written, or the default for a model of sequences.

    Raises
    ------
    ScenarioError
        The batch is missing, and the model's samples are no sequences.
    """
    model = None if base.training is None else load_model(base.training.model, base.training.seq_len, base.base)
    if "global_batch" not in options and model is not None and model.work_unit == SAMPLE:
        raise ScenarioError(
            f"--global-batch: missing; the default is {_BATCH} tokens, and a sample of {model.name} is no sequence; "
            "write the number of samples, for example --global-batch 256seq"
        )
    return str(options.get("global_batch") or _BATCH)


def _of_scenario(source: str, options: Mapping[str, Any], settings: Mapping[str, str]) -> PlanQuestion:
    """Return the planner's question from a scenario's `plan`; of the options only --set may be given."""
    # A model without topology: the most likely mistake gets its own message.
    if registry.shipped("model", source) is not None or source.endswith(".json"):
        raise ScenarioError(
            "--topology: missing; the plan of a model needs a machine; write for example --topology dgx_h100 --gpus 8"
        )
    # A scenario's own `plan` replaces these options.
    if options:
        option = f"--{next(iter(options)).replace('_', '-')}"
        message = f"applies to a model with --topology; {source} is a scenario; change its keys with --set"
        raise ScenarioError(f"{option}: {message}")
    scenario = load_scenario(source, settings)
    print_warnings(warnings_of(scenario))
    return plan_question(scenario)


def _base(model: str, options: Mapping[str, Any], gpus: int, seq_len: int, settings: Mapping[str, str]) -> Scenario:
    cluster: dict[str, Any] = {"topology": options["topology"], "world_size": gpus}
    if "gpu" in options:
        cluster["gpu"] = options["gpu"]
    with told_as_options(_OPTIONS):
        return shared_scenario(model, cluster, seq_len, settings)


def _budget(options: Mapping[str, Any]) -> BudgetSpec | None:
    """Return the length and prices of the whole training from the options; prices and deadline need a length."""
    if "tokens" not in options:
        name = next((name for name in ("price", "watts", "deadline") if name in options), None)
        if name is not None:
            raise ScenarioError(f"--{name}: needs --tokens, the length of the training; write --tokens 1e12")
        return None
    try:
        return BudgetSpec(tokens=options["tokens"], price=options.get("price"), watts=options.get("watts"))
    except ValidationError as error:
        fault = error.errors()[0]
        raise ScenarioError(f"--{fault['loc'][0]}: {fault['ctx']['error']}") from error


def _said(option: str, text: str) -> Constraint:
    where = f"{option} {text}"
    name, equals, written = (part.strip() for part in text.partition("="))
    if not equals or not written:
        raise ScenarioError(f"{where}: must be NAME=VALUE, such as {option} tp=8")
    # --fix takes one value, which may contain commas; --among takes several.
    pieces = [written] if option == "--fix" else written.split(",")
    return Constraint(where, name, [documents.parse(piece.strip(), where).data for piece in pieces])
