"""How do a schedule's transfers depend on each other? Rows form a graph, with a repeated round written once.

Rows have no bytes, no links and no times. Waits inside a round are pairs with a shift in repetitions (`inner`); waits
between rounds are pairs between single repetitions (`outer`). If many transfers wait for the same transfers, they share
a gate: a row without a route.

Example: an all-gather ring over 3 ranks has two rounds. In the first, each rank sends its own chunk; the second,
carried out once, hands on the received chunk::

    row   0: 0 -> 1   1: 1 -> 2   2: 2 -> 0     round 0
    row   3: 0 -> 1   4: 1 -> 2   5: 2 -> 0     round 1, row 4 waits for row 0 (outer), row 5 for 1, row 3 for 2
    exit  3           4           5             next row on the same channel
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Bools, Ints
from simulator.engine.traffic import Traffic

_NONE: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Rows:
    """A schedule's dependency graph: rows, each a transfer in a round, with repetitions, channels and waits.

    Rows stand round after round; in each round the gates (rows without bytes, for waiting only) come first.
    """

    # `ranks`, `participants`: Ranks of the group; participants are ranks, servers and switches.
    ranks: int
    participants: int
    # Repetitions of each round; shape (rounds,).
    times: Ints
    # Round of each row, rising; shape (rows,).
    round_of: Ints
    # True for rows without a route; shape (rows,).
    is_gate: Bools
    # `src`, `dst`: Participants; 0 for gates; shape (rows,).
    src: Ints
    dst: Ints
    # `next`, `next_shift`: Next row on the channel within the round: in the same repetition (shift 0) or the following
    # repetition (shift 1); -1 for gates; shape (rows,).
    next: Ints
    next_shift: Ints
    # Next row on the channel after the last repetition, in a later round; -1 if there is none; shape (rows,).
    exit: Ints
    # True if another row precedes the first repetition on the channel; shape (rows,).
    follows: Bools
    # True for rings where each row carries the chunks that the row behind carried one repetition earlier; shape
    # (rounds,).
    moves: Bools
    # Repetition i + shift of the waiter waits for repetition i of the awaited row, if the round has both repetitions.
    inner: tuple[Ints, Ints, Ints]
    # Repetition `times` of the waiter waits for repetition `at` of the awaited row.
    outer: tuple[Ints, Ints, Ints, Ints]

    def __len__(self) -> int:
        return len(self.round_of)

    @cached_property
    def lengths(self) -> Ints:
        """Number of rows in each round, gates (rows without bytes) included, shape (rounds,)."""
        return np.bincount(self.round_of, minlength=len(self.times))

    @cached_property
    def transfer_lengths(self) -> Ints:
        """Number of rows in each round, gates (rows without bytes) excluded, shape (rounds,)."""
        return np.bincount(self.round_of[~self.is_gate], minlength=len(self.times))

    @cached_property
    def first(self) -> Ints:
        """First row number in each round, shape (rounds,)."""
        return starts(self.lengths)

    @cached_property
    def log_base(self) -> Ints:
        """Number, among the schedule's transfers, of each round's first transfer, shape (rounds,)."""
        return starts(self.transfer_lengths * self.times)

    @cached_property
    def place(self) -> Ints:
        """Each row's index within the round; gates and transfers are counted separately."""
        place = np.arange(len(self)) - self.first[self.round_of]
        gates = (self.lengths - self.transfer_lengths)[self.round_of]
        return np.where(self.is_gate, place, place - gates)

    @cached_property
    def transfers(self) -> int:
        """Number of transfers, repetitions included."""
        return int((self.transfer_lengths * self.times).sum())

    @cached_property
    def waits(self) -> Ints:
        """Number of transfers awaited by each row's repetition, without the channel's previous one, shape (rows,).

        The number is equal in every repetition, therefore the last repetition's pairs are counted.
        """
        last = self.times[self.round_of] - 1
        count = np.bincount(self.inner[1][self.inner[2] <= last[self.inner[1]]], minlength=len(self))
        late = self.outer[3] == last[self.outer[2]]
        return np.asarray(count + np.bincount(self.outer[2][late], minlength=len(self)))

    @cached_property
    def ring(self) -> Bools:
        """Return True for each round that is a ring, shape (rounds,).

        From the second repetition on, a ring's row waits for its own channel and for exactly one row, one repetition
        earlier.
        """
        of, rounds = self.round_of, len(self.times)
        ring = self.times > 1
        # A ring's row has a channel to itself: next[row] == row.
        single = (self.next == np.arange(len(self))) & (self.next_shift == 1) & (self.waits == 1) & ~self.is_gate
        ring[of[~single]] = False
        ring[of[self.inner[0][self.inner[2] != 1]]] = False
        ring &= np.bincount(of[self.inner[1]], minlength=rounds) == self.lengths
        # Later rounds may only wait for the last repetition: the repetitions between are never stored for them.
        early = self.outer[1] != self.times[of[self.outer[0]]] - 1
        ring[of[self.outer[0][early]]] = False
        return ring

    @cached_property
    def joined(self) -> Bools:
        """Return True for each ring that continues the round before without a break, shape (rounds,)."""
        joined = self.ring.copy()
        for number in np.flatnonzero(self.ring).tolist():
            first, length, before = int(self.first[number]), int(self.lengths[number]), number - 1
            if number == 0 or self.lengths[before] != length:
                joined[number] = False
                continue
            # Conditions: the round before has equally many rows; each row waits for the last repetition at
            # behind[row]'s place in that round; and each row follows the row at its own place on the channel.
            here, last = np.arange(first, first + length), int(self.first[before])
            mine = self.outer[2][(self.outer[2] >= first) & (self.outer[2] < first + length)]
            pairs = np.stack([self.outer[0], self.outer[1]])[:, np.isin(self.outer[2], here)]
            order = np.argsort(mine)
            expected = np.stack([self.behind[here] - first + last, np.full(length, self.times[before] - 1)])
            same = len(mine) == length and bool((mine[order] == here).all() and (pairs[:, order] == expected).all())
            joined[number] = same and bool((self.exit[last : last + length] == here).all())
        return joined

    @cached_property
    def behind(self) -> Ints:
        """Return, for each row in a ring, the row that delivered the chunk now handed on; 0 for rows without one."""
        behind = np.zeros(len(self), np.int64)
        behind[self.inner[1]] = self.inner[0]
        return behind


