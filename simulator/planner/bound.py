"""How fast can a setting be at best, and how little memory can it need? Lower bounds, without a simulation.

A bound never exceeds the simulated value, because the search skips every setting with a bound worse than the best
settings so far. The time bound counts

- kernels at full speed, as if no collective ran beside them;
- exchanges inside the model (tensor, context, expert parallelism) before the kernels that need them, each alone on its
  links;
- the pipeline's order, with the time of its sends;
- the optimizer's update.

The bound omits everything that other work may hide: gathers and sums over data-parallel ranks, and contention on links.

Example: 2 stages, 3 micro-batches, forward pass 1 ms, backward pass 2 ms, update 1 ms, free sends. Each rank's own work
is 3 x (1 + 2) + 1 = 10 ms. The second rank begins after a forward pass on the first rank, and the first rank runs a
backward pass after the second rank's last pass: the bound is 1 + 9 + 2 + 1 = 13 ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.basics.dtypes import find
from simulator.cluster.cluster import Cluster
from simulator.collectives.estimate import apart, estimate, least
from simulator.model.partition import Communication
from simulator.planner.pass_order import RankTimes, pass_order
from simulator.planner.setting import PlanSetting
from simulator.records.operation import Collective
from simulator.step.communicator import Communicator
from simulator.step.kernel_timer import KernelTimer
from simulator.step.kernels.contention import hbm_left
from simulator.step.optimizer_update import apply_cost, average_cost, update_cost
from simulator.step.pass_pieces import PassPieces
from simulator.step.pipeline import Pipeline
from simulator.step.pipelines.schedule import Work
from simulator.step.plan import groups_of, on_ranks
from simulator.step.process_groups import Groups
from simulator.step.process_memory import process_memory
from simulator.step.spec import TrainingStep, Updater
from simulator.step.stages import cuts_of_stages
from simulator.step.states import Part, even_part, states
from simulator.step.strategies.strategy import STRATEGIES, Strategy
from simulator.step.units import Unit, units


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Lower bounds for a stage's passes of a micro-batch [s]."""

    whole: Mapping[Work, float]  # time until the next pass can begin: kernels, and exchanges awaited by kernels
    # Time of the kernels alone, for schedules in which another pass may hide the exchanges
    kernels: Mapping[Work, float]


