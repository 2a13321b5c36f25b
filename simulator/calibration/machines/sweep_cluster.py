"""On which cluster is a measured sweep simulated? On the named topology, or on assumed links as fast as the sweep.

Every assumption is listed, and can be reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_bandwidth
from simulator.calibration.machines.measured_sweep import SweepTimes
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster, MachineCollective

# Speed of an assumed link, relative to the fastest row: the fitted cap shall bound flows, not the link.
_SPARE: Final = 1.25
# Further factor for assumed links inside a node, if cards between nodes are the bottleneck.
_PLENTY: Final = 4.0
# Latency through a switch, from memory for NVSwitch (1-2 us), and to another node, measured with perftest on EDR.
_LATENCY: Final = "0.5 us"
_NIC_LATENCY: Final = "0.9 us"


@dataclass(frozen=True, slots=True)
class SweepCluster:
    """The cluster on which a measured sweep is simulated, with the assumptions made."""

    cluster: Cluster  # the built cluster
    base: str | Mapping[str, Any]  # the topology, as accepted by `build`
    assumed: tuple[str, ...] = ()  # assumptions, as sentences


def cluster_for(sweep: SweepTimes, topology: str | None) -> SweepCluster:
    """Return the cluster on which to simulate a sweep: the named topology, or assumed links without a name.

    Raises
    ------
    ScenarioError
        Fewer GPUs than ranks, or other nodes than in the sweep.
    """
    if topology is None:
        return _assumed(sweep)
    cluster = build(topology, sweep.world_size)
    # The fit would compare sums over cards with sums inside a node.
    if sweep.nodes is not None and cluster.nodes and len(cluster.nodes) != sweep.nodes:
        raise ScenarioError(
            f"{sweep.source}: {sweep.world_size} ranks on {sweep.nodes} hosts, "
            f"but {cluster.name} places these ranks in {len(cluster.nodes)} nodes; give the measured topology"
        )
    remark = f"{len(cluster.nodes)} node(s), because {cluster.name} places {sweep.world_size} ranks in this way"
    return SweepCluster(cluster, topology, () if sweep.nodes else (remark,))


def _assumed(sweep: SweepTimes) -> SweepCluster:
    nodes = sweep.nodes or 1
    if sweep.world_size % nodes:
        raise ScenarioError(
            f"{sweep.source}: {sweep.world_size} ranks on {nodes} hosts, which is not a multiple; give a topology"
        )
    gpu = _gpu(sweep.gpu)
    keys = _star(sweep) if nodes == 1 else _nodes(sweep, nodes)
    keys["gpu"] = gpu or _any_gpu(sweep)
    where = "one switch" if nodes == 1 else f"{nodes} nodes with a card for each GPU"
    because = "" if sweep.nodes else ", because the sweep names no hosts"
    # Only one of both exists: `nodes` has cards, `star` has ports.
    links = keys["options"].get("nic_bandwidth", keys["options"].get("bandwidth"))
    return SweepCluster(
        build(keys, sweep.world_size),
        keys,
        (
            f"{where}{because}",
            f"links of {links}, {_SPARE:g} times the need of the fastest row; give a topology for the real links",
            f"GPU {gpu}" if gpu else "a GPU without memory limit, because the sweep has no known GPU",
        ),
    )


def _any_gpu(sweep: SweepTimes) -> dict[str, Any]:
    """Return the keys for an assumed GPU file, with HBM fast enough to make reductions (3x the arriving rate) free."""
    return {
        "vector_flops": {"float32": "10 TFLOP/s"},
        "hbm_bytes": "80 GB",
        "hbm_bandwidth": _rate(20 * _fastest(sweep)),
        "sms": 100,
        "host_bandwidth": "32 GB/s",
    }


def _star(sweep: SweepTimes) -> dict[str, Any]:
    return {
        "name": "measured_star",
        "builder": "star",
        "options": {"bandwidth": _rate(_SPARE * _fastest(sweep)), "latency": _LATENCY},
    }


def _nodes(sweep: SweepTimes, nodes: int) -> dict[str, Any]:
    size = sweep.world_size // nodes
    card = _SPARE * _fastest(sweep)
    if sweep.operation == "all_reduce":
        # Sums are formed inside each node first; each of the G cards in a node then carries S / G in a ring over nodes.
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


def _fastest(sweep: SweepTimes) -> float:
    """Return the highest measured rate through a rank's port over the rows, in a ring or a direct exchange [B/s]."""
    n = sweep.world_size
    factor = 2 * (n - 1) / n if sweep.operation == "all_reduce" else 1.0
    return max(size / time for size, time in sweep.rows) * factor


def _rate(bandwidth: float) -> str:
    return format_bandwidth(bandwidth)


def _gpu(name: str) -> str | None:
    """Return the catalog name of the GPU that a sweep's file names; None for an unknown GPU.

    If several GPUs have the named chip, choose the GPU with every word in the name; otherwise an SXM module.

    >>> _gpu("NVIDIA H100 80GB HBM3")
    'h100_sxm'
    """
    # "NVIDIA H100 80GB HBM3" and "h100-sxm" both become words.
    words = name.lower().replace("-", " ").replace("_", " ")
    gpus = [gpu for gpu in registry.names("gpu") if gpu.split("_")[0] in words.split()]
    fitting = [gpu for gpu in gpus if all(word in words for word in gpu.split("_")[1:])]
    modules = [gpu for gpu in gpus if "_sxm" in gpu]
    return next(iter(fitting or modules or gpus), None)


def with_machine(cluster: Cluster, operation: str, machine: MachineCollective) -> Cluster:
    """Return the cluster with a machine's constants for the collective `operation`, and without constants for other
    operations.
    """
    return replace(cluster, collectives={operation: machine})
