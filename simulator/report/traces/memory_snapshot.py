"""How does one rank's memory become a PyTorch memory snapshot, for pytorch.org/memory_viz and torch.cuda._memory_viz?

Rule: the allocator's own log, with the names that those tools look for; nothing is added that the log does not hold.

What the readers need, and where each was found (torch/cuda/_memory_viz.py, torch/utils/viz/MemoryViz.js):

- Blocks of a segment follow each other without a gap and sum to its total_size; they have no address of their own in
  the viewer, which counts them up.
- The segments are those at the end of the trace: the viewer works back from there, event by event.
- The viewer reads pickle protocols 2 to 4 only, numbers of at most 8 bytes, and addresses as doubles, so below 2^53.
- Frames come innermost first. Our label is the innermost, its category the one around it; `;` parts frames in flame
  graphs, and a name with `_start` in it is left out there, so both are written otherwise.
- A trace whose events have categories is coloured by them, but "unknown" must be one, or the viewer stops: segments
  are of that category.
"""

from __future__ import annotations

import pickle
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simulator.records.timeline import AllocatorEvent

# A release of ours is two events of PyTorch's: a stream that still uses the memory may come between them.
_ACTIONS: Final = {
    "alloc": ("alloc",),
    "free": ("free_requested", "free_completed"),
    "oom": ("oom",),
    "segment_alloc": ("segment_alloc",),
    "segment_free": ("segment_free",),
    "segment_map": ("segment_map",),
    "segment_unmap": ("segment_unmap",),
}
_NO_CATEGORY: Final = "unknown"
# The viewer's unpickler refuses 5 and above.
_PROTOCOL: Final = 4

Snapshot = dict[str, Any]


