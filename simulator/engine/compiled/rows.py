"""The rows of a schedule's rounds as a graph: who follows whom on channels, who waits for whom.

Rule: structure alone, no bytes, no links, no times. A repeated round is written once. What waits for a row inside its
own round is told by how many repetitions later (`inner`); what crosses from one round to another is told singly
(`outer`). Where many transfers wait for the same ones, a gate stands between: a row without a route.
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
    """Rows of all rounds, round behind round, a round's gates before its transfers.

    Attributes
    ----------
    ranks, participants : int
        Of the group; with servers and switches behind them.
    times : int array, shape (rounds,)
        How often each round is repeated.
    round_of : int array, shape (rows,)
        Rising.
    is_gate : bool array, shape (rows,)
    src, dst : int array, shape (rows,)
        Participants; 0 for gates.
    next, next_shift : int array, shape (rows,)
        Who comes next on the channel, and in which repetition: in the same one (0) or the next (1); -1 for gates.
    exit : int array, shape (rows,)
        Who comes next after the last repetition, in a later round; -1: nobody.
    follows : bool array, shape (rows,)
        Whether another row is before the first repetition on the channel.
    moves : bool array, shape (rounds,)
        Of a ring's round whether what a row carries is what the row behind carried a repetition before.
    inner : (awaited, waiter, shift), int arrays
        The waiter's repetition i + shift waits for the awaited one's repetition i, where both are there.
    outer : (awaited, at, waiter, times), int arrays
        The waiter's repetition `times` waits for the awaited one's repetition `at`.
    """

    ranks: int
    participants: int
    times: Ints
    round_of: Ints
    is_gate: Bools
    src: Ints
    dst: Ints
    next: Ints
    next_shift: Ints
    exit: Ints
    follows: Bools
    moves: Bools
    inner: tuple[Ints, Ints, Ints]
    outer: tuple[Ints, Ints, Ints, Ints]

    def __len__(self) -> int:
        return len(self.round_of)

    @cached_property
    def lengths(self) -> Ints:
        """By round: rows, gates among them."""
        return np.bincount(self.round_of, minlength=len(self.times))

    @cached_property
    def transfer_lengths(self) -> Ints:
        """By round: rows without gates."""
        return np.bincount(self.round_of[~self.is_gate], minlength=len(self.times))

    @cached_property
    def first(self) -> Ints:
        """By round its first row."""
        return starts(self.lengths)

    @cached_property
    def log_base(self) -> Ints:
        """By round the schedule's number of its first transfer."""
        return starts(self.transfer_lengths * self.times)

    @cached_property
    def place(self) -> Ints:
        """By row its place in the round; transfers are counted without gates."""
        place = np.arange(len(self)) - self.first[self.round_of]
        gates = (self.lengths - self.transfer_lengths)[self.round_of]
        return np.where(self.is_gate, place, place - gates)

    @cached_property
    def transfers(self) -> int:
        """How many there are, repetitions counted."""
        return int((self.transfer_lengths * self.times).sum())

    @cached_property
    def waits(self) -> Ints:
        """By row for how many others each repetition waits, its channel left out.

        Every pair holds in all repetitions, so it is counted in the last one.
        """
        last = self.times[self.round_of] - 1
        count = np.bincount(self.inner[1][self.inner[2] <= last[self.inner[1]]], minlength=len(self))
        late = self.outer[3] == last[self.outer[2]]
        return np.asarray(count + np.bincount(self.outer[2][late], minlength=len(self)))

    @cached_property
    def ring(self) -> Bools:
        """By round whether its rows, from the second repetition on, hand on what one other row brought before."""
        of, rounds = self.round_of, len(self.times)
        ring = self.times > 1
        alone = (self.next == np.arange(len(self))) & (self.next_shift == 1) & (self.waits == 1) & ~self.is_gate
        ring[of[~alone]] = False
        ring[of[self.inner[0][self.inner[2] != 1]]] = False
        ring &= np.bincount(of[self.inner[1]], minlength=rounds) == self.lengths
        # Nobody outside may ask for any repetition but the last.
        early = self.outer[1] != self.times[of[self.outer[0]]] - 1
        ring[of[self.outer[0][early]]] = False
        return ring

    @cached_property
    def joined(self) -> Bools:
        """By round of a ring whether its first repetition goes on from the round before like all others."""
        joined = self.ring.copy()
        for number in np.flatnonzero(self.ring).tolist():
            first, length, before = int(self.first[number]), int(self.lengths[number]), number - 1
            if number == 0 or self.lengths[before] != length:
                joined[number] = False
                continue
            own, last = np.arange(first, first + length), int(self.first[before])
            mine = self.outer[2][(self.outer[2] >= first) & (self.outer[2] < first + length)]
            pairs = np.stack([self.outer[0], self.outer[1]])[:, np.isin(self.outer[2], own)]
            order = np.argsort(mine)
            expected = np.stack([self.behind[own] - first + last, np.full(length, self.times[before] - 1)])
            same = len(mine) == length and bool((mine[order] == own).all() and (pairs[:, order] == expected).all())
            joined[number] = same and bool((self.exit[last : last + length] == own).all())
        return joined

    @cached_property
    def behind(self) -> Ints:
        """By row of a ring whose chunk it hands on."""
        behind = np.zeros(len(self), np.int64)
        behind[self.inner[1]] = self.inner[0]
        return behind


