"""Does every link that a scenario slows down exist in a machine of the scenario? Known before any point is simulated.

A link may be missing in some points only: `gpu5->switch0` exists with 8 GPUs, and not with 4 GPUs. Such points fail by
themselves. A link that no point's machine has is a mistake in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.basics.errors import ScenarioError, SimulatorError, in_lines
from simulator.cluster.build import graph_size
from simulator.cluster.graph import links_named
from simulator.run.scenario_cluster import build_cluster
from simulator.scenario.build_cluster import placed, servers_of
from simulator.scenario.records import Point, Scenario

# Most vertices and links of all machines that are built for this check: about a second.
_MOST_PARTS: Final = 100_000


def check_link_names(source: str, points: Sequence[Point]) -> None:
    """Raise ScenarioError, with a line for each name, if links in `cluster.link_factors` exist in no point's machine.

    Nothing is checked if the machines are large, or if a machine cannot be built for another reason; the simulation
    then reports the fault.

    Parameters
    ----------
    source : str
        Name of the scenario file, for the message.
    points : sequence of Point
        Points of the scenario.
    """
    slowed = [point.scenario for point in points if point.scenario.cluster.link_factors]
    # Points often share a machine: build each machine once.
    machines = {repr((_healthy(case).cluster, case.base, servers_of(case))): case for case in slowed}
    try:
        if sum(map(_parts, machines.values())) > _MOST_PARTS:
            return
        graphs = [build_cluster(_healthy(case)).graph for case in machines.values()]
    except SimulatorError:
        return
    faults: dict[str, str] = {}
    for case in slowed:
        for name, factor in case.cluster.link_factors.items():
            if name not in faults and not any(links_named(graph, name) for graph in graphs):
                faults[name] = f"{source}: {_fault(case, name, factor)}"
    if faults:
        raise ScenarioError(in_lines(list(faults.values())))


def _healthy(scenario: Scenario) -> Scenario:
    """Return a scenario whose links all have their own speed."""
    return scenario.replaced(cluster=scenario.cluster.replaced(link_factors={}))


def _parts(scenario: Scenario) -> int:
    """Return the number of vertices and links of a scenario's machine."""
    spec = scenario.cluster
    gpus = max(placed(spec, scenario.base)) + 1
    return graph_size(spec.topology, gpus, servers=servers_of(scenario), base=scenario.base).parts


def _fault(scenario: Scenario, name: str, factor: float) -> str:
    """Return the message of a machine that lacks a link; the message proposes links with similar names."""
    try:
        build_cluster(scenario.replaced(cluster=scenario.cluster.replaced(link_factors={name: factor})))
    except ScenarioError as error:
        return str(error)
    return ""
