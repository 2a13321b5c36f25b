"""One training step as a Program: model states, passes, communication, optimizer, in the order of issue.

Rule: written for rank 0 and handed to all, for all ranks do the same; when anything happens comes out of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.cluster.cluster import Cluster
from simulator.model.flops import model_flops_per_token
from simulator.records.program import Program
from simulator.step.communicator import Communicator
from simulator.step.kernel_timer import KernelTimer
from simulator.step.kernels.contention import hbm_left
from simulator.step.passes import Passes
from simulator.step.process_groups import Groups, for_every_rank
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import TrainingStep
from simulator.step.states import States, states
from simulator.step.strategies import catalog
from simulator.step.strategies.strategy import Strategy
from simulator.step.units import units
from simulator.step.update import update


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step ready to be played.

    Attributes
    ----------
    program : Program
    step : TrainingStep
    strategy : Strategy
    tokens : int
        Of all ranks in one step.
    model_flops, hardware_flops : float
        Of all ranks in one step, without and with recomputation [FLOP].
    closed_forms, played : int
        How many collectives are taken by their closed form, and how many played.
    host_bytes : int
        Model states that a rank keeps in its host's memory [B].
    """

    program: Program
    step: TrainingStep
    strategy: Strategy
    tokens: int
    model_flops: float
    hardware_flops: float
    closed_forms: int
    played: int
    host_bytes: int = 0


def plan_step(cluster: Cluster, step: TrainingStep, *, steady: bool = True) -> StepPlan:
    """Plan one step on all ranks of a cluster.

    Parameters
    ----------
    cluster : Cluster
    step : TrainingStep
    steady : bool
        Whether ranks keep step with each other: no jitter (stragglers are seen here).
    """
    even = steady and all(speed == 1.0 for speed in cluster.speeds)
    groups = _groups(cluster, step)
    communicator = Communicator(cluster, groups, step.collectives, even, step.offload is not None, step.algorithm)
    builder, passes, rank_states = _rank_0(cluster, step, communicator)
    ranks = for_every_rank(builder.ops, builder.scopes, groups, communicator.among)
    closed_forms = sum(op.duration is not None for op in builder.collectives)
    tokens = step.seq_len * step.micro_batch_size * step.accumulation * cluster.world_size
    model = model_flops_per_token(step.model, step.seq_len) * tokens
    recomputed = sum(u.recompute.flops for u in passes.units if u.recompute is not None)
    return StepPlan(
        program=Program(ranks),
        step=step,
        strategy=catalog.find(step.sharding.strategy),
        tokens=tokens,
        model_flops=model,
        hardware_flops=model + recomputed * step.accumulation * cluster.world_size,
        closed_forms=closed_forms,
        played=len(builder.collectives) - closed_forms,
        host_bytes=rank_states.on_host,
    )


def rank_alone(cluster: Cluster, step: TrainingStep) -> Program:
    """Rank 0's step, played as if all others kept step with it: for the memory that a step needs, on any cluster.

    Its collectives take about the time that they would take, without schedules, routes and other ranks.
    """
    communicator = Communicator(cluster, _groups(cluster, step), "rough", True)
    builder, _, _ = _rank_0(cluster, step, communicator)
    return Program((tuple(builder.ops),))


def _groups(cluster: Cluster, step: TrainingStep) -> Groups:
    return Groups(cluster.world_size, step.sharding.shard_size or cluster.world_size, step.sharding.mesh)


def _rank_0(cluster: Cluster, step: TrainingStep, communicator: Communicator) -> tuple[ProgramBuilder, Passes, States]:
    """Note rank 0's operations."""
    strategy, groups = catalog.find(step.sharding.strategy), communicator.groups
    builder = ProgramBuilder(communicator)
    left = hbm_left(cluster)
    made = units(step, cluster.gpus[0], cluster.world_size, left, sharded=strategy.shards_parameters)
    passes = Passes(builder, step, made, groups.shard_size, strategy.keeps_whole_gradients(step.sharding))
    elements = sum(unit.elements for unit in passes.units)
    rank_states = states(step, strategy, elements, groups.shard_size, sum(unit.resident for unit in passes.units))
    builder.allocate("parameters", rank_states.parameters, "parameters")
    builder.allocate("optimizer states", rank_states.optimizer, "optimizer")
    strategy.plan(builder, passes)
    update(builder, passes, KernelTimer(cluster.gpus[0], step, left), rank_states, strategy)
    return builder, passes, rank_states
