"""Which keys a scenario file has, and what each may hold by itself: the pydantic models (shapes) of its mappings.

Rule: one class a mapping, one line a key; `None` means that the key was left out. Defaults that depend on other keys
are filled in when the records are made.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.fields import FieldInfo

from simulator.basics import dtypes
from simulator.basics.errors import one_of
from simulator.basics.sections import SECTIONS
from simulator.scenario import plot_names, reading
from simulator.scenario.answer_shape import BudgetShape, FindingEntry, FindingShape
from simulator.scenario.field_types import Count, LargeCount, LeftOut, Rank, Shape, stored_dtypes
from simulator.scenario.layer_policies import LayersShape
from simulator.scenario.learning_shape import LearningShape, LossScalingShape
from simulator.scenario.plan_shape import PlanShape
from simulator.scenario.training_shape import (
    ExpertsShape,
    OffloadShape,
    OptimizerShape,
    ParallelismShape,
    PrecisionShape,
    ShardingShape,
    TrainingShape,
)


def _algorithms() -> tuple[str, ...]:
    from simulator.collectives.algorithm import ALGORITHMS

    return ("auto", *ALGORITHMS.names())


def _operations() -> tuple[str, ...]:
    from simulator.collectives.algorithm import OPERATIONS

    return OPERATIONS


# Seeds are stored in JSON and in numpy; both are exact up to 2^53 and 2^64, so the smaller bound rules.
Seed = Annotated[int, reading.whole(0, 2**53)]
Factor = Annotated[float, reading.number(positive=True, most=1e6)]
# exp(10 z) spans 17 orders of magnitude between z = -2 and 2: beyond that nothing is a model of anything.
Sigma = Annotated[float, reading.number(positive=False, most=10.0)]
LinkName = Annotated[str, reading.text(r"\S(?:.*\S)?->\S(?:.*\S)?", "the name of a link, such as 'gpu0->switch0'")]
Name = Annotated[
    str,
    reading.text(
        r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", "at most 100 letters, digits, '_', '-' or '.', since a folder is named so"
    ),
]


class JitterShape(Shape):
    """Jitter of kernels' times and latencies."""

    compute: Sigma = Field(default=0.0, description="Spread of kernels' times: each is multiplied by exp(sigma z).")
    latency: Sigma = Field(
        default=0.0, description="Spread of transfers' latencies: each is multiplied by exp(sigma z)."
    )


class EcmpShape(Shape):
    """How one of several equal routes is chosen."""

    hash: Seed = Field(description="Seed of the hash that chooses among equal routes.")


class ClusterShape(Shape):
    """On what it is played."""

    topology: Annotated[Any, reading.named_or_written_out("topology", "the name of a topology")] = Field(
        description="A shipped topology's name, a path, or a topology written out."
    )
    world_size: LargeCount = Field(description="Number of ranks, one a GPU; 1k is 1000.")
    gpu: Annotated[Any, reading.named_or_written_out("gpu", "the name of a GPU")] | None = Field(
        default=None, description="A GPU of the catalog, a path, or a GPU written out; the topology's own if left out."
    )
    stragglers: dict[Rank, Factor] = Field(default={}, description="Rank: factor on its FLOP/s and HBM bandwidth.")
    link_factors: dict[LinkName, Factor] = Field(default={}, description="'src->dst': factor on the link's bandwidth.")
    jitter: JitterShape = Field(default=JitterShape(), description="Luck, drawn from the seed.")
    placement: list[Rank] | None = Field(
        default=None, description="GPU of each rank; the first ones in order if left out."
    )
    ecmp: EcmpShape | None = Field(default=None, description="Choose among equal routes by a hash.")


class ServersShape(Shape):
    """Parameter servers."""

    count: Count = Field(default=1, description="How many parameter servers share the array.")
    on: Annotated[str, reading.choice(("own", "workers"))] = Field(
        default="own", description="On machines of their own, or on workers: one in each node before a second."
    )


class FusionShape(Shape):
    """How tensors are merged: buffer and cycle, or buckets."""

    buffer: Annotated[int, reading.size(1)] | None = Field(default=None, description="Sent when this full.")
    cycle: Annotated[float, reading.duration()] | None = Field(
        default=None, description="Sent after this time at the latest."
    )
    buckets: Annotated[int, reading.size(1)] | None = Field(
        default=None, description="Tensors packed in order into this size."
    )


