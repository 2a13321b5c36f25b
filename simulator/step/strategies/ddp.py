"""Distributed data parallel: states are replicated; gradients are summed in buckets during the backward pass.

With gradient accumulation, only the last micro-batch communicates. ZeRO-1, ZeRO-2 and parameter servers share
`Bucketing` and differ only in the communication of a full bucket.

Example: two layers and a bucket size of one layer's gradients. The backward pass of layer 1 fills a bucket, and its
all-reduce overlaps with the backward pass of layer 0::

    compute        L0  L1  | L1  L0
    communication              b0  b1

References
----------
.. [1] Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from simulator.records.operation import Exchange, NumericAction
from simulator.step.passes import Passes
from simulator.step.pipelines.schedule import Pass, Work
from simulator.step.process_groups import Scope
from simulator.step.program_builder import ProgramBuilder
from simulator.step.sharding import Sharding
from simulator.step.spec import Gathering, GradientSync, Updater
from simulator.step.stages import Chunk
from simulator.step.strategies.strategy import Strategy
from simulator.step.units import Unit


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket: gradients communicated together, from several units."""

    # `number`, `micro`: Number of the bucket in its micro-batch, and of the micro-batch.
    number: int
    micro: int
    units: tuple[Unit, ...]  # units whose gradients fill the bucket
    done: str  # operation that completes the gradients

    @property
    def name(self) -> str:
        """Suffix with bucket and micro-batch number, for the names of operations on the bucket."""
        return f"bucket {self.number} {self.micro}"

    @property
    def scope(self) -> Scope:
        """Process group that sums the bucket; expert-parallel units have their own groups."""
        return "expert data" if self.units[0].spread else "all"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the units with gradients in the bucket."""
        return tuple(unit.name for unit in self.units)

    @property
    def elements(self) -> int:
        """Number of gradient elements in the bucket."""
        return sum(unit.trained for unit in self.units)


def plan(builder: ProgramBuilder, passes: Passes, *, sharded: bool = False) -> Bucketing:
    """Return the planner writing a rank's passes under DDP; only the last micro-batch all-reduces its buckets.

    With `sharded`, ranks own parts of the states, and buckets are noted for the gather of updated parameters.
    """

    def summed(bucket: Bucket) -> str | None:
        """Append a bucket's all-reduce to the program; return the name, or None for a single rank."""
        if sharded and bucket.units not in passes.parts:
            passes.parts.append(bucket.units)
        name, dtype = f"all_reduce {bucket.name}", passes.step.precision.reduce
        act = NumericAction(Exchange.ALL_REDUCE, bucket.names, bucket.micro)
        return builder.communicate(name, "all_reduce", bucket.elements, dtype, [bucket.done], bucket.scope, act)

    return Bucketing(passes, summed)


