"""How is an imported machine written? A topology file with the origin of its figures, and a graph file beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from simulator.basics import yaml_dialect
from simulator.cluster.graph import Graph
from simulator.importing.machines.machine_format import Machine
from simulator.importing.machines.notes import Notes


def topology_text(machine: Machine, notes: Notes, names: Sequence[str], graph_file: str) -> str:
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


def graph_text(graph: Graph) -> str:
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
