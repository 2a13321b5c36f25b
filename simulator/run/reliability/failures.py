"""Which failures strike a cluster, when, and on which node? Kinds with rates, drawn for each node from its own stream.

Every node and kind of failure has a random stream of its own. A change to a checkpoint interval, to the number of nodes
or to another kind of failure leaves all other failures where they are: two settings are compared on the same failures.

Rates of published clusters, in failures for 1,000 nodes of 8 GPUs and a day: Llama 3 405B on 16,384 H100 3.8
(arXiv:2407.21783, 419 unplanned interruptions in 54 days), Meta's two research clusters of A100 6.5 and 2.3
(arXiv:2410.21680).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gamma
from typing import Final, Literal

import numpy as np

Effect = Literal["stops", "hangs", "slows"]
DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class FailureKind:
    """A kind of failure."""

    # What fails: "GPU", "network", "software".
    name: str
    rate: float  # failures for each node and second [1/s]
    # stops: the job ends with an error at once. hangs: nothing happens until the watchdog ends the job. slows: the node
    # goes on with less speed until somebody notices it.
    effect: Effect = "stops"
    # Weibull's shape of the times between failures: 1 exponential, below 1 failures in clusters.
    shape: float = 1.0
    # slows: speed of the job while the node is slow, relative to a healthy job.
    speed: float = 1.0
    # slows: time until somebody has repaired or replaced the node [s].
    lasts: float = 0.0
    # Whether a node is replaced after the failure; false for failures of software.
    replaces: bool = True


@dataclass(frozen=True, slots=True)
class FailureProcess:
    """Failures of the nodes of a cluster."""

    kinds: tuple[FailureKind, ...]  # what may fail
    # `lemons`, `lemon_factor`: Share of nodes that fail more often than others, and by which factor.
    lemons: float = 0.0
    lemon_factor: float = 10.0
    # `early_factor`, `early_time`: New machines fail `1 + early_factor` times as often; the excess falls by e in
    # `early_time` [s].
    early_factor: float = 0.0
    early_time: float = 7 * DAY

    def between_failures(self, nodes: int) -> float:
        """Return the mean time between failures that end a job on `nodes` nodes, old machines and lemons included
        [s].

        >>> kinds = FailureKind("GPU", 1 / DAY), FailureKind("fan", 1 / DAY, "slows")
        >>> FailureProcess(kinds).between_failures(nodes=4) / DAY
        0.25
        """
        rate = sum(kind.rate for kind in self.kinds if kind.effect != "slows")
        more = 1.0 + self.lemons * (self.lemon_factor - 1.0)
        return float("inf") if rate == 0 else 1.0 / (rate * more * nodes)


@dataclass(frozen=True, slots=True, order=True)
class Failure:
    """A failure: when [s], on which node, of which kind."""

    time: float
    node: int
    kind: int


def drawn_failures(process: FailureProcess, nodes: int, until: float, seed: int) -> tuple[Failure, ...]:
    """Return every failure of `nodes` nodes before a time [s], in order of time.

    Parameters
    ----------
    until : float
        End of the observation [s].
    seed : int
        Same seed, same failures.

    Notes
    -----
    An early failure is drawn in stretched time: with a rate 1 + f exp(-t / d), an expected number of failures x is
    reached at the time t for which t + f d (1 - exp(-t / d)) = x.
    """
    failures = []
    for number, kind in enumerate(process.kinds):
        if kind.rate <= 0.0:
            continue
        for node in range(nodes):
            stream = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, number, node))))
            lemon = process.lemons > 0 and stream.random() < process.lemons
            scale = 1.0 / (kind.rate * (process.lemon_factor if lemon else 1.0))
            times = _times(stream, kind.shape, scale, process, until)
            failures += [Failure(time, node, number) for time in times]
    return tuple(sorted(failures))


def _times(
    stream: np.random.Generator, shape: float, mean: float, process: FailureProcess, until: float
) -> Sequence[float]:
    """Return one node's failures of one kind before `until` [s]; `mean` is the mean time between them [s]."""
    # The mean of a Weibull distribution is scale x gamma(1 + 1/shape).
    scale = mean / gamma(1.0 + 1.0 / shape)
    most = until + process.early_factor * process.early_time
    times: list[float] = []
    stretched = scale * stream.weibull(shape)
    while stretched < most:
        time = _unstretched(stretched, process)
        if time >= until:
            break
        times.append(time)
        stretched += scale * stream.weibull(shape)
    return times


def _unstretched(stretched: float, process: FailureProcess) -> float:
    """Return the time at which the expected number of failures, times the mean time between them, is `stretched`."""
    if process.early_factor == 0.0:
        return stretched
    low, high = 0.0, stretched
    for _ in range(60):
        middle = (low + high) / 2
        reached = middle - process.early_factor * process.early_time * np.expm1(-middle / process.early_time)
        low, high = (middle, high) if reached < stretched else (low, middle)
    return high
