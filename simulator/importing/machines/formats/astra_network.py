"""ASTRA-sim's network file: a building block, a number of NPUs, a bandwidth and a latency for each dimension.

topology: [ Ring, Switch ]     dimension 0 first: NPUs 0, 1, 2, 3 are neighbours on the first ring
npus_count: [ 4, 2 ]
bandwidth: [ 50.0, 25.0 ]      GiB/s of a link, in each direction (the files' comments say GB/s)
latency: [ 500.0, 1000.0 ]     ns of a link

ASTRA-sim 1.0 has topologies-per-dim, units-count, link-bandwidth and link-latency in their place, and links-count, the
links of an NPU: a ring has half of them to each neighbour, a mesh an equal part to each other NPU, a switch all.
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
_OLD_KEYS: Final = ("topologies-per-dim", "units-count", "link-bandwidth", "link-latency", "links-count")
_OLD_LATENCIES: Final = ("nic-latency", "router-latency")
_OLD_IDLE: Final = ("topology-name", "dimensions-count", "dimension-type", "use-fast-version")
_IS_KEY: Final = re.compile(r"(?m)(?:^|[,{])[ \t{\"]*(npus_count|logical-dims|topologies-per-dim)[\"]?[ \t]*:")
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
        raise _fault(document, "logical-dims", "dimensions without links; give ns-3's physical topology")
    is_old = _OLD_KEYS[0] in data
    keys = _OLD_KEYS if is_old else _KEYS
    for key in data:
        if key not in (*keys, *(_OLD_LATENCIES if is_old else ())):
            setting = Setting(str(key), data[key], file.name, document.place((key,), of_key=True)[0])
            if is_old and str(key).startswith("hbm-"):
                notes.ignore(setting, Reason.NOT_MODELLED, "memory is simulated by the scenario")
            else:
                notes.ignore(setting, Reason.NO_MEANING if is_old and key in _OLD_IDLE else Reason.UNKNOWN)
    blocks, counts, rates, latencies = _dimensions(document, keys)
    if is_old:
        rates, latencies = _of_links(document, blocks, counts, rates, latencies)
    kind = gpu_kind(options, notes) or DEFAULT
    graph = _graph(blocks, counts, rates, latencies)
    place = document.place((keys[0],), of_key=True)[0]
    for i, block in enumerate(blocks):
        value = f"{block} of {counts[i]}, {format_bandwidth(rates[i])}, {format_time(latencies[i])}"
        notes.read(f"dimension {i}", value, Setting(", ".join(keys[:2]), "", file.name, place))
    notes.assume("unit of the bandwidth", "GiB/s", "as ASTRA-sim computes, although its files say GB/s")
    if "Switch" in blocks and not is_old:
        why = "bytes pass through a switch at once; ASTRA-sim's congestion-aware network stores and forwards"
        notes.ignore(Setting("topology Switch", "", file.name, place), Reason.NOT_MODELLED, why)
    if len(blocks) > 1:
        notes.assume("nodes", f"{prod(counts[1:])} of {counts[0]} GPUs", "the groups of dimension 0")
    return Machine(graph, kind)


def _fault(document: Document, key: str | tuple[str | int, ...], message: str) -> ScenarioError:
    at = (key,) if isinstance(key, str) else key
    return ScenarioError(document.fault(at, message).as_line(document.source))


def _of_links(
    document: Document, blocks: Sequence[str], counts: Sequence[int], rates: Sequence[float], latencies: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return bandwidth [B/s] and latency [s] of a cable in each dimension of ASTRA-sim 1.0, from those of its links.

    A message passes two network cards, and a router between two links (HierarchicalTopology.cc).
    """
    data = document.data
    if data.get("dimensions-count", len(blocks)) != len(blocks):
        raise _fault(document, "dimensions-count", f"must be {len(blocks)}, as many as the lists have values")
    links = [_count(document, "links-count", i, value) for i, value in enumerate(data["links-count"])]
    sizes = zip(blocks, counts, strict=True)
    peers = [max({"Ring": min(n - 1, 2), "FullyConnected": n - 1}.get(block, 1), 1) for block, n in sizes]
    for i, peer_count in enumerate(peers):
        if links[i] % peer_count:
            raise _fault(document, ("links-count", i), f"got {links[i]}; must be a multiple of {peer_count} neighbours")
    extra = []
    for key in _OLD_LATENCIES:
        values = data.get(key, [0] * len(blocks))
        if not isinstance(values, list) or len(values) != len(blocks):
            raise _fault(document, key, "must be a list with a value for each dimension")
        extra.append([_number(document, key, i, value, _NS) for i, value in enumerate(values)])
    cards, routers = extra
    delays = [
        latencies[i] + (cards[i] + routers[i] / 2 if block == "Switch" else 2 * cards[i])
        for i, block in enumerate(blocks)
    ]
    return [rate * (links[i] // peers[i]) for i, rate in enumerate(rates)], delays


def _dimensions(document: Document, keys: Sequence[str]) -> tuple[list[str], list[int], list[float], list[float]]:
    """Return building blocks, numbers of NPUs, bandwidths [B/s] and latencies [s], a value for each dimension."""
    data, (first, second, third, fourth, *_) = document.data, keys
    for key in keys:
        if key not in data:
            raise _fault(document, (), f"{key} is missing; a network has {few(list(keys), 5)}")
        if not isinstance(data[key], list) or len(data[key]) != len(data[first]) or not data[key]:
            raise _fault(document, key, "must be a list with a value for each dimension")
        if len(data[key]) > _MOST_DIMENSIONS:
            raise _fault(document, key, f"has {len(data[key])} dimensions; must have at most {_MOST_DIMENSIONS}")
    for i, block in enumerate(data[first]):
        if not isinstance(block, str) or block not in _BLOCKS:
            raise _fault(document, (first, i), f"got {str(block)[:40]!r}; {one_of(_BLOCKS, str(block)[:40])}")
    counts = [_count(document, second, i, value) for i, value in enumerate(data[second])]
    if prod(counts) > _MOST_NPUS:
        raise _fault(document, second, f"make {prod(counts):,} NPUs; must be at most {_MOST_NPUS:,}")
    rates = [_number(document, third, i, value, _GIB) for i, value in enumerate(data[third])]
    latencies = [_number(document, fourth, i, value, _NS) for i, value in enumerate(data[fourth])]
    return list(data[first]), counts, rates, latencies


def _count(document: Document, key: str, i: int, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_NPUS:
        raise _fault(document, (key, i), f"got {str(value)[:40]}; must be a whole number of 1 .. {_MOST_NPUS:,}")
    return value


def _number(document: Document, key: str, i: int, value: Any, unit: float) -> float:
    """Return a number in SI units; a latency may be 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    of_rate = key.endswith("bandwidth")
    if not number or value < 0 or (of_rate and value == 0):
        least = "more than 0" if of_rate else "at least 0"
        raise _fault(document, (key, i), f"got {str(value)[:40]!r}; must be a number of {least}")
    scaled = float(value) * unit
    if not within(scaled, "bandwidth" if of_rate else "time"):
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
