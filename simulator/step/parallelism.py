"""How a model is cut over ranks besides data parallelism: a record, and what of it can be.

Rule: sizes and names; nothing is planned here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simulator.model.cut import ONE_PLACE, Context, Cut, ExpertCut
from simulator.step.pipelines.schedule import SCHEDULES, Placement
from simulator.step.rank_grid import ORDER, Kind, RankGrid


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Ranks of each kind of model parallelism, and how they work together.

    Attributes
    ----------
    tp, pp, cp : int
        Ranks among which matrices are cut; layers; sequences.
    sequence_parallel : bool
        Whether what lies between matrices is cut along the sequence; without effect where tp is 1.
    tp_overlap : {"none", "ring_exchange", "bulk"}
        Whether matmuls hide the exchanges of those who cut them by user buffers; with sequence_parallel.
    schedule : str
        A name of the pipelines' catalog.
    virtual_stages : int
        v, chunks of a rank, where the schedule leaves that open.
    microbatch_group : int or None
        Micro-batches that pass through a chunk before the next has its turn; None: pp.
    stages : tuple of int
        Layers of each stage; empty where they are to be as equal as can be.
    first_less, last_less : int
        Layers that the first and the last stage have less than the others, where `stages` is empty.
    ulysses : int
        Of `cp`, ranks that hand heads to each other; between groups of these keys go round, or are gathered.
    gathers_keys : bool
        Whether they are gathered.
    balanced : bool
        Whether each rank has an early and a late piece of a sequence.
    experts : ExpertCut
        How experts are spread over data-parallel ranks.
    order : tuple of kind
        Which kind varies fastest with the rank's number.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ulysses: int = 1
    gathers_keys: bool = False
    balanced: bool = True
    sequence_parallel: bool = True
    tp_overlap: Literal["none", "ring_exchange", "bulk"] = "none"
    schedule: str = "1f1b"
    virtual_stages: int = 1
    microbatch_group: int | None = None
    stages: tuple[int, ...] = ()
    first_less: int = 0
    last_less: int = 0
    experts: ExpertCut = ONE_PLACE
    order: tuple[Kind, ...] = ORDER

    def cut(self, place: int = 0) -> Cut:
        """What one rank computes of a layer; `place` is its own among those that cut sequences."""
        context = Context(
            self.ulysses, self.cp // self.ulysses, self.gathers_keys, self.balanced, place // self.ulysses
        )
        return Cut(self.tp, self.sequence_parallel and self.tp > 1, context, self.experts, self.tp_overlap)

    @property
    def size(self) -> int:
        """Ranks that compute one micro-batch together."""
        return self.tp * self.pp * self.cp

    @property
    def unlike_places(self) -> int:
        """How many ranks of a context-parallel group have work of their own."""
        return self.cp if self.cut().context.uneven else 1

    @property
    def apart(self) -> bool:
        """Whether embedding and head lie on different ranks."""
        return self.pp > 1 and SCHEDULES.find(self.schedule).placement is Placement.LOOP

    @property
    def mirrored(self) -> bool:
        """Whether a second copy of the model runs through the pipeline from its other end."""
        return self.pp > 1 and SCHEDULES.find(self.schedule).placement is Placement.BOTH_WAYS

    def holders(self, world_size: int) -> int:
        """Ranks of a cluster that hold the same part of the model."""
        return world_size // (self.tp * self.pp) * (2 if self.mirrored else 1)

    def grid(self, world_size: int) -> RankGrid:
        """The ranks of a cluster; ValueError where they cannot be spread so."""
        if world_size % self.size:
            raise ValueError(
                f"parallelism: got tp {self.tp} x pp {self.pp} x cp {self.cp} = {self.size}; must divide the "
                f"{world_size} ranks"
            )
        each, spread = world_size // self.pp, self.experts.ranks * self.experts.tensor
        if each % spread:
            raise ValueError(
                f"parallelism.ep: got {self.experts.ranks} (times etp {self.experts.tensor}); must divide the {each} "
                "ranks of a stage"
            )
        sizes: dict[Kind, int] = {"tp": self.tp, "pp": self.pp, "cp": self.cp, "dp": world_size // self.size}
        return RankGrid(sizes, self.order, self.mirrored)


ALONE: Final = Parallelism()
