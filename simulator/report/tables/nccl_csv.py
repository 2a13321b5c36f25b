"""How are measured sizes and times read from a CSV file with arbitrary column names?

A column's name gives its meaning, and the name's ending the unit; nothing is guessed from the numbers.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from simulator.basics import units
from simulator.basics.errors import ScenarioError, in_lines
from simulator.report.tables.nccl_table import DTYPES, MOST_SIZE, REDUCTIONS, NcclRow, Timing, count_of

# Factor to SI of each spelling. Names are compared in lower case, with _ for anything except letters and digits.
_SIZE: Final = {
    "size": 1, "size_bytes": 1, "bytes": 1, "nbytes": 1, "size_b": 1, "message_size": 1, "message_bytes": 1,
    "size_kib": 2**10, "size_mib": 2**20, "size_gib": 2**30, "size_kb": 10**3, "size_mb": 10**6, "size_gb": 10**9,
}  # fmt: skip
# A bare "time" is in microseconds, as in nccl-tests' own table.
_TIME: Final = {
    "time": 1e-6, "time_us": 1e-6, "latency_us": 1e-6, "us": 1e-6, "time_ns": 1e-9, "time_ms": 1e-3, "time_s": 1.0,
    "seconds": 1.0, "time_seconds": 1.0,
}  # fmt: skip
_ALGBW: Final = {"algbw": 1e9, "algbw_gbps": 1e9, "algbw_gb_s": 1e9, "alg_bw": 1e9}
_BUSBW: Final = {"busbw": 1e9, "busbw_gbps": 1e9, "busbw_gb_s": 1e9, "bus_bw": 1e9}
# Column endings: out of place, in place.
_OUT: Final = ("", "_oop", "_out_of_place")
_IN: Final = ("_ip", "_in_place", "_inplace")


def is_remark(line: str) -> bool:
    """Return True if a line of a file is empty or a comment (#).

    >>> is_remark("  # nThread 1"), is_remark(""), is_remark("1024,8.5")
    (True, True, False)
    """
    return not line.strip() or line.lstrip().startswith("#")


def looks_like_csv(text: str) -> bool:
    r"""Return True if the first line of a text that is no comment names several columns, a size column among them.

    >>> looks_like_csv("# one node\nsize;time_us\n1024;8.5"), looks_like_csv("time_us\n8.5")
    (True, False)
    """
    for line in text.splitlines():
        if not is_remark(line):
            try:
                names = [_plain(name) for name in _split(line)]
            # Not a CSV line, for example a cell with more than 131072 characters.
            except ValueError:
                return False
            return len(names) > 1 and _column(names, _SIZE, _OUT) is not None
    return False


def parse_csv(text: str, source: str = "<text>", bus_factor: float | None = None) -> tuple[NcclRow, ...]:
    r"""Return the measured rows in a comma, semicolon or tab separated text.

    Parameters
    ----------
    text : str
        Text with a header line. Required: a size (size, size_bytes, bytes, size_mib, ...) and a time (time, time_us,
        time_ms, time_s, time_us_oop, ...; a bare `time` is in microseconds), or else a bandwidth (algbw, busbw; GB/s).
        Read if present: count, type or dtype, redop, root, wrong, and in-place times (time_us_ip, ...). Other columns
        are ignored.
    source : str
        The file's name, for errors.
    bus_factor : float, optional
        Bus bandwidth over size / time; required if a table has neither a time nor algbw.

    Raises
    ------
    ScenarioError
        A column or a value is missing or wrong: a message line for each fault, with its line number.

    Examples
    --------
    >>> [(row.size, row.time) for row in parse_csv("size_kib,time_us\n1,8.5")]
    [(1024, 8.5e-06)]
    """
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if not is_remark(line)]
    if not lines:
        raise ScenarioError(f"{source}: the file is empty; must have a header with a size and a time column")
    names = [_plain(name) for name in _split(lines[0][1])]
    size, time = _column(names, _SIZE, _OUT), _column(names, _TIME | _ALGBW | _BUSBW, _OUT)
    for column, what, table in ((size, "size", _SIZE), (time, "time", _TIME)):
        if column is None:
            raise ScenarioError(
                f"{source}:{lines[0][0]}: got columns {', '.join(names)}; must have a {what}: one of {', '.join(table)}"
            )
    # Bus bandwidth alone gives a time only with the operation's factor.
    if bus_factor is None and _column(names, _TIME | _ALGBW, _OUT) is None:
        raise ScenarioError(
            f"{source}:{lines[0][0]}: has bus bandwidth and no time; give world_size and operation to compute the time"
        )
    rows: list[NcclRow] = []
    faults: list[str] = []
    delimiter = _delimiter(lines[0][1])
    for number, line in lines[1:]:
        try:
            cells = [cell.strip() for cell in _cells(line, delimiter)]
            # Collect every faulty line: a user wants to see every fault at once.
            if len(cells) != len(names):
                raise ValueError(f"got {len(cells)} columns; must be {len(names)}, as in the header")
            rows.append(_row(dict(zip(names, cells, strict=True)), names, bus_factor))
        except ValueError as error:
            faults.append(f"{source}:{number}: {error}")
    if faults:
        raise ScenarioError(in_lines(faults))
    if not rows:
        raise ScenarioError(f"{source}: no rows below the header")
    return tuple(rows)


def _plain(name: str) -> str:
    """Return a column name in lower case, with _ in place of each run of other characters."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_")


