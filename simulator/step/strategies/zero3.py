"""ZeRO-3, or fully sharded data parallel: each unit's parameters are gathered before use and freed afterwards.

A unit is a block of `layers_per_unit` layers. At most `prefetch` units are gathered ahead of the current unit. With
`reshard_after_forward`, units are gathered again for the backward pass, from every rank or from a smaller mesh that
keeps them sharded meanwhile. A unit's gradients are reduce-scattered after its backward pass. The root (embedding and
head) stays gathered from a forward pass to the end of the next backward pass; small tensors may stay whole permanently.
A unit has one storage, shared by all micro-batches in flight in a pipeline.

Example: 3 layers L0 to L2, root R, prefetch 1, no pipeline. The order of issue is ::

    compute        R   L0  L1  L2  R       R   L2  L1  L0  R
    communication  gR  g0  g1  g2  g1  g0  s2  s1  s0  sR

g gathers parameters, s reduce-scatters gradients. g2 waits until L0 is freed, because two units (the current unit and a
prefetched unit) may be gathered at once. L2 stays gathered for its backward pass. L1 and L0 are gathered twice; the
second g0 waits until L2 is freed.

References
----------
.. [1] Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020.
.. [2] Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from simulator.basics.dtypes import find
from simulator.records.operation import Exchange, NumericAction
from simulator.step.passes import Passes
from simulator.step.pipelines.schedule import Pass, Work
from simulator.step.process_groups import Scope
from simulator.step.program_builder import ProgramBuilder
from simulator.step.sharding import Sharding
from simulator.step.spec import Gathering, GradientSync, State, Updater
from simulator.step.stages import Chunk
from simulator.step.states import shard
from simulator.step.strategies.strategy import Strategy
from simulator.step.units import Unit

STREAM = "communication"


def plan(builder: ProgramBuilder, passes: Passes) -> GatheredUnits:
    """Return the planner writing a rank's passes under ZeRO-3; each pass gathers the units that are not
    gathered yet.
    """
    return GatheredUnits(builder, passes, gathered_before(passes))


@dataclass(frozen=True, slots=True)
class Gathered:
    """Parameters of a chunk already gathered when a pass begins; each unit has a single storage, like in FSDP2 [2]_.

    Each attribute identifies the gathering pass by its phase ("forward" or "backward") and micro-batch; None if the
    parameters are not gathered.
    """

    root: tuple[str, int] | None = None  # embedding or head, gathered until the end of the next backward pass
    blocks: tuple[str, int] | None = None  # every layer, in a pipeline without resharding
    # Shards of every layer on a smaller mesh, left there by a forward pass and freed by a backward pass.
    parts: tuple[str, int] | None = None

    @property
    def kind(self) -> Hashable:
        """Key that is equal if passes gather and free the same parameters."""
        return self.root is None, self.blocks is None, self.parts is None


def gathered_before(passes: Passes) -> Mapping[Pass, Gathered]:
    """Return for each pass on the rank the parameters already gathered when the pass begins.

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
    for entry in passes.order:
        before[entry] = state = here[entry.stage]
        # Weight gradients need activations and output gradients, but no parameters.
        if entry.work is Work.WEIGHT_GRADIENT:
            continue
        forward = entry.work is Work.FORWARD
        key = ("forward" if forward else "backward", entry.micro)
        state = Gathered(
            state.root or key, (state.blocks or key) if keeps else None, (state.parts or key) if sharding.mesh else None
        )
        # Without resharding, parameters stay until the last backward pass.
        stays = forward or (keeps and not chunks[entry.stage].ends(entry.micro))
        here[entry.stage] = state if stays else Gathered()
    return before


