"""What one rank is among the others: its part of the model, and its places among those that hold the same part.

Rule: a record, and how it follows from a plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simulator.basics.arrays import Ints
from simulator.learning.state import Units
from simulator.numerics.gpt import Gpt
from simulator.numerics.share import Share, is_cut
from simulator.records.operation import Collective, Computation, Compute, Exchange, Op
from simulator.step.pipeline import Pipeline
from simulator.step.plan import StepPlan
from simulator.step.spec import Updater

# What gathers or sums all ranks' gradients of a micro-batch; over copies of the states they are summed once more.
SENDS_GRADIENTS: Final = frozenset({Exchange.ALL_REDUCE, Exchange.REDUCE_SCATTER, Exchange.PUSH})


@dataclass(frozen=True)
class Place:
    """A rank's place.

    Attributes
    ----------
    gpt : Gpt
        With this rank's share of parameters and sequences.
    units : tuple of str
        That it computes.
    travelling : tuple of Units
        Those whose gradients are summed together, in the order of the last micro-batch; behind them, one by one, those
        that no other rank has.
    alone : tuple of Units
        These.
    data : int
        Its place among the ranks that hold the same part of the model.
    replica : int
        Which sequences of a step it works on.
    holders : int
        Number of the group of ranks that hold the same part of the model, experts apart.
    whole : bool
        Whether it updates all that it computes with.
    second : frozenset of str
        Those of `units` that are of the model's second copy, where two run through a pipeline from both its ends.
    """

    gpt: Gpt
    units: tuple[str, ...]
    travelling: tuple[Units, ...]
    alone: tuple[Units, ...]
    data: int
    replica: int
    holders: int
    whole: bool = False
    second: frozenset[str] = frozenset()

    @property
    def tells_the_loss(self) -> bool:
        """Whether it tells the loss of its tokens: of the ranks that compute a loss together the first does."""
        return self.gpt.share.place == 0

    def counted(self, units: Units, *, partial: bool = False) -> Ints:
        """By element of some units, packed, whether this rank counts it in a norm of the whole model's gradient.

        Of what all tensor-parallel ranks hold the first one's counts, of a copied table the first stage's. Or, if
        `partial`, whether it is one that they all hold.
        """
        masks = []
        for unit in units:
            for name, shape in self.gpt.shapes(unit).items():
                held, copied = not is_cut(name), self.gpt.copies_table and (unit, name) == ("head", "tok.weight")
                # Where squares are summed over experts' ranks too, all but the experts' are counted once.
                first = is_spread(units) or not self.whole or self.gpt.share.expert_place == 0
                counts = held if partial else (not held or self.gpt.share.place == 0) and first and not copied
                masks.append(np.full(int(np.prod(shape)), counts))
        return np.concatenate(masks)


def is_spread(units: Units) -> bool:
    """Whether these are experts, of which other ranks have others."""
    return units[0].endswith(" experts")


def places(gpt: Gpt, plan: StepPlan) -> tuple[Place, ...]:
    """Every rank's."""
    step, lists = plan.step, plan.program.lists
    asked, ranks = step.parallelism, len(plan.program.ranks)
    grid = asked.grid(ranks)
    data, holders = np.zeros((2, ranks), np.int64)
    for number, group in enumerate(grid.same_part()):
        data[group], holders[group] = np.arange(len(group)), number
    tensor, context, replica, stages = (grid.coordinate(kind).tolist() for kind in ("tp", "cp", "dp", "pp"))
    pipeline = Pipeline.of(step)
    seconds = [pipeline.second_copy(place) for place in range(asked.pp)]
    cut, experts = asked.cut(), asked.experts.ranks
    rows = cut.vocabulary(step.model) // asked.tp if asked.tp > 1 else 0
    every = replace(gpt, share=Share(experts=experts)).units
    of_list = [(_units(every, ops), _travelling(ops, _units(every, ops))) for ops in lists.lists]
    whole = plan.strategy.updater is Updater.EVERY_RANK
    made = []
    for rank in range(ranks):
        share = Share(
            asked.tp, tensor[rank], rows, cut.sequence, asked.cp, context[rank], asked.balanced, asked.gathers_keys,
            experts, int(data[rank]) % experts,
        )  # fmt: skip
        own = replace(gpt, share=share, copies_table=gpt.tied and asked.apart)
        units, (travelling, alone) = of_list[lists.list_of[rank]]
        second = frozenset(unit for unit in units if unit.removesuffix(" experts") in seconds[stages[rank]])
        made.append(
            Place(own, units, travelling, alone, int(data[rank]), replica[rank], int(holders[rank]), whole, second)
        )
    return tuple(made)


def _units(every: tuple[str, ...], ops: tuple[Op, ...]) -> tuple[str, ...]:
    acts = [op.act for op in ops if isinstance(op, Compute) and op.act is not None]
    there = {unit for act in acts if act.effect is Computation.FORWARD for unit in act.units}
    return tuple(unit for unit in every if unit in there)


def _travelling(ops: tuple[Op, ...], units: tuple[str, ...]) -> tuple[tuple[Units, ...], tuple[Units, ...]]:
    """What is summed together, then what nobody sends; and this alone."""
    acts = [op.act for op in ops if isinstance(op, Collective) and op.act is not None]
    sent = _last([(act.units, act.micro) for act in acts if act.effect in SENDS_GRADIENTS])
    # Where nobody cuts anything up copies alone are summed, or nothing is.
    sent = sent or _last([(act.units, act.micro) for act in acts if act.effect is Exchange.SUM_COPIES])
    alone = tuple((unit,) for unit in units if not any(unit in together for together in sent))
    return (*sent, *alone), alone


def _last(sent: list[tuple[Units, int]]) -> tuple[Units, ...]:
    """What was sent in the last micro-batch of a step, in that order; chunks of a rank may end in different ones."""
    last: dict[str, int] = {}
    for units, micro in sent:
        last |= {unit: max(micro, last.get(unit, 0)) for unit in units}
    return tuple(dict.fromkeys(units for units, micro in sent if micro == last[units[0]]))


__all__ = ["SENDS_GRADIENTS", "Place", "is_spread", "places"]