@dataclass(slots=True)
class Bucketing:
    """Planner writing a rank's passes and communicates the gradients in buckets."""

    passes: Passes  # writes kernels and allocations
    # Communicate a bucket; return the operation after which its memory can be freed.
    send: Callable[[Bucket], str | None]
    each: bool = False  # whether every micro-batch communicates, rather than the last
    # Operations before each unit's forward passes, by the unit's name
    after: Mapping[str, list[str | None]] = field(default_factory=dict)
    _numbers: Counter[int] = field(default_factory=Counter)

    def kind(self, one: Pass) -> Hashable:
        """Return True for backward passes without the head's weight gradient; others of equal work on a stage have the
        same operations.
        """
        return one.work is Work.BACKWARD and self.passes.defers(one.stage, one.micro)

    def forward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """Write a micro-batch's forward pass through a chunk; return its last operation."""
        done = ""
        for unit in chunk.units:
            done = self.passes.forward(micro, unit, [*after, *self.after.get(unit.name, ())])
            after = []
        return done

    def backward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """Write a backward pass through a chunk; return the kernels for which the preceding stage waits."""
        sends, waiting = self.each or chunk.ends(micro), after

        def one(unit: Unit) -> str:
            """Write a unit's backward pass and return its last kernels; only the first unit waits for the next
            stage.
            """
            nonlocal waiting
            done = self.passes.backward(micro, unit, chunk, waiting, communicates=sends)
            waiting = []
            return done

        self._filling(micro, chunk, one, sends=sends)
        handed_back = self.passes.handed_back
        if self.passes.order and self.passes.order[-1] == Pass(Work.BACKWARD, chunk.stage, micro):
            self._deferred(micro)
        return handed_back

    def _deferred(self, micro: int) -> None:
        """Write the head's deferred weight gradients after the last backward pass, and communicate its bucket."""
        for chunk in self.passes.chunks:
            if self.passes.defers(chunk.stage, chunk.first):
                done = self.passes.deferred_gradients(chunk)
                self._sent(Bucket(self._numbers[micro], micro, (self.passes.unit("head"),), done))
                self._numbers[micro] += 1

    def input_gradient(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """Write the input-gradient half of a micro-batch's backward pass through a chunk; return the last kernels."""
        done = ""
        for unit in reversed(chunk.units):
            done = self.passes.input_gradient(micro, unit, after)
            after = []
        return done

    def weight_gradient(self, micro: int, chunk: Chunk) -> None:
        """Write the weight-gradient half of a micro-batch's backward pass through a chunk, with communication of full
        buckets.
        """
        sends = self.each or chunk.ends(micro)
        self._filling(
            micro,
            chunk,
            lambda unit: self.passes.weight_gradient(micro, unit, chunk, communicates=sends),
            sends=sends,
        )

    def _filling(self, micro: int, chunk: Chunk, gradients: Callable[[Unit], str], *, sends: bool) -> str:
        """Write gradients from the chunk's last unit to its first; communicate each full bucket if `sends`."""
        # Expert-parallel units have separate buckets, summed by different ranks.
        filling: dict[bool, list[Unit]] = {False: [], True: []}
        # A head with deferred gradients is sent later.
        waits = self.passes.defers(chunk.stage, chunk.first)
        sent = {unit.name for unit in chunk.units if not (waits and unit.name == "head")}
        # The first unit of each kind comes last in the backward pass and flushes its bucket.
        last = {unit.spread: unit for unit in reversed(chunk.units) if unit.trained and unit.name in sent}
        done = ""
        for unit in reversed(chunk.units):
            done = gradients(unit)
            # A frozen unit has no gradients to send.
            if not unit.trained or unit.name not in sent:
                continue
            filled = filling[unit.spread]
            filled.append(unit)
            bucket = Bucket(self._numbers[micro], micro, tuple(filled), done)
            # A bucket may exceed its size by the last unit: gradients are not split.
            full = bucket.elements * self.passes.gradient_itemsize >= self.passes.step.sharding.bucket_size
            if sends and (full or unit is last[unit.spread]):
                self._sent(bucket)
                filled.clear()
                # Numbers continue through a rank's chunks.
                self._numbers[micro] += 1
        return done

    def _sent(self, bucket: Bucket) -> None:
        """Write the communication of a bucket, from a cast copy if gradients travel in another dtype."""
        passes = self.passes
        # ZeRO-2 keeps no whole gradients; its `send` packs the bucket.
        buffer = passes.cast(bucket.name, bucket.units) if passes.keeps_whole_gradients else None
        sent = self.send(bucket)
        if buffer is not None:
            passes.builder.free(buffer, stream="communication", after=[sent or bucket.done])


def _volume(units: tuple[Unit, ...], sharding: Sharding, accumulation: int, ranks: int) -> int:
    """Return the elements sent per step by all N ranks together: 2 (N - 1) times the gradients."""
    return 2 * (ranks - 1) * sum(unit.trained for unit in units)


STRATEGY = Strategy(
    name="ddp",
    shards=frozenset(),
    updater=Updater.EVERY_RANK,
    gathering=Gathering.NOT_NEEDED,
    sending=GradientSync.LAST,
    options=frozenset({"bucket_size"}),
    operations=("all_reduce",),
    volume=_volume,
    plan=plan,
)
