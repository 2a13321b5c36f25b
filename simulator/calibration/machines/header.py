"""Which facts about the machine does a sweep's file contain: ranks, hosts, GPU, operation?

Facts come from the list of ranks in nccl-tests, or from the columns of a CSV file, and from nothing else.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.calibration.machines.sweep_parts import NODES, OPERATION, RANKS
from simulator.collectives.algorithm import OPERATIONS
from simulator.report.tables.nccl_csv import is_remark, looks_like_csv
from simulator.report.tables.nccl_table import count_of

# Format in src/common.cu of nccl-tests; older versions print no `Group`. Example:
#   Rank  0 Group  0 Pid  1234 on  node1 device  0 [0x07] NVIDIA H100 80GB HBM3
_RANK: Final = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*?)\s*$",
    re.MULTILINE,
)
_PROGRAM: Final = re.compile(r"\b([a-z_]+)_perf\b")
_SPELLED: Final = {"alltoall": "all_to_all", "allreduce": "all_reduce", "allgather": "all_gather",
                   "reducescatter": "reduce_scatter"}  # fmt: skip
# Same bound as in a scenario: ten times the largest machine in operation.
MOST_RANKS: Final = 1_000_000
_GPU: Final = ("gpu", "gpu_name", "device")


@dataclass(frozen=True, slots=True)
class Header:
    """Facts about the measured machine in a sweep's file; None or empty if missing."""

    world_size: int | None = None
    nodes: int | None = None
    operation: str | None = None
    gpu: str = ""


def header_of(text: str, path: Path | str) -> Header:
    r"""Return the facts about the machine from the text of a sweep's file, after its rows were read successfully.

    Raises
    ------
    ScenarioError
        Ranks not numbered 0, 1, 2, ...; or an unknown operation.

    Examples
    --------
    >>> header_of("operation,ranks,size,time\nall_reduce,2,8,1", "sweep.csv")
    Header(world_size=2, nodes=None, operation='all_reduce', gpu='')
    """
    return _from_csv(text, path) if looks_like_csv(text) else _from_log(text, path)


def operation_of(name: str) -> str | None:
    """Return the package's name for a collective operation in another spelling; None for an unknown operation.

    >>> operation_of("alltoall"), operation_of("all-gather"), operation_of("sendrecv")
    ('all_to_all', 'all_gather', None)
    """
    plain = re.sub(r"[^a-z0-9]+", "_", name.strip().lower())
    plain = _SPELLED.get(plain.replace("_", ""), plain)
    return plain if plain in OPERATIONS else None


def _from_log(text: str, path: Path | str) -> Header:
    ranks = _RANK.findall(text)
    numbers = sorted({int(number) for number, _, _ in ranks})
    # Missing numbers mean that lines were lost, and the number of ranks would be wrong.
    if numbers and numbers != list(range(len(numbers))):
        raise ScenarioError(
            f"{path}: ranks: got numbers {numbers}; must be 0 to {len(numbers) - 1}; is the log complete?"
        )
    programs = [operation_of(name) for name in _PROGRAM.findall(text)]
    # A log may mention several programs; then the operation is unknown.
    operations = {name for name in programs if name}
    return Header(
        world_size=len(numbers) or None,
        nodes=len({host for _, host, _ in ranks}) or None,
        operation=operations.pop() if len(operations) == 1 else None,
        gpu=ranks[0][2] if ranks else "",
    )


# Most characters of a value shown in a message.
_MOST_LETTERS: Final = 40


def _from_csv(text: str, path: Path | str) -> Header:
    lines = [line for line in text.splitlines() if not is_remark(line)]
    dialect = max(",;\t", key=lines[0].count)
    try:
        rows = list(csv.DictReader(lines, delimiter=dialect))
    # An unclosed quote swallows every following line.
    except csv.Error as error:
        raise ScenarioError(f"{path}: {error}; check its quotes") from error
    plain = [{str(key).strip().lower(): str(value).strip() for key, value in row.items()} for row in rows]
    operation = _only(plain, OPERATION)
    if operation and operation_of(operation) is None:
        cell = operation[:_MOST_LETTERS] + "..." * (len(operation) > _MOST_LETTERS)
        raise ScenarioError(f"{path}: operation: got {cell!r}; one of {', '.join(OPERATIONS)}")
    return Header(
        world_size=_integer(plain, RANKS, path),
        nodes=_integer(plain, NODES, path),
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


def _integer(rows: Sequence[Mapping[str, str]], names: Sequence[str], path: Path | str) -> int | None:
    value = _only(rows, names)
    if value is None:
        return None
    count = count_of(value)
    if not count or count > MOST_RANKS:
        raise ScenarioError(f"{path}: {_name(rows, names)}: got {value!r}; must be a whole number, 1 to {MOST_RANKS}")
    return count
