"""How far is each measured collective from a simulation on links alone? Writes catalog/measured/network_errors.csv.

Topologies are shipped ones without their `collectives`; the algorithm is the choice of `auto` there. The errors widen
the intervals of predictions for machines without measured collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import Final

from simulator.basics.csv_text import csv_text
from simulator.calibration.machines.check import shipped_rows
from simulator.calibration.machines.records import large
from simulator.calibration.table import Table
from simulator.report.numbers.network_errors import NetworkError, error_size
from simulator.report.numbers.prediction_intervals import SHARES
from tools.validation.measured_collectives import measured_sweeps
from tools.validation.over_nodes import BUSY, over_nodes

_HEAD: Final = """\
# Errors of measured collectives, ln(measured / simulated), simulated as if no machine's collectives had been measured:
# without start-ups and caps, only with the links' ratings and latencies; seconds are simulated.
# Written by `python -m tools.validation.machines_page` from collectives.csv (from 1 MiB up) and
# collectives_over_nodes.csv (each number of nodes is a sweep of one size).
"""
_COLUMNS: Final = ("source", "sweep", "seconds", "error")
# Durations of collectives with errors in docs/measured.md [s].
_LENGTHS: Final = (1e-4, 1e-3, 1e-2, 1e-1)


def errors_of_sweep(name: str) -> tuple[NetworkError, ...]:
    """Return the errors of a sweep in collectives.csv."""
    measured = measured_sweeps()[name]
    # known=(): no operation keeps its constants.
    _, rows = shipped_rows(measured.sweep, measured.topology, operations=())
    return tuple(
        NetworkError(measured.sweep.source, name, row.simulated, log(row.measured / row.simulated))
        for row in large(rows)
    )


def network_errors() -> Iterator[NetworkError]:
    """Yield the errors of every measured collective."""
    for name in measured_sweeps():
        yield from errors_of_sweep(name)
    # Over many nodes, each number of nodes is a sweep with a single size.
    # Racks are left out: without constants, 1,440 ranks take minutes, and small arrays were not measured.
    for row in over_nodes(BUSY):
        seconds = row.seconds(row.played(known=False))
        name = f"{row.topology} {row.operation} {row.nodes}"
        yield NetworkError(row.source, name, seconds, log(row.seconds(row.mean) / seconds))


def write_network_errors(path: Path, found: Sequence[NetworkError]) -> None:
    """Write the table."""
    rows = [(one.source, one.sweep, f"{one.seconds:.4g}", f"{one.error:.4f}") for one in found]
    path.write_text(_HEAD + csv_text([_COLUMNS, *rows]), encoding="utf-8")


def unmeasured_table(found: Sequence[NetworkError]) -> Table:
    """Return the errors of collectives at a few durations."""
    rows = []
    for seconds in _LENGTHS:
        sizes = [error_size(seconds, share, found) for share in (0.5, *SHARES)]
        rows.append((f"{1e3 * seconds:g} ms", *(f"x {exp(size):.2f}" for size in sizes)))
    head = ("simulated", "half within", *(f"{share:.0%} within" for share in SHARES))
    return Table("", head, tuple(rows))
