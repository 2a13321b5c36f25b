"""How is the table of nccl-tests written and read? In the format of its programs, also from their logs.

Records hold seconds and B/s, the text microseconds and GB/s (10^9 B/s).

The columns are those of github.com/NVIDIA/nccl-tests (doc/PERFORMANCE.md): `algbw` is size / time, `busbw` is algbw
times the operation's factor, `size` is the whole array.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.basics import units
from simulator.basics.errors import ScenarioError, in_lines

# Names of dtypes and reductions in nccl-tests, and ours. Further spellings come last, because the first is written.
DTYPES: Final = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "int8": "int8", "uint8": "uint8",
    "int32": "int32", "uint32": "uint32", "int64": "int64", "uint64": "uint64",
    "fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16",
}  # fmt: skip
REDUCTIONS: Final = {"sum": "sum", "prod": "product", "max": "max", "min": "min", "avg": "average"}
_SPELLED: Final = {ours: theirs for theirs, ours in reversed(DTYPES.items())}
_REDUCTION_SPELLED: Final = {ours: theirs for theirs, ours in REDUCTIONS.items()}

# Size, count and type: nothing else in a log has two whole numbers before such a word. Text before them ("0: ",
# "[1,0]<stdout>: ") comes from the launcher.
_ROW: Final = re.compile(r"(?<![\w.])(\d+)\s+(\d+)\s+([A-Za-z]\w*)((?:\s+\S+)*)\s*$")
_PREFIX: Final = re.compile(r"^\s*(?:\S*[:\]>|]\s+)?#")
# Largest array [B]: as in a scenario, elements are counted in 64 bits.
MOST_SIZE: Final = 2**50
_MOST_DIGITS: Final = 18
# Headings of the columns before the times, behind the comment sign, and nccl-tests' own widths.
_HEADINGS: Final = ((" size", "count", "type", "redop", "root"), (" (B)", "(elements)", "", "", ""))
_WIDTHS: Final = (13, 12, 9, 6, 6)
_EXAMPLE: Final = "8 2 float sum -1 15.31 0.00 0.00 0"


@dataclass(frozen=True, slots=True)
class Timing:
    """A measured time of a collective, with bandwidths and the number of wrong elements."""

    time: float  # [s]
    # `algbw`, `busbw`: [B/s]; None if the text does not say.
    algbw: float | None
    busbw: float | None
    wrong: int | None = None  # wrong elements; None if not checked


@dataclass(frozen=True, slots=True)
class NcclRow:
    """A line of an nccl-tests table: a collective's size, type and measured times."""

    size: int  # size of the whole array [B]
    # Elements as counted by nccl-tests: of the whole array for all_reduce, of a rank's part for all_gather,
    # reduce_scatter and all_to_all
    count: int | None
    dtype: str  # our name ("float32"); empty if the text does not say
    redop: str  # our name ("sum", "average"), or "none"
    root: int  # -1 for operations without a root
    # `time`, `algbw`, `busbw`, `wrong`: Out of place; see `Timing`.
    time: float
    algbw: float | None
    busbw: float | None
    wrong: int | None = None
    in_place: Timing | None = None  # in-place figures

    @property
    def out_of_place(self) -> Timing:
        """Out-of-place time, bandwidths and wrong count, as a `Timing`."""
        return Timing(self.time, self.algbw, self.busbw, self.wrong)


def write_table(rows: Sequence[NcclRow], *, comment: str = "", width: int | None = None) -> str:
    """Return the rows as a text in the table format of nccl-tests, with header and footer.

    Parameters
    ----------
    rows : sequence of NcclRow
        In-place columns are written if any row has them.
    comment : str
        Lines before the header, each behind "# ".
    width : int, optional
        Preferred line width: comments are folded, and if nccl-tests' own columns are too wide, the columns before the
        times become as narrow as their contents.

    Returns
    -------
    str
        Ends with a newline.

    Examples
    --------
    >>> row = NcclRow(1_000_000, 250_000, "float32", "sum", -1, 1e-3, 1e9, 1.5e9, 0)
    >>> print(write_table([row]).splitlines()[3].strip())
    1000000        250000      float     sum      -1    1000.0    1.00    1.50      0
    """
    has_in_place = any(row.in_place for row in rows)
    lines = [piece for line in comment.splitlines() for piece in _comment(line, width)]
    leading = [_leading(row) for row in rows]
    # Only the columns before the times can shrink.
    widths = _leading_widths(leading, None if width is None else width - len(_timing(None)) * (1 + has_in_place))
    lines += _header(has_in_place, widths)
    for row, cells in zip(rows, leading, strict=True):
        lines.append(_aligned(cells, widths) + _timing(row.out_of_place))
        lines[-1] += _timing(row.in_place) if has_in_place else ""
    lines += _footer(rows)
    return "\n".join(lines) + "\n"


