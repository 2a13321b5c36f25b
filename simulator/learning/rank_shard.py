"""Which part of the model does a rank hold? A record for each rank, derived from the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simulator.basics.arrays import Ints
from simulator.learning.state import Units
from simulator.numerics.gpt import Gpt
from simulator.numerics.tensor_shard import TensorShard, is_cut
from simulator.records.operation import Collective, Computation, Compute, Exchange, Op
from simulator.step.pipeline import Pipeline
from simulator.step.plan import StepPlan
from simulator.step.spec import Updater

# Collectives that send a micro-batch's gradients; hybrid sharding then also sums over copies of the states.
SENDS_GRADIENTS: Final = frozenset({Exchange.ALL_REDUCE, Exchange.REDUCE_SCATTER, Exchange.PUSH})


@dataclass(frozen=True)
class RankShard:
    """A rank's model part, and the rank's places in process groups."""

    gpt: Gpt  # the model with this rank's share of parameters and sequences
    units: tuple[str, ...]  # units that the rank computes
    # Units whose gradients are summed in the same collective (buckets), in the order of the last micro-batch, followed
    # by the entries of `alone`
    travelling: tuple[Units, ...]
    alone: tuple[Units, ...]  # units that no other rank holds; their gradients are not sent
    data: int  # place among the ranks that hold the same part of the model
    replica: int  # data-parallel coordinate: selects the rank's sequences of a step
    holders: int  # number of the group of ranks that hold the same part of the model, experts aside
    whole: bool = False  # True if the rank updates every parameter that it computes with (ddp)
    # Units of the model's second copy, if two copies run through the pipeline from both ends (DualPipe)
    second: frozenset[str] = frozenset()

    @property
    def tells_the_loss(self) -> bool:
        """True if the rank reports the loss: only the first tensor-parallel rank does."""
        return self.gpt.share.place == 0

    def counted(self, units: Units, *, partial: bool = False) -> Ints:
        """Return a boolean mask over the packed gradient elements of some units of the model.

        True: this rank adds the element's square to the global norm, in which each element of the model counts once.
        With `partial` True instead: the elements that every tensor-parallel rank holds as a partial sum.
        """
        masks = []
        for unit in units:
            for name, shape in self.gpt.shapes(unit).items():
                # Each element of the model must count once. For tp 2:
                #    fc1.weight (cut)      rank 0 counts its half, rank 1 its half
                #    ln1.weight (whole)    rank 0 counts, rank 1 does not
                # A tied table copied to the last stage counts on the first stage only.
                uncut, copied = not is_cut(name), self.gpt.copies_table and (unit, name) == ("head", "tok.weight")
                # Under ddp with expert parallelism, squares are also summed over expert-parallel ranks, so everything
                # except experts counts on the first of these ranks only.
                first = is_spread(units) or not self.whole or self.gpt.share.expert_place == 0
                counts = uncut if partial else (not uncut or self.gpt.share.place == 0) and first and not copied
                masks.append(np.full(int(np.prod(shape)), counts))
        return np.concatenate(masks)


def is_spread(units: Units) -> bool:
    """Return True if these units are experts in expert parallelism, where each rank holds different experts."""
    return units[0].endswith(" experts")


def places(gpt: Gpt, plan: StepPlan) -> tuple[RankShard, ...]:
    """Return every rank's model part and places in process groups, in rank order."""
    step, lists = plan.step, plan.program.lists
    degrees, ranks = step.parallelism, len(plan.program.ranks)
    grid = degrees.grid(ranks)
    data, holders = np.zeros((2, ranks), np.int64)
    for number, group in enumerate(grid.same_part()):
        # With tp 2 on 4 ranks the groups with the same part are {0, 2} and {1, 3}: rank 2 has data 1 and holders 0.
        data[group], holders[group] = np.arange(len(group)), number
    tensor, context, replica, stages = (grid.coordinate(kind).tolist() for kind in ("tp", "cp", "dp", "pp"))
    pipeline = Pipeline.of(step)
    seconds = [pipeline.second_copy(place) for place in range(degrees.pp)]
    cut, experts = degrees.cut(), degrees.ep
    # Rows of the padded token table on each rank.
    rows = cut.vocabulary(step.transformer) // degrees.tp if degrees.tp > 1 else 0
    every = replace(gpt, share=TensorShard(experts=experts)).units
    # Ranks with the same list of operations share units and buckets.
    of_list = [(_units(every, ops), _travelling(ops, _units(every, ops))) for ops in lists.lists]
    full = plan.strategy.updater is Updater.EVERY_RANK
    shards = []
    for rank in range(ranks):
        share = TensorShard(
            degrees.tp, tensor[rank], rows, cut.sequence, degrees.cp, context[rank], degrees.balanced,
            degrees.gathers_keys, experts, int(data[rank]) % experts,
        )  # fmt: skip
        model = replace(gpt, share=share, copies_table=gpt.tied and degrees.apart)
        units, (travelling, local) = of_list[lists.list_of[rank]]
        second = frozenset(unit for unit in units if unit.removesuffix(" experts") in seconds[stages[rank]])
        shards.append(
            RankShard(model, units, travelling, local, int(data[rank]), replica[rank], int(holders[rank]), full, second)
        )
    return tuple(shards)


def _units(every: tuple[str, ...], ops: tuple[Op, ...]) -> tuple[str, ...]:
    """Return the units run forward by a rank's operations, in model order; `every` lists the model's units."""
    acts = [op.act for op in ops if isinstance(op, Compute) and op.act is not None]
    forward = {unit for act in acts if act.effect is Computation.FORWARD for unit in act.units}
    return tuple(unit for unit in every if unit in forward)


def _travelling(ops: tuple[Op, ...], units: tuple[str, ...]) -> tuple[tuple[Units, ...], tuple[Units, ...]]:
    """Return buckets of units in sending order followed by the units that are not sent; and the latter alone."""
    acts = [op.act for op in ops if isinstance(op, Collective) and op.act is not None]
    buckets = _last([(act.units, act.micro) for act in acts if act.effect in SENDS_GRADIENTS])
    # Without sharding groups (a copy per rank) only sums over copies send gradients, or nothing does.
    buckets = buckets or _last([(act.units, act.micro) for act in acts if act.effect is Exchange.SUM_COPIES])
    local = tuple((unit,) for unit in units if not any(unit in together for together in buckets))
    return (*buckets, *local), local


def _last(sends: list[tuple[Units, int]]) -> tuple[Units, ...]:
    """Return the unit buckets sent in a step's last micro-batch, in sending order.

    Chunks of a rank (virtual stages) may end in different micro-batches.
    """
    last: dict[str, int] = {}
    for units, micro in sends:
        last |= {unit: max(micro, last.get(unit, 0)) for unit in units}
    return tuple(dict.fromkeys(units for units, micro in sends if micro == last[units[0]]))


__all__ = ["SENDS_GRADIENTS", "RankShard", "is_spread", "places"]
