"""What a scenario says, as frozen records whose fields are named like the keys of the file.

Rule: a record is valid and holds SI numbers; how the file wrote them is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from simulator.scenario.training_records import TrainingSpec as TrainingSpec

Engine = Literal["auto", "events", "compiled"]
Payload = Literal["auto"] | bool


@dataclass(frozen=True, slots=True)
class Jitter:
    """Jitter of kernels' times and latencies: each time is multiplied by exp(sigma z), z normal.

    Attributes
    ----------
    compute, latency : float
        sigma of kernels' times and of transfers' latencies; 0 for none.
    """

    compute: float = 0.0
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class Ecmp:
    """Choose among equal routes by a hash instead of by the destination's number.

    Attributes
    ----------
    hash : int
        Seed of the hash.
    """

    hash: int


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The cluster on which a scenario is played.

    Attributes
    ----------
    topology : str or mapping
        A shipped name, a path, or a topology written out.
    world_size : int
        Number of ranks.
    gpu : str or mapping or None
        A catalog name, a path, or a GPU written out; None for the topology's own.
    stragglers : mapping of rank to float
        Factor on the rank's FLOP/s and HBM bandwidth.
    link_factors : mapping of 'src->dst' to float
        Factor on a link's bandwidth.
    jitter : Jitter
    placement : tuple of int or None
        Rank r's GPU; None for the first ones in order.
    ecmp : Ecmp or None
    """

    topology: str | Mapping[str, Any]
    world_size: int
    gpu: str | Mapping[str, Any] | None = None
    stragglers: Mapping[int, float] = field(default_factory=dict)
    link_factors: Mapping[str, float] = field(default_factory=dict)
    jitter: Jitter = Jitter()
    placement: tuple[int, ...] | None = None
    ecmp: Ecmp | None = None


@dataclass(frozen=True, slots=True)
class Servers:
    """Parameter servers: how many, and whether they stand on their own or on the workers' hosts."""

    count: int = 1
    on: Literal["own", "workers"] = "own"


@dataclass(frozen=True, slots=True)
class BufferFusion:
    """Small tensors wait in a buffer and travel together.

    Attributes
    ----------
    buffer : int
        Sent when it is full [B].
    cycle : float
        Sent after this time at the latest [s].
    """

    buffer: int = 64 * 2**20
    cycle: float = 1e-3


@dataclass(frozen=True, slots=True)
class BucketFusion:
    """Tensors are packed, in order, into buckets of this size [B]."""

    buckets: int = 25 * 2**20


Fusion = BufferFusion | BucketFusion


@dataclass(frozen=True, slots=True)
class CollectiveSpec:
    """One collective operation.

    Attributes
    ----------
    operation : str
    size : int
        The whole array, in the convention of nccl-tests [B].
    algorithm : str
        A name of the catalog, or "auto": chosen when planning.
    dtype, reduction : str
    accumulate : {"payload", "float32"}
        In what partial sums are kept and travel.
    payload : bool or "auto"
        Whether real arrays move.
    servers : Servers or None
        None where the algorithm has none.
    rank_order : tuple of int or None
        Places in the group in the order of travel; None for 0, 1, 2, ...
    chunks : int or None
        Pipeline pieces; None for the algorithm's own choice.
    root : int
        Place in the group.
    group : tuple of int or None
        Ranks that take part; None for all.
    group_size : int or None
        Ranks of each node, for hierarchical and multi_ring; None for the topology's own nodes.
    tensors : tuple of int or None
        Sizes of the tensors that make up the array [B]; None for one array.
    fusion : BufferFusion or BucketFusion or None
        How tensors are merged; None for each on its own.
    """

    operation: str
    size: int
    algorithm: str = "auto"
    dtype: str = "float32"
    reduction: str = "sum"
    accumulate: Literal["payload", "float32"] = "payload"
    payload: Payload = "auto"
    servers: Servers | None = None
    rank_order: tuple[int, ...] | None = None
    chunks: int | None = None
    root: int = 0
    group: tuple[int, ...] | None = None
    group_size: int | None = None
    tensors: tuple[int, ...] | None = None
    fusion: Fusion | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing that a scenario is to tell of its points.

    Attributes
    ----------
    finding : str
        A name of `answer_shape.FINDINGS`.
    of : tuple of str
        Measures; empty for the finding's usual ones.
    along : str or None
        Dotted key of a threshold.
    between : tuple or None
        First and last value of `along`, as written.
    margin : float
        By which share a setting must be worse to count as worse.
    """

    finding: str
    of: tuple[str, ...] = ()
    along: str | None = None
    between: tuple[Any, Any] | None = None
    margin: float = 0.05


@dataclass(frozen=True, slots=True)
class Budget:
    """A whole training: its length and prices.

    Attributes
    ----------
    tokens, steps : float or None
        One of the two.
    price : float or None
        Of a GPU hour, in any currency.
    watts : float or None
        Of a GPU with its share of host, network and cooling [W].
    """

    tokens: float | None = None
    steps: float | None = None
    price: float | None = None
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """What a plan is asked for.

    Attributes
    ----------
    sequences : int
        Of a step, all ranks together.
    fix : mapping of name to value
        By the name of a choice (`plan_shape.KEYS`) what is chosen already.
    among : mapping of name to tuple
        By name the values to choose among.
    without : tuple of str
        Values to leave out.
    best : int
        How many settings are told.
    deadline : float or None
        Days that the training may take.
    sensitivity : bool
        Whether is told what other machines would change.
    """

    sequences: int
    fix: Mapping[str, Any] = field(default_factory=dict)
    among: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    best: int = 10
    deadline: float | None = None
    sensitivity: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question, and everything that is needed to play it.

    Attributes
    ----------
    name : str
    cluster : ClusterSpec
    collective : CollectiveSpec or None
    training : TrainingSpec or None
        One of the two is there, the other None.
    question : str
        The file's first comment.
    seed : int
    engine : {"auto", "events", "compiled"}
    compare, sweep : mapping of dotted key to tuple of values
        Axes; the values as they were written.
    plots : tuple of str
        Figures to draw.
    baseline : mapping of dotted key to value
        The compared setting that the others are compared with; the first where it is empty.
    answer : tuple of Asked
        What is told of the points; empty for what suits the axes.
    budget : Budget or None
    plan : PlanSpec or None
        What a plan is asked for; such a scenario has no points, for its training says only what all settings share.
    plotted_points : "all" or tuple of mapping of dotted key to value, or None
        Points that figures of a single point show, each by some of its settings; None for those that the sentence at
        the end speaks of.
    source : str
        The file as the user named it; "<dict>" for data from Python.
    base : Path
        Folder from which relative paths are read.
    warnings : tuple of str
        Keys that change no number in any of its points, one line each.
    """

    name: str
    cluster: ClusterSpec
    collective: CollectiveSpec | None = None
    training: TrainingSpec | None = None
    question: str = ""
    seed: int = 0
    engine: Engine = "auto"
    compare: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    sweep: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    plots: tuple[str, ...] = ()
    baseline: Mapping[str, Any] = field(default_factory=dict)
    answer: tuple[Asked, ...] = ()
    budget: Budget | None = None
    plan: PlanSpec | None = None
    plotted_points: Literal["all"] | tuple[Mapping[str, Any], ...] | None = None
    source: str = field(default="<dict>", compare=False)
    base: Path = field(default=Path(), compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Point:
    """One of the scenarios that compare and sweep multiply out to.

    Attributes
    ----------
    settings : mapping of dotted key to value
        What distinguishes it, as it was written.
    scenario : Scenario
        Without axes.
    """

    settings: Mapping[str, Any]
    scenario: Scenario