def _comment(line: str, width: int | None) -> list[str]:
    """Return a comment as lines beginning with "# ", folded to the width [characters]."""
    folded = textwrap.wrap(line, width - 2, break_long_words=False, break_on_hyphens=False) if width else [line]
    return [f"# {piece}".rstrip() for piece in folded or [""]]


def _leading(row: NcclRow) -> tuple[str, ...]:
    """Return a row's cells in front of the times: size, count, type, reduction, root."""
    count = "-" if row.count is None else str(row.count)
    dtype = _SPELLED.get(row.dtype, row.dtype or "-")
    redop = _REDUCTION_SPELLED.get(row.redop, row.redop or "none")
    return str(row.size), count, dtype, redop, str(row.root)


def _leading_widths(rows: Sequence[tuple[str, ...]], room: int | None) -> tuple[int, ...]:
    """Return widths of the cells in front of the times: nccl-tests' own, or the narrowest if these exceed `room`."""
    if room is None or len(_aligned(("",) * 5, _WIDTHS)) <= room:
        return _WIDTHS
    # As narrow as headings and cells allow.
    return tuple(max(map(len, column)) for column in zip(*_HEADINGS, *rows, strict=True))


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return cells joined to a line, each aligned right in its width."""
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _header(has_in_place: bool, widths: Sequence[int]) -> list[str]:
    """Return the three header lines of an nccl-tests table, with or without in-place columns."""
    columns = f"  {'time':>8}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>5}"
    units = f"  {'(us)':>8}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>5}"
    first, second = (f"#{_aligned(headings, widths)[1:]}" for headings in _HEADINGS)
    above = f"#{'':>{len(first) + 3}}{'out-of-place':^35}"
    if not has_in_place:
        return [above.rstrip(), first + columns, (second + units).rstrip()]
    return [(above + f"{'in-place':^35}").rstrip(), first + columns * 2, (second + units * 2).rstrip()]


def _timing(timing: Timing | None) -> str:
    """Return a measurement's time [us], bandwidths [GB/s] and wrong count as cells, "-" if missing."""
    if timing is None:
        return f"  {'-':>8}  {'-':>6}  {'-':>6}  {'-':>5}"
    us = timing.time * 1e6
    # About four significant digits, like nccl-tests.
    time = f"{us:.2f}" if us < 100 else f"{us:.1f}" if us < 10_000 else f"{us:.0f}"
    algbw, busbw = ("-" if rate is None else f"{rate / 1e9:.2f}" for rate in (timing.algbw, timing.busbw))
    wrong = "-" if timing.wrong is None else str(timing.wrong)
    return f"  {time:>8}  {algbw:>6}  {busbw:>6}  {wrong:>5}"


def _footer(rows: Sequence[NcclRow]) -> list[str]:
    """Return the footer lines of an nccl-tests table: number of wrong elements and mean bus bandwidth."""
    timings = [t for row in rows for t in (row.out_of_place, row.in_place) if t is not None]
    # There is no verdict without a check.
    checked = [t.wrong for t in timings if t.wrong is not None]
    verdict = f"{sum(checked)} {'OK' if sum(checked) == 0 else 'FAILED'}" if checked else "- not checked"
    rates = [t.busbw for t in timings if t.busbw is not None]
    average = f"{sum(rates) / len(rates) / 1e9:.6g}" if rates else "-"
    return [f"# Out of bounds values : {verdict}", f"# Avg bus bandwidth    : {average}", "#"]


