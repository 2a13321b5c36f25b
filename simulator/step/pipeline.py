"""In which order does each rank of a pipeline run passes and send results? The schedule's order, written as operations.

A rank receives on a stream for each neighbour and direction: early messages wait, and a send delays only operations
that need the message.

Example: GPipe with 2 ranks, a layer each, and a single micro-batch 0. Both ends of a send have the operation in their
list::

    rank 0  layer 0 forward 0, activations to stage 1 0, gradients to stage 0 0, layer 0 backward 0
    rank 1  activations to stage 1 0, layer 1 forward 0, layer 1 backward 0, gradients to stage 0 0
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Final

from simulator.basics.errors import TooLargeError
from simulator.basics.host_memory import shortage_text
from simulator.model.model import passed_bytes
from simulator.records.operation import Exchange, NumericAction
from simulator.step.interleaved_kernels import interleaved_kernels
from simulator.step.pipelines.schedule import SCHEDULES, Order, Pass, PipelineSchedule, PipelineShape, Work
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import TrainingStep
from simulator.step.stages import Chunk, layers_of_stages, refusal_of_layers, units_of_stages
from simulator.step.strategies.strategy import PassPlanner
from simulator.step.units import Unit, batch_of

# Measured on orders with a million passes [B].
_BYTES_A_PASS: Final = 300


# Each rank's part is requested separately, and settings in a plan share orders.
@lru_cache(maxsize=32)
def _order_of(schedule: PipelineSchedule, shape: PipelineShape) -> Order:
    """Return the order of passes on each rank that a pipeline schedule gives for this pipeline shape; cached."""
    return schedule.order(shape)


@dataclass(frozen=True)
class Pipeline:
    """The pipeline of a training step: schedule and shape; a single rank without pipeline parallelism."""

    step: TrainingStep
    schedule: PipelineSchedule
    shape: PipelineShape

    @classmethod
    def of(cls, step: TrainingStep) -> Pipeline:
        """Return the pipeline that a training step requests.

        Raises
        ------
        ValueError
            The schedule refuses this step.
        TooLargeError
            This machine cannot hold the order of passes.
        """
        parallelism = step.parallelism
        schedule = SCHEDULES.find(parallelism.schedule if parallelism.pp > 1 else "1f1b")
        shape = parallelism.pipeline(step.accumulation)
        refused = schedule.refusal(shape) if parallelism.pp > 1 else ""
        if refused:
            raise ValueError(f"parallelism.schedule: {schedule.name}: {refused}")
        pipeline = cls(step, schedule, shape)
        # Refuse before the order is built.
        short = shortage_text(pipeline.all_passes * _BYTES_A_PASS)
        if short:
            raise TooLargeError(
                f"{pipeline.all_passes:,} passes of {shape.micro_batches:,} micro-batches through {shape.stages:,} "
                f"stages would take about {short}; take fewer micro-batches, or fewer stages"
            )
        return pipeline

    @property
    def all_passes(self) -> int:
        """Number of passes (forward, backward, weight gradient) in a step, over all pipeline ranks."""
        return (3 if self.schedule.splits_backward else 2) * self.shape.micro_batches * self.shape.stages

    def second_copy(self, place: int) -> frozenset[str]:
        """Return the names of the units on the pipeline rank `place` that belong to the second model copy
        (DualPipe).
        """
        stages = [stage for stage in self.schedule.stages_of(place, self.shape) if stage >= self.model_stages]
        return frozenset(name for stage in stages for name in self._names[stage % self.model_stages])

    @property
    def pairs(self) -> bool:
        """True if two passes may run at once on a rank."""
        return self.schedule.pairs or self.shape.paired

    @property
    def model_stages(self) -> int:
        """Number of stages of a model copy."""
        return self.shape.stages // (2 if self.step.parallelism.mirrored else 1)

    def layers(self) -> tuple[int, ...]:
        """Return the number of layers on each pipeline stage of a model copy; raise ValueError if the requested numbers
        are impossible.
        """
        parallelism, layers = self.step.parallelism, self.step.model.num_layers
        if parallelism.pp == 1:
            return (layers,)
        if parallelism.layers_of_stages:
            refused = refusal_of_layers(parallelism.layers_of_stages, self.model_stages, layers, self.step.model.name)
            if refused:
                raise ValueError(f"parallelism.stages: {refused}")
            return parallelism.layers_of_stages
        try:
            return layers_of_stages(layers, self.model_stages, *parallelism.less, self.step.model.mtp_layers)
        except ValueError as error:
            raise ValueError(f"parallelism.stages: {error}") from error

    def chunks(self, place: int, units: Sequence[Unit]) -> tuple[Chunk, ...]:
        """Return the model chunks of the pipeline rank `place`: for each stage the units out of `units`, and the first
        and last micro-batch.
        """
        parts = units_of_stages(units, self.layers())
        chunks = []
        for stage in self.schedule.stages_of(place, self.shape):
            order = [
                entry.micro
                for entry in self.passes(place)
                # These passes produce the weight gradients: their first and last micro-batch begin and end the
                # accumulation.
                if entry.stage == stage and entry.work in (Work.BACKWARD, Work.WEIGHT_GRADIENT)
            ]
            chunks.append(Chunk(stage, parts[stage % self.model_stages], self.shape.micro_batches, order[0], order[-1]))
        return tuple(chunks)

    @property
    def order(self) -> Order:
        """Pass order: for each pipeline rank a sequence of slots with a single pass or two passes each."""
        return _order_of(self.schedule, self.shape)

    def passes(self, place: int) -> tuple[Pass, ...]:
        """Return the passes that the pipeline rank `place` runs in a step, in order."""
        return tuple(entry for slot in self.order[place] for entry in slot)

    def few(self, place: int, kind: Callable[[Pass], Hashable]) -> tuple[int, ...]:
        """Return micro-batch numbers with passes that cover every kind of pass on a pipeline rank.

        The first and the last micro-batch of each stage come first, because they may differ from others; then one
        representative of each further kind.

        Parameters
        ----------
        place : int
            The rank's place in the pipeline.
        kind : callable (Pass) -> hashable
            Return a key shared by passes, of equal work and stage, with the same operations.
        """
        passes = self.passes(place)
        last = {(entry.work, entry.stage): entry.micro for entry in passes}
        # Later entries overwrite earlier ones: reversed for the first micro-batch.
        first = {(entry.work, entry.stage): entry.micro for entry in reversed(passes)}
        ends = {*first.values(), *last.values()}
        between = {
            (entry.work, entry.stage, kind(entry)): entry.micro for entry in reversed(passes) if entry.micro not in ends
        }
        return (*sorted(ends), *sorted({*between.values()}))

    def note(
        self,
        place: int,
        chunks: Sequence[Chunk],
        builder: ProgramBuilder,
        planned: PassPlanner,
        micros: Collection[int],
        *,
        by_turns: bool = True,
    ) -> dict[Pass, int]:
        """Write the passes of a pipeline rank for the micro-batches `micros` into the builder's program, with sends and
        receives.

        Returns
        -------
        dict of Pass to int
            Number of operations written before each pass; for several steps, in the last step.
        """
        by_stage = {chunk.stage: chunk for chunk in chunks}
        begins = {}
        # Ranks in a group must issue exchanges in one order. The interleaved order depends on the kernels, hence every
        # rank must have equal kernels.
        by_turns = by_turns and self.step.parallelism.unlike_places == 1
        # Asynchronous workers: several steps, each with its own micro-batch numbers.
        for number in range(self.step.rounds):
            for slot in self.order[place]:
                under_way: list[str] = []
                noted = [entry for entry in slot if entry.micro in micros]
                for entry in noted:
                    # The second pass of a slot does not wait for exchanges of the first.
                    under_way += builder.awaited() if entry is not noted[0] else []
                    begins[entry] = len(builder.ops)
                    micro = entry.micro + number * self.shape.micro_batches
                    self._note(entry, micro, by_stage[entry.stage], builder, planned)
                builder.await_next(under_way)
                if by_turns and len(noted) == 2:
                    first, second = (begins[entry] for entry in noted)
                    builder.ops[first:] = interleaved_kernels(builder.ops[first:second], builder.ops[second:])
        return begins

    def _note(self, entry: Pass, micro: int, chunk: Chunk, builder: ProgramBuilder, planned: PassPlanner) -> None:
        """Write a micro-batch's pass through a chunk into the program, with receive and send."""
        if entry.work is Work.WEIGHT_GRADIENT:
            planned.weight_gradient(micro, chunk)
            return
        forward = entry.work is Work.FORWARD
        step = 1 if forward else -1
        arrived = self._moved(builder, entry.stage - step, entry.stage, micro, [], forward=forward)
        passes = {
            Work.FORWARD: planned.forward,
            Work.BACKWARD: planned.backward,
            Work.INPUT_GRADIENT: planned.input_gradient,
        }
        done = passes[entry.work](micro, chunk, [arrived])
        self._moved(builder, entry.stage, entry.stage + step, micro, [done], forward=forward)

    def _moved(
        self, builder: ProgramBuilder, source: int, target: int, micro: int, after: list[str | None], *, forward: bool
    ) -> str | None:
        """Write the send of activations or gradients between two stages; return the name, or None without a send."""
        last = self.model_stages
        # A second model copy starts at stage `last`; copies exchange no messages.
        if not min(source, target) >= 0 or max(source, target) >= self.shape.stages or source // last != target // last:
            return None
        ranks = self.schedule.rank_of(source, self.shape.ranks), self.schedule.rank_of(target, self.shape.ranks)
        # No gradient is wanted before the first trained parameter.
        if not forward and target % last < self.first_trained:
            return None
        # Both chunks at a V's turn lie on one rank.
        if ranks[0] == ranks[1]:
            return None
        what = "activations" if forward else "gradients"
        name = f"{what} to stage {target} {micro}"
        # Receiving unit: the first unit of a stage in a forward pass, the last in a backward pass.
        taker = self._ends[target][0 if forward else 1]
        act = NumericAction(Exchange.SEND, (taker,), micro, what=what)
        # Batched sends block under no framework.
        blocks = builder.framework.host.sends_block and not self.schedule.batches_sends(self.shape)
        elements = self._passed[max(source, target) % last]
        return builder.send(name, elements, self.step.precision.params, ranks, after, act, blocks=blocks)

    @property
    def least_sent(self) -> int:
        """Fewest elements of a micro-batch that one pipeline stage sends to the next."""
        return min(self._passed[1:], default=0)

    @cached_property
    def _passed(self) -> Sequence[int]:
        """Elements of a micro-batch that each stage of a model copy receives: the input of its first layer."""
        batch, before = batch_of(self.step), accumulate(self.layers()[:-1], initial=0)
        return [passed_bytes(self.step.model, layers, batch) // batch.itemsize for layers in before]

    @cached_property
    def first_trained(self) -> int:
        """First stage of a model copy with a trained parameter; beside adapters the embedding is frozen."""
        step = self.step
        if step.trained is None and step.model.adapters is None:
            return 0
        first = "layer 0" if step.trained is None else step.trained.first
        return next(stage for stage, names in enumerate(self._names) if first in names)

    @cached_property
    def _ends(self) -> Sequence[tuple[str, str]]:
        """Names of the first and the last unit (embedding, layer, head) of each stage."""
        return [(names[0], names[-1]) for names in self._names] * (self.shape.stages // self.model_stages)

    @cached_property
    def _names(self) -> Sequence[Sequence[str]]:
        """Names of the units (embedding, layers, head) on each stage of a model copy, in order."""
        between = [[f"layer {n}" for n in range(*ends)] for ends in pairwise([0, *accumulate(self.layers())])]
        between[0].insert(0, "embedding")
        between[-1].append("head")
        return between
