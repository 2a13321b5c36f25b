"""Which keys may a scenario have, and what may each hold? The frozen records of a scenario, with a field for each key.

A file is validated key by key into these records, and the rest of the package reads the same records. Rules between
keys are checked in *_rules.py; `load.py` fills in the defaults that depend on other keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeGuard

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, TypeAdapter, create_model
from pydantic.fields import FieldInfo

from simulator.basics import dtypes, reading
from simulator.basics.errors import one_of
from simulator.basics.sections import SECTIONS
from simulator.basics.spec import (
    Count,
    Frozen,
    LargeCount,
    Late,
    Listed,
    Omittable,
    Rank,
    RanksOr,
    Servers,
    Spec,
    stored_dtypes,
)
from simulator.cluster.changes import EventSpec, LinkName
from simulator.collectives.algorithm_reading import algorithm_reader
from simulator.scenario import plot_names
from simulator.scenario.answer_spec import BudgetSpec, FindingEntry, FindingSpec
from simulator.scenario.plan_spec import PlanSpec

# A collective does not wait for the parts of a training step: they are imported with the first `training`.
if TYPE_CHECKING:
    from simulator.step.training_spec import TrainingSpec
else:
    TrainingSpec = Any


def _operations() -> tuple[str, ...]:
    # Imported late, because it imports every algorithm.
    from simulator.collectives.algorithm import OPERATIONS

    return OPERATIONS


def _training() -> type[TrainingSpec]:
    from simulator.step.training_spec import TrainingSpec

    return TrainingSpec


# JSON holds integers exactly up to 2^53, numpy seeds up to 2^64; the smaller bound counts.
Seed = Annotated[int, reading.whole(0, 2**53)]
Factor = Annotated[float, reading.number(positive=True, most=1e6)]
# exp(10 z) spans 17 orders of magnitude between z = -2 and z = 2. A larger sigma models nothing.
Sigma = Annotated[float, reading.number(positive=False, most=10.0)]
Name = Annotated[
    str,
    reading.text(
        r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}",
        ("at most 100 letters a to z or A to Z, digits, '_', '-' or '.', because a folder gets this name"),
    ),
]


Engine = Literal["auto", "events", "compiled"]
Payload = Literal["auto"] | bool  # True and False are words of YAML, "auto" is text


class JitterSpec(Spec):
    """Random factors on kernel times and latencies (keys of `jitter`)."""

    compute: Sigma = Field(
        default=0.0, description="Spread sigma of kernel times: each time is multiplied by exp(sigma z)."
    )
    latency: Sigma = Field(
        default=0.0, description="Spread sigma of transfer latencies: each latency is multiplied by exp(sigma z)."
    )


class EcmpSpec(Spec):
    """The choice among several equal routes (keys of `ecmp`)."""

    hash: Seed = Field(description="Seed of the hash for the choice among equal routes.")


# A placement may be written in short as the number of GPUs used on each node.
PLACEMENT: Final = RanksOr("gpus_per_node")


class ClusterSpec(Spec):
    """The machine to simulate (keys of `cluster`)."""

    # Content is checked by `cluster/build.py`, for files and for inline topologies.
    topology: Annotated[Any, reading.named_or_written_out("topology", "the name of a topology")] = Field(
        description="Topology: a shipped name, a path, or the topology's keys."
    )
    world_size: LargeCount = Field(description="Number of ranks, each on its own GPU; 1k is 1000.")
    gpu: Annotated[Any, reading.named_or_written_out("gpu", "the name of a GPU")] | None = Field(
        default=None, description="GPU: a catalog name, a path, or the GPU's keys; the topology's GPU if omitted."
    )
    # The bound against world_size is a rule in cluster_rules.py.
    stragglers: dict[Rank, Factor] = Field(
        default={}, description="Factor on the FLOP/s and HBM bandwidth of a rank, by rank."
    )
    link_factors: dict[LinkName, Factor] = Field(
        default={},
        description=(
            "Factor on the bandwidth of a link, by link ('src->dst', one direction of a cable) or shell pattern "
            "('gpu0->*', '*switch0*'). Names: `simulator show TOPOLOGY --links`."
        ),
    )
    jitter: JitterSpec = Field(default=JitterSpec(), description="Random variation of times, drawn from the seed.")
    placement: Annotated[tuple[int, ...] | Frozen, PLACEMENT] | None = Field(
        default=None,
        description=(
            "GPU number of each rank, or the number of GPUs used on each node (gpus_per_node), the first ones of each "
            "node in turn; the first GPUs in order if omitted."
        ),
    )
    ecmp: EcmpSpec | None = Field(default=None, description="Choice among equal routes by a hash.")
    transport: Annotated[Literal["rdma", "tcp"], reading.choice(("rdma", "tcp"))] | None = Field(
        default=None,
        description="Transport of collectives between nodes: rdma, or tcp at half of the line rate; the topology's if "
        "omitted. Another than the topology's replaces what was measured over its nodes by the library's model.",
    )
    events: Listed[EventSpec] = Field(
        default=(), description="Links, GPUs and nodes that slow down or fail at a time during the step."
    )
    storage: Annotated[float, reading.rate()] | None = Field(
        default=None, description="Rate at which a storage behind the network takes checkpoints; none if omitted."
    )
    watchdog: Annotated[float, reading.duration()] | None = Field(
        default=None, description="Time after which a collective that waits ends the job; never if omitted."
    )


class ServersSpec(Spec):
    """Number and place of the parameter servers (keys of a collective's `servers`)."""

    count: Servers = Field(
        default=1, description="Number of parameter servers, each with a share of the array; all: one per worker."
    )
    on: Annotated[Literal["own", "workers"], reading.choice(("own", "workers"))] = Field(
        default="own",
        description="Place of the servers: separate machines (own), or workers, one server per node before a second.",
    )


# Horovod's defaults: a buffer is sent at this size [B], or after this time [s].
BUFFER: Final = 64 * 2**20
CYCLE: Final = 1e-3


class FusionSpec(Spec):
    """Merging of tensors into a buffer, sent when full or after a time, or into buckets (keys of `fusion`)."""

    buffer: Annotated[int, reading.size(1)] | None = Field(
        default=None, description="Size at which the buffer is sent."
    )
    cycle: Annotated[float, reading.duration()] | None = Field(
        default=None, description="Longest time until the buffer is sent."
    )
    buckets: Annotated[int, reading.size(1)] | None = Field(
        default=None, description="Size of a bucket; buckets take tensors in order."
    )


class CollectiveSpec(Spec):
    """A single collective operation (keys of `collective`)."""

    operation: Annotated[str, reading.known(_operations, listed_by="simulator list operations")] = Field(
        description="Collective operation."
    )
    algorithm: Annotated[str, algorithm_reader()] = Field(
        default="auto", description="Algorithm: ring, tree, ..., auto, or the path of an own algorithm."
    )
    # None while reading; `build_records.completed` fills in the tensors' sum.
    size: Annotated[int, reading.size(0)] | None = Field(
        default=None, description="Size of the whole array; optional with `tensors`."
    )
    dtype: Annotated[str, reading.known(stored_dtypes, dtypes.find)] = Field(
        default="float32", description="Data type of the elements."
    )
    reduction: Annotated[str, reading.choice(("sum", "average", "max", "min", "product"))] = Field(
        default="sum", description="Reduction of the ranks' elements."
    )
    accumulate: Annotated[Literal["payload", "float32"], reading.choice(("payload", "float32"))] = Field(
        default="payload", description="Dtype of partial sums: the payload's dtype, or float32."
    )
    payload: Annotated[Payload, reading.choice(("auto", True, False))] = Field(
        default="auto", description="Whether real arrays move; auto: while world_size x size is at most 256 MiB."
    )
    servers: ServersSpec | None = Field(default=None, description="Servers of the algorithm parameter_server.")
    # None below means "not written". Rules refuse these keys under algorithms without use for them.
    rank_order: Listed[Rank] | None = Field(default=None, description="Rank order of the algorithms ring and chain.")
    chunks: Count | None = Field(default=None, description="Number of pipeline pieces, for pipelined algorithms.")
    root: Rank | None = Field(
        default=None, description="Position of the root in the group, for broadcast, reduce, scatter and gather."
    )
    group: Listed[Rank] | None = Field(default=None, description="Participating ranks; every rank if omitted.")
    group_size: Count | None = Field(
        default=None, description="Number of ranks per node, for hierarchical and multi_ring."
    )
    tensors: Listed[Annotated[int, reading.size(0)]] | None = Field(
        default=None, description="Sizes of the tensors, in order."
    )
    fusion: FusionSpec | None = Field(default=None, description="Fusion of tensors before sending.")

    @property
    def nbytes(self) -> int:
        """Size of the whole array [B]: the given size, or the sum of the tensors' sizes."""
        return self.size if self.size is not None else sum(self.tensors or ())


def _axis_key(value: Any) -> str:
    if is_axis_key(value):
        return value
    raise ValueError(f"unknown key; {one_of(axis_keys(), value)}")


# A function in place of a Literal: the keys are listed from the classes below, when a value is read.
AxisKey = Annotated[str, reading.ValueReader(_axis_key, lambda: {"enum": list(axis_keys())})]
Axes = dict[AxisKey, Listed[Any]]


def _partial_settings(value: Any) -> str | list[dict[str, Any]]:
    if value == "all":
        return "all"
    if not isinstance(value, list):
        raise ValueError(f"got {reading.shown(value)}; must be all, or a list such as '[{{cluster.world_size: 8}}]'")
    settings: list[dict[str, Any]] = _adapted(list[dict[AxisKey, Any]]).validate_python(value)
    return settings


PlotName = Annotated[str, reading.part(reading.choice(plot_names.names()))]


class PlotsSpec(Spec):
    """Plots to draw, and the points for plots of a single point (keys of `plots`)."""

    kinds: Listed[PlotName] | None = Field(
        default=None, description="Figures to draw: names, or paths of own plots; all if omitted."
    )
    points: Annotated[
        str | list[dict[str, Any]] | None,
        reading.ValueReader(
            _partial_settings, lambda: {"anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "object"}}]}
        ),
    ] = Field(
        default=None,
        description=(
            "Points for figures of a single point: all, or a list of settings; the best point and the first setting "
            "if omitted."
        ),
    )


def _plots(value: Any) -> tuple[str, ...] | PlotsSpec:
    """Return the validated value of `plots`: a mapping as PlotsSpec, anything else as a tuple of plot names."""
    return (
        PlotsSpec.model_validate(value)
        if isinstance(value, dict)
        else _adapted(Listed[PlotName]).validate_python(value)
    )


@cache
def _adapted(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation, config=ConfigDict(strict=True))


class Scenario(Spec):
    """A scenario: the machine, the collective or training step, the axes, and the outputs."""

    name: Name = Field(description="Name of the run, also used for its folder.")
    question: Annotated[str, reading.text(r"[^\x00-\x1f\x7f]*", "one line of text")] = Field(
        default="",
        description="Question that the scenario answers; a file usually has the question as its first comment.",
    )
    seed: Seed = Field(default=0, description="Random seed.")
    cluster: ClusterSpec = Field(description="Machine to simulate.")
    collective: Annotated[CollectiveSpec | None, Omittable(CollectiveSpec)] = Field(
        default=None, description="A collective operation to simulate; alternative to `training`."
    )
    training: Annotated[TrainingSpec | None, Late(_training)] = Field(
        default=None, description="A training step to simulate; alternative to `collective`."
    )
    engine: Annotated[Engine, reading.choice(("auto", "events", "compiled"))] = Field(
        default="auto", description="Simulation engine."
    )
    compare: Axes = Field(default={}, description="Values to compare, by key.")
    sweep: Axes = Field(default={}, description="Values to sweep, by key.")
    plots: Annotated[
        tuple[str, ...] | PlotsSpec,
        reading.ValueReader(
            _plots,
            lambda: {"anyOf": [_adapted(Listed[PlotName]).json_schema(), PlotsSpec.model_json_schema()]},
        ),
    ] = Field(
        default=(),
        description=(
            "Figures to draw as files, a list or a mapping; no files if omitted, because report.html shows every "
            "figure."
        ),
    )
    baseline: dict[AxisKey, Any] = Field(
        default={},
        description="Baseline of the comparison: a value for a key of `compare`; the first value if omitted.",
    )
    answer: Listed[Annotated[FindingSpec, FindingEntry()]] = Field(
        default=(), description="Findings to report, in order; chosen automatically if omitted."
    )
    budget: Annotated[BudgetSpec | None, Omittable(BudgetSpec)] = Field(
        default=None, description="Length and prices of the training, for days, GPU hours, cost and energy."
    )

    plan: Annotated[PlanSpec | None, Omittable(PlanSpec)] = Field(
        default=None, description="Search for the fastest training settings, instead of simulating points."
    )

    _source: str = PrivateAttr("<dict>")
    _base: Path = PrivateAttr(Path())
    _warnings: tuple[str, ...] = PrivateAttr(())

    def __eq__(self, other: object) -> bool:
        """Return True if both scenarios have equal keys and values; `source` and `base` do not count."""
        return isinstance(other, Scenario) and self.__dict__ == other.__dict__

    # A scenario holds dicts and cannot be hashed.
    __hash__ = None  # type: ignore[assignment]

    def replaced(self, **changes: Any) -> Self:
        """Return a copy of the scenario with changed fields, `source`, `base` or `warnings`; nothing is checked."""
        # These three are private attributes, and pydantic copies only fields.
        private = {name: changes.pop(name) for name in ("source", "base", "warnings") if name in changes}
        copy = super().replaced(**changes)
        for name, value in private.items():
            setattr(copy, f"_{name}", value)
        return copy

    @property
    def source(self) -> str:
        """Name of the scenario's file as the user wrote it; "<dict>" for data from Python."""
        return self._source

    @property
    def base(self) -> Path:
        """Folder for the scenario's relative paths."""
        return self._base

    @property
    def warnings(self) -> tuple[str, ...]:
        """A line for each key of the scenario without effect in every point."""
        return self._warnings

    @property
    def plotted(self) -> PlotsSpec:
        """The value of `plots` as a mapping, whichever form was written."""
        return self.plots if isinstance(self.plots, PlotsSpec) else PlotsSpec(kinds=self.plots)

    @property
    def kind(self) -> str:
        """The scenario's kind, "collective" or "training"; valid after the check for exactly one of both."""
        return "collective" if self.training is None else "training"


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a scenario, i.e. a combination of its axis values."""

    settings: Mapping[str, Any]  # values of the axis keys, as written
    scenario: Scenario  # the scenario with these values, without axes
    # Whether the report is all that is needed; a long training step may then be told from two shorter steps
    report_alone: bool = False


# Mappings with dotted keys: their keys can be set and varied one by one. Those of `training` stand in its own file.
_MAPPINGS: Final[dict[tuple[str, ...], type[Spec]]] = {
    (): Scenario,
    ("cluster",): ClusterSpec,
    ("cluster", "jitter"): JitterSpec,
    ("cluster", "ecmp"): EcmpSpec,
    ("collective",): CollectiveSpec,
    ("collective", "servers"): ServersSpec,
    ("collective", "fusion"): FusionSpec,
}
# Mappings without axis keys: compare and sweep cannot name an inner key.
_INNER: Final[dict[tuple[str, ...], type[Spec]]] = {
    ("plots",): PlotsSpec,
    ("budget",): BudgetSpec,
    ("plan",): PlanSpec,
}
# Kinds of scenario with their name in a sentence; a scenario has exactly one of both.
KINDS: Final = MappingProxyType({"collective": "a collective", "training": "a training step"})
_NO_AXES: Final = (
    "name", "question", "compare", "sweep", "plots", "baseline", "answer", "budget", "plan",
)  # fmt: skip


def fields(at: tuple[str | int, ...]) -> tuple[str, ...]:
    """Return the keys allowed in the scenario's mapping at a key path; empty if the mapping has names of its own.

    >>> fields(("cluster",))[:3], fields(("name",))
    (('topology', 'world_size', 'gpu'), ())
    """
    shape = (_mappings(str(at[0]) if at else "") | _INNER).get(at)  # type: ignore[arg-type]
    if shape is None and at == ("training", "activation_checkpointing"):
        from simulator.step.layer_policies import LayersSpec

        shape = LayersSpec
    return tuple(shape.model_fields) if shape else ()


def _mappings(section: str) -> dict[tuple[str, ...], type[Spec]]:
    """Return the mappings with dotted keys below a section by their key paths; "" is the scenario itself."""
    if section == "training":
        from simulator.step.training_spec import MAPPINGS

        return {(section, *at): shape for at, shape in MAPPINGS.items()}
    return {at: shape for at, shape in _MAPPINGS.items() if at[:1] == ((section,) if section else ())}


@cache
def _axis_keys_of(section: str) -> tuple[str, ...]:
    dotted = [".".join((*at, name)) for at, shape in _mappings(section).items() for name in shape.model_fields]
    return tuple(key for key in dotted if key not in _NO_AXES)


def axis_keys(kind: str | None = None) -> tuple[str, ...]:
    """Return the dotted keys allowed in compare, sweep and --set, including whole sections, in file order.

    With a kind of scenario ("collective" or "training"), keys of the other kind are left out.

    Examples
    --------
    >>> "collective.size" in axis_keys("collective"), "training.model" in axis_keys("collective")
    (True, False)
    """
    sections = [section for section in SECTIONS if kind is None or section == kind or section not in KINDS]
    keys = [key for section in ("", *sections) for key in _axis_keys_of(section)]
    return tuple(key for key in keys if (top := key.partition(".")[0]) in sections or top not in SECTIONS)


def is_axis_key(value: Any) -> TypeGuard[str]:
    """Return True if a value is one of `axis_keys`; keys of other sections are not looked at."""
    section = value.partition(".")[0] if isinstance(value, str) else ""
    return value in _axis_keys_of("") or (section in SECTIONS and value in _axis_keys_of(section))


@cache
def adapter(dotted: str) -> TypeAdapter[Any]:
    """Return the pydantic validator for a dotted key's value; for a section, the validator of a setting (mapping).

    >>> adapter("cluster.world_size").validate_python("8k")
    8000
    """
    if dotted in SECTIONS:
        return TypeAdapter(_setting_of(dotted))
    bare = _field(dotted).annotation
    # pydantic refuses a config for a model's adapter; models are strict by their own config.
    config = None if isinstance(bare, type) and issubclass(bare, BaseModel) else ConfigDict(strict=True)
    return TypeAdapter(_annotation(dotted), config=config)


def _field(dotted: str) -> FieldInfo:
    *at, name = dotted.split(".")
    return _mappings(at[0] if at else "")[tuple(at)].model_fields[name]


def _annotation(dotted: str) -> Any:
    field = _field(dotted)
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _setting_of(section: str) -> type[Spec]:
    """Return a class that validates an axis value of a section: any keys of the section, also dotted.

    Example: a setting of `collective` may have `algorithm`, `servers`, and `servers.count`.
    """
    names = [key.removeprefix(f"{section}.") for key in _axis_keys_of(section)]
    keys: dict[str, Any] = {
        # A field's name cannot contain a dot; the alias can.
        f"key{number}": (_annotation(f"{section}.{name}"), Field(default_factory=lambda: None, alias=name))
        for number, name in enumerate(names)
    }
    return create_model(f"{section.capitalize()}Setting", __base__=Spec, **keys)


def default_of(dotted: str) -> Any:
    """Return the default of a dotted key from `axis_keys`.

    >>> default_of("collective.dtype")
    'float32'
    """
    return _field(dotted).get_default(call_default_factory=True)


def takes_lists(dotted: str) -> bool:
    """Return True if a dotted key's value may be a list.

    >>> takes_lists("cluster.placement"), takes_lists("cluster.world_size")
    (True, False)
    """
    schema = adapter(dotted).json_schema()
    return any(form.get("type") == "array" for form in (schema, *schema.get("anyOf", ())))
