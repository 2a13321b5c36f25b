"""Which pipeline stages and how many layers does a rank hold? Said in messages: "last stage, 16 of 62 layers"."""

from __future__ import annotations

from simulator.basics.errors import OutOfMemoryError
from simulator.step.pipeline import Pipeline
from simulator.step.spec import TrainingStep


def stage_text(step: TrainingStep, rank: int, world_size: int) -> str:
    """Return the stages and the number of layers of a rank: "last stage, 16 of 62 layers"; "" without a pipeline."""
    cut = step.parallelism
    if cut.pp < 2:
        return ""
    pipeline = Pipeline.of(step)
    place = int(cut.grid(world_size).coordinate("pp")[rank])
    layers, count = pipeline.layers(), pipeline.model_stages
    stages = [stage % count for stage in pipeline.schedule.stages_of(place, pipeline.shape)]
    held = f"{sum(layers[stage] for stage in stages)} of {sum(layers)} layers"
    if len(stages) > 1:
        return f"stages {', '.join(map(str, stages))} of {count}, {held}"
    [stage] = stages
    names = {0: "first stage", count - 1: "last stage"}
    return f"{names.get(stage, f'stage {stage} of {count}')}, {held}"


def with_stage(error: OutOfMemoryError, step: TrainingStep, world_size: int) -> str:
    """Return the message of an error, with the stage and the layers behind the rank that ran out of memory."""
    message, rank = str(error.args[0]), f"rank {error.rank} "
    stage = stage_text(step, error.rank, world_size)
    return message.replace(rank, f"{rank}({stage}) ", 1) if stage else message
