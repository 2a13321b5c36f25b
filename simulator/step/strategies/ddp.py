"""Distributed data parallel: every rank holds everything; gradients are summed in buckets while the backward pass runs.

With accumulation only the last micro-batch communicates.

References
----------
.. [1] Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simulator.records.program import Act, Exchange
from simulator.step.passes import Passes
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import Sharding
from simulator.step.strategies.strategy import Gathering, Sending, Strategy, Updater
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
    def names(self) -> tuple[str, ...]:
        """Of its units."""
        return tuple(unit.name for unit in self.units)

    @property
    def elements(self) -> int:
        """Of all its gradients."""
        return sum(unit.elements for unit in self.units)


def plan(builder: ProgramBuilder, passes: Passes) -> None:
    """Note all micro-batches."""

    def summed(bucket: Bucket) -> str | None:
        name, dtype = f"all_reduce {bucket.name}", passes.step.precision.reduce
        act = Act(Exchange.ALL_REDUCE, bucket.names, bucket.micro)
        return builder.communicate(name, "all_reduce", bucket.elements, dtype, after=[bucket.done], act=act)

    bucketed(passes, summed)


def bucketed(
    passes: Passes,
    send: Callable[[Bucket], str | None],
    *,
    each: bool = False,
    number: int = 0,
    after: Mapping[str, list[str | None]] | None = None,
) -> None:
    """All micro-batches of a step, with gradients sent in buckets: in each of them, or in the last one alone.

    Parameters
    ----------
    passes : Passes
    send : function (bucket)
        Names the operation after which it has left.
    each : bool
    number : int
        Of the step, where several are planned.
    after : mapping of a unit's name to operations, optional
        What its forward passes wait for.
    """
    first = number * passes.step.accumulation
    for micro in range(first, first + passes.step.accumulation):
        for unit in passes.units:
            passes.forward(micro, unit, (after or {}).get(unit.name, []))
        sends = each or micro == first + passes.step.accumulation - 1
        filled: list[Unit] = []
        sent = 0
        for unit in reversed(passes.units):
            done = passes.backward(micro, unit, [], communicates=sends)
            bucket = Bucket(sent, micro, (*filled, unit), done)
            filled.append(unit)
            full = bucket.elements * passes.gradient_itemsize >= passes.step.sharding.bucket_size
            if sends and (full or unit is passes.units[0]):
                _sent(passes, bucket, send)
                filled, sent = [], sent + 1


def _sent(passes: Passes, bucket: Bucket, send: Callable[[Bucket], str | None]) -> None:
    buffer = passes.cast(bucket.name, bucket.units) if passes.keeps_whole_gradients else None
    sent = send(bucket)
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
