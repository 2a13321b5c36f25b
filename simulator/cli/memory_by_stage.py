"""`simulator memory` for a step: the peak memory of each pipeline stage, as a simulated step would have it.

Options are keys of a scenario, checked by its rules; bytes come from the plan.

    --pp 4 --micro-batches 16   ->   scenario (as dict) -> load_scenario -> TrainingStep -> stage_memory
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer

from simulator.basics import document
from simulator.basics.errors import ScenarioError, TooLargeError
from simulator.basics.foreign_code import file_name
from simulator.basics.plain_data import at
from simulator.basics.units import GIB, format_duration
from simulator.basics.work_unit import micro_batch_text
from simulator.cli.console import print_table, print_text
from simulator.cli.option_names import as_options
from simulator.cli.warnings_output import print_warnings
from simulator.cluster.chassis import cluster_of
from simulator.model.model import total
from simulator.records.memory_margin import MemoryMargin
from simulator.records.setting_text import label
from simulator.report.tables.layout import Column
from simulator.run.memory_need import estimate_memory
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.step.pipeline import Pipeline
from simulator.step.spec import TrainingStep, Updater
from simulator.step.stage_memory import StageMemory, stage_memory
from simulator.step.strategies.strategy import STRATEGIES

# Time per pass, measured on one of two cores [s], and the estimate above which a warning is printed [s].
_A_PASS: Final = 7e-6
_LONG: Final = 10.0
# Sizes with the number of GPUs as product. Experts are spread over data-parallel GPUs, and `ep` is no factor.
_SIZES: Final = ("dp", "tp", "pp", "cp")
# Option for each scenario key.
_OPTIONS: Final = {
    "cluster.world_size": "--dp x --tp x --pp x --cp",
    "cluster.gpu": "--gpu",
    "training.model": "MODEL",
    "training.seq_len": "--seq-len",
    "training.micro_batch_size": "--micro-batch-size",
    "training.gradient_accumulation_steps": "--micro-batches",
    "training.attention": "--attention",
    "training.sharding": "--sharding",
    "training.activation_checkpointing": "--checkpointing",
    "training.precision": "--precision",
    "training.parallelism.dp": "--dp",
    "training.parallelism.tp": "--tp",
    "training.parallelism.pp": "--pp",
    "training.parallelism.cp": "--cp",
    "training.parallelism.ep": "--ep",
    "training.parallelism.etp": "--etp",
    "training.parallelism.sequence_parallel": "--sequence-parallel",
    "training.parallelism.schedule": "--schedule",
    "training.parallelism.virtual_stages": "--virtual-stages",
    "training.parallelism.stages": "--stages",
}
# Options written as in a scenario file: a word, a number, a list or a mapping.
_YAML: Final = ("--sharding", "--checkpointing", "--precision", "--stages")
# Categories of memory, and whether a category is printed if every stage has 0 bytes.
_COLUMNS: Final = {
    "parameters": True,
    "gradients": True,
    "optimizer": True,
    "activations": True,
    "recomputed activations": False,
    "activation gradients": False,
    "temporaries": False,
    "loss buffers": True,
    "gathered": False,
    "buffers": False,
    "workspaces": False,
}
_SHORT: Final = {"recomputed activations": "run again"}


@dataclass(frozen=True, slots=True)
class _Found:
    """A training step with the memory of each pipeline stage."""

    step: TrainingStep
    gpu: str
    margin: MemoryMargin  # reserved memory of the fullest rank, which decides whether the step fits
    gpus: int
    stages: tuple[StageMemory, ...]

    @property
    def largest(self) -> StageMemory:
        """Pipeline stage with the largest peak memory; the first in a tie."""
        return max(self.stages, key=lambda stage: stage.nbytes)


def show(options: Mapping[str, Any], *, as_json: bool) -> None:
    """Print each pipeline stage's peak memory; `options` maps names in _OPTIONS to values, or None if not given."""
    try:
        memory = _found(options)
    except (ScenarioError, TooLargeError) as error:
        error.args = (_as_options(str(error)),)
        raise
    if as_json:
        typer.echo(json.dumps(_document(memory), indent=2))
        return
    _print(memory)


def _found(options: Mapping[str, Any]) -> _Found:
    # Invalid sizes count as 1 here; the scenario's rules report them below.
    gpus = math.prod(max(1, options[f"--{kind}"]) for kind in _SIZES)
    scenario = load_scenario(_scenario(options, gpus))
    print_warnings(_as_options(line) for line in scenario.warnings)
    spec = scenario.training
    if spec is None:
        raise TypeError("a scenario of a training step has a training step")
    # Servers hold states that no stage has; the table would mislead.
    if STRATEGIES.find(spec.sharding.strategy, scenario.base).updater is Updater.SERVERS:
        names = [name for name in STRATEGIES.names() if STRATEGIES.find(name).updater is not Updater.SERVERS]
        name = spec.sharding.strategy
        raise ScenarioError(
            f"--sharding: got {name!r}, whose servers hold states that no rank holds; allowed: {', '.join(names)}"
        )
    step, cluster = to_step(spec, gpus), cluster_of(options["--gpu"], gpus)
    print_warnings([_warning(step)])
    try:
        stages, margin = stage_memory(cluster, step, gpus), estimate_memory(cluster, step).margin
    # A dtype, or a generation of attention kernels, that this GPU does not support.
    except ValueError as error:
        raise ScenarioError(f"--gpu: {options['--gpu']}: {error}") from error
    return _Found(step, options["--gpu"], margin, gpus, stages)


