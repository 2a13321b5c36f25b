"""ASTRA-sim's network file: a building block, a number of NPUs, a bandwidth and a latency for each dimension.

topology: [ Ring, Switch ]     dimension 0 first: NPUs 0, 1, 2, 3 are neighbours on the first ring
npus_count: [ 4, 2 ]
bandwidth: [ 50.0, 25.0 ]      GiB/s of a link, in each direction (the files' comments say GB/s)
latency: [ 500.0, 1000.0 ]     ns of a link
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from math import isfinite, prod
from types import MappingProxyType
from typing import Any, Final

from simulator.basics.document import Document, parse
from simulator.basics.errors import ScenarioError, few, one_of
from simulator.basics.units import format_bandwidth, format_time, within
from simulator.cluster.graph import Graph, add_cable, add_vertex, empty
from simulator.importing.machines.gpu_kinds import DEFAULT, gpu_kind
from simulator.importing.machines.limits import check_size
from simulator.importing.machines.machine_format import Machine, MachineFormat, SourceFile
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.settings import Reason, Setting

_KEYS: Final = ("topology", "npus_count", "bandwidth", "latency")
_IS_KEY: Final = re.compile(r"(?m)^[ \t{\"]*(npus_count|logical-dims)[\"]?[ \t]*:")
_GIB: Final = 2**30
_NS: Final = 1e-9
_MOST_DIMENSIONS: Final = 10
_MOST_NPUS: Final = 100_000

Pair = tuple[int, int]


def _ring(group: Sequence[int]) -> Iterator[Pair]:
    """Yield the neighbours on a ring; two NPUs have one cable."""
    yield from pairwise([*group, group[0]] if len(group) > 2 else group)


def _fully_connected(group: Sequence[int]) -> Iterator[Pair]:
    yield from combinations(group, 2)


# Pairs of NPUs with a cable, by building block; None for a switch with a cable to each NPU.
_BLOCKS: Final = MappingProxyType[str, Callable[[Sequence[int]], Iterator[Pair]] | None](
    {"Ring": _ring, "FullyConnected": _fully_connected, "Switch": None}
)


def _is_mine(file: SourceFile) -> bool:
    return _IS_KEY.search(file.text) is not None


def _read(file: SourceFile, options: MachineOptions, notes: Notes, _: Machine | None) -> Machine:
    document = parse(file.text.replace("\t", " "), file.name)
    data = document.data
    if not isinstance(data, dict):
        raise ScenarioError(f"{file.name}: must be a mapping (key: value)")
    if "logical-dims" in data:
        raise _fault(document, "logical-dims", "dimensions without links; ns-3's physical topology is not imported")
    for key in data:
        if key not in _KEYS:
            setting = Setting(str(key), data[key], file.name, document.place((key,), of_key=True)[0])
            notes.ignore(setting, Reason.UNKNOWN)
    blocks, counts, rates, latencies = _dimensions(document)
    kind = gpu_kind(options, notes) or DEFAULT
    graph = _graph(blocks, counts, rates, latencies)
    place = document.place(("topology",), of_key=True)[0]
    for i, block in enumerate(blocks):
        value = f"{block} of {counts[i]}, {format_bandwidth(rates[i])}, {format_time(latencies[i])}"
        notes.read(f"dimension {i}", value, Setting("topology, npus_count", "", file.name, place))
    notes.assume("unit of the bandwidth", "GiB/s", "as ASTRA-sim computes, although its files say GB/s")
    if "Switch" in blocks:
        why = "bytes pass through a switch at once; ASTRA-sim's congestion-aware network stores and forwards"
        notes.ignore(Setting("topology Switch", "", file.name, place), Reason.NOT_MODELLED, why)
    if len(blocks) > 1:
        notes.assume("nodes", f"{prod(counts[1:])} of {counts[0]} GPUs", "the groups of dimension 0")
    return Machine(graph, kind)


def _fault(document: Document, key: str | tuple[str | int, ...], message: str) -> ScenarioError:
    at = (key,) if isinstance(key, str) else key
    return ScenarioError(document.fault(at, message).as_line(document.source))


def _dimensions(document: Document) -> tuple[list[str], list[int], list[float], list[float]]:
    """Return building blocks, numbers of NPUs, bandwidths [B/s] and latencies [s], a value for each dimension."""
    data = document.data
    for key in _KEYS:
        if key not in data:
            raise _fault(document, (), f"{key} is missing; a network has {few(list(_KEYS), 4)}")
        if not isinstance(data[key], list) or len(data[key]) != len(data["topology"]) or not data[key]:
            raise _fault(document, key, "must be a list with a value for each dimension")
        if len(data[key]) > _MOST_DIMENSIONS:
            raise _fault(document, key, f"has {len(data[key])} dimensions; must have at most {_MOST_DIMENSIONS}")
    for i, block in enumerate(data["topology"]):
        if not isinstance(block, str) or block not in _BLOCKS:
            raise _fault(document, ("topology", i), f"got {str(block)[:40]!r}; {one_of(_BLOCKS, str(block)[:40])}")
    counts = [_count(document, i, value) for i, value in enumerate(data["npus_count"])]
    if prod(counts) > _MOST_NPUS:
        raise _fault(document, "npus_count", f"make {prod(counts):,} NPUs; must be at most {_MOST_NPUS:,}")
    rates = [_number(document, "bandwidth", i, value, _GIB) for i, value in enumerate(data["bandwidth"])]
    latencies = [_number(document, "latency", i, value, _NS) for i, value in enumerate(data["latency"])]
    return list(data["topology"]), counts, rates, latencies


def _count(document: Document, i: int, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_NPUS:
        raise _fault(
            document, ("npus_count", i), f"got {str(value)[:40]}; must be a whole number of 1 .. {_MOST_NPUS:,}"
        )
    return value


def _number(document: Document, key: str, i: int, value: Any, unit: float) -> float:
    """Return a number in SI units; a latency may be 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not number or value < 0 or (key == "bandwidth" and value == 0):
        least = "more than 0" if key == "bandwidth" else "at least 0"
        raise _fault(document, (key, i), f"got {str(value)[:40]!r}; must be a number of {least}")
    scaled = float(value) * unit
    if not within(scaled, "bandwidth" if key == "bandwidth" else "time"):
        raise _fault(document, (key, i), f"got {str(value)[:40]!r}; outside the range that can be simulated")
    return scaled


