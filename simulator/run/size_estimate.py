"""How much memory and time do a point's cluster, program and schedule need? Estimated from sizes, before any is built.

The estimate takes a second at any size and is good to a factor of three; `cost_estimate.py` estimates more closely,
from plans. Points with ordinary size get no estimate.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from simulator.basics.errors import ScenarioWarning, TooLargeError
from simulator.basics.host_memory import shortage_text
from simulator.basics.units import format_duration, format_memory
from simulator.cluster.build import facts, graph_size
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.algorithm_files import find_algorithm
from simulator.collectives.constants import runs
from simulator.records.chunks import timed_sizes
from simulator.records.transfers import BYTES_WRITTEN_OUT
from simulator.run.collective import refuse_large_payload
from simulator.run.cost_parts import FEW_RANKS, Share
from simulator.run.scenario_cluster import build_cluster
from simulator.scenario.build_cluster import placed, servers_of
from simulator.scenario.payload import request_of
from simulator.scenario.records import ClusterSpec, Scenario

# Points with fewer parts, ranks and pieces take at most seconds and get no estimate.
_FEW_PARTS: Final = 100_000
_FEW_CHUNKS: Final = 4096
# Measured on one of two cores (docs/speed.md) [s].
_A_RANK: Final = 90e-6  # planning and simulating a collective's rank
_A_ROW: Final = 12e-6  # a transfer without repetitions
_A_ROUND: Final = 500e-6  # a round with such transfers
_A_WRITTEN_TRANSFER: Final = 0.1e-6  # a repeated transfer, if written out
# Memory for each of these [B].
_BYTES_A_RANK: Final = 2_000
_BYTES_A_ROW: Final = 1_000
# Longer simulations and drawings start with a warning [s]; simulations also show progress.
_LONG: Final = 60.0
_LONG_DRAWING: Final = 10.0


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """Estimated memory and time on this machine for simulating a point, as shares of its parts."""

    shares: tuple[Share, ...] = ()  # empty for a point of ordinary size

    @property
    def nbytes(self) -> float:
        """Total memory that simulating the point takes on this machine [B]."""
        return sum(share.nbytes for share in self.shares)

    @property
    def seconds(self) -> float:
        """Total time that simulating the point takes on one core [s]."""
        return sum(share.seconds for share in self.shares)

    def refuse_larger_than_memory(self) -> None:
        """Raise TooLargeError if this machine lacks memory for the point; the message names the largest share."""
        short = shortage_text(self.nbytes)
        if short:
            most = max(self.shares, key=lambda share: share.nbytes)
            raise TooLargeError(
                f"{most.asked} ({most.made_of}) would take about {format_duration(self.seconds)} and {short}; "
                f"{most.remedy}, or use a machine with more memory"
            )

    @property
    def warning(self) -> str:
        """A warning text if simulating the point takes long; otherwise empty."""
        return _warning([self], "simulating", _LONG)


def size_of(scenario: Scenario) -> SizeEstimate:
    """Return the estimated memory and time for simulating a scenario with a single point."""
    return SizeEstimate(
        (*_of_cluster(scenario.cluster, servers_of(scenario), scenario.base), *_of_program(scenario, {}))
    )


def refuse_too_large(scenario: Scenario) -> None:
    """Raise TooLargeError if this machine's memory cannot hold a point's simulation, before any part is built.

    `build` refuses graphs that are too large by themselves.
    """
    refuse_large_payload(scenario)
    # Without a large program, the check inside `build` suffices.
    program = _of_program(scenario, {})
    if program:
        cluster = _of_cluster(scenario.cluster, servers_of(scenario), scenario.base)
        SizeEstimate((*cluster, *program)).refuse_larger_than_memory()


def announced(scenarios: Iterable[Scenario]) -> str:
    """Return a warning text if simulating these points takes long; otherwise an empty text.

    Raises
    ------
    TooLargeError
        This machine can hold none of these points.
    """
    # Points often share a cluster: estimate it once.
    clusters: dict[str, tuple[Share, ...]] = {}
    sizes, planned = [], dict[str, int]()
    for scenario in scenarios:
        servers = servers_of(scenario)
        key = repr((scenario.cluster, scenario.base, servers))
        if key not in clusters:
            clusters[key] = _of_cluster(scenario.cluster, servers, scenario.base)
        sizes.append(SizeEstimate((*clusters[key], *_of_program(scenario, planned))))
    # Points beyond this machine's memory fail one by one later, unless every point does.
    possible = [size for size in sizes if not shortage_text(size.nbytes)]
    if sizes and not possible:
        min(sizes, key=lambda size: size.nbytes).refuse_larger_than_memory()
    return _warning(possible, "simulating", _LONG)


def warn_of_size(scenarios: Iterable[Scenario]) -> None:
    """Issue a Python warning, at the line of the user's call, if simulating these points takes long.

    Raises
    ------
    TooLargeError
        This machine can hold none of these points.
    """
    line = announced(scenarios)
    if line:
        warnings.warn(line, ScenarioWarning, stacklevel=3)


def _warning(sizes: Sequence[SizeEstimate], doing: str, long: float) -> str:
    """Return a warning that names the slowest share, if the total time of the estimates is at least `long` [s]."""
    seconds = sum(size.seconds for size in sizes)
    if seconds < long:
        return ""
    most = max((share for size in sizes for share in size.shares), key=lambda share: share.seconds)
    points = f" {len(sizes):,} points" if len(sizes) > 1 else ""
    return (
        f"{most.asked} ({most.made_of}): {doing}{points} takes about {format_duration(seconds)} on one core and "
        f"{format_memory(max(size.nbytes for size in sizes))} of memory; to be faster, {most.remedy}"
    )


def announced_topology(topology: str, ranks: int) -> str:
    """Return a warning text if building a topology's graph for `ranks` GPUs takes long; otherwise an empty text.

    Raises
    ------
    TooLargeError
        This machine cannot hold the graph.
    """
    # Drawing takes about another graph's time, and a third of its memory.
    shares = _of_cluster(ClusterSpec(topology=topology, world_size=ranks), 0, Path())
    size = SizeEstimate(
        tuple(replace(share, nbytes=4 / 3 * share.nbytes, seconds=2 * share.seconds) for share in shares)
    )
    size.refuse_larger_than_memory()
    return _warning([size], "drawing", _LONG_DRAWING)


def _of_cluster(spec: ClusterSpec, servers: int, base: Path) -> tuple[Share, ...]:
    """Return the shares of memory and time for the cluster's graph; empty for an ordinary size."""
    gpus = max(placed(spec, base)) + 1
    graph = graph_size(spec.topology, gpus, servers=servers, base=base)
    if graph.parts < _FEW_PARTS:
        return ()
    cause, remedy = f"cluster.world_size: {gpus:,} ranks", "take fewer ranks"
    if servers > gpus:
        cause, remedy = f"{servers:,} servers", "take fewer servers"
    elif facts(spec.topology, base).max_ranks is not None:
        name = spec.topology if isinstance(spec.topology, str) else "the topology"
        cause, remedy = f"cluster.topology: all GPUs of {name}", "take a smaller topology"
    made_of = f"{graph.vertices:,} vertices and {2 * graph.cables:,} links"
    return (Share(cause, made_of, remedy, graph.nbytes, graph.seconds),)


