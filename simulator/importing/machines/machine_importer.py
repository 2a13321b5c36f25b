"""How do descriptions of a machine become a topology? The whole way on one page.

read each file  ->  its format  ->  the machine's graph  ->  companions  ->  text of a topology and of its graph
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from simulator.basics import yaml_dialect
from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import read_text
from simulator.cluster.graph import Graph, of_kind
from simulator.importing.machines.gpu_kinds import known_gpu
from simulator.importing.machines.limits import MOST_BYTES, MOST_YAML_BYTES
from simulator.importing.machines.machine_format import Machine, MachineFormat, SourceFile, format_of
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions

# Most files of a machine.
_MOST_FILES: Final = 8
# Options of the command by their field, where the name differs.
_SPELLED: Final = {"cards": "--card"}


@dataclass(frozen=True, slots=True)
class ImportedMachine:
    """The result of an import: each file's format, the lists, and the texts of both files."""

    formats: Mapping[str, str]
    notes: Notes
    topology: str
    graph: str


def import_machine(files: Sequence[str], options: MachineOptions, graph_file: str) -> ImportedMachine:
    """Return the topology of the machine in some files.

    Parameters
    ----------
    files : sequence of str
        Paths; one file describes the machine, and further files add to it.
    options : MachineOptions
        What the files cannot say.
    graph_file : str
        Name of the graph file in the topology file.

    Raises
    ------
    ScenarioError
        An unreadable file, an unknown format, a wrong value, or a machine that is too large or in several parts.
    """
    if len(files) > _MOST_FILES:
        raise ScenarioError(f"got {len(files)} files; a machine has at most {_MOST_FILES}")
    notes = Notes()
    if options.gpu is not None:
        options = replace(options, gpu=known_gpu(options.gpu))
    sources = [SourceFile(read_text(path, most=_most(path)), path) for path in dict.fromkeys(files)]
    kinds = {source.name: format_of(source) for source in sources}
    _check(kinds, options)
    machine: Machine | None = None
    for source in sorted(sources, key=lambda source: kinds[source.name].companion):
        machine = kinds[source.name].read(source, options, notes, machine)
    if machine is None:
        raise TypeError("a format returns a machine")
    _check_connected(machine.graph)
    names = [Path(path).name for path in files]
    text = _topology_text(machine, notes, names, graph_file)
    return ImportedMachine({name: kind.name for name, kind in kinds.items()}, notes, text, _graph_text(machine.graph))


def _most(path: str) -> int:
    """Return the largest size of a file that is read [B]."""
    return MOST_YAML_BYTES if Path(path).suffix.lower() in (".yaml", ".yml", ".json") else MOST_BYTES


def _check(kinds: Mapping[str, MachineFormat], options: MachineOptions) -> None:
    """Raise ScenarioError unless one file describes the machine, and every option has an effect."""
    names = [name for name, kind in kinds.items() if not kind.companion]
    if len(names) > 1:
        raise ScenarioError(f"{names[1]}: {names[0]} describes a machine too; import each into a file of its own")
    if not names:
        name, kind = next(iter(kinds.items()))
        raise ScenarioError(f"{name}: {kind.name} only adds to a machine; give the file that describes it as well")
    used = set[str]().union(*(kind.uses for kind in kinds.values()))
    blank = MachineOptions()
    for field in fields(MachineOptions):
        if field.name not in used and getattr(options, field.name) != getattr(blank, field.name):
            option = _SPELLED.get(field.name, f"--{field.name.replace('_', '-')}")
            raise ScenarioError(f"{option}: has no effect on {kinds[names[0]].name}; omit it")


def _check_connected(graph: Graph) -> None:
    """Raise ScenarioError unless every GPU can be reached from the first."""
    gpus = of_kind(graph, "gpu")
    reached, waiting = {gpus[0]}, [gpus[0]]
    while waiting:
        new = [name for name in graph[waiting.pop()] if name not in reached]
        reached.update(new)
        waiting += new
    rest = [name for name in gpus if name not in reached]
    if rest:
        raise ScenarioError(
            f"{len(rest)} of {len(gpus)} GPUs, such as {rest[0]}, have no link to {gpus[0]}; the file describes "
            "several machines; import a part of it"
        )


def _topology_text(machine: Machine, notes: Notes, names: Sequence[str], graph_file: str) -> str:
    """Return the topology file of a machine, with what was read and assumed as its first comment."""
    lines = [f"Imported from {', '.join(names)} by `simulator import-machine`.", "Source: the file, except:"]
    lines += [f"  {entry.key}: {entry.assumed} ({entry.why})" for entry in notes.missing]
    lines += ["Read:"]
    lines += [f"  {entry.key}: {entry.value} ({entry.origin}, {entry.place})" for entry in notes.understood]
    keys: dict[str, Any] = {"graph": graph_file, "gpu": machine.gpu}
    if machine.collectives:
        keys["collectives"] = dict(machine.collectives)
    entries = [f"{key}: {yaml_dialect.dump(value, one_line=True)}" for key, value in keys.items()]
    return "\n".join([*(f"# {_printable(line)}" for line in lines), *entries, ""])


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _graph_text(graph: Graph) -> str:
    """Return a graph as node-link JSON, a vertex or cable on each line.

    Cables are undirected edges: an imported cable has the same figures in both directions.
    """
    vertices = [json.dumps({"id": name, **_facts(facts)}) for name, facts in graph.nodes(data=True)]
    edges, pairs = [], set[tuple[str, str]]()
    for a, b, facts in graph.edges(data=True):
        if (b, a) not in pairs:
            pairs.add((a, b))
            edges.append(json.dumps({"source": a, "target": b, **facts}))
    head = '{"directed": false, "multigraph": false, "graph": {},\n"nodes": [\n'
    return head + ",\n".join(vertices) + '\n],\n"edges": [\n' + ",\n".join(edges) + "\n]}\n"


def _facts(facts: dict[str, object]) -> dict[str, object]:
    """Return a vertex's attributes without `forwards` if it is the default of its kind."""
    default = facts["kind"] not in ("gpu", "server")
    return {key: value for key, value in facts.items() if key != "forwards" or value != default}
