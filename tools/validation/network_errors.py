"""How far is each measured collective from a simulation that knows the links alone? Writes
catalog/measured/network_errors.csv.

Topologies are shipped ones without their `collectives`; the algorithm is the choice of `auto` there. Each sweep is
played with the library's model, from which the links of its GPU are left out, and with the links' ratings. The errors
widen the intervals of predictions for machines without measured collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Final

from simulator.basics.csv_text import csv_text
from simulator.calibration.machines.check import shipped_rows
from simulator.calibration.machines.records import large
from simulator.calibration.table import Table
from simulator.cluster.build import build
from simulator.report.numbers.network_errors import NetworkError, error_size
from simulator.report.numbers.prediction_intervals import SHARES
from tools.validation.measured_collectives import measured_sweeps
from tools.validation.over_nodes import BUSY, over_nodes

_HEAD: Final = """\
# Errors of measured collectives, ln(measured / simulated), simulated as if no machine's collectives had been measured:
# by the library's model without the figures of such links ("model"), and by the links' ratings and latencies alone,
# without start-ups and caps ("ratings"); seconds are simulated.
# Written by `python -m tools.validation.machines_page` from collectives.csv (from 1 MiB up) and
# collectives_over_nodes.csv (each number of nodes is a sweep of one size).
"""
_COLUMNS: Final = ("source", "sweep", "by", "seconds", "error")
# Links whose figures the model must not know, by GPU of the sweep.
_LINKS: Final = {
    "A100": "NVLink 3", "H100": "NVLink 4", "H200": "NVLink 4", "B200": "NVLink 5", "GB200": "NVLink 5",
    "RTX PRO 6000": "PCIe 5",
}  # fmt: skip
# Durations of collectives with errors in docs/measured.md [s].
_LENGTHS: Final = (1e-4, 1e-3, 1e-2, 1e-1)


def errors_of_sweep(name: str) -> tuple[NetworkError, ...]:
    """Return the errors of a sweep in collectives.csv, by the library's model and by the links' ratings."""
    measured = measured_sweeps()[name]
    sweep, model = measured.sweep, build(measured.topology, measured.sweep.world_size).library
    if model is None:
        raise ValueError(f"{measured.topology} has no model of its library")
    # operations=(): no operation keeps its constants.
    return tuple(
        NetworkError(sweep.source, name, library is not None, row.simulated, log(row.measured / row.simulated))
        for library in (replace(model, without=_LINKS[sweep.gpu]), None)
        for row in large(shipped_rows(sweep, measured.topology, operations=(), library=library)[1])
    )


def network_errors() -> Iterator[NetworkError]:
    """Yield the errors of every measured collective."""
    for name in measured_sweeps():
        yield from errors_of_sweep(name)
    # Over many nodes, each number of nodes is a sweep with a single size.
    # Racks are left out: without constants, 1,440 ranks take minutes, and small arrays were not measured.
    for row in over_nodes(BUSY):
        for basis in ("model", "ratings"):
            seconds = row.seconds(row.played(basis))
            name = f"{row.topology} {row.operation} {row.nodes}"
            yield NetworkError(row.source, name, basis == "model", seconds, log(row.seconds(row.mean) / seconds))


def write_network_errors(path: Path, found: Sequence[NetworkError]) -> None:
    """Write the table."""
    rows = [
        (one.source, one.sweep, "model" if one.modelled else "ratings", f"{one.seconds:.4g}", f"{one.error:.4f}")
        for one in found
    ]
    path.write_text(_HEAD + csv_text([_COLUMNS, *rows]), encoding="utf-8")


def unmeasured_table(found: Sequence[NetworkError]) -> Table:
    """Return the errors of collectives at a few durations, by the library's model and by the links' ratings."""
    rows = []
    for modelled, seconds in product((True, False), _LENGTHS):
        sizes = [error_size(seconds, share, found, modelled=modelled) for share in (0.5, *SHARES)]
        by = "the library's model" if modelled else "the links' ratings"
        rows.append((by, f"{1e3 * seconds:g} ms", *(f"x {exp(size):.2f}" for size in sizes)))
    head = ("by", "simulated", "half within", *(f"{share:.0%} within" for share in SHARES))
    return Table("", head, tuple(rows))