def _of_program(scenario: Scenario, planned: dict[str, int]) -> tuple[Share, ...]:
    """Return the shares of memory and time for the collective, the training step and the real training.

    `planned` has the schedule rows of steps already planned on few ranks, for the other points.
    """
    if scenario.training is None:
        return _of_collective(scenario)
    # A collective does not wait for the parts of a step.
    from simulator.run.step_size import of_real_training, of_step

    return (*of_step(scenario, planned), *of_real_training(scenario))


def _of_collective(scenario: Scenario) -> tuple[Share, ...]:
    """Return the shares of memory and time for a scenario's collective; empty for an ordinary size."""
    spec, ranks = scenario.collective, scenario.cluster.world_size
    if spec is None:
        return ()
    request = request_of(spec, ranks)
    if max(ranks, request.servers) < FEW_RANKS and (request.chunks or 1) < _FEW_CHUNKS:
        return ()
    each = Share(
        f"cluster.world_size: {ranks:,} ranks", "each with its routes", "take fewer ranks",
        ranks * _BYTES_A_RANK, ranks * _A_RANK,
    )  # fmt: skip
    name, request = _on_nodes(scenario, request)
    # Transfers of the other choices of `auto` depend on the cluster and cannot be counted without it.
    if name == "auto" or ("nodes" in find_algorithm(name, scenario.base).options and not request.nodes):
        return (each,)
    schedule = find_algorithm(name, scenario.base).plans[spec.operation](request)
    nbytes, seconds = schedule.rows * _BYTES_A_ROW, schedule.rows * _A_ROW
    if spec.chunks:
        cause = f"collective.chunks: {spec.chunks:,} pieces over {ranks:,} ranks"
        made_of = f"{schedule.rows:.3g} transfers in {spec.chunks:,} rounds"
        return (each, Share(cause, made_of, "take fewer pieces", nbytes, seconds + spec.chunks * _A_ROUND))
    cause, remedy = (
        (f"collective.algorithm: {name} over {ranks:,} ranks"),
        "take another algorithm, or fewer ranks",
    )
    if request.servers > ranks:
        cause, remedy = f"collective.servers.count: {request.servers:,} servers", "take fewer servers"
    made_of = f"{schedule.rows:.3g} transfers"
    # A ring has three rounds with a transfer per rank and repeats these rounds. The engine writes out repetitions only
    # if their chunks have unequal sizes, and always writes transfers without repetitions.
    if schedule.rows <= 4 * request.world_size:
        if not np.ptp(timed_sizes(schedule, request.elements)):
            return (each,)
        transfers = schedule.length()
        nbytes, seconds = transfers * BYTES_WRITTEN_OUT, transfers * _A_WRITTEN_TRANSFER
        made_of = f"{transfers:.3g} transfers of unequal sizes"
        remedy = f"take a size that is divisible into {schedule.chunks:,} equal parts, or fewer ranks"
    return (each, Share(cause, made_of, remedy, nbytes, seconds))


