"""The matrix of `nvidia-smi topo -m`: distances of the GPUs and network cards of a node, and counts of NVLinks.

            GPU0  GPU1  NIC0  CPU Affinity  NUMA Affinity
    GPU0     X    NV12  PIX   0-31          0
    GPU1    NV12   X    SYS   32-63         1
    NIC0    PIX   SYS    X

A cell names what two devices have in common: PIX one bridge, PXB several bridges, PHB or NODE a NUMA node, SYS nothing.
NV# is a number of NVLinks. Rates of all links are assumed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from typing import Final

from simulator.basics.errors import ScenarioError, one_line, one_of
from simulator.importing.machines.gpu_kinds import DEFAULT, gpu_kind
from simulator.importing.machines.links import Links, counted_links
from simulator.importing.machines.machine_format import Machine, MachineFormat, SourceFile
from simulator.importing.machines.network import graph_of
from simulator.importing.machines.node_parts import Device, NodeParts, Place, PlaceKind, nearest_text
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.machines.reference import Reference, reference_of
from simulator.importing.settings import Reason, Setting

_MOST_DEVICES: Final = 512
_MOST_LINES: Final = 20_000
# Most NVLinks of a GPU of any kind. An NVSwitch joins every pair by all links of a GPU.
_MOST_LINKS: Final = 18
_CELLS: Final = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
_LINKS: Final = re.compile(r"NV([1-9][0-9]?)")
# Terminals write the heading with codes for underlining.
_CODES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TITLES: Final = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_GPU: Final = re.compile(r"GPU[0-9]{1,4}")
_NO_DEVICE: Final = re.compile(r"(?:CPU|NUMA|MIG)[0-9:.]*")
_LEGEND: Final = re.compile(r"\s*(NIC[0-9]{1,4})\s*:\s*(\S{1,100})\s*")
_ROCM: Final = re.compile(r"ROCm System Management|between two GPUs|\bXGMI\b")
_UNKNOWN_AFFINITY: Final = ("", "N/A")


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The matrix of a file."""

    devices: tuple[str, ...]  # labels of GPUs and network cards, in the order of the columns
    cells: Mapping[tuple[str, str], str]  # cell of each row and column
    affinity: Mapping[str, str]  # NUMA node of a GPU, or else its processors; missing if unknown
    names: Mapping[str, str]  # names of network cards in the legend
    lines: Mapping[str, int]  # line of each device's row

    @property
    def gpus(self) -> list[str]:
        return [name for name in self.devices if _GPU.fullmatch(name)]

    @property
    def cards(self) -> list[str]:
        return [name for name in self.devices if not _GPU.fullmatch(name)]

    def groups(self, devices: Iterable[str], together: Callable[[str, str], bool]) -> list[list[str]]:
        """Return the devices in groups that are connected by pairs for which `together` holds."""
        groups: list[list[str]] = []
        for device in devices:
            joined = [group for group in groups if any(together(device, other) for other in group)]
            groups = [group for group in groups if group not in joined]
            groups.append([*(name for group in joined for name in group), device])
        order = {name: i for i, name in enumerate(self.devices)}
        return sorted((sorted(group, key=order.__getitem__) for group in groups), key=lambda group: order[group[0]])


def _is_mine(file: SourceFile) -> bool:
    # A report may have pages of other text before the matrix.
    return "GPU0" in file.text and any(_heading(line) for line in islice(file.text.splitlines(), _MOST_LINES))


def _words(line: str) -> list[str]:
    """Return the cells of a line; they contain no blanks, except for the titles of the last columns."""
    for title in _TITLES:
        line = line.replace(title, title.replace(" ", "_"))
    return _CODES.sub("", line).split()


def _heading(line: str) -> list[str]:
    """Return the cells of the heading: it begins with a GPU, followed by a device or a title; empty for other lines."""
    words = _words(_CODES.sub("", line[:100_000]))
    labels = [word for word in words if word.replace("_", " ") not in _TITLES]
    is_label = all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*[0-9]", word) for word in labels)
    is_heading = is_label and len(words) > 1 and _GPU.fullmatch(words[0]) and len(set(words)) == len(words)
    return words if is_heading else []


def _read(file: SourceFile, options: MachineOptions, notes: Notes, _: Machine | None) -> Machine:
    if _ROCM.search(file.text):
        raise ScenarioError(
            f"{file.name}: rocm-smi --showtopo is not read, because it has no network cards; give the XML that RCCL "
            "writes with NCCL_TOPO_DUMP_FILE"
        )
    matrix = _matrix(file, notes)
    links = _links_of_a_gpu(matrix)
    kind = _gpu_kind(file, matrix, options, notes, switched=links > _MOST_LINKS)
    reference = reference_of(kind, options)
    switched = links > (reference.links or _MOST_LINKS)
    notes.read("GPUs", len(matrix.gpus), _setting(file, matrix, matrix.gpus[0]))
    if matrix.cards:
        notes.read("network cards", len(matrix.cards), _setting(file, matrix, matrix.cards[0]))
        rows = [[matrix.cells[gpu, card] for card in matrix.cards] for gpu in matrix.gpus]
        notes.read("nearest network card", nearest_text(rows), _setting(file, matrix, matrix.gpus[0]))
    parts = _parts(file, matrix, reference, options, notes, switched=switched)
    socket = reference.assumed("socket_bandwidth", options.socket_bandwidth, "between NUMA nodes", notes)
    return Machine(graph_of(parts, reference, socket, options, notes), kind)


