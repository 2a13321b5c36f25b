"""Simulates a training step outside any scenario: a tiny model on a star of GPUs, without a limit on memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.engine.events import execute
from simulator.engine.jitter import Jitter
from simulator.model.shape import Transformer
from simulator.records.timeline import Timeline
from simulator.report.numbers.summary import with_link_use
from simulator.report.numbers.training_summary import TrainingReport, summarize_step
from simulator.step.plan import StepPlan, plan_step
from simulator.step.sharding import Sharding
from simulator.step.spec import TrainingStep, bare_step
from simulator.step.strategies.strategy import STRATEGIES
from simulator.testing.engines import same_in_both_engines

TINY: Final = Transformer("tiny", 4, 64, 4, 4, 16, 256, 512, 128)


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """A simulated step with its cluster, plan, timeline and report."""

    cluster: Cluster
    plan: StepPlan
    timeline: Timeline
    report: TrainingReport


def step(strategy: str = "zero3", model: Transformer = TINY, **facts: Any) -> TrainingStep:
    """Return a step of the tiny model; `facts` are fields of Sharding and of TrainingStep by name."""
    shards = {name: facts.pop(name) for name in Sharding.model_fields if name in facts}
    settings: dict[str, Any] = {"seq_len": 32, "micro_batch_size": 2, "collectives": "played"} | facts
    return bare_step(model, sharding=Sharding().replaced(strategy=strategy, **shards), **settings)


def play(
    job: TrainingStep,
    ranks: int,
    topology: Any = "star_100g",
    stragglers: Mapping[int, float] | None = None,
    jitter: Jitter | None = None,
) -> PlayedStep:
    """Simulate a step on `ranks` ranks with the events engine."""
    cluster = cluster_of(job, ranks, topology, stragglers)
    plan = plan_step(cluster, job, steady=jitter is None)
    timeline = with_link_use(execute(plan.program, cluster, jitter=jitter or Jitter(), limit_memory=False))
    return PlayedStep(cluster, plan, timeline, summarize_step(plan, cluster, timeline))


def cluster_of(
    job: TrainingStep, ranks: int, topology: Any = "star_100g", stragglers: Mapping[int, float] | None = None
) -> Cluster:
    """Return a cluster for a step, with the servers that its strategy needs."""
    servers = STRATEGIES.find(job.sharding.strategy).servers(job.sharding)
    return _cluster(json.dumps([topology, ranks, servers, sorted((stragglers or {}).items())]))


@lru_cache(maxsize=16)
def _cluster(description: str) -> Cluster:
    """Return the cluster that JSON describes; steps share the cluster, like points of a sweep."""
    topology, ranks, servers, stragglers = json.loads(description)
    return build(topology, ranks, servers=servers, stragglers=dict(stragglers))


def takes_as_long_in_both_engines(job: TrainingStep, ranks: int) -> bool:
    """Check that both engines simulate a step in the same time; return False if there is no compiled core."""
    cluster = cluster_of(job, ranks)
    return same_in_both_engines(plan_step(cluster, job, steady=True).program, cluster)
