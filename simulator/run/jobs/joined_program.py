"""Joins the steps of several jobs into one Program on one cluster.

A job is a training step that is repeated, or the generation of batches for such a training, or both on the same GPUs.
The joined program has every job's ranks, numbered job by job, and every step's operations under the job's name and the
step's number: "b 2 forward layer 0". Operations of a step keep their waits; the first operations of a step wait for the
last operations of the step before, on the same rank. Memory is left out, because jobs share no GPU: each holds what it
holds alone.

Example: job "a" with the operations [gather, forward] and two steps becomes, on each of its ranks,
[start a, a 0 gather, a 0 forward, a 1 gather, a 1 forward]; "a 1 gather" waits for "a 0 forward".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from simulator.records.operation import Allocate, Collective, Compute, Free, Op
from simulator.records.program import CollectiveGroupFamily, OperationLists, Program, RanksByList

# Beginning of the names of averages of copies, after job and step.
AVERAGE: Final = "average"
# Parts and streams of the exchanges between jobs, during which a job may wait for another one.
EXCHANGES: Final = ("batch", "weights")


def prefix(job: str, step: int) -> str:
    """Return the beginning of the names of a step's operations in a joined program.

    >>> prefix("chat", 3) + "forward 0"
    'chat 3 forward 0'
    """
    return f"{job} {step} "


@dataclass(frozen=True, slots=True)
class Phase:
    """Work on a batch before its training, or before it is handed over."""

    name: str  # "generate", ...
    kind: str  # for colours and sums: "generation", "forward", ...
    seconds: float
    on_gpu: bool = True  # whether a slow GPU takes longer
    says: str = "generation"  # what takes the time, in a sentence


@dataclass(frozen=True, slots=True)
class JobProgram:
    """A job's part in a joined program."""

    name: str  # name of the job
    # Operations of a step; ranks are numbered from 0. Without operations if the job only generates.
    program: Program
    # Number of steps; of batches, if the job only generates.
    steps: int
    start: float = 0.0  # when the job begins [s]
    # Work on a batch on the job's GPUs, in this order, before the batch is trained.
    phases: tuple[Phase, ...] = ()
    steps_per_batch: int = 1  # training steps for each generated batch
    priority: float = 1.0  # weight of the job's transfers on full links

    def phase(self, name: str) -> Phase | None:
        """Return the phase with a name, or None."""
        return next((phase for phase in self.phases if phase.name == name), None)


@dataclass(frozen=True, eq=False)
class BatchExchange:
    """A job that generates batches for another, which returns its weights."""

    # `generator`, `trainer`: Names of the jobs.
    generator: str
    trainer: str
    # Number of updates by which the weights that generate a batch may be older than its training: 0 for training on
    # policy.
    lag: int
    steps_per_batch: int  # training steps for each batch
    # `batch`, `weights`: Exchanges between all ranks of both jobs, which have their numbers in the joined program.
    batch: Collective
    weights: Collective

    def returns(self, batch: int, batches: int) -> bool:
        """Return True if the weights after the training of a batch generate one of the later batches."""
        return batch + 1 + self.lag < batches

    def named(self, part: str, batch: int) -> str:
        """Return the name of a batch's exchange, or of the weights after it."""
        if part == "batch":
            return prefix(self.generator, batch) + part
        # The weights belong to the last step of the batch.
        return prefix(self.trainer, (batch + 1) * self.steps_per_batch - 1) + part


@dataclass(frozen=True, eq=False)
class OuterAverage:
    """Copies of a training that average their parameters every so many steps."""

    copies: tuple[str, ...]  # names of the jobs
    every: int  # steps between two averages
    delay: int  # steps during which an average may be under way before its result is needed
    # For each rank of a copy, the average with the same ranks of the other copies; ranks have their numbers in the
    # joined program.
    averages: tuple[Collective, ...]

    def named(self, step: int, rank: int) -> str:
        """Return the name of the average after a step, on a rank of each copy."""
        return prefix(self.copies[0], step) + f"{AVERAGE} (rank {rank})"


@dataclass(frozen=True, slots=True)
class _RepeatedList:
    """The operations of a list that a joined program repeats."""

    places: tuple[int, ...]  # places of kernels and collectives in the list of a step
    waits: tuple[tuple[int, ...], ...]  # for each of them, the places of the step's operations that must end first
    first: tuple[bool, ...]  # for each of them, whether it is the first of its stream
    last: dict[str, int]  # place of each stream's last operation


