"""On which cluster is a measured sweep played: the named topology, or an assumed one with links as fast as the sweep?

Rule: everything that is assumed is listed, so that it can be reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_bandwidth
from simulator.calibration.machines.sweep import Sweep
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster, MachineCollective

# An assumed link is this many times as fast as the fastest row needs: the fitted cap shall bound flows, not the link.
_SPARE: Final = 1.25
# Assumed links inside a node are this many times as fast again where cards between nodes are the bottleneck.
_PLENTY: Final = 4.0
# A route through a switch, recalled for NVSwitch (1-2 us), and one to another node, measured with perftest on EDR.
_LATENCY: Final = "0.5 us"
_NIC_LATENCY: Final = "0.9 us"


@dataclass(frozen=True, slots=True)
class SweepCluster:
    """The cluster that a sweep is played on.

    Attributes
    ----------
    cluster : Cluster
    base : str or mapping
        The topology as `build` takes it.
    assumed : tuple of str
    """

    cluster: Cluster
    base: str | Mapping[str, Any]
    assumed: tuple[str, ...] = ()


def cluster_for(sweep: Sweep, topology: str | None) -> SweepCluster:
    """Build the cluster of a sweep.

    Raises
    ------
    ScenarioError
        Fewer GPUs than ranks; nodes that do not agree with the sweep's.
    """
    if topology is None:
        return _assumed(sweep)
    cluster = build(topology, sweep.world_size)
    if sweep.nodes is not None and cluster.nodes and len(cluster.nodes) != sweep.nodes:
        raise ScenarioError(
            f"{sweep.source}: {sweep.world_size} ranks on {sweep.nodes} hosts, "
            f"but {cluster.name} puts them into {len(cluster.nodes)}; give the topology that was measured"
        )
    placed = f"{len(cluster.nodes)} node(es), as {cluster.name} places {sweep.world_size} ranks"
    return SweepCluster(cluster, topology, () if sweep.nodes else (placed,))


def _assumed(sweep: Sweep) -> SweepCluster:
    nodes = sweep.nodes or 1
    if sweep.world_size % nodes:
        raise ScenarioError(
            f"{sweep.source}: {sweep.world_size} ranks on {nodes} hosts, not the same number on each; give a topology"
        )
    gpu = _gpu(sweep.gpu)
    keys = _star(sweep) if nodes == 1 else _nodes(sweep, nodes)
    keys["gpu"] = gpu or _any_gpu(sweep)
    where = "one switch" if nodes == 1 else f"{nodes} nodes with a card for each GPU"
    because = "" if sweep.nodes else ", because the sweep names no hosts"
    links = keys["options"].get("nic_bandwidth", keys["options"].get("bandwidth"))
    return SweepCluster(
        build(keys, sweep.world_size),
        keys,
        (
            f"{where}{because}",
            f"links of {links}, {_SPARE:g} times what the fastest row needs; name a topology for the real ones",
            f"GPU {gpu}" if gpu else "a GPU whose memory never holds back, since no known one is named",
        ),
    )


def _any_gpu(sweep: Sweep) -> dict[str, Any]:
    """A GPU file's keys; its HBM is so fast that reducing, which takes three times the arriving rate, costs nothing."""
    return {
        "vector_flops": {"float32": "10 TFLOP/s"},
        "hbm_bytes": "80 GB",
        "hbm_bandwidth": _rate(20 * _fastest(sweep)),
        "sms": 100,
        "host_bandwidth": "32 GB/s",
    }


def _star(sweep: Sweep) -> dict[str, Any]:
    return {
        "name": "measured_star",
        "builder": "star",
        "options": {"bandwidth": _rate(_SPARE * _fastest(sweep)), "latency": _LATENCY},
    }


def _nodes(sweep: Sweep, nodes: int) -> dict[str, Any]:
    size = sweep.world_size // nodes
    card = _SPARE * _fastest(sweep)
    if sweep.operation == "all_reduce":
        # With sums made inside each node first, each of a node's G cards carries S / G in a ring over the nodes.
        card = _SPARE * max(nbytes / time for nbytes, time in sweep.rows) * 2 * (nodes - 1) / sweep.world_size
    return {
        "name": "measured_nodes",
        "builder": "nodes",
        "options": {
            "gpus": size,
            "inside": "nvswitch",
            "link_bandwidth": _rate(_PLENTY * _fastest(sweep)),
            "link_latency": _LATENCY,
            "pcie_bandwidth": _rate(2 * card),
            "pcie_latency": "0 s",
            "nics": size,
            "nic_bandwidth": _rate(card),
            "nic_latency": _NIC_LATENCY,
        },
    }


def _fastest(sweep: Sweep) -> float:
    """Bytes per second through a rank's port in a ring or a direct exchange, in the fastest row."""
    n = sweep.world_size
    factor = 2 * (n - 1) / n if sweep.operation == "all_reduce" else 1.0
    return max(size / time for size, time in sweep.rows) * factor


def _rate(bandwidth: float) -> str:
    return format_bandwidth(bandwidth)


def _gpu(name: str) -> str | None:
    """The shipped GPU that a sweep names.

    Of several with the same chip it is the one of which every word is in the name, else an SXM module.
    """
    words = name.lower().replace("-", " ").replace("_", " ")
    known = [gpu for gpu in registry.names("gpu") if gpu.split("_")[0] in words.split()]
    fitting = [gpu for gpu in known if all(word in words for word in gpu.split("_")[1:])]
    modules = [gpu for gpu in known if "_sxm" in gpu]
    return next(iter(fitting or modules or known), None)


def with_machine(cluster: Cluster, operation: str, machine: MachineCollective) -> Cluster:
    """The same cluster, with these constants for this operation and none for others."""
    return replace(cluster, collectives={operation: machine})
