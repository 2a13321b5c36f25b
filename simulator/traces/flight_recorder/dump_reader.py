"""Reads dumps of PyTorch's NCCL flight recorder, one for each rank, as JSON or as a pickle of plain containers.

Fields are those of versions 1 and 2 of the dump (torch/csrc/distributed/c10d/FlightRecorder.hpp): `entries`, a ring
buffer with an entry for each collective, and `pg_config` with the ranks of each process group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from simulator.basics.dtypes import TORCH_ITEMSIZES
from simulator.basics.errors import ScenarioError, one_line
from simulator.basics.input_files import MOST_DATA, parse_json, read_bytes
from simulator.basics.plain_data import at
from simulator.traces.flight_recorder.pickle_data import plain_data
from simulator.traces.json_stream import whole_number
from simulator.traces.kineto.kernel_names import kind_of_collective

State = Literal["scheduled", "started", "completed"]
# Most files, entries of all files, ranks of a group, and longest name that is kept.
_MOST_FILES: Final = 4096
_MOST_ENTRIES: Final = 3_000_000
_MOST_RANKS: Final = 1_000_000
_LONGEST: Final = 200
_MOST_NUMBERS: Final = 10**15
# A file's name ends with the rank: nccl_trace_rank_3, nccl_trace_rank_3.json.
_RANK: Final = re.compile(r"(\d{1,7})(\.(json|pickle|pkl|bin))?$")
_ENDS: Final = re.compile(r"\b(\d{1,7})(->|<-)(\d{1,7})$")
# Latest time [ns]: the year 2255.
_LATEST: Final = 9_000_000_000_000_000_000
_STATES: Final[tuple[State, ...]] = ("scheduled", "started", "completed")


@dataclass(frozen=True, slots=True)
class Entry:
    """A collective, or a send or receive, of a rank."""

    rank: int
    group: str  # name of the process group
    # Sequence number in the group; sends and receives have numbers of their own.
    number: int
    # `operation`, `name`: Kind of the operation, and PyTorch's name.
    operation: str
    name: str
    state: State  # one of {"scheduled", "started", "completed"}
    # `created`, `started`, `completed`: When the host issued the operation, and when the watchdog saw the start and the
    # end [ns].
    created: int | None
    started: int | None
    completed: int | None
    # Time on the GPU [s]; None without TORCH_NCCL_ENABLE_TIMING.
    duration: float | None
    nbytes: int | None  # bytes of the larger of inputs and outputs
    point_to_point: bool
    # Sender and receiver of a send or a receive, as ranks of the group; None for collectives, or if unknown.
    ends: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Dump:
    """The dump of a rank."""

    source: str  # path of the file
    rank: int
    entries: tuple[Entry, ...]  # in the order in which they were issued
    groups: Mapping[str, tuple[int, ...]]  # ranks of each process group, as far as the dump says
    faulty: int  # number of entries without a group or number, which are left out


def read_dumps(paths: Sequence[Path]) -> tuple[Dump, ...]:
    """Return the dumps in files, or in the files of directories, by rank.

    Raises
    ------
    ScenarioError
        A file is no dump or exceeds a limit, or two dumps are of one rank.
    """
    dumps: dict[int, Dump] = {}
    entries = 0
    for place, path in enumerate(_files(paths)):
        dump = _dump(path, place)
        if dump.rank in dumps:
            raise ScenarioError(one_line(f"{path}: is of rank {dump.rank}, as {dumps[dump.rank].source} is"))
        dumps[dump.rank] = dump
        entries += len(dump.entries)
        if entries > _MOST_ENTRIES:
            raise ScenarioError(one_line(f"{path}: the dumps have more than {_MOST_ENTRIES:,} entries"))
    if not entries:
        raise ScenarioError(one_line(f"{paths[0]}: has no entries; set TORCH_NCCL_TRACE_BUFFER_SIZE before the job"))
    return tuple(dumps[rank] for rank in sorted(dumps))


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, with directories replaced by their files that end with a rank."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        dumps = sorted(file for file in path.iterdir() if file.is_file() and _RANK.search(file.name))
        if not dumps:
            raise ScenarioError(one_line(f"{path}: has no file whose name ends with a rank, such as nccl_trace_rank_0"))
        files += dumps
    if len(files) > _MOST_FILES:
        raise ScenarioError(f"got {len(files)} files; at most {_MOST_FILES} are read")
    return files


def _dump(path: Path, place: int) -> Dump:
    """Return the dump in a file; `place` is its number among the files, and its rank if nothing else says it."""
    content = read_bytes(path, most=MOST_DATA)
    data = _data(content, str(path))
    if not isinstance(data, dict):
        raise ScenarioError(one_line(f"{path}: has no list `entries`; give a dump of PyTorch's NCCL flight recorder"))
    # A JSON dump of a rank that has issued nothing has no entries.
    raw_entries = at(data, ("entries",)) if "entries" in data or "version" not in data else ()
    if not isinstance(raw_entries, list | tuple):
        raise ScenarioError(one_line(f"{path}: has no list `entries`; give a dump of PyTorch's NCCL flight recorder"))
    if len(raw_entries) > _MOST_ENTRIES:
        raise ScenarioError(one_line(f"{path}: has more than {_MOST_ENTRIES:,} entries"))
    rank = whole_number(at(data, ("rank",)), most=_MOST_RANKS)
    if rank is None:
        match = _RANK.search(path.name)
        rank = int(match.group(1)) if match else place
    entries = [entry for raw in raw_entries if (entry := _entry(raw, rank)) is not None]
    return Dump(str(path), rank, tuple(entries), _groups(at(data, ("pg_config",))), len(raw_entries) - len(entries))


def _data(content: bytes, source: str) -> Any:
    if content[:1] == b"\x80":
        return plain_data(content, source)
    if not content.lstrip()[:1] == b"{":
        raise ScenarioError(one_line(f"{source}: neither JSON nor a pickle; give a dump of PyTorch's flight recorder"))
    try:
        return parse_json(content.decode(), source)
    except UnicodeDecodeError as error:
        raise ScenarioError(one_line(f"{source}: not a UTF-8 text: byte {error.start}")) from error


def _entry(data: Any, rank: int) -> Entry | None:
    """Return an entry; None if it has no group or no number."""
    if not isinstance(data, dict):
        return None
    point_to_point = data.get("is_p2p") is True
    keys = ("p2p_seq_id",) if point_to_point else ("collective_seq_id", "seq_id")
    number = next((number for number in map(whole_number, map(data.get, keys)) if number is not None), None)
    group = _group(data)
    if number is None or group is None:
        return None
    name = _text(data.get("profiling_name"))
    # JSON has 0 for a time that is not known.
    created, started, completed = (
        whole_number(data.get(key), least=1, most=_LATEST)
        for key in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
    )
    text = data.get("state")
    state = next((state for state in _STATES if state == text), None)
    if state is None:
        state = "completed" if completed is not None else "started" if started is not None else "scheduled"
    return Entry(
        rank, group, number, kind_of_collective(name or "unknown"), name, state, created, started, completed,
        _seconds(data.get("duration_ms")), _nbytes(data), point_to_point, _ends(name) if point_to_point else None,
    )  # fmt: skip


def _ends(name: str) -> tuple[int, int] | None:
    """Return sender and receiver in the name of a send or a receive: nccl:send 0->1, nccl:recv 1<-0."""
    match = _ENDS.search(name)
    if match is None:
        return None
    first, second = int(match[1]), int(match[3])
    return (first, second) if match[2] == "->" else (second, first)


def _group(data: Mapping[str, Any]) -> str | None:
    """Return the name of an entry's process group."""
    group = data.get("process_group")
    if isinstance(group, list | tuple) and group:
        group = group[0]
    if group is None:
        group = data.get("pg_name", data.get("pg_id"))
    return _text(str(group)) if isinstance(group, str | int) and not isinstance(group, bool) else None


