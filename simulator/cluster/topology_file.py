"""How is a topology file read and checked: topologies/NAME.yaml, a path, or a mapping with the same keys?

The reader checks the whole file against its model and its builder's options, and raises every fault at once. Nothing is
built here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from simulator.basics import registry
from simulator.basics.document import Document, Fault
from simulator.basics.errors import ScenarioError
from simulator.basics.foreign_code import located
from simulator.cluster.builder import BUILDERS
from simulator.cluster.cluster import MachineCollective
from simulator.cluster.figure import Sourced, Strict
from simulator.cluster.gpu_file import faults_of
from simulator.cluster.library import Library, LibraryName, Transport, library_of
from simulator.cluster.locate import locate, read
from simulator.cluster.quantity import MOST_PARTS, Bandwidth, Count, Seconds, Size
from simulator.cluster.validation import check

Operation = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter", "gather", "all_to_all"
]


@dataclass(frozen=True, slots=True)
class MeasuredOperation:
    """Measurements of an operation: with every rank in the same node, and over several nodes; None if not measured."""

    one_node: MachineCollective | None = None
    nodes: MachineCollective | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """A topology file's contents, checked.

    Attributes
    ----------
    collectives : mapping of operation to MeasuredOperation
        Measurements by operation.
    """

    name: str  # name in reports
    document: Document  # the file with lines and columns, for faults that appear only when the topology is built
    builder: str | None = None  # name of the builder; None if `graph` is given
    options: Mapping[str, Any] = field(default_factory=dict)  # the builder's arguments, defaults filled in
    graph: Path | None = None  # a node-link JSON or GraphML file
    gpu: str | Mapping[str, Any] | None = None  # default GPU
    ecmp_seed: int | None = None  # choose among equally short routes by a hash with this seed
    collectives: Mapping[str, MeasuredOperation] = field(default_factory=dict)
    library: Library | None = None  # model of the collective library, where nothing was measured
    folder: Path | None = None  # folder against which relative paths in the file are read


class _Collective(Sourced):
    algorithm: str = Field(description="Algorithm of the machine's library on whole nodes; the choice of auto.")
    startup: Seconds = Field(0.0, description="Start-up time of every rank, once before its first transfer.")
    rate_cap: Bandwidth = Field(
        float("inf"), description="Largest send rate of a rank inside its node, for large arrays."
    )
    cross_rate_cap: Bandwidth = Field(
        float("inf"), description="Largest send rate of a rank to other nodes while its whole node sends."
    )
    half_size: Size = Field(
        0.0, description="Size at half the rates: they are multiplied by 1 / (1 + (half_size / size)^exponent)."
    )
    # Fitted exponents are between 0.2 and 1; 10 is nearly a step, and (1e30 B / 1 B)^10 still fits into a float.
    exponent: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = Field(
        1.0, description="Exponent in the formula of half_size."
    )
    chunks: Count | None = Field(None, description="Pipeline segments, for algorithms that have them.")
    step: Seconds = Field(0.0, description="Time of a step in addition to its transfer, inside a node.")
    cross_step: Seconds = Field(0.0, description="Time of a step in addition to its transfer, between nodes.")
    own_part: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = Field(
        0.0, description="Time of a rank of a node for its own part of the array, relative to a part that it sends."
    )

    def record(self) -> MachineCollective:
        """Return the measured constants in the form held by a Cluster."""
        return MachineCollective(**self.model_dump())


class _Operation(Strict):
    one_node: _Collective | None = Field(None, description="Constants for ranks in a single node.")
    nodes: _Collective | None = Field(None, description="Constants for ranks in several nodes.")

    def record(self) -> MeasuredOperation:
        """Return the operation's measurements, in one node and over several nodes, as a record."""
        return MeasuredOperation(*(None if part is None else part.record() for part in (self.one_node, self.nodes)))


class _Ecmp(Strict):
    hash: int = Field(description="Seed of the routing hash.")


class TopologyFile(Strict):
    """The keys of a topology file."""

    name: str | None = Field(None, description="Name of the topology in reports; the file's name if omitted.")
    builder: str | None = None  # described by `topology_schema`, with the names that there are
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the builder.")
    graph: str | None = Field(None, description="Path of a node-link JSON or GraphML file, instead of a builder.")
    gpu: str | dict[str, Any] | None = Field(
        None, description="GPU: name or figures; a scenario may choose another GPU."
    )
    ecmp: _Ecmp | None = Field(
        None, description="Choice among equally short routes by a hash; D-mod-k routing if omitted."
    )
    library: LibraryName | None = Field(
        None,
        description="Library whose model times collectives of nodes where none was measured: nccl by default, or rccl; "
        "none: links at their rating, without start-up.",
    )
    transport: Transport = Field(
        "rdma", description="Transport between nodes in the library's model: rdma, or tcp at half of the line rate."
    )
    collectives: dict[Operation, _Operation] = Field(
        default_factory=dict,
        description="Speed of the machine's library for each operation, as written by `simulator fit`.",
    )


