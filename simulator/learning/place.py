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
from simulator.records.program import Collective, Computation, Compute, Exchange, Op
from simulator.step.plan import StepPlan

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
        Those whose gradients are summed together, in the order of the last micro-batch; one by one on a single rank.
    data : int
        Its place among the ranks that hold the same part of the model.
    replica : int
        Which sequences of a step it works on.
    holders : int
        Number of the group of ranks that hold the same part of the model.
    """

    gpt: Gpt
    units: tuple[str, ...]
    travelling: tuple[Units, ...]
    data: int
    replica: int
    holders: int

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
                counts = held if partial else (not held or self.gpt.share.place == 0) and not copied
                masks.append(np.full(int(np.prod(shape)), counts))
        return np.concatenate(masks)


def places(gpt: Gpt, plan: StepPlan) -> tuple[Place, ...]:
    """Every rank's."""
    step, lists = plan.step, plan.program.lists
    asked, ranks = step.parallelism, len(plan.program.ranks)
    grid = asked.grid(ranks)
    data, holders = np.zeros((2, ranks), np.int64)
    for number, group in enumerate(grid.groups("dp", "cp")):
        data[group], holders[group] = np.arange(len(group)), number
    tensor, context, replica = (grid.coordinate(kind).tolist() for kind in ("tp", "cp", "dp"))
    cut = asked.cut()
    rows = cut.vocabulary(step.model) // asked.tp if asked.tp > 1 else 0
    of_list = [(_units(gpt, ops), _travelling(ops, _units(gpt, ops))) for ops in lists.lists]
    made = []
    for rank in range(ranks):
        share = Share(
            asked.tp, tensor[rank], rows, cut.sequence, asked.cp, context[rank], asked.balanced, asked.gathers_keys
        )
        own = replace(gpt, share=share, copies_table=gpt.tied and asked.apart)
        units, travelling = of_list[lists.list_of[rank]]
        made.append(Place(own, units, travelling, int(data[rank]), replica[rank], int(holders[rank])))
    return tuple(made)


def _units(gpt: Gpt, ops: tuple[Op, ...]) -> tuple[str, ...]:
    acts = [op.act for op in ops if isinstance(op, Compute) and op.act is not None]
    there = {unit for act in acts if act.effect is Computation.FORWARD for unit in act.units}
    return tuple(unit for unit in gpt.units if unit in there)


def _travelling(ops: tuple[Op, ...], units: tuple[str, ...]) -> tuple[Units, ...]:
    acts = [op.act for op in ops if isinstance(op, Collective) and op.act is not None]
    sent = _last([(act.units, act.micro) for act in acts if act.effect in SENDS_GRADIENTS])
    if sent:
        return sent
    # Where nobody cuts anything up, copies alone are summed, or nothing is.
    alone = _last([(act.units, act.micro) for act in acts if act.effect is Exchange.SUM_COPIES])
    return alone or tuple((unit,) for unit in units)


def _last(sent: list[tuple[Units, int]]) -> tuple[Units, ...]:
    """What was sent in the last micro-batch of a step, in that order; chunks of a rank may end in different ones."""
    last: dict[str, int] = {}
    for units, micro in sent:
        last |= {unit: max(micro, last.get(unit, 0)) for unit in units}
    return tuple(dict.fromkeys(units for units, micro in sent if micro == last[units[0]]))


__all__ = ["SENDS_GRADIENTS", "Place", "places"]
