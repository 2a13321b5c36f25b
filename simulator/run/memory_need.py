"""Does a training step fit into memory? This is known before the whole step is simulated.

One rank per operation list (per pipeline stage) is simulated, because ranks with equal operations hold equal memory.
Its collectives take estimated times: memory depends little on when exactly they end. An answer exact to the byte needs
a simulation of the whole step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from simulator.basics.errors import DeadlockError, OutOfMemoryError
from simulator.cluster.cluster import Cluster
from simulator.engine.jitter import Jitter
from simulator.engine.play import play
from simulator.records.memory_margin import MemoryMargin
from simulator.records.program import ProcessMemory
from simulator.records.timeline import Timeline
from simulator.report.numbers.training_summary import first_of_stages
from simulator.run.cost_estimate import seconds_to_play
from simulator.run.paging import with_pages
from simulator.step.plan import StepPlan, few_micro_batches, groups_of, plan_step, ranks_alone
from simulator.step.process_memory import process_memory
from simulator.step.spec import TrainingStep
from simulator.step.stage_memory import memory_of_notes

STEADY: Final = Jitter()
# Safety factor on reserved bytes from estimated times, which are off by at most 3 %.
_ROUGHLY: Final = 1.03
# Steps on up to this number of ranks are simulated without an estimate: a second gives exact bytes and times.
_FEW_RANKS: Final = 64
# Largest factor from estimated to reserved bytes. Reduce-scatters of all ranks may end later than estimated, and their
# buckets stay for longer: ZeRO-2 of DeepSeek-V3 on 256 GPUs reserves 1.084 times the estimate.
APART: Final = 1.1
# Longest simulation of all ranks to check a change that is advised [s].
_SOON: Final = 5.0
# If a rank needs this factor more than the GPU's memory, the step surely does not fit, whenever its collectives end.
_SURELY: Final = 1.05


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """A step's memory need on a rank."""

    nbytes: int  # peak of allocated bytes [B]
    reserved: int  # peak of bytes that the allocator takes from the device, at least `nbytes` [B]
    capacity: int  # memory of a GPU [B]
    fits: bool  # True if the step fits. Near the capacity, False may mean that an estimate cannot tell.
    beside: ProcessMemory = field(default_factory=ProcessMemory)  # memory of the process beside PyTorch's allocator
    # True if all ranks were simulated; False if a rank per stage was simulated alone, with estimated times
    whole: bool = False

    @property
    def margin(self) -> MemoryMargin:
        """Reserved memory compared with the GPU's."""
        return MemoryMargin(self.reserved, self.capacity, self.nbytes, self.beside.context, self.beside.nccl)

    def unless_larger(self, factor: float) -> MemoryNeed:
        """Return the need, which fits only if it also does with `factor` times its reserved memory.

        >>> [MemoryNeed(60, 70, 80, fits=True).unless_larger(factor).fits for factor in (1.1, 1.2)]
        [True, False]
        """
        return replace(self, fits=self.fits and factor * self.reserved + self.beside.nbytes <= self.capacity)


def estimate_memory(cluster: Cluster, step: TrainingStep) -> MemoryNeed:
    """Return a training step's approximate memory need on the fullest rank, good to a few per cent if ranks keep pace.

    Slow ranks and parameter servers hold buffers for longer or shorter.
    """
    step = paged(cluster, step)
    stages = list(simulated_alone(cluster, step, limit=False))
    # The stage with the largest peak decides.
    most = max(timeline.peak.nbytes if timeline.peak else 0 for timeline in stages)
    reserved = max(max(timeline.reserved.values(), default=most) for timeline in stages)
    short = any(timeline.short_of_memory for timeline in stages)
    return MemoryNeed(most, reserved, cluster.gpus[0].hbm_bytes, not short, stages[0].beside)


def paged(cluster: Cluster, step: TrainingStep) -> TrainingStep:
    """Return a step with the states of a paged optimizer on the host as far as the GPU lacks memory; other steps
    unchanged.
    """
    places = groups_of(step, cluster.world_size).unlike_places

    def reserved(tried: TrainingStep) -> list[int]:
        """Return the peak of the memory that a rank of each pipeline stage reserves [B]."""
        nbytes = [
            max(timeline.reserved.values(), default=0) for timeline in simulated_alone(cluster, tried, limit=False)
        ]
        return [max(nbytes[at : at + places]) for at in range(0, len(nbytes), places)]

    # A rank alone has exact times.
    return with_pages(cluster, step, reserved, 1.0 if cluster.world_size == 1 else _ROUGHLY)


def check_fits(cluster: Cluster, step: TrainingStep) -> None:
    """Raise OutOfMemoryError if a training step on many ranks surely does not fit in memory."""
    # Small steps and real training are simulated anyway, and then fail exactly.
    few = cluster.world_size <= _FEW_RANKS or step.lesson is not None
    if few or least_need(cluster, step) <= _SURELY * cluster.gpus[0].hbm_bytes:
        return
    for _ in simulated_alone(cluster, paged(cluster, step), limit=True):
        pass