def load_topology(topology: str | Path | Mapping[str, Any], base: Path | None = None) -> Topology:
    """Return a topology's checked contents, without building its graph.

    Parameters
    ----------
    topology : str, Path or mapping
        A shipped name, the path of a YAML, node-link JSON or GraphML file, or the keys of a topology file.
    base : Path, optional
        Folder against which a relative path is read first.

    Raises
    ------
    ScenarioError
        Unknown name; one line for each fault, with line and column.
    """
    if isinstance(topology, Mapping):
        return _read(Document("topology", dict(topology)), "inline", base)
    path = topology if isinstance(topology, Path) else locate("topology", topology, base)
    # A graph file given directly: a topology without GPU, options and measurements, named after the file.
    if path.suffix in (".json", ".graphml"):
        document, library = Document(str(path), {}), library_of("nccl", "rdma")
        return Topology(path.stem, document, graph=path, library=library, folder=path.parent)
    document = read(path)
    registry.refuse_other_kind(document, "topology")
    return _read(document, path.stem, path.parent)


def _read(document: Document, name: str, folder: Path | None) -> Topology:
    # Faults from the model, the builder's options and the GPU are collected, to be corrected in a single round.

    file, faults = check(TopologyFile, document)
    options, wrong = _options(document, folder)
    document.refuse(_moved(document, faults) + wrong + _gpu(document, folder) + _without_effect(document))
    if file is None:
        raise TypeError("a file without faults has a model")
    graph = None if file.graph is None else (folder or Path()) / file.graph
    return Topology(
        name=file.name or name,
        document=document,
        builder=None if file.builder is None else located(file.builder, folder),
        options=options,
        graph=graph,
        gpu=file.gpu,
        ecmp_seed=None if file.ecmp is None else file.ecmp.hash,
        library=_library(file),
        collectives={operation: measured.record() for operation, measured in file.collectives.items()},
        folder=folder,
    )


def _library(file: TopologyFile) -> Library | None:
    """Return the model of a file's library; None on networks of theory, as shipped builders without nodes make them."""
    theory = file.builder in BUILDERS.names() and file.builder != "nodes"
    return None if theory else library_of(file.library or "nccl", file.transport)


def _without_effect(document: Document) -> list[Fault]:
    """Return the faults of keys of the library's model on a machine that has none."""
    data = document.data if isinstance(document.data, Mapping) else {}
    builder = data.get("builder")
    if builder in BUILDERS.names() and builder != "nodes":
        message = f"needs nodes; the links of a {builder} have their rating"
        return [document.fault((key,), message) for key in ("library", "transport") if key in data]
    if data.get("library") == "none" and "transport" in data:
        return [document.fault(("transport",), "has no effect with library: none; remove one")]
    return []


def _moved(document: Document, faults: Sequence[Fault]) -> list[Fault]:
    """Return faults; an unknown key that is an option of the file's builder gets the advice to move it."""
    name = document.data.get("builder") if isinstance(document.data, Mapping) else None
    if name not in BUILDERS.names():
        return list(faults)
    options = BUILDERS.find(name).options.model_fields.keys() - TopologyFile.model_fields.keys()
    advice = f"is an option of builder {name}; move it below options"
    return [
        replace(fault, message=advice) if len(fault.key) == 1 and fault.key[0] in options else fault for fault in faults
    ]


def _gpu(document: Document, folder: Path | None) -> list[Fault]:
    """Return the faults in the GPU that a topology file names or describes; `folder` is the base for paths."""
    gpu = document.data.get("gpu") if isinstance(document.data, Mapping) else None
    return faults_of(gpu, document, ("gpu",), folder) if isinstance(gpu, str | Mapping) else []


def _options(document: Document, folder: Path | None) -> tuple[dict[str, Any], list[Fault]]:
    """Return the builder's options, with defaults, and their faults; `folder` is the base for an own builder's path."""
    data = document.data
    if not isinstance(data, Mapping):
        return {}, []
    name = data.get("builder")
    if (name is None) == (data.get("graph") is None):
        return {}, [document.fault((), "needs either builder or graph")]
    # A graph file takes no options.
    if name is None:
        return {}, [document.fault(("options",), "need a builder; a graph has no options")] if "options" in data else []
    # The model has already reported the wrong type.
    if not isinstance(name, str):
        return {}, []
    try:
        builder = BUILDERS.find(name, folder)
    except ScenarioError as error:
        return {}, [document.fault(("builder",), str(error).removeprefix("builder: "))]
    # Required options are reported as missing even if the file has no `options` at all.
    if "options" not in data:
        document = Document(document.source, {**data, "options": {}}, values=document.values)
    model, faults = check(builder.options, document, ("options",))
    if model is None:
        return {}, faults
    options = dict(model)
    try:
        return options, _too_large(document, builder.limits(**options).max_ranks)
    except ValueError as error:  # options that contradict each other, a line each
        return {}, [document.fault(("options",), line) for line in str(error).splitlines()]


def _too_large(document: Document, ranks: int | None) -> list[Fault]:
    if ranks is None or ranks <= MOST_PARTS:
        return []
    message = f"make a machine of {ranks if ranks < 10**18 else 'over 10^18'} GPUs; must be at most {MOST_PARTS}"
    return [document.fault(("options",), message)]
