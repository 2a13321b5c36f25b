"""Everything that stays constant while a model trains: the plan, the simulated timeline, the model, the rules.

A record and the values derived from it; state.py holds the values that change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np

from simulator.basics.arrays import Array, Ints
from simulator.learning.rank_shard import RankShard, is_spread, places
from simulator.learning.shard_layout import ShardLayout, shares_of_matrices
from simulator.learning.state import Units
from simulator.numerics.dropout import Draw
from simulator.numerics.gpt import Gpt
from simulator.numerics.muon import Muon
from simulator.numerics.optimizer import Adam, Rule
from simulator.records.operation import Computation, Compute
from simulator.records.timeline import Timeline, TransferLog
from simulator.step.checkpointing import policy_of
from simulator.step.pipeline import Pipeline
from simulator.step.pipelines.schedule import Work
from simulator.step.plan import StepPlan
from simulator.step.spec import GradientSync, Updater

_PACKED: Final = ShardLayout()


@dataclass(frozen=True)
class TrainingContext:
    """Everything that stays constant while a model trains: model, plan of a step, simulated timeline, optimizer."""

    gpt: Gpt  # the whole model
    plan: StepPlan  # plan with every collective simulated (`collectives: played`)
    timeline: Timeline  # timeline of all ranks
    rule: Rule = field(default_factory=Adam)  # the optimizer
    seed: int = 0  # seed of dropout and of the task
    logs: dict[str, TransferLog] = field(init=False)  # simulated transfers of each collective
    # `recomputed`, `segments`: Units that are recomputed; the first unit of each recomputed segment.
    recomputed: frozenset[str] = field(init=False)
    segments: frozenset[str] = field(init=False)
    places: tuple[RankShard, ...] = field(init=False)  # place of each rank

    _layouts: dict[Units, ShardLayout] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        # The dataclass is frozen, so derived fields are set through `object`.
        object.__setattr__(self, "logs", {log.collective: log for log in self.timeline.logs})
        ops = chain.from_iterable(self.plan.program.lists.lists)
        acts = [op.act for op in ops if isinstance(op, Compute)]
        recomputed = [act.units for act in acts if act is not None and act.effect is Computation.RECOMPUTE]
        object.__setattr__(self, "recomputed", frozenset(unit for units in recomputed for unit in units))
        object.__setattr__(self, "segments", frozenset(units[0] for units in recomputed))
        object.__setattr__(self, "places", places(self.gpt, self.plan))

    @property
    def world_size(self) -> int:
        """Number of ranks in the training."""
        return len(self.plan.program.ranks)

    @property
    def data_parallel(self) -> int:
        """Number of ranks that share a step's tokens: ranks with the same part of a model copy."""
        degrees = self.plan.step.parallelism
        return self.world_size // (degrees.tp * degrees.pp)

    @property
    def holders(self) -> int:
        """Number of ranks with the same part of the model."""
        return self.plan.step.parallelism.holders(self.world_size)

    @property
    def replicas(self) -> int:
        """Number of rank groups sharing a step's sequences (data-parallel size without context parallelism)."""
        return self.data_parallel // self.plan.step.parallelism.cp

    @property
    def cut(self) -> int:
        """Number of shards per copy of the model states.

        Example with 8 ranks: ddp 1; ZeRO 8 (one copy); hybrid sharding with `shard_size: 4` 4 (two copies).
        """
        if self.plan.strategy.updater is Updater.EVERY_RANK:
            return 1
        return self.plan.step.sharding.shard_size or self.holders

    def cut_of(self, units: Units) -> int:
        """Return the number of shards for these units' states; experts are sharded over the ranks with the same
        experts.
        """
        return max(1, self.cut // self.plan.step.parallelism.ep) if is_spread(units) else self.cut

    def part_of(self, rank: int, units: Units) -> int:
        """Return a rank's shard index for these units' states."""
        data = self.places[rank].data
        # Neighbouring ranks hold different experts. With 4 ranks and ep 2, ranks 0 and 2 share experts, as shards 0 and
        # 1.
        place = data // self.plan.step.parallelism.ep if is_spread(units) else data
        return place % self.cut_of(units)

    @property
    def muon(self) -> Muon | None:
        """The optimizer, if it has a rule for matrices; None for others."""
        return self.rule if isinstance(self.rule, Muon) else None

    def layout(self, rank: int, units: Units) -> ShardLayout:
        """Return the order of these units' elements in the shards of their states; equal for all ranks of a group."""
        if self.muon is None:
            return _PACKED
        if units not in self._layouts:
            self._layouts[units] = shares_of_matrices(self.muon, self.places[rank].gpt, units, self.cut_of(units))
        return self._layouts[units]

    @property
    def matrix_rule(self) -> Muon:
        """The optimizer's rule for matrices.

        Raises
        ------
        ValueError
            The optimizer has no rule for matrices.
        """
        if self.muon is None:
            raise ValueError(f"got {self.rule}; only Muon has a rule for matrices")
        return self.muon

    def shares_of(self, rank: int, unit: str) -> tuple[Ints, ...]:
        """Return the places of every shard's elements in a unit's packed matrices, for the shards that a rank's group
        holds.
        """
        units = next(units for units in self.places[rank].travelling if unit in units)
        return self.layout(rank, units).shares[unit]

    def share(self, rank: int, unit: str) -> Ints:
        """Return the places of a rank's elements in a unit's packed matrices."""
        return self.shares_of(rank, unit)[self.part_of(rank, (unit,))]

    def joined(self, rank: int, unit: str, parts: Sequence[Array]) -> Array:
        """Return a unit's packed matrices from the shares of a rank's group; a part may end in padding."""
        shares = self.shares_of(rank, unit)
        matrices = np.empty(sum(map(len, shares)), parts[0].dtype)
        for share, part in zip(shares, parts, strict=True):
            matrices[share] = part[: len(share)]
        return matrices

    @property
    def copies(self) -> int:
        """Number of model-state copies (several under hybrid sharding)."""
        return self.holders // self.cut

    @property
    def shares(self) -> int:
        """Number of ranks over which gradients are averaged: every data-parallel rank, or 1 with asynchronous
        servers.
        """
        return 1 if self.plan.step.sharding.asynchronous else self.data_parallel

    def micro_batch(self, rank: int, unit: str, micro: int) -> int:
        """Return a micro-batch's number on the rank: DualPipe's second model copy counts from half the
        accumulation on.
        """
        return micro + (self.plan.step.accumulation // 2 if unit in self.places[rank].second else 0)

    def kept_in(self, micro: int) -> int:
        """Return the key under which the gradient of a micro-batch is accumulated.

        Gradients that are sent once accumulate over the step. Gradients that every micro-batch sends have a key per
        micro-batch, because a fast rank may compute the next micro-batch before the last one is sent.
        """
        return micro // self.plan.step.accumulation if self._sends_once else micro

    @property
    def _sends_once(self) -> bool:
        """True if gradients accumulate over micro-batches, and only the last micro-batch sends them."""
        return self.plan.strategy.sending is GradientSync.LAST or self.plan.step.sharding.gradient_sync == "last"

    def is_back(self, key: int, micro: int) -> bool:
        """Return True if the gradient under `key` was computed no later than the gradient of micro-batch
        `micro`.

        Gradients of later micro-batches may exist before an earlier one is sent. Some pipelines (GPipe) run the last
        micro-batch's backward pass first.
        """
        if self.last_comes_back_first and not self._sends_once:
            return key >= micro
        return key <= self.kept_in(micro)

    @cached_property
    def last_comes_back_first(self) -> bool:
        """True if the pipeline runs backward passes from the last micro-batch to the first."""
        passes = Pipeline.of(self.plan.step).passes(0)
        stage = passes[0].stage
        back = [run.micro for run in passes if run.stage == stage and run.work in (Work.BACKWARD, Work.INPUT_GRADIENT)]
        return back != sorted(back)

    @property
    def last_back(self) -> int:
        """Number of the micro-batch whose backward passes end last in a step."""
        return 0 if self.last_comes_back_first else self.plan.step.accumulation - 1

    def scattered_in(self, micro: int) -> int:
        """Return the number under which a rank stores its reduce-scattered gradient shard of a micro-batch `micro`.

        The shard waits there for the sum over the model's copies. With `gradient_sync: shard`, this sum takes place
        once a step, and all micro-batches are added under the number 0.
        """
        return 0 if self.plan.step.sharding.gradient_sync == "shard" else micro

    def draw(self, rank: int, unit: str, micro: int, begun: int) -> Draw:
        """Return the random dropout masks for a rank's pass through a unit; `begun` is the number of steps taken
        before.
        """
        # The whole model has no separate experts' units, so use the layer's number.
        place = self.gpt.units.index(unit.removesuffix(" experts"))
        return Draw(self.gpt.dropout, (self.seed, begun, rank, micro, place))

    def documents(self, rank: int, unit: str, micro: int) -> tuple[int, ...]:
        """Return the tokens of each document packed into a rank's micro-batch; empty if a sequence is a document."""
        batches = self.plan.step.batches
        if not batches:
            return ()
        return batches[self.places[rank].replica][self.micro_batch(rank, unit, micro)].documents

    def model(self, rank: int, unit: str, micro: int) -> Gpt:
        """Return a rank's model, for the documents of a micro-batch. Padding behind them counts as a document."""
        gpt, documents = self.places[rank].gpt, self.documents(rank, unit, micro)
        padding = self.plan.step.keys.seq_len - sum(documents)
        return replace(gpt, documents=(*documents, *([padding] if padding else []))) if documents else gpt

    def policy(self, unit: str) -> str:
        """Return the name of a layer's activation checkpointing policy."""
        # Unit 0 is the embedding, so layer i is unit i + 1.
        return policy_of(self.plan.step.keys.activation_checkpointing, self.gpt.units.index(unit) - 1)
