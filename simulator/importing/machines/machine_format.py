"""What does a format of machine descriptions declare, and which format does a file have?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from simulator.basics.catalog import Catalog
from simulator.basics.errors import ScenarioError
from simulator.cluster.graph import Graph
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """A machine as it is written to a topology file.

    Attributes
    ----------
    graph : Graph
        Vertices and cables.
    gpu : str
        Name of the GPU, or its path.
    collectives : mapping
        Key `collectives` of the topology file.
    """

    graph: Graph
    gpu: str
    collectives: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A description: its text, and its name in messages."""

    text: str
    name: str


Read = Callable[[SourceFile, MachineOptions, Notes, Machine | None], Machine]


@dataclass(frozen=True, slots=True, eq=False)
class MachineFormat:
    """A format in which programs describe machines."""

    name: str  # name in messages
    # Whether a file has this format, by its first characters and keys; reads nothing else.
    is_mine: Callable[[SourceFile], bool]
    # The machine of a file; a companion gets the machine of the other file and returns it with what it adds.
    read: Read
    uses: frozenset[str]  # names of the options that the format reads
    companion: bool = False  # whether the file only adds to a file of another format


FORMATS: Final = Catalog[MachineFormat]("simulator.importing.machines.formats", "FORMAT", MachineFormat, "format")


def format_of(file: SourceFile) -> MachineFormat:
    """Return the format of a file; ScenarioError if none has it."""
    for kind in FORMATS.by_name.values():
        if kind.is_mine(file):
            return kind
    names = ", ".join(FORMATS.names())
    raise ScenarioError(f"{file.name}: no known description of a machine; read are {names}")
