"""How do arrays get from rank to rank? They are packed, carried by the simulated transfers, and unpacked again.

Every sum is computed by the payload (payload/carry.py), in the order in which transfers ended; this module only packs
and unpacks arrays.

Gradient exchange for a bucket with 6 elements on 2 ranks, under ddp and under ZeRO:

    packed on rank 0   a b c d e f      divided by 2 (the mean over ranks), in the dtype on the wire
    packed on rank 1   A B C D E F      likewise
    all_reduce         rank 0: a+A .. f+F               rank 1: the same
    reduce_scatter     rank 0: a+A b+B c+C              rank 1: d+D e+E f+F
    all_gather         puts the shards of rank 0 and rank 1 next to each other again
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import fsum
from typing import TypeVar, assert_never

import numpy as np

from simulator.basics.arrays import Array
from simulator.basics.dtypes import find
from simulator.basics.errors import SimulationError
from simulator.collectives.payload.carry import Payload, Tamper, carry, ended_order
from simulator.collectives.payload.inputs import result
from simulator.learning.rank_shard import is_spread
from simulator.learning.setting import TrainingContext
from simulator.learning.state import Parameters, Rank, Units
from simulator.numerics.packing import pack, unpack
from simulator.records.operation import Collective, Exchange, NumericAction

Key = TypeVar("Key", bound=Hashable)


def moved(
    setting: TrainingContext, op: Collective, inputs: Sequence[Array], tamper: Tamper, reduction: str = "sum"
) -> list[Array]:
    """Carry arrays by the simulated transfers of a collective; return the resulting array of each rank.

    Parameters
    ----------
    setting : TrainingContext
        Supplies the collective's transfer log.
    op : Collective
        The collective.
    inputs : sequence of array
        Contribution of each rank of the group.
    tamper : Tamper
        Injected faults of transfers; empty if none.
    reduction : {"sum", "max"}
        Reduction over ranks.
    """
    kind = find(op.dtype)
    buffers = [array.astype(kind.numpy) for array in inputs]
    log = setting.logs[op.name]
    order = ended_order(log.transfers, log.end)
    carry(op.schedule, log.transfers, order, Payload(buffers, kind, reduction, kind.numpy, tamper))
    return [result(op.schedule, buffer, place, op.elements) for place, buffer in enumerate(buffers)]


def laid(op: Collective, place: int, array: Array) -> Array:
    """Return a rank's contribution to an exchange as an array with the whole size: an all-gather's part in place,
    otherwise padded.
    """
    # Only an all-gather's contribution is a part of the array; other operations bring a whole, padded array.
    if op.schedule.operation != "all_gather":
        return np.pad(array, (0, op.elements - len(array)))
    buffer = np.zeros(op.elements, array.dtype)
    buffer[place * len(array) : (place + 1) * len(array)] = array
    return buffer


def size_after(op: Collective, brought: int) -> int:
    """Return the number of elements on a rank after an exchange to which the rank contributed `brought` elements."""
    ranks = len(op.group)
    return {"all_gather": brought * ranks, "reduce_scatter": brought // ranks}.get(op.schedule.operation, brought)


def sent(setting: TrainingContext, rank: Rank, op: Collective, act: NumericAction[Exchange]) -> Array:
    """Return the array that a rank contributes to a collective: gradients, a shard, flags or norms, according
    to `act`.
    """
    match act.effect:
        case Exchange.ALL_REDUCE | Exchange.REDUCE_SCATTER | Exchange.PUSH:
            return _share(setting, rank, op, act)
        case Exchange.SUM_COPIES:
            # Unsharded copies have no reduce-scatter before this sum.
            if setting.cut == 1:
                return _share(setting, rank, op, act)
            part = rank.scattered.pop(_scattered(setting, act))
            return np.pad(part, (0, op.elements - len(part)))
        case Exchange.ALL_GATHER:
            return _in_place(rank, op, _own_part(setting, rank, op, act))
        case Exchange.GATHER_AVERAGES:
            (unit,) = act.units
            share, length = rank.averages[unit], op.elements // len(op.group)
            return _in_place(rank, op, np.pad(share, (0, length - len(share))))
        case Exchange.GATHER_UPDATED:
            return _in_place(rank, op, np.concatenate([part for _, part in _handed_out(rank, act)]))
        case Exchange.FLAG:
            # The first element carries the value; the rest of the array is padding.
            return np.array([rank.overflowed] + [False] * (op.elements - 1))
        case Exchange.SUM_NORM:
            return np.array([rank.squares] + [0.0] * (op.elements - 1))
        case Exchange.GATHER_NORMS:
            return _in_place(rank, op, np.array([rank.squares, rank.rest]))
        case Exchange.SUM_PARTIAL | Exchange.SUM_SHARED:
            share = _summands(setting, rank, act)
            return np.pad(share, (0, op.elements - len(share)))
        case Exchange.WITHIN | Exchange.SEND | Exchange.TO_OWNERS | Exchange.FROM_OWNERS:
            raise ValueError(f"{op.name}: Training delivers these arrays from rank to rank")
        case Exchange.PULL:
            raise ValueError(f"{op.name}: the servers contribute to a pull, not the worker")
        case _:
            assert_never(act.effect)


def _own_part(setting: TrainingContext, rank: Rank, op: Collective, act: NumericAction[Exchange]) -> Array:
    """Return a rank's shard of several units' parameters, cut for the group that gathers them."""
    if len(op.group) == setting.cut_of(act.units):
        return rank.parts[act.units]
    # A smaller mesh (`reshard_after_forward: K`): after the forward pass, parameters were re-sharded over K
    # neighbouring ranks, so the shard is cut from the gathered parameters, in packed order (`in_shard_order`).
    buffer = pack(setting.places[rank.number].gpt, rank.working, act.units, op.elements)
    part: Array = np.split(buffer, len(op.group))[op.group.index(rank.number)]
    return part


def in_shard_order(
    setting: TrainingContext, op: Collective, act: NumericAction[Exchange], results: list[Array]
) -> list[Array]:
    """Return the results of a collective on all ranks, with parameters gathered on a smaller mesh in the order of the
    shards of their states.
    """
    if act.effect is not Exchange.ALL_GATHER or len(op.group) == setting.cut_of(act.units):
        return results
    return [setting.layout(op.group[0], act.units).arranged(array) for array in results]


def _in_place(rank: Rank, op: Collective, shard: Array) -> Array:
    """Return an array of the collective's whole size with a rank's shard in its place and zeros around it."""
    place = op.group.index(rank.number)
    buffer = np.zeros(op.elements, shard.dtype)
    buffer[place * len(shard) : (place + 1) * len(shard)] = shard
    return buffer


def _share(setting: TrainingContext, rank: Rank, op: Collective, act: NumericAction[Exchange]) -> Array:
    """Return a rank's gradients for a collective, packed into a flat array and divided by the number of ranks.

    The division uses the dtype on the wire, like PyTorch (DDP's buckets, its float16 hook, FSDP2's reduce): if this
    dtype has a wider range than the gradients' dtype, small gradients are not lost.
    """
    gradients = packed(setting, rank, act.units, act.micro).astype(find(op.dtype).numpy)
    share: Array = np.pad(gradients / gradients.dtype.type(setting.shares), (0, op.elements - len(gradients)))
    return share


def packed(setting: TrainingContext, rank: Rank, units: Units, micro: int) -> Array:
    """Return several units' gradients, summed over micro-batches up to `micro`, as a flat array in the order of shards;
    remove these gradients from the rank.
    """
    summed: dict[str, Parameters] = {}
    for unit in units:
        # A fast rank may already have the next micro-batch's gradients; these must stay.
        for number in sorted(key for name, key in rank.gradients if name == unit and setting.is_back(key, micro)):
            gradients = rank.gradients.pop((unit, number))
            into = summed.setdefault(unit, {})
            # Sum in micro-batch order for reproducible rounding.
            summed[unit] = {name: into[name] + part if into else part for name, part in gradients.items()}
        if unit not in summed:
            raise SimulationError(f"rank {rank.number} sends gradients of {unit}, micro-batch {micro}, which it lacks")
    return setting.layout(rank.number, units).arranged(pack(setting.places[rank.number].gpt, summed, units))


def received(setting: TrainingContext, rank: Rank, act: NumericAction[Exchange], array: Array) -> None:
    """Store the array that a rank received from a collective: as gradients, parameters, flags or norms, according to
    `act`.
    """
    match act.effect:
        case Exchange.REDUCE_SCATTER if setting.copies > 1:
            # Hybrid sharding: the sum over this copy's ranks only. SUM_COPIES adds the other copies. With 4 ranks and
            # shards over 2: reduce-scatter in {0, 1} and in {2, 3}, then sums in {0, 2} and in {1, 3}.
            _add(rank.scattered, _scattered(setting, act), array)
        case Exchange.ALL_REDUCE | Exchange.REDUCE_SCATTER | Exchange.SUM_COPIES:
            # Drop the collective's padding and store the sum in the gradients' dtype.
            total = array[: len(rank.parts[act.units])]
            _add(rank.summed, act.units, total.astype(find(setting.plan.step.precision.grads).numpy, copy=False))
        case Exchange.ALL_GATHER | Exchange.PULL:
            spread(setting, rank, act.units, array)
        case Exchange.GATHER_AVERAGES:
            (unit,) = act.units
            parts = np.split(array, setting.cut_of(act.units))
            rank.averages[unit] = setting.joined(rank.number, unit, parts)
        case Exchange.GATHER_UPDATED:
            _spread_all(setting, rank, act, array)
        case Exchange.FLAG:
            rank.overflowed = bool(array.any())
        case Exchange.SUM_NORM:
            rank.squares = float(array[0])
        case Exchange.GATHER_NORMS:
            # float64: each rank brings its sum and the remainder beyond float64; `fsum` adds all exactly and rounds
            # once.
            rank.squares, rank.rest = fsum(array), 0.0
        case Exchange.SUM_PARTIAL | Exchange.SUM_SHARED:
            _put_back(setting, rank, act, array)
        case Exchange.WITHIN | Exchange.SEND | Exchange.TO_OWNERS | Exchange.FROM_OWNERS:
            raise ValueError(f"{act.what}: Training delivers this result")
        case Exchange.PUSH:
            raise ValueError("workers receive no result of a push; they pull")
        case _:
            assert_never(act.effect)


def _summands(setting: TrainingContext, rank: Rank, act: NumericAction[Exchange]) -> Array:
    """Return a rank's gradient elements that are summed once more after the last micro-batch, packed."""
    pieces = [part[mask] for part, mask in _masked(setting, rank, act)]
    return np.concatenate([np.zeros(0), *pieces]).astype(pieces[0].dtype)


