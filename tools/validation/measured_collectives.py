"""Which measured sweeps does the project have? The table catalog/measured/collectives.csv.

Every row names its source.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulator.basics.errors import UnknownNameError
from simulator.calibration.machines.header import operation_of
from simulator.calibration.machines.measured_sweep import SweepTimes

_FILE: Final = Path(__file__).parents[2] / "simulator" / "catalog" / "measured" / "collectives.csv"


@dataclass(frozen=True, slots=True)
class MeasuredSweep:
    """A sweep in the table.

    Attributes
    ----------
    name : str
        Name in the table.
    topology : str
        Shipped topology of the measured machine.
    sweep : SweepTimes
        Sizes and times.
    """

    name: str
    topology: str
    sweep: SweepTimes


def measured_sweeps() -> dict[str, MeasuredSweep]:
    """Read the table; return every sweep by name, in table order.

    Examples
    --------
    >>> measured_sweeps()["8_a100"].topology
    'dgx_a100'
    """
    by_name: dict[str, list[dict[str, str]]] = {}
    with _FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            by_name.setdefault(row["sweep"], []).append(row)
    return {name: _measured(name, rows) for name, rows in by_name.items()}


def measured_sweep(name: str) -> MeasuredSweep:
    """Return a sweep by name; raise UnknownNameError with a suggestion for an unknown name."""
    sweeps = measured_sweeps()
    if name not in sweeps:
        raise UnknownNameError("measured sweep", name, sweeps)
    return sweeps[name]


def _measured(name: str, rows: list[dict[str, str]]) -> MeasuredSweep:
    # Rows of a sweep differ only in size and time.
    first = rows[0]
    sweep = SweepTimes(
        operation=operation_of(first["op"]) or first["op"],
        world_size=int(first["ranks"]),
        rows=tuple(sorted((int(row["size_bytes"]), float(row["time_us_oop"]) / 1e6) for row in rows)),
        nodes=int(first["nodes"]),
        gpu=first["gpu"],
        source=first["source"],
    )
    return MeasuredSweep(name, first["topology"], sweep)
