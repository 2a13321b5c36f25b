"""Ground for tests of training steps: a tiny model, a star of GPUs, and what was played."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.engine.events import execute
from simulator.engine.jitter import Jitter
from simulator.model.shape import Transformer
from simulator.records.timeline import Timeline
from simulator.report.numbers.summary import with_link_use
from simulator.report.numbers.training_summary import TrainingReport, summarize_step
from simulator.step.plan import StepPlan, plan_step
from simulator.step.spec import Sharding, TrainingStep, Updater
from simulator.step.strategies.strategy import STRATEGIES

EVERY_STRATEGY = STRATEGIES.names()
# Ranks that sum their gradients among themselves, and those of them that update a part each.
WITHOUT_SERVERS = tuple(n for n in EVERY_STRATEGY if STRATEGIES.find(n).updater is not Updater.SERVERS)
SHARDED = tuple(n for n in EVERY_STRATEGY if STRATEGIES.find(n).updater is Updater.OWNERS)
TINY = Transformer("tiny", 4, 64, 4, 4, 16, 256, 512, 128)


@dataclass(frozen=True, slots=True)
class Played:
    """A step and all that came of it."""

    cluster: Cluster
    plan: StepPlan
    timeline: Timeline
    report: TrainingReport


def step(strategy: str = "zero3", model: Transformer = TINY, **facts: Any) -> TrainingStep:
    """A step of the tiny model; sharding facts and step facts by name."""
    shards = {field.name: facts.pop(field.name) for field in fields(Sharding) if field.name in facts}
    given: dict[str, Any] = {"seq_len": 32, "micro_batch_size": 2, "collectives": "played"} | facts
    return TrainingStep(model, sharding=Sharding(strategy, **shards), **given)  # type: ignore[arg-type]


def play(
    made: TrainingStep,
    ranks: int,
    topology: Any = "star_100g",
    stragglers: Mapping[int, float] | None = None,
    jitter: Jitter | None = None,
) -> Played:
    """Play a step on so many ranks, without a limit on memory."""
    servers = STRATEGIES.find(made.sharding.strategy).servers(made.sharding)
    cluster = _cluster(json.dumps([topology, ranks, servers, sorted((stragglers or {}).items())]))
    plan = plan_step(cluster, made, steady=jitter is None)
    timeline = with_link_use(execute(plan.program, cluster, jitter=jitter or Jitter(), limit_memory=False))
    return Played(cluster, plan, timeline, summarize_step(plan, cluster, timeline))


@lru_cache(maxsize=16)
def _cluster(asked: str) -> Cluster:
    """Return the cluster that JSON describes; steps share it, as points of a sweep do."""
    topology, ranks, servers, stragglers = json.loads(asked)
    return build(topology, ranks, servers=servers, stragglers=dict(stragglers))


def sent(played: Played, *, without: str = "sum gradient norm") -> list[float]:
    """Bytes that each rank sends in the step, and behind them each server [B]."""
    place = {name: rank for rank, name in enumerate((*played.cluster.ranks, *played.cluster.servers))}
    total = [0.0] * len(place)
    for log in played.timeline.logs:
        if not log.collective.startswith((without, "hand over", "return")):
            for src, nbytes in zip(log.transfers.src.tolist(), log.nbytes.tolist(), strict=True):
                total[place[log.vertices[src]]] += nbytes
    return total
