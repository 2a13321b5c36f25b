"""How far are simulated collectives from a user's measured ones? Reads a CSV file, and simulates each line.

A line names a machine (`topology`, or `gpu`, whose usual machine is taken, also if the catalog has no such topology),
the ranks and the nodes that they fill equally, the operation, the size of the whole array and the measured time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from simulator.basics import dtypes, registry
from simulator.basics.errors import ScenarioError, in_lines, one_of, similar
from simulator.calibration.cells import Count, Number, among, entry, read_cells, read_records
from simulator.calibration.kernel_errors import error_figures
from simulator.calibration.machines.header import operation_of
from simulator.calibration.machines.sweep_parts import NODES, OPERATION, RANKS
from simulator.calibration.table import Table
from simulator.cluster.build import build, facts
from simulator.cluster.chassis import machine_of
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import OPERATIONS, CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.play import play
from simulator.report.tables.nccl_table import DTYPES

# Other names of columns, in sweeps and in tables of nccl-tests.
_COLUMNS: Final = {
    **dict.fromkeys(OPERATION, "op"), **dict.fromkeys(RANKS, "ranks"), **dict.fromkeys(NODES, "nodes"),
    "size": "size_bytes", "size_B": "size_bytes", "time_us_oop": "time_us", "time_us_derived": "time_us",
}  # fmt: skip
# Dtypes of nccl-tests that are simulated.
_DTYPES: Final = tuple(dict.fromkeys(name for name in DTYPES.values() if name not in ("uint32", "uint64")))
# Classes of array sizes in a summary: names, and the sizes from which they begin [B].
_SIZES: Final = (("from 64 MiB", 2**26), ("1 to 64 MiB", 2**20), ("below 1 MiB", 0))


def _operation(name: object) -> object:
    operation = operation_of(name) if isinstance(name, str) else None
    if operation is None:
        raise ValueError(one_of(OPERATIONS, name))
    return operation


class MeasuredCollective(BaseModel):
    """A measured collective of a machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    topology: Annotated[str, entry("topology")] = ""
    gpu: Annotated[str, entry("gpu")] = ""
    nodes: Count = 1
    ranks: Count
    op: Annotated[str, BeforeValidator(_operation)]
    size_bytes: Count  # size of the whole array, as nccl-tests counts it [B]
    time_us: Number
    dtype: Annotated[str, among(_DTYPES, DTYPES)] = "float32"
    owners_name: str = ""  # name of a machine that the catalog does not have; `gpu` says which one stands for it

    @model_validator(mode="before")
    @classmethod
    def _known(cls, cells: Any) -> Any:
        name = str(cells.get("topology", ""))
        if not (name and cells.get("gpu")) or registry.shipped("topology", name):
            return cells
        # A path, or a misspelt name, is refused; a machine under its owner's name is not.
        if "/" in name or similar(registry.names("topology"), name, 1):
            return cells
        return {key: cell for key, cell in cells.items() if key != "topology"} | {"owners_name": name}

    @model_validator(mode="after")
    def _placed(self) -> Self:
        if not (self.topology or self.gpu):
            raise ValueError("topology: is empty; every line needs a topology or a gpu")
        if self.ranks < 2 or self.ranks % self.nodes:
            raise ValueError(f"ranks: got {self.ranks}; must be at least 2, and fill {self.nodes} nodes equally")
        size = facts(self.machine).node_size
        if size is not None and self.ranks // self.nodes > size:
            raise ValueError(f"ranks: got {self.ranks} in {self.nodes} nodes; {self.machine} has {size} GPUs in a node")
        return self

    @property
    def machine(self) -> str:
        """Name of the topology."""
        return self.topology or machine_of(self.gpu)

    @property
    def sizes(self) -> str:
        """Name of the class of array sizes."""
        return next(name for name, begin in _SIZES if self.size_bytes >= begin)

    def simulated(self, cluster: Cluster) -> float:
        """Return the simulated time on a cluster of the row's ranks [s]."""
        elements = max(1, self.size_bytes // dtypes.find(self.dtype).itemsize)
        everyone = tuple(range(self.ranks))
        task = Task(CollectiveRequest(self.op, self.ranks, elements), "auto", everyone, self.dtype)
        planned = plan(cluster, task)
        return planned.predicted if planned.predicted is not None else play("auto", planned.program, cluster).end


@dataclass(frozen=True, slots=True)
class CollectivePrediction:
    """A measured collective beside its simulated time [s]."""

    row: MeasuredCollective
    simulated: float

    @property
    def error(self) -> float:
        """Relative error: simulated / measured - 1."""
        return self.simulated / (1e-6 * self.row.time_us) - 1.0

    def document(self) -> dict[str, Any]:
        """Return the row's columns with the machine, the simulated time [us] and the error."""
        times = {"machine": self.row.machine, "simulated_us": 1e6 * self.simulated, "error": self.error}
        return {**self.row.model_dump(), **times}


@dataclass(frozen=True, slots=True)
class CollectiveErrors:
    """Summary of the relative errors of a machine's operation in a class of array sizes."""

    machine: str
    operation: str
    sizes: str
    rows: int
    median: float  # of absolute errors
    most: float  # 90 % quantile of absolute errors
    bias: float  # median with signs


def collective_rows(path: Path) -> tuple[MeasuredCollective, ...]:
    """Return the measured collectives in a CSV file; columns that no field has are left out.

    Raises
    ------
    ScenarioError
        No such file, a column is missing, or a line for each fault.
    """
    if not path.is_file():
        raise ScenarioError(f"{path}: no such file; give a CSV file")
    lines = read_cells(path)
    column = {name: _COLUMNS.get(name, name) for name in lines.head}
    fields = MeasuredCollective.model_fields
    missing = [name for name, field in fields.items() if field.is_required() and name not in column.values()]
    if missing:
        raise ScenarioError(
            in_lines([f"{path} line {lines.line}: {name}: is missing; every line needs it" for name in missing])
        )
    used = {name: field for name, field in column.items() if field in fields}
    return read_records(path, lines, MeasuredCollective, used, "a collective")


def predicted(rows: Iterable[MeasuredCollective], advance: Callable[[], None]) -> tuple[CollectivePrediction, ...]:
    """Return measured collectives beside their simulated times; `advance` is called after each of them."""
    clusters: dict[tuple[str, str, int, int], Cluster] = {}
    outcomes = []
    for row in rows:
        key = row.machine, row.gpu, row.ranks, row.nodes
        if key not in clusters:
            # Ranks fill the first places of each node.
            size = facts(row.machine).node_size or row.ranks
            in_node = row.ranks // row.nodes
            places = [node * size + place for node in range(row.nodes) for place in range(in_node)]
            clusters[key] = build(row.machine, row.ranks, gpu=row.gpu or None, placement=places)
        outcomes.append(CollectivePrediction(row, row.simulated(clusters[key])))
        advance()
    return tuple(outcomes)


def collective_errors(outcomes: Sequence[CollectivePrediction]) -> tuple[CollectiveErrors, ...]:
    """Return a summary for each machine, operation and class of sizes, in the order of the rows."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.row.machine, outcome.row.op, outcome.row.sizes), []).append(outcome.error)
    return tuple(CollectiveErrors(*key, len(errors), *error_figures(errors)) for key, errors in groups.items())


def replaced(rows: Iterable[MeasuredCollective]) -> tuple[str, ...]:
    """Return a line for each machine that the catalog does not have, with the machine that was simulated for it."""
    machines = {row.owners_name: row.machine for row in rows if row.owners_name}
    return tuple(f"{name!r} is simulated as {machine}, the machine of its GPU" for name, machine in machines.items())


def errors_table(errors: Sequence[CollectiveErrors]) -> Table:
    """Return the table of the errors."""
    head = ("machine", "operation", "array", "rows", "median", "90 % below", "bias")
    lines = tuple(
        (
            group.machine, group.operation, group.sizes, f"{group.rows:,}", f"{group.median:.1%}",
            f"{group.most:.1%}", f"{group.bias:+.1%}",
        )
        for group in errors
    )  # fmt: skip
    return Table("error of measured collectives (simulated / measured - 1)", head, lines)
