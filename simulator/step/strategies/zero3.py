"""ZeRO-3, or fully sharded data parallel: every unit's parameters are gathered when it is their turn.

A unit is a layer, or a few. At most `prefetch` units are gathered ahead of the one at work; with reshard_after_forward
they are gathered again for the backward pass, from all ranks or from a smaller mesh over which they were spread
meanwhile. Gradients of a unit are reduced and scattered as soon as they are there. The root (embedding and head) stays
gathered through a micro-batch; small tensors may stay whole for good.

References
----------
.. [1] Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.
.. [2] Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from simulator.basics.dtypes import find
from simulator.records.operation import Act, Exchange
from simulator.step.passes import Passes
from simulator.step.process_groups import Scope
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import Sharding
from simulator.step.stages import Chunk
from simulator.step.states import shard
from simulator.step.strategies.strategy import Gathering, Sending, State, Strategy, Updater
from simulator.step.units import Unit

STREAM = "communication"


def plan(builder: ProgramBuilder, passes: Passes) -> GatheredUnits:
    """All micro-batches."""
    return GatheredUnits(builder, passes)


@dataclass(slots=True)
class GatheredUnits:
    """Passes whose units are gathered first.

    Attributes
    ----------
    builder : ProgramBuilder
    passes : Passes
    room : str or None
        What the next gather waits for, so that no more is gathered than the unit at work and `prefetch` ahead.
    """

    builder: ProgramBuilder
    passes: Passes
    room: str | None = None
    _under_way: dict[tuple[int, int], _Micro] = field(default_factory=dict)
    _held: dict[int, dict[str, str | None]] = field(default_factory=dict)

    def forward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """A micro-batch forward through a chunk."""
        made = _Micro(self, chunk, micro, self._held.setdefault(chunk.stage, {}))
        self._under_way[chunk.stage, micro] = made
        return made.forward(after)

    def backward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """A micro-batch backward through a chunk."""
        self._under_way.pop((chunk.stage, micro)).backward(after, "whole")
        return self.passes.handed_back

    def input_gradient(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """The half of it that the stage before waits for; the other half needs no parameters."""
        return self._under_way[chunk.stage, micro].backward(after, "input")

    def weight_gradient(self, micro: int, chunk: Chunk) -> None:
        """The other half."""
        self._under_way.pop((chunk.stage, micro)).weights()


class _Micro:
    """One micro-batch in one chunk: what has been gathered, and what waits for what.

    In a pipeline whose parameters are not freed between passes they are gathered once a step, and `ready` is shared.
    """

    def __init__(self, owner: GatheredUnits, chunk: Chunk, micro: int, held: dict[str, str | None]) -> None:
        self.owner = owner
        self.builder = owner.builder
        self.passes = owner.passes
        self.chunk = chunk
        self.micro = micro
        self.sharding = self.passes.step.sharding
        self.root = tuple(unit for unit in chunk.units if not unit.is_layer)
        self.blocks = _blocks(chunk.units, self.sharding)
        self.itemsize = find(self.passes.step.precision.params).itemsize
        self.last = chunk.ends(micro)
        self.sums = self.last or self.sharding.gradient_sync != "last"
        in_pipeline = self.passes.step.parallelism.pp > 1
        self.holds = in_pipeline and self.sharding.reshard_after_forward is False
        self.gathers = not self.holds or not held
        self.ready = held if self.holds else {}
        # Of what is held a step long the first micro-batch's number is in the name.
        self.number = 0 if self.holds else micro

    def forward(self, after: list[str | None]) -> str:
        """Note the forward pass; names what it ends with."""
        ahead = self.sharding.prefetch + 1
        self._gather_root()
        for i in range(min(ahead, len(self.blocks))):
            self._gather("forward", i)
        done, waiting = "", after
        if self.chunk.units[0] in self.root:
            done = self.passes.forward(self.micro, self.chunk.units[0], [*waiting, self.ready["root"]])
            waiting = []
        for i, block in enumerate(self.blocks):
            for unit in block:
                done = self.passes.forward(self.micro, unit, [*waiting, self.ready[f"forward {i}"]])
                waiting = []
            # The last block stays for its backward pass. Those before it come back when they have gone, as FSDP2's
            # unshard waits for the unit's own reshard (recalled): else a block would be there twice, or be gathered
            # from a mesh that does not have it yet.
            if i < len(self.blocks) - 1 and not self.holds:
                self.owner.room = self._reshard(i, done) if self.sharding.reshard_after_forward else done
            if i + ahead < len(self.blocks):
                self._gather("forward", i + ahead)
        if self.chunk.units[-1] in self.root:
            done = self.passes.forward(self.micro, self.chunk.units[-1], [])
        return done

    def backward(self, after: list[str | None], part: Literal["whole", "input"]) -> str:
        """Note the backward pass, or its first half; names what it ends with."""
        done, waiting = "", after
        if self.chunk.units[-1] in self.root:
            done, waiting = self._pass_back(self.chunk.units[-1], waiting, part), []
        prefetch, last = self.sharding.prefetch, len(self.blocks) - 1
        order = list(range(last, -1, -1))
        still_there = {last} if self.sharding.reshard_after_forward else set(order)
        following = [i for i in order if i not in still_there]
        for i in following[:prefetch]:
            self._gather("backward", i)
        following = following[prefetch:]
        for i in order:
            phase = "forward" if i in still_there else "backward"
            for unit in reversed(self.blocks[i]):
                done, waiting = self._pass_back(unit, [*waiting, self.ready[f"{phase} {i}"]], part), []
            self.owner.room = self._free(phase, i, done)
            if i not in still_there and self.sharding.mesh:
                self._free("between", i, done)
            if following:
                self._gather("backward", following.pop(0))
            if part == "whole":
                self._reduce(self.blocks[i], done)
        if self.chunk.units[0] in self.root:
            done = self._pass_back(self.chunk.units[0], waiting, part)
        if self.root:
            if self.last or not self.holds:
                self.owner.room = self.builder.free(self._root_parameters, after=[done])
            if part == "whole":
                self._reduce(self.root, done)
        return done

    def weights(self) -> None:
        """Note the second half of the backward pass."""
        done = ""
        for block in ([self.chunk.units[-1:]] if self.chunk.units[-1] in self.root else []) + self.blocks[::-1]:
            for unit in reversed(block):
                done = self.passes.weight_gradient(self.micro, unit, self.chunk, communicates=self.sums)
            if block[0] not in self.root:
                self._reduce(block, done)
        if self.chunk.units[0] in self.root:
            done = self.passes.weight_gradient(self.micro, self.chunk.units[0], self.chunk, communicates=self.sums)
        if self.root:
            self._reduce(self.root, done)

    def _pass_back(self, unit: Unit, after: list[str | None], part: Literal["whole", "input"]) -> str:
        if part == "input":
            return self.passes.input_gradient(self.micro, unit, after)
        return self.passes.backward(self.micro, unit, self.chunk, after, communicates=self.sums)

    @property
    def _root_parameters(self) -> str:
        return f"{_name(self.root)} parameters {self.number}"

    def _gather_root(self) -> None:
        if self.root and self.gathers:
            root = _gathered(self.root)
            self.builder.allocate(
                self._root_parameters, root * self.itemsize, "gathered", stream=STREAM, after=[self.owner.room]
            )
            name = f"gather {_name(self.root)} {self.micro}"
            self.ready["root"] = self._all_gather(name, self.root, "shard")

    def _gather(self, phase: str, i: int) -> None:
        """Bring a block together for its "forward" or its "backward" pass, once `room` has been made for it."""
        if not self.gathers:
            return
        block = self.blocks[i]
        name = f"{_name(block)} parameters {phase} {self.number}"
        self.builder.allocate(
            name, _gathered(block) * self.itemsize, "gathered", stream=STREAM, after=[self.owner.room]
        )
        scope: Scope = "mesh" if phase == "backward" and self.sharding.mesh else _shard(block)
        gather = f"gather {_name(block)} {phase} {self.micro}"
        self.ready[f"{phase} {i}"] = self._all_gather(gather, block, scope) or name
        if phase == "backward" and self.passes.step.framework.gathers_again and block[0].recompute is not None:
            self._all_gather(f"gather {_name(block)} again {self.micro}", block, scope)

    def _all_gather(self, name: str, units: Sequence[Unit], scope: Scope) -> str | None:
        dtype, act = self.passes.step.precision.params, self._act(Exchange.ALL_GATHER, units)
        tensors = sum(unit.tensors for unit in units)
        return self.builder.communicate(
            name, "all_gather", _gathered(units), dtype, scope=scope, act=act, tensors=tensors
        )

    def _act(self, effect: Exchange, units: Sequence[Unit]) -> Act[Exchange]:
        return Act(effect, tuple(unit.name for unit in units), self.micro)

    def _reshard(self, i: int, done: str) -> str:
        """Free a block after its forward pass, but for this rank's part of the mesh."""
        if self.sharding.mesh:
            nbytes = shard(_gathered(self.blocks[i]), self.sharding.mesh) * self.itemsize
            self.builder.allocate(f"{_name(self.blocks[i])} parameters between {self.micro}", nbytes, "gathered")
        return self._free("forward", i, done)

    def _free(self, phase: str, i: int, done: str) -> str:
        if self.holds and not self.last:
            return done
        return self.builder.free(f"{_name(self.blocks[i])} parameters {phase} {self.number}", after=[done])

    def _sum_copies(self, units: Sequence[Unit], scattered: str) -> str | None:
        """With several copies of the states, add up this rank's part over them.

        Returns the operation after which that is done; None where a later micro-batch does it.
        """
        # Experts that are spread over ranks have one copy over all that have the same.
        if not self.builder.communicator.groups.hybrid or units[0].spread:
            return scattered
        if self.sharding.gradient_sync == "shard" and not self.last:
            return None
        part = shard(_all(units), self.passes.ranks_of(units[0]))
        name = f"sum {_name(units)} over copies {self.micro}"
        reduce = self.passes.step.precision.reduce
        act = self._act(Exchange.SUM_COPIES, units)
        return self.builder.communicate(name, "all_reduce", part, reduce, [scattered], scope="replicate", act=act)

    def _reduce(self, units: Sequence[Unit], done: str) -> None:
        """Reduce and scatter a block's gradients; what is left is this rank's part."""
        if not self.sums:
            return
        name, dtype = f"scatter {_name(units)} {self.micro}", self.passes.step.precision.reduce
        buffer = self.passes.pack(name, units, self.micro, copies=True)
        act = self._act(Exchange.REDUCE_SCATTER, units)
        scope = _shard(units)
        tensors = sum(unit.tensors for unit in units)
        reduced = self.builder.communicate(name, "reduce_scatter", _all(units), dtype, [done], scope, act, tensors)
        summed = self._sum_copies(units, reduced or done)
        self.passes.unpack(buffer, units, self.micro, reduced or done, summed)


