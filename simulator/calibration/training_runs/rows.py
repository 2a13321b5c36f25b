"""Which training runs were measured: the model, the GPUs, the settings, how fast it was, and who printed it?

Rule: facts as their source printed them. The training step and the cluster that follow from them are built here, and
nothing is played.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from simulator.basics import registry
from simulator.basics.document import load
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.cluster.gpu_file import load_gpu
from simulator.errors import UnknownNameError
from simulator.model.load import load_model
from simulator.step.framework import Framework
from simulator.step.spec import Precision, Sharding, TrainingStep

_TABLE: Final = Path(__file__).parents[2] / "catalog" / "measured" / "training.csv"
_GIB: Final = 2**30
# Beyond this many micro-batches each takes as long as the one before, so these are played and the rest are added up.
MOST_PLAYED: Final = 3
# Name, among changes of a GPU's constants, of the best matmul's share of the peak.
BEST_MATMUL: Final = "best_matmul"


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured training run.

    Attributes
    ----------
    table : str
        "foundry", "torchtitan" or "nanotron".
    line : int
        Its line in the source, or its number there.
    framework, model, gpu, topology : str
        Catalog names: of the constants that it is played with, and of the machine that comes nearest.
    seq_len, gpus, micro_batch_size, accumulation : int
    matmul, reduce : str
        Dtypes of matmuls' inputs and of gradients on the wire.
    sharding : str
    reshard : bool
    checkpointing : str or int
    compiled : bool
    tokens_per_s : float
        Of all GPUs.
    peak : float or None
        Peak memory of one GPU [B]; None where it was not printed.
    source : str
    """

    table: str
    line: int
    framework: str
    model: str
    gpu: str
    topology: str
    seq_len: int
    gpus: int
    micro_batch_size: int
    accumulation: int
    matmul: str
    reduce: str
    sharding: str
    reshard: bool
    checkpointing: str | int
    compiled: bool
    tokens_per_s: float
    peak: float | None
    source: str

    @property
    def step_time(self) -> float:
        """Measured [s]."""
        return self.seq_len * self.micro_batch_size * self.accumulation * self.gpus / self.tokens_per_s

    @property
    def eight_bit(self) -> bool:
        """Whether its matmuls take eight-bit numbers."""
        return self.matmul.startswith("float8")

    @property
    def group(self) -> str:
        """The part of the report that it belongs to."""
        chip = "A100" if self.gpu.startswith("a100") else "H100"
        if self.eight_bit:
            return f"{self.table}, {chip}, fp8"
        return f"{self.table}, {chip}, {'one node' if self.gpus <= 8 else 'several nodes'}"

    @property
    def name(self) -> str:
        """What ran, in a few words."""
        policy = {"none": "", "full": " ckpt"}.get(str(self.checkpointing), f" ckpt {self.checkpointing}")
        compiled = " compiled" if self.compiled else ""
        chip = self.gpu.split("_")[0]
        dtype = " fp8" if self.eight_bit else ""
        sharding = "" if self.sharding == Sharding().strategy else f" {self.sharding}"
        return (
            f"{self.model} {chip} x{self.gpus} seq {self.seq_len} mb {self.micro_batch_size}x{self.accumulation}"
            f"{sharding}{policy}{compiled}{dtype}"
        )


def measured(table: str | None = None) -> tuple[MeasuredRow, ...]:
    """Read the table, or one of its parts.

    Raises
    ------
    UnknownNameError
        No such part.

    Examples
    --------
    >>> len(measured("torchtitan"))
    9
    """
    with _TABLE.open(encoding="utf-8", newline="") as lines:
        rows = [_row(row) for row in csv.DictReader(line for line in lines if not line.startswith("#"))]
    names = sorted({row.table for row in rows})
    if table is not None and table not in names:
        raise UnknownNameError("--table", table, names)
    return tuple(row for row in rows if table in (None, row.table))


def _row(row: Mapping[str, str]) -> MeasuredRow:
    policy = row["checkpointing"]
    return MeasuredRow(
        table=row["table"],
        line=int(row["line"]),
        framework=row["framework"],
        model=row["model"],
        gpu=row["gpu"],
        topology=row["topology"],
        seq_len=int(row["seq_len"]),
        gpus=int(row["gpus"]),
        micro_batch_size=int(row["micro_batch_size"]),
        accumulation=int(row["accumulation"]),
        matmul=row["matmul"],
        reduce=row["reduce"],
        sharding=row["sharding"],
        reshard=row["reshard"] == "true",
        checkpointing=int(policy) if policy.isdigit() else policy,
        compiled=row["compiled"] == "true",
        tokens_per_s=float(row["tokens_per_s"]),
        peak=float(row["peak_gib"]) * _GIB if row["peak_gib"] else None,
        source=row["source"],
    )


def step_of(row: MeasuredRow, framework: Framework, accumulation: int | None = None) -> TrainingStep:
    """The row's training step, with so many micro-batches."""
    return TrainingStep(
        model=load_model(row.model, row.seq_len),
        seq_len=row.seq_len,
        micro_batch_size=row.micro_batch_size,
        accumulation=row.accumulation if accumulation is None else accumulation,
        sharding=Sharding(row.sharding, reshard_after_forward=row.reshard),
        precision=Precision(grads="float32", reduce=row.reduce, matmul=row.matmul),
        checkpointing=row.checkpointing,
        compiled=row.compiled,
        framework=framework,
    )


Changes = tuple[tuple[str, float], ...]


@cache
def cluster_of(gpu: str, gpus: int, changes: Changes = (), topology: str = "") -> Cluster:
    """The cluster of a row, from what is known of it; `changes` are constants of its GPU with other values."""
    topology = topology or ("dgx_a100" if gpu.startswith("a100") else "dgx_h100")
    if not changes:
        return build(topology, gpus, gpu=_gpu(gpu))
    base = _gpu(gpu)
    data = dict(load(registry.find("gpu", base)).data) if isinstance(base, str) else base
    other = dict(changes)
    if BEST_MATMUL in other:
        share = other.pop(BEST_MATMUL)
        peak = load_gpu(base).peak_flops
        data["best_matmul_flops"] = {
            dtype: f"{share * peak[dtype] / 1e12} TFLOP/s" for dtype in data["best_matmul_flops"]
        }
    return build(topology, gpus, gpu=data | {"constants": {**data.get("constants", {}), **other}})


def _gpu(name: str) -> str | dict[str, Any]:
    """A catalog name, or the H100 with slower memory and less power that torchtitan's tables name."""
    if name in registry.names("gpu"):
        return name
    return dict(load(registry.find("gpu", "h100_sxm")).data) | {
        "product": "NVIDIA H100, 96 GB HBM2e, 500 W",
        "hbm_bytes": "96 GB",
        "hbm_bandwidth": "2.4 TB/s",
        "power": 500,
    }
