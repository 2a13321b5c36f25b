"""Which kernels and allocations (activations, gradients) do the passes through a unit issue, under every sharding?

A strategy decides what is communicated and when; `Passes` writes what a pass computes and holds.

Example: the passes of layer 1 for micro-batch 0 under DDP with full checkpointing. Each line is an operation; kernels
have a time, other operations allocate or free::

    layer 1 activations 0           allocate
    layer 1 forward 0               kernels
    layer 1 recomputed 0            allocate
    layer 1 recompute 0             kernels
    layer 1 gradients               allocate
    layer 1 backward 0              kernels
    free layer 1 activations 0
    free layer 1 recomputed 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from simulator.basics.dtypes import find
from simulator.records.operation import Computation, Exchange, NumericAction
from simulator.step.optimizers.optimizer import Shape, busiest_owner
from simulator.step.pass_pieces import NOTHING, PassPieces, PieceAt
from simulator.step.pipelines.schedule import Pass, Work
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import TrainingStep
from simulator.step.stages import Chunk
from simulator.step.states import Part, even_part, shard
from simulator.step.units import Unit


def dealt_matrices(units: Sequence[Unit], ranks: int) -> tuple[tuple[Shape, int], ...]:
    """Return the matrices of the rank with the most elements, with counts, if the matrices of units that have an update
    rule of their own are dealt to `ranks` ranks, and no other tensors are.
    """
    return busiest_owner(
        tuple(sorted(sum((Counter(dict(unit.own_rule)) for unit in units), Counter[Shape]()).items())), ranks
    )


def owned_matrices(units: Sequence[Unit], ranks: int) -> tuple[tuple[Shape, int], ...]:
    """Return the matrices of units that have an update rule of their own and that the rank with the most parameters
    owns, with counts, if whole tensors are dealt to `ranks` ranks.
    """
    return tuple((shape, count) for shape, count in _owned_tensors(units, ranks) if len(shape) == 2)


def _owned_tensors(units: Sequence[Unit], ranks: int) -> tuple[tuple[Shape, int], ...]:
    """Return the tensors that the rank with the most parameters owns, with counts.

    Tables of embedding and head have a third dimension of 1, and a unit's norms and biases together are one tensor of
    one dimension.
    """
    tensors = Counter[Shape]()
    for unit in units:
        large = unit.matrices if unit.is_layer else tuple(((*shape, 1), count) for shape, count in unit.matrices)
        tensors.update(dict(large))
        tensors[(unit.trained - _elements(large),)] += 1
    return busiest_owner(tuple(sorted(tensors.items())), ranks)


def _labels(pieces: PassPieces) -> Sequence[str]:
    """Return the label of each piece of a pass: an exchange's name, or what kernels append to the pass's name.

    The last kernels append nothing and carry the pass's act: when they end, real training has the result.
    """
    last = max((place for place, piece in enumerate(pieces.pieces) if piece.cost is not None), default=None)
    labels, times, part = list[str](), Counter[str](), 0
    for place, piece in enumerate(pieces.pieces):
        if piece.exchange is not None:
            what = piece.exchange.name
            # A segment of layers recomputed together repeats the names of exchanges: number them.
            times[what] += 1
            labels.append(f"{what}, {times[what]}" if times[what] > 1 else what)
        else:
            part += 1
            labels.append("" if place == last else f", part {part}")
    return labels


def _elements(tensors: Iterable[tuple[Shape, int]]) -> int:
    """Return the number of elements of tensors, given as shapes with counts."""
    return sum(prod(shape) * count for shape, count in tensors)


@dataclass(slots=True)
class Passes:
    """Writes the operations of a rank's forward and backward passes (kernels, allocations, frees) into the rank's
    program.
    """

    builder: ProgramBuilder  # the rank's program
    step: TrainingStep  # the step's settings
    units: tuple[Unit, ...]  # the rank's units: embedding, layers and head, or its pipeline stages' units
    # `ranks`, `expert_ranks`: Number of ranks over which gradients are sharded, and over which expert-parallel units'
    # gradients are sharded.
    ranks: int
    expert_ranks: int
    # Whether whole gradients, rather than the rank's shard, are accumulated over micro-batches
    keeps_whole_gradients: bool
    chunks: Sequence[Chunk] = ()  # the rank's model chunks
    order: tuple[Pass, ...] = ()  # the rank's passes in a step, in order
    gradients: list[str] = field(default_factory=list)  # gradient allocations that live until the optimizer's update
    # Last operation before the host's update: an offload copy, or the addition after the copy
    last_offload: str | None = None
    handed_back: str = ""  # kernels that made the last input's gradient; the preceding stage waits only for these
    scattered: str | None = None  # last reduce-scatter of gradients; the next buffer is packed after its end
    # Groups of units that were sharded together, in the last micro-batch's order
    parts: list[tuple[Unit, ...]] = field(default_factory=list)
    # `on_host`, `most_on_host`: Bytes of saved activations in host memory after the operations written so far, and the
    # most until then [B].
    on_host: int = 0
    most_on_host: int = 0
    # Units with activations on the host, once known, and the layer before each layer of a chunk.
    _on_host: Mapping[str, Unit] | None = None
    _before: dict[str, Unit] = field(default_factory=dict)
    # Labels of the pieces of each distinct pass, by the id of the pieces.
    _labels: dict[int, tuple[PassPieces, Sequence[str]]] = field(default_factory=dict)
    # Inputs of layers, and their gradients, that stay allocated until the micro-batch's backward pass ends.
    _held: list[str] = field(default_factory=list)
    # Micro-batches with a deferred weight gradient of the head, by stage, once known.
    _deferred: dict[int, Sequence[int]] = field(default_factory=dict)

    @property
    def gradient_itemsize(self) -> int:
        """Bytes per element in an accumulated gradient [B]."""
        return find(self.step.precision.grads).itemsize

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the whole gradients of a rank's units [B]; a copy in the computed dtype is included if the framework
        keeps one.
        """
        computed = find(self.step.trained_dtype).itemsize
        # Some frameworks keep the computed gradient beside the accumulated gradient.
        beside = computed if self.step.framework.memory.keeps_gradients and computed != self.gradient_itemsize else 0
        return sum(unit.trained for unit in self.units) * (self.gradient_itemsize + beside)

    @property
    def placeholder_bytes(self) -> int:
        """Bytes of the arrays that stand for the gradients of the layers' matrices and the head's, one for each shape
        [B].
        """
        shapes = {shape for unit in self.units if unit.is_layer for shape, _ in unit.matrices} | self._head_matrices
        return sum(prod(shape) for shape in shapes) * find(self.step.trained_dtype).itemsize

    @property
    def _head_matrices(self) -> set[Shape]:
        """Shapes of the trained matrices that the rank's head multiplies by; a tied head on the embedding's rank uses
        the embedding's table.
        """
        head = {shape for unit in self.units if unit.name == "head" for shape, _ in unit.matrices}
        units = {unit.name for unit in self.units}
        if self.step.model.tied and self.step.trains_head and {"embedding", "head"} <= units:
            # The token table comes first among the embedding's parameters, and has the most rows.
            head |= {max(shape for shape, _ in self.unit("embedding").matrices)}
        return head

    def ranks_of(self, unit: Unit) -> int:
        """Return the number of ranks that shard the gradients of a unit (embedding, layer or head)."""
        return self.expert_ranks if unit.spread else self.ranks

    def parts_of_states(self) -> list[Part]:
        """Return the rank's trained parameters, with expert-parallel parameters in a separate part."""
        rule = self.step.optimizer.of_matrices
        parts = []
        for units, ranks in self.by_ranks():
            elements = sum(unit.trained for unit in units)
            matrices = sum(unit.in_matrices for unit in units) if rule is not None else 0
            if self.step.optimizer.owns_whole_tensors:
                owned = _elements(_owned_tensors(units, ranks))
                parts.append(Part(elements, owned, matrices, _elements(owned_matrices(units, ranks))))
            else:
                parts.append(even_part(elements, ranks, matrices))
        return parts

    def frozen_by_ranks(self) -> list[tuple[int, int]]:
        """Return pairs (frozen parameters, ranks over which these may be sharded), with expert-parallel parameters in a
        separate pair.
        """
        return [(sum(unit.frozen for unit in units), ranks) for units, ranks in self.by_ranks()]

    def by_ranks(self) -> list[tuple[list[Unit], int]]:
        """Return the rank's units, each with the ranks over which its parameters may be sharded, with expert-parallel
        units apart.
        """
        dense, spread = ([unit for unit in self.units if unit.spread == is_spread] for is_spread in (False, True))
        # Expert-parallel units are sharded over fewer ranks: the ranks with the same experts.
        return [(dense, self.ranks), *([(spread, self.expert_ranks)] if spread else [])]

    def unit(self, name: str) -> Unit:
        """Return the rank's unit (embedding, layer or head) with this name."""
        return next(unit for unit in self.units if unit.name == name)

    def forward(self, micro: int, unit: Unit, after: list[str | None]) -> str:
        """Write a unit's forward pass for a micro-batch, after the given operations; return the name of its last
        operation.
        """
        if unit.kept:
            self.builder.allocate(f"{unit.name} activations {micro}", unit.kept, "activations", after=after)
        act = NumericAction(Computation.FORWARD, (unit.name,), micro)
        with self._during(f"{unit.name} temporaries {micro}", unit.temporaries, "temporaries", after):
            done = self._run(f"{unit.name} forward {micro}", unit.forward, "forward", after, act)
        if unit.name in self._waiting_on_host:
            name = f"{unit.name} activations {micro}"
            copied = self.builder.copy(f"hand over {name}", unit.kept, "to host", after=[done])
            self.builder.free(name, stream="copy to host", after=[copied])
            self.on_host += unit.kept
            self.most_on_host = max(self.most_on_host, self.on_host)
        return done

    def backward(
        self, micro: int, unit: Unit, chunk: Chunk, after: list[str | None], *, communicates: bool = True
    ) -> str:
        """Write a unit's backward pass: recompute, backward kernels, gradient accumulation, copies for communication.

        Returns
        -------
        str
            The last kernels, for the operation that communicates the gradients.
        """
        after = [*after, *self._fetched(micro, unit)]
        self._recompute(micro, unit, after)
        if unit.name == "head" and self.defers(chunk.stage, micro):
            return self._without_weights(micro, unit, chunk, after)
        fresh = self._make_room(micro, unit, chunk, after)
        act = NumericAction(Computation.BACKWARD, (unit.name,), micro)
        with self._activation_gradients(micro, unit, after):
            done = self._run(f"{unit.name} backward {micro}", unit.backward, "backward", after, act)
        if not unit.spread:  # an expert unit precedes its layer and has no kernels
            self.handed_back = done
        return self._end(micro, unit, chunk, fresh, done, communicates=communicates)

    def _without_weights(self, micro: int, head: Unit, chunk: Chunk, after: list[str | None]) -> str:
        """Write the head's backward pass without its weight gradient; its input and the gradient of the logits wait for
        `deferred_gradients`. Return the last kernels.
        """
        self._begin(micro, head, chunk, after)
        act = NumericAction(Computation.INPUT_GRADIENT, (head.name,), micro)
        with self._activation_gradients(micro, head, after):
            done = self._run(f"{head.name} backward {micro}", head.input_gradient, "backward", after, act)
        self.handed_back = done
        self._free_activations(micro, head, chunk)
        self.builder.allocate(f"{head.name} deferred {micro}", head.deferred, "activations")
        return done

    def deferred_gradients(self, chunk: Chunk) -> str:
        """Write the head's deferred weight gradients of a step, one micro-batch after the other; return the last
        kernels.
        """
        head, done = self.unit("head"), ""
        for micro in self._deferred_micros(chunk.stage):
            # The gradient of the logits, and the head's input.
            waiting = f"{head.name} deferred {micro}"
            self.builder.assume(waiting, head.deferred, "activations", "compute")
            fresh = self._allocate_fresh(micro, head, [])
            act = NumericAction(Computation.WEIGHT_GRADIENT, (head.name,), micro)
            name = f"{head.name} weight gradient {micro}"
            done = self._run(name, head.weight_gradient, "weight gradient", [], act)
            self.builder.free(waiting)
            done = self._accumulate(micro, head, fresh, done)
        return done if head.copies is None else self.builder.compute(f"{head.name} copies", head.copies, "copies")

    def defers(self, stage: int, micro: int) -> bool:
        """Return True if the head's weight gradient of a micro-batch on this stage is computed after the last backward
        pass.
        """
        return self.step.deferred > 0 and micro in self._deferred_micros(stage)

    def _deferred_micros(self, stage: int) -> Sequence[int]:
        """Return the micro-batches, in backward order, whose weight gradients of the head are deferred on a stage."""
        if stage not in self._deferred:
            units = next(chunk.units for chunk in self.chunks if chunk.stage == stage)
            waits = any(unit.deferred for unit in units)
            micros = [entry.micro for entry in self.order if entry.work is Work.BACKWARD and entry.stage == stage]
            self._deferred[stage] = tuple(micros[: self.step.deferred]) if waits else ()
        return self._deferred[stage]

    def input_gradient(self, micro: int, unit: Unit, after: list[str | None]) -> str:
        """Write the input-gradient half of a unit's backward pass, recompute included; return the last operation's
        name.
        """
        after = [*after, *self._fetched(micro, unit)]
        self._recompute(micro, unit, after)
        act = NumericAction(Computation.INPUT_GRADIENT, (unit.name,), micro)
        with self._activation_gradients(micro, unit, after):
            return self._run(f"{unit.name} input gradient {micro}", unit.input_gradient, "backward", after, act)

    def weight_gradient(self, micro: int, unit: Unit, chunk: Chunk, *, communicates: bool = True) -> str:
        """Write the weight-gradient half of a unit's backward pass and free the unit's activations; return the last
        kernels' name.
        """
        fresh = self._make_room(micro, unit, chunk, [])
        act = NumericAction(Computation.WEIGHT_GRADIENT, (unit.name,), micro)
        done = self._run(f"{unit.name} weight gradient {micro}", unit.weight_gradient, "weight gradient", [], act)
        return self._end(micro, unit, chunk, fresh, done, communicates=communicates)

    def _activation_gradients(self, micro: int, unit: Unit, after: list[str | None]) -> AbstractContextManager[None]:
        """Write the allocation of a unit's activation gradients around its backward kernels."""
        return self._during(f"{unit.name} activation gradients {micro}", unit.within, "activation gradients", after)

    @contextmanager
    def _during(self, name: str, nbytes: int, category: str, after: list[str | None]) -> Iterator[None]:
        """Write an allocation around the kernels of a pass; none of 0 bytes."""
        if nbytes:
            self.builder.allocate(name, nbytes, category, after=after)
        yield
        if nbytes:
            self.builder.free(name)

    @property
    def _waiting_on_host(self) -> Mapping[str, Unit]:
        """Units whose saved activations wait in host memory, by name.

        The last layer of each chunk keeps its activations on the GPU, because its backward pass may follow at once.
        """
        if self._on_host is None:
            groups = [chunk.units for chunk in self.chunks] or [self.units]
            layers = [[unit for unit in units if unit.is_layer and not unit.spread] for units in groups]
            away = [unit for group in layers for unit in group[:-1] if unit.kept]
            self._on_host = {unit.name: unit for unit in away} if self.step.keys.offload.activations else {}
            for group in layers:
                self._before.update({after.name: before for before, after in pairwise(group)})
        return self._on_host

    def _fetched(self, micro: int, unit: Unit) -> list[str]:
        """Append the copy from host to GPU of a micro-batch's activations for the layer before a unit in forward order;
        the copy overlaps the unit's backward pass.

        Returns
        -------
        list of str
            Name of the copy operation of the unit's own activations, appended one unit earlier; empty without one.
        """
        away = self._waiting_on_host
        before = self._before.get(unit.name)
        if before is not None and before.name in away:
            name = f"{before.name} activations returned {micro}"
            waits = [f"hand over {before.name} activations {micro}", self.builder.last_kernels]
            self.builder.allocate(name, before.kept, "activations", stream="copy to device", after=waits)
            self.builder.copy(f"return {before.name} activations {micro}", before.kept, "to device")
            self.on_host -= before.kept
        return [f"return {unit.name} activations {micro}"] if unit.name in away else []

    def _recompute(self, micro: int, unit: Unit, after: list[str | None]) -> None:
        """Write a unit's recomputed tensors (or loss buffers) before its backward pass, and the forward pass again."""
        # Tensors that appear without recompute are the loss function's buffers.
        category = "loss buffers" if unit.recompute is None else "recomputed activations"
        for label in unit.makes:
            self.builder.allocate(f"{label} recomputed {micro}", self.unit(label).recomputed, category, after=after)
        if unit.recompute is not None:
            act = NumericAction(Computation.RECOMPUTE, unit.makes, micro)
            name = f"{unit.name} recompute"
            with self._during(f"{name} temporaries {micro}", unit.temporaries_again, "temporaries", after):
                self._run(f"{name} {micro}", unit.recompute, "recompute", after, act)

    def _end(self, micro: int, unit: Unit, chunk: Chunk, fresh: str | None, done: str, *, communicates: bool) -> str:
        """End a unit's backward pass: free activations, accumulate and copy gradients; return the last kernels."""
        self._free_activations(micro, unit, chunk)
        done = self._accumulate(micro, unit, fresh, done)
        if communicates and unit.copies is not None:
            done = self.builder.compute(f"{unit.name} copies {micro}", unit.copies, "copies")
        return done

    def _free_activations(self, micro: int, unit: Unit, chunk: Chunk) -> None:
        """Write the frees of a unit's saved and recomputed tensors after its backward pass."""
        back = " returned" if unit.name in self._waiting_on_host else ""
        activations = f"{unit.name} activations{back} {micro}"
        if unit.holds:
            gradient = f"{unit.name} gradient of input {micro}"
            self.builder.allocate(gradient, unit.holds, "activation gradients")
            self._held += [activations, gradient]
        elif unit.kept:
            self.builder.free(activations)
        if unit.recomputed:
            self.builder.free(f"{unit.name} recomputed {micro}")
        if unit.holds and unit is next(other for other in chunk.units if other.holds):
            for name in self._held:
                self.builder.free(name)
            self._held.clear()

    def _accumulate(self, micro: int, unit: Unit, fresh: str | None, done: str) -> str:
        """Write the kernel that adds a new gradient, if any, to the sum over micro-batches; return the last kernels."""
        # From the second micro-batch on, or if dtypes differ, a kernel adds the new gradient to the sum.
        if fresh is not None and unit.accumulate is not None:
            done = self.builder.compute(f"{unit.name} accumulate {micro}", unit.accumulate, "accumulate")
            self.builder.free(fresh)
        return done

    def _run(
        self, name: str, pieces: PassPieces, kind: str, after: list[str | None], act: NumericAction[Computation]
    ) -> str:
        """Write the kernels and exchanges of a pass; return the operation that makes the pass's result available."""
        labels = self._labels_of(pieces)
        # A half of the backward pass may have no kernels, as the embedding's input gradient. An operation of no
        # duration keeps the name for operations that wait.
        if "" not in labels:
            return self.builder.compute(name, NOTHING, kind, [*after, *self.builder.awaited()], act)
        # `exchanges` maps a piece's place to its exchange, until kernels wait for the exchange.
        done, exchanges = name, dict[int, str | None]()
        for place, (piece, label) in enumerate(zip(pieces.pieces, labels, strict=True)):
            if piece.exchange is not None:
                within = NumericAction(Exchange.WITHIN, act.units, act.micro, act.effect, label)
                exchanged = self.builder.exchange(f"{name}: {label}", piece.exchange, after, within)
                exchanges[place] = exchanged
                done = exchanged or done
            elif piece.cost is not None:
                # Each exchange is awaited by the first kernels that need its result.
                waits = [*after, *self.builder.awaited(), *(exchanges.pop(index) for index in piece.awaited)]
                done = self.builder.compute(name + label, piece.cost, kind, waits, None if label else act)
                self.builder.pieces[done] = PieceAt(pieces, place, act.micro)
                # Later kernels follow the first on the same stream.
                after = []
                if piece.synchronizes:
                    self.builder.synchronize(done)
        # Exchanges that no kernel of this pass awaited must end before the rank's next kernels.
        self.builder.await_next(exchanges.values())
        return done

    def _labels_of(self, pieces: PassPieces) -> Sequence[str]:
        """Return the labels of a pass's pieces; computed once for the passes of equal layers, which share `pieces`."""
        # The cached value holds the pieces, hence Python cannot reuse the id.
        if id(pieces) not in self._labels:
            self._labels[id(pieces)] = pieces, _labels(pieces)
        return self._labels[id(pieces)][1]

    def _make_room(self, micro: int, unit: Unit, chunk: Chunk, after: list[str | None]) -> str | None:
        """Allocate a unit's gradients before a backward pass; return the name of a temporary allocation to free after
        accumulation, or None.

        Whole gradients stay allocated from the first micro-batch on; sharded strategies hold a unit's gradients
        briefly.
        """
        if not unit.trained:
            return None
        self._begin(micro, unit, chunk, after)
        # The first micro-batch writes straight into the accumulated gradient if dtypes agree.
        computed = find(self.step.trained_dtype).itemsize
        if self.keeps_whole_gradients and chunk.begins(micro) and computed == self.gradient_itemsize:
            return None
        return self._allocate_fresh(micro, unit, after)

    def _begin(self, micro: int, unit: Unit, chunk: Chunk, after: list[str | None]) -> None:
        """Allocate a unit's accumulated gradients before the first micro-batch of a step, if they have no buffer."""
        if self.keeps_whole_gradients and chunk.begins(micro) and not self.step.framework.memory.gradient_buffers:
            name = self._gradient_name(unit, micro)
            self.builder.allocate(name, unit.trained * self.gradient_itemsize, "gradients", after=after)
            self.gradients.append(name)

    def _allocate_fresh(self, micro: int, unit: Unit, after: list[str | None]) -> str | None:
        """Allocate a unit's gradients of one micro-batch; return the name if the caller must free it, or None."""
        unsharded, computed = self.keeps_whole_gradients, find(self.step.trained_dtype).itemsize
        # A temporary gradient has the computed dtype; the accumulated gradient may be wider.
        name = f"{unit.name} gradients {micro}"
        nbytes = 0 if unsharded and self._adds_in_place(unit) else unit.trained * computed
        # It takes the place of tensors that are freed before; the name is freed with them.
        nbytes = max(0, nbytes - unit.freed_early) if unsharded else nbytes
        self.builder.allocate(name, nbytes, "gradients", after=after)
        return name if unsharded else None

    def _adds_in_place(self, unit: Unit) -> bool:
        """Return True if a micro-batch's gradient of a unit needs no allocation of its own: a buffer holds it for the
        whole step, matmuls add to the accumulated gradient, or placeholders stand for matmuls' gradients. The
        embedding's gradient comes from no matmul.
        """
        framework = self.step.framework
        from_matmuls = framework.memory.accumulates_in_matmul or framework.memory.placeholders
        return framework.memory.keeps_gradients or (from_matmuls and unit.name != "embedding")

    def _gradient_name(self, unit: Unit, micro: int) -> str:
        """Return the allocation name of a unit's whole gradient, which accumulates over micro-batches."""
        number = micro // self.step.accumulation
        return f"{unit.name} gradients" + (f" of step {number}" if number else "")

    @property
    def copies(self) -> bool:
        """True if several groups of ranks hold a copy of the model states each, and gradients are summed over them."""
        return self.builder.communicator.groups.hybrid

    def sum_copies(self, name: str, units: Sequence[Unit], micro: int, scattered: str) -> str | None:
        """Write the all-reduce that sums this rank's shard of some units' gradients over the copies of the states.

        Returns
        -------
        str or None
            The all-reduce, which follows the operation `scattered`; `scattered` with a single copy; None if a copy per
            rank leaves nothing to send.
        """
        # Expert-parallel units are sharded over every rank with the same experts, hence there is a single copy.
        if not self.copies or units[0].spread:
            return scattered
        part = shard(sum(unit.trained for unit in units), self.ranks_of(units[0]))
        act = NumericAction(Exchange.SUM_COPIES, tuple(unit.name for unit in units), micro)
        dtype = self.step.precision.reduce
        return self.builder.communicate(name, "all_reduce", part, dtype, [scattered], "replicate", act)

    def pack(self, name: str, units: Sequence[Unit], micro: int, *, copies: bool) -> str | None:
        """Pack whole gradients into a buffer of the wire's dtype, and free them.

        First, the compute stream waits for the preceding reduce-scatter, hence at most one is in flight. FSDP2 waits
        for its event in each unit's post-backward hook (_fsdp_param_group.py, `reduce_scatter_state`), and DeepSpeed
        fills a second bucket meanwhile. Without this wait, buffers would accumulate over micro-batches.

        Parameters
        ----------
        name : str
            Prefix of the buffer's name.
        units : sequence of Unit
            Units with gradients to pack.
        micro : int
            Number of the micro-batch.
        copies : bool
            Whether gradients of the wire's dtype are copied too; otherwise they are computed in place in the buffer.

        Returns
        -------
        str or None
            The buffer's allocation, to be freed after the send; None without a buffer.
        """
        self.builder.await_next([self.scattered])
        computed = self.gradient_itemsize if self.keeps_whole_gradients else find(self.step.trained_dtype).itemsize
        # A single rank sends nothing; equal dtypes allow sending from the gradients themselves.
        if self.ranks_of(units[0]) == 1 or (not copies and computed == find(self.step.precision.reduce).itemsize):
            return None
        buffer = self._buffer(name, units, [self.scattered])
        self.drop_gradients(units, micro, "compute", [])
        return buffer

    def cast(self, name: str, units: Sequence[Unit]) -> str | None:
        """Allocate a communication buffer if gradients travel in another dtype than they are kept in; return the name,
        or None if no cast is needed.

        The sender frees the buffer.
        """
        same = find(self.step.precision.reduce).itemsize == self.gradient_itemsize
        groups = self.builder.communicator.groups
        ranks = self.expert_ranks if units[0].spread else groups.data_parallel
        return None if same or ranks == 1 else self._buffer(name, units)

    def _buffer(self, name: str, units: Sequence[Unit], after: Sequence[str | None] = ()) -> str:
        """Allocate a buffer in the reduction's dtype for the gradients of some units; return its name."""
        nbytes = sum(unit.trained for unit in units) * find(self.step.precision.reduce).itemsize
        return self.builder.allocate(f"{name} buffer", nbytes, "buffers", after=after)

    def unpack(self, buffer: str | None, units: Sequence[Unit], micro: int, after: str, summed: str | None) -> None:
        """Write the operations that keep the rank's gradient shards after a reduce-scatter and free the whole gradients
        and the buffer.

        Parameters
        ----------
        buffer : str or None
            The send buffer.
        units : sequence of Unit
            Units with gradients in the buffer.
        micro : int
            Number of the micro-batch.
        after : str
            The reduce-scatter.
        summed : str or None
            Operation after which the shard is also summed over every copy of the states; None if a later micro-batch
            sums.
        """
        for unit in units:
            self.keep_gradient_shard(unit, micro, after, summed)
            if buffer is None:
                self.drop_gradients([unit], micro, "communication", [after])
        if buffer is not None:
            self.builder.free(buffer, stream="communication", after=[after])

    def drop_gradients(self, units: Sequence[Unit], micro: int, stream: str, after: list[str]) -> None:
        """Write operations that free the whole gradients of some units, on a stream and after the given operations
        (reduce-scatter or push).
        """
        for unit in units:
            # Frameworks with one large gradient buffer allocate once and never free.
            if self.keeps_whole_gradients and self.step.framework.memory.gradient_buffers:
                continue
            name = self._gradient_name(unit, micro) if self.keeps_whole_gradients else f"{unit.name} gradients {micro}"
            self.builder.free(name, stream=stream, after=after)
            if name in self.gradients:
                self.gradients.remove(name)

    def keep_gradient_shard(self, unit: Unit, micro: int, after: str, summed: str | None) -> None:
        """Allocate a unit's gradient shard on this rank after a reduce-scatter, and copy the shard to the host under
        offload.
        """
        nbytes = shard(unit.trained, self.ranks_of(unit)) * self.gradient_itemsize
        # The host cannot sum over copies of the states. Shards that wait for this sum accumulate on the GPU and are
        # copied after the sum; otherwise each micro-batch's shard leaves at once.
        goes_at_once = self.step.gradients_leave and not self._sums_copies_once
        name = f"{unit.name} gradient shard {micro}" if goes_at_once else f"{unit.name} gradient shard"
        if name not in self.gradients:
            self.builder.allocate(name, nbytes, "gradients", stream="communication", after=[after])
            self.gradients.append(name)
        if self.step.gradients_leave and summed is not None:
            # Only shards from several micro-batches need an addition on the host.
            add = micro > 0 and goes_at_once and not self.keeps_whole_gradients
            copied = self.offload_copy(f"{unit.name} {micro}", nbytes, name, summed, add=add)
            self.builder.free(name, stream="copy to host", after=[copied])
            self.gradients.remove(name)

    @property
    def _sums_copies_once(self) -> bool:
        """True if gradients are summed over copies of the model states only in a step's last micro-batch."""
        return self.step.sharding.gradient_sync == "shard" and self.builder.communicator.groups.hybrid

    def offload_copy(self, what: str, nbytes: int, *after: str, add: bool) -> str:
        """Write a copy of `nbytes` bytes of gradients to the host, and an addition on the host if `add`; return the
        copy's name.
        """
        copied = self.builder.copy(f"hand over {what}", nbytes, "to host", after=after)
        self.last_offload = copied
        if add and self.step.gradients_leave:
            # The addition reads two numbers and writes one.
            rate = self.step.keys.offload.host_rate
            self.last_offload = self.builder.on_host(f"add {what}", 3 * nbytes, rate, after=[copied])
        return copied
