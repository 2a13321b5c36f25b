"""Most that a rank of each pipeline stage holds, for a step of any number of micro-batches, without playing it.

Rule: no bytes of its own: what a pass takes and gives back is what the plan notes for it, and which pass follows which
is the pipeline's order. A micro-batch between the first and the last takes what another one does, so a few are enough.
Collectives take hardly any time: what they hold is held no longer than it must be, as with `need(at_once=True)`.
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
    """A stage's rank when it first holds most.

    Attributes
    ----------
    stage : int
        Its place in the pipeline.
    by_category : mapping of str to int
        "parameters", "gradients", "activations", ... [B]; none of them 0.
    held : int
        Passes forward, of a micro-batch through a chunk of the model, whose activations are there.
    """

    stage: int
    by_category: Mapping[str, int]
    held: int

    @property
    def nbytes(self) -> int:
        """All of it [B]."""
        return sum(self.by_category.values())


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """What some operations take and give back.

    Attributes
    ----------
    most, after : mapping of str to int
        By category what is held beyond what was there before, when that is most, and at the end [B].
    highest, net : int
        Their sums [B].
    """

    most: Mapping[str, int]
    after: Mapping[str, int]
    highest: int
    net: int

    @classmethod
    def of(cls, ops: Sequence[Op], taken: Mapping[str, Allocate]) -> _Change:
        """Of operations that follow each other; `taken` has whatever they may free."""
        here: Counter[str] = Counter()
        total = highest = 0
        most: Mapping[str, int] = {}
        for op in _in_time(ops):
            one = op if isinstance(op, Allocate) else taken[op.allocation]
            nbytes = one.nbytes if one is op else -one.nbytes
            here[one.category] += nbytes
            total += nbytes
            if total > highest:
                highest, most = total, dict(here)
        return cls(most, here, highest, total)


def stage_memory(cluster: Cluster, step: TrainingStep, world_size: int) -> tuple[StageMemory, ...]:
    """Most that the ranks of each stage hold, by stage; of the ranks of a stage the one that holds most.

    Parameters
    ----------
    cluster : Cluster
        Of one rank at least, for its GPU.
    step : TrainingStep
    world_size : int
        Ranks that carry out the step.

    Raises
    ------
    ValueError
        The ranks or the model cannot be cut as asked, or this GPU lacks something.
    """
    return memory_of_notes(few_micro_batches(cluster, step, world_size))


def memory_of_notes(noted: Iterable[StageNotes]) -> tuple[StageMemory, ...]:
    """The same of what `few_micro_batches` has noted; how long collectives take does not matter."""
    largest: dict[int, StageMemory] = {}
    for notes in noted:
        found = _at_most(notes)
        if notes.stage not in largest or found.nbytes > largest[notes.stage].nbytes:
            largest[notes.stage] = found
    return tuple(largest[stage] for stage in sorted(largest))


def _at_most(notes: StageNotes) -> StageMemory:
    """Go through all passes of a step, to when most is held."""
    before, changes, after = _changes(notes)
    here = before.net
    largest, when = 0, 0
    for number, change in enumerate([*changes, after]):
        if here + change.highest > largest:
            largest, when = here + change.highest, number
        here += change.net
    held = Counter(before.after)
    for change, times in Counter(changes[:when]).items():
        held.update({category: times * nbytes for category, nbytes in change.after.items()})
    held.update([*changes, after][when].most)
    begun = Counter(one.work for one in notes.order[: when + 1])
    ended = Counter(one.work for one in notes.order[:when])
    passes = begun[Work.FORWARD] - ended[Work.BACKWARD] - ended[Work.WEIGHT_GRADIENT]
    return StageMemory(notes.stage, {category: nbytes for category, nbytes in held.items() if nbytes}, passes)


def _changes(notes: StageNotes) -> tuple[_Change, list[_Change], _Change]:
    """What happens before all passes, in each of them, and after."""
    taken = {**notes.assumed, **{op.name: op for op in notes.ops if isinstance(op, Allocate)}}
    starts = [*notes.begins.values(), notes.ends]
    noted = {
        one: _Change.of(notes.ops[begin:end], taken)
        for (one, begin), end in zip(notes.begins.items(), starts[1:], strict=True)
    }
    passes = [noted[one] for one in notes.stand_for]
    return _Change.of(notes.ops[: starts[0]], taken), passes, _Change.of(notes.ops[notes.ends :], taken)


def _in_time(ops: Sequence[Op]) -> list[Allocate | Free]:
    """Changes of memory as they happen where kernels take time and nothing else does.

    What is on the compute stream happens in order, anything else as soon as what it waits for has ended. A collective
    ends when the next kernels have just begun.
    """
    ended: dict[str, float] = {}
    streams: dict[str, float] = {}
    kernels = [number for number, op in enumerate(ops) if isinstance(op, Compute) and op.stream == "compute"]
    changes = []
    for number, op in enumerate(ops):
        at: float = number
        if op.stream != "compute":
            at = max([streams.get(op.stream, -1), *(ended.get(name, -1) for name in op.after)])
        if isinstance(op, Collective):
            following = bisect_right(kernels, at)
            at = kernels[following] - 0.5 if following < len(kernels) else len(ops)
        ended[op.name] = streams[op.stream] = at
        if isinstance(op, Allocate | Free):
            changes.append((at, number, op))
    return [op for _, _, op in sorted(changes, key=lambda change: change[:2])]