def _blocks(units: tuple[Unit, ...], sharding: Sharding) -> list[tuple[Unit, ...]]:
    """Layers that are gathered and freed together; the last block may be smaller."""
    layers, size = tuple(unit for unit in units if unit.is_layer), sharding.layers_per_unit
    if any(unit.spread for unit in layers):
        # A layer's experts are gathered among other ranks than the rest of it.
        return [(unit,) for unit in layers]
    return [layers[i : i + size] for i in range(0, len(layers), size)]


def _shard(units: Sequence[Unit]) -> Scope:
    """Among whom units are sharded."""
    return "expert data" if units[0].spread else "shard"


def _name(units: Sequence[Unit]) -> str:
    """layer 3, or layers 3-5."""
    first, last = units[0].name, units[-1].name
    if first == "embedding" and last == "head":
        return "root"
    return first if first == last else f"layers {first.split()[-1]}-{last.split()[-1]}"


def _all(units: Sequence[Unit]) -> int:
    return sum(unit.elements for unit in units)


def _gathered(units: Sequence[Unit]) -> int:
    """Elements that have to be brought together: all but those that are always there."""
    return sum(unit.elements - unit.resident for unit in units)


def _volume(units: tuple[Unit, ...], sharding: Sharding, accumulation: int, ranks: int) -> int:
    """The last block is still there for its backward pass, and the root stays gathered through a micro-batch."""
    forward = _gathered(units)
    again = sum(_gathered(block) for block in _blocks(units, sharding)[:-1]) if sharding.reshard_after_forward else 0
    # Over a mesh of m ranks, each of the n / m groups sends m - 1 times what it gathers.
    mesh = sharding.mesh or ranks
    backward = ranks // mesh * (mesh - 1) * again
    scattering = 1 if sharding.gradient_sync == "last" else accumulation
    kept = sum(unit.resident for unit in units)
    return accumulation * ((ranks - 1) * forward + backward) + (ranks - 1) * (scattering * _all(units) + kept)


STRATEGY = Strategy(
    name="zero3",
    shards=frozenset(State),
    updater=Updater.OWNERS,
    gathering=Gathering.BEFORE_USE,
    sending=Sending.EVERY,
    options=frozenset(
        {"reshard_after_forward", "prefetch", "shard_size", "layers_per_unit", "keep_below", "gradient_sync"}
    ),
    operations=("all_reduce", "reduce_scatter", "all_gather"),
    volume=_volume,
    plan=plan,
)