def _warning(step: TrainingStep) -> str:
    """Return a warning if following every pass of the step takes long; otherwise an empty text."""
    try:
        passes = Pipeline.of(step).all_passes
    # `stage_memory` reports the fault.
    except ValueError:
        return ""
    seconds = passes * _A_PASS
    if seconds < _LONG:
        return ""
    return (
        f"--micro-batches: {step.accumulation:,} micro-batches are {passes:,} passes, which take about "
        f"{format_duration(seconds)}; to be faster, take fewer micro-batches"
    )


def _scenario(options: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """Return a scenario's data with the command's options as keys; any topology will do: links do not matter."""
    data: dict[str, Any] = {
        "name": "memory",
        "cluster": {"topology": "star_100g", "world_size": gpus},
        "training": {"parallelism": {}},
    }
    for dotted, option in _OPTIONS.items():
        value = options.get(option)
        if value is not None:
            *rooms, key = dotted.split(".")
            at(data, tuple(rooms))[key] = document.parse(value, option).data if option in _YAML else value
    return data


def _as_options(message: str) -> str:
    """Return error lines with command-line options in place of scenario keys."""
    # A schedule's rules name the key for micro-batches in brackets.
    return as_options(message, _OPTIONS).replace("(gradient_accumulation_steps)", "(--micro-batches)")


def _print(memory: _Found) -> None:
    print_text(_finding(memory))
    print_text(_asked(memory))
    # Categories without bytes are dropped unless readers expect them.
    columns = [name for name, always in _COLUMNS.items() if always or any(_held(memory, name))]
    names = [_SHORT.get(name, name) for name in columns]
    cut = len(memory.stages) > 1
    unit = _unit_of_held(memory)
    heads = [*(["stage"] if cut else []), *names, unit, "total", "of HBM"]
    rows = [
        [
            *([str(stage.stage)] if cut else []),
            *(f"{stage.by_category.get(name, 0) / GIB:.2f}" for name in columns),
            f"{stage.held}",
            f"{stage.nbytes / GIB:.2f}",
            f"{stage.nbytes / memory.margin.capacity:.0%}",
        ]
        for stage in memory.stages
    ]
    print_text(f"\nGiB on one GPU at its memory peak; {unit}: number of {unit} with stored activations at the peak")
    print_table([Column(head) for head in heads], rows, keys=(0,) if cut else (), indent="  ")
    print_text(
        "\nThe table contains tensors; the reserved memory contains fragments too. Not included: "
        f"{memory.margin.beside}, and buffers that wait for a slow network, which a simulated step includes."
    )
    if memory.margin.fits:
        print_text(f"{memory.margin.figures}.")


def _held(memory: _Found, category: str) -> Sequence[int]:
    return [stage.by_category.get(category, 0) for stage in memory.stages]


def _unit_of_held(memory: _Found) -> str:
    """Return the unit of forward passes held by a stage: "micro-batches", or "chunk passes" with several chunks."""
    return "chunk passes" if Pipeline.of(memory.step).shape.chunks > 1 else "micro-batches"


def _finding(memory: _Found) -> str:
    largest = memory.largest
    who = (
        (f"stage {largest.stage} of {len(memory.stages)} needs the most memory:")
        if len(memory.stages) > 1
        else "a GPU needs"
    )
    margin = memory.margin
    tight = f"; {margin.warning}" if margin.warning else ""
    need = f"{largest.nbytes / GIB:.1f} GiB, {largest.nbytes / margin.capacity:.0%}"
    return f"{who} {need} of the memory of {memory.gpu}: {margin.verdict}{tight}"


def _asked(memory: _Found) -> str:
    step, cut = memory.step, memory.step.parallelism
    data = memory.gpus // cut.size
    sizes = f"dp {data}, tp {cut.tp}, pp {cut.pp}, cp {cut.cp}, ep {cut.ep}"
    batches = f"{step.accumulation} micro-batch{'es' if step.accumulation > 1 else ''}"
    micro_batch = micro_batch_text(step.model.work_unit, step.keys.micro_batch_size, step.keys.seq_len)
    order = f", {Pipeline.of(step).schedule.name}" if cut.pp > 1 else ""
    policy = label("training.activation_checkpointing", step.keys.activation_checkpointing)
    return (
        f"{step.model.name}: {total(step.model):,} parameters on {memory.gpus:,} GPUs ({sizes}), "
        f"{file_name(step.sharding.strategy)}, {policy}, {batches} of {micro_batch}{order}"
    )


def _document(memory: _Found) -> dict[str, Any]:
    return {
        "parameters": total(memory.step.model),
        "gpus": memory.gpus,
        "capacity_bytes": memory.margin.capacity,
        "reserved_bytes": memory.margin.reserved,
        "allocated_bytes": memory.margin.allocated,
        "context_bytes": memory.margin.context,
        "nccl_bytes": memory.margin.nccl,
        "process_bytes": memory.margin.process,
        "free_bytes": memory.margin.free,
        "missing_bytes": memory.margin.missing,
        "largest_stage": memory.largest.stage,
        "fits": memory.margin.fits,
        "stages": [
            {
                "stage": stage.stage,
                "total_bytes": stage.nbytes,
                "by_category_bytes": {name: stage.by_category.get(name, 0) for name in _COLUMNS},
                "held": stage.held,
                "of": _unit_of_held(memory),
            }
            for stage in memory.stages
        ],
    }