def simulated_alone(cluster: Cluster, step: TrainingStep, *, limit: bool) -> Iterator[Timeline]:
    """Yield, for each list of operations, the timeline of its lowest rank, simulated alone to find its memory.

    The rank keeps its own GPU, speed and events. Raise OutOfMemoryError if `limit` and the rank exceeds its memory.
    """
    list_of = groups_of(step, cluster.world_size).list_of
    for number, program in enumerate(ranks_alone(cluster, step)):
        rank = list_of.index(number)
        try:
            yield play("auto", program, cluster.part([rank]), limit_memory=limit, allocator=step.keys.allocator)
        except OutOfMemoryError as error:
            # The only rank of the part is rank 0; estimated times give an approximate moment.
            message = error.args[0].replace(f"rank {error.rank} ", f"rank {rank} ", 1)
            error.rank = rank
            error.args = (message.replace("memory at ", "memory at about ") if error.time else message,)
            raise
        except DeadlockError as error:
            waiting = {who.replace("rank 0 ", f"rank {rank} ", 1): what for who, what in error.waiting.items()}
            raise DeadlockError(error.time, waiting) from error


def checked_need(cluster: Cluster, step: TrainingStep, jitter: Jitter = STEADY) -> MemoryNeed:
    """Return a training step's memory need, with `fits` equal to the result of a simulation.

    Steps on few ranks are simulated. On many ranks, reserved bytes must leave room for the error in estimated times.
    """
    step = paged(cluster, step)
    rough = estimate_memory(cluster, step)
    # The estimate decides if it finds too little memory, or if simulating many ranks would take too long.
    if not rough.fits or cluster.world_size > _FEW_RANKS:
        return rough.unless_larger(_ROUGHLY)
    return _played(cluster, _planned(cluster, step, jitter), rough, jitter)


def advised_need(cluster: Cluster, step: TrainingStep, jitter: Jitter = STEADY) -> MemoryNeed:
    """Return the memory need of a changed step before the change is advised, also on many ranks with `fits` equal to
    the result of a simulation.

    All ranks are simulated, as a run of the changed step does. If this would take long, reserved bytes of the estimate
    must leave a tenth of the memory free.
    """
    step = paged(cluster, step)
    rough = estimate_memory(cluster, step)
    if not rough.fits:
        return rough
    planned = _planned(cluster, step, jitter)
    if cluster.world_size > _FEW_RANKS and seconds_to_play(planned.program, jitter) > _SOON:
        return rough.unless_larger(APART)
    return _played(cluster, planned, rough, jitter)


def _planned(cluster: Cluster, step: TrainingStep, jitter: Jitter) -> StepPlan:
    return plan_step(cluster, step, steady=jitter.compute == 0 and jitter.latency == 0)


def _played(cluster: Cluster, planned: StepPlan, rough: MemoryNeed, jitter: Jitter) -> MemoryNeed:
    """Return the memory need that a simulation of all ranks finds, starting from the estimate `rough`."""
    keep = first_of_stages(planned) or (0,)
    try:
        timeline = play(
            "auto", planned.program, cluster, jitter=jitter, limit_memory=True, allocator=planned.step.keys.allocator,
            keep=keep,
        )  # fmt: skip
    except OutOfMemoryError as error:
        reserved = max(rough.reserved, error.needed - error.beside)
        return replace(rough, reserved=reserved, fits=False, whole=True)
    most = timeline.peak.nbytes if timeline.peak else rough.nbytes
    return replace(rough, nbytes=most, reserved=max(timeline.reserved.values(), default=most), whole=True)


def least_need(cluster: Cluster, step: TrainingStep) -> int:
    """Return a lower bound [B] on the memory of a step's process, on its fullest rank; cheap for any number of
    micro-batches.

    Raises
    ------
    ValueError
        The model, its ranks or the GPU do not allow such a step.
    """
    if step.optimizer.paged:
        # All states may leave the GPU.
        step = replace(step, paged_out=(sys.maxsize,) * step.parallelism.pp)
    beside = process_memory(cluster.gpus[0], step, groups_of(step, cluster.world_size)).nbytes
    stages = memory_of_notes(few_micro_batches(cluster, step, cluster.world_size))
    return beside + max(stage.nbytes for stage in stages)


def passes_of(step: TrainingStep) -> int:
    """Return the number of forward and backward passes over layers, embedding and head in a training step."""
    return 2 * step.accumulation * (step.model.num_layers + 2)


def fullest_end(cluster: Cluster, step: TrainingStep) -> Literal["first", "last"] | None:
    """Return the end of the pipeline whose stage needs most memory; None if another stage does, or for a schedule that
    gives both ends to one rank.
    """
    if not step.parallelism.apart:
        return None
    stages = memory_of_notes(few_micro_batches(cluster, step, cluster.world_size))
    fullest = max(stages, key=lambda stage: stage.nbytes).stage
    return "first" if fullest == 0 else "last" if fullest == step.parallelism.pp - 1 else None