def _put_back(setting: TrainingContext, rank: Rank, act: NumericAction[Exchange], array: Array) -> None:
    """Write the sums in `array` back to the gradient elements that `_summands` returned."""
    at = 0
    for part, mask in _masked(setting, rank, act):
        count = int(mask.sum())
        part[mask] = array[at : at + count].astype(part.dtype)
        at += count


def _masked(setting: TrainingContext, rank: Rank, act: NumericAction[Exchange]) -> list[tuple[Array, Array]]:
    """Return this rank's gradients by bucket, each with a mask of the elements to sum once more."""
    collect(setting, rank)
    # Shards may be views into received arrays; copy before changing elements in place.
    for units, part in rank.summed.items():
        rank.summed[units] = part.copy()
    # Whole parameters beside cut matrices (norms, biases): each tensor-parallel rank has the gradient of its tokens
    # only.
    if act.effect is Exchange.SUM_PARTIAL:
        return [(part, own_slice(setting, rank, units, partial=True)) for units, part in rank.summed.items()]
    # Tied token table on two pipeline stages (SUM_SHARED): sum the embedding's and the head's gradients.
    gpt = setting.places[rank.number].gpt
    masks = []
    for units, part in rank.summed.items():
        shared = [
            np.full(int(np.prod(shape)), name == "tok.weight")
            for unit in units
            for name, shape in gpt.shapes(unit).items()
        ]
        arranged = setting.layout(rank.number, units).arranged(np.concatenate(shared))
        masks.append((part, np.resize(arranged, len(part))))
    return masks


