"""Which data does a measured sweep hold? Sizes and times, the operation, ranks and hosts.

Facts missing in the file must be given, or are derived from its figures and listed as assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulator.basics import dtypes
from simulator.basics.errors import ScenarioError, UnknownNameError
from simulator.basics.input_files import MOST_DATA, read_text
from simulator.calibration.machines.header import MOST_RANKS, Header, header_of
from simulator.calibration.machines.sweep_parts import parts
from simulator.collectives.algorithm import OPERATIONS
from simulator.report.numbers.summary import busbw_factor
from simulator.report.tables.nccl_file import parse
from simulator.report.tables.nccl_table import NcclRow

# busbw / algbw for n ranks (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md) exceeds 1 only for all_reduce: 2 (n-1)/n.
# Printed with two decimals, the ratio determines n up to this number.
_MOST_RANKS_BY_RATIO: Final = 32
# Most sweeps named in a message.
_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class SweepTimes:
    """Measured times of a collective operation on a machine, by array size."""

    operation: str  # measured operation
    world_size: int  # number of ranks
    rows: tuple[tuple[int, float], ...]  # size of the whole array [B] and time [s], in order of size
    nodes: int | None = None  # number of hosts; None if missing in the file
    dtype: str = "float32"  # data type of the elements
    gpu: str = ""  # name in the file; empty if missing
    source: str = ""  # text for the topology file's `source`
    assumed: tuple[str, ...] = ()  # facts derived instead of read


def read_sweep(path: Path | str, *, world_size: int | None = None, operation: str | None = None) -> SweepTimes:
    """Return the measured sweep in a file with a single sweep; see `read_sweeps`.

    Raises
    ------
    ScenarioError
        The file holds several sweeps.
    """
    sweeps = read_sweeps(path, world_size=world_size, operation=operation)
    if len(sweeps) > 1:
        names = ", ".join(f"{sweep.operation} of {sweep.world_size} ranks" for sweep in sweeps[:_MOST_NAMED])
        raise ScenarioError(
            f"{path}: holds {len(sweeps)} sweeps ({names}, ...); must be one here; fit_all accepts several sweeps"
        )
    return sweeps[0]


def read_sweeps(
    path: Path | str, *, world_size: int | None = None, operation: str | None = None
) -> tuple[SweepTimes, ...]:
    """Return the measured sweeps in an output of nccl-tests (a run, or several runs in a row), or in a CSV file with
    sizes and times.

    A CSV file may hold several operations, numbers of ranks and runs. A bandwidth may replace the time.

    Parameters
    ----------
    path : path
        File to read.
    world_size : int, optional
        Number of ranks, if the file has neither a list of ranks nor a column `ranks`.
    operation : str, optional
        Operation, if missing in the file.

    Returns
    -------
    tuple of SweepTimes
        The sweeps, with out-of-place times.

    Raises
    ------
    ScenarioError
        Unreadable file; or the number of ranks, or the operation, is neither in the file nor given.
    """
    if operation is not None and operation not in OPERATIONS:
        raise UnknownNameError("operation", operation, OPERATIONS, listed_by="simulator list operations")
    texts = parts(read_text(path, most=MOST_DATA), str(path))
    return tuple(_sweep(text, path, world_size, operation) for text in texts)


def _sweep(text: str, path: Path | str, world_size: int | None, operation: str | None) -> SweepTimes:
    # Report broken rows before missing facts.
    parse(text, str(path), 1.0)
    header = header_of(text, path)
    name, members = operation or header.operation, world_size or header.world_size
    # Second pass: with known ranks and operation, times follow from bus bandwidths.
    rows = parse(text, str(path), busbw_factor(name, members) if name and members else None)
    assumed: list[str] = []
    ranks = _world_size(path, header, world_size, operation or header.operation, rows, assumed)
    what = operation or header.operation or _operation(path, ranks, rows, assumed)
    times = _times(path, rows)
    nodes = header.nodes
    return SweepTimes(what, ranks, times, nodes, _dtype(path, rows, assumed), header.gpu, str(path), tuple(assumed))


def _world_size(
    path: Path | str,
    header: Header,
    world_size: int | None,
    operation: str | None,
    rows: Sequence[NcclRow],
    assumed: list[str],
) -> int:
    if world_size is not None and header.world_size is not None and world_size != header.world_size:
        raise ScenarioError(f"{path}: world_size: got {world_size}; the file has {header.world_size}; omit world_size")
    if world_size is not None and not 2 <= world_size <= MOST_RANKS:
        bound = "at least 2" if world_size < 2 else f"at most {MOST_RANKS}"
        raise ScenarioError(f"{path}: world_size: got {world_size}; must be {bound}")
    # Given numbers complete the file; they never contradict it (checked above).
    ranks = world_size or header.world_size
    if ranks is None and operation in (None, "all_reduce"):
        ranks = _from_ratio(rows)
        if ranks is not None:
            assumed.append(f"{ranks} ranks, from busbw / algbw = {2 * (ranks - 1) / ranks:.4g} of an all_reduce")
    if ranks is None:
        raise ScenarioError(f"{path}: has no number of ranks; give world_size")
    return ranks


def _ratio(rows: Sequence[NcclRow]) -> float | None:
    """Return bus bandwidth / algorithm bandwidth of the fastest row, which has most digits; None if no row has both."""
    fast = max(rows, key=lambda row: row.algbw or 0.0)
    return fast.busbw / fast.algbw if fast.busbw and fast.algbw and fast.algbw >= 1e9 else None


def _from_ratio(rows: Sequence[NcclRow]) -> int | None:
    # Example: ratio 1.75 gives n = 2 / (2 - 1.75) = 8.
    ratio = _ratio(rows)
    if ratio is None or not 1.02 < ratio < 2.0:
        return None
    ranks = round(2.0 / (2.0 - ratio))
    # The printed ratio must match this n more closely than its neighbours.
    exact = abs(ratio - 2 * (ranks - 1) / ranks) < 2e-3 / ranks
    return ranks if exact and ranks <= _MOST_RANKS_BY_RATIO else None


def _operation(path: Path | str, ranks: int, rows: Sequence[NcclRow], assumed: list[str]) -> str:
    ratio = _ratio(rows)
    if ratio is not None and ranks > 2 and abs(ratio - 2 * (ranks - 1) / ranks) < 0.02:
        assumed.append(f"operation all_reduce, from busbw / algbw = {ratio:.4g}")
        return "all_reduce"
    allowed = ", ".join(OPERATIONS)
    raise ScenarioError(f"{path}: has no operation; give operation: one of {allowed}")


def _dtype(path: Path | str, rows: Sequence[NcclRow], assumed: list[str]) -> str:
    names = {row.dtype for row in rows if row.dtype}
    if len(names) != 1:
        assumed.append("float32, because the file has no dtype or several dtypes")
        return "float32"
    # Only the size matters: unsigned types are simulated like signed types of equal size.
    name = names.pop().replace("uint64", "int64").replace("uint32", "int32")
    try:
        return dtypes.find(name).name
    except UnknownNameError as error:
        raise ScenarioError(f"{path}: {error}") from error


def _times(path: Path | str, rows: Sequence[NcclRow]) -> tuple[tuple[int, float], ...]:
    """Return pairs (size [B], time [s]) by ascending size; several times for a size become their median."""
    by_size: dict[int, list[float]] = {}
    for row in rows:
        if row.size > 0 and row.time > 0:
            by_size.setdefault(row.size, []).append(row.time)
    # A single size cannot separate start-up and rate.
    if len(by_size) < 2:
        raise ScenarioError(f"{path}: got {len(by_size)} size with a time; a start-up and a rate need at least 2")
    return tuple((size, _middle(times)) for size, times in sorted(by_size.items()))


def _middle(times: list[float]) -> float:
    ordered = sorted(times)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
