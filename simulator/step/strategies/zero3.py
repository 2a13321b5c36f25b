"""ZeRO-3, or fully sharded data parallel: every unit's parameters are gathered when it is their turn.

A unit is a layer, or a few. At most `prefetch` units are gathered ahead of the one at work; with reshard_after_forward
they are gathered again for the backward pass, from all ranks or from a smaller mesh over which they were spread
meanwhile. Gradients of a unit are reduced and scattered as soon as they are there. The root (embedding and head) stays
gathered from a forward pass to the end of the next backward pass; small tensors may stay whole for good. A unit has one
storage: micro-batches that are in flight in a pipeline share it.

References
----------
.. [1] Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.
.. [2] Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from simulator.basics.dtypes import find
from simulator.records.operation import Act, Exchange
from simulator.step.passes import Passes
from simulator.step.pipelines.schedule import Pass, Work
from simulator.step.process_groups import Scope
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import Gathering, Sending, Sharding, State, Updater
from simulator.step.stages import Chunk
from simulator.step.states import shard
from simulator.step.strategies.strategy import Strategy
from simulator.step.units import Unit

STREAM = "communication"


def plan(builder: ProgramBuilder, passes: Passes) -> GatheredUnits:
    """Return the notes of a rank's passes, each of which gathers the units that are not gathered yet."""
    return GatheredUnits(builder, passes, gathered_before(passes))


@dataclass(frozen=True, slots=True)
class Gathered:
    """Which parameters of a chunk are gathered when a pass begins; each unit has one storage, as in FSDP2 [2]_.

    Each attribute names the pass that gathered them: its phase ("forward" or "backward") and its micro-batch; None if
    they are not gathered.

    Attributes
    ----------
    root : tuple of (str, int), optional
        Embedding or head. They stay from the pass that gathers them to the end of the next backward pass.
    blocks : tuple of (str, int), optional
        All layers, in a pipeline whose parameters are not freed between passes.
    parts : tuple of (str, int), optional
        Parts of all layers on a smaller mesh, which a forward pass leaves there and a backward pass frees.
    """

    root: tuple[str, int] | None = None
    blocks: tuple[str, int] | None = None
    parts: tuple[str, int] | None = None

    @property
    def kind(self) -> Hashable:
        """Return what passes that gather and free the same have in common."""
        return self.root is None, self.blocks is None, self.parts is None


def gathered_before(passes: Passes) -> Mapping[Pass, Gathered]:
    """Return what is gathered when each pass of a rank begins, by the order of the passes.

    Examples
    --------
    Two micro-batches of 1F1B on the first of two ranks: F0 gathers the embedding, F1 finds it gathered, B0 frees it,
    and B1 has to gather it again.
    """
    sharding, in_pipeline = passes.step.sharding, passes.step.parallelism.pp > 1
    keeps = in_pipeline and sharding.reshard_after_forward is False
    chunks = {chunk.stage: chunk for chunk in passes.chunks}
    here = dict.fromkeys(chunks, Gathered())
    before = {}
    for one in passes.order:
        before[one] = there = here[one.stage]
        if one.work is Work.WEIGHT_GRADIENT:
            continue
        forward = one.work is Work.FORWARD
        own = ("forward" if forward else "backward", one.micro)
        there = Gathered(
            there.root or own, (there.blocks or own) if keeps else None, (there.parts or own) if sharding.mesh else None
        )
        stays = forward or (keeps and not chunks[one.stage].ends(one.micro))
        here[one.stage] = there if stays else Gathered()
    return before