def rows_of(traffic: Traffic) -> Rows:
    """Return the rows in a collective's schedule: its rounds' transfers with channels and waits."""
    return _RowsWriter(traffic).rows()


class _RowsWriter:
    """Converts the rounds in a collective's schedule into rows, the graph of waiting transfers."""

    def __init__(self, traffic: Traffic) -> None:
        self.schedule = traffic.schedule
        self.repeats = [part.repeat for part in traffic.parts]
        self.rounds = [repeat.round for repeat in self.repeats]
        self.times = np.array([part.repeat.times for part in traffic.parts], np.int64)
        self.transfers = np.array([len(sized_round) for sized_round in self.rounds], np.int64)
        self.gates = np.array(
            [0 if sized_round.gate is None else len(sized_round.after) for sized_round in self.rounds], np.int64
        )
        lengths = self.gates + self.transfers
        self.first = starts(lengths)
        self.numbers = starts(self.transfers * self.times)
        self.round_of = np.repeat(np.arange(len(self.rounds)), lengths)
        self.is_gate = np.arange(len(self.round_of)) - self.first[self.round_of] < self.gates[self.round_of]

    def rows(self) -> Rows:
        inner, outer = self._waits()
        return Rows(
            self.schedule.world_size,
            self.schedule.world_size + self.schedule.auxiliaries,
            self.times,
            self.round_of,
            self.is_gate,
            self._column("src"),
            self._column("dst"),
            *self._channels(self._column("channel")),
            self._moves(inner),
            inner,
            outer,
        )

    def _moves(self, inner: tuple[Ints, Ints, Ints]) -> Bools:
        """Return True for each round where every row carries the awaited row's chunks from a repetition earlier.

        `inner` are the waits inside rounds: arrays (awaited row, waiting row, shift in repetitions).
        """
        behind = np.full(len(self.round_of), -1)
        behind[inner[1]] = inner[0]
        moves = np.zeros(len(self.rounds), np.bool_)
        for number, repeat in enumerate(self.repeats):
            places = behind[self.first[number] : self.first[number] + len(repeat.round)] - self.first[number]
            inside = (
                repeat.times > 1
                and not self.gates[number]
                and bool((places >= 0).all() and (places < len(places)).all())
            )
            moves[number] = inside and repeat.hands_on(places)
        return moves

    def _column(self, name: str) -> Ints:
        """Return the rounds' column `name` (src, dst, ...) as an array over every row; 0 for gates."""
        column = np.zeros(len(self.round_of), np.int64)
        columns = [np.broadcast_to(getattr(sized_round, name), len(sized_round)) for sized_round in self.rounds]
        column[~self.is_gate] = np.concatenate([_NONE, *columns])
        return column

    def _channels(self, channel: Ints) -> tuple[Ints, Ints, Ints, Bools]:
        """Return, by row: next row on the channel, its shift in repetitions, next row in a later round, and `follows`.

        `channel` is the FIFO of each row; `follows` is True if another row precedes the first repetition on the
        channel.
        """
        rows = np.flatnonzero(~self.is_gate)
        # Rows sorted by channel, in schedule order within a channel: each FIFO's queue.
        order = rows[np.argsort(channel[rows], kind="stable")]
        after = np.append(order[1:], -1)[: len(order)]
        same = np.zeros(len(order), np.bool_)
        same[:] = channel[after] == channel[order]
        same[-1:] = False
        near: Bools = np.logical_and(same, self.round_of[after] == self.round_of[order])
        # Within a round, a channel's last row is followed by its first row in the next repetition. A run with `near`
        # rows begins at this first row.
        begins = np.ones(len(order), np.bool_)
        begins[1:] = ~near[:-1]
        first = order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
        following, shift, leaving = (np.full(len(channel), -1) for _ in range(3))
        following[order] = np.where(near, after, first)
        shift[order] = np.where(near, 0, 1)
        leaving[order[same & ~near]] = after[same & ~near]
        follows = np.zeros(len(channel), np.bool_)
        follows[after[same]] = True
        return following, shift, leaving, follows

    def _waits(self) -> tuple[tuple[Ints, Ints, Ints], tuple[Ints, Ints, Ints, Ints]]:
        """Return the waits inside rounds (awaited row, waiter, shift), and between rounds.

        A wait between rounds is (awaited row, awaited repetition, waiter, waiting repetition).
        """
        waiters, numbers, gates, gated = [_NONE], [_NONE], [_NONE], [_NONE]
        for number, sized_round in enumerate(self.rounds):
            row, column = np.nonzero(sized_round.after >= 0)
            waiters.append(self.first[number] + row)
            numbers.append(sized_round.after[row, column].astype(np.int64))
            if sized_round.gate is not None:
                # A gate without awaited transfers holds nothing back.
                holds = np.flatnonzero(np.any(sized_round.after >= 0, axis=1)[sized_round.gate])
                gates.append(self.first[number] + sized_round.gate[holds])
                gated.append(self.first[number] + self.gates[number] + holds)
        waiter, on = np.concatenate(waiters), np.concatenate(numbers)
        gate, gated_row = np.concatenate(gates), np.concatenate(gated)
        where = self.round_of[waiter]
        length, times, before = self.transfers[where], self.times[where], on - self.numbers[where]
        # `before` is the awaited number relative to the round's first number. Awaited numbers rise by the round's
        # length with each repetition, so the pair of rows stays the same inside the round. The first `shift`
        # repetitions wait for earlier rounds instead.
        shift = -(before // length)
        inside = shift < times
        awaited = self.first[where] + self.gates[where] + before % length
        inner = (
            np.concatenate([awaited[inside], gate]),
            np.concatenate([waiter[inside], gated_row]),
            np.concatenate([shift[inside], np.zeros(len(gate), np.int64)]),
        )
        # An outer pair for each waiter and each early repetition.
        early = np.clip(shift, 0, times)
        pair = np.repeat(np.arange(len(waiter)), early)
        repetition = np.arange(len(pair)) - np.repeat(starts(early), early)
        early_on = on[pair] + repetition * length[pair]
        other = np.searchsorted(self.numbers, early_on, "right") - 1
        at, row = np.divmod(early_on - self.numbers[other], self.transfers[other])
        return inner, (self.first[other] + self.gates[other] + row, at, waiter[pair], repetition)


def starts(lengths: Ints) -> Ints:
    """Return the start offset of each segment, given segment lengths (exclusive cumulative sum).

    >>> starts(np.array([3, 1, 2])).tolist()
    [0, 3, 4]
    """
    return np.asarray(np.cumsum(lengths) - lengths)


def by_key(columns: tuple[npt.NDArray[Any], ...]) -> Any:
    """Return the given columns, reordered by a stable sort of the first column.

    >>> by_key((np.array([2, 1, 1]), np.array([10, 20, 30])))
    (array([1, 1, 2]), array([20, 30, 10]))
    """
    order = np.argsort(columns[0], kind="stable")
    return tuple(column[order] for column in columns)
