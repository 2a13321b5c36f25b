"""How does a rank's memory become a PyTorch memory snapshot, for pytorch.org/memory_viz and torch.cuda._memory_viz?

The allocator's own log is written with the names that these tools look for; nothing is added to the log.

Requirements of the readers, with their sources (torch/cuda/_memory_viz.py, torch/utils/viz/MemoryViz.js):

- Blocks of a segment are contiguous and sum to its total_size; the viewer sums their sizes instead of reading
  addresses.
- The segments are those at the end of the trace: the viewer works backwards from there, event by event.
- The viewer reads pickle protocols 2 to 4 only, numbers of at most 8 bytes, and addresses as doubles, so below 2^53.
- Frames come innermost first. Our label is the innermost frame, its category the next. `;` separates frames in flame
  graphs, and a name containing `_start` is omitted there, so both are replaced.
- A trace whose events have categories is coloured by category, but "unknown" must be among them, or the viewer stops:
  segments have this category.
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

# Our free is two PyTorch events: another stream may still use the memory in between.
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
    """Write a rank's allocator events as a pickled PyTorch memory snapshot; equal events give equal bytes.

    Parameters
    ----------
    events : iterable of AllocatorEvent
        Events of a rank, in order, from the start.
    file : path
        Such as memory/rank0.pickle; its folder is created if necessary.
    until : float, optional
        See `snapshot`.
    """
    target = Path(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(pickle.dumps(snapshot(events, until=until), protocol=_PROTOCOL))
    return target


def snapshot(events: Iterable[AllocatorEvent], *, until: float | None = None) -> Snapshot:
    """Return a PyTorch memory snapshot, like `torch.cuda.memory._snapshot()`, from a rank's allocator events.

    Parameters
    ----------
    events : iterable of AllocatorEvent
        Events of a rank, in order, from the start.
    until : float, optional
        Omit later events [s]; at a step's end little is left in `segments`, at its peak most.

    Returns
    -------
    dict
        "segments" at the end, and "device_traces" with a single device, number 0, as a rank sees its GPU.

    Raises
    ------
    ValueError
        Unknown action, or contradictory events: a free of memory that is not held, an allocation outside all segments.
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
    """Return (time [s], bytes reserved from the device) after each change, from a rank's allocator events."""
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    changes: list[tuple[float, int]] = []
    total = 0
    for event in events:
        if event.action in signs:
            total += signs[event.action] * event.size
            changes.append((event.time, total))
    return tuple(changes)


def _entries(event: AllocatorEvent) -> Iterator[dict[str, Any]]:
    """Yield the trace entries of a PyTorch memory snapshot for an allocator event."""
    about = event.label if event.action in ("alloc", "free", "oom") else f"{event.label} pool"
    for action in _ACTIONS[event.action]:
        yield {
            "action": action,
            # An out-of-memory event carries the free memory instead of an address.
            "device_free" if action == "oom" else "addr": event.address,
            "size": event.size,
            "stream": event.stream,
            "time_us": round(event.time * 1e6),
            "frames": _frames(about, event.category),
            "category": sys.intern(event.category or _NO_CATEGORY),
        }


def _frames(label: str, category: str) -> list[dict[str, Any]]:
    """Return an allocation's label and category as the stack frames of a memory snapshot, innermost first."""
    names = [name for name in (label, category) if name]
    return [{"filename": "simulator", "line": 0, "name": _as_frame(name)} for name in names]


def _as_frame(name: str) -> str:
    """Return a name without ";" and "_start", which have special meanings in the memory viewer."""
    # Intern names: pickle writes equal but distinct strings twice, so the bytes would depend on their origin.
    return sys.intern(name.replace(";", ",").replace("_start", " start"))


