"""Parts that are no part of the package: a small file of each kind, and a scenario that names it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from simulator.basics import foreign_code

TRAINING: Final = {"model": "gpt2_small", "seq_len": 128, "gradient_accumulation_steps": 4}
CLUSTER: Final = {"topology": "star_100g", "world_size": 4}


@dataclass(frozen=True, slots=True)
class OwnPart:
    """A file of a part.

    Attributes
    ----------
    file : str
        Its name.
    source : str
        Its content.
    constant : str
        Name of its record.
    key : str
        Dotted key that names the part.
    data : mapping
        A scenario without the key.
    simulated : bool
        Whether the part changes the simulation; False for parts of the report, which a list names.
    """

    file: str
    source: str
    constant: str
    key: str
    data: Mapping[str, Any]
    simulated: bool = True

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py")

    def scenario(self, name: object, **keys: Any) -> dict[str, Any]:
        """Return the scenario's data with a value of the key; `keys` are further keys of the scenario."""
        data: dict[str, Any] = {"name": "own", **self.data, **keys}
        if not self.simulated:
            return {**data, self.key: [name]}
        *at, last = self.key.split(".")
        inner = data
        for step in at:
            inner[step] = dict(inner.get(step, {}))
            inner = inner[step]
        inner[last] = name
        return data

    def write(self, folder: Path) -> Path:
        path = folder / self.file
        path.write_text(self.source)
        return path


