"""Laws of pipeline schedules; each function raises BrokenLawError if a schedule breaks its law in a shape.

Times are those of `pipelines.played`, and never of the simulator's own planner.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from simulator.step.parallelism import Parallelism
from simulator.step.pipelines.schedule import PassTimes, PipelineSchedule, PipelineShape, Placement, Work
from simulator.testing.law import require
from simulator.testing.pipelines import most_held, played
from simulator.testing.steps import TINY, step, takes_as_long_in_both_engines

# Largest relative difference of a closed form and the played time.
_EQUAL = 1e-9
_WHOLE = {Work.FORWARD, Work.BACKWARD}
_SPLIT = {Work.FORWARD, Work.INPUT_GRADIENT, Work.WEIGHT_GRADIENT}


def has_every_pass_once(schedule: PipelineSchedule, shape: PipelineShape) -> None:
    """Check that every rank runs the passes of its own stages, each micro-batch forward and backward once."""
    order = schedule.order(shape)
    require(len(order) == shape.ranks, f"the order has {len(order)} ranks; must have {shape.ranks}")
    for rank, sequence in enumerate(order):
        runs = Counter((pass_.work, pass_.stage, pass_.micro) for slot in sequence for pass_ in slot)
        twice = next((key for key, times in runs.items() if times > 1), None)
        require(twice is None, f"rank {rank} runs {_name(twice)} {runs[twice] if twice else 0} times")
        for stage in schedule.stages_of(rank, shape):
            for micro in range(_micro_batches(schedule, shape)):
                works = {work for work in Work if runs.pop((work, stage, micro), 0)}
                allowed = (_SPLIT, _WHOLE) if schedule.splits_backward else (_WHOLE,)
                require(works in allowed, _missing(rank, stage, micro, works, schedule))
        other = next(iter(runs), None)
        require(other is None, f"rank {rank} runs {_name(other)}, which is no pass of its stages and micro-batches")


def _name(key: tuple[Work, int, int] | None) -> str:
    return "" if key is None else f"{key[0].value}{key[1]}.{key[2]}"


def _missing(rank: int, stage: int, micro: int, works: set[Work], schedule: PipelineSchedule) -> str:
    needs = "F, and B or both I and W" if schedule.splits_backward else "F and B"
    names = ", ".join(sorted(work.value for work in works)) or "no pass"
    return f"rank {rank} runs {names} of stage {stage} and micro-batch {micro}; must run {needs}"


def can_be_played(schedule: PipelineSchedule, shape: PipelineShape, send: float = 0.5) -> None:
    """Check that ranks which follow the order never wait for each other in a circle."""
    times = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0, "pair": 3.0}
    played(schedule, shape, schedule.order(shape), times, send)


def pairs_as_declared(schedule: PipelineSchedule, shape: PipelineShape) -> None:
    """Check that slots with two passes are declared by `pairs`."""
    slots = {len(slot) for sequence in schedule.order(shape) for slot in sequence}
    most = 2 if schedule.pairs else 1
    require(slots <= {1, most}, f"a slot has {max(slots)} passes; must have at most {most}")


def has_its_bubble(
    schedule: PipelineSchedule, shape: PipelineShape, forward: float = 1.0, backward: float = 2.0
) -> bool:
    """Check that the played time is the ranks' work plus the closed form of the bubble.

    A schedule that splits the backward pass has a closed form for forward passes as long as both halves of the backward
    pass, and for enough micro-batches to fill the pipeline. Return False if no closed form is declared here.
    """
    if schedule.bubble is None:
        return False
    weights = backward / 2
    if schedule.splits_backward:
        if shape.micro_batches < 2 * shape.ranks:
            return False
        backward, weights = 2 * forward, forward
    times = {"F": forward, "B": backward, "I": backward - weights, "W": weights, "pair": forward + backward}
    makespan = played(schedule, shape, schedule.order(shape), times).makespan
    work = _micro_batches(schedule, shape) * shape.chunks * (forward + backward)
    bubble = schedule.bubble(shape, PassTimes(forward, backward, weights, forward + backward))
    off = abs(makespan - work - bubble) > _EQUAL * makespan
    require(not off, f"the bubble lasts {makespan - work:.9g} s, and its closed form gives {bubble:.9g} s")
    return True


def holds_what_it_declares(schedule: PipelineSchedule, shape: PipelineShape) -> bool:
    """Check the activations held by each rank; return False if the schedule declares no number."""
    if schedule.held is None:
        return False
    for rank, sequence in enumerate(schedule.order(shape)):
        count, declared = most_held(sequence), schedule.held(shape, rank)
        require(count == declared, f"rank {rank} holds {count} activations at most, and declares {declared}")
    return True


def is_simulated(name: str, schedule: PipelineSchedule, shape: PipelineShape) -> bool:
    """Check that a training step with the schedule `name` takes as long in both engines."""
    copies = 2 if schedule.placement is Placement.BOTH_WAYS else 1
    model = replace(TINY, num_layers=shape.stages // copies)
    cut = Parallelism(
        pp=shape.ranks, schedule=name, virtual_stages=shape.chunks if schedule.chunks is None else 1,
        microbatch_group=shape.group if schedule.grouped else None,
    )  # fmt: skip
    job = step(
        "ddp", model, gradient_accumulation_steps=shape.micro_batches, parallelism=cut, seq_len=8, micro_batch_size=1
    )
    return takes_as_long_in_both_engines(job, shape.ranks)


def _micro_batches(schedule: PipelineSchedule, shape: PipelineShape) -> int:
    """Return the micro-batches that pass through each stage: half of all, if each half has its own model copy."""
    return shape.micro_batches // (2 if schedule.placement is Placement.BOTH_WAYS else 1)
