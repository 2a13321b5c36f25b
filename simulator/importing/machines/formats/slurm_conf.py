"""Slurm's topology.conf, or the output of `scontrol show topology`: a tree of switches, blocks of nodes, or rings.

SwitchName=leaf1 Nodes=gpu[001-008]      BlockName=b1 Nodes=gpu[001-018]      RingName=r1 Nodes=gpu[001-016]
SwitchName=core Switches=leaf[1-2]       BlockSizes=16,32
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from simulator.basics.errors import ScenarioError, one_line, one_of
from simulator.importing.machines.hostlist import expand
from simulator.importing.machines.machine_format import Machine, MachineFormat, SourceFile
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.machines.slurm import USES, SlurmLayout, machine
from simulator.importing.machines.switch_tree import NamedSwitch
from simulator.importing.settings import Reason, Setting

# Keys that begin a line of each kind, in lower case; keys are written in any case.
_KINDS: Final = ("switchname", "blockname", "ringname", "blocksizes", "aggregatedblock")
# Further keys of a line, by its kind.
_KEYS: Final = MappingProxyType(
    {
        "switchname": ("switches", "nodes", "linkspeed", "level"),
        "blockname": ("nodes", "blockindex", "blocksize"),
        "ringname": ("nodes",),
        "blocksizes": (),
        "aggregatedblock": ("nodes", "blockindex", "blocksize"),
    }
)
# Lines about blocks that jobs are planned for.
_PLANNED: Final = MappingProxyType({"blocksizes": "BlockSizes", "aggregatedblock": "AggregatedBlock"})
_BEGIN: Final = re.compile(r"(?im)^[ \t]*(?:switchname|aggregatedblock|blockname|ringname|blocksizes)[ \t]*=")
_PAIR: Final = re.compile(r'\s*([A-Za-z]{1,40})\s*=\s*("[^"]*"|\S+)')
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the file: its place, and its values by key in lower case."""

    place: str
    number: int
    values: Mapping[str, str]

    @property
    def kind(self) -> str:
        return next(iter(self.values))


def _is_mine(file: SourceFile) -> bool:
    return not file.name.lower().endswith((".yaml", ".yml", ".json")) and _BEGIN.search(file.text) is not None


def _read(file: SourceFile, options: MachineOptions, notes: Notes, _: Machine | None) -> Machine:
    by_kind: dict[str, list[NamedSwitch]] = {kind: [] for kind in _KINDS}
    for line in _lines(file):
        if line.kind in _PLANNED:
            setting = Setting(_PLANNED[line.kind], line.values[line.kind], file.name, line.number)
            notes.ignore(setting, Reason.NO_MEANING, "nodes of a block that jobs are planned for")
            continue
        by_kind[line.kind].append(_switch(line))
        if "linkspeed" in line.values:
            setting = Setting("LinkSpeed", line.values["linkspeed"], file.name, line.number)
            why = "any text in Slurm, which ignores it; --level-bandwidth gives rates"
            notes.ignore(setting, Reason.NOT_MODELLED, why)
    switches, blocks, rings = (tuple(by_kind[kind]) for kind in ("switchname", "blockname", "ringname"))
    layout = SlurmLayout(switches, blocks, rings)
    return machine(layout, file.name, options, notes)


def _lines(file: SourceFile) -> Iterator[_Line]:
    """Yield the lines of a file with a key, joined where a backslash ends them."""
    text, first = "", 1
    for number, line in enumerate(f"{file.text}\n".split("\n"), 1):
        first = first if text else number
        text += line.partition("#")[0]
        if text.endswith("\\"):
            text = f"{text[:-1]} "
            continue
        if text.strip():
            yield _line(file.name, first, text)
        text = ""


def _line(source: str, number: int, text: str) -> _Line:
    place, values, at = f"{source}:{number}", dict[str, str](), 0
    text = text.strip()
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise ScenarioError(one_line(f"{place}: got {text[at : at + 60]!r}; must be KEY=VALUE"))
        key, at = pair[1].lower(), pair.end()
        if key in values:
            raise ScenarioError(f"{place}: {pair[1]}: occurs twice")
        values[key] = pair[2].strip('"')
    line = _Line(place, number, values)
    if line.kind not in _KINDS:
        allowed = one_of(("SwitchName", "BlockName", "RingName", "BlockSizes"), line.kind)
        raise ScenarioError(f"{place}: got key {line.kind}; {allowed}")
    for key in list(values)[1:]:
        if key not in _KEYS[line.kind]:
            raise ScenarioError(f"{place}: unknown key {key} beside {line.kind}; {one_of(_KEYS[line.kind], key)}")
    return line


def _switch(line: _Line) -> NamedSwitch:
    name = line.values[line.kind]
    if not _NAME.fullmatch(name):
        raise ScenarioError(one_line(f"{line.place}: {line.kind}: got {name[:60]!r}; must be one name"))
    below = {key: expand(line.values[key], line.place) for key in ("switches", "nodes") if key in line.values}
    if not below:
        keys = "switches or nodes" if line.kind == "switchname" else "nodes"
        raise ScenarioError(f"{line.place}: {name}: has no {keys}")
    # The output of scontrol repeats at a switch the nodes of the switches below.
    repeated = "level" in line.values and "switches" in below
    return NamedSwitch(name, line.place, below.get("switches", ()), () if repeated else below.get("nodes", ()))


FORMAT: Final = MachineFormat(name="Slurm topology.conf", is_mine=_is_mine, read=_read, uses=USES)
