"""How is a user's CSV file of measurements read: its lines, and the cells of a column?

Readers of cells are pydantic validators; each fault names the allowed values.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from simulator.basics import counts, registry
from simulator.basics.errors import ScenarioError, in_lines, one_of
from simulator.basics.input_files import read_text

Record = TypeVar("Record", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class CsvLines:
    """The columns and lines of a CSV file, with their numbers in the file."""

    line: int  # number of the line that names the columns
    head: list[str]  # names of the columns
    lines: list[tuple[int, dict[Any, Any]]]  # number and cells of each further line


def read_cells(path: Path, column: Callable[[str], str] = str) -> CsvLines:
    """Return the lines of a CSV file that names its columns in the first line; `column` translates a name.

    Empty lines and lines that start with # are skipped.

    Raises
    ------
    ScenarioError
        The file cannot be read, or is no CSV file.
    """
    # Line numbers are kept for messages, because comments and empty lines are skipped.
    lines = [(n, line) for n, line in enumerate(read_text(path).splitlines(), 1) if line and not line.startswith("#")]
    # The first remaining line names the columns.
    reader = csv.DictReader([line for _, line in lines])
    try:
        head = [column(name.strip()) for name in reader.fieldnames or ()]
        reader.fieldnames = head
        table = list(reader)
    except csv.Error as error:
        # A cell with more than 131072 characters, for example.
        raise ScenarioError(f"{path} line {lines[reader.reader.line_num - 1][0]}: not CSV: {error}") from error
    numbers = [number for number, _ in lines[1:]]
    return CsvLines(lines[0][0] if lines else 1, head, list(zip(numbers, table, strict=False)))


def filled(cells: Mapping[Any, Any], head: list[str]) -> dict[str, str]:
    """Return the cells of a line that are not empty; raise ValueError if the line has more cells than columns.

    >>> filled({"m": " 8 ", "n": ""}, ["m", "n"])
    {'m': '8'}
    """
    # DictReader stores surplus cells under None. A comma at the end of each line makes a column without a name.
    if None in cells or (cells.get("") or "").strip():
        raise ValueError(f"got more cells than the {len(list(filter(None, head)))} columns")
    return {name: text.strip() for name, text in cells.items() if text and text.strip()}


def read_records(
    path: Path, lines: CsvLines, record: type[Record], column: Mapping[str, str], what: str
) -> tuple[Record, ...]:
    """Return a record for each line of a CSV file, from the columns in `column`, which gives each column's field.

    Raises
    ------
    ScenarioError
        A line for each fault: file, line, column, allowed values; or the file has no rows, each of which is `what`.
    """
    rows, faults = [], []
    for number, cells in lines.lines:
        try:
            entries = filled(cells, lines.head).items()
            rows.append(record(**{column[name]: cell for name, cell in entries if name in column}))
        except ValidationError as error:
            faults += [f"{path} line {number}: {_fault(fault)}" for fault in error.errors()]
        except ValueError as error:
            faults.append(f"{path} line {number}: {error}")
    if not rows and not faults:
        faults.append(f"{path}: has no rows; the first line names columns, every further line is {what}")
    if faults:
        raise ScenarioError(in_lines(faults))
    return tuple(rows)


def _fault(error: Any) -> str:
    text = error["msg"].removeprefix("Value error, ")
    # Contradictions between cells name their column themselves.
    if not error["loc"]:
        return str(text)
    if error["type"] == "missing":
        return f"{error['loc'][0]}: is empty; every line needs a value"
    return f"{error['loc'][0]}: got {error['input']!r}; {text}"


def entry(kind: registry.Kind, *more: str) -> AfterValidator:
    """Return a reader of shipped names of a kind, in any spelling; `more` are further allowed words."""

    # Many lines have the same name, and similar names take milliseconds to find.
    @cache
    def read(name: str) -> tuple[str | None, str]:
        """Return the shipped name that a cell means, or None and the fault."""
        shipped = name if name in more else registry.shipped(kind, name)
        fault = "" if shipped else one_of((*more, *registry.names(kind)), name, registry.listed_by(kind))
        return shipped, fault

    def check(name: str) -> str:
        shipped, fault = read(name)
        if shipped is None:
            raise ValueError(fault)
        return shipped

    return AfterValidator(check)


def among(allowed: tuple[str, ...], spellings: Mapping[str, str] = MappingProxyType({})) -> BeforeValidator:
    """Return a reader of an allowed word; `spellings` maps further words to allowed words."""

    def check(name: object) -> object:
        word = spellings.get(name, name) if isinstance(name, str) else name
        if word not in allowed:
            raise ValueError(one_of(allowed, name))
        return word

    return BeforeValidator(check)


def _count(k: int) -> BeforeValidator:
    """Return a reader of a whole number above 0, written as in scenarios: 8192 or 8k; k means `k` units."""

    def read(cell: object) -> object:
        try:
            value = counts.parse_count(cell, k) if isinstance(cell, str) else cell
        except ValueError:
            raise ValueError(counts.allowed(k)) from None
        if isinstance(value, int) and value < 1:
            raise ValueError("must be at least 1")
        return value

    return BeforeValidator(read)


def _number(cell: object) -> object:
    """Return the number above 0 in a cell; raise ValueError for other text."""
    try:
        value = float(cell) if isinstance(cell, str) else cell
    except ValueError:
        raise ValueError("must be a number, without its unit") from None
    if isinstance(value, float) and not 0 < value < math.inf:
        raise ValueError("must be greater than 0")
    return value


def _yes_no(cell: object) -> object:
    """Return the truth value in a cell; raise ValueError for other text."""
    spellings = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    value = spellings.get(cell.lower(), cell) if isinstance(cell, str) else cell
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


Count = Annotated[int, _count(counts.THINGS), Field(ge=1)]
Tokens = Annotated[int, _count(counts.TOKENS), Field(ge=1)]
Number = Annotated[float, BeforeValidator(_number)]
YesNo = Annotated[bool, BeforeValidator(_yes_no)]