@dataclass(frozen=True, slots=True)
class StepBound:
    """Lower bounds on the step time and memory of a setting (a point in the search space), in parts."""

    pipeline: Pipeline  # schedule and shape of the pipeline
    stages: tuple[StageTimes, ...]  # times of each stage in a model copy
    updates: tuple[float, ...]  # lower bound for the update on each pipeline rank [s]
    # Lower bound on the memory of the fullest rank's process: model states, whole gradients or activations, and
    # `beside` [B]
    memory: int
    beside: int  # CUDA context and NCCL buffers of a rank's process [B]
    # Return the time to send a micro-batch's activations or gradients from one pipeline rank to another, alone on the
    # links [s]. A function, because most settings are pruned before sends are needed.
    sends: Callable[[], Mapping[tuple[int, int], float]]

    def busy_bound(self) -> float:
        """Return a lower bound on step time [s]: the largest sum of a pipeline rank's own work and the passes certain
        before and after it.
        """
        schedule, shape, copies = self.pipeline.schedule, self.pipeline.shape, self.pipeline.model_stages
        back = Work.INPUT_GRADIENT if schedule.splits_backward else Work.BACKWARD
        works = (Work.FORWARD, back, *([Work.WEIGHT_GRADIENT] if schedule.splits_backward else []))
        # Two passes at once may hide each other's exchanges: only kernels are certain.
        least = [times.kernels if self.pipeline.pairs else times.whole for times in self.stages]
        longest = 0.0
        # A stage's work starts after the forward passes on earlier stages and is followed by their backward passes.
        for place in range(shape.ranks):
            stages = [stage % copies for stage in schedule.stages_of(place, shape)]
            each = sum(least[stage][work] for stage in stages for work in works)
            # Under DualPipe, each model copy gets half of the micro-batches.
            micros = shape.micro_batches // (shape.stages // copies)
            # With split backward passes, the last rank may still compute weight gradients while earlier ranks run their
            # last input gradients. Only the forward passes before its first pass are certain to add.
            around = [Work.FORWARD] if schedule.splits_backward else [Work.FORWARD, back]
            ends = sum(times[work] for times in least[: min(stages)] for work in around)
            longest = max(longest, micros * each + ends + self.updates[place])
        return longest

    def waiting(self, place: int) -> float:
        """Return a lower bound on the time that a pipeline rank's kernels wait for exchanges in a step [s]; 0 if passes
        run in pairs.
        """
        copies = self.pipeline.model_stages
        if self.pipeline.pairs:
            return 0.0
        # Kernels never hide exchanges within the same pass, because they wait for them.
        counts = Counter((step_pass.stage % copies, step_pass.work) for step_pass in self.pipeline.passes(place))
        return sum(
            times * (self.stages[stage].whole[work] - self.stages[stage].kernels[work])
            for (stage, work), times in counts.items()
        )

    def schedule_bound(self, exact: Mapping[int, RankTimes] | None = None) -> float:
        """Return a lower bound on step time [s]: every pass starts as early as the pipeline's order allows.

        Parameters
        ----------
        exact : mapping of int to RankTimes, optional
            Tighter times for some pipeline ranks; only for schedules without two passes at once.
        """
        # A single rank waits for no other rank.
        if self.pipeline.shape.ranks == 1 and exact is None:
            return self.busy_bound()
        seconds, kernels = (
            np.array([times[work] for times in of for work in Work])
            for of in ([times.whole for times in self.stages], [times.kernels for times in self.stages])
        )
        sends = self.sends() if self.pipeline.shape.ranks > 1 else {}
        return pass_order(self.pipeline).last_end(seconds, kernels, sends, self.updates, exact or {})