@contextmanager
def installed(site: Path, entries: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that is installed as a package with entry points {name: value}, as an installer writes it."""
    about = site / "own_parts-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1.0\n")
    lines = ["[cluster_simulator.plugins]", *(f"{name} = {value}" for name, value in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(site)
    _forget()
    yield site
    _forget()
    for value in entries.values():
        module = value.partition(":")[0]
        sys.modules.pop(module, None)
        sys.modules.pop(module.partition(".")[0], None)


def _forget() -> None:
    foreign_code._installed.cache_clear()
    foreign_code._of_entry.cache_clear()


# All forward passes, then all backward passes, the last micro-batch first.
SCHEDULE: Final = OwnPart(
    "lifo.py",
    '''"""GPipe with the backward passes in reverse order: the last micro-batch first."""

from simulator.step.pipelines.schedule import Pass, PipelineSchedule, Placement, Work, at_least_one


def order(shape):
    micros = range(shape.micro_batches)
    return tuple(
        (
            *((Pass(Work.FORWARD, rank, micro),) for micro in micros),
            *((Pass(Work.BACKWARD, rank, micro),) for micro in reversed(micros)),
        )
        for rank in range(shape.ranks)
    )


SCHEDULE = PipelineSchedule(
    name="lifo",
    placement=Placement.LOOP,
    chunks=1,
    splits_backward=False,
    order=order,
    refusal=at_least_one,
    bubble=lambda shape, times: (shape.ranks - 1) * (times.forward + times.backward),
    held=lambda shape, rank: shape.micro_batches,
)
''',
    "SCHEDULE",
    "training.parallelism.schedule",
    {"cluster": CLUSTER, "training": {**TRAINING, "parallelism": {"pp": 4}}},
)
# Each of the micro-batches sends 2 (N - 1) elements for each parameter.
SHARDING: Final = OwnPart(
    "synced.py",
    '''"""DDP without `no_sync`: every micro-batch sums its gradients."""

from simulator.records.operation import Exchange, NumericAction
from simulator.step.spec import Gathering, GradientSync, Updater
from simulator.step.strategies.ddp import Bucketing
from simulator.step.strategies.strategy import Strategy


def plan(builder, passes):
    def summed(bucket):
        act = NumericAction(Exchange.ALL_REDUCE, bucket.names, bucket.micro)
        dtype = passes.step.precision.reduce
        return builder.communicate(
            f"sum {bucket.name}", "all_reduce", bucket.elements, dtype, [bucket.done], bucket.scope, act
        )

    return Bucketing(passes, summed, each=True)


def volume(units, sharding, accumulation, ranks):
    return 2 * (ranks - 1) * accumulation * sum(unit.trained for unit in units)


STRATEGY = Strategy(
    name="synced",
    shards=frozenset(),
    updater=Updater.EVERY_RANK,
    gathering=Gathering.NOT_NEEDED,
    sending=GradientSync.EVERY,
    options=frozenset({"bucket_size"}),
    operations=("all_reduce",),
    volume=volume,
    plan=plan,
)
''',
    "STRATEGY",
    "training.sharding.strategy",
    {"cluster": CLUSTER, "training": TRAINING},
)
# A row of 4 GPUs has 3 cables; between its ends are 3 hops.
BUILDER: Final = OwnPart(
    "row.py",
    '''"""GPUs in a row: each has a cable to its neighbours."""

from itertools import pairwise

from simulator.cluster.graph import add_cable, add_vertex, empty, require
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.quantity import Bandwidth, Seconds


def row(world_size: int, *, bandwidth: Bandwidth, latency: Seconds):
    """Join n GPUs in a row.

    Parameters
    ----------
    world_size : int
    bandwidth : float
        Bandwidth of each cable, per direction [B/s].
    latency : float
        Latency of each cable [s].

    Returns
    -------
    Graph
        n GPUs that forward, n - 1 cables.
    """
    require(world_size >= 1, f"got world_size {world_size}; a row has at least one GPU")
    graph = empty()
    names = [add_vertex(graph, f"gpu{i}", "gpu", forwards=True) for i in range(world_size)]
    for left, right in pairwise(names):
        add_cable(graph, left, right, bandwidth, latency)
    return graph


def limits(**_):
    return TopologyLimits()


def size(world_size, servers, **_):
    return GraphSize(world_size, world_size - 1)
''',
    "row",
    "cluster.topology.builder",
    {
        "cluster": {
            "topology": {"options": {"bandwidth": "10 GB/s", "latency": "1 us"}, "gpu": "a100_sxm_80gb"},
            "world_size": 4,
        },
        "collective": {"operation": "broadcast", "algorithm": "chain", "size": "1 MB", "chunks": 1},
    },
)
# AMSGrad keeps a third state for each parameter: the largest second moment so far.
OPTIMIZER: Final = OwnPart(
    "amsgrad.py",
    '''"""AMSGrad: Adam that divides by the largest second moment so far."""

from simulator.step.optimizers.optimizer import Optimizer, SeparateKernels

OPTIMIZER = Optimizer(
    "amsgrad",
    states=3,  # momentum, variance, largest variance
    separate=SeparateKernels(kernels=9, parameters=4, gradients=2, numbers=17, temporaries=1),
    source="Reddi, Kale & Kumar, ICLR 2018, algorithm 2; kernels of PyTorch's Adam with amsgrad",
    update=(
        ("p", "p"),  # weight decay
        ("mg", "m"),
        ("v", "v"),
        ("vg", "v"),
        ("xv", "x"),  # the maximum
        ("x", "d"),
        ("d", "d"),
        ("d", "d"),
        ("pmd", "p"),
    ),
)
''',
    "OPTIMIZER",
    "training.optimizer.name",
    {"cluster": CLUSTER, "training": TRAINING},
)
COLLECTIVE: Final = {
    "cluster": CLUSTER,
    "collective": {"operation": "all_reduce", "size": "1 MiB"},
    "compare": {"collective.algorithm": ["ring", "tree"]},
}
PLOT: Final = OwnPart(
    "idle.py",
    '''"""How long does each rank wait? One bar per rank, for one simulated point."""

from simulator.basics.intervals import length
from simulator.basics.units import format_time
from simulator.report.plots import style
from simulator.report.plots.plot import CloseUpPlot


def figure(close_up):
    timeline = close_up.timeline
    ranks = sorted({span.rank for span in timeline.spans})
    busy = [length([(s.start, s.end) for s in timeline.spans if s.rank == rank]) for rank in ranks]
    idle = [timeline.end - time for time in busy]
    with style.applied():
        drawn = style.new_figure(6, 3)
        axes = drawn.add_subplot()
        axes.bar(ranks, idle, color=style.GREY)
        axes.set(xlabel="rank", ylabel="idle time [s]")
        style.set_title(drawn, f"Rank {ranks[idle.index(max(idle))]} waits longest: {format_time(max(idle))}")
    return drawn


PLOT = CloseUpPlot(figure=figure)
''',
    "PLOT",
    "plots",
    COLLECTIVE,
    simulated=False,
)
FINDING: Final = OwnPart(
    "spread.py",
    '''"""How far apart are the slowest and the fastest point?"""

from simulator.findings.found import Finding, FindingResult


def find(compared, asked):
    measure = compared.measure("time")
    done = [row for row in compared.rows if row.report is not None]
    if len(done) < 2:
        return None
    done.sort(key=lambda row: measure.value(row.report))
    times = [measure.value(row.report) for row in (done[0], done[-1])]
    sentence = f"The slowest point takes {times[1] / times[0]:.2f} times as long as the fastest"
    return FindingResult("spread", (sentence,), {"ratio": times[1] / times[0]}, (done[0].index, done[-1].index))


FINDING = Finding("spread", find)
''',
    "FINDING",
    "answer",
    COLLECTIVE,
    simulated=False,
)
PARTS: Final = {
    "schedule": SCHEDULE,
    "sharding": SHARDING,
    "topology_builder": BUILDER,
    "optimizer": OPTIMIZER,
    "plot": PLOT,
    "finding": FINDING,
}
