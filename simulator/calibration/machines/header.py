"""What does a measured sweep's file say of its machine: ranks, hosts, GPU, operation?

Rule: read from the rank list of nccl-tests or from the columns of a CSV file, and from nothing else.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulator.basics.input_files import MOST_DATA, read_text
from simulator.collectives.algorithm import OPERATIONS
from simulator.errors import ScenarioError
from simulator.report.tables.nccl_csv import is_remark, looks_like_csv
from simulator.report.tables.nccl_table import count_of

# As src/common.cu of nccl-tests prints it; older versions have no `Group`.
_RANK: Final = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*?)\s*$",
    re.MULTILINE,
)
_PROGRAM: Final = re.compile(r"\b([a-z_]+)_perf\b")
_SPELLED: Final = {"alltoall": "all_to_all", "allreduce": "all_reduce", "allgather": "all_gather",
                   "reducescatter": "reduce_scatter"}  # fmt: skip
_OPERATION: Final = ("op", "operation", "collective", "coll")
_RANKS: Final = ("ranks", "world_size", "nranks", "num_ranks", "n_ranks", "gpus")
_NODES: Final = ("nodes", "boxes", "hosts", "num_nodes", "nnodes")
# As in a scenario: ten times the largest machine in operation.
MOST_RANKS: Final = 1_000_000
_GPU: Final = ("gpu", "gpu_name", "device")
# Columns that tell several sweeps in one file apart.
_SWEEP: Final = ("sweep", "machine", "run")


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of its machine; None or empty where it does not."""

    world_size: int | None = None
    nodes: int | None = None
    operation: str | None = None
    gpu: str = ""


def read_header(path: Path | str) -> Header:
    """Read it, from a file that is known to be readable.

    Raises
    ------
    ScenarioError
        Rows of several sweeps in one CSV file; ranks that are not numbered 0, 1, 2, ...
    """
    text = read_text(path, most=MOST_DATA)
    return _from_csv(text, path) if looks_like_csv(text) else _from_log(text, path)


def operation_of(name: str) -> str | None:
    """Our name of an operation as others spell it; None where it is none of ours.

    Examples
    --------
    >>> operation_of("alltoall"), operation_of("all-gather"), operation_of("sendrecv")
    ('all_to_all', 'all_gather', None)
    """
    plain = re.sub(r"[^a-z0-9]+", "_", name.strip().lower())
    plain = _SPELLED.get(plain.replace("_", ""), plain)
    return plain if plain in OPERATIONS else None


def _from_log(text: str, path: Path | str) -> Header:
    ranks = _RANK.findall(text)
    numbers = sorted({int(number) for number, _, _ in ranks})
    if numbers and numbers != list(range(len(numbers))):
        raise ScenarioError(f"{path}: ranks: got numbers {numbers}; must be 0 to {len(numbers) - 1}: is the log whole?")
    named = [operation_of(name) for name in _PROGRAM.findall(text)]
    operations = {name for name in named if name}
    return Header(
        world_size=len(numbers) or None,
        nodes=len({host for _, host, _ in ranks}) or None,
        operation=operations.pop() if len(operations) == 1 else None,
        gpu=ranks[0][2] if ranks else "",
    )


# Values that a message names, and how many letters of each.
_MOST_NAMED: Final = 5
_MOST_LETTERS: Final = 40


def _some(values: Collection[str]) -> str:
    """Values as a message names them: a few, and the beginning of each."""
    cut = [value if len(value) <= _MOST_LETTERS else value[:_MOST_LETTERS] + "..." for value in values]
    return ", ".join(cut[:_MOST_NAMED]) + (f" and {len(cut) - _MOST_NAMED} more" if len(cut) > _MOST_NAMED else "")


def _from_csv(text: str, path: Path | str) -> Header:
    lines = [line for line in text.splitlines() if not is_remark(line)]
    dialect = max(",;\t", key=lines[0].count)
    try:
        rows = list(csv.DictReader(lines, delimiter=dialect))
    except csv.Error as error:  # quotes that are never closed make a cell of all that follows
        raise ScenarioError(f"{path}: {error}; check its quotes") from error
    plain = [{str(key).strip().lower(): str(value).strip() for key, value in row.items()} for row in rows]
    for names in (_SWEEP, _OPERATION, _RANKS, _NODES):
        values = _values(plain, names)
        if len(values) > 1:
            raise ScenarioError(
                f"{path}: {_name(plain, names)}: got {_some(values)}; must be one sweep a file; "
                "keep the rows of one and leave the others out"
            )
    operation = _only(plain, _OPERATION)
    if operation and operation_of(operation) is None:
        raise ScenarioError(f"{path}: operation: got {_some([operation])!r}; one of {', '.join(OPERATIONS)}")
    return Header(
        world_size=_whole(plain, _RANKS, path),
        nodes=_whole(plain, _NODES, path),
        operation=operation_of(operation) if operation else None,
        gpu=_only(plain, _GPU) or "",
    )


def _name(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> str | None:
    return next((name for name in names if rows and name in rows[0]), None)


def _values(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[str]:
    name = _name(rows, names)
    return [] if name is None else list(dict.fromkeys(row[name] for row in rows if row[name]))


def _only(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> str | None:
    values = _values(rows, names)
    return values[0] if values else None


def _whole(rows: Sequence[Mapping[str, str]], names: Sequence[str], path: Path | str) -> int | None:
    value = _only(rows, names)
    if value is None:
        return None
    count = count_of(value)
    if not count or count > MOST_RANKS:
        raise ScenarioError(f"{path}: {_name(rows, names)}: got {value!r}; must be a whole number, 1 to {MOST_RANKS}")
    return count
