"""Ground for tests of training steps: the strategies by kind, and what was sent."""

from __future__ import annotations

from simulator.step.spec import Updater
from simulator.step.strategies.strategy import STRATEGIES
from simulator.testing.steps import TINY, PlayedStep, play, step

__all__ = ["EVERY_STRATEGY", "SHARDED", "TINY", "WITHOUT_SERVERS", "PlayedStep", "play", "sent", "step"]

EVERY_STRATEGY = STRATEGIES.names()
# Ranks that sum their gradients among themselves, and those of them that update a part each.
WITHOUT_SERVERS = tuple(n for n in EVERY_STRATEGY if STRATEGIES.find(n).updater is not Updater.SERVERS)
SHARDED = tuple(n for n in EVERY_STRATEGY if STRATEGIES.find(n).updater is Updater.OWNERS)


def sent(played: PlayedStep, *, without: str = "sum gradient norm") -> list[float]:
    """Bytes that each rank sends in the step, and behind them each server [B]."""
    place = {name: rank for rank, name in enumerate((*played.cluster.ranks, *played.cluster.servers))}
    total = [0.0] * len(place)
    for log in played.timeline.logs:
        if not log.collective.startswith((without, "hand over", "return")):
            for src, nbytes in zip(log.transfers.src.tolist(), log.nbytes.tolist(), strict=True):
                total[place[log.vertices[src]]] += nbytes
    return total
