"""One training step as a Program: states, passes, communication, optimizer.

Rule: notes what every rank does in the order of issue; times come out of the engine. All ranks do the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.cluster.cluster import Cluster
from simulator.model.flops import model_flops_per_token
from simulator.program import Program
from simulator.training.beside import hbm_left
from simulator.training.communicator import Communicator
from simulator.training.groups import Groups, for_every_rank
from simulator.training.passes import Passes
from simulator.training.score import Score
from simulator.training.sharding import catalog
from simulator.training.sharding.strategy import Strategy
from simulator.training.spec import TrainingStep
from simulator.training.states import states
from simulator.training.update import update
from simulator.training.work import Gauge, units


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
    strategy = catalog.find(step.sharding.strategy)
    groups = Groups(cluster.world_size, step.sharding.shard_size or cluster.world_size, step.sharding.mesh)
    score = Score(Communicator(cluster, groups, step.collectives, even, step.offload is not None, step.algorithm))
    left = hbm_left(cluster)
    made = units(step, cluster.gpus[0], cluster.world_size, left, sharded=strategy.shards_parameters)
    passes = Passes(score, step, made, groups.shard_size, strategy.keeps_whole_gradients(step.sharding))
    elements = sum(unit.elements for unit in passes.units)
    held = states(step, strategy, elements, groups.shard_size, sum(unit.resident for unit in passes.units))
    score.allocate("parameters", held.parameters, "parameters")
    score.allocate("optimizer states", held.optimizer, "optimizer")
    strategy.plan(score, passes)
    update(score, passes, Gauge(cluster.gpus[0], step, left), held, strategy)
    ranks = for_every_rank(score.ops, score.scopes, groups, score.communicator.among)
    timed = sum(op.duration is not None for op in score.collectives)
    tokens = step.seq_len * step.micro_batch_size * step.accumulation * cluster.world_size
    model = model_flops_per_token(step.model, step.seq_len) * tokens
    recomputed = sum(u.recompute.flops for u in passes.units if u.recompute is not None)
    return StepPlan(
        program=Program(ranks),
        step=step,
        strategy=strategy,
        tokens=tokens,
        model_flops=model,
        hardware_flops=model + recomputed * step.accumulation * cluster.world_size,
        closed_forms=timed,
        played=len(score.collectives) - timed,
        host_bytes=held.on_host,
    )