def write(events: Iterable[AllocatorEvent], file: Path | str, *, until: float | None = None) -> Path:
    """Write a snapshot as a pickle; equal bytes for equal events.

    Parameters
    ----------
    events : iterable of AllocatorEvent
        Of one rank, in order, from the start.
    file : path
        Such as memory/rank0.pickle; its folder is made where it does not exist.
    until : float, optional
        See `snapshot`.

    Returns
    -------
    Path
    """
    target = Path(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(pickle.dumps(snapshot(events, until=until), protocol=_PROTOCOL))
    return target


def snapshot(events: Iterable[AllocatorEvent], *, until: float | None = None) -> Snapshot:
    """Build what `torch.cuda.memory._snapshot()` would return.

    Parameters
    ----------
    events : iterable of AllocatorEvent
        Of one rank, in order, from the start.
    until : float, optional
        Leave out what came later than this [s]; at a step's end little is left to see in `segments`, at its peak most.

    Returns
    -------
    dict
        "segments" as they are at the end, "device_traces" with one device, number 0, as a rank sees its GPU.

    Raises
    ------
    ValueError
        An action that is not known, or events that contradict each other: a free of what is not held, an allocation
        outside all segments.
    """
    state = _State()
    trace: list[dict[str, Any]] = []
    for event in events:
        if until is not None and event.time > until:
            break
        if event.action not in _ACTIONS:
            raise ValueError(f"got action {event.action!r}; one of {', '.join(sorted(_ACTIONS))}")
        state.play(event)
        trace.extend(_entries(event))
    return {
        "segments": state.segments(),
        "device_traces": [trace],
        "allocator_settings": {"expandable_segments": state.expandable},
    }


def reserved(events: Iterable[AllocatorEvent]) -> tuple[tuple[float, int], ...]:
    """What an allocator holds from the device, each time that it changes: from when on [s], how much [B]."""
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    changes: list[tuple[float, int]] = []
    total = 0
    for event in events:
        if event.action in signs:
            total += signs[event.action] * event.size
            changes.append((event.time, total))
    return tuple(changes)


def _entries(event: AllocatorEvent) -> Iterator[dict[str, Any]]:
    about = event.label if event.action in ("alloc", "free", "oom") else f"{event.label} pool"
    for action in _ACTIONS[event.action]:
        yield {
            "action": action,
            "device_free" if action == "oom" else "addr": event.address,
            "size": event.size,
            "stream": event.stream,
            "time_us": round(event.time * 1e6),
            "frames": _frames(about, event.category),
            "category": sys.intern(event.category or _NO_CATEGORY),
        }


def _frames(label: str, category: str) -> list[dict[str, Any]]:
    names = [name for name in (label, category) if name]
    return [{"filename": "simulator", "line": 0, "name": _as_frame(name)} for name in names]


def _as_frame(name: str) -> str:
    # One object for each name: pickle writes a second equal one out again, so bytes would depend on who made them.
    return sys.intern(name.replace(";", ",").replace("_start", " start"))


@dataclass(slots=True)
class _Run:
    """Addresses with memory behind them, without a gap."""

    address: int
    size: int
    stream: int
    kind: str
    expandable: bool

    @property
    def end(self) -> int:
        return self.address + self.size

    def holds(self, address: int, size: int) -> bool:
        return self.address <= address and address + size <= self.end


@dataclass(slots=True)
class _State:
    """The allocations and segments that the events so far have left.

    Attributes
    ----------
    held : dict of address to AllocatorEvent
        The event that allocated each block that is in use.
    runs : list of _Run
        By address.
    expandable : bool
        Whether any segment was mapped into an address range that can grow.
    """

    held: dict[int, AllocatorEvent] = field(default_factory=dict)
    runs: list[_Run] = field(default_factory=list)
    expandable: bool = False

    def play(self, event: AllocatorEvent) -> None:
        if event.action == "alloc":
            self._run_of(event)
            self.held[event.address] = event
        elif event.action == "free":
            if self.held.pop(event.address, None) is None:
                raise ValueError(f"{event.label!r} frees {event.address:#x}, which is not held")
        elif event.action in ("segment_alloc", "segment_map"):
            self._add(event)
        elif event.action in ("segment_free", "segment_unmap"):
            self._remove(event)

    def _run_of(self, event: AllocatorEvent) -> _Run:
        place = bisect_right(self.runs, event.address, key=lambda run: run.address) - 1
        if place < 0 or not self.runs[place].holds(event.address, max(event.size, event.block_size)):
            raise ValueError(f"{event.action} of {event.label!r} at {event.address:#x} lies in no segment")
        return self.runs[place]

    def _add(self, event: AllocatorEvent) -> None:
        mapped = event.action == "segment_map"
        self.expandable = self.expandable or mapped
        run = _Run(event.address, event.size, event.stream, sys.intern(event.label), mapped)
        place = bisect_left(self.runs, event.address, key=lambda run: run.address)
        self.runs.insert(place, run)
        if mapped and place + 1 < len(self.runs):
            self._join(place)
        if mapped and place > 0:
            self._join(place - 1)

    def _join(self, place: int) -> None:
        """Merge two neighbouring runs that touch, where both can grow."""
        first, second = self.runs[place : place + 2]
        alike = (first.stream, first.kind, first.expandable) == (second.stream, second.kind, second.expandable)
        if alike and first.end == second.address:
            first.size += second.size
            del self.runs[place + 1]

    def _remove(self, event: AllocatorEvent) -> None:
        run = self._run_of(event)
        place = self.runs.index(run)
        behind = run.end - (event.address + event.size)
        run.size = event.address - run.address
        if behind:
            rest = _Run(event.address + event.size, behind, run.stream, run.kind, run.expandable)
            self.runs.insert(place + 1, rest)
        if not run.size:
            del self.runs[place]

    def segments(self) -> list[dict[str, Any]]:
        """Segments by address, each filled with blocks."""
        addresses = sorted(self.held)
        segments = []
        for run in self.runs:
            within = addresses[bisect_left(addresses, run.address) : bisect_left(addresses, run.end)]
            segments.append(_segment(run, [self.held[address] for address in within]))
        return segments


def _segment(run: _Run, allocations: list[AllocatorEvent]) -> dict[str, Any]:
    allocated = sum(_block_size(event) for event in allocations)
    return {
        "device": 0,
        "address": run.address,
        "total_size": run.size,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(event.size for event in allocations),
        "stream": run.stream,
        "segment_type": run.kind,
        "segment_pool_id": (0, 0),
        "is_expandable": run.expandable,
        "frames": _frames(f"{run.kind} pool", ""),
        "blocks": list(_blocks(run, allocations)),
    }


def _blocks(run: _Run, allocations: list[AllocatorEvent]) -> Iterator[dict[str, Any]]:
    address = run.address
    for event in allocations:
        if event.address > address:
            yield _free_block(address, event.address)
        size = _block_size(event)
        yield {
            "address": event.address,
            "size": size,
            "requested_size": event.size,
            "state": "active_allocated",
            "frames": _frames(event.label, event.category),
        }
        address = event.address + size
    if address < run.end:
        yield _free_block(address, run.end)


def _free_block(start: int, end: int) -> dict[str, Any]:
    return {"address": start, "size": end - start, "requested_size": end - start, "state": "inactive", "frames": []}


def _block_size(event: AllocatorEvent) -> int:
    return event.block_size or event.size