def _setting(file: SourceFile, matrix: _Matrix, device: str, key: str = "") -> Setting:
    return Setting(key or device, "", file.name, matrix.lines[device])


def _matrix(file: SourceFile, notes: Notes) -> _Matrix:
    lines = file.text.splitlines()
    first = next(number for number, line in enumerate(lines) if _heading(line))
    heading = _heading(lines[first])
    titles = [word.replace("_", " ") for word in heading if word.replace("_", " ") in _TITLES]
    columns = [word for word in heading if word.replace("_", " ") not in _TITLES]
    devices = tuple(name for name in columns if not _NO_DEVICE.fullmatch(name))
    if len(columns) > _MOST_DEVICES:
        raise ScenarioError(f"{file.name}:{first + 1}: has {len(columns)} devices; must have at most {_MOST_DEVICES}")
    cells, affinity = dict[tuple[str, str], str](), dict[str, str]()
    names, places = dict[str, str](), dict[str, int]()
    for number, line in enumerate(lines[first + 1 :], first + 2):
        words = _words(line)
        legend = _LEGEND.fullmatch(line[:300])
        if legend is not None:
            names[legend[1]] = legend[2]
        elif words and words[0] in devices and len(words) > 1:
            if words[0] in places:
                raise ScenarioError(f"{file.name}:{number}: {words[0]}: has a second row; give one matrix")
            places[words[0]] = number
            _read_row(f"{file.name}:{number}", columns, words, cells)
            by_title = dict(zip(titles, words[1 + len(columns) :], strict=False))
            masks = [by_title.get(title, "") for title in ("NUMA Affinity", "CPU Affinity")]
            usable = [text for text in masks if text not in _UNKNOWN_AFFINITY]
            if usable and _GPU.fullmatch(words[0]):
                affinity[words[0]] = usable[0]
        elif words and words[0] in columns and len(words) > 1:
            notes.ignore(Setting(f"row {words[0]}", "", file.name, number), Reason.NO_MEANING)
    matrix = _Matrix(devices, cells, affinity, names, places)
    _check(file, matrix)
    for title in titles:
        if title != "NUMA Affinity":
            notes.ignore(Setting(title, "", file.name, first + 1), Reason.NO_MEANING)
    return matrix


def _read_row(place: str, columns: Sequence[str], words: Sequence[str], cells: dict[tuple[str, str], str]) -> None:
    row = words[0]
    if len(words) <= len(columns):
        raise ScenarioError(one_line(f"{place}: {row}: has {len(words) - 1} cells; must have one for each of "
                                     f"{len(columns)} devices"))  # fmt: skip
    for column, cell in zip(columns, words[1:], strict=False):
        if _NO_DEVICE.fullmatch(column):
            continue
        if cell not in _CELLS and not _LINKS.fullmatch(cell):
            raise ScenarioError(
                one_line(f"{place}: {row}: {column}: got {cell[:40]!r}; {one_of([*_CELLS, 'NV#'], cell)}")
            )
        if (cell == "X") != (row == column):
            raise ScenarioError(f"{place}: {row}: {column}: got {cell}; X stands for the device itself")
        if _LINKS.fullmatch(cell) and not (_GPU.fullmatch(row) and _GPU.fullmatch(column)):
            raise ScenarioError(f"{place}: {row}: {column}: got {cell}; NVLinks join two GPUs")
        cells[row, column] = cell


def _check(file: SourceFile, matrix: _Matrix) -> None:
    """Raise ScenarioError unless every device has a row, and the matrix is symmetric."""
    for name in matrix.devices:
        if name not in matrix.lines:
            raise ScenarioError(f"{file.name}: {name}: has no row; give the whole matrix")
    for a, b in matrix.cells:
        if matrix.cells[a, b] != matrix.cells[b, a]:
            mirror = f"{b} and {a} have {matrix.cells[b, a]}"
            raise ScenarioError(f"{file.name}:{matrix.lines[a]}: {a}: {b}: got {matrix.cells[a, b]}, but {mirror}")


def _counts(matrix: _Matrix) -> dict[tuple[str, str], int]:
    """Return the number of NVLinks between two GPUs, by pair."""
    matches = ((pair, _LINKS.fullmatch(cell)) for pair, cell in matrix.cells.items())
    return {pair: int(links[1]) for pair, links in matches if links is not None}


def _links_of_a_gpu(matrix: _Matrix) -> int:
    """Return the largest number of NVLinks in the row of a GPU; more than a GPU can have show an NVSwitch."""
    sums = Counter[str]()
    for (gpu, _), count in _counts(matrix).items():
        sums[gpu] += count
    return max(sums.values(), default=0)