@dataclass(slots=True)
class GatheredUnits:
    """Planner writing a rank's passes and gathers each unit's parameters before use (ZeRO-3)."""

    builder: ProgramBuilder  # the rank's program
    passes: Passes  # writes kernels and allocations
    before: Mapping[Pass, Gathered]  # parameters gathered when each pass begins
    # Operation for which the next gather waits, so that at most the current unit and `prefetch` further units are
    # gathered
    room: str | None = None
    _under_way: dict[tuple[int, int], _Micro] = field(default_factory=dict)

    def kind(self, one: Pass) -> Hashable:
        """Return a key that is equal for passes with the same gathers and frees, among passes of equal work
        and stage.
        """
        return self.before[one].kind

    def forward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """Write a micro-batch's forward pass through a chunk; return its last operation."""
        passes = _Micro(self, chunk, micro)
        self._under_way[chunk.stage, micro] = passes
        return passes.forward(after)

    def backward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """Write a backward pass through a chunk; return the kernels for which the preceding stage waits."""
        self._under_way.pop((chunk.stage, micro)).backward(after, Work.BACKWARD)
        return self.passes.handed_back

    def input_gradient(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """Write the input-gradient half of a micro-batch's backward pass through a chunk; return the last kernels."""
        return self._under_way[chunk.stage, micro].backward(after, Work.INPUT_GRADIENT)

    def weight_gradient(self, micro: int, chunk: Chunk) -> None:
        """Write the weight-gradient half of a micro-batch's backward pass through a chunk; no parameters are
        gathered.
        """
        self._under_way.pop((chunk.stage, micro)).weights()


class _Micro:
    """Writes the passes of a micro-batch through a chunk under ZeRO-3, and records the gathered blocks in between."""

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
        # A pipeline without resharding gathers each unit once per step.
        self.holds = in_pipeline and self.sharding.reshard_after_forward is False
        # Without a pipeline, the backward pass follows at once and the last block stays gathered; in a pipeline, other
        # passes come in between.
        self.keeps_last = not in_pipeline
        # Embedding and head; None if another chunk has them.
        self.opening, self.closing = (unit if unit in self.root else None for unit in (chunk.units[0], chunk.units[-1]))
        # A chunk with a single unit must not run the unit twice.
        if len(chunk.units) == 1:
            self.closing = None
        # Operation for which each gathered block's passes wait, by block number.
        self.ready: dict[int, str] = {}
        # Allocation of each gathered block, by block number.
        self.stored: dict[int, str] = {}

    def forward(self, after: list[str | None]) -> str:
        """Write the forward pass with its gathers, after the given operations; return its last operation."""
        ahead, state = self.sharding.prefetch + 1, self.owner.before[Pass(Work.FORWARD, self.chunk.stage, self.micro)]
        root = self._gather_root("forward", state)
        self._find_held(state)
        # The first blocks are gathered before any kernel needs them: 1 + prefetch blocks.
        for i in range(min(ahead, len(self.blocks))):
            self._gather("forward", i, state)
        # Only the first unit waits for the preceding stage's send.
        done, waiting = "", after
        if self.opening is not None:
            done, waiting = self.passes.forward(self.micro, self.opening, [*waiting, root]), []
        for i, block in enumerate(self.blocks):
            for unit in block:
                done = self.passes.forward(self.micro, unit, [*waiting, self.ready[i]])
                waiting = []
            # A block is gathered again only after it was freed, as FSDP2's unshard waits for the unit's own reshard
            # (recalled). Otherwise it would be allocated twice, or be gathered from a mesh that does not have it yet.
            if not self.holds and not (self.keeps_last and i == len(self.blocks) - 1):
                self.owner.room = self._reshard(i, done, state) if self.sharding.reshard_after_forward else done
            if i + ahead < len(self.blocks):
                self._gather("forward", i + ahead, state)
        if self.closing is not None:
            done = self.passes.forward(self.micro, self.closing, [*waiting, root])
        return done

    def backward(self, after: list[str | None], work: Work) -> str:
        """Write the backward pass, or only input gradients, with its exchanges; return the last kernels."""
        state = self.owner.before[Pass(work, self.chunk.stage, self.micro)]
        done, waiting, reduces = "", after, work is Work.BACKWARD
        # An embedding before the first trained unit needs no parameters backward, and only frees what is gathered.
        rooted = state.root is not None or any(unit.back for unit in self.root)
        root = self._gather_root("backward", state) if rooted else None
        self._find_held(state)
        if self.closing is not None:
            done, waiting = self._pass_back(self.closing, [*waiting, root], work), []
        # Blocks before the first trained unit are not gathered again; a block that is still gathered must be freed.
        needed = [any(unit.back for unit in block) or i in self.ready for i, block in enumerate(self.blocks)]
        order = [i for i in range(len(self.blocks) - 1, -1, -1) if needed[i]]
        # Blocks that the forward pass left gathered are skipped.
        following = [i for i in order if i not in self.ready]
        # The current block, unless it is gathered, and `prefetch` blocks ahead.
        ahead = self.sharding.prefetch + (not self.ready)
        for i in following[:ahead]:
            self._gather("backward", i, state)
        following = following[ahead:]
        for i in order:
            for unit in reversed(self.blocks[i]):
                done, waiting = self._pass_back(unit, [*waiting, self.ready[i]], work), []
            self.owner.room = self._free(i, done)
            # After the second gather, the shard on the mesh is no longer needed. The last block, still gathered, has
            # none.
            if state.parts and not (self.keeps_last and i == len(self.blocks) - 1):
                self._give_back(self._part(i, state.parts), self._part_bytes(i), done)
            if following:
                self._gather("backward", following.pop(0), state)
            if reduces:
                self._reduce(self.blocks[i], done)
        if state.parts:
            for i in (i for i in range(len(self.blocks)) if not needed[i]):
                # A chunk before the first trained unit has no kernels backward: the stream's order suffices.
                self._give_back(self._part(i, state.parts), self._part_bytes(i), done or None)
        if self.opening is not None:
            done = self._pass_back(self.opening, [*waiting, root], work)
        if self.root:
            # Without resharding, the root also stays until the last backward pass.
            if rooted and (self.last or not self.holds):
                stored = self._root_parameters(state.root or ("backward", self.micro))
                self.owner.room = self._give_back(stored, _gathered(self.root) * self.itemsize, done)
            if reduces:
                self._reduce(self.root, done)
        return done

    def weights(self) -> None:
        """Write the micro-batch's weight gradients, from the last unit to the first, with their reduce-scatters."""
        done = ""
        for block in ([(self.closing,)] if self.closing is not None else []) + self.blocks[::-1]:
            for unit in reversed(block):
                done = self.passes.weight_gradient(self.micro, unit, self.chunk, communicates=self.sums)
            # The root's two parts are reduced together, after the embedding's gradients.
            if block[0] not in self.root:
                self._reduce(block, done)
        if self.opening is not None:
            done = self.passes.weight_gradient(self.micro, self.opening, self.chunk, communicates=self.sums)
        if self.root:
            self._reduce(self.root, done)

    def _pass_back(self, unit: Unit, after: list[str | None], work: Work) -> str:
        """Write a unit's backward pass, or its input gradients alone; return the last kernels."""
        if work is Work.INPUT_GRADIENT:
            return self.passes.input_gradient(self.micro, unit, after)
        return self.passes.backward(self.micro, unit, self.chunk, after, communicates=self.sums)

    def _of_root(self, by: tuple[str, int]) -> str:
        """Return the suffix of the root's allocation and gather, from the gathering pass (phase, micro-batch)."""
        phase, micro = by
        return str(micro) if phase == "forward" else f"backward {micro}"

    def _root_parameters(self, by: tuple[str, int]) -> str:
        """Return the allocation name for the root's (embedding's and head's) gathered parameters."""
        return f"{_name(self.root)} parameters {self._of_root(by)}"

    def _gather_root(self, phase: str, state: Gathered) -> str | None:
        """Gather the root (embedding, head) unless an earlier pass has; return the gather to wait for, or None."""
        if not self.root:
            return None
        # The names are the gathering pass's, also in later passes.
        by = state.root or (phase, self.micro)
        gather = f"gather {_name(self.root)} {self._of_root(by)}"
        if state.root:
            return self._gather_of(gather, "shard")
        nbytes = _gathered(self.root) * self.itemsize
        self.builder.allocate(self._root_parameters(by), nbytes, "gathered", stream=STREAM, after=[self.owner.room])
        return self._all_gather(gather, self.root, "shard")

    def _gather_of(self, name: str, scope: Scope) -> str | None:
        """Return the name of an earlier pass's all-gather; None if the scope's groups have a single rank."""
        # `communicate` returned None in this case.
        return name if self.builder.communicator.groups.size(scope) > 1 else None

    def _find_held(self, state: Gathered) -> None:
        """Mark the blocks that an earlier pass gathered and left on the rank as ready."""
        if state.blocks is None:
            return
        phase, micro = state.blocks
        for i, block in enumerate(self.blocks):
            # A group with a single rank gathers nothing: passes wait for the allocation instead.
            self.stored[i] = f"{_name(block)} parameters {phase} {micro}"
            self.ready[i] = self._gather_of(f"gather {_name(block)} {phase} {micro}", _shard(block)) or self.stored[i]

    def _gather(self, phase: str, i: int, state: Gathered) -> None:
        """Write allocation and all-gather of block `i` ("forward" or "backward"), after `room` has freed memory."""
        if i in self.ready:
            return
        block = self.blocks[i]
        self.stored[i] = f"{_name(block)} parameters {phase} {self.micro}"
        self.builder.allocate(
            self.stored[i], _gathered(block) * self.itemsize, "gathered", stream=STREAM, after=[self.owner.room]
        )
        # With a shard on the mesh, the backward pass gathers from the mesh's few neighbours.
        scope: Scope = "mesh" if state.parts else _shard(block)
        gather = f"gather {_name(block)} {phase} {self.micro}"
        self.ready[i] = self._all_gather(gather, block, scope) or self.stored[i]
        # Some frameworks gather for the recompute and once more for the backward pass.
        again = self.passes.step.framework.sharding.gathers_again
        if phase == "backward" and again and block[0].recompute is not None:
            self._all_gather(f"gather {_name(block)} again {self.micro}", block, scope)

    def _all_gather(self, name: str, units: Sequence[Unit], scope: Scope) -> str | None:
        """Append an all-gather of the units' parameters; return its name, or None for a single rank."""
        dtype, act = self.passes.step.precision.params, self._act(Exchange.ALL_GATHER, units)
        tensors = sum(unit.tensors for unit in units)
        return self.builder.communicate(
            name, "all_gather", _gathered(units), dtype, scope=scope, act=act, tensors=tensors
        )

    def _act(self, effect: Exchange, units: Sequence[Unit]) -> NumericAction[Exchange]:
        """Return the action of a collective in real training on some units' parameters or gradients."""
        return NumericAction(effect, tuple(unit.name for unit in units), self.micro)

    def _part(self, i: int, by: tuple[str, int]) -> str:
        """Return the allocation name for block `i`'s shard on the mesh, left there by the pass `by`."""
        return f"{_name(self.blocks[i])} parameters between {by[1]}"

    def _part_bytes(self, i: int) -> int:
        """Return the bytes of this rank's shard of block `i` on the mesh [B]."""
        return shard(_gathered(self.blocks[i]), self.sharding.mesh or 1) * self.itemsize

    def _reshard(self, i: int, done: str, state: Gathered) -> str:
        """Free block `i` after its forward pass, keep a shard on the mesh if any; return what makes room."""
        if self.sharding.mesh and state.parts is None:
            self.builder.allocate(self._part(i, ("forward", self.micro)), self._part_bytes(i), "gathered")
        return self._free(i, done)

    def _free(self, i: int, done: str) -> str:
        """Free block `i` unless it is held to the end of the step; return the operation that makes room."""
        if self.holds and not self.last:
            return done
        # The backward pass must gather the block again.
        del self.ready[i]
        return self._give_back(self.stored.pop(i), _gathered(self.blocks[i]) * self.itemsize, done)

    def _give_back(self, name: str, nbytes: int, done: str | None) -> str:
        """Free a named allocation, possibly made by a pass that is not recorded, after the operation `done`, or in the
        stream's order if `done` is None; return the free's name.
        """
        self.builder.assume(name, nbytes, "gathered", STREAM)
        return self.builder.free(name, after=[done])

    def _sum_copies(self, units: Sequence[Unit], scattered: str) -> str | None:
        """Write the all-reduce that sums this rank's gradient shard over the model states' copies (hybrid sharding).

        Returns
        -------
        str or None
            Operation after which the sum is complete; None if a later micro-batch sums.
        """
        # Earlier micro-batches sum only inside their shard group.
        if self.passes.copies and not units[0].spread and self.sharding.gradient_sync == "shard" and not self.last:
            return None
        return self.passes.sum_copies(f"sum {_name(units)} over copies {self.micro}", units, self.micro, scattered)

    def _reduce(self, units: Sequence[Unit], done: str) -> None:
        """Write the reduce-scatter of a block's gradients after the operation `done`; this rank's shard remains."""
        units = [unit for unit in units if unit.trained]
        # With `gradient_sync: last`, only the last micro-batch communicates.
        if not self.sums or not units:
            return
        name, dtype = f"scatter {_name(units)} {self.micro}", self.passes.step.precision.reduce
        # FSDP copies gradients into a contiguous buffer, also without a cast.
        buffer = self.passes.pack(name, units, self.micro, copies=True)
        act = self._act(Exchange.REDUCE_SCATTER, units)
        scope = _shard(units)
        tensors = sum(unit.tensors for unit in units)
        reduced = self.builder.communicate(name, "reduce_scatter", _trained(units), dtype, [done], scope, act, tensors)
        self.passes.scattered = reduced
        summed = self._sum_copies(units, reduced or done)
        self.passes.unpack(buffer, units, self.micro, reduced or done, summed)


def _blocks(units: tuple[Unit, ...], sharding: Sharding) -> list[tuple[Unit, ...]]:
    """Return the layers in blocks of `layers_per_unit`, gathered and freed together; the last may be smaller."""
    layers, size = tuple(unit for unit in units if unit.is_layer), sharding.layers_per_unit
    if any(unit.spread for unit in layers):
        # A layer's experts are gathered in another process group than its other parameters.
        return [(unit,) for unit in layers]
    return [layers[i : i + size] for i in range(0, len(layers), size)]


def _shard(units: Sequence[Unit]) -> Scope:
    """Return the scope (kind of process group) over which these units' parameters are sharded."""
    return "expert data" if units[0].spread else "shard"


def _name(units: Sequence[Unit]) -> str:
    """Return a block's name: "layer 3", "layers 3-5" or "root"."""
    first, last = units[0].name, units[-1].name
    if first == "embedding" and last == "head":
        return "root"
    return first if first == last else f"layers {first.split()[-1]}-{last.split()[-1]}"


def _trained(units: Sequence[Unit]) -> int:
    """Return the number of trained parameters in these units together."""
    return sum(unit.trained for unit in units)


def _gathered(units: Sequence[Unit]) -> int:
    """Return the number of parameters to gather in these units, without parameters kept whole on every rank."""
    return sum(unit.elements - unit.resident for unit in units)


def _volume(units: tuple[Unit, ...], sharding: Sharding, accumulation: int, ranks: int) -> int:
    """Return the elements sent per step by every rank together under ZeRO-3.

    The last block is still gathered at its backward pass, and the root stays gathered through a micro-batch.
    """
    forward = _gathered(units)
    # Every block except the last is gathered a second time, from the first trained one on.
    blocks = [block for block in _blocks(units, sharding)[:-1] if any(unit.back for unit in block)]
    again = sum(map(_gathered, blocks)) if sharding.reshard_after_forward else 0
    # Each of the n / m meshes sends (m - 1) times its gathered elements.
    mesh = sharding.mesh or ranks
    backward = ranks // mesh * (mesh - 1) * again
    scattering = 1 if sharding.gradient_sync == "last" else accumulation
    resident = sum(unit.resident for unit in units)
    return accumulation * ((ranks - 1) * forward + backward) + (ranks - 1) * (scattering * _trained(units) + resident)


STRATEGY = Strategy(
    name="zero3",
    shards=frozenset(State),
    updater=Updater.OWNERS,
    gathering=Gathering.BEFORE_USE,
    sending=GradientSync.EVERY,
    options=frozenset(
        {"reshard_after_forward", "prefetch", "shard_size", "layers_per_unit", "keep_below", "gradient_sync"}
    ),
    operations=("all_reduce", "reduce_scatter", "all_gather"),
    volume=_volume,
    plan=plan,
)
