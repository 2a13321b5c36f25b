"""Forward and backward passes of a unit: kernels and memory, the same in every sharding strategy.

Rule: a strategy says what is communicated and when; what a pass computes and holds is said here, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.dtypes import find
from simulator.training.score import Score
from simulator.training.spec import TrainingStep
from simulator.training.states import shard
from simulator.training.work import Unit


@dataclass(slots=True)
class Passes:
    """One rank's passes.

    Attributes
    ----------
    score : Score
    step : TrainingStep
    units : tuple of Unit
        Embedding, layers, head.
    ranks : int
        Over which gradients are sharded.
    gradients : list of str
        Allocations that live until the optimizer has stepped.
    """

    score: Score
    step: TrainingStep
    units: tuple[Unit, ...]
    ranks: int
    gradients: list[str] = field(default_factory=list)

    @property
    def gradient_itemsize(self) -> int:
        """Bytes of a gradient as it is accumulated [B]."""
        return find(self.step.precision.grads).itemsize

    def unit(self, name: str) -> Unit:
        """The unit of a name."""
        return next(unit for unit in self.units if unit.name == name)

    def forward(self, micro: int, unit: Unit, after: list[str | None]) -> str:
        """A forward pass; what it keeps lives until the backward pass has used it."""
        if unit.kept:
            self.score.allocate(f"{unit.name} activations {micro}", unit.kept, "activations", after=after)
        return self.score.compute(f"{unit.name} forward {micro}", unit.forward, "forward", after)

    def backward(self, micro: int, unit: Unit, after: list[str | None]) -> str:
        """A backward pass: what was not kept is made again first, and gradients appear."""
        for made in unit.makes:
            nbytes = self.unit(made).recomputed
            self.score.allocate(f"{made} recomputed {micro}", nbytes, "recomputed activations", after=after)
        if unit.recompute is not None:
            self.score.compute(f"{unit.name} recompute {micro}", unit.recompute, "recompute", after)
        whole = self.step.sharding.strategy in ("ddp", "zero1")
        if not whole or micro == 0:
            # Whole gradients are kept from the first micro-batch on; sharded strategies hold a unit's for a moment.
            name = f"{unit.name} gradients" if whole else f"{unit.name} gradients {micro}"
            # What lives for a moment has the dtype it is computed in; what is summed up has its own.
            itemsize = self.gradient_itemsize if whole else find(self.step.precision.params).itemsize
            self.score.allocate(name, unit.elements * itemsize, "gradients", after=after)
            if whole:
                self.gradients.append(name)
        done = self.score.compute(f"{unit.name} backward {micro}", unit.backward, "backward", after)
        for held, nbytes in (("activations", unit.kept), ("recomputed", unit.recomputed)):
            if nbytes:
                self.score.free(f"{unit.name} {held} {micro}")
        return done

    def keep_gradient_shard(self, unit: Unit, after: str) -> None:
        """This rank's part of a unit's summed gradients, from the first micro-batch to the optimizer."""
        name = f"{unit.name} gradient shard"
        if name not in self.gradients:
            nbytes = shard(unit.elements, self.ranks) * self.gradient_itemsize
            self.score.allocate(name, nbytes, "gradients", stream="communication", after=[after])
            self.gradients.append(name)
