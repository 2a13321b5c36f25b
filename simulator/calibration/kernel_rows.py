"""Which kernels has somebody measured alone? Reads a table of the catalog, or a CSV file with the same columns.

The columns of a file decide which family of `measured_kernels` its lines have. The names of columns in the sources' own
tables are known, too. Each fault is a line with file, line and column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from simulator.basics.errors import ScenarioError, in_lines, one_of
from simulator.basics.measured_tables import FOLDER
from simulator.calibration.cells import read_cells, read_records
from simulator.calibration.measured_kernels import FAMILIES, MeasuredKernel

# Columns of the sources' own tables, and of written predictions, that no record has.
_UNUSED: Final = frozenset(
    [
        "system", "tflops_derived", "framework", "quantize_us", "topology", "tflops", "what", "model_shape",
        "tflops_printed", "iterations", "cudnn_frontend", "cudnn_backend", "cudnn", "bias", "effective_GBps",
        "group", "measured_us", "simulated_us", "error",
    ]
)  # fmt: skip
# Columns that every family has.
_COMMON: Final = frozenset(MeasuredKernel.model_fields)


def kernel_rows(table: str | Path) -> tuple[MeasuredKernel, ...]:
    """Return the measured kernels in a table of the catalog ("matmul", ...), or in a CSV file.

    Raises
    ------
    ScenarioError
        No such table or file; a line for each fault: file, line, column, allowed values.

    Examples
    --------
    >>> row = kernel_rows("attention")[0]
    >>> row.gpu, row.label, row.seconds
    ('gb200', 'bfloat16, forward', 0.111031)
    """
    path = FOLDER / f"{table}.csv" if str(table) in FAMILIES else Path(table)
    if not path.is_file():
        raise ScenarioError(f"{table}: no such file; give a CSV file, or a table: {one_of(FAMILIES, table)}")
    lines = read_cells(path)
    record = _record(lines.head)
    if record is None:
        raise ScenarioError(f"{path} line {lines.line}: {_unknown()}")
    names = [record.other_columns.get(name, name) for name in lines.head]
    if wrong := _wrong(names, record):
        raise ScenarioError(in_lines([f"{path} line {lines.line}: {fault}" for fault in wrong]))
    column = {name: other for name, other in zip(lines.head, names, strict=True) if other not in _UNUSED}
    return read_records(path, lines, record, column, "a kernel")


def columns(record: type[MeasuredKernel]) -> dict[str, bool]:
    """Return the columns of a family in order, each with whether every line needs a value.

    >>> [name for name, needed in columns(FAMILIES["matmul"]).items() if needed]
    ['gpu', 'dtype', 'm', 'n', 'k', 'time_us']
    """
    fields = sorted(record.model_fields.items(), key=lambda item: item[0] == "source")
    return {field.alias or name: field.is_required() for name, field in fields}


def _record(head: Iterable[str]) -> type[MeasuredKernel] | None:
    """Return the family of which a file has the largest share of columns; None if the file has none."""

    def share(record: type[MeasuredKernel]) -> float:
        needed = {name for name, is_needed in columns(record).items() if is_needed} - _COMMON
        return len(needed & {record.other_columns.get(name, name) for name in head}) / len(needed)

    best = max(FAMILIES.values(), key=share)
    return best if share(best) else None


def _unknown() -> str:
    needed = (
        f"{name} ({', '.join(column for column, is_needed in columns(record).items() if is_needed)})"
        for name, record in FAMILIES.items()
    )
    return f"the columns belong to no table of kernels; the tables need: {'; '.join(needed)}"


def _wrong(names: list[str], record: type[MeasuredKernel]) -> list[str]:
    """Return a fault for each mistake in the columns of a file of this family."""
    allowed = columns(record)
    uses = Counter(filter(None, names))
    faults = [f"{name}: names {count} columns; keep one of them" for name, count in uses.items() if count > 1]
    faults += [
        f"{name}: no such column in a table of {record.family}; {one_of(allowed, name)}"
        for name in uses
        if name not in allowed and name not in _UNUSED
    ]
    missing = [name for name, is_needed in allowed.items() if is_needed and name not in uses]
    return [*faults, *(f"{name}: is missing; every line of a table of {record.family} needs it" for name in missing)]
