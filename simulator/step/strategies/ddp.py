"""Distributed data parallel: every rank holds everything; gradients are summed in buckets while the backward pass runs.

With accumulation only the last micro-batch communicates.

References
----------
.. [1] Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from simulator.records.operation import Act, Exchange
from simulator.step.passes import Passes
from simulator.step.pipelines.schedule import Pass
from simulator.step.process_groups import Scope
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import Gathering, Sending, Sharding, Updater
from simulator.step.stages import Chunk
from simulator.step.strategies.strategy import Strategy
from simulator.step.units import Unit


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that travel together.

    Attributes
    ----------
    number, micro : int
        Which of its micro-batch.
    units : tuple of Unit
        Whose gradients fill it.
    done : str
        The operation after which they are there.
    """

    number: int
    micro: int
    units: tuple[Unit, ...]
    done: str

    @property
    def name(self) -> str:
        """For the operations on it."""
        return f"bucket {self.number} {self.micro}"

    @property
    def scope(self) -> Scope:
        """Who sums it: experts that are spread over ranks have groups of their own."""
        return "expert data" if self.units[0].spread else "all"

    @property
    def names(self) -> tuple[str, ...]:
        """Of its units."""
        return tuple(unit.name for unit in self.units)

    @property
    def elements(self) -> int:
        """Of all its gradients."""
        return sum(unit.elements for unit in self.units)


def plan(builder: ProgramBuilder, passes: Passes) -> Bucketing:
    """All micro-batches; the last one sums gradients."""

    def summed(bucket: Bucket) -> str | None:
        name, dtype = f"all_reduce {bucket.name}", passes.step.precision.reduce
        act = Act(Exchange.ALL_REDUCE, bucket.names, bucket.micro)
        return builder.communicate(name, "all_reduce", bucket.elements, dtype, [bucket.done], bucket.scope, act)

    return Bucketing(passes, summed)


@dataclass(slots=True)
class Bucketing:
    """Passes with gradients that are sent in buckets: in each micro-batch, or in the last one alone.

    Attributes
    ----------
    passes : Passes
    send : function (bucket)
        Names the operation after which it has left.
    each : bool
    after : mapping of a unit's name to operations
        What its forward passes wait for.
    """

    passes: Passes
    send: Callable[[Bucket], str | None]
    each: bool = False
    after: Mapping[str, list[str | None]] = field(default_factory=dict)
    _numbers: Counter[int] = field(default_factory=Counter)

    def kind(self, one: Pass) -> Hashable:
        """Return None: all passes of one work and stage do the same."""
        return None

    def forward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """A micro-batch forward through a chunk."""
        done = ""
        for unit in chunk.units:
            done = self.passes.forward(micro, unit, [*after, *self.after.get(unit.name, ())])
            after = []
        return done

    def backward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """A micro-batch backward through a chunk."""
        sends, waiting = self.each or chunk.ends(micro), after

        def one(unit: Unit) -> str:
            nonlocal waiting
            done = self.passes.backward(micro, unit, chunk, waiting, communicates=sends)
            waiting = []
            return done

        self._filling(micro, chunk, one, sends=sends)
        return self.passes.handed_back

    def input_gradient(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """The half of it that the stage before waits for."""
        done = ""
        for unit in reversed(chunk.units):
            done = self.passes.input_gradient(micro, unit, after)
            after = []
        return done

    def weight_gradient(self, micro: int, chunk: Chunk) -> None:
        """The other half."""
        sends = self.each or chunk.ends(micro)
        self._filling(
            micro,
            chunk,
            lambda unit: self.passes.weight_gradient(micro, unit, chunk, communicates=sends),
            sends=sends,
        )

    def _filling(self, micro: int, chunk: Chunk, gradients: Callable[[Unit], str], *, sends: bool) -> str:
        """Make each unit's gradients, the last unit's first, and send what fills a bucket."""
        filling: dict[bool, list[Unit]] = {False: [], True: []}
        last = {unit.spread: unit for unit in reversed(chunk.units)}
        done = ""
        for unit in reversed(chunk.units):
            done = gradients(unit)
            filled = filling[unit.spread]
            filled.append(unit)
            bucket = Bucket(self._numbers[micro], micro, tuple(filled), done)
            full = bucket.elements * self.passes.gradient_itemsize >= self.passes.step.sharding.bucket_size
            if sends and (full or unit is last[unit.spread]):
                self._sent(bucket)
                filled.clear()
                # Counted on through a rank's chunks.
                self._numbers[micro] += 1
        return done

    def _sent(self, bucket: Bucket) -> None:
        passes = self.passes
        buffer = passes.cast(bucket.name, bucket.units) if passes.keeps_whole_gradients else None
        sent = self.send(bucket)
        if buffer is not None:
            passes.builder.free(buffer, stream="communication", after=[sent or bucket.done])


def _volume(units: tuple[Unit, ...], sharding: Sharding, accumulation: int, ranks: int) -> int:
    return 2 * (ranks - 1) * sum(unit.elements for unit in units)


STRATEGY = Strategy(
    name="ddp",
    shards=frozenset(),
    updater=Updater.EVERY_RANK,
    gathering=Gathering.NOT_NEEDED,
    sending=Sending.LAST,
    options=frozenset({"bucket_size"}),
    operations=("all_reduce",),
    volume=_volume,
    plan=plan,
)
