"""How is a machine described with a faster network, or with more memory: by the same description with other figures?

The functions return the description with changed figures. Latencies and start-ups stay. The bandwidth that a library
reaches (`collectives`) grows with the network, because it was measured as a share of the network's bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simulator.basics import units
from simulator.cluster.gpu_file import load_gpu
from simulator.cluster.locate import read_named
from simulator.cluster.topology_file import Topology, load_topology

# Options to scale in builder `nodes`: every link on the way to other nodes (also the card's PCIe slot), and every
# link inside a node.
_BETWEEN_NODES: Final = ("nic_bandwidth", "pcie_bandwidth")
_IN_NODE: Final = ("link_bandwidth", "pcie_bandwidth")
# Caps of a library to scale, for ranks in a single node and for several nodes.
_CAPS: Final = {"one_node": ("rate_cap",), "nodes": ("cross_rate_cap",)}


def with_network(
    topology: str | Mapping[str, Any], base: Path | None, times: float, *, one_node: bool
) -> dict[str, Any] | None:
    """Return the keys of a topology file with `times` the network bandwidth.

    The result is None for a graph file, whose links cannot be told apart.

    Parameters
    ----------
    topology : str or mapping
        As for `build`.
    base : Path, optional
        Folder against which a relative path is read first.
    times : float
        Factor on the bandwidth.
    one_node : bool
        True: the ranks are in a single node, and its links are the network. False: the links between nodes.

    Examples
    --------
    >>> with_network("dgx_a100", None, 2.0, one_node=False)["options"]["nic_bandwidth"]
    '50000000000.0 B/s'
    """
    file = load_topology(topology, base)
    if file.builder is None:
        return None
    # In builders other than `nodes`, every bandwidth belongs to the network.
    nodes = (_IN_NODE if one_node else _BETWEEN_NODES) if file.builder == "nodes" else None
    data = dict(file.document.data)
    options = {
        name: _times(value, times)
        for name, value in file.options.items()
        if value is not None and name.endswith("bandwidth") and (nodes is None or name in nodes)
    }
    where = "one_node" if one_node else "nodes"
    return data | {
        "name": file.name,
        "gpu": _gpu(file),
        "options": {**data.get("options", {}), **options},
        "collectives": {
            operation: {**measured, where: _library(measured[where], times, _CAPS[where])}
            if measured.get(where)
            else measured
            for operation, measured in data.get("collectives", {}).items()
        },
    }


def with_memory(
    gpu: str | Mapping[str, Any] | None, topology: str | Mapping[str, Any], base: Path | None, times: float
) -> dict[str, Any]:
    """Return a GPU with `times` the memory, as the keys of a GPU file; `gpu` None means the topology's GPU.

    >>> with_memory("a100_sxm_80gb", "dgx_a100", None, 2.0)["hbm_bytes"]
    '171798691840 B'
    """
    file = load_topology(topology, base)
    name, folder = (gpu, base) if gpu is not None else (file.gpu or "", file.folder)
    data = read_named("gpu", name, folder)[1].data
    return {**data, "hbm_bytes": f"{int(times * load_gpu(name, folder).hbm_bytes)} B"}


def cards(topology: str | Mapping[str, Any], base: Path | None) -> int:
    """Return the number of network cards per node in a topology; 0 if none are described."""
    return int(load_topology(topology, base).options.get("nics") or 0)


def _library(measured: Mapping[str, Any], times: float, caps: tuple[str, ...]) -> dict[str, Any]:
    return {
        key: f"{times * units.parse(value, 'bandwidth')!r} B/s" if key in caps else value
        for key, value in measured.items()
    }


def _times(value: Any, times: float) -> Any:
    if isinstance(value, list | tuple):
        return [_times(number, times) for number in value]
    return f"{times * value!r} B/s"


def _gpu(file: Topology) -> Any:
    """Return the topology's GPU in a form for any folder: its relative path becomes absolute."""
    if isinstance(file.gpu, str) and file.folder is not None and (file.folder / file.gpu).is_file():
        return str((file.folder / file.gpu).resolve())
    return file.gpu
