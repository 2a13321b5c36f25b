"""What a file of a pipeline schedule declares: which stages a rank holds, and the order of its passes.

Rule: orders are data. Whoever plays them learns here what follows what, never when.

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
    """What a pass through a stage does."""

    # That of Enum hashes the name, in Python; there is one object of each, and keys of dictionaries hold millions.
    __hash__ = object.__hash__

    FORWARD = "F"
    BACKWARD = "B"  # both gradients, of the input and of the weights
    INPUT_GRADIENT = "I"  # what the stage before waits for
    WEIGHT_GRADIENT = "W"  # what nobody waits for before the update


class Placement(Enum):
    """Which stages lie on which rank."""

    LOOP = "stage s on rank s mod p"
    V = "rank r has stages r and 2 p - 1 - r"
    BOTH_WAYS = "rank r has stage r of one copy of the model and stage p - 1 - r of another"


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch through one stage.

    Attributes
    ----------
    work : Work
    stage : int
        From 0. With `Placement.BOTH_WAYS` stages from p on are those of the second copy, which runs from rank p - 1 to
        rank 0.
    micro : int
        From 0; each copy of the model counts its own.
    """

    work: Work
    stage: int
    micro: int

    def __str__(self) -> str:
        return f"{self.work.value}{self.stage}.{self.micro}"


# What a rank does at a time: one pass, or a forward and a backward pass whose kernels take turns.
Slot = tuple[Pass, ...]
Order = tuple[tuple[Slot, ...], ...]


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """How large a pipeline is.

    Attributes
    ----------
    ranks : int
        p.
    micro_batches : int
        m, of a step; of both copies together where there are two.
    chunks : int
        v, stages of a rank.
    group : int
        Micro-batches that pass through a chunk before the next one has its turn; only interleaving asks.
    """

    ranks: int
    micro_batches: int
    chunks: int = 1
    group: int = 1

    @property
    def stages(self) -> int:
        """All of them, of both copies where there are two."""
        return self.ranks * self.chunks


def never(_: PipelineShape) -> bool:
    """Return False."""
    return False


def always(_: PipelineShape) -> bool:
    """Return True."""
    return True


@dataclass(frozen=True, slots=True)
class PassTimes:
    """How long passes through one stage take [s].

    Attributes
    ----------
    forward, backward, weights : float
        `backward` is the whole of it, `weights` the part of it for weights' gradients.
    pair : float
        A forward and a backward pass whose kernels take turns.
    """

    forward: float
    backward: float
    weights: float
    pair: float


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """One way to send micro-batches through a pipeline.

    Attributes
    ----------
    name : str
        Its name in scenario files.
    placement : Placement
    chunks : int or None
        Stages a rank; None where the user chooses.
    grouped : bool
        Whether it listens to `PipelineShape.group`.
    pairs : bool
        Whether a rank may have two passes at once.
    splits_backward : bool
        Whether gradients of inputs and of weights are passes of their own.
    order : function (shape) -> Order
        By rank what it does, one thing after the other.
    refusal : function (shape) -> str
        Why it cannot be: what was given, what is allowed; empty where it can.
    bubble : function (shape, times) -> float, or None
        How much longer than its own work a step takes, where stages are alike and sends take no time [s]; None where
        nobody has a closed form.
    held : function (shape, rank) -> int, or None
        Most chunks' activations that a rank holds at once; None where nobody has a closed form.
    batches_sends : function (shape) -> bool
        Return True if neighbours may receive in another order than the one in which their messages are sent. Ranks that
        wait for each send and receive in turn would wait for each other forever, so every framework posts the sends and
        receives of such an order in batches and goes on (PyTorch's ``batch_isend_irecv``; refs [3]_, [4]_ do so too).
    """

    name: str
    placement: Placement
    chunks: int | None
    splits_backward: bool
    order: Callable[[PipelineShape], Order]
    refusal: Callable[[PipelineShape], str]
    bubble: Callable[[PipelineShape, PassTimes], float] | None
    held: Callable[[PipelineShape, int], int] | None
    grouped: bool = False
    pairs: bool = False
    batches_sends: Callable[[PipelineShape], bool] = never

    def rank_of(self, stage: int, ranks: int) -> int:
        """The rank that a stage lies on."""
        return _rank_of(self.placement, stage, ranks)

    def stages_of(self, rank: int, shape: PipelineShape) -> tuple[int, ...]:
        """Stages of a rank, rising."""
        return _stages_by_rank(self.placement, shape.stages, shape.ranks)[rank]


def _rank_of(placement: Placement, stage: int, ranks: int) -> int:
    if placement is Placement.LOOP:
        return stage % ranks
    return stage if stage < ranks else 2 * ranks - 1 - stage


@lru_cache(maxsize=64)
def _stages_by_rank(placement: Placement, stages: int, ranks: int) -> tuple[tuple[int, ...], ...]:
    every = [list[int]() for _ in range(ranks)]
    for stage in range(stages):
        every[_rank_of(placement, stage, ranks)].append(stage)
    return tuple(map(tuple, every))


def at_least_one(shape: PipelineShape) -> str:
    """What every schedule asks for."""
    if shape.micro_batches < 1:
        return f"got {shape.micro_batches} micro-batches; must be at least 1"
    return ""


SCHEDULES: Final = Catalog("simulator.step.pipelines", "SCHEDULE", PipelineSchedule, "pipeline schedule")
