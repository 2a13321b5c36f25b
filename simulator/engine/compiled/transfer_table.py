"""All rounds of a traffic as one table with a row for each transfer of each round: the facts that tell transfers apart.

A repeated round stands in it once. That suffices because repetitions are alike: what holds for the first one (which may
wait for rounds before it) and for the second (which may wait for the first) holds for all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.basics.arrays import Ints
from simulator.engine.compiled.colours import Colours, bits, mixed
from simulator.engine.traffic import Traffic


@dataclass(frozen=True, slots=True)
class TransferTable:
    """A row for each transfer of each round.

    Attributes
    ----------
    src, dst, channel, route : int array, shape (rows,)
    facts : uint64 array, shape (rows,)
        A colour of the round, the bytes and the place on the channel.
    waits : tuple of int array
        Pairs of a row and another row that it waits for.
    wait_facts : uint64 array
        A colour for each pair: whether it holds in the first repetition or later, and which repetition it waits for.
    """

    src: Ints
    dst: Ints
    channel: Ints
    route: Ints
    facts: Colours
    waits: tuple[Ints, Ints]
    wait_facts: Colours


def transfer_table(traffic: Traffic) -> TransferTable | None:
    """Table of a traffic's rounds; None if repetitions of a round are unlike.

    They are unlike if a transfer carries another number of bytes, or if the second one waits for transfers before its
    round.
    """
    if not traffic.steady:
        return None
    lengths = [len(part.route_of) for part in traffic.parts]
    bases = np.cumsum([0, *(n * part.repeat.times for n, part in zip(lengths, traffic.parts, strict=True))])
    first_row = np.cumsum([0, *lengths])
    facts = [np.zeros(0, np.uint64)]
    waiter, awaited, wait_facts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for number, part in enumerate(traffic.parts):
        own, length = part.repeat.round, lengths[number]
        facts.append(mixed(mixed(bits(part.nbytes), _place_on_channel(own.channel)), number))
        waits = own.waits
        row, column = np.nonzero(waits >= 0)
        for repetition in range(min(part.repeat.times, 2)):
            on = waits[row, column] + repetition * length
            # The second repetition stands for all later ones, so it must wait for this round: what it would wait for
            # further back moves on from one repetition to the next.
            if repetition and bool((on < bases[number]).any()):
                return None
            other = np.searchsorted(bases, on, "right") - 1
            round_length = np.array(lengths)[other]
            waiter.append(row + first_row[number])
            awaited.append(first_row[other] + (on - bases[other]) % round_length)
            wait_facts.append(mixed((on - bases[other]) // round_length, 2 * number + repetition))
    rounds = [part.repeat.round for part in traffic.parts]
    none = np.zeros(0, np.int64)
    src, dst, channel = (
        np.concatenate([none, *(np.broadcast_to(getattr(r, name), len(r)) for r in rounds)])
        for name in ("src", "dst", "channel")
    )
    route = np.concatenate([none, *(part.route_of.astype(np.int64) for part in traffic.parts)])
    pairs = np.concatenate(waiter), np.concatenate(awaited)
    return TransferTable(src, dst, channel, route, np.concatenate(facts), pairs, np.concatenate(wait_facts))


def _place_on_channel(channel: Ints) -> Ints:
    """How many transfers of a round are before each one on its channel."""
    order = np.argsort(channel, kind="stable")
    place = np.empty(len(channel), np.int64)
    place[order] = np.arange(len(channel)) - np.searchsorted(channel[order], channel[order])
    return place
