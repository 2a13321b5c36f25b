"""Between ranks: gradients are packed, carried by the transfers that were played, and spread out again.

Rule: every sum is made by the engine's payload, in the order in which transfers ended; here arrays are only packed and
unpacked.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import fsum
from typing import TypeVar, assert_never

import numpy as np

from simulator.basics.arrays import Array
from simulator.basics.dtypes import find
from simulator.learning.place import is_spread
from simulator.learning.setting import Setting
from simulator.learning.state import Parameters, Rank, Units
from simulator.numerics.flat import flat, unpacked
from simulator.payload.carry import Payload, Tamper, carry, ended_order
from simulator.payload.inputs import result
from simulator.records.operation import Act, Collective, Exchange

Key = TypeVar("Key", bound=Hashable)


def moved(
    setting: Setting, op: Collective, sent: Sequence[Array], tamper: Tamper, reduction: str = "sum"
) -> list[Array]:
    """Carry arrays by the transfers that were played; what each rank of the group has then."""
    kind = find(op.dtype)
    buffers = [array.astype(kind.numpy) for array in sent]
    log = setting.logs[op.name]
    order = ended_order(log.transfers, log.end)
    carry(op.schedule, log.transfers, order, Payload(buffers, kind, reduction, kind.numpy, tamper))
    return [result(op.schedule, buffer, place, op.elements) for place, buffer in enumerate(buffers)]


def laid(op: Collective, place: int, array: Array) -> Array:
    """What a rank brings to an exchange within a pass, where it lies in the whole array."""
    if op.schedule.operation != "all_gather":
        return np.pad(array, (0, op.elements - len(array)))
    buffer = np.zeros(op.elements, array.dtype)
    buffer[place * len(array) : (place + 1) * len(array)] = array
    return buffer


def size_after(op: Collective, brought: int) -> int:
    """Elements that a rank has after an exchange to which it brought so many."""
    ranks = len(op.group)
    return {"all_gather": brought * ranks, "reduce_scatter": brought // ranks}.get(op.schedule.operation, brought)


def sent(setting: Setting, rank: Rank, op: Collective, act: Act[Exchange]) -> Array:
    """What a rank brings to a collective."""
    match act.effect:
        case Exchange.ALL_REDUCE | Exchange.REDUCE_SCATTER | Exchange.PUSH:
            return _share(setting, rank, op, act)
        case Exchange.SUM_COPIES:
            # Ranks that have whole copies scatter nothing.
            if setting.cut == 1:
                return _share(setting, rank, op, act)
            part = rank.scattered.pop(_scattered(setting, act))
            return np.pad(part, (0, op.elements - len(part)))
        case Exchange.ALL_GATHER:
            return _in_place(rank, op, _own_part(setting, rank, op, act))
        case Exchange.GATHER_UPDATED:
            return _in_place(rank, op, np.concatenate([part for _, part in _handed_out(rank, act)]))
        case Exchange.FLAG:
            return np.array([rank.overflowed] + [False] * (op.elements - 1))
        case Exchange.SUM_NORM:
            return np.array([rank.squares] + [0.0] * (op.elements - 1))
        case Exchange.GATHER_NORMS:
            return _in_place(rank, op, np.array([rank.squares, rank.rest]))
        case Exchange.SUM_PARTIAL | Exchange.SUM_SHARED:
            own = _chosen(setting, rank, act)
            return np.pad(own, (0, op.elements - len(own)))
        case Exchange.WITHIN | Exchange.SEND:
            raise ValueError(f"{op.name}: a pass brings it, not the rank")
        case Exchange.PULL:
            raise ValueError(f"{op.name}: a worker brings nothing to a pull; its servers do")
        case _:
            assert_never(act.effect)


def _own_part(setting: Setting, rank: Rank, op: Collective, act: Act[Exchange]) -> Array:
    """A rank's part of some units' parameters, among the ranks that gather them."""
    if len(op.group) == setting.cut_of(act.units):
        return rank.parts[act.units]
    # A smaller mesh, over which what was gathered for the forward pass has been spread meanwhile.
    whole = flat(setting.places[rank.number].gpt, rank.working, act.units, op.elements)
    part: Array = np.split(whole, len(op.group))[op.group.index(rank.number)]
    return part


def _in_place(rank: Rank, op: Collective, own: Array) -> Array:
    """A rank's part where it lies in the whole array, with zeros around it."""
    place = op.group.index(rank.number)
    buffer = np.zeros(op.elements, own.dtype)
    buffer[place * len(own) : (place + 1) * len(own)] = own
    return buffer


def _share(setting: Setting, rank: Rank, op: Collective, act: Act[Exchange]) -> Array:
    """A rank's gradients as its share of their mean over all ranks.

    Divided in the dtype in which they travel, as PyTorch does (DDP's buckets, its float16 hook, FSDP2's reduce): where
    that has a wider range than gradients have, small ones are not lost.
    """
    own = packed(setting, rank, act.units, act.micro, op.elements).astype(find(op.dtype).numpy)
    share: Array = own / own.dtype.type(setting.shares)
    return share


def packed(setting: Setting, rank: Rank, units: Sequence[str], micro: int, elements: int | None = None) -> Array:
    """Gradients of some units in one array, of all micro-batches back up to one; the rank has them no longer."""
    summed: dict[str, Parameters] = {}
    for unit in units:
        for number in sorted(kept for name, kept in rank.gradients if name == unit and setting.is_back(kept, micro)):
            own = rank.gradients.pop((unit, number))
            into = summed.setdefault(unit, {})
            summed[unit] = {name: into[name] + part if into else part for name, part in own.items()}
    return flat(setting.places[rank.number].gpt, summed, units, elements)


