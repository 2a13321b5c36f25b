"""Does a collective's result equal its operation's definition? The definition is the sum of all inputs, or the copies.

The judge is independent of the engines and has neither clock nor buffers. The transfers' order decides only how a sum
rounds: every rank's chunk becomes an expression over the inputs, such as "((2 + 3) + 0) + 1", and each distinct
expression is evaluated once. An expression that lacks an input, or has an input twice, is not the definition: the
results are then compared with the sum in rank order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Array, Ints
from simulator.basics.dtypes import Dtype
from simulator.collectives.payload.inputs import RandomInput
from simulator.collectives.payload.reduction import accumulate_into, exact, finished, overflowed
from simulator.collectives.verify import chunks_of, holders, promised
from simulator.records.chunks import chunk_starts
from simulator.records.collective_operation import COLLECTIVE_OPERATIONS
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule
from simulator.records.transfers import Transfers

# Kinds of terms: ("input", rank); ("add", term, term); ("total", term), a complete sum, divided (average) and rounded
# to its final dtype; ("rounded", term), a partial sum sent in the payload's dtype; ("nothing", 0), data that a
# participant sends or returns without holding any.
Term = tuple[str, int] | tuple[str, int, int]
# A transfer with a single chunk: source, destination, and whether the destination adds the chunk.
Step = tuple[int, int, bool]


@dataclass(frozen=True, slots=True)
class Numbers:
    """A collective's number formats and reduction."""

    dtype: Dtype  # dtype of the payload
    reduction: str  # "sum", "average", "max", "min" or "product"
    accumulate: npt.DTypeLike  # dtype of partial sums


@dataclass(frozen=True, slots=True)
class Verdict:
    """Comparison between a collective's results and the expected results."""

    # Elements, over all ranks, that differ from the operation's definition, with sums rounded in the simulated order.
    wrong: int
    max_abs_error: float  # largest distance from the exact result
    overflowed: int  # elements whose exact result the dtype cannot hold


@dataclass(slots=True)
class _Chunk:
    """Sums for a chunk, as expressions over the inputs: each participant's term and buffered terms.

    Terms are numbered in order of creation; equal terms share a number. A term's origins are a bit mask of the inputs
    it contains; the bit above the last rank marks a term that contains an input twice, or data that nobody held.
    """

    world_size: int
    reduction_order: ReductionOrder
    rounds: bool
    held: dict[int, int]
    terms: list[Term] = field(default_factory=list)
    known: dict[Term, int] = field(default_factory=dict)
    origins: list[int] = field(default_factory=list)
    buffered: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def term(self, term: Term, origins: int) -> int:
        """Return a term's number in the chunk's expressions, new or known; `origins` marks the inputs by bits."""
        if term not in self.known:
            self.known[term] = len(self.terms)
            self.terms.append(term)
            self.origins.append(origins)
        return self.known[term]

    def add(self, a: int, b: int) -> int:
        """Return the number of the term that adds the terms with numbers `a` and `b`."""
        twice = self.origins[a] & self.origins[b] != 0
        return self.term(("add", a, b), self.origins[a] | self.origins[b] | twice << self.world_size)

    def at(self, participant: int) -> int:
        """Return the number of the term that a participant holds."""
        if participant not in self.held:
            self.held[participant] = self.term(("nothing", 0), 1 << self.world_size)
        return self.held[participant]

    def settle(self, participant: int) -> None:
        """Add the terms buffered at a participant in rank order, with its own term at its rank's place."""
        waiting = self.buffered.pop(participant, [])
        if not waiting:
            return
        rank_terms = [(participant, self.held[participant])] if participant in self.held else []
        terms = [term for _, term in sorted(waiting + rank_terms)]
        total = terms[0]
        for term in terms[1:]:
            total = self.add(total, term)
        self.held[participant] = total

    def transfer(self, src: int, dst: int, *, reduce: bool) -> None:
        """Replay a transfer of the chunk from `src` to `dst`: the receiver's term becomes a sum or a copy."""
        self.settle(src)
        value = self.at(src)
        if not reduce:
            self.settle(dst)
            self.held[dst] = self.finish(value, keep=False)
            self.held[src] = self.finish(value, keep=True)
        elif self.reduction_order == ReductionOrder.BUFFERED:
            self.buffered.setdefault(dst, []).append((src, value))
        elif dst in self.held:
            self.held[dst] = self.add(self.held[dst], value)
        else:
            self.held[dst] = value

    def finish(self, value: int, *, keep: bool) -> int:
        """Return the number of the term into which a copy turns the term `value`.

        A complete sum becomes final. A partial sum is rounded at the receiver, while its sender keeps the wide sum
        (`keep`).
        """
        if not self.rounds or self.terms[value][0] != "add":
            return value
        if self.origins[value] == (1 << self.world_size) - 1:
            return self.term(("total", value), self.origins[value])
        return value if keep else self.term(("rounded", value), self.origins[value])


