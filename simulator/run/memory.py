"""Whether a training step fits into memory, known before it is played.

Rule: one rank of each list of operations is followed (of each stage of a pipeline), for ranks that do the same hold the
same, and its collectives take roughly their time: what is held depends little on when exactly they end. Whoever must
know it to the byte plays the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from simulator.basics.errors import OutOfMemoryError
from simulator.cluster.cluster import Cluster
from simulator.engine.jitter import Jitter
from simulator.engine.play import play
from simulator.records.program import Program
from simulator.records.timeline import Timeline
from simulator.step.plan import few_micro_batches, plan_step, ranks_alone
from simulator.step.spec import TrainingStep
from simulator.step.stage_memory import memory_of_notes

STEADY: Final = Jitter()
# How far below what is there reserved bytes must be that were worked out by rough times, which are off by 3 % at most.
_ROUGHLY: Final = 1.03
# Steps on so few ranks are played all the same: that takes a second, and says to the byte and the microsecond.
_FEW_RANKS: Final = 64
# How much more than there is a rank must need for it to be sure, whenever its collectives end.
_SURELY: Final = 1.05


@dataclass(frozen=True, slots=True)
class Need:
    """What a step needs of a rank's memory.

    Attributes
    ----------
    nbytes : int
        Most that is held [B].
    reserved : int
        Most that the allocator holds from the device [B].
    fits : bool
    """

    nbytes: int
    reserved: int
    fits: bool

    @property
    def most(self) -> int:
        """What is missing where it does not fit: bytes, or what is reserved for them and the holes between them [B]."""
        return max(self.nbytes, self.reserved)


def need(cluster: Cluster, step: TrainingStep, *, at_once: bool = False) -> Need:
    """What a step needs, about: a few parts in a hundred where ranks keep step.

    Slow ranks and parameter servers keep buffers for longer or shorter; `at_once`, collectives take no time, and
    nothing is held for them any longer than it must be.
    """
    stages = [_followed(cluster, program, step, limit=False) for program in ranks_alone(cluster, step, at_once=at_once)]
    most = max(timeline.peak.nbytes if timeline.peak else 0 for timeline in stages)
    reserved = max(max(timeline.reserved.values(), default=most) for timeline in stages)
    return Need(most, reserved, not any(timeline.short_of_memory for timeline in stages))


def refuse_unfit(cluster: Cluster, step: TrainingStep) -> None:
    """Raise OutOfMemoryError where a step on many ranks surely does not fit."""
    few = cluster.world_size <= _FEW_RANKS or step.lesson is not None
    if few or need(cluster, step, at_once=True).nbytes <= _SURELY * cluster.gpus[0].hbm_bytes:
        return
    try:
        for program in ranks_alone(cluster, step):
            _followed(cluster, program, step, limit=True)
    except OutOfMemoryError as error:
        if error.time:
            error.args = (error.args[0].replace("memory at ", "memory at about "),)
        raise


def _followed(cluster: Cluster, program: Program, step: TrainingStep, *, limit: bool) -> Timeline:
    return play("auto", program, cluster, limit_memory=limit, allocator=step.allocator)


def checked_need(cluster: Cluster, step: TrainingStep, jitter: Jitter = STEADY) -> Need:
    """What a step needs, with `fits` as playing the step shows it.

    Steps on few ranks are played. On many what is reserved must leave as much room as rough times were off by.
    """
    rough = need(cluster, step)
    hbm = cluster.gpus[0].hbm_bytes
    if not rough.fits or cluster.world_size > _FEW_RANKS:
        return replace(rough, fits=rough.fits and _ROUGHLY * rough.reserved <= hbm)
    planned = plan_step(cluster, step, steady=jitter.compute == 0 and jitter.latency == 0)
    try:
        play(
            "auto", planned.program, cluster, jitter=jitter, limit_memory=True, allocator=step.allocator, keep=(0,)
        )  # fmt: skip
    except OutOfMemoryError as error:
        return Need(rough.nbytes, max(rough.reserved, error.needed), fits=False)
    return rough


def least_need(cluster: Cluster, step: TrainingStep) -> int:
    """What a step needs at least, on the rank that holds most [B]; cheap, whatever its micro-batches.

    Raises
    ------
    ValueError
        The model, its ranks or the GPU do not allow such a step.
    """
    return max(stage.nbytes for stage in memory_of_notes(few_micro_batches(cluster, step, cluster.world_size)))
