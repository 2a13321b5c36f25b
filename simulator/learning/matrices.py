"""How does a rank update matrices that have a rule of their own (Muon)? Average, make orthogonal, apply.

A rank averages the gradients of its share of every matrix. Collectives bring shares of a unit together; every rank then
makes whole matrices orthogonal and keeps its share of the result.

Example: ZeRO-1 on 2 ranks, a layer with a matrix of 4 elements, of which rank 0 has two::

    average          rank 0: a a        rank 1: a a         (a share each)
    gather averages  rank 0: a a a a    rank 1: a a a a     (exchange.py)
    orthogonalise    rank 0: o o        rank 1: o o         (the share of the result)
    apply            rank 0: p p        rank 1: p p
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from simulator.basics.arrays import Array
from simulator.learning.setting import TrainingContext
from simulator.learning.state import Rank, Units
from simulator.learning.updating import clipped_gradient
from simulator.step.optimizers.optimizer import dealt


def average(setting: TrainingContext, rank: Rank) -> None:
    """Average the clipped gradients of the rank's shares of matrices; after an overflow, averages are zeros and momenta
    stay.
    """
    muon = setting.matrix_rule
    for units in rank.summed:
        gradient = clipped_gradient(setting, rank, units)
        for unit, place in setting.layout(rank.number, units).matrices(setting.part_of(rank.number, units)).items():
            share = gradient[place]
            momentum = rank.momenta.setdefault(unit, np.zeros_like(share))
            if rank.overflowed:
                momentum, share = np.zeros_like(share), np.zeros_like(share)
            rank.averages[unit] = muon.averaged(momentum, share)


def orthogonalise(setting: TrainingContext, rank: Rank, units: Units) -> None:
    """Make the averages of these units' whole matrices orthogonal; keep the rank's share of the result, or the whole
    matrices that the rank owns.
    """
    muon, gpt = setting.matrix_rule, setting.places[rank.number].gpt
    if units in rank.owned:
        mine = _owned(setting, rank, units)[setting.part_of(rank.number, units)]
        shapes = tuple(muon.shapes(gpt, unit)[number] for unit, number in mine)
        rank.owned[units] = muon.orthogonal_matrices(rank.owned[units], shapes)
        return
    for unit in units:
        updates = muon.orthogonal_matrices(rank.averages.pop(unit), muon.shapes(gpt, unit))
        rank.orthogonal[unit] = updates[setting.share(rank.number, unit)]


def to_owners(setting: TrainingContext, ranks: Sequence[Rank], units: Units) -> list[Array]:
    """Return the averages of the matrices that each rank of a group owns, packed, from all ranks' shares.

    Owners have unequal numbers of elements; the simulated transfer assumes equal numbers.
    """
    joined = _joined(setting, ranks, units)
    means = {key: joined[key[0]][place] for key, place in _places(setting, ranks[0], units).items()}
    return [np.concatenate([means[key] for key in keys] or [np.zeros(0)]) for keys in _owned(setting, ranks[0], units)]


def from_owners(setting: TrainingContext, ranks: Sequence[Rank], units: Units) -> list[Array]:
    """Return each rank's shares of orthogonal updates of these units, packed, from the owners' whole matrices."""
    places = _places(setting, ranks[0], units)
    updates = _joined(setting, ranks, units)
    for rank, keys in zip(ranks, _owned(setting, ranks[0], units), strict=True):
        at = 0
        for unit, number in keys:
            place = places[unit, number]
            updates[unit][place] = rank.owned[units][at : at + place.stop - place.start]
            at += place.stop - place.start
    return [np.concatenate([updates[unit][setting.share(rank.number, unit)] for unit in units]) for rank in ranks]


def take_shares(setting: TrainingContext, rank: Rank, units: Units, array: Array) -> None:
    """Store the orthogonal updates that a rank received for its shares of these units' matrices."""
    del rank.owned[units]
    at = 0
    for unit in units:
        count = len(rank.averages.pop(unit))
        rank.orthogonal[unit] = array[at : at + count]
        at += count


def _joined(setting: TrainingContext, ranks: Sequence[Rank], units: Units) -> dict[str, Array]:
    """Return the averages of these units' packed matrices from all ranks' shares, by unit."""
    return {unit: setting.joined(ranks[0].number, unit, [rank.averages[unit] for rank in ranks]) for unit in units}


def _places(setting: TrainingContext, rank: Rank, units: Units) -> dict[tuple[str, int], slice]:
    """Return the place of each matrix in its unit's packed matrices, by unit and number."""
    places = {}
    for unit in units:
        at = 0
        for number, shape in enumerate(setting.matrix_rule.shapes(setting.places[rank.number].gpt, unit)):
            places[unit, number] = slice(at, at + prod(shape))
            at += prod(shape)
    return places


def _owned(setting: TrainingContext, rank: Rank, units: Units) -> list[list[tuple[str, int]]]:
    """Return the matrices (unit, number) of these units that each rank of a group owns, as the plan deals them."""
    of_shape: dict[tuple[int, ...], list[tuple[str, int]]] = {}
    for unit in units:
        for number, shape in enumerate(setting.matrix_rule.shapes(setting.places[rank.number].gpt, unit)):
            of_shape.setdefault(shape, []).append((unit, number))
    hands = dealt(tuple((shape, len(keys)) for shape, keys in sorted(of_shape.items())), setting.cut_of(units))
    queues = {shape: iter(keys) for shape, keys in of_shape.items()}
    return [[next(queues[shape]) for shape, count in hand.items() for _ in range(count)] for hand in hands]


def apply(setting: TrainingContext, rank: Rank) -> None:
    """Apply orthogonal updates to the rank's shares of matrices; do nothing if gradients overflowed."""
    if rank.overflowed or setting.muon is None:
        return
    muon, gpt = setting.matrix_rule, setting.places[rank.number].gpt
    for units, part in rank.parts.items():
        # The optimizer counts a step when it has updated the other parameters, afterwards.
        steps = rank.states[units].steps if units in rank.states else 0
        for unit, place in setting.layout(rank.number, units).matrices(setting.part_of(rank.number, units)).items():
            scale = muon.scales(gpt, unit)[setting.share(rank.number, unit)]
            muon.apply(part[place], rank.orthogonal.pop(unit), scale, steps)