@dataclass(slots=True)
class GatheredUnits:
    """Passes whose units are gathered first.

    Attributes
    ----------
    builder : ProgramBuilder
    passes : Passes
    before : mapping of Pass to Gathered
        What is gathered when each pass begins.
    room : str or None
        What the next gather waits for, so that no more is gathered than the unit at work and `prefetch` ahead.
    """

    builder: ProgramBuilder
    passes: Passes
    before: Mapping[Pass, Gathered]
    room: str | None = None
    _under_way: dict[tuple[int, int], _Micro] = field(default_factory=dict)

    def kind(self, one: Pass) -> Hashable:
        """Return what passes of one work and stage that do the same have in common."""
        return self.before[one].kind

    def forward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """A micro-batch forward through a chunk."""
        made = _Micro(self, chunk, micro)
        self._under_way[chunk.stage, micro] = made
        return made.forward(after)

    def backward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """A micro-batch backward through a chunk."""
        self._under_way.pop((chunk.stage, micro)).backward(after, Work.BACKWARD)
        return self.passes.handed_back

    def input_gradient(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """The half of it that the stage before waits for; the other half needs no parameters."""
        return self._under_way[chunk.stage, micro].backward(after, Work.INPUT_GRADIENT)

    def weight_gradient(self, micro: int, chunk: Chunk) -> None:
        """The other half."""
        self._under_way.pop((chunk.stage, micro)).weights()


class _Micro:
    """One micro-batch in one chunk: what has been gathered, and what waits for what."""

    def __init__(self, owner: GatheredUnits, chunk: Chunk, micro: int) -> None:
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
        # Where the backward pass follows at once the last block stays for it; in a pipeline other passes come between.
        self.keeps_last = not in_pipeline
        # Embedding and head, where the chunk has them.
        self.opening, self.closing = (unit if unit in self.root else None for unit in (chunk.units[0], chunk.units[-1]))
        if len(chunk.units) == 1:
            self.closing = None
        # By block what its passes wait for, while it is gathered.
        self.ready: dict[int, str] = {}
        # By block the allocation that it is gathered in.
        self.stored: dict[int, str] = {}

    def forward(self, after: list[str | None]) -> str:
        """Note the forward pass; names what it ends with."""
        ahead, there = self.sharding.prefetch + 1, self.owner.before[Pass(Work.FORWARD, self.chunk.stage, self.micro)]
        root = self._gather_root("forward", there)
        self._find_held(there)
        for i in range(min(ahead, len(self.blocks))):
            self._gather("forward", i, there)
        done, waiting = "", after
        if self.opening is not None:
            done, waiting = self.passes.forward(self.micro, self.opening, [*waiting, root]), []
        for i, block in enumerate(self.blocks):
            for unit in block:
                done = self.passes.forward(self.micro, unit, [*waiting, self.ready[i]])
                waiting = []
            # A block comes back when it has gone, as FSDP2's unshard waits for the unit's own reshard (recalled): else
            # it would be there twice, or be gathered from a mesh that does not have it yet.
            if not self.holds and not (self.keeps_last and i == len(self.blocks) - 1):
                self.owner.room = self._reshard(i, done, there) if self.sharding.reshard_after_forward else done
            if i + ahead < len(self.blocks):
                self._gather("forward", i + ahead, there)
        if self.closing is not None:
            done = self.passes.forward(self.micro, self.closing, [*waiting, root])
        return done

    def backward(self, after: list[str | None], work: Work) -> str:
        """Note the backward pass, or its first half; names what it ends with."""
        there = self.owner.before[Pass(work, self.chunk.stage, self.micro)]
        done, waiting, whole = "", after, work is Work.BACKWARD
        root = self._gather_root("backward", there)
        self._find_held(there)
        if self.closing is not None:
            done, waiting = self._pass_back(self.closing, [*waiting, root], work), []
        order = list(range(len(self.blocks) - 1, -1, -1))
        following = [i for i in order if i not in self.ready]
        # The block at work, if it is not there, and as many ahead of it as asked.
        ahead = self.sharding.prefetch + (not self.ready)
        for i in following[:ahead]:
            self._gather("backward", i, there)
        following = following[ahead:]
        for i in order:
            for unit in reversed(self.blocks[i]):
                done, waiting = self._pass_back(unit, [*waiting, self.ready[i]], work), []
            self.owner.room = self._free(i, done)
            if there.parts and not (self.keeps_last and i == len(self.blocks) - 1):
                self._give_back(self._part(i, there.parts), self._part_bytes(i), done)
            if following:
                self._gather("backward", following.pop(0), there)
            if whole:
                self._reduce(self.blocks[i], done)
        if self.opening is not None:
            done = self._pass_back(self.opening, [*waiting, root], work)
        if self.root:
            if self.last or not self.holds:
                stored = self._root_parameters(there.root or ("backward", self.micro))
                self.owner.room = self._give_back(stored, _gathered(self.root) * self.itemsize, done)
            if whole:
                self._reduce(self.root, done)
        return done

    def weights(self) -> None:
        """Note the second half of the backward pass."""
        done = ""
        for block in ([(self.closing,)] if self.closing is not None else []) + self.blocks[::-1]:
            for unit in reversed(block):
                done = self.passes.weight_gradient(self.micro, unit, self.chunk, communicates=self.sums)
            if block[0] not in self.root:
                self._reduce(block, done)
        if self.opening is not None:
            done = self.passes.weight_gradient(self.micro, self.opening, self.chunk, communicates=self.sums)
        if self.root:
            self._reduce(self.root, done)

    def _pass_back(self, unit: Unit, after: list[str | None], work: Work) -> str:
        if work is Work.INPUT_GRADIENT:
            return self.passes.input_gradient(self.micro, unit, after)
        return self.passes.backward(self.micro, unit, self.chunk, after, communicates=self.sums)

    def _of_root(self, by: tuple[str, int]) -> str:
        """Return what the root's allocation and gather are called, by the pass that gathers it."""
        phase, micro = by
        return str(micro) if phase == "forward" else f"backward {micro}"

    def _root_parameters(self, by: tuple[str, int]) -> str:
        return f"{_name(self.root)} parameters {self._of_root(by)}"

    def _gather_root(self, phase: str, there: Gathered) -> str | None:
        """Gather the root unless it is gathered; return what the root's passes wait for."""
        if not self.root:
            return None
        by = there.root or (phase, self.micro)
        gather = f"gather {_name(self.root)} {self._of_root(by)}"
        if there.root:
            return self._gather_of(gather, "shard")
        nbytes = _gathered(self.root) * self.itemsize
        self.builder.allocate(self._root_parameters(by), nbytes, "gathered", stream=STREAM, after=[self.owner.room])
        return self._all_gather(gather, self.root, "shard")

    def _gather_of(self, name: str, scope: Scope) -> str | None:
        """Return the name of an all-gather that an earlier pass has noted; None if the group is a single rank."""
        return name if self.builder.communicator.groups.size(scope) > 1 else None

    def _find_held(self, there: Gathered) -> None:
        """Take over the blocks that an earlier pass has gathered."""
        if there.blocks is None:
            return
        phase, micro = there.blocks
        for i, block in enumerate(self.blocks):
            self.stored[i] = f"{_name(block)} parameters {phase} {micro}"
            self.ready[i] = self._gather_of(f"gather {_name(block)} {phase} {micro}", _shard(block)) or self.stored[i]

    def _gather(self, phase: str, i: int, there: Gathered) -> None:
        """Bring a block together for its "forward" or its "backward" pass, once `room` has been made for it."""
        if i in self.ready:
            return
        block = self.blocks[i]
        self.stored[i] = f"{_name(block)} parameters {phase} {self.micro}"
        self.builder.allocate(
            self.stored[i], _gathered(block) * self.itemsize, "gathered", stream=STREAM, after=[self.owner.room]
        )
        scope: Scope = "mesh" if there.parts else _shard(block)
        gather = f"gather {_name(block)} {phase} {self.micro}"
        self.ready[i] = self._all_gather(gather, block, scope) or self.stored[i]
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

    def _part(self, i: int, by: tuple[str, int]) -> str:
        """Return the allocation of a block's part on the mesh, which a pass has left there."""
        return f"{_name(self.blocks[i])} parameters between {by[1]}"

    def _part_bytes(self, i: int) -> int:
        return shard(_gathered(self.blocks[i]), self.sharding.mesh or 1) * self.itemsize

    def _reshard(self, i: int, done: str, there: Gathered) -> str:
        """Free a block after its forward pass, but for this rank's part of the mesh."""
        if self.sharding.mesh and there.parts is None:
            self.builder.allocate(self._part(i, ("forward", self.micro)), self._part_bytes(i), "gathered")
        return self._free(i, done)

    def _free(self, i: int, done: str) -> str:
        """Free a gathered block, unless it is held to the end of the step; return what makes room for the next."""
        if self.holds and not self.last:
            return done
        del self.ready[i]
        return self._give_back(self.stored.pop(i), _gathered(self.blocks[i]) * self.itemsize, done)

    def _give_back(self, name: str, nbytes: int, done: str) -> str:
        """Free an allocation, which a pass that is not noted may have made."""
        self.builder.assume(name, nbytes, "gathered", STREAM)
        return self.builder.free(name, after=[done])

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
        self.passes.scattered = reduced
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