def _without_memory(ops: Sequence[Op]) -> _RepeatedList:
    """Return the kernels and collectives of a list, which wait for what they waited for through memory operations."""
    place_of = {op.name: place for place, op in enumerate(ops)}
    # For each memory operation, the kernels and collectives that end before it; for each stream, those that its next
    # kernel or collective must wait for on behalf of memory operations.
    before: dict[int, dict[int, None]] = {}
    owed: dict[str, dict[int, None]] = {}
    last: dict[str, int] = {}
    places, waits, first = [], [], []
    for place, op in enumerate(ops):
        awaits: dict[int, None] = {}
        for name in op.after:
            awaited = place_of[name]
            awaits |= before.get(awaited, {awaited: None})
        if isinstance(op, Allocate | Free):
            stream = owed.setdefault(op.stream, {})
            stream |= awaits
            ended = {last[op.stream]: None} if op.stream in last else {}
            before[place] = ended | stream
        else:
            awaits |= owed.pop(op.stream, {})
            places.append(place)
            waits.append(tuple(awaits))
            first.append(op.stream not in last)
            last[op.stream] = place
    return _RepeatedList(tuple(places), tuple(waits), tuple(first), last)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An operation of a job: its part ("start", "generate", "batch", "weights", "step"), its step or batch, and for an
    operation of a step its place in the list of the step.
    """

    part: str
    step: int = 0
    place: int = 0


_START: Final = _Entry("start")
# Operations of a list in order, each with those that must end first.
_Layout = Iterator[tuple[_Entry, tuple[_Entry, ...]]]


def _trained(
    job: JobProgram, repeated: _RepeatedList, exchange: BatchExchange | None, outer: OuterAverage | None
) -> _Layout:
    """Yield the operations of a list of a job that trains."""
    yield _START, ()
    ended = [_START]
    # Average that a later step waits for, by the number of that step.
    due: dict[int, _Entry] = {}
    for step in range(job.steps):
        batch, within = divmod(step, job.steps_per_batch)
        if step in due:
            ended.append(due.pop(step))
        if within == 0 and exchange:
            received = _Entry("batch", batch)
            # Asked for when the training of the batch before has ended: a waiting exchange would slow its kernels down.
            yield received, tuple(ended)
            ended.append(received)
        for phase in job.phases if within == 0 else ():
            worked = _Entry(phase.name, step)
            yield worked, tuple(ended)
            ended.append(worked)
        for place, waits, first in zip(repeated.places, repeated.waits, repeated.first, strict=True):
            before = tuple(_Entry("step", step, wait) for wait in waits)
            yield _Entry("step", step, place), (*before, *ended) if first else before
        ended = [_Entry("step", step, last) for last in repeated.last.values()]
        if outer and (step + 1) % outer.every == 0:
            averaged = _Entry(AVERAGE, step)
            yield averaged, tuple(ended)
            due[step + 1 + outer.delay] = averaged
        if exchange and within == job.steps_per_batch - 1 and exchange.returns(batch, job.steps // job.steps_per_batch):
            weights = _Entry("weights", batch)
            yield weights, tuple(ended)
            ended.append(weights)


def _generated(job: JobProgram, exchange: BatchExchange | None) -> _Layout:
    """Yield the operations of a list of a job that only generates."""
    yield _START, ()
    ended = _START
    for batch in range(job.steps):
        if exchange and batch > exchange.lag:
            weights = _Entry("weights", batch - 1 - exchange.lag)
            yield weights, (ended,)
            ended = weights
        for phase in job.phases:
            worked = _Entry(phase.name, batch)
            yield worked, (ended,)
            ended = worked
        if exchange:
            yield _Entry("batch", batch), (ended,)


class _Part:
    """A job in a joined program.

    Parameters
    ----------
    job : JobProgram
        The job.
    first_rank : int
        Number of its rank 0 in the joined program.
    exchange : BatchExchange or None
        What it exchanges with another job.
    outer : OuterAverage or None
        How it averages its parameters with copies of itself.
    """

    def __init__(
        self, job: JobProgram, first_rank: int, exchange: BatchExchange | None, outer: OuterAverage | None
    ) -> None:
        self.job, self.first_rank, self.exchange, self.outer = job, first_rank, exchange, outer
        lists = [_without_memory(ops) for ops in job.program.lists.lists]
        self.layouts = [
            tuple(_trained(job, repeated, exchange, outer) if repeated.places else _generated(job, exchange))
            for repeated in lists
        ]

    def number(self, rank: int) -> int:
        """Return the list of a rank of the job."""
        return self.job.program.lists.list_of[rank]

    def name(self, place: int, rank: int) -> str:
        """Return the name of the operation at a place of a rank of the job."""
        return self._named(self.layouts[self.number(rank)][place][0], rank)

    def _named(self, entry: _Entry, rank: int) -> str:
        if entry == _START:
            return f"start {self.job.name}"
        if entry.part == "step":
            return prefix(self.job.name, entry.step) + self.job.program.name(rank, entry.place)
        if entry.part == AVERAGE and self.outer:
            return self.outer.named(entry.step, rank)
        if self.exchange and self.job.phase(entry.part) is None:
            return self.exchange.named(entry.part, entry.step)
        return prefix(self.job.name, entry.step) + entry.part

    def operation(self, place: int, rank: int) -> Op:
        """Return the operation at a place of a rank of the job."""
        entry, waits = self.layouts[self.number(rank)][place]
        name, after = self._named(entry, rank), tuple(self._named(wait, rank) for wait in waits)
        if entry == _START:
            return Compute(name, self.job.start, kind=_START.part, stream=_START.part, on_gpu=False)
        if phase := self.job.phase(entry.part):
            return Compute(name, phase.seconds, kind=phase.kind, after=after, on_gpu=phase.on_gpu)
        if entry.part == "step":
            op = self.job.program.operation(rank, entry.place)
            return self.collective(name, op, after) if isinstance(op, Collective) else _renamed(op, name, after)
        if entry.part == AVERAGE and self.outer:
            return self.averaged(self.outer, entry.step, rank, after)
        return self.exchanged(entry, after)

    def collective(self, name: str, op: Collective, after: tuple[str, ...] = ()) -> Collective:
        """Return a step's collective under a new name, between the ranks of the joined program."""
        renamed = op.named(name, after, tuple(self.first_rank + rank for rank in op.group))
        return renamed if self.job.priority == 1.0 else replace(renamed, priority=self.job.priority)

    def averaged(self, outer: OuterAverage, step: int, rank: int, after: tuple[str, ...] = ()) -> Collective:
        """Return the average of a rank's parameters with those of the same rank of each copy."""
        return replace(outer.averages[rank], name=outer.named(step, rank), after=after, stream=AVERAGE)

    def exchanged(self, entry: _Entry, after: tuple[str, ...] = ()) -> Collective:
        """Return the exchange of a batch or of weights with another job."""
        if self.exchange is None:
            raise ValueError(f"job {self.job.name!r} exchanges nothing")
        op = self.exchange.batch if entry.part == "batch" else self.exchange.weights
        return replace(op, name=self._named(entry, 0), after=after, stream=entry.part)


