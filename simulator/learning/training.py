"""Real training on the simulated clock: the numbers that a played step computes, sends and updates.

Rule: follows the timeline, operation by operation, in the order in which they ended; the same program that gives times
carries the arrays, and every sum is made by the transfers that were played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, assert_never

import numpy as np

from simulator.basics.arrays import Array
from simulator.basics.dtypes import find
from simulator.basics.errors import SimulationError
from simulator.learning import exchange, passes, updating
from simulator.learning.checks import Checks
from simulator.learning.operation_events import OperationEvent, operation_events
from simulator.learning.passes import PassUnderWay
from simulator.learning.place import is_spread
from simulator.learning.serving import Serving, delivered
from simulator.learning.setting import Setting
from simulator.learning.state import Parameters, Rank, Spoil, StepResult, Units
from simulator.numerics.exchange import Pass, Wanted
from simulator.numerics.flat import unpacked
from simulator.payload.carry import Tamper
from simulator.records.operation import Act, Collective, Computation, Compute, Exchange

T = TypeVar("T")
_INTACT: Final[Mapping[str, Tamper]] = {}


@dataclass(slots=True)
class Training:
    """A model that trains on a played step, again and again.

    Attributes
    ----------
    setting : Setting
    ranks : list of Rank
    serving : Serving or None
        With parameter servers.
    done : int
        Steps taken.
    checks : Checks
    """

    setting: Setting
    ranks: list[Rank]
    serving: Serving | None = None
    done: int = 0
    checks: Checks = field(default_factory=Checks)
    _events: list[OperationEvent] = field(default_factory=list)
    _losses: list[tuple[float, int, int, float]] = field(default_factory=list)
    _rows: list[list[Array]] = field(default_factory=list)
    _under_way: dict[tuple[int, Computation, Units, int], PassUnderWay] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._events = list(operation_events(self.setting))

    def step(self, tokens: Array, spoil: Spoil | None = None, tamper: Mapping[str, Tamper] = _INTACT) -> StepResult:
        """Train on some sequences.

        Parameters
        ----------
        tokens : int array, shape (ranks x micro-batches x sequences, seq_len + 1)
            Rank r has the r-th part, a micro-batch the m-th part of that.
        spoil : function (rank, unit, gradients, step), optional
            May change a unit's gradients in place before they are sent.
        tamper : mapping of a collective's name to Tamper, optional
            Faults of its transfers.
        """
        (result,) = self.play([tokens], spoil, tamper)
        return result

    def play(
        self, tokens: Sequence[Array], spoil: Spoil | None = None, tamper: Mapping[str, Tamper] = _INTACT
    ) -> list[StepResult]:
        """Train once through what was played: one step, or the many steps of workers that do not wait.

        Where nobody waits, a step is what as many passes as there are workers have learned, in the order of the clock;
        so there are fewer of them where a worker has stopped. Parameters are `step`'s, with the tokens of each step.
        """
        self._rows = [self._batches(tokens, place.replica) for place in self.setting.places]
        for rank in self.ranks:
            rank.gradients, rank.summed, rank.scattered = {}, {}, {}
            rank.overflowed = False
        self._losses, self._under_way = [], {}
        if self.serving is not None:
            self.serving.squares, self.serving.staleness = [], []
        given: dict[str, list[Array]] = {}
        # An overflow shows as a norm or a loss that is no finite number, and is no warning.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for event in self._events:
                self._follow(event, spoil, given, tamper.get(event.op.name, {}))
        count = len(self._losses) // (self.setting.data_parallel * self.setting.plan.step.accumulation)
        step_results = [self._result(number, count) for number in range(count)]
        for rank in self.ranks:
            rank.scale = rank.scale.after(overflow=rank.overflowed)
        for number, result in enumerate(step_results):
            self.checks.after(self.setting, self.ranks, self.done + number, result)
        self.done += len(tokens)
        return step_results

    def _follow(
        self,
        event: OperationEvent,
        spoil: Spoil | None,
        given: dict[str, list[Array]],
        tamper: Tamper,
    ) -> None:
        rank = self.ranks[event.rank]
        match event.op:
            case Compute(act=Act() as act):
                self._computed(rank, act, event.time, spoil)
            case Collective(act=Act(effect=Exchange.PUSH) as act) as op if self.serving is not None:
                self._pushed(self.serving, rank, op, act, tamper)
            case Collective(act=Act(effect=Exchange.PULL) as act) as op if self.serving is not None:
                self._pulled(self.serving, rank, op, act, event, given, tamper)
            case Collective(act=Act(effect=Exchange.SEND) as act) as op:
                self._sent(rank, op, act)
            case Collective(act=Act(effect=Exchange.WITHIN) as act) as op:
                self._exchanged(rank, op, act, given, tamper)
            case Collective(act=Act() as act) as op:
                if op.name not in given:
                    given[op.name] = self._moved(op, act, tamper)
                exchange.received(self.setting, rank, act, given[op.name][op.group.index(rank.number)])

    def _batches(self, tokens: Sequence[Array], number: int) -> list[Array]:
        """Micro-batches of all steps of one of the replicas among which sequences are spread."""
        micro = self.setting.plan.step.accumulation
        own = (np.split(step, self.setting.replicas)[number] for step in tokens)
        return [part for rows in own for part in np.split(rows, micro)]

    def _moved(self, op: Collective, act: Act[Exchange], tamper: Tamper) -> list[Array]:
        sent = [exchange.sent(self.setting, self.ranks[number], op, act) for number in op.group]
        given = exchange.moved(self.setting, op, sent, tamper)
        self.checks.moved(self.done, act, sent, given)
        return given

    def _pass(self, rank: Rank, act: Act[Computation]) -> PassUnderWay:
        """A rank's pass that has begun, or begins now."""
        key = rank.number, act.effect, act.units, act.micro
        if key not in self._under_way:
            setting, begun = self.setting, self.done
            match act.effect:
                case Computation.FORWARD:
                    number = setting.micro_batch(rank.number, act.units[0], act.micro)
                    run: Pass[Any] = passes.forward(setting, rank, act, self._rows[rank.number][number], begun)
                case Computation.RECOMPUTE:
                    run = passes.recompute(setting, rank, act, begun)
                case _:
                    run = passes.backward(setting, rank, act, begun)
            self._under_way[key] = PassUnderWay(run)
        return self._under_way[key]

    def _brought(self, number: int, op: Collective, act: Act[Exchange]) -> Wanted:
        """What a rank brings to an exchange within a pass."""
        under_way = self._pass(self.ranks[number], _pass_of(op, act))
        under_way.advance()
        if act.what not in under_way.brought:
            raise SimulationError(f"rank {number} was played to exchange {op.name!r}, which its numbers do not ask for")
        return under_way.brought[act.what]

    def _exchanged(
        self, rank: Rank, op: Collective, act: Act[Exchange], given: dict[str, list[Array]], tamper: Tamper
    ) -> None:
        """Take what an exchange within a pass gave."""
        place = op.group.index(rank.number)
        if op.schedule.operation == "all_to_all":
            self._handed_over(rank, op, act)
            return
        if op.schedule.operation == "ring_shift":
            # A rank goes on as soon as the one before it has sent, whoever else is still on the way.
            behind = op.group[place - 1]
            array = self._brought(behind, op, act).array.astype(find(op.dtype).numpy)
            self._brought(rank.number, op, act)
        else:
            if op.name not in given:
                brought = [self._brought(number, op, act) for number in op.group]
                sent = [exchange.laid(op, place, one.array) for place, one in enumerate(brought)]
                given[op.name] = exchange.moved(self.setting, op, sent, tamper, brought[0].reduction)
            array = given[op.name][place]
        under_way = self._pass(rank, _pass_of(op, act))
        size = exchange.size_after(op, under_way.brought[act.what].array.size)
        under_way.take(act.what, array.ravel()[:size])

    def _handed_over(self, rank: Rank, op: Collective, act: Act[Exchange]) -> None:
        """Take what each rank has for this one; it is as much as its tokens' choices say, played as even shares."""
        pieces, splits, place = [], [], op.group.index(rank.number)
        for number in op.group:
            brought = self._brought(number, op, act)
            own = np.split(np.array(brought.splits), len(op.group))
            begin = sum(int(part.sum()) for part in own[:place])
            pieces.append(brought.array[begin : begin + int(own[place].sum())].astype(find(op.dtype).numpy))
            splits.append(own[place])
        self._pass(rank, _pass_of(op, act)).take_apart(act.what, np.concatenate(pieces), np.array(splits))

    def _sent(self, rank: Rank, op: Collective, act: Act[Exchange]) -> None:
        """Take what another stage has sent."""
        source, target = op.group
        if rank.number != target:
            return
        (unit,), forward = act.units, act.what == "activations"
        if forward and f"{unit} experts" in self.setting.places[target].units:
            # They come before the layer that they are of.
            unit = f"{unit} experts"
        taken = self.ranks[source].rising if forward else self.ranks[source].falling
        number = self.setting.micro_batch(target, unit, act.micro)
        array = taken.pop((unit, number))
        own = rank.rising if forward else rank.falling
        own[unit, number] = array.astype(find(op.dtype).numpy).astype(array.dtype)

    def _passed(self, rank: Rank, act: Act[Computation]) -> Any:
        """End a pass whose last kernels have ended; what it returned."""
        under_way = self._pass(rank, act)
        under_way.advance()
        # A layer that is run again stops when all is made that the backward pass needs.
        if not under_way.ended and act.effect is not Computation.RECOMPUTE:
            *_, waiting = under_way.brought
            raise SimulationError(f"rank {rank.number}: {act.effect.value} of {act.units[0]} ended without {waiting!r}")
        return under_way.result

    def _computed(self, rank: Rank, act: Act[Computation], time: float, spoil: Spoil | None) -> None:
        setting = self.setting
        match act.effect:
            case Computation.FORWARD:
                loss = self._passed(rank, act)
                if loss is not None and setting.places[rank.number].tells_the_loss:
                    self._losses.append((time, rank.number, act.micro, loss))
            case Computation.RECOMPUTE | Computation.INPUT_GRADIENT:
                self._passed(rank, act)
            case Computation.BACKWARD | Computation.WEIGHT_GRADIENT:
                self._passed(rank, act)
                if spoil is not None:
                    step = self.done + act.micro // setting.plan.step.accumulation
                    spoil(rank.number, act.units[0], rank.gradients[act.units[0], setting.kept_in(act.micro)], step)
            case Computation.CHECK:
                updating.check(setting, rank)
            case Computation.NORM:
                updating.norm(setting, rank)
            case Computation.UPDATE:
                updating.update(setting, rank)
            case Computation.SERVE:
                if self.serving is not None:
                    self.serving.apply(setting, rank, act)
            case _:
                assert_never(act.effect)

    def _pushed(self, serving: Serving, rank: Rank, op: Collective, act: Act[Exchange], tamper: Tamper) -> None:
        if self.setting.plan.step.sharding.asynchronous:
            serving.bring(self.setting, rank, op, act, tamper, self.checks, self.done)
        else:
            serving.push(self.setting, rank, op, act, tamper)

    def _pulled(
        self,
        serving: Serving,
        rank: Rank,
        op: Collective,
        act: Act[Exchange],
        event: OperationEvent,
        given: dict[str, list[Array]],
        tamper: Tamper,
    ) -> None:
        """What a worker gets is decided as its pull begins where servers wait for nobody, else when all have pushed."""
        if not event.ends:
            given[op.name] = [serving.look(rank, act.units)]
            return
        if op.name not in given:
            given[op.name] = [serving.pull(self.setting, act.units, self.checks, self.done)] * len(op.group)
        handed_out = given[op.name][op.group.index(rank.number)]
        exchange.received(self.setting, rank, act, delivered(self.setting, rank, op, handed_out, tamper))

    def _result(self, number: int, count: int) -> StepResult:
        """Of one step out of so many."""
        mine = _share(self._losses, number, count)
        alone = self.setting.plan.step.sharding.asynchronous
        serving = self.serving or Serving({})
        late = _share(serving.staleness, number, count)
        return StepResult(
            # By rank and micro-batch, so that who is late does not show in the last digit of the mean.
            loss=float(np.mean([loss for *_, loss in sorted(mine, key=lambda one: one[1:3])])),
            norm=self._norm(_share(serving.squares, number, count)),
            scale=self.ranks[0].scale.value,
            skipped=any(rank.overflowed for rank in self.ranks),
            staleness=float(np.mean(late)) if late else 0.0,
            ended=mine[-1][0] if alone else self.setting.timeline.end,
            by_rank=tuple(_mean([loss for _, own, _, loss in mine if own == rank.number]) for rank in self.ranks),
            updates=self._updates(number, count),
        )

    def _updates(self, number: int, count: int) -> int:
        """That the optimizer has made after one step out of so many, on the first rank or on the first server."""
        if self.serving is None:
            return max((state.steps for state in self.ranks[0].states.values()), default=0)
        server, *others = self.serving.servers.values()
        # Where nobody waits all steps were played at once, and each has an equal share of what was applied.
        played = len(self.serving.staleness) // (1 + len(others))
        return server.version - played + played * (number + 1) // count

    def _norm(self, applied: Sequence[float]) -> float:
        """Of the summed gradient; with servers that do not wait, of one worker's on average."""
        if self.serving is None:
            return float(np.sqrt(self.ranks[0].squares))
        alone = self.setting.plan.step.sharding.asynchronous
        return float(np.sqrt(sum(applied) / (len(self.ranks) if alone else 1)))

    def parameters(self) -> Parameters:
        """As they are updated, whole, by name in the order of the forward pass: put together from all ranks."""
        setting, by_name = self.setting, Parameters()
        if self.serving is not None:
            for units, server in self.serving.servers.items():
                for own in unpacked(setting.gpt, server.parameters.copy(), units).values():
                    by_name |= own
        else:
            parts: dict[str, dict[int, Array]] = {}
            for group in self._holders():
                gpt = setting.places[group[0].number].gpt
                for first in group[: gpt.share.experts]:
                    gpt = setting.places[first.number].gpt
                    for units in first.parts:
                        step = gpt.share.experts if is_spread(units) else 1
                        begin = gpt.share.expert_place if is_spread(units) else 0
                        own_ranks = group[begin::step][: setting.cut_of(units)]
                        whole = np.concatenate([rank.parts[units] for rank in own_ranks])
                        for own in unpacked(gpt, whole, units).values():
                            for name, part in own.items():
                                parts.setdefault(name, {}).setdefault(gpt.share.place, part)
            by_name = {
                name: _joined(setting, name, [own[place] for place in sorted(own)]) for name, own in parts.items()
            }
        return {name: by_name[name] for unit in setting.gpt.units for name in setting.gpt.shapes(unit)}

    def _holders(self) -> list[list[Rank]]:
        """Ranks that hold the same part of the model."""
        groups: dict[int, list[Rank]] = {}
        for rank, place in zip(self.ranks, self.setting.places, strict=True):
            groups.setdefault(place.holders, []).append(rank)
        return list(groups.values())


def _pass_of(op: Collective, act: Act[Exchange]) -> Act[Computation]:
    """The pass during which something is exchanged."""
    if act.within is None:
        raise SimulationError(f"{op.name!r} is exchanged in no pass")
    return Act(act.within, act.units, act.micro)


def _joined(setting: Setting, name: str, parts: Sequence[Array]) -> Array:
    """A parameter from the parts of all ranks that cut matrices."""
    return setting.places[0].gpt.share.whole(name, parts, setting.gpt.vocabulary)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _share(values: Sequence[T], number: int, count: int) -> Sequence[T]:
    """One of so many equal parts."""
    return values[len(values) * number // count : len(values) * (number + 1) // count]
