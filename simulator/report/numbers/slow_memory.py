"""Which slow GPU is a collective's bottleneck? A GPU that adds arriving data more slowly than its links deliver.

Example: a GPU at 1 % of its speed adds 6.8 GB/s, and its link delivers 12.5 GB/s. 15 MB to add take 1 ms longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.basics.units import format_bandwidth
from simulator.cluster.caps import HBM_PER_REDUCED_BYTE
from simulator.cluster.cluster import Cluster
from simulator.records.timeline import Timeline, TransferLog

# A delay below this share of the time is not worth a sentence.
_LEAST: Final = 0.05


@dataclass(frozen=True, slots=True)
class SlowMemory:
    """A slow rank whose memory limits a collective."""

    rank: int  # the rank
    adds: float  # rate at which the rank's memory adds arriving data [B/s]
    delivered: float  # rate at which the links could deliver the data [B/s]
    delay_s: float  # additional time to add the data at the lower rate [s]

    @property
    def text(self) -> str:
        """A sentence without a full stop on the rank and both rates."""
        return (
            f"the slow GPU of rank {self.rank} adds arriving data at {format_bandwidth(self.adds)}, and its links "
            f"could deliver {format_bandwidth(self.delivered)}"
        )


def slow_memory(timeline: Timeline, cluster: Cluster) -> SlowMemory | None:
    """Return the slow rank with the longest delay; None if no slow rank costs at least 5 % of the time."""
    slow = [rank for rank, speed in enumerate(cluster.speeds) if speed < 1]
    # Very large runs record a single link; reading their logs would simulate every transfer again.
    if not slow or len(timeline.links) < 2:
        return None
    delays = [delay for rank in slow for log in timeline.logs if (delay := _delay(log, cluster, rank)) is not None]
    longest = max(delays, key=lambda delay: delay.delay_s, default=None)
    return longest if longest is not None and longest.delay_s >= _LEAST * timeline.end else None


def _delay(log: TransferLog, cluster: Cluster, rank: int) -> SlowMemory | None:
    """Return the delay that a rank's memory causes in one collective; None if the links are slower."""
    vertex = cluster.ranks[rank]
    if vertex not in log.vertices:
        return None
    rows = np.flatnonzero(log.transfers.reduce & (log.transfers.dst == log.vertices.index(vertex)))
    sources = {log.vertices[src] for src in np.unique(log.transfers.src[rows]).tolist()}
    if not sources:
        return None
    adds = cluster.hbm_bandwidth(rank) / HBM_PER_REDUCED_BYTE
    delivered = max(cluster.route(source, vertex).bandwidth for source in sources)
    nbytes = float(log.nbytes[rows].sum())
    return None if adds >= delivered else SlowMemory(rank, adds, delivered, nbytes / adds - nbytes / delivered)
