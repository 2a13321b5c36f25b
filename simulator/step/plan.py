"""How is a training step planned as a Program? Model states, passes, communication and update, in order of issue.

A step is written once for the lowest rank of each pipeline stage and expanded to every rank. It contains no times of
events; these come from the engine.

The planning functions: `plan_step` for a simulation, `ranks_alone` for the memory of a rank per stage,
`few_micro_batches` for estimates by `stage_memory.py` and the planner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.basics.garbage import collected_later
from simulator.cluster.cluster import Cluster
from simulator.model.model import modules, refusals, training_flops_per_token
from simulator.model.operation import FULL_ITERATION
from simulator.model.shape import Transformer
from simulator.records.operation import Allocate, Collective, Compute, Op
from simulator.records.program import Program
from simulator.step.checkpoint_traffic import checkpoint_bytes
from simulator.step.communicator import Communicator
from simulator.step.kernel_timer import KernelTimer
from simulator.step.kernels.contention import hbm_left
from simulator.step.lengths import batches
from simulator.step.passes import Passes
from simulator.step.pipeline import Pipeline
from simulator.step.pipelines.schedule import Pass
from simulator.step.process_groups import Groups, StageOps, for_every_rank
from simulator.step.process_memory import process_memory
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import State, TrainingStep
from simulator.step.stages import refusal_of_deferral
from simulator.step.states import States, states
from simulator.step.strategies.strategy import STRATEGIES, PassPlanner, Strategy, shards_gradients
from simulator.step.streams import HOST_COPIES, dimension_of
from simulator.step.units import Unit, batch_of, host_ratio, units
from simulator.step.update import update

# Host time, relative to the time of the kernels, from which launches are simulated. Below, a host is ahead of its GPU
# but for a step's first kernels.
_HOST_SHOWS: Final = 0.5


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A training step's program, ready for simulation, with totals over the step."""

    program: Program
    step: TrainingStep
    strategy: Strategy
    tokens: int  # tokens per step, of every rank
    # `model_flops`, `hardware_flops`: FLOP per step, of every rank, without and with recompute [FLOP].
    model_flops: float
    hardware_flops: float
    # `closed_forms`, `played`: Numbers of collectives with a closed form, and of simulated collectives.
    closed_forms: int
    played: int
    # `host_bytes`, `host_activation_bytes`: Most model states and saved activations in host memory, per rank, and the
    # saved activations among them [B].
    host_bytes: int = 0
    host_activation_bytes: int = 0
    # Algorithms of each operation by its dimension: {"dp all_gather": "multi_ring"}
    algorithms: Mapping[str, str] = field(default_factory=dict)
    # Sources of the machine's constants for collectives, without duplicates; empty without constants
    constants: tuple[str, ...] = ()
    # The same sources for each operation: {"all_gather": ("fitted to ...",)}
    constants_by_operation: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Bytes of collectives whose transfers are simulated, over the bytes of all collectives
    simulated_share: float = 1.0
    # Rank with the most work in its kernels, for which others wait; None if all have the same
    busiest: int | None = None


