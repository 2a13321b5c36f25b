"""A network as GML, such as the files of the Internet Topology Zoo: places with coordinates, links with a speed.

    graph [ node [ id 0 label "Bern" Longitude 7.4 Latitude 46.9 ]
            edge [ source 0 target 1 LinkSpeedRaw 1e10 ] ]

Each place has a switch and a node of GPUs. A cable between two places has the latency of light in fibre.
"""

from __future__ import annotations

import re
from collections import Counter
from math import asin, cos, inf, radians, sin, sqrt
from typing import Any, Final

import networkx as nx

from simulator.basics.errors import ScenarioError, one_line
from simulator.importing.machines.machine_format import Machine, MachineFormat, SourceFile
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.machines.slurm import USES, Cable, Network, SlurmLayout, machine
from simulator.importing.settings import Setting

_BEGIN: Final = re.compile(r"(?m)^[ \t]*graph\s*\[")
# Links of the zoo may be parallel although the file does not say so.
_SEVERAL: Final = re.compile(r"(?m)^\s*multigraph\b")
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_RADIUS: Final = 6_371e3  # of the Earth [m]
_FIBRE: Final = 2e8  # speed of light in glass [m/s]
_FASTEST: Final = 1e15  # of a link [bit/s]


def _is_mine(file: SourceFile) -> bool:
    return _BEGIN.search(file.text) is not None


def _read(file: SourceFile, options: MachineOptions, notes: Notes, _: Machine | None) -> Machine:
    text = file.text if _SEVERAL.search(file.text) else _BEGIN.sub("graph [\nmultigraph 1", file.text, count=1)
    try:
        graph = nx.parse_gml(text.splitlines(), label="id")
    except (nx.NetworkXException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ScenarioError(one_line(f"{file.name}: not GML: {error or 'nested too deeply'}")) from error
    # The zoo marks the networks of others by 0.
    inside = [number for number, facts in graph.nodes(data=True) if facts.get("Internal", 1) != 0]
    names = {number: _name(number, graph.nodes[number]) for number in inside}
    count = Counter(names.values())
    names = {number: f"{name}_{number}" if count[name] > 1 else name for number, name in names.items()}
    cables: dict[frozenset[str], Cable] = {}
    for a, b, facts in graph.edges(data=True):
        if a in names and b in names and a != b:
            pair = frozenset((names[a], names[b]))
            speed, cable = _speed(facts), cables.get(pair)
            if cable is not None and cable[2] is not None and speed is not None:
                speed += cable[2]
            cables[pair] = names[a], names[b], speed, _delay(graph.nodes[a], graph.nodes[b])
    if not cables:
        raise ScenarioError(f"{file.name}: has no edge between two nodes")
    delays = [delay for _, _, _, delay in cables.values() if delay]
    if delays:
        why = "great-circle distances of the coordinates, at 200,000 km/s in fibre"
        notes.assume("latency of cables", f"{min(delays) * 1e3:.3g} to {max(delays) * 1e3:.3g} ms", why)
    network = Network(Setting("node, edge", "", file.name), tuple(names.values()), tuple(cables.values()))
    return machine(SlurmLayout(networks=(network,)), file.name, options, notes)


def _name(number: Any, facts: dict[str, Any]) -> str:
    """Return a place's label with the characters of host names, or its number."""
    return _UNUSUAL.sub("_", str(facts.get("label", "")))[:100].strip("_") or f"n{number}"


def _speed(facts: dict[str, Any]) -> float | None:
    """Return a link's bandwidth [B/s]; None if the file has none."""
    raw = facts.get("LinkSpeedRaw")
    valid = isinstance(raw, int | float) and not isinstance(raw, bool) and 0 < raw <= _FASTEST
    return raw / 8 if valid and isinstance(raw, int | float) else None


def _delay(place: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the time of light in fibre between two places [s]; 0 without coordinates."""
    coordinates = [facts.get(name, inf) for facts in (place, other) for name in ("Latitude", "Longitude")]
    if not all(isinstance(value, int | float) and abs(value) <= 360 for value in coordinates):
        return 0.0
    first, west, second, east = map(radians, coordinates)
    half = sin((second - first) / 2) ** 2 + cos(first) * cos(second) * sin((east - west) / 2) ** 2
    return 2 * _RADIUS * asin(sqrt(min(1.0, half))) / _FIBRE


FORMAT: Final = MachineFormat(name="GML", is_mine=_is_mine, read=_read, uses=USES)
