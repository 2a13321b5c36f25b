"""How long does a step take at least, whatever overlaps: kernels, exchanges that nothing hides, and the bubble?

Rule: never above the played time, for a plan skips what its bound rules out. Counted are kernels as if no collective
were beside them, what ranks that cut a layer exchange where the next kernels wait for it (alone on its links), the
order of the pipeline's passes with what they send, and the optimizer. Not counted is what may be hidden: gathers and
sums over data-parallel ranks, and waiting for shared links.
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
from simulator.model.cut import Communication
from simulator.planner.pass_order import RankTimes, pass_order
from simulator.planner.setting import Setting
from simulator.records.operation import Collective
from simulator.step.communicator import Communicator
from simulator.step.kernel_timer import KernelTimer
from simulator.step.kernels.contention import hbm_left
from simulator.step.optimizer_update import update_cost
from simulator.step.pass_pieces import PassPieces
from simulator.step.pipeline import Pipeline
from simulator.step.pipelines.schedule import Work
from simulator.step.plan import groups_of
from simulator.step.process_groups import Groups
from simulator.step.spec import TrainingStep, Updater
from simulator.step.stages import cuts_of_stages
from simulator.step.states import states
from simulator.step.strategies.strategy import STRATEGIES, Strategy
from simulator.step.units import Unit, units


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Least times of one stage's passes of a micro-batch [s].

    Attributes
    ----------
    whole : mapping of Work to float
        Until the next pass can begin: kernels, and the exchanges that they wait for.
    kernels : mapping of Work to float
        Kernels alone, for another pass may hide the exchanges.
    """

    whole: Mapping[Work, float]
    kernels: Mapping[Work, float]


@dataclass(frozen=True, slots=True)
class Passing:
    """What a bound is made of.

    Attributes
    ----------
    pipeline : Pipeline
    stages : tuple of StageTimes
        Of one copy of the model.
    updates : tuple of float
        By place of the pipeline [s].
    memory : int
        Least that the rank that holds most holds: model states, with whole gradients or activations [B].
    sends : callable () -> mapping of (int, int) to float
        By places of the pipeline, from and to, how long a micro-batch's activations or gradients are on their way,
        alone on their links [s]; most settings are ruled out before anybody asks.
    """

    pipeline: Pipeline
    stages: tuple[StageTimes, ...]
    updates: tuple[float, ...]
    memory: int
    sends: Callable[[], Mapping[tuple[int, int], float]]

    def quick(self) -> float:
        """Least time by each rank's own work, what must come before its first pass, and after its last [s]."""
        schedule, shape, copies = self.pipeline.schedule, self.pipeline.shape, self.pipeline.model_stages
        back = Work.INPUT_GRADIENT if schedule.splits_backward else Work.BACKWARD
        works = (Work.FORWARD, back, *([Work.WEIGHT_GRADIENT] if schedule.splits_backward else []))
        # Of two passes at once each may hide the other's exchanges.
        least = [one.kernels if schedule.pairs else one.whole for one in self.stages]
        longest = 0.0
        for place in range(shape.ranks):
            own = [stage % copies for stage in schedule.stages_of(place, shape)]
            each = sum(least[stage][work] for stage in own for work in works)
            micros = shape.micro_batches // (shape.stages // copies)
            # After the last of halved backward passes a rank may still have gradients of weights to do, beside others.
            around = [Work.FORWARD] if schedule.splits_backward else [Work.FORWARD, back]
            ends = sum(one[work] for one in least[: min(own)] for work in around)
            longest = max(longest, micros * each + ends + self.updates[place])
        return longest

    def waiting(self, place: int) -> float:
        """How long a rank's kernels wait at least for exchanges [s]; of passes at once nothing is sure."""
        copies = self.pipeline.model_stages
        if self.pipeline.schedule.pairs:
            return 0.0
        counts = Counter((one.stage % copies, one.work) for one in self.pipeline.passes(place))
        return sum(
            times * (self.stages[stage].whole[work] - self.stages[stage].kernels[work])
            for (stage, work), times in counts.items()
        )

    def along_order(self, exact: Mapping[int, RankTimes] | None = None) -> float:
        """Least time when all passes follow each other as the pipeline orders them [s].

        Parameters
        ----------
        exact : mapping of int to RankTimes, optional
            By place of the pipeline more exact times; then no rank has two passes at once.
        """
        if self.pipeline.shape.ranks == 1 and exact is None:
            return self.quick()
        whole, kernels = (
            np.array([times[work] for times in of for work in Work])
            for of in ([one.whole for one in self.stages], [one.kernels for one in self.stages])
        )
        sends = self.sends() if self.pipeline.shape.ranks > 1 else {}
        return pass_order(self.pipeline).last_end(whole, kernels, sends, self.updates, exact or {})


