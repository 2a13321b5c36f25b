"""Proves that a schedule carries out its operation and has no data races, without a clock.

The proof replays, transfer by transfer, which origins each participant holds in each chunk. It uses no numbers and no
times. Origins are the ranks whose parts a value contains, written as a bit mask: bit r is set if rank r's part is
included.

Example: a reduce of 1 chunk over 3 ranks to rank 0. Columns show the origins after each transfer.

    transfer               rank 0   rank 1   rank 2
    before                 001      010      100
    0: 2 -> 1, add         001      110      100
    1: 1 -> 0, add         111      110      100      must wait for transfer 0

Without this wait, transfer 1 could read rank 1's chunk before transfer 0 wrote the chunk: a race. The proof
knows each transfer's ancestors, the transfers that certainly end before the transfer starts, also as a bit mask.

References
----------
.. [1] MSCCL checks a collective program by its pre- and postcondition over chunks: Cowan et al., "MSCCLang: Microsoft
   collective communication language", ASPLOS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.basics.errors import ScheduleError
from simulator.records.collective_operation import COLLECTIVE_OPERATIONS
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule
from simulator.records.transfers import Transfers, write_out

Held = list[list[int]]


def initial(schedule: Schedule) -> Held:
    """Return the data held before a schedule's first transfer, by [participant][chunk].

    Data are a bit mask of origins: bit r is set if rank r's part is contained.
    """
    origins = [[0] * schedule.chunks for _ in range(schedule.world_size + schedule.auxiliaries)]
    for chunk in range(schedule.chunks):
        for rank in holders(schedule, chunk):
            origins[rank][chunk] = 1 << rank
    return origins


def holders(schedule: Schedule, chunk: int) -> range:
    """Return the ranks that hold data for a chunk before a schedule's first transfer."""
    operation = COLLECTIVE_OPERATIONS[schedule.operation]
    return operation.holders(schedule.world_size, schedule.root, chunk // schedule.pieces)


def promised(schedule: Schedule, rank: int, chunk: int) -> int | None:
    """Return the origins (bit mask of ranks) that a rank must hold in a chunk at the end; None for any."""
    operation, part = COLLECTIVE_OPERATIONS[schedule.operation], chunk // schedule.pieces
    if rank not in operation.receivers(schedule.world_size, schedule.root, part):
        return None
    origins = operation.holders(schedule.world_size, schedule.root, part)
    return ((1 << len(origins)) - 1) << origins.start


def chunks_of(schedule: Schedule, transfers: Transfers, number: int) -> list[int]:
    """Return the chunks carried by transfer `number` in a schedule."""
    first, count, step = int(transfers.first[number]), int(transfers.count[number]), int(transfers.step[number])
    return [(first + i * step) % schedule.chunks for i in range(count)]


def verify(schedule: Schedule, transfers: Transfers | None = None) -> None:
    """Prove a schedule correct; raise ScheduleError on the first fault.

    The proof checks four conditions:

    - Every rank ends with the origins that the operation promises.
    - A value that is added has no origin in common with the value to which it is added.
    - Every transfer changes a value, except copies from or to a switch or server, which may repeat a value.
    - Declared waits, together with channel order, cover every read after write, write after read and write after
      write. The exception is adds that are buffered, or may arrive in any order: they need not wait for each other.

    Parameters
    ----------
    schedule : Schedule
        At most a few hundred ranks: time and memory grow with the square of the number of transfers.
    transfers : Transfers, optional
        The schedule written out, if the caller has it already, or a changed copy to be checked.

    Raises
    ------
    ScheduleError
        A check failed; the message names transfer, rank, chunk, the origins held and the origins wanted.
    """
    proof = _Proof(schedule, transfers if transfers is not None else write_out(schedule), initial(schedule))
    for number in range(len(proof.transfers)):
        proof.play(number)
    for rank in range(schedule.world_size):
        for chunk in range(schedule.chunks):
            promise = promised(schedule, rank, chunk)
            if promise is not None and proof.held[rank][chunk] != promise:
                raise ScheduleError(
                    f"{schedule.algorithm} {schedule.operation}: rank {rank}, chunk {chunk}: "
                    f"ends with {origins_text(proof.held[rank][chunk])}, wanted {origins_text(promise)}"
                )


def origins_text(origins: int) -> str:
    """Return a bit mask with ranks, the data's origins, in words for error messages.

    >>> origins_text(0b101)
    'ranks 0, 2'
    """
    ranks = [str(r) for r in range(origins.bit_length()) if origins >> r & 1]
    return "ranks " + ", ".join(ranks) if ranks else "nothing"


@dataclass(slots=True)
class _Proof:
    """State during a schedule's proof: data held, each chunk's writers and readers, transfers' ancestors."""

    schedule: Schedule
    transfers: Transfers
    held: Held
    ancestors: list[int] = field(default_factory=list)  # for each transfer, a bit mask of earlier transfers
    # (participant, chunk) -> transfers that wrote the present value, and later reads of this value.
    writers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    readers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    waits: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.waits = self.transfers.waits_of()

    def play(self, number: int) -> None:
        """Check transfer `number` for races and missing data, and carry it out on the data held."""
        src, dst = int(self.transfers.src[number]), int(self.transfers.dst[number])
        reduce = bool(self.transfers.reduce[number])
        self._note_ancestors(number)
        if not (0 <= src < len(self.held) and 0 <= dst < len(self.held) and src != dst):
            raise self._error(number, f"goes from participant {src} to {dst}")
        changed = False
        for chunk in chunks_of(self.schedule, self.transfers, number):
            self._read(number, src, chunk)
            self._write(number, dst, chunk, reduce=reduce)
            changed |= self._move(number, src, dst, chunk, reduce=reduce)
        # A copy that involves a switch or server may be redundant: a multicast also returns the sum to its sender.
        if not changed and (reduce or max(src, dst) < self.schedule.world_size):
            raise self._error(number, f"from {src} to {dst} changes nothing")

    def _move(self, number: int, src: int, dst: int, chunk: int, *, reduce: bool) -> bool:
        """Update the origins held by `dst` in a chunk after a transfer from `src`; return True if changed.

        ScheduleError if the sender holds no data, or if data would be added twice.
        """
        have, target = self.held[src][chunk], self.held[dst][chunk]
        if not have:
            raise self._error(number, f"rank {src} sends chunk {chunk}, but holds no data for this chunk")
        if reduce and have & target:
            raise self._error(
                number,
                f"chunk {chunk}: adds {origins_text(have)} to rank {dst}, which holds {origins_text(target)} already",
            )
        self.held[dst][chunk] = have | target if reduce else have
        return self.held[dst][chunk] != target

    def _note_ancestors(self, number: int) -> None:
        """Append the transfer's ancestors: its waits, its predecessor on the channel, and their ancestors."""
        ancestors = 0
        before = int(self.transfers.before_on_channel[number])
        for awaited in [*self.waits[number], *([before] if before >= 0 else [])]:
            if awaited >= number:
                raise self._error(number, f"waits for transfer {awaited}, which comes later")
            ancestors |= self.ancestors[awaited] | 1 << awaited
        self.ancestors.append(ancestors)

    def _read(self, number: int, src: int, chunk: int) -> None:
        """Check that earlier writes to a rank's chunk have ended when transfer `number` reads; log the read."""
        self._after(number, self.writers.get((src, chunk), []), f"reads chunk {chunk} of rank {src}, written by")
        self.readers.setdefault((src, chunk), []).append(number)

    def _write(self, number: int, dst: int, chunk: int, *, reduce: bool) -> None:
        """Check that earlier reads and writes in a chunk have ended when transfer `number` writes; log the write."""
        place = (dst, chunk)
        what = f"writes chunk {chunk} of rank {dst}"
        self._after(number, self.readers.get(place, []), f"{what}, read by")
        earlier = self.writers.get(place, [])
        unordered = reduce and self.schedule.reduction_order != ReductionOrder.IN_SEQUENCE
        # Adds that are buffered or taken in any order may overlap with each other; a copy may not.
        ordered_after = [w for w in earlier if not (unordered and self.transfers.reduce[w])]
        self._after(number, ordered_after, f"{what}, written by")
        self.readers[place] = []
        # Every unordered add contributes to the value: a later reader must wait for each add.
        self.writers[place] = [*earlier, number] if unordered else [number]

    def _after(self, number: int, others: list[int], why: str) -> None:
        for other in others:
            if not self.ancestors[number] >> other & 1:
                remedy = f"for which it does not wait; add {other} to its `after`"
                raise self._error(number, f"{why} transfer {other}, {remedy}")

    def _error(self, number: int, what: str) -> ScheduleError:
        return ScheduleError(f"{self.schedule.algorithm} {self.schedule.operation}: transfer {number}: {what}")