def judge(
    schedule: Schedule,
    transfers: Transfers,
    order: Ints,
    numbers: Numbers,
    inputs: Sequence[Array | RandomInput],
    results: Sequence[Array],
) -> Verdict:
    """Compare a collective's results with its operation's definition, bit for bit, and with exact arithmetic.

    Returns the number of wrong elements, the largest error and the number of overflows.

    Parameters
    ----------
    schedule, transfers : Schedule, Transfers
        The collective.
    order : int array, shape (t,)
        Transfer numbers in the order in which they ended.
    numbers : Numbers
        Dtypes and operation.
    inputs, results : sequence of array
        Each rank's buffer before and after, in the layout of `inputs.buffers`: chunks in order. `RandomInput` may
        replace an input.
    """
    steps = list(zip(transfers.src.tolist(), transfers.dst.tolist(), transfers.reduce.tolist(), strict=True))
    carried: list[list[Step]] = [[] for _ in range(schedule.chunks)]
    for number in order.tolist():
        for chunk in chunks_of(schedule, transfers, number):
            carried[chunk].append(steps[number])
    starts = chunk_starts(schedule, _elements(schedule, inputs)).tolist()
    wrong, error, over = 0, 0.0, 0
    for chunk in range(schedule.chunks):
        part = slice(starts[chunk], starts[chunk + 1])
        verdict = _judge_chunk(schedule, chunk, carried[chunk], part, numbers, inputs, results)
        wrong, over, error = wrong + verdict.wrong, over + verdict.overflowed, max(error, verdict.max_abs_error)
    return Verdict(wrong, error, over)


def _elements(schedule: Schedule, inputs: Sequence[Array | RandomInput]) -> int:
    """Return the number of elements of a collective's array, given each rank's input buffer."""
    return len(inputs[0]) // schedule.world_size if schedule.operation == "all_to_all" else len(inputs[0])


def _judge_chunk(
    schedule: Schedule,
    chunk: int,
    carried: list[Step],
    part: slice,
    numbers: Numbers,
    inputs: Sequence[Array | RandomInput],
    results: Sequence[Array],
) -> Verdict:
    """Compare a single chunk's results on every rank with the definition; return the verdict.

    `carried` has the chunk's transfers in the order in which they ended, and `part` is its slice of the buffers.
    """
    # Chunks are independent, so a single chunk's expressions bound the memory.
    expressions = _replayed(schedule, chunk, carried, numbers)
    required, origins = _promised_terms(schedule, chunk, expressions)
    if not required or part.start == part.stop:
        return Verdict(0, 0.0, 0)
    n = schedule.world_size
    values = _evaluate(expressions, required, numbers, inputs, part, n)
    # Inputs contained in the required result.
    sources = [inputs[rank][part] for rank in range(n) if origins >> rank & 1]
    reduced = len(sources) > 1
    truth = exact(sources, numbers.reduction)
    wrong, error = 0, 0.0
    for number, ranks in required.items():
        term, expected = expressions.terms[number], values[number]
        if expressions.origins[number] != origins:
            term, expected = ("total", 0), _defined(sources, numbers)
        # A "total" was divided and rounded when it was copied. Any other sum is still at its owner.
        elif reduced and not (expressions.rounds and term[0] == "total"):
            expected = finished(expected, numbers.reduction, n, numbers.dtype.numpy)
        # A copied input is exact: its distance is 0.
        if reduced or term != ("input", origins.bit_length() - 1):
            error = max(error, _distance(expected, truth))
        for rank in ranks:
            differing = unlike(results[rank][part], expected)
            if differing:
                wrong += differing
                error = max(error, _distance(results[rank][part], truth))
    return Verdict(wrong, error, overflowed(truth, numbers.dtype) if reduced else 0)