def received(setting: Setting, rank: Rank, act: Act[Exchange], array: Array) -> None:
    """Take what a collective gave."""
    match act.effect:
        case Exchange.REDUCE_SCATTER if setting.copies > 1:
            # This copy's sum alone: a part is not whole before those of all copies are added up.
            _add(rank.scattered, _scattered(setting, act), array)
        case Exchange.ALL_REDUCE | Exchange.REDUCE_SCATTER | Exchange.SUM_COPIES:
            # As gradients are kept; what was padded for the collective alone is gone.
            own = array[: len(rank.parts[act.units])]
            _add(rank.summed, act.units, own.astype(find(setting.plan.step.precision.grads).numpy, copy=False))
        case Exchange.ALL_GATHER | Exchange.PULL:
            spread(setting, rank, act.units, array)
        case Exchange.GATHER_UPDATED:
            _spread_all(setting, rank, act, array)
        case Exchange.FLAG:
            rank.overflowed = bool(array.any())
        case Exchange.SUM_NORM:
            rank.squares = float(array[0])
        case Exchange.GATHER_NORMS:
            rank.squares, rank.rest = fsum(array), 0.0
        case Exchange.SUM_PARTIAL | Exchange.SUM_SHARED:
            _put_back(setting, rank, act, array)
        case Exchange.WITHIN | Exchange.SEND:
            raise ValueError(f"{act.what}: a pass takes it, not the rank")
        case Exchange.PUSH:
            raise ValueError("a push gives workers nothing; they pull")
        case _:
            assert_never(act.effect)


def _chosen(setting: Setting, rank: Rank, act: Act[Exchange]) -> Array:
    """Elements of gradients of which this rank has a part, in the order in which they are kept."""
    pieces = [part[mask] for part, mask in _masked(setting, rank, act)]
    return np.concatenate([np.zeros(0), *pieces]).astype(pieces[0].dtype)


def _put_back(setting: Setting, rank: Rank, act: Act[Exchange], array: Array) -> None:
    at = 0
    for part, mask in _masked(setting, rank, act):
        count = int(mask.sum())
        part[mask] = array[at : at + count].astype(part.dtype)
        at += count


def _masked(setting: Setting, rank: Rank, act: Act[Exchange]) -> list[tuple[Array, Array]]:
    collect(setting, rank)
    for units, part in rank.summed.items():
        rank.summed[units] = part.copy()
    if act.effect is Exchange.SUM_PARTIAL:
        return [(part, own_slice(setting, rank, units, partial=True)) for units, part in rank.summed.items()]
    gpt = setting.places[rank.number].gpt
    masks = []
    for units, part in rank.summed.items():
        shared = [
            np.full(int(np.prod(shape)), name == "tok.weight")
            for unit in units
            for name, shape in gpt.shapes(unit).items()
        ]
        masks.append((part, np.resize(np.concatenate(shared), len(part))))
    return masks


def own_slice(setting: Setting, rank: Rank, units: Units, *, partial: bool = False) -> Array:
    """Of this rank's part of some units' gradients which elements it counts, or of which it has a part."""
    place = setting.places[rank.number]
    counted = place.counted(units, partial=partial)
    length = len(rank.parts[units])
    whole = np.pad(counted, (0, length * setting.cut_of(units) - len(counted)))
    return whole[setting.part_of(rank.number, units) * length :][:length]


def collect(setting: Setting, rank: Rank) -> None:
    """Sum the gradients of units that no other rank holds over all micro-batches, as a share of the step's mean."""
    for units in setting.places[rank.number].alone:
        if units not in rank.summed:
            own = packed(setting, rank, units, setting.last_back)
            rank.summed[units] = own / own.dtype.type(setting.shares)


def _scattered(setting: Setting, act: Act[Exchange]) -> tuple[Units, int]:
    """Where a part is kept that waits for other copies: a fast rank scatters the next one before a slow one adds."""
    return act.units, setting.scattered_in(act.micro)


def _add(into: dict[Key, Array], key: Key, array: Array) -> None:
    into[key] = into[key] + array if key in into else array


def spread(setting: Setting, rank: Rank, units: Sequence[str], array: Array) -> None:
    """Cut a flat array into the working parameters of some units."""
    stored = setting.gpt.arithmetic.stored
    for unit, own in unpacked(setting.places[rank.number].gpt, array, units).items():
        rank.working[unit] = {name: value.astype(stored) for name, value in own.items()}


def _spread_all(setting: Setting, rank: Rank, act: Act[Exchange], array: Array) -> None:
    """What all ranks sent, their parts of everything one behind the other."""
    parts = _handed_out(rank, act)
    of_rank = np.split(array, setting.cut_of(parts[0][0]))
    at = 0
    for units, part in parts:
        whole = np.concatenate([own[at : at + len(part)] for own in of_rank])
        spread(setting, rank, units, whole)
        at += len(part)


def _handed_out(rank: Rank, act: Act[Exchange]) -> list[tuple[Units, Array]]:
    """A rank's parts of what is gathered after the update: of experts, or of everything else."""
    return [(units, part) for units, part in rank.parts.items() if is_spread(units) == (act.what == "experts")]
