"""How does a scenario become another program's configuration, and what is lost on the way?

The written text is imported again: every part of the step that differs then is told, so that nothing is lost in
silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from simulator.basics.document import parse
from simulator.basics.errors import ScenarioError, one_of
from simulator.basics.spec import Spec
from simulator.cluster.build import facts
from simulator.importing.export import deepspeed, megatron
from simulator.importing.importer import import_files
from simulator.importing.machine import NODE, Options
from simulator.model.shape import Transformer
from simulator.scenario.build_training import to_step
from simulator.scenario.load import check_single_point, parse_scenario
from simulator.scenario.records import Scenario
from simulator.step.spec import TrainingStep

# Name of the file for each program.
PROGRAMS: Final = {"deepspeed": "ds.json", "megatron": "train.sh"}
# Parts of a step that change neither time nor memory, or that only a real training reads.
_IDLE: Final = (
    *("model.name", "model.max_positions", "lesson"),
    *(f"keys.{key}" for key in ("steps", "loss_scaling", "clip_norm", "numerics", "learning", "faults")),
    # What these keys name is loaded, and compared part by part.
    *(f"keys.{key}" for key in ("model", "optimizer", "framework", "algorithm", "trainable", "lora")),
)


@dataclass(frozen=True, slots=True)
class ConfigurationDifference:
    """A part of a step that another program's configuration does not say."""

    part: str  # dotted key of `training`, or name of a part of the loaded model: "parallelism.schedule"
    # `scenario`, `configuration`: Value in the scenario, and value that follows from the configuration.
    scenario: Any
    configuration: Any


@dataclass(frozen=True, slots=True)
class Exported:
    """A configuration's text, and the parts of the step that it does not say."""

    text: str
    differences: tuple[ConfigurationDifference, ...]


def export(scenario: Scenario, program: str) -> Exported:
    """Return the configuration of a scenario's training step for a program: "megatron" or "deepspeed".

    Raises
    ------
    ScenarioError
        An unknown program, a scenario with several points or without a training, or a model of layers.
    """
    if program not in PROGRAMS:
        raise ScenarioError(f"--to: got {program!r}; {one_of(PROGRAMS, program)}")
    check_single_point(scenario)
    training, world = scenario.training, scenario.cluster.world_size
    if training is None:
        raise ScenarioError(f"{scenario.source}: has no training, and only a training step can be exported")
    step = to_step(training, world, scenario.base)
    if not isinstance(step.model, Transformer):
        raise ScenarioError(f"{scenario.source}: {step.model.name} is a list of layers; only transformers are exported")
    node = facts(scenario.cluster.topology, scenario.base).node_size or NODE
    text = megatron.script(step, world, node) if program == "megatron" else deepspeed.settings(step, world)
    return Exported(text, tuple(_differences(step, _again(text, program, scenario))))


def _again(text: str, program: str, scenario: Scenario) -> TrainingStep:
    """Return the step that follows from a configuration, with what only the scenario says."""
    training, cluster = scenario.training, scenario.cluster
    options = Options(topology=cluster.topology, gpu=cluster.gpu, gpus=cluster.world_size)
    if training is not None:
        options = replace(options, framework=training.framework)
    if training is not None and program == "deepspeed":
        options = replace(options, model=training.model, seq_len=training.seq_len)
    with TemporaryDirectory() as folder:
        path = Path(folder) / PROGRAMS[program]
        path.write_text(text, encoding="utf-8")
        imported = import_files([str(path)], options, base=scenario.base)
    again = parse_scenario(parse(imported.text), scenario.base).training
    if again is None:
        raise ScenarioError(f"{scenario.source}: the written configuration has no training")
    return to_step(again, cluster.world_size, scenario.base)


def _differences(step: TrainingStep, other: TrainingStep) -> Iterator[ConfigurationDifference]:
    """Yield the parts of two steps that differ, without parts that have no effect."""
    for part, first, second in _pairs("", _plain(step), _plain(other)):
        if part not in _IDLE and first != second:
            yield ConfigurationDifference(part.removeprefix("keys."), first, second)


def _plain(step: TrainingStep) -> TrainingStep:
    """Return a step in which options without effect have the same value in every step."""
    cut = step.parallelism.canonical()
    if cut.tp == 1:
        cut = cut.replaced(sequence_parallel=False, tp_overlap="none")
    return step.with_keys(parallelism=cut)


def _pairs(part: str, first: Any, second: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted name and both values of each part of two records."""
    if type(first) is type(second) and isinstance(first, Spec):
        names = list(type(first).model_fields)
    else:
        names = [field.name for field in fields(first)] if is_dataclass(first) and type(first) is type(second) else []
    if names and part not in _IDLE:
        for name in names:
            yield from _pairs(f"{part}.{name}".lstrip("."), getattr(first, name), getattr(second, name))
    else:
        yield part, first, second