def _defined(sources: Sequence[Array], numbers: Numbers) -> Array:
    """Return the operation's result for the inputs `sources` of a chunk, added in rank order; a single input's copy."""
    total = sources[0].astype(numbers.accumulate if len(sources) > 1 else numbers.dtype.numpy)
    for other in sources[1:]:
        accumulate_into(total, other.astype(total.dtype, copy=False), numbers.reduction)
    return finished(total, numbers.reduction, len(sources), numbers.dtype.numpy) if len(sources) > 1 else total


def _replayed(schedule: Schedule, chunk: int, carried: list[Step], numbers: Numbers) -> _Chunk:
    """Return a chunk's expressions after a replay; `carried` has the transfers (source, destination, reduce)."""
    rounds = np.dtype(numbers.accumulate) != numbers.dtype.numpy
    expressions = _Chunk(schedule.world_size, schedule.reduction_order, rounds, {})
    for rank in holders(schedule, chunk):
        expressions.held[rank] = expressions.term(("input", rank), 1 << rank)
    for src, dst, reduce in carried:
        expressions.transfer(src, dst, reduce=reduce)
    return expressions


def _promised_terms(schedule: Schedule, chunk: int, expressions: _Chunk) -> tuple[dict[int, list[int]], int]:
    """Return the terms that ranks must hold at the end, with these ranks, and the inputs in every term (bit mask)."""
    required: dict[int, list[int]] = {}
    receivers = COLLECTIVE_OPERATIONS[schedule.operation].receivers(
        schedule.world_size, schedule.root, chunk // schedule.pieces
    )
    for rank in receivers:
        expressions.settle(rank)
        required.setdefault(expressions.at(rank), []).append(rank)
    return required, promised(schedule, receivers.start, chunk) or 0


def _evaluate(
    expressions: _Chunk,
    required: Iterable[int],
    numbers: Numbers,
    inputs: Sequence[Array | RandomInput],
    part: slice,
    n: int,
) -> list[Array]:
    """Return each term's value in a chunk's expressions; only `required` values survive.

    Later sums may overwrite further values. `part` is the chunk's slice in the inputs.
    """
    values: list[Array] = []
    used = Counter(chain.from_iterable(term[1:] for term in expressions.terms if term[0] not in ("input", "nothing")))
    used.update(list(required))
    for term in expressions.terms:
        if term[0] == "input":
            values.append(inputs[term[1]][part])
        elif term[0] == "nothing":
            values.append(np.zeros(part.stop - part.start, numbers.dtype.numpy))
        elif term[0] == "add":
            # A partial sum without further use is overwritten in place.
            last = expressions.terms[term[1]][0] == "add" and used[term[1]] == 1
            total = values[term[1]].astype(numbers.accumulate, copy=not last)
            other = values[term[2]].astype(numbers.accumulate, copy=False)  # type: ignore[misc]
            accumulate_into(total, other, numbers.reduction)
            values.append(total)
        elif term[0] == "total":
            values.append(finished(values[term[1]], numbers.reduction, n, numbers.dtype.numpy))
        else:
            values.append(finished(values[term[1]], "sum", n, numbers.dtype.numpy))
    return values


def unlike(a: Array, b: Array) -> int:
    """Return the number of elements in which two arrays differ in any bit; NaN equals NaN.

    >>> unlike(np.array([0.0, 1.0, np.nan]), np.array([-0.0, 1.0, np.nan]))
    1
    """
    raw = f"u{a.dtype.itemsize}"
    differ = np.ascontiguousarray(a).view(raw) != np.ascontiguousarray(b).view(raw)
    if not differ.any():
        return 0
    # Integers have no NaN.
    if a.dtype.kind in "iu":
        return int(np.count_nonzero(differ))
    # NaNs with different bit patterns are equal.
    both_nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return int(np.count_nonzero(differ & ~both_nan))


def _distance(result: Array, truth: Array) -> float:
    """Return the largest finite absolute difference between a result and the exact result."""
    with np.errstate(invalid="ignore"):
        distance = np.abs(result.astype(truth.dtype) - truth)
    distance = distance[np.isfinite(distance)]
    return float(distance.max()) if len(distance) else 0.0
