"""A traffic's rounds as one table: what every transfer of a round has to do with, in whichever repetition.

Rule: each round stands there once. What holds for the first repetition and for the second holds for all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.basics.arrays import Ints
from simulator.engine.compiled.colours import Colours, bits, mixed
from simulator.engine.traffic import Traffic


@dataclass(frozen=True, slots=True)
class TransferTable:
    """A row each transfer of each round.

    Attributes
    ----------
    src, dst, channel, route : int array, shape (rows,)
    facts : uint64 array, shape (rows,)
        A colour by round, place on the channel and bytes.
    waits : tuple of int array
        Pairs: a row and one that it waits for.
    how : uint64 array
        A colour for each pair: in the first repetition or later, and for which repetition.
    """

    src: Ints
    dst: Ints
    channel: Ints
    route: Ints
    facts: Colours
    waits: tuple[Ints, Ints]
    how: Colours


def transfer_table(traffic: Traffic) -> TransferTable | None:
    """Write a traffic's rounds out, once each; None where repetitions of a round are unlike."""
    if not traffic.steady:
        return None
    lengths = [len(part.route_of) for part in traffic.parts]
    bases = np.cumsum([0, *(n * part.repeat.times for n, part in zip(lengths, traffic.parts, strict=True))])
    first = np.cumsum([0, *lengths])
    facts = [np.zeros(0, np.uint64)]
    waiter, awaited, how = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for number, part in enumerate(traffic.parts):
        own, length = part.repeat.round, lengths[number]
        facts.append(mixed(mixed(bits(part.nbytes), _place_on_channel(own.channel)), number))
        waits = own.waits
        row, column = np.nonzero(waits >= 0)
        for repetition in range(min(part.repeat.times, 2)):
            on = waits[row, column] + repetition * length
            if repetition and bool((on < bases[number]).any()):
                return None
            other = np.searchsorted(bases, on, "right") - 1
            round_length = np.array(lengths)[other]
            waiter.append(row + first[number])
            awaited.append(first[other] + (on - bases[other]) % round_length)
            how.append(mixed((on - bases[other]) // round_length, 2 * number + repetition))
    rounds = [part.repeat.round for part in traffic.parts]
    none = np.zeros(0, np.int64)
    src, dst, channel = (
        np.concatenate([none, *(np.broadcast_to(getattr(r, name), len(r)) for r in rounds)])
        for name in ("src", "dst", "channel")
    )
    route = np.concatenate([none, *(part.route_of.astype(np.int64) for part in traffic.parts)])
    pairs = np.concatenate(waiter), np.concatenate(awaited)
    return TransferTable(src, dst, channel, route, np.concatenate(facts), pairs, np.concatenate(how))


def _place_on_channel(channel: Ints) -> Ints:
    """How many of a round are ahead of each on its channel."""
    order = np.argsort(channel, kind="stable")
    found = np.empty(len(channel), np.int64)
    found[order] = np.arange(len(channel)) - np.searchsorted(channel[order], channel[order])
    return found