def rows_of(traffic: Traffic) -> Rows:
    """Write the rounds of a traffic's schedule as rows."""
    return _RowsWriter(traffic).rows()


class _RowsWriter:
    def __init__(self, traffic: Traffic) -> None:
        self.schedule = traffic.schedule
        self.repeats = [part.repeat for part in traffic.parts]
        self.rounds = [repeat.round for repeat in self.repeats]
        self.times = np.array([part.repeat.times for part in traffic.parts], np.int64)
        self.transfers = np.array([len(own) for own in self.rounds], np.int64)
        self.gates = np.array([0 if own.gate is None else len(own.after) for own in self.rounds], np.int64)
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
        """By round; where rows wait for one other each."""
        behind = np.full(len(self.round_of), -1)
        behind[inner[1]] = inner[0]
        moves = np.zeros(len(self.rounds), np.bool_)
        for number, repeat in enumerate(self.repeats):
            own = behind[self.first[number] : self.first[number] + len(repeat.round)] - self.first[number]
            inside = repeat.times > 1 and not self.gates[number] and bool((own >= 0).all() and (own < len(own)).all())
            moves[number] = inside and repeat.hands_on(own)
        return moves

    def _column(self, name: str) -> Ints:
        column = np.zeros(len(self.round_of), np.int64)
        columns = [np.broadcast_to(getattr(own, name), len(own)) for own in self.rounds]
        column[~self.is_gate] = np.concatenate([_NONE, *columns])
        return column

    def _channels(self, channel: Ints) -> tuple[Ints, Ints, Ints, Bools]:
        """Who comes next on each row's channel, how much later, who after the last time, and who follows another."""
        rows = np.flatnonzero(~self.is_gate)
        order = rows[np.argsort(channel[rows], kind="stable")]
        after = np.append(order[1:], -1)[: len(order)]
        same = np.zeros(len(order), np.bool_)
        same[:] = channel[after] == channel[order]
        same[-1:] = False
        near: Bools = np.logical_and(same, self.round_of[after] == self.round_of[order])
        # The round's first row on this channel: where a run of near ones begins.
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
        """Pairs inside rounds and pairs between them."""
        waiters, numbers, gates, gated = [_NONE], [_NONE], [_NONE], [_NONE]
        for number, own in enumerate(self.rounds):
            row, column = np.nonzero(own.after >= 0)
            waiters.append(self.first[number] + row)
            numbers.append(own.after[row, column].astype(np.int64))
            if own.gate is not None:
                # A gate that waits for nothing holds nobody back.
                holds = np.flatnonzero(np.any(own.after >= 0, axis=1)[own.gate])
                gates.append(self.first[number] + own.gate[holds])
                gated.append(self.first[number] + self.gates[number] + holds)
        waiter, on = np.concatenate(waiters), np.concatenate(numbers)
        gate, held = np.concatenate(gates), np.concatenate(gated)
        where = self.round_of[waiter]
        length, times, before = self.transfers[where], self.times[where], on - self.numbers[where]
        # From one repetition to the next the number waited for moves on by a round, so the pair does not change inside
        # the round; the first repetitions may wait for rounds before.
        shift = -(before // length)
        inside = shift < times
        awaited = self.first[where] + self.gates[where] + before % length
        inner = (
            np.concatenate([awaited[inside], gate]),
            np.concatenate([waiter[inside], held]),
            np.concatenate([shift[inside], np.zeros(len(gate), np.int64)]),
        )
        early = np.clip(shift, 0, times)
        pair = np.repeat(np.arange(len(waiter)), early)
        repetition = np.arange(len(pair)) - np.repeat(starts(early), early)
        early_on = on[pair] + repetition * length[pair]
        other = np.searchsorted(self.numbers, early_on, "right") - 1
        at, row = np.divmod(early_on - self.numbers[other], self.transfers[other])
        return inner, (self.first[other] + self.gates[other] + row, at, waiter[pair], repetition)


def starts(lengths: Ints) -> Ints:
    """Where each of some stretches begins that lie one behind the other."""
    return np.asarray(np.cumsum(lengths) - lengths)


def by_key(columns: tuple[npt.NDArray[Any], ...]) -> Any:
    """Columns in the order of the first one."""
    order = np.argsort(columns[0], kind="stable")
    return tuple(column[order] for column in columns)