def parse_table(text: str, source: str = "<text>") -> tuple[NcclRow, ...]:
    """Return the rows of a table in the output of an nccl-tests program, ignoring what a launcher adds to the lines.

    Parameters
    ----------
    text : str
        Lines may begin with a launcher's prefix. In-place columns, `#wrong`, `redop` and `root` may be missing, as in
        other versions; wrong may be N/A.
    source : str
        The file's name, for errors.

    Raises
    ------
    ScenarioError
        The text has no row, or a line begins like a row but its other columns are wrong; with its line number.
    """
    rows: list[NcclRow] = []
    faults: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if _PREFIX.match(line):
            continue
        match = _ROW.search(line)
        # An unknown dtype with few columns behind it: prose with two numbers by chance.
        if match is None or (match[3] not in DTYPES and len(match[4].split()) < 3):
            continue
        try:
            size, count = count_of(match[1]), count_of(match[2])
            if size is None or count is None or size > MOST_SIZE:
                raise ValueError(f"got {match[1][:60]} B in {match[2][:60]} elements; must be at most 1 PiB")
            rows.append(_row(size, count, match[3], match[4].split()))
        except ValueError as error:
            # An unknown dtype without figures behind it: an unrelated line in the log.
            if match[3] in DTYPES:
                faults.append(f"{source}:{number}: {error}; a row reads like '{_EXAMPLE}'")
    if faults:
        raise ScenarioError(in_lines(faults))
    if not rows:
        raise ScenarioError(f"{source}: no row of an nccl-tests table; a row reads like '{_EXAMPLE}'")
    return tuple(rows)


def holds_rows(text: str) -> bool:
    """Return True if any line of a text looks like a row of an nccl-tests table.

    >>> holds_rows("[0] 1024 256 float sum -1 8.5 0.12 0.21 0"), holds_rows("# nThread 1")
    (True, False)
    """
    lines = (line for line in text.splitlines() if not _PREFIX.match(line))
    return any((match := _ROW.search(line)) is not None and match[3] in DTYPES for line in lines)


def _row(size: int, count: int, dtype: str, rest: list[str]) -> NcclRow:
    """Return a row of an nccl-tests table; `rest` holds the line's words after the data type."""
    redop, numbers = ("none", rest) if not rest or _is_number(rest[0]) else (rest[0], rest[1:])
    root = -1
    # Three or four figures (time, algbw, busbw, #wrong), once or twice; an additional figure in front is the root.
    if len(numbers) in (5, 7, 9) or (len(numbers) == 4 and "." in numbers[3] and "e" not in numbers[3]):
        root, numbers = _integer(numbers[0], "root"), numbers[1:]
    if len(numbers) not in (3, 4, 6, 8):
        raise ValueError(f"got {len(rest)} columns after the type; must be 3 to 10")
    width = len(numbers) if len(numbers) < 6 else len(numbers) // 2
    first = _parse_timing(numbers[:width])
    second = _parse_timing(numbers[width:]) if len(numbers) > width else None
    if first is None:
        raise ValueError("got no out-of-place time; must be a number of microseconds")
    return NcclRow(
        size, count, DTYPES.get(dtype, dtype), REDUCTIONS.get(redop, redop), root,
        first.time, first.algbw, first.busbw, first.wrong, second,
    )  # fmt: skip


def _is_number(text: str) -> bool:
    """Return True if a text is a decimal number."""
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) is not None


def _integer(text: str, column: str) -> int:
    """Return a text as an integer; raise ValueError, with the column's name, if it is no whole number."""
    if re.fullmatch(r"-?\d+", text) is None:
        raise ValueError(f"{column}: got {text!r}; must be a whole number")
    return int(text)


def _parse_timing(columns: Sequence[str]) -> Timing | None:
    """Return a measurement from its words (time [us], algbw and busbw [GB/s], #wrong); None if all are missing."""
    if all(text in ("-", "N/A") for text in columns[:3]):
        return None
    time, algbw, busbw = (_figure(text, name) for text, name in zip(columns, ("time", "algbw", "busbw"), strict=False))
    wrong = columns[3] if len(columns) > 3 else "N/A"
    if wrong not in ("-", "N/A") and not _is_number(wrong):
        raise ValueError(f"#wrong: got {wrong!r}; must be a whole number or N/A")
    # Old versions of nccl-tests print the largest error in this column, which is no count.
    return Timing(time / 1e6, algbw * 1e9, busbw * 1e9, count_of(wrong))


def _figure(text: str, column: str) -> float:
    """Return a text as a number of 0 or more; raise ValueError, with the column's name, otherwise."""
    if not _is_number(text) or float(text) < 0:
        raise ValueError(f"{column}: got {text!r}; must be a number, 0 or more")
    if not units.within(float(text)):
        raise ValueError(f"{column}: got {text!r}; outside the range of measured values")
    return float(text)


def count_of(text: str) -> int | None:
    """Return the integer written in a text; None if the text is no plausible count.

    >>> count_of("12"), count_of("1e3"), count_of("\u00b2")
    (12, None, None)
    """
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
