"""How do rates fall with the number of nodes? The table catalog/measured/collectives_over_nodes.csv, and simulations.

Every row names its source. A single size over many nodes (`BUSY`) shows a machine's trend, not its constants; several
sizes over racks (`RACKS`) show both.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from simulator.cluster.build import build
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.play import play
from simulator.report.numbers.summary import busbw_factor

_FILE: Final = Path(__file__).parents[2] / "simulator" / "catalog" / "measured" / "collectives_over_nodes.csv"
# Machines in the table.
BUSY: Final = "hf_h100"
RACKS: Final = "gb200_nvl72"
# Links of the GPUs of the busy cluster, as in catalog/measured/library.csv.
_LINKS: Final = "NVLink 4"
_DTYPE: Final = "bfloat16"
_ITEMSIZE: Final = 2


@dataclass(frozen=True, slots=True)
class OverNodes:
    """Bus bandwidth of an operation over several nodes.

    Attributes
    ----------
    topology, operation : str
        Machine and collective.
    nodes, ranks : int
        Number of nodes and ranks.
    nbytes : int
        Size of the whole array [B].
    mean, low, high : float
        Measured mean and band [B/s].
    source : str
        Origin of the row.
    """

    topology: str
    operation: str
    nodes: int
    ranks: int
    nbytes: int
    mean: float
    low: float
    high: float
    source: str

    def played(self, basis: Literal["measured", "model", "ratings"] = "measured") -> float:
        """Return the shipped topology's simulated bus bandwidth, as defined by nccl-tests [B/s].

        By its measured constants, by the library's model as if no links such as its GPUs' were known, or by the links'
        ratings.
        """
        cluster, everyone = build(self.topology, self.ranks), tuple(range(self.ranks))
        if basis != "measured":
            library = replace(cluster.library, without=_LINKS) if cluster.library and basis == "model" else None
            cluster = replace(cluster, collectives={}, in_node={}, library=library)
        request = CollectiveRequest(self.operation, self.ranks, self.nbytes // _ITEMSIZE)
        made = plan(cluster, Task(request, "auto", everyone, _DTYPE))
        time = made.predicted
        # `predicted` is the closed form; without one, simulate.
        if time is None:
            time = play("auto", made.program, cluster, keep=(0,)).end
        return self._passed / time

    def seconds(self, rate: float) -> float:
        """Return the time for a bus bandwidth in B/s [s]."""
        return self._passed / rate

    @property
    def _passed(self) -> float:
        """Bytes counted by a bus bandwidth [B]."""
        return busbw_factor(self.operation, self.ranks) * self.nbytes


def over_nodes(topology: str) -> tuple[OverNodes, ...]:
    """Read the rows of a machine."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        return tuple(row for row in map(_row, csv.DictReader(file)) if row.topology == topology)


def _row(cells: dict[str, str]) -> OverNodes:
    mean, low, high = (float(cells[f"busbw_{name}_GBps"]) * 1e9 for name in ("mean", "low", "high"))
    nodes, ranks, nbytes = (int(cells[name]) for name in ("nodes", "ranks", "size_bytes"))
    return OverNodes(cells["topology"], cells["op"], nodes, ranks, nbytes, mean, low, high, cells["source"])