@dataclass
class BoundCalculator:
    """Computes lower bounds on the step time and memory of a plan's settings; parts shared by settings are cached."""

    cluster: Cluster
    durations: CollectiveLowerBounds = field(init=False)
    _of_units: dict[tuple[object, ...], _UnitTimes] = field(default_factory=dict)
    _exchanges: dict[tuple[object, ...], float] = field(default_factory=dict)
    _states: dict[tuple[object, ...], tuple[float, int]] = field(default_factory=dict)
    _between: dict[tuple[object, ...], Mapping[tuple[int, int], float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.durations = CollectiveLowerBounds(self.cluster)

    def of(self, setting: PlanSetting, step: TrainingStep) -> StepBound:
        """Return the lower bounds of a setting and its training step; raise ValueError if the GPU cannot run it (a
        dtype without a peak rate).
        """
        step = on_ranks(step, self.cluster, setting.gpus)
        groups, pipeline = groups_of(step, setting.gpus), Pipeline.of(step)
        times = self._times_of_units(setting, step, groups)
        stages, sizes = times.of_stages(pipeline.layers())
        ranks = self._ranks_of(setting, step, pipeline, sizes, groups)
        updates = tuple(rank.update for rank in ranks)
        beside = process_memory(self.cluster.gpus[0], step, groups).nbytes
        memory = beside + max(rank.memory for rank in ranks)
        sends = partial(self._sends, setting, step, pipeline, groups)
        return StepBound(pipeline, stages, updates, memory, beside, sends)

    def _sends(
        self, setting: PlanSetting, step: TrainingStep, pipeline: Pipeline, groups: Groups
    ) -> Mapping[tuple[int, int], float]:
        """Return the time of a send to a pipeline neighbour, by (sender, receiver), alone on the links [s]; cached."""
        key = setting.gpus, setting.tp, setting.pp, setting.cp, pipeline.least_sent, step.precision.params
        if key not in self._between:
            communicator = Communicator(self.cluster, groups, "closed_form", True)
            last, sends, ranks = setting.pp - 1, dict[tuple[int, int], float](), groups.grid.groups("pp")[0].tolist()
            # The last rank sends to rank 0 if ranks have several chunks; with 2 ranks, this pair is already listed.
            for near in [*pairwise(range(setting.pp)), *([(0, last)] if last > 1 else [])]:
                for ends in (near, near[::-1]):
                    pair = groups.with_rank(ends, ranks[ends[0]])
                    op = communicator.send(pipeline.least_sent, step.precision.params, pair)
                    # Without an estimate, 0 keeps the bound valid.
                    sends[ends] = estimate(self.cluster, op) or 0.0
            self._between[key] = sends
        return self._between[key]

    def _times_of_units(self, setting: PlanSetting, step: TrainingStep, groups: Groups) -> _UnitTimes:
        """Return lower bounds on the units' times under a setting; cached by the keys on which they depend."""
        strategy = STRATEGIES.find(step.sharding.strategy)
        cut = step.parallelism.cut(0, step.experts_in_node)
        # A unit's work depends on the number of data-parallel ranks only through the existence of copies, of a layer or
        # of its experts.
        shared = groups.data_parallel > 1, groups.data_parallel * cut.tensor > cut.experts.tensor * cut.experts.ranks
        key = (
            setting.tp, setting.cp, setting.ep, setting.micro_batch, setting.checkpointing, shared,
            strategy.shards_parameters, step.parallelism.apart and step.model.tied, cut.experts.in_node,
            *setting.named,
        )  # fmt: skip
        if key not in self._of_units:
            step_units = units(
                step,
                self.cluster.gpus[0],
                groups.data_parallel,
                hbm_left(self.cluster),
                sharded=strategy.shards_parameters,
            )
            communicator = Communicator(self.cluster, groups, "closed_form", True)
            exchanges = _Exchanges(communicator, step.precision.params, setting, self.durations, self._exchanges)
            self._of_units[key] = _unit_times(step_units, exchanges)
        return self._of_units[key]

    def _ranks_of(
        self,
        setting: PlanSetting,
        step: TrainingStep,
        pipeline: Pipeline,
        sizes: Sequence[Sequence[int]],
        groups: Groups,
    ) -> list[_Rank]:
        """Return lower bounds on ranks' update time and memory; `sizes` has stages' parameters and activations."""
        strategy, shape = STRATEGIES.find(step.sharding.strategy), pipeline.shape
        keeps_whole = strategy.keeps_whole_gradients(step.sharding)
        # Offloaded gradients may leave the GPU early.
        gradient = find(step.precision.grads).itemsize if keeps_whole and not step.keys.offload.states else 0
        ranks = []
        for place in range(shape.ranks):
            of_rank = [sizes[stage % pipeline.model_stages] for stage in pipeline.schedule.stages_of(place, shape)]
            # Columns of `_UnitTimes.held`, summed over the rank's chunks.
            dense, spread, resident, _, kept_dense, kept_spread, *matrices = (
                sum(chunk[kind] for chunk in of_rank) for kind in range(8)
            )
            experts = groups.size("expert data") if spread or kept_spread else 1
            options = step.sharding.strategy, not step.keys.offload.states, *setting.named
            # Many settings share these values.
            key = dense, spread, *matrices, resident, kept_dense, kept_spread, groups.shard_size, experts, *options
            if key not in self._states:
                parts = [even_part(dense, groups.shard_size, matrices[0])]
                parts += [even_part(spread, experts, matrices[1])] if spread else []
                frozen = (kept_dense, groups.shard_size), (kept_spread, experts)
                self._states[key] = self._states_of(step, strategy, parts, resident, frozen)
            seconds, states_bytes = self._states[key]
            # Without a closed form, a single chunk's activations are certain.
            chunks = pipeline.schedule.held(shape, place) if pipeline.schedule.held and shape.ranks > 1 else 1
            activations = 0 if step.keys.offload.activations else chunks * min(chunk[3] for chunk in of_rank)
            # Activations peak before gradients are complete: their maximum is certain, their sum is not.
            ranks.append(_Rank(seconds, states_bytes + max(activations, gradient * (dense + spread))))
        return ranks

    def _states_of(
        self,
        step: TrainingStep,
        strategy: Strategy,
        parts: Sequence[Part],
        resident: int,
        frozen: Sequence[tuple[int, int]],
    ) -> tuple[float, int]:
        """Return the duration of the optimizer's kernels on the GPU [s], and the model states' bytes on a rank [B]."""
        sizes = states(step, strategy.shards, strategy.updater, parts, resident, frozen)
        nbytes = sizes.parameters + sizes.optimizer
        # Servers and hosts update with unknown overlap: 0 is a safe bound.
        if strategy.updater is Updater.SERVERS or step.keys.offload.states:
            return 0.0, nbytes
        timer = KernelTimer(self.cluster.gpus[0], step)
        # The launch overhead of further tensors is omitted: the result stays a lower bound.
        seconds = update_cost(timer, sizes, tensors=1).alone
        # Kernels that make matrices orthogonal are left out: their number on a rank depends on the distribution.
        if (rule := step.optimizer.of_matrices) is not None:
            seconds += average_cost(timer, sizes, rule, 1).alone + apply_cost(timer, sizes, rule, 1).alone
        return seconds, nbytes


@dataclass(frozen=True, slots=True)
class _Rank:
    """Lower bounds on a pipeline rank's update time [s] and peak memory [B]."""

    update: float
    memory: int


@dataclass(frozen=True)
class _UnitTimes:
    """Prefix sums of times and sizes over the model's units: a pipeline stage is the difference between two rows."""

    units: tuple[Unit, ...]  # units in model order
    # `whole`, `kernels`: Times of `StageTimes`, with a column for each member of Work [s]; shape (units + 1, 4).
    whole: Floats
    kernels: Floats
    # Columns: trained elements of dense parameters and of experts, elements that stay whole on every rank, bytes of a
    # micro-batch's saved activations [B], frozen elements of dense parameters and of experts, elements of matrices with
    # an update rule of their own, dense and of experts; shape (units + 1, 8).
    held: Ints
    _known: dict[tuple[int, ...], tuple[tuple[StageTimes, ...], list[list[int]]]] = field(default_factory=dict)

    def of_stages(self, layers: tuple[int, ...]) -> tuple[tuple[StageTimes, ...], list[list[int]]]:
        """Return times and sizes (columns of `held`) of each stage with these numbers of layers; cached."""
        if layers not in self._known:
            cuts = cuts_of_stages(self.units, layers)
            # Prefix sums make a stage the difference of two rows: settings differ in stages, and share units.
            sums = self.whole, self.kernels, self.held
            passes, kernels, sizes = (np.diff(sums_of[cuts], axis=0).tolist() for sums_of in sums)
            stages = tuple(
                StageTimes(dict(zip(Work, sums_of, strict=True)), dict(zip(Work, of_kernels, strict=True)))
                for sums_of, of_kernels in zip(passes, kernels, strict=True)
            )
            self._known[layers] = stages, sizes
        return self._known[layers]


@dataclass(frozen=True)
class CollectiveLowerBounds:
    """Lower bounds on the durations of collectives alone on their links.

    A bound is the closed form if exact, or the busiest link's bytes over its bandwidth.

    A closed form is the last rank's end. In a tree or a chain, other ranks end earlier and may be on the critical path,
    hence the first rank's end counts (`apart` is subtracted). If a group's ranks belong to several pipeline stages,
    some may have sent their part before others arrive. Then only the start-up is certain, and for two ranks also the
    later rank's send.
    """

    cluster: Cluster
    _known: dict[tuple[object, ...], tuple[object, float]] = field(default_factory=dict)

    def of(self, op: Collective) -> float:
        """Return a lower bound on the duration of a collective [s]; cached."""
        # The key contains the schedule's id. The cached value holds the schedule, hence Python cannot reuse the id.
        key = id(op.schedule), op.elements, op.sizes.copied, op.group, op.rendezvous
        if key not in self._known:
            self._known[key] = op.schedule, self._of(op)
        return self._known[key][1]

    def _of(self, op: Collective) -> float:
        """Compute the lower bound on the duration of a collective [s], without the cache."""
        # Other stages may have sent their part earlier: only the start-up is certain.
        if op.rendezvous and len(op.group) > 2:
            return op.startup
        if op.rendezvous or op.duration is None:
            return least(self.cluster, op)
        # The rank that ends first may be on the critical path.
        return op.duration - apart(self.cluster, op)


@dataclass(frozen=True)
class _Exchanges:
    """Lower bounds on durations of exchanges between tensor-, context- or expert-parallel ranks, with their cache."""

    communicator: Communicator
    activations: str
    setting: PlanSetting
    durations: CollectiveLowerBounds
    known: dict[tuple[object, ...], float]

    def seconds(self, exchange: Communication) -> float:
        """Return a lower bound on the duration of a exchange between model-parallel ranks [s]."""
        dtype = exchange.dtype or self.activations
        cut = self.setting.tp, self.setting.cp, self.setting.ep, self.communicator.groups.experts_in_node
        key = (exchange.operation, exchange.elements, dtype, exchange.group, *cut)
        if key not in self.known:
            op = self.communicator.plan(exchange.operation, exchange.elements, dtype, exchange.group)
            self.known[key] = 0.0 if op is None else self.durations.of(op)
        return self.known[key]


def _unit_times(model_units: tuple[Unit, ...], exchanges: _Exchanges) -> _UnitTimes:
    """Return the prefix sums of times and sizes over the model's units, with exchanges at their lower bounds."""
    times_of: dict[int, tuple[float, float]] = {}

    def times(pieces: PassPieces | None) -> tuple[float, float]:
        """Return a pass's time with exchanges, and with kernels alone [s]; 0 and 0 without a pass; equal passes
        computed once.
        """
        if pieces is None:
            return 0.0, 0.0
        if id(pieces) not in times_of:  # layers of one shape share their pieces
            times_of[id(pieces)] = _path(pieces, exchanges), pieces.alone
        return times_of[id(pieces)]

    rows = []
    for unit in model_units:
        forward, backward, again = times(unit.forward), times(unit.backward), times(unit.recompute)
        inputs, weights = times(unit.input_gradient), times(unit.weight_gradient)
        # Recompute belongs to the pass that needs its results first: the input gradient.
        by_work = {
            Work.FORWARD: forward,
            Work.BACKWARD: (again[0] + backward[0], again[1] + backward[1]),
            Work.INPUT_GRADIENT: (again[0] + inputs[0], again[1] + inputs[1]),
            Work.WEIGHT_GRADIENT: weights,
        }
        rows.append([by_work[work] for work in Work])
    # A leading row of zeros: the first stage is a difference too.
    sums = np.concatenate([np.zeros((1, len(Work), 2)), np.cumsum(np.array(rows), axis=0)])
    sizes = [
        [*_apart(u.trained, u), u.resident, u.kept, *_apart(u.frozen, u), *_apart(u.in_matrices, u)]
        for u in model_units
    ]
    return _UnitTimes(model_units, sums[..., 0], sums[..., 1], np.concatenate([[[0] * 8], np.cumsum(sizes, axis=0)]))


def _apart(count: int, unit: Unit) -> tuple[int, int]:
    """Return a count of a unit's parameters as (dense, experts)."""
    return (0, count) if unit.spread else (count, 0)


def _path(pieces: PassPieces, exchanges: _Exchanges) -> float:
    """Return a pass's duration with exchanges at their lower bounds: the longest path through the pieces [s].

    Exchanges of one group run in sequence; kernels wait only for the exchanges in `awaited`.
    """
    kernels, under_way, free = 0.0, dict[int, float](), dict[str, float]()
    for place, piece in enumerate(pieces.pieces):
        if piece.exchange is not None:
            group = str(piece.exchange.group)
            # A group's stream runs one exchange at a time.
            under_way[place] = max(kernels, free.get(group, 0.0)) + exchanges.seconds(piece.exchange)
            free[group] = under_way[place]
        elif piece.cost is not None:
            kernels = max([kernels, *(under_way.pop(name, 0.0) for name in piece.awaited)]) + piece.cost.alone
    # Exchanges that no kernel awaits must still end before the rank's next pass.
    return max([kernels, *under_way.values()])
