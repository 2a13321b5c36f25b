"""How is a model partitioned over ranks besides data parallelism? A record of sizes and names, without planning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simulator.model.expert_partition import ExpertPartition
from simulator.model.partition import ONE_PLACE, Context, ModelPartition
from simulator.step.pipelines.schedule import SCHEDULES, Placement
from simulator.step.rank_grid import ORDER, Kind, RankGrid


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes and options of model parallelism.

    Attributes
    ----------
    tp, pp, cp : int
        Ranks that partition matrices, layers and sequences.
    tp_overlap : {"none", "ring_exchange", "bulk"}
        Overlap of tensor-parallel exchanges with matmuls through user buffers; requires `sequence_parallel`.
    first_less, last_less : int
        Layers that the first and the last stage have less, if `stages` is empty.
    deferred_head_gradients : int or "all"
        Micro-batches whose weight gradient of the head is computed after the rank's last backward pass.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ulysses: int = 1  # context-parallel ranks that exchange heads; groups of these rotate or gather keys
    gathers_keys: bool = False  # whether keys are gathered rather than rotated
    balanced: bool = True  # whether each rank has an early and a late piece of a sequence
    # Whether activations between matrices are partitioned along the sequence; without effect if tp is 1
    sequence_parallel: bool = True
    tp_overlap: Literal["none", "ring_exchange", "bulk"] = "none"
    schedule: str = "1f1b"  # name in the catalog of pipeline schedules
    virtual_stages: int = 1  # chunks per rank, v, for schedules without a fixed number
    # Micro-batches that pass through a chunk before the next chunk's turn; None for pp
    microbatch_group: int | None = None
    stages: tuple[int, ...] = ()  # layers of each stage; empty for an even distribution
    first_less: int = 0
    last_less: int = 0
    deferred_head_gradients: int | Literal["all"] = 0
    experts: ExpertPartition = ONE_PLACE  # partition of experts over ranks
    order: tuple[Kind, ...] = ORDER  # kinds, from the fastest varying with the rank's number to the slowest

    def cut(self, place: int = 0) -> ModelPartition:
        """Return the partition of a layer for the rank at index `place` among the context-parallel ranks."""
        context = Context(
            self.ulysses, self.cp // self.ulysses, self.gathers_keys, self.balanced, place // self.ulysses
        )
        return ModelPartition(self.tp, self.sequence_parallel and self.tp > 1, context, self.experts, self.tp_overlap)

    @property
    def size(self) -> int:
        """Number of ranks that compute a micro-batch together."""
        return self.tp * self.pp * self.cp

    @property
    def unlike_places(self) -> int:
        """Number of context-parallel ranks with unequal work: all under unbalanced causal attention, otherwise 1."""
        # Unbalanced causal attention gives later pieces of a sequence more work.
        return self.cp if self.cut().context.uneven else 1

    @property
    def apart(self) -> bool:
        """True if embedding and head lie on different ranks."""
        # In a V, and with two copies, the first and the last stage share a rank.
        return self.pp > 1 and SCHEDULES.find(self.schedule).placement is Placement.LOOP

    @property
    def mirrored(self) -> bool:
        """True if a second model copy runs from the other end of the pipeline (DualPipe)."""
        return self.pp > 1 and SCHEDULES.find(self.schedule).placement is Placement.BOTH_WAYS

    def holders(self, world_size: int) -> int:
        """Return the number of ranks, among `world_size`, holding the same model part."""
        return world_size // (self.tp * self.pp) * (2 if self.mirrored else 1)

    def grid(self, world_size: int) -> RankGrid:
        """Return the ranks of a cluster as a grid; raise ValueError if the sizes do not divide the ranks."""
        if world_size % self.size:
            raise ValueError(
                f"parallelism: got tp {self.tp} x pp {self.pp} x cp {self.cp} = {self.size}; must divide the "
                f"{world_size} ranks"
            )
        # Experts are partitioned over a stage's ranks, across data, context and tensor parallelism.
        each, spread = world_size // self.pp, self.experts.ranks * self.experts.tensor
        if each % spread:
            raise ValueError(
                f"parallelism.ep: got {self.experts.ranks} (times etp {self.experts.tensor}); must divide the {each} "
                "ranks of a stage"
            )
        sizes: dict[Kind, int] = {"tp": self.tp, "pp": self.pp, "cp": self.cp, "dp": world_size // self.size}
        return RankGrid(sizes, self.order, self.mirrored)


ALONE: Final = Parallelism()
