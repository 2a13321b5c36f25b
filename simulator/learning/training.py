"""Which numbers does a simulated step compute, send and update? Training carries real arrays along the timeline.

The timeline's operations are followed in the order of their ends. The same program that gives times carries the arrays,
and every sum is made by the simulated transfers.

Two ranks under ddp, from the end of their backward passes on:

    time  event                        effect on arrays
    1.0   rank 0: backward layer 0     rank 0 accumulates its gradients
    1.2   rank 1: backward layer 0     rank 1 accumulates its gradients
    1.7   all-reduce ends on rank 0    packs both ranks' gradients, adds them transfer by transfer; rank 0 takes its sum
    1.7   all-reduce ends on rank 1    rank 1 takes its sum, computed already
    1.9   rank 0: update               rank 0 steps with the sum
    2.0   rank 1: update               rank 1 steps with the same bits
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, assert_never

import numpy as np

from simulator.basics.arrays import Array
from simulator.basics.dtypes import find
from simulator.basics.errors import SimulationError
from simulator.basics.progress import tell
from simulator.collectives.payload.carry import Tamper
from simulator.learning import exchange, matrices, passes, updating
from simulator.learning.checks import Checks
from simulator.learning.operation_events import OperationEvent, operation_events
from simulator.learning.parameter_servers import ParameterServers, delivered
from simulator.learning.passes import RunningPass
from simulator.learning.rank_shard import is_spread
from simulator.learning.setting import TrainingContext
from simulator.learning.state import Parameters, Rank, Spoil, StepResult, Units
from simulator.numerics.exchange import ExchangeRequest, Pass
from simulator.numerics.packing import unpack
from simulator.records.operation import Collective, Computation, Compute, Exchange, NumericAction

T = TypeVar("T")
_INTACT: Final[Mapping[str, Tamper]] = {}


@dataclass(slots=True)
class Training:
    """A model that trains by repeating a simulated step."""

    setting: TrainingContext
    ranks: list[Rank]  # state of each rank
    serving: ParameterServers | None = None  # parameter servers, if the plan has any
    done: int = 0  # steps taken
    checks: Checks = field(default_factory=Checks)  # findings of the checks so far
    _events: list[OperationEvent] = field(default_factory=list)
    _losses: list[tuple[float, int, int, float]] = field(default_factory=list)
    _rows: list[list[Array]] = field(default_factory=list)
    _under_way: dict[tuple[int, Computation, Units, int], RunningPass] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the timeline's operations by the moments when they change numbers, once for all steps."""
        self._events = list(operation_events(self.setting))

    def step(self, tokens: Array, spoil: Spoil | None = None, tamper: Mapping[str, Tamper] = _INTACT) -> StepResult:
        """Train for a single step on the given tokens, and return loss, norm and other results.

        Parameters
        ----------
        tokens : int array, shape (ranks x micro-batches x sequences, seq_len + 1)
            Rank r has the r-th part, and micro-batch m the m-th part of that.
        spoil : function (rank, unit, gradients, step), optional
            Function that may change a unit's gradients in place before they are sent.
        tamper : mapping of a collective's name to Tamper, optional
            Faults of the collective's transfers.
        """
        (result,) = self.play([tokens], spoil, tamper)
        return result

    def play(
        self, tokens: Sequence[Array], spoil: Spoil | None = None, tamper: Mapping[str, Tamper] = _INTACT
    ) -> list[StepResult]:
        """Follow the simulated timeline once and return the results: for a single step, or for every step with
        asynchronous workers.

        Asynchronous workers have no common end of a step. With W workers and m micro-batches, W m consecutive passes
        (in clock order) count as a step; a stopped worker leaves fewer steps. Parameters are those of `step`, with a
        token array per step.
        """
        self._rows = [self._batches(tokens, place.replica) for place in self.setting.places]
        for rank in self.ranks:
            rank.gradients, rank.summed, rank.scattered = {}, {}, {}
            rank.overflowed = False
        self._losses, self._under_way = [], {}
        if self.serving is not None:
            self.serving.squares, self.serving.staleness = [], []
        # Results of each collective by rank, computed at the first rank's event.
        results: dict[str, list[Array]] = {}
        # An overflow shows as an infinite norm or loss; numpy's warning would add nothing.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for place, event in enumerate(self._events):
                self._tell_progress(len(tokens) * place / len(self._events), event.time)
                self._follow(event, spoil, results, tamper.get(event.op.name, {}))
        count = len(self._losses) // (self.setting.data_parallel * self.setting.plan.step.accumulation)
        step_results = [self._result(number, count) for number in range(count)]
        for rank in self.ranks:
            # Overflow flags are equal on every rank after their exchange; without the exchange, ranks may differ.
            rank.scale = rank.scale.after(overflow=rank.overflowed)
        for number, result in enumerate(step_results):
            self.checks.after(self.setting, self.ranks, self.done + number, result)
        self.done += len(tokens)
        return step_results

    def _tell_progress(self, since: float, time: float) -> None:
        """Report the share of the planned steps that are trained, and the simulated time.

        `since` steps have passed, and `time` [s], since the timeline began anew.
        """
        steps, before = self.setting.plan.step.keys.steps, self.done * self.setting.timeline.end
        tell("training", (self.done + since) / steps, before + time)

    def _follow(
        self,
        event: OperationEvent,
        spoil: Spoil | None,
        results: dict[str, list[Array]],
        tamper: Tamper,
    ) -> None:
        """Change a rank's arrays by the event's operation: computation, collective, push, pull or send."""
        rank = self.ranks[event.rank]
        match event.op:
            case Compute(act=NumericAction() as act):
                self._computed(rank, act, event.time, spoil)
            case Collective(act=NumericAction(effect=Exchange.PUSH) as act) as op if self.serving is not None:
                self._pushed(self.serving, rank, op, act, tamper)
            case Collective(act=NumericAction(effect=Exchange.PULL) as act) as op if self.serving is not None:
                self._pulled(self.serving, rank, op, act, event, results, tamper)
            case Collective(act=NumericAction(effect=Exchange.SEND) as act) as op:
                self._sent(rank, op, act)
            case Collective(act=NumericAction(effect=Exchange.WITHIN) as act) as op:
                self._exchanged(rank, op, act, results, tamper)
            case Collective(act=NumericAction(effect=Exchange.TO_OWNERS | Exchange.FROM_OWNERS) as act) as op:
                self._to_or_from_owners(rank, op, act, results)
            case Collective(act=NumericAction() as act) as op:
                # No rank can end this collective before every rank in the group has started: at the first end every
                # contribution is complete.
                if op.name not in results:
                    results[op.name] = self._moved(op, act, tamper)
                exchange.received(self.setting, rank, act, results[op.name][op.group.index(rank.number)])

    def _batches(self, tokens: Sequence[Array], number: int) -> list[Array]:
        """Return the micro-batches of every step for the data-parallel replica `number`, in order."""
        micro = self.setting.plan.step.accumulation
        batches = (np.split(step, self.setting.replicas)[number] for step in tokens)
        return [part for rows in batches for part in np.split(rows, micro)]

    def _moved(self, op: Collective, act: NumericAction[Exchange], tamper: Tamper) -> list[Array]:
        """Carry a collective's arrays by the simulated transfers, check the results, and return each rank's array."""
        inputs = [exchange.sent(self.setting, self.ranks[number], op, act) for number in op.group]
        results = exchange.moved(self.setting, op, inputs, tamper)
        self.checks.moved(self.done, act, inputs, results)
        return exchange.in_shard_order(self.setting, op, act, results)

    def _to_or_from_owners(
        self, rank: Rank, op: Collective, act: NumericAction[Exchange], results: dict[str, list[Array]]
    ) -> None:
        """Deliver to a rank the averages of the matrices that it owns, or its shares of the owners' results."""
        group = [self.ranks[number] for number in op.group]
        place = op.group.index(rank.number)
        if act.effect is Exchange.TO_OWNERS:
            if op.name not in results:
                results[op.name] = matrices.to_owners(self.setting, group, act.units)
            rank.owned[act.units] = results[op.name][place]
        else:
            if op.name not in results:
                results[op.name] = matrices.from_owners(self.setting, group, act.units)
            matrices.take_shares(self.setting, rank, act.units, results[op.name][place])

    def _pass(self, rank: Rank, act: NumericAction[Computation]) -> RunningPass:
        """Return the running pass of a rank to which an operation belongs; create the pass at the first request."""
        # An exchange's event may come before the pass's first own event: the pass then starts here.
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
            self._under_way[key] = RunningPass(run)
        return self._under_way[key]

    def _brought(self, number: int, op: Collective, act: NumericAction[Exchange]) -> ExchangeRequest:
        """Return the exchange request of rank `number` inside a pass, after running the pass up to this exchange."""
        under_way = self._pass(self.ranks[number], _pass_of(op, act))
        under_way.advance()
        if act.what not in under_way.brought:
            raise SimulationError(
                f"rank {number} exchanged {op.name!r} in the simulation, but its real training has no such exchange"
            )
        return under_way.brought[act.what]

    def _exchanged(
        self, rank: Rank, op: Collective, act: NumericAction[Exchange], results: dict[str, list[Array]], tamper: Tamper
    ) -> None:
        """Deliver to a rank the result of an exchange inside a pass, and continue the pass."""
        place = op.group.index(rank.number)
        if op.schedule.operation == "all_to_all":
            self._handed_over(rank, op, act)
            return
        if op.schedule.operation == "ring_shift":
            # A rank continues when its predecessor's block has arrived, although other ranks may still be sending; so
            # the result cannot be computed for the whole group at once.
            behind = op.group[place - 1]
            array = self._brought(behind, op, act).array.astype(find(op.dtype).numpy)
            self._brought(rank.number, op, act)
        else:
            if op.name not in results:
                brought = [self._brought(number, op, act) for number in op.group]
                inputs = [exchange.laid(op, place, request.array) for place, request in enumerate(brought)]
                results[op.name] = exchange.moved(self.setting, op, inputs, tamper, brought[0].reduction)
            array = results[op.name][place]
        under_way = self._pass(rank, _pass_of(op, act))
        # The collective was planned with padding; the pass gets only its own elements.
        size = exchange.size_after(op, under_way.brought[act.what].array.size)
        under_way.take(act.what, array.ravel()[:size])

    def _handed_over(self, rank: Rank, op: Collective, act: NumericAction[Exchange]) -> None:
        """Deliver the tokens from every rank in the group to a rank (all-to-all).

        The router's choices determine the sizes; the simulated transfer assumed equal shares.
        """
        pieces, splits, place = [], [], op.group.index(rank.number)
        for number in op.group:
            brought = self._brought(number, op, act)
            counts = np.split(np.array(brought.splits), len(op.group))
            # A sender's array holds its receivers' rows in rank order: skip the rows for ranks before this one.
            begin = sum(int(part.sum()) for part in counts[:place])
            pieces.append(brought.array[begin : begin + int(counts[place].sum())].astype(find(op.dtype).numpy))
            splits.append(counts[place])
        self._pass(rank, _pass_of(op, act)).take_apart(act.what, np.concatenate(pieces), np.array(splits))

    def _sent(self, rank: Rank, op: Collective, act: NumericAction[Exchange]) -> None:
        """Move an activation or gradient from another pipeline stage to this rank if the rank is the target."""
        source, target = op.group
        if rank.number != target:
            return
        (unit,), forward = act.units, act.what == "activations"
        outbox = self.ranks[source].rising if forward else self.ranks[source].falling
        number = self.setting.micro_batch(target, unit, act.micro)
        array = outbox.pop((unit, number))
        inbox = rank.rising if forward else rank.falling
        # Round to the dtype on the wire, then compute on in the previous dtype.
        inbox[unit, number] = array.astype(find(op.dtype).numpy).astype(array.dtype)

    def _passed(self, rank: Rank, act: NumericAction[Computation]) -> Any:
        """Finish a rank's pass after its last kernel, and return the pass's result."""
        under_way = self._pass(rank, act)
        under_way.advance()
        # A recompute may stop before the layer's last exchange: every saved tensor exists by then.
        if not under_way.ended and act.effect is not Computation.RECOMPUTE:
            *_, waiting = under_way.brought
            raise SimulationError(f"rank {rank.number}: {act.effect.value} of {act.units[0]} ended without {waiting!r}")
        return under_way.result

    def _computed(self, rank: Rank, act: NumericAction[Computation], time: float, spoil: Spoil | None) -> None:
        """Change a rank's arrays as a computation does: a pass, a check, the norm, or an update."""
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
            case Computation.AVERAGE:
                matrices.average(setting, rank)
            case Computation.ORTHOGONALISE:
                matrices.orthogonalise(setting, rank, act.units)
            case Computation.UPDATE:
                matrices.apply(setting, rank)
                updating.update(setting, rank)
            case Computation.SERVE:
                if self.serving is not None:
                    self.serving.apply(setting, rank, act)
            case _:
                assert_never(act.effect)

    def _pushed(
        self, serving: ParameterServers, rank: Rank, op: Collective, act: NumericAction[Exchange], tamper: Tamper
    ) -> None:
        """Hand a worker's gradients to the parameter servers."""
        if self.setting.plan.step.sharding.asynchronous:
            serving.bring(self.setting, rank, op, act, tamper, self.checks, self.done)
        else:
            serving.push(self.setting, rank, op, act, tamper)

    def _pulled(
        self,
        serving: ParameterServers,
        rank: Rank,
        op: Collective,
        act: NumericAction[Exchange],
        event: OperationEvent,
        results: dict[str, list[Array]],
        tamper: Tamper,
    ) -> None:
        """Give a worker the servers' parameters: read at an asynchronous pull's start, else after all pushes."""
        if not event.ends:
            results[op.name] = [serving.look(rank, act.units)]
            return
        if op.name not in results:
            results[op.name] = [serving.pull(self.setting, act.units, self.checks, self.done)] * len(op.group)
        handed_out = results[op.name][op.group.index(rank.number)]
        exchange.received(self.setting, rank, act, delivered(self.setting, rank, op, handed_out, tamper))

    def _result(self, number: int, count: int) -> StepResult:
        """Return the result of step `number` of the timeline's `count` steps."""
        mine = _share(self._losses, number, count)
        asynchronous = self.setting.plan.step.sharding.asynchronous
        serving = self.serving or ParameterServers({})
        late = _share(serving.staleness, number, count)
        return StepResult(
            # Sort by rank and micro-batch: the order of ends must not show in the last digit of the mean.
            loss=float(np.mean([loss for *_, loss in sorted(mine, key=lambda entry: entry[1:3])])),
            norm=self._norm(_share(serving.squares, number, count)),
            scale=self.ranks[0].scale.value,
            skipped=any(rank.overflowed for rank in self.ranks),
            staleness=float(np.mean(late)) if late else 0.0,
            ended=mine[-1][0] if asynchronous else self.setting.timeline.end,
            by_rank=tuple(_mean([loss for _, worker, _, loss in mine if worker == rank.number]) for rank in self.ranks),
            updates=self._updates(number, count),
        )

    def _updates(self, number: int, count: int) -> int:
        """Return the optimizer's updates up to the end of step `number`, on the first rank or the first server."""
        if self.serving is None:
            return max((state.steps for state in self.ranks[0].states.values()), default=0)
        server, *others = self.serving.servers.values()
        # Asynchronous steps were simulated together; each step gets an equal share of the applied updates.
        updates = len(self.serving.staleness) // (1 + len(others))
        return server.version - updates + updates * (number + 1) // count

    def _norm(self, applied: Sequence[float]) -> float:
        """Return the norm of the summed gradient; with asynchronous servers, a worker's root mean square norm."""
        if self.serving is None:
            return float(np.sqrt(self.ranks[0].squares))
        asynchronous = self.setting.plan.step.sharding.asynchronous
        return float(np.sqrt(sum(applied) / (len(self.ranks) if asynchronous else 1)))

    def parameters(self) -> Parameters:
        """Return the whole parameters, assembled from every rank or server, as a dict by name in forward order."""
        setting, by_name = self.setting, Parameters()
        if self.serving is not None:
            for units, server in self.serving.servers.items():
                for parameters in unpack(setting.gpt, server.parameters.copy(), units).values():
                    by_name |= parameters
        else:
            parts: dict[str, dict[int, Array]] = {}
            # Shards first, then tensor-parallel parts. With tp 2 and ZeRO over 2 ranks (ranks 0 and 2 share a part):
            #    ranks 0 and 2: shards of tensor-parallel part 0 -> concatenate
            #    ranks 1 and 3: shards of tensor-parallel part 1 -> concatenate, then join parts 0 and 1
            # Expert-parallel neighbours hold different experts, so each of the first `experts` ranks contributes its
            # own.
            for group in self._holders():
                gpt = setting.places[group[0].number].gpt
                for first in group[: gpt.share.experts]:
                    gpt = setting.places[first.number].gpt
                    for units in first.parts:
                        step = gpt.share.experts if is_spread(units) else 1
                        begin = gpt.share.expert_place if is_spread(units) else 0
                        own_ranks = group[begin::step][: setting.cut_of(units)]
                        shards = np.concatenate([rank.parts[units] for rank in own_ranks])
                        packed = setting.layout(first.number, units).restored(shards)
                        for parameters in unpack(gpt, packed, units).values():
                            for name, part in parameters.items():
                                parts.setdefault(name, {}).setdefault(gpt.share.place, part)
            by_name = {
                name: _joined(setting, name, [cuts[place] for place in sorted(cuts)]) for name, cuts in parts.items()
            }
        return {name: by_name[name] for unit in setting.gpt.units for name in setting.gpt.shapes(unit)}

    def _holders(self) -> list[list[Rank]]:
        """Return the ranks, grouped by equal model part."""
        groups: dict[int, list[Rank]] = {}
        for rank, place in zip(self.ranks, self.setting.places, strict=True):
            groups.setdefault(place.holders, []).append(rank)
        return list(groups.values())


def _pass_of(op: Collective, act: NumericAction[Exchange]) -> NumericAction[Computation]:
    """Return the computation (forward, backward, ...) during which a rank takes part in an exchange inside a pass."""
    if act.within is None:
        raise SimulationError(f"{op.name!r} belongs to no pass")
    return NumericAction(act.within, act.units, act.micro)


def _joined(setting: TrainingContext, name: str, parts: Sequence[Array]) -> Array:
    """Return the whole parameter with this name from its tensor-parallel parts."""
    return setting.places[0].gpt.share.whole(name, parts, setting.gpt.vocabulary)


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the values, or NaN for an empty sequence."""
    return float(np.mean(values)) if values else float("nan")


def _share(values: Sequence[T], number: int, count: int) -> Sequence[T]:
    """Return part `number` of a sequence divided into `count` equal parts."""
    return values[len(values) * number // count : len(values) * (number + 1) // count]