class CollectiveShape(Shape):
    """One collective operation."""

    operation: Annotated[str, reading.known(_operations)] = Field(description="What is done.")
    algorithm: Annotated[str, reading.known(_algorithms)] = Field(default="auto", description="How it is done.")
    size: Annotated[int, reading.size(0)] | None = Field(
        default=None, description="The whole array; may be left out where `tensors` are given."
    )
    dtype: Annotated[str, reading.known(stored_dtypes, dtypes.find)] = Field(
        default="float32", description="Of the elements."
    )
    reduction: Annotated[str, reading.choice(("sum", "average", "max", "min", "product"))] = Field(
        default="sum", description="How elements of several ranks become one."
    )
    accumulate: Annotated[str, reading.choice(("payload", "float32"))] = Field(
        default="payload", description="Partial sums are kept in the payload's dtype, or in float32."
    )
    payload: Annotated[Any, reading.choice(("auto", True, False))] = Field(
        default="auto", description="Whether real arrays move; auto: while world_size x size is at most 256 MiB."
    )
    servers: ServersShape | None = Field(default=None, description="For parameter_server.")
    rank_order: list[Rank] | None = Field(default=None, description="Order of travel, for ring and chain.")
    chunks: Count | None = Field(default=None, description="Pipeline pieces, for algorithms that have them.")
    root: Rank | None = Field(
        default=None, description="Place in the group, for broadcast, reduce, scatter and gather."
    )
    group: list[Rank] | None = Field(default=None, description="Ranks that take part; all if left out.")
    group_size: Count | None = Field(default=None, description="Ranks of each node, for hierarchical and multi_ring.")
    tensors: list[Annotated[int, reading.size(0)]] | None = Field(
        default=None, description="Sizes of the tensors, in order."
    )
    fusion: FusionShape | None = Field(default=None, description="How tensors are merged.")


def _axis_key(value: Any) -> str:
    if isinstance(value, str) and value in axis_keys():
        return value
    raise ValueError(f"unknown key; {one_of(axis_keys(), value)}")


AxisKey = Annotated[str, reading.ValueReader(_axis_key, lambda: {"enum": list(axis_keys())})]
Axes = dict[AxisKey, list[Any]]


def _partial_settings(value: Any) -> str | list[dict[str, Any]]:
    if value == "all":
        return "all"
    if not isinstance(value, list):
        raise ValueError(f"got {reading.shown(value)}; must be all, or a list such as '[{{cluster.world_size: 8}}]'")
    settings: list[dict[str, Any]] = _adapted(list[dict[AxisKey, Any]]).validate_python(value)
    return settings


PlotName = Annotated[str, reading.choice(plot_names.names())]