def _graph(blocks: Sequence[str], counts: Sequence[int], rates: Sequence[float], latencies: Sequence[float]) -> Graph:
    """Return the graph of a network; NPUs forward, because routes may pass through them."""
    npus = prod(counts)
    sizes = {"Ring": lambda n: n, "FullyConnected": lambda n: n * (n - 1) // 2, "Switch": lambda n: n + 1}
    cables = sum(sizes[block](count) * npus // count for block, count in zip(blocks, counts, strict=True))
    check_size(npus + cables, "take fewer npus_count")
    graph = empty()
    for i in range(npus):
        name = add_vertex(graph, f"gpu{i}", "gpu", forwards=True)
        if len(counts) > 1:
            graph.nodes[name]["node"] = f"node{i // counts[0]}"
    for dimension, block in enumerate(blocks):
        rate, latency, pairs = rates[dimension], latencies[dimension], _BLOCKS[block]
        for number, group in enumerate(_groups(counts, dimension)):
            if pairs is None:
                switch = add_vertex(graph, f"dimension{dimension}/switch{number}", "switch", forwards=True)
                for npu in group:
                    add_cable(graph, f"gpu{npu}", switch, rate, latency)
            else:
                for a, b in pairs(group):
                    add_cable(graph, f"gpu{a}", f"gpu{b}", rate, latency)
    return graph


def _groups(counts: Sequence[int], dimension: int) -> Iterator[list[int]]:
    """Yield the NPUs that differ in one dimension alone; dimension 0 counts fastest."""
    stride, count = prod(counts[:dimension]), counts[dimension]
    for first in range(prod(counts)):
        if first // stride % count == 0:
            yield [first + stride * i for i in range(count)]


FORMAT: Final = MachineFormat(name="ASTRA-sim network", is_mine=_is_mine, read=_read, uses=frozenset({"gpu"}))