def own_slice(setting: TrainingContext, rank: Rank, units: Units, *, partial: bool = False) -> Array:
    """Return a boolean mask over this rank's gradient shard: elements that count in the global norm.

    With `partial`, return the elements for which each tensor-parallel rank has only a part of the gradient.
    """
    place = setting.places[rank.number]
    mask = place.counted(units, partial=partial)
    length = len(rank.parts[units])
    arranged = setting.layout(rank.number, units).arranged(mask)
    # The shard may end in padding, which never counts.
    shards = np.pad(arranged, (0, length * setting.cut_of(units) - len(arranged)))
    return shards[setting.part_of(rank.number, units) * length :][:length]


def collect(setting: TrainingContext, rank: Rank) -> None:
    """Store on a rank the gradients of units that no other rank holds, summed over micro-batches and divided for the
    step's mean.
    """
    for units in setting.places[rank.number].alone:
        if units not in rank.summed:
            gradients = packed(setting, rank, units, setting.last_back)
            rank.summed[units] = gradients / gradients.dtype.type(setting.shares)


def _scattered(setting: TrainingContext, act: NumericAction[Exchange]) -> tuple[Units, int]:
    """Return a reduce-scattered shard's key: a fast rank scatters the next micro-batch before the last is added."""
    return act.units, setting.scattered_in(act.micro)


def _add(into: dict[Key, Array], key: Key, array: Array) -> None:
    """Add an array to the dict entry under `key`, or store the array if the entry is new."""
    into[key] = into[key] + array if key in into else array


def spread(setting: TrainingContext, rank: Rank, units: Units, array: Array) -> None:
    """Unpack all shards of several units into a rank's working parameters, rounded to the stored dtype."""
    stored, packed_units = setting.gpt.arithmetic.stored, setting.layout(rank.number, units).restored(array)
    for unit, parameters in unpack(setting.places[rank.number].gpt, packed_units, units).items():
        rank.working[unit] = {name: value.astype(stored) for name, value in parameters.items()}


def _spread_all(setting: TrainingContext, rank: Rank, act: NumericAction[Exchange], array: Array) -> None:
    """Unpack all ranks' updated shards, gathered in a single collective, into a rank's working parameters."""
    parts = _handed_out(rank, act)
    # Two buckets (a, b) on 2 ranks arrive as a0 b0 a1 b1; each bucket is put together as a0 a1 and b0 b1.
    of_rank = np.split(array, setting.cut_of(parts[0][0]))
    at = 0
    for units, part in parts:
        bucket = np.concatenate([shard[at : at + len(part)] for shard in of_rank])
        spread(setting, rank, units, bucket)
        at += len(part)


def _handed_out(rank: Rank, act: NumericAction[Exchange]) -> list[tuple[Units, Array]]:
    """Return a rank's shards for a single gather after the update: the experts' shards, or all others."""
    return [(units, part) for units, part in rank.parts.items() if is_spread(units) == (act.what == "experts")]