def _on_nodes(scenario: Scenario, request: CollectiveRequest) -> tuple[str, CollectiveRequest]:
    """Return the algorithm of a scenario's collective, and the request with full nodes, without building the cluster.

    The algorithm that a measured machine runs replaces `auto`. The request stays without nodes if nodes differ.
    """
    spec, cluster = scenario.collective, scenario.cluster
    if spec is None:
        raise TypeError("a scenario of a collective has a collective")
    node = facts(cluster.topology, scenario.base).node_size
    if request.nodes or not node or cluster.placement or spec.group or cluster.world_size % node:
        return spec.algorithm, request
    firsts = range(0, cluster.world_size, node)
    request = replace(request, nodes=tuple(tuple(range(first, first + node)) for first in firsts))
    if spec.algorithm != "auto":
        return spec.algorithm, request
    # The constants of two nodes are the constants of many.
    two = ClusterSpec(topology=cluster.topology, world_size=2 * node, gpu=cluster.gpu)
    runs_of = runs(build_cluster(scenario.replaced(cluster=two)), request, tuple(range(2 * node)))
    if runs_of is None:
        return "auto", request
    if request.chunks is None and "chunks" in ALGORITHMS.find(runs_of.algorithm).options:
        request = replace(request, chunks=runs_of.segments(spec.nbytes))
    return runs_of.algorithm, request
