"""Which stages does a pipeline's rank hold, and in which order does it run its passes? Each schedule's file says both.

An order is data: it lists passes by rank and contains no times. `pipeline.py` turns an order into operations.

References
----------
.. [1] Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019.
.. [2] Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC21,
   section 2.2.
.. [3] Qi, Wan, Huang & Lin, "Zero bubble pipeline parallelism", ICLR 2024, arXiv:2401.10241.
.. [4] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1, and github.com/deepseek-ai/DualPipe, whose
   ranks collect sends and receives and post them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from simulator.basics.catalog import Catalog


class Work(Enum):
    """Kind of a pass through a pipeline stage: forward, backward, input gradient or weight gradient."""

    # Enum hashes a member's name in Python code. Members are unique objects, and hashing by identity is faster in
    # dictionaries with millions of keys.
    __hash__ = object.__hash__

    FORWARD = "F"
    BACKWARD = "B"  # both gradients: input and weights
    INPUT_GRADIENT = "I"  # the preceding stage waits for it
    WEIGHT_GRADIENT = "W"  # needed only by the update


class Placement(Enum):
    """Assignment of pipeline stages to ranks: in a loop, in a V, or from both ends with two model copies."""

    LOOP = "stage s on rank s mod p"
    V = "rank r has stages r and 2 p - 1 - r"
    BOTH_WAYS = "rank r has stage r of one copy of the model and stage p - 1 - r of another"


@dataclass(frozen=True, slots=True)
class Pass:
    """A micro-batch's pass (forward, backward, ...) through a pipeline stage."""

    work: Work
    # Number of the stage, from 0. With `Placement.BOTH_WAYS`, stages from p on belong to the second model copy, which
    # runs from rank p - 1 to rank 0.
    stage: int
    micro: int  # number of the micro-batch, from 0, counted separately for each model copy

    def __str__(self) -> str:
        """Return a short name: "F3.0" for the forward pass of micro-batch 0 through stage 3."""
        return f"{self.work.value}{self.stage}.{self.micro}"


# A pass, or a forward and a backward pass with interleaved kernels. An order has a sequence of slots per rank.
Slot = tuple[Pass, ...]
Order = tuple[tuple[Slot, ...], ...]


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """Size of a pipeline.

    Attributes
    ----------
    ranks : int
        Number of ranks, p.
    micro_batches : int
        Number of micro-batches in a step, m, counting both model copies under DualPipe.
    chunks : int
        Number of stages on a rank, v.
    group : int
        Micro-batches that pass through a chunk before the next chunk's turn; used by interleaved schedules only.
    paired : bool
        Whether each forward pass after the warm-up shares its slot with a backward pass, which depends on none of the
        forward passes in later slots; used by `one_after_one` only.
    """

    ranks: int
    micro_batches: int
    chunks: int = 1
    group: int = 1
    paired: bool = False

    @property
    def stages(self) -> int:
        """Number of pipeline stages, counting both model copies under DualPipe."""
        return self.ranks * self.chunks


def never(_: PipelineShape) -> bool:
    """Return False for every pipeline shape."""
    return False


def always(_: PipelineShape) -> bool:
    """Return True for every pipeline shape."""
    return True


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Durations of the passes through a stage [s].

    Attributes
    ----------
    forward : float
        Forward pass.
    backward : float
        Whole backward pass: input gradients and weight gradients.
    weights : float
        Weight gradients.
    pair : float
        A forward and a backward pass with interleaved kernels.
    """

    forward: float
    backward: float
    weights: float
    pair: float


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """A pipeline schedule: order of passes, memory and bubble."""

    name: str  # name in scenario files
    placement: Placement
    chunks: int | None  # stages per rank; None if the user chooses
    splits_backward: bool  # whether input gradients and weight gradients are separate passes
    order: Callable[[PipelineShape], Order]  # return each rank's sequence of slots
    # Return why the schedule cannot run a pipeline of this shape, with the given and the allowed value; empty if
    # possible.
    refusal: Callable[[PipelineShape], str]
    # Return the step time minus a rank's own work, for equal stages and free sends [s]; None without a closed form.
    bubble: Callable[[PipelineShape, PassTimes], float] | None
    # Return the most chunk activations held by a rank; None without a closed form.
    held: Callable[[PipelineShape, int], int] | None
    grouped: bool = False  # whether the schedule uses `PipelineShape.group`
    pairs: bool = False  # whether a slot may contain two passes
    # Return True if neighbours may receive messages in another order than sent. Ranks that wait for each send and
    # receive in turn would deadlock, hence every framework posts the sends and receives of such an order in batches and
    # continues (PyTorch's ``batch_isend_irecv``; refs [3]_, [4]_ do the same).
    batches_sends: Callable[[PipelineShape], bool] = never

    def rank_of(self, stage: int, ranks: int) -> int:
        """Return the pipeline rank holding a stage, in a pipeline with `ranks` ranks."""
        return _rank_of(self.placement, stage, ranks)

    def stages_of(self, rank: int, shape: PipelineShape) -> tuple[int, ...]:
        """Return the numbers of the pipeline stages on a rank, ascending."""
        return _stages_by_rank(self.placement, shape.stages, shape.ranks)[rank]


def _rank_of(placement: Placement, stage: int, ranks: int) -> int:
    """Return the pipeline rank that holds a stage under a placement (loop, V or both ways)."""
    if placement is Placement.LOOP:
        return stage % ranks
    # V and BOTH_WAYS both run back from the last rank to rank 0.
    return stage if stage < ranks else 2 * ranks - 1 - stage


@lru_cache(maxsize=64)
def _stages_by_rank(placement: Placement, stages: int, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return a tuple with the ascending numbers of the pipeline stages for each rank under a placement; cached."""
    every = [list[int]() for _ in range(ranks)]
    for stage in range(stages):
        every[_rank_of(placement, stage, ranks)].append(stage)
    return tuple(map(tuple, every))


def at_least_one(shape: PipelineShape) -> str:
    """Return a sentence refusing a pipeline shape without micro-batches; empty with at least one."""
    if shape.micro_batches < 1:
        return f"got {shape.micro_batches} micro-batches; must be at least 1"
    return ""


SCHEDULES: Final = Catalog("simulator.step.pipelines", "SCHEDULE", PipelineSchedule, "pipeline schedule")
