"""Pairs the sends of a rank with the receives of another, and finds transfers that hang.

PyTorch names the ends of an operation: `nccl:send 0->1`, `nccl:recv 1<-0`, with ranks of the process group. NCCL
matches the operations between two ranks first in, first out; so does this module:

    rank 0   send 0->1   send 0->1   recv 0<-1
    rank 1   recv 1<-0   send 1->0   recv 1<-0        three transfers: two from 0 to 1, and one from 1 to 0

A ring buffer may have overwritten the first operations of a rank. The rank's first number is then greater than 1, and
the operations that both ranks have completed are matched from the last one backwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from simulator.traces.flight_recorder.dump_reader import Dump, Entry


@dataclass(frozen=True, slots=True)
class RecordedTransfer:
    """A send with its receive."""

    group: str  # name of the process group
    # `sender`, `receiver`: Ranks of the job.
    sender: int
    receiver: int
    place: int  # number among the transfers from the sender to the receiver, from 1; without overwritten ones
    # `send`, `receive`: None for an operation that its rank has not issued, or has left no dump of.
    send: Entry | None
    receive: Entry | None
    undumped: tuple[int, ...] = ()  # the ranks of the two that left no dump

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The recorded operations of the transfer."""
        return tuple(entry for entry in (self.send, self.receive) if entry is not None)

    @property
    def hangs(self) -> bool:
        """True if an operation has not completed."""
        return any(entry.state != "completed" for entry in self.entries)

    @property
    def nbytes(self) -> int | None:
        """Bytes, as the first recorded end has them."""
        return self.entries[0].nbytes

    @property
    def disagrees(self) -> bool:
        """True if both ends know their bytes, and these differ."""
        sizes = [entry.nbytes for entry in self.entries if entry.nbytes is not None]
        return len(set(sizes)) > 1

    @property
    def time(self) -> float | None:
        """Time after both ends were there [s]: the shorter of both times on the GPU; None without these times."""
        times = [entry.duration for entry in self.entries if entry.duration is not None]
        return min(times) if len(times) == 2 else None

    @property
    def begun(self) -> int:
        """When the first end was issued [ns]; 0 if unknown."""
        return min((entry.created for entry in self.entries if entry.created is not None), default=0)


def transfers_of(dumps: Sequence[Dump]) -> tuple[RecordedTransfer, ...]:
    """Return the transfers of the dumps by group, sender and receiver, each in order.

    Sends and receives without the ranks of both ends are left out.
    """
    by_ends: dict[tuple[str, int, int], tuple[list[Entry], list[Entry]]] = {}
    overwritten = set[tuple[str, int]]()
    dumped = {dump.rank for dump in dumps}
    for dump in dumps:
        for entry in dump.entries:
            if entry.ends is None:
                continue
            ranks = dump.groups.get(entry.group, ())
            sender, receiver = (ranks[end] if end < len(ranks) else end for end in entry.ends)
            # An operation belongs to the end that its rank is.
            side = 0 if entry.rank == sender else 1
            entries = by_ends.setdefault((entry.group, sender, receiver), ([], []))[side]
            entries.append(entry)
        first = {entry.group: entry.number for entry in reversed(dump.entries) if entry.ends is not None}
        overwritten |= {(group, dump.rank) for group, number in first.items() if number > 1}
    return tuple(
        pair
        for (group, sender, receiver), sides in sorted(by_ends.items())
        for pair in _paired(
            group, sender, receiver, *sides, dumped,
            aligned=(group, sender) in overwritten or (group, receiver) in overwritten,
        )
    )  # fmt: skip


def _paired(
    group: str,
    sender: int,
    receiver: int,
    sends: list[Entry],
    receives: list[Entry],
    dumped: set[int],
    *,
    aligned: bool,
) -> Iterator[RecordedTransfer]:
    """Yield the transfers from a rank to another; `aligned`: leave out those that a ring buffer has overwritten."""
    undumped = tuple(rank for rank in (sender, receiver) if rank not in dumped)
    if aligned and not undumped:
        completed = [sum(entry.state == "completed" for entry in side) for side in (sends, receives)]
        sends = sends[max(0, completed[0] - completed[1]) :]
        receives = receives[max(0, completed[1] - completed[0]) :]
    for place, (send, receive) in enumerate(zip_longest(sends, receives), 1):
        yield RecordedTransfer(group, sender, receiver, place, send, receive, undumped)


def first_hanging(transfers: Sequence[RecordedTransfer]) -> RecordedTransfer | None:
    """Return the transfer that hangs and was issued first; None if none hangs."""
    return min((pair for pair in transfers if pair.hangs), key=lambda pair: pair.begun, default=None)
