"""The text of ns-3's topology, and SimAI's: counts, the numbers of switches, then a line for each link.

6 4 1 1 8 H100                nodes, GPUs of a server, NVSwitches, switches, links, GPU; ns-3: nodes, switches, links
4 5                           numbers of the NVSwitches, then of the switches; other nodes are GPUs
0 4 2880Gbps 0.000025ms 0     a link: its two nodes, bandwidth of a direction, latency, error rate
"""

from __future__ import annotations

import re
from typing import Final

from simulator.basics import registry
from simulator.basics.errors import ScenarioError, one_line
from simulator.basics.units import parse
from simulator.cluster.graph import add_cable, add_vertex, empty
from simulator.importing.machines.gpu_kinds import DEFAULT, gpu_kind
from simulator.importing.machines.limits import check_size
from simulator.importing.machines.machine_format import Machine, MachineFormat, SourceFile
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.settings import Reason, Setting

_N: Final = r"([0-9]{1,6})"
_IS_LINK: Final = re.compile(r"(?m)^[ \t]*[0-9]+[ \t]+[0-9]+[ \t]+[0-9.]+[kMGT]?bps[ \t]+[0-9.e-]+[mun]?s\b")
_HEAD: Final = re.compile(rf"{_N} (?:{_N} {_N} )?{_N} {_N}(?: ([A-Za-z]\w{{0,30}})(?: {_N})?)?")
_NUMBERS: Final = re.compile(rf"{_N}(?: {_N})*")
_LINK: Final = re.compile(rf"{_N} {_N} (\S{{1,40}}) (\S{{1,40}})(?: ([0-9.eE+-]{{1,40}}))?")


def _is_mine(file: SourceFile) -> bool:
    return _IS_LINK.search(file.text[:100_000]) is not None


def _read(file: SourceFile, options: MachineOptions, notes: Notes, _: Machine | None) -> Machine:
    lines = [(number, " ".join(line.split())) for number, line in enumerate(file.text.splitlines(), 1) if line.strip()]

    def fault(number: int, message: str) -> ScenarioError:
        return ScenarioError(one_line(f"{file.name}:{number}: {message}"))

    (first, head), *rest = lines
    counts = _HEAD.fullmatch(head)
    if counts is None:
        raise fault(first, f"got {head[:60]!r}; must be nodes, switches and links (ns-3), or nodes, GPUs of a server, "
                           "NVSwitches, switches, links and GPU (SimAI)")  # fmt: skip
    nodes, nvswitches, switches, links = (int(counts[group] or 0) for group in (1, 3, 4, 5))
    check_size(nodes + links, "take a smaller network")
    names, begin = dict[int, str](), 0
    while len(names) < nvswitches + switches:
        number, text = rest[begin] if begin < len(rest) else (first, "")
        if not _NUMBERS.fullmatch(text):
            raise fault(number, f"got {text[:60]!r}; must be the numbers of {nvswitches + switches} switches")
        for word in text.split():
            names[int(word)] = f"nvswitch{word}" if len(names) < nvswitches else f"switch{word}"
        begin += 1
    gpus = [node for node in range(nodes) if node not in names]
    if not gpus or len(gpus) + len(names) != nodes or len(names) != nvswitches + switches:
        raise fault(first, f"says {nvswitches + switches} switches of {nodes} nodes, but {len(names)} numbers follow, "
                           "or one is no node")  # fmt: skip
    names |= {node: f"gpu{i}" for i, node in enumerate(gpus)}
    graph, server = empty(), int(counts[2] or 0)
    for i, node in enumerate(gpus):
        # Hosts of ns-3 do not forward.
        add_vertex(graph, names[node], "gpu", forwards=False)
        if server and len(gpus) % server == 0:
            graph.nodes[names[node]]["node"] = f"node{i // server}"
    for name in names.values():
        if name not in graph:
            add_vertex(graph, name, "switch", forwards=True)
    if len(rest) - begin != links:
        raise fault(first, f"says {links} links, but {len(rest) - begin} follow")
    for number, text in rest[begin:]:
        link = _LINK.fullmatch(text)
        if link is None or int(link[1]) == int(link[2]) or max(int(link[1]), int(link[2])) >= nodes:
            raise fault(number, f"got {text[:60]!r}; must be two of {nodes} nodes, a bandwidth and a latency")
        try:
            rate, latency = parse(link[3], "bandwidth"), parse(link[4], "time")
        except ValueError as error:
            raise fault(number, str(error)) from error
        if not rate:
            raise fault(number, f"got {link[3]}; must be more than 0")
        a, b = names[int(link[1])], names[int(link[2])]
        # Parallel links share the traffic.
        add_cable(graph, a, b, rate + graph.edges[a, b]["bandwidth"] if graph.has_edge(a, b) else rate, latency)
        if link[5] and link[5].strip("0."):
            notes.ignore(Setting("error rate", link[5], file.name, number), Reason.NOT_MODELLED, "no bytes are lost")
    place = Setting("counts", head, file.name, first)
    for part, count in (("GPUs", len(gpus)), ("NVSwitches", nvswitches), ("switches", switches), ("links", links)):
        notes.read(part, count, place)
    return Machine(graph, _gpu(counts[6], place, options, notes))


def _gpu(written: str | None, place: Setting, options: MachineOptions, notes: Notes) -> str:
    """Return the GPU of the option, or the one that the first line names, or the default."""
    if written is None or options.gpu is not None:
        return gpu_kind(options, notes) or DEFAULT
    named = registry.shipped("gpu", written)
    if named is None:
        notes.assume("GPU", DEFAULT, f"the catalog has no {written}; --gpu changes it")
    else:
        notes.read("GPU", named, place)
    return named or DEFAULT


FORMAT: Final = MachineFormat(name="ns-3 topology", is_mine=_is_mine, read=_read, uses=frozenset({"gpu"}))
