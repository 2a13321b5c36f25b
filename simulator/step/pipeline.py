"""A step's passes in the order of its pipeline: which rank passes which micro-batch through which stage, and sends.

Rule: orders are those of pipelines/; a rank receives on a stream for each neighbour and direction, so that what arrives
early waits, and a send holds up nobody but who waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Final

from simulator.basics.errors import TooLargeError
from simulator.basics.this_machine import lacking
from simulator.records.operation import Act, Exchange
from simulator.step.pipelines.schedule import SCHEDULES, Order, Pass, PipelineSchedule, PipelineShape, Work
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import TrainingStep
from simulator.step.stages import Chunk, layers_of_stages, refusal_of_layers, units_of_stages
from simulator.step.strategies.strategy import Planned
from simulator.step.taking_turns import taking_turns
from simulator.step.units import Unit

# Measured in orders of a million passes [B].
_BYTES_A_PASS: Final = 300


# Each rank's part is asked for by itself, and a plan has many settings of one order.
@lru_cache(maxsize=32)
def _order_of(schedule: PipelineSchedule, shape: PipelineShape) -> Order:
    return schedule.order(shape)


@dataclass(frozen=True)
class Pipeline:
    """A step's pipeline; of one rank where layers are not cut.

    Attributes
    ----------
    step : TrainingStep
    schedule : PipelineSchedule
    shape : PipelineShape
    """

    step: TrainingStep
    schedule: PipelineSchedule
    shape: PipelineShape

    @classmethod
    def of(cls, step: TrainingStep) -> Pipeline:
        """Return the pipeline of a step.

        Raises
        ------
        ValueError
            The schedule refuses this step.
        TooLargeError
            This machine cannot hold the order of passes.
        """
        asked = step.parallelism
        schedule = SCHEDULES.find(asked.schedule if asked.pp > 1 else "1f1b")
        chunks = schedule.chunks or asked.virtual_stages
        shape = PipelineShape(asked.pp, step.accumulation, chunks, asked.microbatch_group or asked.pp)
        refused = schedule.refusal(shape) if asked.pp > 1 else ""
        if refused:
            raise ValueError(f"parallelism.schedule: {schedule.name}: {refused}")
        made = cls(step, schedule, shape)
        short = lacking(made.all_passes * _BYTES_A_PASS)
        if short:
            raise TooLargeError(
                f"{made.all_passes:,} passes of {shape.micro_batches:,} micro-batches through {shape.stages:,} stages "
                f"would take about {short}; take fewer micro-batches, or fewer stages"
            )
        return made

    @property
    def all_passes(self) -> int:
        """Number of passes of all ranks in a step."""
        return (3 if self.schedule.splits_backward else 2) * self.shape.micro_batches * self.shape.stages

    def second_copy(self, place: int) -> frozenset[str]:
        """Layers, embedding and head of the model's second copy, where two run from both ends, that a rank has."""
        stages = [stage for stage in self.schedule.stages_of(place, self.shape) if stage >= self.model_stages]
        return frozenset(name for stage in stages for name in self._names[stage % self.model_stages])

    @property
    def model_stages(self) -> int:
        """Stages of one copy of the model."""
        return self.shape.stages // (2 if self.step.parallelism.mirrored else 1)

    def layers(self) -> tuple[int, ...]:
        """Layers of each stage of one copy of the model."""
        asked, layers = self.step.parallelism, self.step.model.num_layers
        if asked.pp == 1:
            return (layers,)
        if asked.stages:
            refused = refusal_of_layers(asked.stages, self.model_stages, layers, self.step.model.name)
            if refused:
                raise ValueError(f"parallelism.stages: {refused}")
            return asked.stages
        try:
            return layers_of_stages(layers, self.model_stages, asked.first_less, asked.last_less)
        except ValueError as error:
            raise ValueError(f"parallelism.stages: {error}") from error

    def chunks(self, place: int, units: Sequence[Unit]) -> tuple[Chunk, ...]:
        """What a rank at a place of the pipeline has of its stages."""
        parts = units_of_stages(units, self.layers())
        made = []
        for stage in self.schedule.stages_of(place, self.shape):
            own = [
                one.micro
                for one in self.passes(place)
                if one.stage == stage and one.work in (Work.BACKWARD, Work.WEIGHT_GRADIENT)
            ]
            made.append(Chunk(stage, parts[stage % self.model_stages], self.shape.micro_batches, own[0], own[-1]))
        return tuple(made)

    @property
    def order(self) -> Order:
        """By rank what it does, one slot after the other."""
        return _order_of(self.schedule, self.shape)

    def passes(self, place: int) -> tuple[Pass, ...]:
        """All passes of a rank in a step, in its order."""
        return tuple(one for slot in self.order[place] for one in slot)

    def few(self, place: int, kind: Callable[[Pass], Hashable]) -> tuple[int, ...]:
        """Return micro-batches whose passes do what all passes of a rank do.

        First come the first and the last micro-batch of each stage, which may do what others do not; then one of each
        kind of pass, which stands for all others of its kind.

        Parameters
        ----------
        place : int
            Of the rank in the pipeline.
        kind : callable (Pass) -> hashable
            What passes of one work and stage have in common if they do the same.
        """
        passes = self.passes(place)
        last = {(one.work, one.stage): one.micro for one in passes}
        first = {(one.work, one.stage): one.micro for one in reversed(passes)}
        ends = {*first.values(), *last.values()}
        between = {(one.work, one.stage, kind(one)): one.micro for one in reversed(passes) if one.micro not in ends}
        return (*sorted(ends), *sorted({*between.values()}))

    def note(
        self,
        place: int,
        chunks: Sequence[Chunk],
        builder: ProgramBuilder,
        planned: Planned,
        micros: Collection[int],
        *,
        by_turns: bool = True,
    ) -> dict[Pass, int]:
        """Note a rank's passes of these micro-batches, and what it sends and receives.

        Passes that an order has at once take turns, or follow each other where that is not wanted. Returns how many
        operations have been noted when each pass begins, of the last step where there are several.
        """
        by_stage = {chunk.stage: chunk for chunk in chunks}
        begins = {}
        # Ranks of a group must issue what they exchange in one order, which is cut by kernels: these must be the same.
        by_turns = by_turns and self.step.parallelism.unlike_places == 1
        # Where nobody waits several steps are noted, each with micro-batches of its own.
        for number in range(self.step.rounds):
            for slot in self.order[place]:
                under_way: list[str] = []
                noted = [one for one in slot if one.micro in micros]
                for one in noted:
                    # What one of two passes at once has still under way the other does not wait for.
                    under_way += builder.awaited() if one is not noted[0] else []
                    begins[one] = len(builder.ops)
                    micro = one.micro + number * self.shape.micro_batches
                    self._note(one, micro, by_stage[one.stage], builder, planned)
                builder.await_next(under_way)
                if by_turns and len(noted) == 2:
                    first, second = (begins[one] for one in noted)
                    builder.ops[first:] = taking_turns(builder.ops[first:second], builder.ops[second:])
        return begins

    def _note(self, one: Pass, micro: int, chunk: Chunk, builder: ProgramBuilder, planned: Planned) -> None:
        if one.work is Work.WEIGHT_GRADIENT:
            planned.weight_gradient(micro, chunk)
            return
        forward = one.work is Work.FORWARD
        step = 1 if forward else -1
        arrived = self._moved(builder, one.stage - step, one.stage, micro, [], forward=forward)
        passes = {
            Work.FORWARD: planned.forward,
            Work.BACKWARD: planned.backward,
            Work.INPUT_GRADIENT: planned.input_gradient,
        }
        done = passes[one.work](micro, chunk, [arrived])
        self._moved(builder, one.stage, one.stage + step, micro, [done], forward=forward)

    def _moved(
        self, builder: ProgramBuilder, source: int, target: int, micro: int, after: list[str | None], *, forward: bool
    ) -> str | None:
        """What goes from a stage to the next one, or back; nothing at a copy's ends, and inside one rank."""
        last = self.model_stages
        if not min(source, target) >= 0 or max(source, target) >= self.shape.stages or source // last != target // last:
            return None
        ranks = self.schedule.rank_of(source, self.shape.ranks), self.schedule.rank_of(target, self.shape.ranks)
        if ranks[0] == ranks[1]:
            return None
        what = "activations" if forward else "gradients"
        name = f"{what} to stage {target} {micro}"
        # The unit that takes it: a stage's first one, or its last.
        taker = self._ends[target][0 if forward else 1]
        act = Act(Exchange.SEND, (taker,), micro, what=what)
        blocks = builder.framework.sends_block and not self.schedule.batches_sends(self.shape)
        return builder.send(name, self.elements, self.step.precision.params, ranks, after, act, blocks=blocks)

    @cached_property
    def elements(self) -> int:
        """What a rank sends to the next stage of a micro-batch, or back: its part of the tokens, of hidden size."""
        cut = self.step.parallelism.cut()
        tokens = self.step.seq_len * self.step.micro_batch_size // (cut.context.ranks * cut.along_sequence)
        return tokens * self.step.model.hidden_size

    @cached_property
    def _ends(self) -> Sequence[tuple[str, str]]:
        """By stage the names of its first and its last unit."""
        return [(names[0], names[-1]) for names in self._names] * (self.shape.stages // self.model_stages)

    @cached_property
    def _names(self) -> Sequence[Sequence[str]]:
        """By stage of one copy the names of its units, in order."""
        between = [[f"layer {n}" for n in range(*ends)] for ends in pairwise([0, *accumulate(self.layers())])]
        between[0].insert(0, "embedding")
        between[-1].append("head")
        return between