def _delimiter(line: str) -> str:
    """Return the most frequent delimiter (comma, semicolon or tab) of a line."""
    return max(",;\t", key=line.count)


def _split(line: str) -> list[str]:
    """Return the cells of a line, split at its most frequent delimiter."""
    return _cells(line, _delimiter(line))


def _cells(line: str, delimiter: str) -> list[str]:
    """Return the cells of a CSV line, split at the delimiter."""
    try:
        return next(csv.reader([line], delimiter=delimiter))
    # The csv module refuses cells of more than 131072 characters.
    except csv.Error as error:
        raise ValueError(f"{error}; is it the right file?") from error


def _column(names: Sequence[str], table: Mapping[str, float], endings: Sequence[str]) -> tuple[str, float] | None:
    """Return the first column spelled as a stem of `table` plus an ending, and its factor to SI units; else None."""
    for stem, factor in table.items():
        for ending in endings:
            if stem + ending in names:
                return stem + ending, factor
    return None


def _row(cells: Mapping[str, str], names: Sequence[str], bus_factor: float | None) -> NcclRow:
    """Return a CSV line's cells as a measured row (size, times, bandwidths)."""
    size = _number(cells, _column(names, _SIZE, _OUT))
    # Bytes are whole numbers; a fraction means a wrong column or unit.
    if size is None or size > MOST_SIZE or size != int(size):
        raise ValueError(f"size: got {size}; must be a whole number of bytes, at most 1 PiB")
    out = _timing(cells, names, _OUT, "wrong", size, bus_factor)
    if out is None:
        raise ValueError("time: got nothing; must be a number")
    dtype = cells.get("dtype") or cells.get("type") or ""
    redop = cells.get("redop") or "none"
    count, root = (_number(cells, (name, 1.0) if name in cells else None, least=-1.0) for name in ("count", "root"))
    return NcclRow(
        int(size), None if count is None else int(count), DTYPES.get(dtype, dtype), REDUCTIONS.get(redop, redop),
        -1 if root is None else int(root), out.time, out.algbw, out.busbw, out.wrong,
        _timing(cells, names, _IN, "wrong_ip", size, bus_factor),
    )  # fmt: skip


def _timing(
    cells: Mapping[str, str],
    names: Sequence[str],
    endings: Sequence[str],
    wrong: str,
    size: float,
    bus_factor: float | None,
) -> Timing | None:
    """Return a CSV line's time, bandwidths and wrong count, out of place or in place; None without a time."""
    algbw = _number(cells, _column(names, _ALGBW, endings))
    busbw = _number(cells, _column(names, _BUSBW, endings))
    time = _number(cells, _column(names, _TIME, endings))
    if _column(names, _TIME, endings) is None:
        # Without a time column, compute the time from a bandwidth.
        rate = algbw if algbw is not None else None if busbw is None or not bus_factor else busbw / bus_factor
        time = size / rate if rate else None
    if time is None:
        return None
    if time <= 0.0:
        raise ValueError(f"time: got {time:g}; must be more than 0")
    count = cells.get(wrong, "")
    return Timing(time, size / time if algbw is None else algbw, busbw, count_of(count))


def _number(cells: Mapping[str, str], column: tuple[str, float] | None, least: float = 0.0) -> float | None:
    """Return a cell's number in SI units; None if the column is missing or its cell is empty."""
    if column is None or cells[column[0]] in ("", "-", "N/A", "nan"):
        return None
    name, factor = column
    try:
        value = float(cells[name])
    except ValueError as error:
        raise ValueError(f"{name}: got {cells[name]!r}; must be a number") from error
    if not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name}: got {cells[name]!r}; must be {least:g} or more, and finite")
    # Absurd magnitudes would overflow later computations.
    if not units.within(abs(value * factor)):
        raise ValueError(f"{name}: got {cells[name]!r}; outside the range of measured values")
    return value * factor
