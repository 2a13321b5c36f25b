"""Which kernels and allocations a unit's forward and backward pass issues, the same under every sharding strategy.

Rule: a strategy says what is communicated and when; what a pass computes and holds is said here, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.basics.dtypes import find
from simulator.records.operation import Act, Computation, Exchange
from simulator.step.pass_pieces import NOTHING, PassPieces
from simulator.step.pipelines.schedule import Pass
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import TrainingStep
from simulator.step.stages import Chunk
from simulator.step.states import shard
from simulator.step.units import Unit


@dataclass(slots=True)
class Passes:
    """One rank's passes.

    Attributes
    ----------
    builder : ProgramBuilder
    step : TrainingStep
    units : tuple of Unit
        The rank's: embedding, layers, head, or those of its stages.
    ranks, expert_ranks : int
        Over which gradients are sharded, and those of experts that are spread over ranks.
    gradients : list of str
        Allocations that live until the optimizer has stepped.
    last_offload : str or None
        The last operation that the host waits for before it updates: an offload copy, or the addition after it.
    handed_back : str
        The kernels that made the last input's gradient: the stage before waits for no more than these.
    scattered : str or None
        The last reduce-scatter of gradients: the next one is packed when it has ended.
    chunks : sequence of Chunk
        Parts of the model that the rank has.
    order : tuple of Pass
        Passes of the rank in a step.
    parts : list of tuple of Unit
        What was cut up among the ranks together, in the order of the last micro-batch.
    keeps_whole_gradients : bool
        Whether whole gradients are summed up over micro-batches, instead of this rank's part of them.
    """

    builder: ProgramBuilder
    step: TrainingStep
    units: tuple[Unit, ...]
    ranks: int
    expert_ranks: int
    keeps_whole_gradients: bool
    chunks: Sequence[Chunk] = ()
    order: tuple[Pass, ...] = ()
    gradients: list[str] = field(default_factory=list)
    last_offload: str | None = None
    handed_back: str = ""
    scattered: str | None = None
    parts: list[tuple[Unit, ...]] = field(default_factory=list)

    @property
    def gradient_itemsize(self) -> int:
        """Bytes of a gradient as it is accumulated [B]."""
        return find(self.step.precision.grads).itemsize

    @property
    def gradient_bytes(self) -> int:
        """Of all whole gradients that are never freed [B]: as they are accumulated, and as they are computed."""
        computed = find(self.step.precision.params).itemsize
        beside = computed if self.step.framework.keeps_gradients and computed != self.gradient_itemsize else 0
        return sum(unit.elements for unit in self.units) * (self.gradient_itemsize + beside)

    def ranks_of(self, unit: Unit) -> int:
        """Over how many ranks a unit's gradients are sharded."""
        return self.expert_ranks if unit.spread else self.ranks

    def elements_by_ranks(self) -> list[tuple[int, int]]:
        """The rank's parameters, and over how many ranks they may be sharded."""
        dense, spread = (sum(u.elements for u in self.units if u.spread == spread) for spread in (False, True))
        return [(dense, self.ranks), *([(spread, self.expert_ranks)] if spread else [])]

    def unit(self, name: str) -> Unit:
        """The unit of a name."""
        return next(unit for unit in self.units if unit.name == name)

    def forward(self, micro: int, unit: Unit, after: list[str | None]) -> str:
        """A forward pass; what it keeps lives until the backward pass has used it."""
        if unit.kept:
            self.builder.allocate(f"{unit.name} activations {micro}", unit.kept, "activations", after=after)
        act = Act(Computation.FORWARD, (unit.name,), micro)
        return self._run(f"{unit.name} forward {micro}", unit.forward, "forward", after, act)

    def backward(
        self, micro: int, unit: Unit, chunk: Chunk, after: list[str | None], *, communicates: bool = True
    ) -> str:
        """A backward pass: what was not kept is made again first, and gradients appear.

        They are added to those of earlier micro-batches where these are whole, and copied where they are communicated.
        """
        self._recompute(micro, unit, after)
        fresh = self._make_room(micro, unit, chunk, after)
        act = Act(Computation.BACKWARD, (unit.name,), micro)
        done = self._run(f"{unit.name} backward {micro}", unit.backward, "backward", after, act)
        if not unit.spread:  # experts stand before their layer, and hand nothing on
            self.handed_back = done
        return self._end(micro, unit, fresh, done, communicates=communicates)

    def input_gradient(self, micro: int, unit: Unit, after: list[str | None]) -> str:
        """The half of a backward pass that the unit before waits for."""
        self._recompute(micro, unit, after)
        act = Act(Computation.INPUT_GRADIENT, (unit.name,), micro)
        return self._run(f"{unit.name} input gradient {micro}", unit.input_gradient, "backward", after, act)

    def weight_gradient(self, micro: int, unit: Unit, chunk: Chunk, *, communicates: bool = True) -> str:
        """The other half: weights' gradients appear, and what was kept for them goes."""
        fresh = self._make_room(micro, unit, chunk, [])
        act = Act(Computation.WEIGHT_GRADIENT, (unit.name,), micro)
        done = self._run(f"{unit.name} weight gradient {micro}", unit.weight_gradient, "weight gradient", [], act)
        return self._end(micro, unit, fresh, done, communicates=communicates)

    def _recompute(self, micro: int, unit: Unit, after: list[str | None]) -> None:
        # What appears without running anything again belongs to the loss.
        category = "loss buffers" if unit.recompute is None else "recomputed activations"
        for made in unit.makes:
            self.builder.allocate(f"{made} recomputed {micro}", self.unit(made).recomputed, category, after=after)
        if unit.recompute is not None:
            act = Act(Computation.RECOMPUTE, unit.makes, micro)
            self._run(f"{unit.name} recompute {micro}", unit.recompute, "recompute", after, act)

    def _end(self, micro: int, unit: Unit, fresh: str | None, done: str, *, communicates: bool) -> str:
        for memory, nbytes in (("activations", unit.kept), ("recomputed", unit.recomputed)):
            if nbytes:
                self.builder.free(f"{unit.name} {memory} {micro}")
        if fresh is not None and unit.accumulate is not None:
            done = self.builder.compute(f"{unit.name} accumulate {micro}", unit.accumulate, "accumulate")
            self.builder.free(fresh)
        if communicates and unit.copies is not None:
            done = self.builder.compute(f"{unit.name} copies {micro}", unit.copies, "copies")
        return done

    def _run(self, name: str, pieces: PassPieces, kind: str, after: list[str | None], act: Act[Computation]) -> str:
        """Kernels, and what the model's ranks exchange between them; returns what the pass's result waits for."""
        kernels = [place for place, piece in enumerate(pieces.pieces) if piece.cost is not None]
        # A part of the backward pass may have nothing to do.
        if not kernels:
            return self.builder.compute(name, NOTHING, kind, [*after, *self.builder.awaited()], act)
        done, named, times = name, {}, Counter[str]()
        for place, piece in enumerate(pieces.pieces):
            if piece.exchange is not None:
                what = piece.exchange.name
                # Several layers may be run again together.
                times[what] += 1
                what += f", {times[what]}" if times[what] > 1 else ""
                within = Act(Exchange.WITHIN, act.units, act.micro, act.effect, what)
                exchanged = self.builder.exchange(f"{name}: {what}", piece.exchange, after, within)
                named[place] = exchanged
                done = exchanged or done
            elif piece.cost is not None:
                last = place == kernels[-1]
                own = name if last else f"{name}, part {kernels.index(place) + 1}"
                waits = [*after, *self.builder.awaited(), *(named.pop(one) for one in piece.awaited)]
                done = self.builder.compute(own, piece.cost, kind, waits, act if last else None)
                after = []
        # Whoever computes next on this rank waits for what is still under way.
        self.builder.await_next(named.values())
        return done

    def _make_room(self, micro: int, unit: Unit, chunk: Chunk, after: list[str | None]) -> str | None:
        """Memory of a unit's gradients; names what lives only until it is added to the sum of all micro-batches.

        Whole gradients are kept from the first micro-batch on; sharded strategies hold a unit's for a moment.
        """
        whole = self.keeps_whole_gradients
        computed = find(self.step.precision.params).itemsize
        if whole and chunk.begins(micro) and not self.step.framework.gradient_buffers:
            name = self._whole(unit, micro)
            self.builder.allocate(name, unit.elements * self.gradient_itemsize, "gradients", after=after)
            self.gradients.append(name)
        if whole and chunk.begins(micro) and computed == self.gradient_itemsize:
            return None
        # What lives for a moment has the dtype it is computed in; what is summed up has its own.
        name = f"{unit.name} gradients {micro}"
        nbytes = 0 if whole and self.step.framework.keeps_gradients else unit.elements * computed
        self.builder.allocate(name, nbytes, "gradients", after=after)
        return name if whole else None

    def _whole(self, unit: Unit, micro: int) -> str:
        """The allocation of a unit's gradients, summed over the micro-batches of a step."""
        number = micro // self.step.accumulation
        return f"{unit.name} gradients" + (f" of step {number}" if number else "")

    def pack(self, name: str, units: Sequence[Unit], micro: int, *, copies: bool) -> str | None:
        """Put whole gradients into one buffer of the wire's dtype, and free them.

        Before that the compute stream waits for the reduce-scatter before, so that no more than one is under way: FSDP2
        waits for its event in each unit's post-backward hook (_fsdp_param_group.py, `reduce_scatter_state`), and
        DeepSpeed has a second bucket to fill meanwhile. Otherwise buffers of all micro-batches would queue up.

        Parameters
        ----------
        name : str
        units : sequence of Unit
        micro : int
        copies : bool
            Whether also gradients of that dtype are copied together; otherwise they are made where they are sent from.

        Returns
        -------
        str or None
            The buffer's allocation, for whoever has sent it to free; None where there is none.
        """
        self.builder.await_next([self.scattered])
        computed = self.gradient_itemsize if self.keeps_whole_gradients else find(self.step.precision.params).itemsize
        if self.ranks_of(units[0]) == 1 or (not copies and computed == find(self.step.precision.reduce).itemsize):
            return None
        buffer = self._buffer(name, units, [self.scattered])
        self.drop_gradients(units, micro, "compute", [])
        return buffer

    def cast(self, name: str, units: Sequence[Unit]) -> str | None:
        """A buffer for gradients that stay, where they travel in another dtype; else they are sent from where they are.

        Returns its allocation, for whoever has sent it to free.
        """
        same = find(self.step.precision.reduce).itemsize == self.gradient_itemsize
        groups = self.builder.communicator.groups
        ranks = self.expert_ranks if units[0].spread else groups.data_parallel
        return None if same or ranks == 1 else self._buffer(name, units)

    def _buffer(self, name: str, units: Sequence[Unit], after: Sequence[str | None] = ()) -> str:
        nbytes = sum(unit.elements for unit in units) * find(self.step.precision.reduce).itemsize
        return self.builder.allocate(f"{name} buffer", nbytes, "buffers", after=after)

    def unpack(self, buffer: str | None, units: Sequence[Unit], micro: int, after: str, summed: str | None) -> None:
        """Keep this rank's part of what was sent, and free the rest.

        `summed` is the operation after which that part is summed over all copies of the states too; None where a later
        micro-batch does so.
        """
        for unit in units:
            self.keep_gradient_shard(unit, micro, after, summed)
            if buffer is None:
                self.drop_gradients([unit], micro, "communication", [after])
        if buffer is not None:
            self.builder.free(buffer, stream="communication", after=[after])

    def drop_gradients(self, units: Sequence[Unit], micro: int, stream: str, after: list[str]) -> None:
        """Free whole gradients once they have left."""
        for unit in units:
            if self.keeps_whole_gradients and self.step.framework.gradient_buffers:
                continue
            name = self._whole(unit, micro) if self.keeps_whole_gradients else f"{unit.name} gradients {micro}"
            self.builder.free(name, stream=stream, after=after)
            if name in self.gradients:
                self.gradients.remove(name)

    def keep_gradient_shard(self, unit: Unit, micro: int, after: str, summed: str | None) -> None:
        """This rank's part of a unit's gradients, from the first micro-batch to the optimizer; or on its way out."""
        nbytes = shard(unit.elements, self.ranks_of(unit)) * self.gradient_itemsize
        # The host cannot sum over copies: what waits for that is added up here, and goes when it is done.
        goes_at_once = self.step.offload is not None and not self._sums_copies_once
        name = f"{unit.name} gradient shard {micro}" if goes_at_once else f"{unit.name} gradient shard"
        if name not in self.gradients:
            self.builder.allocate(name, nbytes, "gradients", stream="communication", after=[after])
            self.gradients.append(name)
        if self.step.offload is not None and summed is not None:
            add = micro > 0 and goes_at_once and not self.keeps_whole_gradients
            copied = self.offload_copy(f"{unit.name} {micro}", nbytes, name, summed, add=add)
            self.builder.free(name, stream="copy to host", after=[copied])
            self.gradients.remove(name)

    @property
    def _sums_copies_once(self) -> bool:
        """Whether gradients are summed over copies of the states in the last micro-batch alone."""
        return self.step.sharding.gradient_sync == "shard" and self.builder.communicator.groups.hybrid

    def offload_copy(self, what: str, nbytes: int, *after: str, add: bool) -> str:
        """Copy summed gradients to the host, which adds them to those that it has; returns the copy."""
        copied = self.builder.copy(f"hand over {what}", nbytes, "to host", after=after)
        self.last_offload = copied
        if add and self.step.offload is not None:
            # Reads both, writes one.
            rate = self.step.offload.host_rate
            self.last_offload = self.builder.on_host(f"add {what}", 3 * nbytes, rate, after=[copied])
        return copied