def _seconds(milliseconds: Any) -> float | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    return milliseconds / 1e3 if math.isfinite(milliseconds) and 0 <= milliseconds < 1e12 else None


def _nbytes(data: Mapping[str, Any]) -> int | None:
    """Return the bytes of the larger of an operation's inputs and outputs; None if sizes or dtypes are not known."""
    totals = []
    for side in ("input", "output"):
        sizes, dtypes = data.get(f"{side}_sizes"), data.get(f"{side}_dtypes")
        if not isinstance(sizes, list | tuple) or not isinstance(dtypes, list | tuple):
            continue
        widths = [TORCH_ITEMSIZES.get(dtype) for dtype in dtypes if isinstance(dtype, str)]
        counts = [_elements(shape) for shape in sizes]
        if len(widths) == len(counts) and None not in widths and None not in counts:
            totals.append(sum((w or 0) * (c or 0) for w, c in zip(widths, counts, strict=True)))
    return max(totals, default=None)


def _elements(sizes: Any) -> int | None:
    """Return the elements of a tensor with these sizes."""
    if not isinstance(sizes, list | tuple) or len(sizes) > 64:
        return None
    count = 1
    for size in sizes:
        extent = whole_number(size)
        if extent is None or count * extent > _MOST_NUMBERS:
            return None
        count *= extent
    return count


def _groups(data: Any) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group in a `pg_config`; ranks are a list, or the text of a list."""
    groups = {}
    for key, config in data.items() if isinstance(data, dict) else ():
        ranks = config.get("ranks") if isinstance(config, dict) else config
        if isinstance(ranks, str):
            ranks = ranks.strip("[] ").split(",") if len(ranks) < _MOST_RANKS else ()
            ranks = [text.strip() for text in ranks if text.strip()]
        numbers = _numbers(ranks)
        if numbers:
            name = config.get("name") if isinstance(config, dict) else None
            groups[_text(name if isinstance(name, str) else str(key))] = numbers
    return groups


def _numbers(values: Iterable[Any] | None) -> tuple[int, ...]:
    """Return different ranks in order; nothing if a value is no rank."""
    if not isinstance(values, list | tuple) or len(values) > _MOST_RANKS:
        return ()
    ranks = [whole_number(value, most=_MOST_RANKS) for value in values]
    return () if None in ranks else tuple(sorted({rank for rank in ranks if rank is not None}))


def _text(value: Any) -> str:
    return one_line(value[:_LONGEST]) if isinstance(value, str) else ""