@collected_later()
def plan_step(cluster: Cluster, step: TrainingStep, *, steady: bool = True) -> StepPlan:
    """Return the program of a training step on every rank of a cluster, with token and FLOP counts.

    Parameters
    ----------
    steady : bool
        Whether ranks have no jitter; stragglers are read from the cluster.

    Raises
    ------
    ValueError
        The ranks or the model cannot be partitioned as requested, or the GPU lacks a dtype or kernel.
    """
    # Closed forms need ranks that arrive together, and links that stay as they are: no straggler, jitter, event
    # or checkpoint in flight.
    even = steady and not cluster.changes and not step.saves and all(speed == 1.0 for speed in cluster.speeds)
    even = even and len(set(step.batches)) <= 1
    step = on_ranks(step, cluster, cluster.world_size)
    groups = groups_of(step, cluster.world_size)
    communicator = Communicator(cluster, groups, step.keys.collectives, even, step.copies_to_host, step.algorithm)
    stages = _write(cluster, step, communicator)
    ops: list[list[Op]] = [stage.builder.ops for stage in stages]
    work = np.ones((0, 0))
    if step.batches:
        ops, work = _with_work(cluster, step, groups, stages)
    lists = [StageOps(of_stage, stage.builder.scopes) for of_stage, stage in zip(ops, stages, strict=True)]
    ranks = for_every_rank(lists, groups, communicator.among)
    collectives = [op for stage in stages for op in stage.builder.collectives]
    # Also raises an error now, rather than during the simulation, if an algorithm cannot run in some group.
    unlike = _in_every_group(stages, communicator)
    closed_forms = sum(op.duration is not None for op in collectives)
    # Model-parallel ranks share a micro-batch, hence only data-parallel ranks multiply tokens.
    tokens = step.keys.seq_len * step.keys.micro_batch_size * step.accumulation * groups.grid.size("dp")
    tokens = sum(micro.tokens for rank in step.batches for micro in rank) or tokens
    model = flops_of(step) * tokens
    # Every list is run by equally many ranks.
    fullest = max(stages, key=lambda stage: stage.states.on_host + stage.passes.most_on_host)
    recomputed = sum(u.recompute.flops for stage in stages for u in stage.passes.units if u.recompute is not None)
    return StepPlan(
        program=Program(ranks, beside=process_memory(cluster.gpus[0], step, groups), work=work),
        step=step,
        strategy=STRATEGIES.find(step.sharding.strategy),
        tokens=tokens,
        model_flops=model,
        hardware_flops=model + recomputed * step.accumulation * (cluster.world_size // len(stages)),
        closed_forms=closed_forms,
        played=len(collectives) - closed_forms,
        host_bytes=fullest.states.on_host + fullest.passes.most_on_host,
        host_activation_bytes=fullest.passes.most_on_host,
        algorithms=_algorithms(unlike),
        constants=tuple(sorted({op.caps.source for op in unlike if op.caps.source})),
        constants_by_operation=_constants_by_operation(unlike),
        simulated_share=_simulated_share(collectives),
        busiest=_busiest(ops, groups, work),
    )


def _busiest(ops: Sequence[Sequence[Op]], groups: Groups, work: Floats) -> int | None:
    """Return the rank with the most work in its kernels; None if all ranks have the same."""
    if not work.size:
        return None
    # Seconds of each list's kernels, by row of work.
    seconds = np.zeros((len(ops), len(work)))
    for number, of_list in enumerate(ops):
        for op in of_list:
            if isinstance(op, Compute) and op.work >= 0:
                seconds[number, op.work] += op.duration
    return int(np.argmax((seconds[list(groups.list_of)] * work.T).sum(axis=1)))


def flops_of(step: TrainingStep) -> float:
    """Return the model FLOPs per token of a training step: the numerator of MFU. Frozen parts need no gradients of
    weights, and parts before the first trained one no gradients at all.
    """
    flops = _flops_per_token(step)
    if step.trained is None:
        return flops
    parts = modules(step.model)
    begins = next(place for place, part in enumerate(parts) if part.name == step.trained.first)
    # Per parameter 2 FLOP for each of forward pass, gradient of the input, gradient of the weight; what is no parameter
    # is attention, 1/3 of it forward.
    matrices = 6.0 * sum(part.elements for part in parts)
    attention = max(0.0, flops - matrices)
    # Of a model with experts a token uses a share of the parameters.
    used = min(1.0, flops / matrices)
    before = used * sum(part.elements for part in parts[:begins])
    trained = dict(step.trained.modules)
    frozen = used * sum(
        tensor.elements for part in parts for tensor in part.parameters if tensor.name not in trained.get(part.name, ())
    )
    behind = max(0, begins - 1) / step.model.num_layers
    return max(flops / 3, flops - 2.0 * frozen - 2.0 * before - attention * behind * 2 / 3)


def _flops_per_token(step: TrainingStep) -> float:
    """Return the model FLOPs per computed token, without regard to frozen parts: the mean over a step's documents."""
    micros = [micro for rank in step.batches for micro in rank]
    if not micros:
        return training_flops_per_token(step.model, step.keys.seq_len)
    counts = Counter(tokens for micro in micros for tokens in micro.documents or (micro.seq_len,) * micro.sequences)
    counts[1] += sum(micro.tokens - micro.used for micro in micros if micro.documents)
    total = sum(tokens * count * training_flops_per_token(step.model, tokens) for tokens, count in counts.items())
    return total / sum(micro.tokens for micro in micros)


def _with_work(
    cluster: Cluster, step: TrainingStep, groups: Groups, stages: Sequence[_StageProgram]
) -> tuple[list[list[Op]], Floats]:
    """Return the operations of each list with the work of each data-parallel rank, and the rows of work."""
    # Imported late, because most steps have equal ranks.
    from simulator.step.rank_work import with_work

    left, sharded = hbm_left(cluster), STRATEGIES.find(step.sharding.strategy).shards_parameters

    def stacks(of: TrainingStep) -> list[tuple[Unit, ...]]:
        return [
            units(of, cluster.gpus[0], groups.data_parallel, left, sharded=sharded, place=place)
            for place in range(groups.unlike_places)
        ]

    builders = [stage.builder for stage in stages]
    return with_work(
        [builder.ops for builder in builders],
        [builder.pieces for builder in builders],
        stages[0].stacks,
        KernelTimer(cluster.gpus[0], step, left),
        groups.grid.coordinate("dp"),
        lambda micro: stacks(replace(step, batches=((micro,),))),
    )


def _in_every_group(stages: Iterable[_StageProgram], communicator: Communicator) -> list[Collective]:
    """Return the stages' distinct collectives, once per distribution of the process groups over nodes."""
    by_key: dict[Hashable, list[Collective]] = {}
    for builder in (stage.builder for stage in stages):
        for op in builder.collectives:
            scope = builder.scopes.get(op.name)
            key = scope, op.stream, op.schedule.operation, op.schedule.algorithm, op.elements, op.dtype, op.caps.source
            if key not in by_key:
                by_key[key] = [op] if scope is None else communicator.in_every_group(op, scope)
    return list(chain.from_iterable(by_key.values()))


def _simulated_share(collectives: Sequence[Collective]) -> float:
    """Return the bytes of collectives without a closed form over the bytes of all collectives; 1 without bytes."""
    total = sum(op.nbytes for op in collectives)
    return sum(op.nbytes for op in collectives if op.duration is None) / total if total else 1.0


def _constants_by_operation(collectives: Iterable[Collective]) -> dict[str, tuple[str, ...]]:
    """Return the sources of the machine's constants for each operation that has constants, in alphabetical order."""
    sources: dict[str, set[str]] = {}
    for op in collectives:
        if op.caps.source:
            sources.setdefault(op.schedule.operation, set()).add(op.caps.source)
    return {operation: tuple(sorted(sources[operation])) for operation in sorted(sources)}


def _algorithms(collectives: Iterable[Collective]) -> dict[str, str]:
    """Return the algorithms, keyed by parallelism and operation ("dp all_gather"), without sends and host copies."""
    names: dict[str, dict[str, None]] = {}
    for op in collectives:
        dimension = dimension_of(op.stream)
        if dimension != HOST_COPIES and op.schedule.algorithm != "send":
            names.setdefault(f"{dimension} {op.schedule.operation}", {})[op.schedule.algorithm] = None
    return {name: ", ".join(names[name]) for name in sorted(names)}


def ranks_alone(cluster: Cluster, step: TrainingStep, *, at_once: bool = False) -> tuple[Program, ...]:
    """Return a program for a single rank per pipeline stage, with other ranks assumed to keep pace, to find the needed
    memory.

    Collectives take approximately their time, or no time with `at_once`; they have no schedules and no routes.
    """
    step = on_ranks(step, cluster, cluster.world_size)
    groups = groups_of(step, cluster.world_size)
    communicator = Communicator(cluster, groups, "at_once" if at_once else "rough", True)
    beside = process_memory(cluster.gpus[0], step, groups)
    return tuple(Program((tuple(stage.builder.ops),), beside=beside) for stage in _write(cluster, step, communicator))


@dataclass(frozen=True, slots=True)
class StageNotes:
    """Operations of a pipeline stage for a few micro-batches, recorded to estimate time and memory of a whole step."""

    stage: int  # number of the pipeline stage
    ops: tuple[Op, ...]  # operations in order: every distinct kind of pass is recorded at least once
    begins: Mapping[Pass, int]  # index of each recorded pass's first operation
    ends: int  # index of the first operation after the passes
    order: tuple[Pass, ...]  # every pass of a step, in order
    stand_for: tuple[Pass, ...]  # for each pass in `order`, the recorded pass with the same operations
    assumed: Mapping[str, Allocate]  # allocations made by passes that are not recorded, and freed by recorded passes


@collected_later()
def few_micro_batches(
    cluster: Cluster,
    step: TrainingStep,
    world_size: int,
    *,
    closed_forms: bool = False,
    stages: Collection[int] | None = None,
) -> tuple[StageNotes, ...]:
    """Record the operations of one rank of each stage for a few micro-batches, as `ranks_alone` does with `at_once`.

    The number of recorded operations does not depend on the number of micro-batches.

    Parameters
    ----------
    cluster : Cluster
        A cluster with at least one rank, for its GPU.
    world_size : int
        Number of ranks in the step.
    closed_forms : bool
        Whether collectives get the durations of their closed forms, if any; the cluster then needs every rank.
    stages : collection of int, optional
        Pipeline stages to record; every stage if omitted.
    """
    step = on_ranks(step, cluster, world_size)
    groups = groups_of(step, world_size)
    communicator = Communicator(cluster, groups, "closed_form" if closed_forms else "at_once", True)
    # Unbalanced context parallelism gives a stage several lists.
    stage_of = [number // groups.unlike_places for number in range(groups.lists)]
    lists = [number for number, stage in enumerate(stage_of) if stages is None or stage in stages]
    programs = _write(cluster, step, communicator, few=lists)
    return tuple(
        StageNotes(
            stage,
            tuple(program.builder.ops),
            program.begins,
            program.ends,
            program.passes.order,
            _stand_for(program),
            program.builder.assumed,
        )
        for stage, program in zip([stage_of[number] for number in lists], programs, strict=True)
    )


def _stand_for(noted: _StageProgram) -> tuple[Pass, ...]:
    """Return for each pass in a rank's order the recorded pass with equal operations: itself or its kind's last."""
    kind = noted.planned.kind
    last: dict[Hashable, Pass] = {}
    # Later micro-batches in this order overwrite earlier ones: `Pipeline.few` puts representatives last.
    for micro in noted.micros:
        last |= {(entry.work, entry.stage, kind(entry)): entry for entry in noted.begins if entry.micro == micro}
    return tuple(
        entry if entry in noted.begins else last[entry.work, entry.stage, kind(entry)] for entry in noted.passes.order
    )


def groups_of(step: TrainingStep, world_size: int) -> Groups:
    """Return the process groups of a training step on `world_size` ranks."""
    grid = step.parallelism.grid(world_size)
    parallelism = step.parallelism
    shard = step.sharding.shard_size or grid.holders
    return Groups(
        grid,
        shard,
        step.sharding.mesh,
        parallelism.ulysses,
        parallelism.ep,
        parallelism.expert_tensor,
        parallelism.unlike_places,
        step.experts_in_node,
    )


def on_ranks(step: TrainingStep, cluster: Cluster, world_size: int) -> TrainingStep:
    """Return the training step with all that depends on the first `world_size` ranks of a cluster filled in: the
    documents of each rank, the nodes of expert-parallel groups, and no sharding over groups of a single rank.
    """
    return _on_nodes(_without_lone_shards(_with_documents(step, world_size), world_size), cluster, world_size)


def _with_documents(step: TrainingStep, world_size: int) -> TrainingStep:
    """Return the training step with the documents of each data-parallel rank's micro-batches, if lengths are given."""
    keys = step.keys
    if keys.lengths is None:
        return step
    shape = step.parallelism.grid(world_size).size("dp"), step.accumulation
    return replace(step, batches=batches(keys.lengths, keys.batching, keys.seq_len, keys.micro_batch_size, shape))


def _without_lone_shards(step: TrainingStep, world_size: int) -> TrainingStep:
    """Return the training step without sharding if each group that would share model states has a single rank.

    FSDP switches to NO_SHARD [1]_, and DeepSpeed's ZeRO-3 uses its partition without a gathered copy [2]_. States on
    the host still need a rank that owns them, as under ZeRO-2.

    References
    ----------
    .. [1] pytorch/pytorch, torch/distributed/fsdp/_init_utils.py: "FSDP is switching to use `NO_SHARD` instead of ...
       since the world size is 1."
    .. [2] deepspeedai/DeepSpeed, deepspeed/runtime/zero/partition_parameters.py, `_no_gather_coalesced`.
    """
    sharding, optimizer = step.sharding, step.optimizer
    # ZeRO-1 sends nothing inside such a group, and gathers nothing in memory.
    if not shards_gradients(sharding.strategy):
        return step
    groups = groups_of(step, world_size)
    if groups.shard_size > 1 or (step.model.num_experts and groups.size("expert data") > 1):
        return step
    # DDP shards nothing; ZeRO-2 shards what an update on the host needs.
    shards = frozenset() if not step.keys.offload.states else {State.OPTIMIZER, State.GRADIENTS}
    strategy = next(name for name in STRATEGIES.names() if STRATEGIES.find(name).shards == shards)
    if optimizer.of_matrices is not None and not shards:
        optimizer = replace(optimizer, of_matrices=replace(optimizer.of_matrices, distribution="replicated"))
    # The groups stay of one rank where states on the host keep an owner.
    size = sharding.shard_size if shards else None
    unsharded = sharding.replaced(strategy=strategy, shard_size=size, reshard_after_forward=True, gradient_sync="every")
    return replace(step.with_keys(sharding=unsharded), optimizer=optimizer)


def _on_nodes(step: TrainingStep, cluster: Cluster, world_size: int) -> TrainingStep:
    """Return the training step with `experts_in_node` filled in: the number of consecutive ranks of an
    expert-parallel group on each node.

    Return the step unchanged if its dispatch of tokens does not depend on nodes. The number stays 0 (unknown) if the
    cluster has fewer than `world_size` ranks, or if any expert-parallel group does not have the same number of
    consecutive ranks on every node that the group spans.
    """
    ranks = step.parallelism.ep
    if step.parallelism.experts.dispatch != "deduplicated" or ranks == 1 or cluster.world_size < world_size:
        return step
    # Refuses pipelines whose ranks form no groups.
    check_cut(step)
    Pipeline.of(step)
    node_of = cluster.node_of()
    nodes = np.array([node_of.get(rank, -1) for rank in range(world_size)])[
        groups_of(step, world_size).table("experts")
    ]
    # Length of the first run; every group must have equal runs, each on a node of its own.
    size = int(np.argmax(np.append(nodes[0] != nodes[0, 0], True)))
    if ranks % size:
        return step
    runs = nodes.reshape(-1, ranks // size, size)
    firsts = np.sort(runs[:, :, 0], axis=1)
    if (runs != runs[:, :, :1]).any() or (np.diff(firsts, axis=1) == 0).any():
        return step
    return replace(step, experts_in_node=size)


@dataclass(frozen=True, slots=True)
class _StageProgram:
    """Program and memory for the ranks with the same operation list (usually a pipeline stage)."""

    builder: ProgramBuilder  # the program
    passes: Passes
    planned: PassPlanner
    states: States
    begins: Mapping[Pass, int]  # see `StageNotes`
    ends: int  # see `StageNotes`
    micros: Sequence[int]  # recorded micro-batches
    stacks: Sequence[Sequence[Unit]]  # the model's units, by place along the sequence


def _write(
    cluster: Cluster, step: TrainingStep, communicator: Communicator, *, few: Sequence[int] | None = None
) -> list[_StageProgram]:
    """Write the program of each list's lowest rank; with `few`, of these lists alone and a few micro-batches."""
    strategy, groups = STRATEGIES.find(step.sharding.strategy), communicator.groups
    left = hbm_left(cluster)
    check_cut(step)
    pipeline, timer = Pipeline.of(step), KernelTimer(cluster.gpus[0], step, left)
    # With unbalanced context parallelism, kernel times depend on the rank's piece of the sequence.
    by_place = [
        units(step, cluster.gpus[0], groups.data_parallel, left, sharded=strategy.shards_parameters, place=place)
        for place in range(groups.unlike_places)
    ]
    # A host that needs much less time than the kernels is always ahead of them. Where it waits for receives or for
    # kernels, it is not.
    host = step.framework.host
    waits = (host.sends_block or host.issue_in_pipeline > 0.0) and step.parallelism.pp > 1
    stops = any(piece.synchronizes for unit in by_place[0] for piece in unit.forward.pieces)
    hooks = strategy.shards_parameters
    issues = waits or stops or host_ratio(by_place[0], step.framework, hooks=hooks) > _HOST_SHOWS
    # Models that are small enough for real training would show hosts alone.
    issues = issues and FULL_ITERATION not in step.keys.cuda_graphs and step.lesson is None
    noted = []
    for number in range(groups.lists) if few is None else few:
        stage, place = divmod(number, groups.unlike_places)
        rank = groups.list_of.index(number)
        builder = ProgramBuilder(communicator, rank, step.precision.params, step.framework)
        chunks = pipeline.chunks(stage, by_place[place])
        members = tuple(unit for chunk in chunks for unit in chunk.units)
        if not issues:
            builder.framework = step.framework.with_constants(issue=0.0)
        unsharded = strategy.keeps_whole_gradients(step.sharding)
        order = pipeline.passes(stage)
        passes = Passes(builder, step, members, groups.shard_size, groups.size("expert data"), unsharded, chunks, order)
        resident = sum(unit.resident for unit in members)
        rank_states = states(
            step, strategy.shards, strategy.updater, passes.parts_of_states(), resident, passes.frozen_by_ranks()
        )
        if step.paged_out:
            rank_states = rank_states.paged_out(step.paged_out[stage])
        # Model states are the first allocations, as in a real process.
        builder.allocate("parameters", rank_states.parameters, "parameters")
        builder.allocate("optimizer states", rank_states.optimizer, "optimizer")
        if scratch := step.framework.scratch(cluster.gpus[0], experts=bool(step.model.num_experts)):
            builder.allocate("workspaces", scratch, "workspaces")
        if buffer := memory_buffer(step, members, place):
            builder.allocate("memory buffer", buffer, "workspaces")
        if unsharded and step.framework.memory.gradient_buffers:
            builder.allocate("gradient buffers", passes.gradient_bytes, "gradients")
        if unsharded and step.framework.memory.placeholders:
            builder.allocate("gradient placeholders", passes.placeholder_bytes, "gradients")
        # The states are copied as the last update left them.
        saved = builder.save(-(-int(checkpoint_bytes(step)) // groups.grid.world_size)) if step.saves else None
        planned = strategy.plan(builder, passes)
        micros = range(step.accumulation) if few is None else pipeline.few(stage, planned.kind)
        # Interleaving two passes would mix their operations; estimates need each recorded pass as a contiguous range.
        begins = pipeline.note(stage, chunks, builder, planned, micros, by_turns=few is None)
        ends = len(builder.ops)
        # The update overwrites what the copy reads.
        builder.await_next([saved])
        update(builder, passes, timer, rank_states, strategy)
        noted.append(_StageProgram(builder, passes, planned, rank_states, begins, ends, micros, by_place))
    return noted


def memory_buffer(step: TrainingStep, members: Sequence[Unit], place: int = 0) -> int:
    """Return the size of the buffer that a framework keeps for gathered inputs and scores on a rank [B].

    Megatron-Core's GlobalMemoryBuffer (core/utils.py) has one array for each dtype, as large as the largest request:
    the input of a column-parallel matmul, gathered from the sequence-parallel ranks (core/tensor_parallel/layers.py),
    and the scores of `DotProductAttention` (core/transformer/dot_product_attention.py). nanotron has such a buffer too.

    Parameters
    ----------
    members : sequence of Unit
        The rank's units: embedding, layers and head, or its pipeline stages' units.
    place : int
        The rank's place among context-parallel ranks.
    """
    model, users = step.model, step.framework.memory.memory_buffer
    if users == "none" or not isinstance(model, Transformer):
        return 0
    batch, layers = batch_of(step, place), users != "head" and any(unit.is_layer for unit in members)
    elements = 0
    if batch.cut.sequence and (layers or any(unit.name == "head" for unit in members)):
        elements = batch.tokens * model.hidden_size
    waiting = min(2, step.deferred) if any(unit.deferred for unit in members) else 0
    if layers and users == "scores" and batch.attention != "flash":
        elements = max(elements, batch.sequences * model.num_heads // batch.cut.tensor * batch.seq_len**2)
    # Deferred weight gradients gather into two arrays of their own, in turns (`drain_embedding_wgrad_compute`).
    waiting *= batch.tokens * model.hidden_size if batch.cut.sequence else 0
    return (elements + waiting) * batch.itemsize


def check_cut(step: TrainingStep) -> None:
    """Raise ValueError if a step's model cannot be partitioned over ranks as the step requests."""
    cut = step.parallelism.cut()
    if step.parallelism.pp > 1 and step.keys.activation_checkpointing == "sqrt":
        raise ValueError(
            "checkpointing: got 'sqrt', whose segments cross pipeline stages; write full, or every k-th layer"
        )
    refused = refusal_of_deferral(
        step.parallelism.schedule, step.sharding.strategy, chunked=step.loss_kernels == "chunked"
    )
    if step.deferred and refused:
        raise ValueError(f"parallelism.deferred_head_gradients: {refused}")
    if step.model.num_experts and cut.experts_apart and (step.sharding.shard_size or step.sharding.mesh):
        raise ValueError("parallelism.ep: experts with a separate shard_size are not supported yet")
    for key, refused in refusals(step.model, cut, step.keys.seq_len):
        raise ValueError(f"parallelism.{key}: {refused}")
