"""Everything that stays the same while a model trains: the plan, what was played, the model, the rules.

Rule: a record and what follows from it; what changes is in state.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from simulator.learning.place import Place, is_spread, places
from simulator.learning.state import Units
from simulator.numerics.dropout import Draw
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import Adam, Rule
from simulator.records.operation import Computation, Compute
from simulator.records.timeline import Timeline, TransferLog
from simulator.step.checkpointing import policy_of
from simulator.step.pipeline import Pipeline
from simulator.step.pipelines.schedule import Work
from simulator.step.plan import StepPlan
from simulator.step.spec import Updater


@dataclass(frozen=True)
class Setting:
    """A model, the step that trains it, and how that was played.

    Attributes
    ----------
    gpt : Gpt
        The whole model.
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
    places : tuple of Place
        By rank.
    """

    gpt: Gpt
    plan: StepPlan
    timeline: Timeline
    rule: Rule = field(default_factory=Adam)
    seed: int = 0
    logs: dict[str, TransferLog] = field(init=False)
    recomputed: frozenset[str] = field(init=False)
    segments: frozenset[str] = field(init=False)
    places: tuple[Place, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "logs", {log.collective: log for log in self.timeline.logs})
        ops = chain.from_iterable(self.plan.program.lists.lists)
        acts = [op.act for op in ops if isinstance(op, Compute)]
        recomputed = [act.units for act in acts if act is not None and act.effect is Computation.RECOMPUTE]
        object.__setattr__(self, "recomputed", frozenset(unit for units in recomputed for unit in units))
        object.__setattr__(self, "segments", frozenset(units[0] for units in recomputed))
        object.__setattr__(self, "places", places(self.gpt, self.plan))

    @property
    def world_size(self) -> int:
        """Ranks."""
        return len(self.plan.program.ranks)

    @property
    def data_parallel(self) -> int:
        """Ranks among which a step's tokens are spread: as many as hold the same part of one copy of the model."""
        asked = self.plan.step.parallelism
        return self.world_size // (asked.tp * asked.pp)

    @property
    def holders(self) -> int:
        """Ranks that hold the same part of the model."""
        return self.plan.step.parallelism.holders(self.world_size)

    @property
    def replicas(self) -> int:
        """Among how many groups of ranks a step's sequences are spread."""
        return self.data_parallel // self.plan.step.parallelism.cp

    @property
    def cut(self) -> int:
        """Among how many ranks one copy of the states is cut up."""
        if self.plan.strategy.updater is Updater.EVERY_RANK:
            return 1
        return self.plan.step.sharding.shard_size or self.holders

    def cut_of(self, units: Units) -> int:
        """Among how many ranks the states of some units are cut up: of experts among those that have the same."""
        return max(1, self.cut // self.plan.step.parallelism.experts.ranks) if is_spread(units) else self.cut

    def part_of(self, rank: int, units: Units) -> int:
        """Which part of them is a rank's."""
        data = self.places[rank].data
        own = data // self.plan.step.parallelism.experts.ranks if is_spread(units) else data
        return own % self.cut_of(units)

    @property
    def copies(self) -> int:
        """Of the states."""
        return self.holders // self.cut

    @property
    def shares(self) -> int:
        """Of how many ranks' gradients a step takes the mean: of all, or of one where each is applied alone."""
        return 1 if self.plan.step.sharding.asynchronous else self.data_parallel

    def micro_batch(self, rank: int, unit: str, micro: int) -> int:
        """Which micro-batch a pass through a unit has: two copies of a model have a half of them each."""
        return micro + (self.plan.step.accumulation // 2 if unit in self.places[rank].second else 0)

    def kept_in(self, micro: int) -> int:
        """By which micro-batch a gradient is kept: a fast rank may be at the next one before the last has left."""
        return micro // self.plan.step.accumulation if self._keeps_whole_gradients else micro

    @property
    def _keeps_whole_gradients(self) -> bool:
        return self.plan.strategy.keeps_whole_gradients(self.plan.step.sharding)

    def is_back(self, kept: int, micro: int) -> bool:
        """Whether the gradient that is kept by a number has come back no later than that of a micro-batch.

        A fast rank may have passed back others before what one sends has left. Some pipelines begin with the last.
        """
        if self.last_comes_back_first and not self._keeps_whole_gradients:
            return kept >= micro
        return kept <= self.kept_in(micro)

    @cached_property
    def last_comes_back_first(self) -> bool:
        """Whether the pipeline passes micro-batches back from the last to the first."""
        passes = Pipeline.of(self.plan.step).passes(0)
        stage = passes[0].stage
        back = [one.micro for one in passes if one.stage == stage and one.work in (Work.BACKWARD, Work.INPUT_GRADIENT)]
        return back != sorted(back)

    @property
    def last_back(self) -> int:
        """Return the number of the micro-batch whose backward passes end last."""
        return 0 if self.last_comes_back_first else self.plan.step.accumulation - 1

    def scattered_in(self, micro: int) -> int:
        """By which micro-batch this rank's part is kept until copies are summed: one sum where they are summed once."""
        return 0 if self.plan.step.sharding.gradient_sync == "shard" else micro

    def draw(self, rank: int, unit: str, micro: int, begun: int) -> Draw:
        """Which random numbers dropout draws in a unit's pass; `begun` steps have been taken before what was played."""
        place = self.gpt.units.index(unit.removesuffix(" experts"))
        return Draw(self.gpt.dropout, (self.seed, begun, rank, micro, place))

    def policy(self, unit: str) -> str:
        """Of activation checkpointing of a layer."""
        return policy_of(self.plan.step.checkpointing, self.gpt.units.index(unit) - 1)
