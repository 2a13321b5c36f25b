"""Everything that stays the same while a model trains: the plan, what was played, the model, the rules.

Rule: a record and what follows from it; what changes is in state.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from simulator.learning.state import Units
from simulator.numerics.dropout import Draw
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import Adam, Rule
from simulator.records.program import Computation, Compute, Exchange
from simulator.records.timeline import Timeline, TransferLog
from simulator.step.checkpointing import policy_of
from simulator.step.plan import StepPlan
from simulator.step.strategies.strategy import Updater

# What gathers or sums all ranks' gradients of a micro-batch; over copies of the states they are summed once more.
SENDS_GRADIENTS: Final = frozenset({Exchange.ALL_REDUCE, Exchange.REDUCE_SCATTER, Exchange.PUSH})


@dataclass(frozen=True, slots=True)
class Setting:
    """A model, the step that trains it, and how that was played.

    Attributes
    ----------
    gpt : Gpt
    plan : StepPlan
        With every collective played: `collectives: played`.
    timeline : Timeline
        Of all ranks.
    rule : Rule
        Of the optimizer.
    seed : int
        Of dropout.
    logs : dict of collective's name to TransferLog
    recomputed, segments : frozenset of str
        Units that are run again, and those of them that are the first of what is run again at once.
    """

    gpt: Gpt
    plan: StepPlan
    timeline: Timeline
    rule: Rule = field(default_factory=Adam)
    seed: int = 0
    logs: dict[str, TransferLog] = field(init=False)
    recomputed: frozenset[str] = field(init=False)
    segments: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "logs", {log.collective: log for log in self.timeline.logs})
        acts = [op.act for op in self.plan.program.ranks[0] if isinstance(op, Compute)]
        recomputed = [act.units for act in acts if act is not None and act.effect is Computation.RECOMPUTE]
        object.__setattr__(self, "recomputed", frozenset(unit for units in recomputed for unit in units))
        object.__setattr__(self, "segments", frozenset(units[0] for units in recomputed))

    @property
    def world_size(self) -> int:
        """Ranks."""
        return len(self.plan.program.ranks)

    @property
    def cut(self) -> int:
        """Among how many ranks one copy of the states is cut up."""
        if self.plan.strategy.updater is Updater.EVERY_RANK:
            return 1
        return self.plan.step.sharding.shard_size or self.world_size

    @property
    def copies(self) -> int:
        """Of the states."""
        return self.world_size // self.cut

    @property
    def shares(self) -> int:
        """Of how many ranks' gradients a step takes the mean: of all, or of one where each is applied alone."""
        return 1 if self.plan.step.sharding.asynchronous else self.world_size

    def kept_in(self, micro: int) -> int:
        """By which micro-batch a gradient is kept: a fast rank may be at the next one before the last has left."""
        step = self.plan.step
        whole = self.plan.strategy.keeps_whole_gradients(step.sharding)
        return micro // step.accumulation if whole else micro

    def scattered_in(self, micro: int) -> int:
        """By which micro-batch this rank's part is kept until copies are summed: one sum where they are summed once."""
        return 0 if self.plan.step.sharding.gradient_sync == "shard" else micro

    def draw(self, rank: int, unit: str, micro: int, begun: int) -> Draw:
        """Which random numbers dropout draws in a unit's pass; `begun` steps have been taken before what was played."""
        place = self.gpt.units.index(unit)
        return Draw(self.gpt.dropout, (self.seed, begun, rank, micro, place))

    def policy(self, unit: str) -> str:
        """Of activation checkpointing of a layer."""
        return policy_of(self.plan.step.checkpointing, self.gpt.units.index(unit) - 1)


def travelling_together(plan: StepPlan) -> list[Units]:
    """Units whose gradients are summed together, in the order of the last micro-batch; one by one on a single rank."""
    acts = [op.act for op in plan.program.collectives().values() if op.act is not None]
    last = plan.step.accumulation - 1
    sent = list(dict.fromkeys(act.units for act in acts if act.effect in SENDS_GRADIENTS and act.micro == last))
    if sent:
        return sent
    # Where nobody cuts anything up, copies alone are summed, or nothing is.
    alone = [act.units for act in acts if act.effect is Exchange.SUM_COPIES and act.micro == last]
    units = ["embedding", *(f"layer {i}" for i in range(plan.step.model.num_layers)), "head"]
    return list(dict.fromkeys(alone)) or [(unit,) for unit in units]
