"""How do rates fall with the number of nodes: the table catalog/measured/collectives_over_nodes.csv, and plays of it.

Rule: every row names its source. One size over many nodes: what is told of a machine is its trend, not its constants.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from simulator.cluster.build import build
from simulator.collectives.algorithm import Request
from simulator.collectives.plan import Task, plan
from simulator.engine.play import play
from simulator.report.numbers.summary import busbw_factor

_FILE: Final = Path(__file__).parents[2] / "simulator" / "catalog" / "measured" / "collectives_over_nodes.csv"
_DTYPE: Final = "bfloat16"
_ITEMSIZE: Final = 2


@dataclass(frozen=True, slots=True)
class OverNodes:
    """Bus bandwidth of one operation over some nodes.

    Attributes
    ----------
    topology, operation : str
    nodes, ranks : int
    nbytes : int
        Of the whole array [B].
    mean, low, high : float
        As measured [B/s].
    source : str
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

    def played(self, *, known: bool = True) -> float:
        """The bus bandwidth that the shipped topology has, as nccl-tests defines it [B/s].

        `known` is whether it has its measured constants, or its links alone.
        """
        cluster, everyone = build(self.topology, self.ranks), tuple(range(self.ranks))
        if not known:
            cluster = replace(cluster, collectives={}, in_node={})
        request = Request(self.operation, self.ranks, self.nbytes // _ITEMSIZE)
        made = plan(cluster, Task(request, "auto", everyone, _DTYPE))
        time = made.predicted
        if time is None:
            time = play("auto", made.program, cluster, keep=(0,)).end
        return self._passed / time

    def seconds(self, rate: float) -> float:
        """The time that a bus bandwidth [B/s] takes [s]."""
        return self._passed / rate

    @property
    def _passed(self) -> float:
        """Bytes that bus bandwidths count [B]."""
        return busbw_factor(self.operation, self.ranks) * self.nbytes


def over_nodes() -> tuple[OverNodes, ...]:
    """Read the table."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        return tuple(map(_row, csv.DictReader(file)))


def _row(cells: dict[str, str]) -> OverNodes:
    mean, low, high = (float(cells[f"busbw_{name}_GBps"]) * 1e9 for name in ("mean", "low", "high"))
    nodes, ranks, nbytes = (int(cells[name]) for name in ("nodes", "ranks", "size_bytes"))
    return OverNodes(cells["topology"], cells["op"], nodes, ranks, nbytes, mean, low, high, cells["source"])
