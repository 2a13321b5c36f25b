"""How much memory does each pipeline stage need at most? Found from recorded operations, without a simulation.

A few recorded micro-batches suffice: the operations of a pass come from the plan, and the order of passes from the
pipeline. A micro-batch between the first and the last allocates and frees as much as its neighbours. Collectives take
almost no time, hence their buffers are freed as early as possible, as with `need(at_once=True)`.

Example: passes F0 F1 B0 B1, each F saves 3 GB, each B allocates 1 GB temporarily and frees 4 GB in total. With 10 GB of
states, the peak is 10 + 3 + 3 + 1 = 17 GB, during B0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from simulator.cluster.cluster import Cluster
from simulator.records.operation import Allocate, Collective, Compute, Free, Op
from simulator.step.pipelines.schedule import Work
from simulator.step.plan import StageNotes, few_micro_batches
from simulator.step.spec import TrainingStep


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Peak memory of a pipeline stage's rank, by category, at the first moment of the peak."""

    stage: int  # number of the pipeline stage
    by_category: Mapping[str, int]  # "parameters", "gradients", "activations", ... [B]; without zeros.
    held: int  # forward passes of a micro-batch through a chunk whose activations are held

    @property
    def nbytes(self) -> int:
        """Total memory of the rank at the peak [B]."""
        return sum(self.by_category.values())


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """Effect on a rank's memory of a sequence of operations."""

    most: Mapping[str, int]  # bytes by category at the peak, relative to the beginning [B]
    after: Mapping[str, int]  # bytes by category at the end, relative to the beginning [B]
    highest: int  # sum of `most` [B]
    net: int  # sum of `after` [B]

    @classmethod
    def of(cls, ops: Sequence[Op], allocations: Mapping[str, Allocate]) -> _Change:
        """Return the effect of operations on memory; `allocations` has every allocation that they may free, by name."""
        here: Counter[str] = Counter()
        total = highest = 0
        most: Mapping[str, int] = {}
        for op in _in_time(ops):
            allocation = op if isinstance(op, Allocate) else allocations[op.allocation]
            nbytes = allocation.nbytes if allocation is op else -allocation.nbytes
            here[allocation.category] += nbytes
            total += nbytes
            if total > highest:
                highest, most = total, dict(here)
        return cls(most, here, highest, total)


def stage_memory(cluster: Cluster, step: TrainingStep, world_size: int) -> tuple[StageMemory, ...]:
    """Return the peak memory of each stage, on the rank with the highest peak.

    Parameters
    ----------
    cluster : Cluster
        A cluster with at least one rank, for its GPU.
    world_size : int
        Number of ranks in the step.

    Raises
    ------
    ValueError
        The ranks or the model cannot be partitioned as requested, or the GPU lacks a dtype or kernel.
    """
    return memory_of_notes(few_micro_batches(cluster, step, world_size))


def memory_of_notes(noted: Iterable[StageNotes]) -> tuple[StageMemory, ...]:
    """Return the peak memory of each stage from recorded operations; durations of collectives do not matter."""
    largest: dict[int, StageMemory] = {}
    for notes in noted:
        memory = _at_most(notes)
        # Unbalanced context parallelism gives a stage several lists.
        if notes.stage not in largest or memory.nbytes > largest[notes.stage].nbytes:
            largest[notes.stage] = memory
    return tuple(largest[stage] for stage in sorted(largest))


def _at_most(notes: StageNotes) -> StageMemory:
    """Return the peak memory of a whole step on a stage's rank, from recorded operations of a few micro-batches."""
    before, changes, after = _changes(notes)
    here = before.net
    largest, when = 0, 0
    for number, change in enumerate([*changes, after]):
        if here + change.highest > largest:
            largest, when = here + change.highest, number
        here += change.net
    by_category = Counter(before.after)
    # Sum categories only once, at the peak: a step may have millions of passes.
    for change, times in Counter(changes[:when]).items():
        by_category.update({category: times * nbytes for category, nbytes in change.after.items()})
    by_category.update([*changes, after][when].most)
    # The pass at the peak has begun: its forward counts, its backward does not end yet.
    begun = Counter(entry.work for entry in notes.order[: when + 1])
    ended = Counter(entry.work for entry in notes.order[:when])
    # A whole backward pass, or the weight gradients, frees activations.
    passes = begun[Work.FORWARD] - ended[Work.BACKWARD] - ended[Work.WEIGHT_GRADIENT]
    return StageMemory(notes.stage, {category: nbytes for category, nbytes in by_category.items() if nbytes}, passes)


def _changes(notes: StageNotes) -> tuple[_Change, list[_Change], _Change]:
    """Return the memory effects of the operations before the passes, of each pass, and of later operations."""
    # Recorded passes may free allocations of passes that were not recorded.
    allocations = {**notes.assumed, **{op.name: op for op in notes.ops if isinstance(op, Allocate)}}
    starts = [*notes.begins.values(), notes.ends]
    noted = {
        entry: _Change.of(notes.ops[begin:end], allocations)
        for (entry, begin), end in zip(notes.begins.items(), starts[1:], strict=True)
    }
    passes = [noted[entry] for entry in notes.stand_for]
    return _Change.of(notes.ops[: starts[0]], allocations), passes, _Change.of(notes.ops[notes.ends :], allocations)


def _in_time(ops: Sequence[Op]) -> list[Allocate | Free]:
    """Return the allocations and frees among operations in time order, under the assumption that only kernels take
    time.

    Operations on the compute stream happen in order, other operations when the operations in `after` have ended. A
    collective ends shortly after the start of the next kernels.
    """
    ended: dict[str, float] = {}
    streams: dict[str, float] = {}
    kernels = [number for number, op in enumerate(ops) if isinstance(op, Compute) and op.stream == "compute"]
    changes = []
    for number, op in enumerate(ops):
        at: float = number
        if op.stream != "compute":
            at = max([streams.get(op.stream, -1), *(ended.get(name, -1) for name in op.after)])
        if isinstance(op, (Allocate, Free)):
            changes.append((at, number, op))
        elif isinstance(op, Collective):
            following = bisect_right(kernels, at)
            # Kernels end at their own position; half a step earlier, they are still running.
            at = kernels[following] - 0.5 if following < len(kernels) else len(ops)
        ended[op.name] = streams[op.stream] = at
    return [op for _, _, op in sorted(changes, key=lambda change: change[:2])]
