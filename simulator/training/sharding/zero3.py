"""ZeRO-3, or fully sharded data parallel: every unit's parameters are gathered when it is their turn.

Like a library with one copy spread over all desks: a chapter is brought together for reading, and taken apart after. At
most `prefetch` units are gathered ahead of the one at work; with reshard_after_forward they are gathered again for the
backward pass. Gradients of a unit are reduced and scattered as soon as they are there. The root (embedding and head)
stays gathered through a micro-batch.

References
----------
.. [1] Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.
.. [2] Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023.
"""

from __future__ import annotations

from simulator.dtypes import find
from simulator.training.passes import Passes
from simulator.training.score import Score
from simulator.training.states import shard
from simulator.training.work import Unit

STREAM = "communication"


def plan(score: Score, passes: Passes) -> None:
    """Note all micro-batches."""
    for micro in range(passes.step.accumulation):
        _Micro(score, passes, micro).note()


class _Micro:
    """One micro-batch: what has been gathered, and what waits for what."""

    def __init__(self, score: Score, passes: Passes, micro: int) -> None:
        self.score = score
        self.passes = passes
        self.micro = micro
        self.layers = passes.units[1:-1]
        self.itemsize = find(passes.step.precision.params).itemsize
        self.ready: dict[str, str | None] = {}
        self.freed: list[str | None] = []

    def note(self) -> None:
        sharding = self.passes.step.sharding
        self._gather_root()
        self.freed = [None] * (sharding.prefetch + 1)
        ahead = sharding.prefetch + 1
        for i in range(min(ahead, len(self.layers))):
            self._gather("forward", i)
        self.passes.forward(self.micro, self.passes.units[0], [self.ready["root"]])
        for i, unit in enumerate(self.layers):
            done = self.passes.forward(self.micro, unit, [self.ready[f"forward {i}"]])
            last = i == len(self.layers) - 1
            if sharding.reshard_after_forward and not last:
                self.freed.append(self._free("forward", i, done))
            else:
                self.freed.append(done)
            if i + ahead < len(self.layers):
                self._gather("forward", i + ahead)
        self.passes.forward(self.micro, self.passes.units[-1], [])
        self._backward()

    def _backward(self) -> None:
        sharding = self.passes.step.sharding
        last = len(self.layers) - 1
        done = self.passes.backward(self.micro, self.passes.units[-1], [])
        resharded = sharding.reshard_after_forward
        self.freed = [None] * (sharding.prefetch + 1)
        order = list(range(last, -1, -1))
        # The last layer is still there from the forward pass.
        held = {last} if resharded else set(order)
        waiting = [i for i in order if i not in held]
        for i in waiting[: sharding.prefetch]:
            self._gather("backward", i)
        following = waiting[sharding.prefetch :]
        for i in order:
            key = "forward" if i in held else "backward"
            done = self.passes.backward(self.micro, self.layers[i], [self.ready[f"{key} {i}"]])
            self.freed.append(self._free(key, i, done))
            if following:
                self._gather("backward", following.pop(0))
            self._reduce(self.layers[i], done)
        done = self.passes.backward(self.micro, self.passes.units[0], [])
        self.score.free(f"root parameters {self.micro}", after=[done])
        self._reduce(self.passes.units[0], done)
        self._reduce(self.passes.units[-1], done)

    def _gather_root(self) -> None:
        root = self.passes.units[0].elements + self.passes.units[-1].elements
        self.score.allocate(f"root parameters {self.micro}", root * self.itemsize, "gathered", stream=STREAM)
        self.ready["root"] = self._all_gather(f"gather root {self.micro}", root)

    def _gather(self, way: str, i: int) -> None:
        """Bring a layer together, after the one that must have made room for it."""
        unit = self.layers[i]
        room = self.freed[-(self.passes.step.sharding.prefetch + 1)]
        name = f"{unit.name} parameters {way} {self.micro}"
        self.score.allocate(name, unit.elements * self.itemsize, "gathered", stream=STREAM, after=[room])
        self.ready[f"{way} {i}"] = self._all_gather(f"gather {unit.name} {way} {self.micro}", unit.elements) or name

    def _all_gather(self, name: str, elements: int) -> str | None:
        return self.score.communicate(name, "all_gather", elements, self.passes.step.precision.params, scope="shard")

    def _free(self, way: str, i: int, done: str) -> str:
        return self.score.free(f"{self.layers[i].name} parameters {way} {self.micro}", after=[done])

    def _sum_copies(self, unit: Unit, scattered: str) -> None:
        """With several copies of the states, add up this rank's part over them."""
        part = shard(unit.elements, self.passes.ranks)
        name = f"sum {unit.name} over copies {self.micro}"
        reduce = self.passes.step.precision.reduce
        self.score.communicate(name, "all_reduce", part, reduce, after=[scattered], scope="replicate")

    def _reduce(self, unit: Unit, done: str) -> None:
        """Reduce and scatter a unit's gradients; what is left is this rank's part."""
        gradients = f"{unit.name} gradients {self.micro}"
        reduced = self.score.communicate(
            f"scatter {unit.name} {self.micro}",
            "reduce_scatter",
            unit.elements,
            self.passes.step.precision.reduce,
            after=[done],
            scope="shard",
        )
        self._sum_copies(unit, reduced or done)
        self.passes.keep_gradient_shard(unit, reduced or done)
        self.score.free(gradients, stream=STREAM, after=[reduced or done])