def _renamed(op: Op, name: str, after: tuple[str, ...]) -> Op:
    """Return a kernel under a new name, which waits for other operations."""
    return replace(op, name=name, after=after) if isinstance(op, Compute) else op


class _Families:
    """Collects the families of the collectives of a joined program, and numbers them."""

    def __init__(self) -> None:
        self.families: list[CollectiveGroupFamily] = []
        self._number: dict[Hashable, int] = {}

    def at(self, part: _Part, number: int) -> tuple[int, ...]:
        """Return the family of each operation of a list of a job; -1 for operations that are no collectives."""
        return tuple(self._of(part, number, entry) for entry, _ in part.layouts[number])

    def _of(self, part: _Part, number: int, entry: _Entry) -> int:
        if entry.part in EXCHANGES and part.exchange:
            # Both jobs of an exchange have its collectives.
            op = part.exchanged(entry)
            return self._added(op.name, lambda: CollectiveGroupFamily((part.exchange, entry.part), 1, lambda _: op))
        outer = part.outer
        if entry.part == AVERAGE and outer:
            ranks = range(len(outer.averages))
            return self._added(
                (id(outer), entry.step),
                lambda: CollectiveGroupFamily(
                    (id(outer), AVERAGE), len(ranks), lambda rank: part.averaged(outer, entry.step, rank)
                ),
            )
        lists = part.job.program.lists
        family = lists.family_at[number][entry.place] if entry.part == "step" else -1
        if family < 0:
            return -1
        collectives, begins = lists.families[family], prefix(part.job.name, entry.step)
        key = part.job.name, collectives.key

        def member(index: int) -> Collective:
            op = collectives[index]
            return part.collective(begins + op.name, op)

        return self._added((begins, family), lambda: CollectiveGroupFamily(key, len(collectives), member))

    def _added(self, key: Hashable, make: Callable[[], CollectiveGroupFamily]) -> int:
        if key not in self._number:
            self._number[key] = len(self.families)
            self.families.append(make())
        return self._number[key]


def joined(
    jobs: Sequence[JobProgram], exchanges: Sequence[BatchExchange] = (), outers: Sequence[OuterAverage] = ()
) -> Program:
    """Return the program of all jobs together; ranks of the joined program are numbered job by job."""
    exchange_of = {name: setting for setting in exchanges for name in (setting.generator, setting.trainer)}
    outer_of = {name: setting for setting in outers for name in setting.copies}
    firsts = accumulate((len(job.program.ranks) for job in jobs), initial=0)
    parts = [
        _Part(job, first, exchange_of.get(job.name), outer_of.get(job.name))
        for job, first in zip(jobs, firsts, strict=False)
    ]
    of_rank = [(part, rank) for part in parts for rank in range(len(part.job.program.ranks))]
    lists: list[tuple[Op, ...]] = []
    list_of: list[int] = []
    families, family_at = _Families(), []
    for part in parts:
        numbers = part.job.program.lists
        list_of += [len(lists) + number for number in numbers.list_of]
        for number, layout in enumerate(part.layouts):
            rank = numbers.list_of.index(number)
            lists.append(tuple(part.operation(place, rank) for place in range(len(layout))))
            family_at.append(families.at(part, number))

    def operation(place: int, rank: int) -> Op:
        part, numbers = of_rank[rank]
        return part.operation(place, numbers)

    def name(place: int, rank: int) -> str:
        part, numbers = of_rank[rank]
        return part.name(place, numbers)

    all_lists = OperationLists(tuple(lists), tuple(list_of), tuple(families.families), tuple(family_at))
    return Program(RanksByList(all_lists, operation, name))
