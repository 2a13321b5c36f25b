"""How is a file with a measured sweep read? As a log of nccl-tests, or as a CSV file."""

from __future__ import annotations

from pathlib import Path

from simulator.basics.input_files import MOST_DATA, read_text
from simulator.report.tables.nccl_csv import looks_like_csv, parse_csv
from simulator.report.tables.nccl_table import NcclRow, parse_table


def read(path: Path | str) -> tuple[NcclRow, ...]:
    """Return the measured rows of a file: a log of nccl-tests, or a CSV file with size and time columns.

    Raises
    ------
    ScenarioError
        The file cannot be read, holds no rows, or a row is broken; with its line.
    """
    return parse(read_text(path, most=MOST_DATA), str(path))


def parse(text: str, source: str, bus_factor: float | None = None) -> tuple[NcclRow, ...]:
    """Return the measured rows of a text, an nccl-tests log or CSV.

    `bus_factor` is bus bandwidth over size / time; it is needed for CSV tables whose only figure is the bus bandwidth.
    """
    return parse_csv(text, source, bus_factor) if looks_like_csv(text) else parse_table(text, source)