@dataclass
class Bounds:
    """Bounds of the settings of one plan; what several have in common is worked out once.

    Attributes
    ----------
    cluster : Cluster
    """

    cluster: Cluster
    durations: LeastDurations = field(init=False)
    _of_units: dict[tuple[object, ...], _UnitTimes] = field(default_factory=dict)
    _exchanges: dict[tuple[object, ...], float] = field(default_factory=dict)
    _states: dict[tuple[object, ...], tuple[float, int]] = field(default_factory=dict)
    _between: dict[tuple[object, ...], Mapping[tuple[int, int], float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.durations = LeastDurations(self.cluster)

    def of(self, setting: Setting, step: TrainingStep) -> Passing:
        """The least times of a setting's passes; ValueError where this GPU lacks something."""
        groups, pipeline = groups_of(step, setting.gpus), Pipeline.of(step)
        times = self._times_of_units(setting, step, groups)
        cuts = cuts_of_stages(times.units, pipeline.layers())
        whole, kernels, held = (np.diff(sums[cuts], axis=0) for sums in (times.whole, times.kernels, times.held))
        stages = tuple(
            StageTimes(dict(zip(Work, one, strict=True)), dict(zip(Work, alone, strict=True)))
            for one, alone in zip(whole.tolist(), kernels.tolist(), strict=True)
        )
        ranks = self._ranks_of(setting, step, pipeline, held.tolist(), groups)
        updates, memory = tuple(rank.update for rank in ranks), max(rank.memory for rank in ranks)
        sends = partial(self._sends, setting, step, pipeline, groups)
        return Passing(pipeline, stages, updates, memory, sends)

    def _sends(
        self, setting: Setting, step: TrainingStep, pipeline: Pipeline, groups: Groups
    ) -> Mapping[tuple[int, int], float]:
        """By places of the pipeline that are next to each other how long a send takes alone, of the first replica."""
        key = setting.gpus, setting.tp, setting.pp, setting.cp, pipeline.elements, step.precision.params
        if key not in self._between:
            communicator = Communicator(self.cluster, groups, "closed_form", True)
            last, sends, ranks = setting.pp - 1, dict[tuple[int, int], float](), groups.grid.groups("pp")[0].tolist()
            for pair in [*pairwise(range(setting.pp)), *([(0, last)] if last > 1 else [])]:
                for ends in (pair, pair[::-1]):
                    op = communicator.send(pipeline.elements, step.precision.params, ends, ranks[ends[0]])
                    sends[ends] = estimate(self.cluster, op) or 0.0
            self._between[key] = sends
        return self._between[key]

    def _times_of_units(self, setting: Setting, step: TrainingStep, groups: Groups) -> _UnitTimes:
        strategy = STRATEGIES.find(step.sharding.strategy)
        cut = step.parallelism.cut()
        # Whether others have a layer's parameters, and its experts, is all that counts.
        shared = groups.data_parallel > 1, groups.data_parallel * cut.tensor > cut.experts.tensor * cut.experts.ranks
        key = (
            setting.tp, setting.cp, setting.ep, setting.micro_batch, setting.checkpointing, shared,
            strategy.shards_parameters, step.parallelism.apart and step.model.tied, setting.precision,
            setting.framework,
        )  # fmt: skip
        if key not in self._of_units:
            made = units(
                step,
                self.cluster.gpus[0],
                groups.data_parallel,
                hbm_left(self.cluster),
                sharded=strategy.shards_parameters,
            )
            communicator = Communicator(self.cluster, groups, "closed_form", True)
            exchanges = _Exchanges(communicator, step.precision.params, setting, self.durations, self._exchanges)
            self._of_units[key] = _unit_times(made, exchanges)
        return self._of_units[key]

    def _ranks_of(
        self, setting: Setting, step: TrainingStep, pipeline: Pipeline, held: Sequence[Sequence[int]], groups: Groups
    ) -> list[_Rank]:
        """What each place of the pipeline updates and holds at least."""
        strategy, shape = STRATEGIES.find(step.sharding.strategy), pipeline.shape
        whole = strategy.keeps_whole_gradients(step.sharding)
        gradient = find(step.precision.grads).itemsize if whole and step.offload is None else 0
        ranks = []
        for place in range(shape.ranks):
            own = [held[stage % pipeline.model_stages] for stage in pipeline.schedule.stages_of(place, shape)]
            dense, spread, resident = (sum(chunk[kind] for chunk in own) for kind in range(3))
            experts = groups.size("expert data") if spread else 1
            named = step.sharding.strategy, step.offload is None, setting.precision, setting.framework
            key = dense, spread, resident, groups.shard_size, experts, *named
            if key not in self._states:
                parts = [(dense, groups.shard_size), *([(spread, experts)] if spread else [])]
                self._states[key] = self._states_of(step, strategy, parts, resident)
            seconds, states_bytes = self._states[key]
            chunks = pipeline.schedule.held(shape, place) if pipeline.schedule.held and shape.ranks > 1 else 1
            kept = chunks * min(chunk[3] for chunk in own)
            ranks.append(_Rank(seconds, states_bytes + max(kept, gradient * (dense + spread))))
        return ranks

    def _states_of(
        self, step: TrainingStep, strategy: Strategy, parts: Sequence[tuple[int, int]], resident: int
    ) -> tuple[float, int]:
        """The optimizer's kernels [s], which a host's are not, and what is held all the time [B]."""
        kept = states(step, strategy.shards, strategy.updater, parts, resident)
        nbytes = kept.parameters + kept.optimizer
        if strategy.updater is Updater.SERVERS or step.offload is not None:
            return 0.0, nbytes
        timer = KernelTimer(self.cluster.gpus[0], step)
        # The launches of more tensors than one are left out, so that this stays a lower bound.
        return update_cost(timer, kept, tensors=1).alone, nbytes


@dataclass(frozen=True, slots=True)
class _Rank:
    """Least time of a rank's update [s], and least that it holds when it holds most [B]."""

    update: float
    memory: int


@dataclass(frozen=True)
class _UnitTimes:
    """Of all units, in order, the sums up to each.

    Attributes
    ----------
    units : tuple of Unit
    whole, kernels : float array, shape (units + 1, 4)
        By kind of work, as `StageTimes` has them [s].
    held : int array, shape (units + 1, 4)
        Elements of dense parameters and of experts, and those that stay whole on every rank; activations that are kept
        from a micro-batch's forward pass to its backward pass [B].
    """

    units: tuple[Unit, ...]
    whole: Floats
    kernels: Floats
    held: Ints


@dataclass(frozen=True)
class LeastDurations:
    """How long collectives take at least, alone on their links: by closed forms, or by the busiest link's bytes.

    A closed form is the time of the rank that ends last. Others may go on sooner, and what they do then may be longer,
    so the time of the first one counts. Ranks of other stages come when they like: of what some of them have sent
    already nothing is left but the start-up, and what one of two ranks has to send itself.
    """

    cluster: Cluster
    _known: dict[tuple[object, ...], tuple[object, float]] = field(default_factory=dict)

    def of(self, op: Collective) -> float:
        """Of one collective [s]."""
        # What is kept has the schedule too, whose id is in the key.
        key = id(op.schedule), op.elements, op.itemsize, op.group, op.rendezvous
        if key not in self._known:
            self._known[key] = op.schedule, self._of(op)
        return self._known[key][1]

    def _of(self, op: Collective) -> float:
        if op.rendezvous and len(op.group) > 2:
            return op.startup
        if op.rendezvous or op.duration is None:
            return least(self.cluster, op)
        return op.duration - apart(self.cluster, op)


@dataclass(frozen=True)
class _Exchanges:
    """Least times of what ranks that cut a layer exchange."""

    communicator: Communicator
    activations: str
    setting: Setting
    durations: LeastDurations
    known: dict[tuple[object, ...], float]

    def seconds(self, exchange: Communication) -> float:
        dtype = exchange.dtype or self.activations
        cut = self.setting.tp, self.setting.cp, self.setting.ep
        key = (exchange.operation, exchange.elements, dtype, exchange.group, *cut)
        if key not in self.known:
            op = self.communicator.plan(exchange.operation, exchange.elements, dtype, exchange.group)
            self.known[key] = 0.0 if op is None else self.durations.of(op)
        return self.known[key]


def _unit_times(made: tuple[Unit, ...], exchanges: _Exchanges) -> _UnitTimes:
    known: dict[int, tuple[float, float]] = {}

    def times(pieces: PassPieces | None) -> tuple[float, float]:
        if pieces is None:
            return 0.0, 0.0
        if id(pieces) not in known:  # layers share their pieces
            known[id(pieces)] = _path(pieces, exchanges), pieces.alone
        return known[id(pieces)]

    rows = []
    for unit in made:
        forward, backward, again = times(unit.forward), times(unit.backward), times(unit.recompute)
        inputs, weights = times(unit.input_gradient), times(unit.weight_gradient)
        by_work = {
            Work.FORWARD: forward,
            Work.BACKWARD: (again[0] + backward[0], again[1] + backward[1]),
            Work.INPUT_GRADIENT: (again[0] + inputs[0], again[1] + inputs[1]),
            Work.WEIGHT_GRADIENT: weights,
        }
        rows.append([by_work[work] for work in Work])
    sums = np.concatenate([np.zeros((1, len(Work), 2)), np.cumsum(np.array(rows), axis=0)])
    held = [[0 if u.spread else u.elements, u.elements if u.spread else 0, u.resident, u.kept] for u in made]
    return _UnitTimes(made, sums[..., 0], sums[..., 1], np.concatenate([[[0, 0, 0, 0]], np.cumsum(held, axis=0)]))


def _path(pieces: PassPieces, exchanges: _Exchanges) -> float:
    kernels, under_way, free = 0.0, dict[int, float](), dict[str, float]()
    for place, piece in enumerate(pieces.pieces):
        if piece.exchange is not None:
            group = str(piece.exchange.group)
            under_way[place] = max(kernels, free.get(group, 0.0)) + exchanges.seconds(piece.exchange)
            free[group] = under_way[place]
        elif piece.cost is not None:
            kernels = max([kernels, *(under_way.pop(one, 0.0) for one in piece.awaited)]) + piece.cost.alone
    return max([kernels, *under_way.values()])