def _gpu_kind(file: SourceFile, matrix: _Matrix, options: MachineOptions, notes: Notes, *, switched: bool) -> str:
    most = max(_counts(matrix).values(), default=0)
    text = f"{most} NVLinks{' to an NVSwitch' if switched else ' between GPUs'}" if most else "no NVLinks"
    kind = gpu_kind(options, notes, None, Setting("NV#", text, file.name))
    if kind is None:
        notes.assume("GPU", DEFAULT, "the files name no GPU; --gpu changes it")
    return kind or DEFAULT


def _parts(
    file: SourceFile, matrix: _Matrix, reference: Reference, options: MachineOptions, notes: Notes, *, switched: bool
) -> NodeParts:
    pcie = reference.assumed("pcie_bandwidth", options.pcie_bandwidth, "PCIe bandwidth", notes)
    places, place_of = _places(matrix, pcie)
    numa = sum(place.kind is PlaceKind.NUMA for place in places)
    notes.read("NUMA nodes", numa, _setting(file, matrix, matrix.gpus[0], "NUMA Affinity, NODE"))
    if len(places) > numa:
        notes.read("PCIe bridges", len(places) - numa, _setting(file, matrix, matrix.gpus[0], "PIX, PXB"))
    network = 0.0
    if matrix.cards:
        network = reference.assumed("nic_bandwidth", options.nic_bandwidth, "network card", notes)
    gpus = [Device(name, place_of[name], pcie) for name in matrix.gpus]
    cards = [Device(matrix.names.get(name, name), place_of[name], pcie, network) for name in matrix.cards]
    return NodeParts(
        places, tuple(gpus), tuple(cards), _links(file, matrix, reference, options, notes, switched=switched)
    )


def _links(
    file: SourceFile, matrix: _Matrix, reference: Reference, options: MachineOptions, notes: Notes, *, switched: bool
) -> Links:
    """Return the NVLinks of the matrix; if a row has more links than a GPU, an NVSwitch for each full island."""
    number, counts = {name: i for i, name in enumerate(matrix.gpus)}, _counts(matrix)
    islands = matrix.groups(matrix.gpus, lambda a, b: (a, b) in counts) if switched else []
    full = [island for island in islands if set(permutations(island, 2)) <= counts.keys() and len(island) > 1]
    switches = [{number[a]: max(counts[a, b] for b in island if b != a) for a in island} for island in full]
    inside = {pair for island in full for pair in permutations(island, 2)}
    pairs = {(number[a], number[b]): count for (a, b), count in counts.items() if (a, b) not in inside}
    peers = {(i, j): count for (i, j), count in pairs.items() if i < j}
    setting = _setting(file, matrix, matrix.gpus[0], "NV#")
    return counted_links(peers, switches, len(number), setting, reference, options, notes)


def _places(matrix: _Matrix, pcie: float) -> tuple[tuple[Place, ...], dict[str, int]]:
    """Return NUMA nodes and bridges, and the number of each device's place.

    Devices with PIX share a bridge. Devices with PXB have bridges of their own below a common one.
    """
    places, place_of = list[Place](), dict[str, int]()

    def add(place: Place, devices: Iterable[str] = ()) -> int:
        places.append(place)
        place_of.update(dict.fromkeys(devices, len(places) - 1))
        return len(places) - 1

    def bridge(above: int, devices: Sequence[str]) -> int:
        return add(Place(PlaceKind.BRIDGE, " ".join(devices), above, pcie), devices)

    for group in matrix.groups(matrix.devices, lambda a, b: _share_numa(matrix, a, b)):
        host = add(Place(PlaceKind.NUMA, " ".join(group)), group)
        for near in matrix.groups(group, lambda a, b: matrix.cells[a, b] in ("PIX", "PXB")):
            at_one = matrix.groups(near, lambda a, b: matrix.cells[a, b] == "PIX")
            if len(near) < 2:
                continue
            above = bridge(host, near)
            for several in at_one if len(at_one) > 1 else ():
                if len(several) > 1 or _GPU.fullmatch(several[0]):
                    bridge(above, several)
    return tuple(places), place_of


def _share_numa(matrix: _Matrix, a: str, b: str) -> bool:
    """Return True if two devices are in the same NUMA node.

    A cell with NVLinks does not tell the distance by PCIe; the affinity of both GPUs does, if it is known.
    """
    cell = matrix.cells[a, b]
    if not _LINKS.fullmatch(cell):
        return cell != "SYS"
    return matrix.affinity.get(a) == matrix.affinity.get(b)


FORMAT: Final = MachineFormat(
    name="nvidia-smi topo -m",
    is_mine=_is_mine,
    read=_read,
    uses=frozenset(
        {"gpu", "nodes", "link_bandwidth", "pcie_bandwidth", "socket_bandwidth", "nic_bandwidth", "oversubscription"}
    ),
)