class PlotsShape(Shape):
    """Which figures are drawn, and which points those of a single point show."""

    kinds: list[PlotName] | None = Field(default=None, description="Figures to draw; all that there are if left out.")
    points: Annotated[
        str | list[dict[str, Any]] | None,
        reading.ValueReader(
            _partial_settings, lambda: {"anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "object"}}]}
        ),
    ] = Field(
        default=None,
        description="Points that figures of a single point show: all, or settings of some; the best one and the first "
        "setting if left out.",
    )


def _plots(value: Any) -> list[str] | PlotsShape:
    """Read a mapping as one, and all else as the list of kinds, so that faults are those of the form that was meant."""
    return (
        PlotsShape.model_validate(value) if isinstance(value, dict) else _adapted(list[PlotName]).validate_python(value)
    )


@cache
def _adapted(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation, config=ConfigDict(strict=True))


class ScenarioShape(Shape):
    """What is played, on what, and what is varied."""

    name: Name = Field(description="What the run is called; its folder is named so.")
    question: Annotated[str, reading.text(r"[^\x00-\x1f\x7f]*", "one line of text")] | None = Field(
        default=None, description="The question that it answers; in a file rather the first comment."
    )
    seed: Seed = Field(default=0, description="Of everything that is drawn by chance.")
    cluster: ClusterShape = Field(description="On what it is played.")
    collective: Annotated[CollectiveShape | None, LeftOut(CollectiveShape)] = Field(
        default=None, description="One collective operation; or else `training`."
    )
    training: Annotated[TrainingShape | None, LeftOut(TrainingShape)] = Field(
        default=None, description="One training step; or else `collective`."
    )
    engine: Annotated[str, reading.choice(("auto", "events", "compiled"))] = Field(
        default="auto", description="What plays it."
    )
    compare: Axes = Field(default={}, description="Key: values to set side by side.")
    sweep: Axes = Field(default={}, description="Key: values to go through.")
    plots: Annotated[
        list[str] | PlotsShape,
        reading.ValueReader(
            _plots,
            lambda: {"anyOf": [_adapted(list[PlotName]).json_schema(), PlotsShape.model_json_schema()]},
        ),
    ] = Field(
        default=[],
        description="Figures to draw as files, a list or a mapping; none if left out, for report.html shows them all.",
    )
    baseline: dict[AxisKey, Any] = Field(
        default={}, description="Key of `compare`: value that the others are compared with; the first if left out."
    )
    answer: list[Annotated[FindingShape, FindingEntry()]] = Field(
        default=[], description="What is told of the points, in this order; what suits the axes if left out."
    )
    budget: Annotated[BudgetShape | None, LeftOut(BudgetShape)] = Field(
        default=None, description="How long and at what prices is trained: days, GPU hours, cost and energy are told."
    )

    plan: Annotated[PlanShape | None, LeftOut(PlanShape)] = Field(
        default=None, description="Search the fastest layout of the training instead of playing one."
    )

    @property
    def plotted(self) -> PlotsShape:
        """The plots as a mapping, in whatever form they were written."""
        return PlotsShape(kinds=self.plots) if isinstance(self.plots, list) else self.plots

    @property
    def kind(self) -> str:
        """Which of KINDS it is, once it is known to be one."""
        return "collective" if self.training is None else "training"


_MAPPINGS: Final[dict[tuple[str, ...], type[Shape]]] = {
    (): ScenarioShape,
    ("cluster",): ClusterShape,
    ("cluster", "jitter"): JitterShape,
    ("cluster", "ecmp"): EcmpShape,
    ("collective",): CollectiveShape,
    ("collective", "servers"): ServersShape,
    ("collective", "fusion"): FusionShape,
    ("training",): TrainingShape,
    ("training", "parallelism"): ParallelismShape,
    ("training", "parallelism", "experts"): ExpertsShape,
    ("training", "sharding"): ShardingShape,
    ("training", "precision"): PrecisionShape,
    ("training", "optimizer"): OptimizerShape,
    ("training", "offload"): OffloadShape,
    ("training", "loss_scaling"): LossScalingShape,
    ("training", "learning"): LearningShape,
}
# What a policy's name, or a list of plots, may stand instead of has no dotted keys: it is given whole.
_INNER: Final[dict[tuple[str, ...], type[Shape]]] = {
    ("training", "activation_checkpointing"): LayersShape,
    ("plots",): PlotsShape,
    ("budget",): BudgetShape,
    ("plan",): PlanShape,
}
# What a scenario plays, exactly one of these, and how it is called in a sentence.
KINDS: Final = MappingProxyType({"collective": "a collective", "training": "a training step"})
_NO_AXES: Final = (
    "name", "question", "compare", "sweep", "plots", "baseline", "answer", "budget", "plan",
)  # fmt: skip


def fields(at: tuple[str | int, ...]) -> tuple[str, ...]:
    """Keys that the mapping at this place may have; empty where it has names of its own."""
    shape = (_MAPPINGS | _INNER).get(at)  # type: ignore[arg-type]
    return tuple(shape.model_fields) if shape else ()


@cache
def axis_keys() -> tuple[str, ...]:
    """Dotted keys that compare, sweep and --set may name, whole sections among them, in the file's order."""
    dotted = [(*at, name) for at, shape in _MAPPINGS.items() for name in shape.model_fields]
    return tuple(".".join(key) for key in dotted if ".".join(key) not in _NO_AXES)


@cache
def adapter(dotted: str) -> TypeAdapter[Any]:
    """What reads a value of one of `axis_keys` by itself; of a section the keys that a setting names."""
    if dotted in SECTIONS:
        return TypeAdapter(_setting_of(dotted))
    bare = _field(dotted).annotation
    config = None if isinstance(bare, type) and issubclass(bare, BaseModel) else ConfigDict(strict=True)
    return TypeAdapter(_annotation(dotted), config=config)


def _field(dotted: str) -> FieldInfo:
    *at, name = dotted.split(".")
    return _MAPPINGS[tuple(at)].model_fields[name]


def _annotation(dotted: str) -> Any:
    field = _field(dotted)
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _setting_of(section: str) -> type[Shape]:
    """Make the shape of a setting of a section: any of its keys, and of theirs by dotted names."""
    names = [key.removeprefix(f"{section}.") for key in axis_keys() if key.startswith(f"{section}.")]
    keys: dict[str, Any] = {
        # A name with a dot is no field of a class.
        f"key{number}": (_annotation(f"{section}.{name}"), Field(default_factory=lambda: None, alias=name))
        for number, name in enumerate(names)
    }
    return create_model(f"{section.capitalize()}Setting", __base__=Shape, **keys)


def default_of(dotted: str) -> Any:
    """Value that one of `axis_keys` has where nobody writes it."""
    return _field(dotted).get_default(call_default_factory=True)


def takes_lists(dotted: str) -> bool:
    """Whether a value of one of `axis_keys` may be a list.

    Examples
    --------
    >>> takes_lists("cluster.placement"), takes_lists("cluster.world_size")
    (True, False)
    """
    schema = adapter(dotted).json_schema()
    return any(form.get("type") == "array" for form in (schema, *schema.get("anyOf", ())))