@dataclass(slots=True)
class _Run:
    """A contiguous address range of memory reserved from the device: a segment, or several merged ones."""

    address: int
    size: int
    stream: int
    kind: str
    expandable: bool

    @property
    def end(self) -> int:
        """First address behind the address range."""
        return self.address + self.size

    def holds(self, address: int, size: int) -> bool:
        """Return True if the block of `size` bytes at `address` lies inside the address range."""
        return self.address <= address and address + size <= self.end


@dataclass(slots=True)
class _State:
    """The allocator while its events are replayed: blocks in use, and address ranges reserved from the device."""

    held: dict[int, AllocatorEvent] = field(default_factory=dict)  # the event that allocated each block in use
    runs: list[_Run] = field(default_factory=list)  # ranges by address
    expandable: bool = False  # True if any segment was mapped into an address range that can grow

    def play(self, event: AllocatorEvent) -> None:
        """Apply an allocator event to the state; raise ValueError if the event contradicts the state."""
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
        """Return the address range containing an event's block; raise ValueError if there is none."""
        # The last range that starts at or before the address.
        place = bisect_right(self.runs, event.address, key=lambda run: run.address) - 1
        if place < 0 or not self.runs[place].holds(event.address, max(event.size, event.block_size)):
            raise ValueError(f"{event.action} of {event.label!r} at {event.address:#x} lies in no segment")
        return self.runs[place]

    def _add(self, event: AllocatorEvent) -> None:
        """Add an event's segment to the address ranges, merged with its neighbours if ranges can grow."""
        mapped = event.action == "segment_map"
        self.expandable = self.expandable or mapped
        run = _Run(event.address, event.size, event.stream, sys.intern(event.label), mapped)
        place = bisect_left(self.runs, event.address, key=lambda run: run.address)
        self.runs.insert(place, run)
        # Join with the range behind first, so that `place` still names the new range for the join in front.
        if mapped and place + 1 < len(self.runs):
            self._join(place)
        if mapped and place > 0:
            self._join(place - 1)

    def _join(self, place: int) -> None:
        """Merge the ranges number `place` and `place` + 1 if they touch and both can grow."""
        first, second = self.runs[place : place + 2]
        compatible = (first.stream, first.kind, first.expandable) == (second.stream, second.kind, second.expandable)
        if compatible and first.end == second.address:
            first.size += second.size
            del self.runs[place + 1]

    def _remove(self, event: AllocatorEvent) -> None:
        """Remove an event's segment; if it is a part of an address range, the rests before and behind stay."""
        run = self._run_of(event)
        place = self.runs.index(run)
        # Unmapping from the middle splits the range:
        #    before  [ front | unmapped | behind ]
        #    after   [ front ]           [ behind ]
        behind = run.end - (event.address + event.size)
        run.size = event.address - run.address
        if behind:
            rest = _Run(event.address + event.size, behind, run.stream, run.kind, run.expandable)
            self.runs.insert(place + 1, rest)
        if not run.size:
            del self.runs[place]

    def segments(self) -> list[dict[str, Any]]:
        """Return the segments of a memory snapshot, sorted by address, each with its blocks."""
        addresses = sorted(self.held)
        segments = []
        for run in self.runs:
            within = addresses[bisect_left(addresses, run.address) : bisect_left(addresses, run.end)]
            segments.append(_segment(run, [self.held[address] for address in within]))
        return segments


def _segment(run: _Run, allocations: list[AllocatorEvent]) -> dict[str, Any]:
    """Return a memory snapshot's description of a segment: address, sizes [B] and blocks."""
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
    """Yield the blocks of a segment by address: each allocation, and an inactive block for each gap."""
    address = run.address
    for event in allocations:
        # A gap before this allocation.
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
    """Return a memory snapshot's description of a free block from address `start` to `end`."""
    return {"address": start, "size": end - start, "requested_size": end - start, "state": "inactive", "frames": []}


def _block_size(event: AllocatorEvent) -> int:
    """Return an allocation's block size including rounding [B]."""
    return event.block_size or event.size
