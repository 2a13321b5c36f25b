"""How are docs/measured.md and its figure written? By `python -m tools.validation.machines_page`.

Every number on the page is computed here, from the table of sweeps and the shipped topologies. Only words (in
machines_text.py) are written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from simulator.basics.units import format_bytes, format_time
from simulator.calibration.machines.check import left_out, machine_rows, shipped_rows
from simulator.calibration.machines.fit_writing import written
from simulator.calibration.machines.records import FitRow, constants, large
from simulator.calibration.table import Table
from simulator.cluster.build import build
from simulator.cluster.cluster import MachineCollective
from simulator.report.numbers.network_errors import TABLE, NetworkError
from simulator.report.plots import style
from tools.validation import measured_plot as plot_measured
from tools.validation.machines_text import (
    AFTER,
    BEFORE,
    BORROWED,
    GATHER,
    GATHER_WHY,
    OVER_NODES,
    OVER_RACKS,
    UNMEASURED,
    UNMEASURED_WHY,
    WHY,
    XLA,
)
from tools.validation.measured_collectives import MeasuredSweep, measured_sweeps
from tools.validation.network_errors import network_errors, unmeasured_table, write_network_errors
from tools.validation.over_nodes import BUSY, RACKS, over_nodes
from tools.validation.shipped_machines import FITTED, GATHERS, SWEPT, gather_sweeps

# Name of each fitted sweep on the page.
_NAMES: Final = {
    "8_a100": "8 A100",
    "p4de_16_a100": "16 A100, p4de",
    "8_h100": "8 H100",
    "p5_16_h100": "16 H100, p5",
    "8_b200": "8 B200",
    "16_b200": "16 B200",
}


def write(folder: Path, unmeasured: Sequence[NetworkError]) -> None:
    """Write measured.md and images/measured.{png,svg} into a docs folder.

    `unmeasured` are the errors of collectives simulated on links alone, without measured constants.
    """
    sweeps = measured_sweeps()
    played = {name: _played(sweeps[name]) for name in FITTED}
    rows = {name: fit_rows for name, (_, fit_rows) in played.items()}
    fig = plot_measured.figure([_panel(name, sweeps[name], rows[name]) for name in FITTED], _finding(rows))
    style.save(fig, folder / "images", "measured", svg=True)
    parts = [
        BEFORE,
        _constants({name: machine for name, (machine, _) in played.items()}),
        "## How far off\n\n" + _errors(rows),
        _worst(rows),
        "![Bus bandwidth of six machines over array size, measured and simulated](images/measured.png)\n",
        _left_out(sweeps),
        _gathers(),
        _others(sweeps),
        _borrowed(sweeps),
        UNMEASURED + unmeasured_table(unmeasured).markdown() + UNMEASURED_WHY,
        _over_nodes(),
        _racks(),
        AFTER + _sources(sweeps),
    ]
    (folder / "measured.md").write_text("\n".join(parts), encoding="utf-8")


def _played(measured: MeasuredSweep) -> tuple[MachineCollective, tuple[FitRow, ...]]:
    cluster = build(measured.topology, measured.sweep.world_size)
    machine = cluster.collectives[measured.sweep.operation]
    return machine, machine_rows(cluster, measured.sweep, machine)


def _panel(name: str, measured: MeasuredSweep, rows: Sequence[FitRow]) -> plot_measured.MachinePanel:
    n = measured.sweep.world_size
    # Bus bandwidth of an all_reduce.
    factor = 2 * (n - 1) / n
    return plot_measured.MachinePanel(
        f"{_NAMES[name]}: {rows[-1].error:+.1%} at {format_bytes(rows[-1].size)}",
        tuple(float(row.size) for row in rows),
        tuple(factor * row.size / row.measured for row in rows),
        tuple(factor * row.size / row.simulated for row in rows),
    )


def _finding(rows: Mapping[str, Sequence[FitRow]]) -> str:
    middle = max(_median(fit_rows) for fit_rows in rows.values())
    last = max(abs(fit_rows[-1].error) for fit_rows in rows.values())
    return (
        f"all_reduce on six machines: the simulated time is off by {middle:.1%} at most in the median from 1 MiB up, "
        f"by {last:.1%} at most at the largest size"
    )


def _median(rows: Sequence[FitRow]) -> float:
    return median(abs(row.error) for row in large(rows))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Table("", tuple(head), tuple(map(tuple, rows))).markdown()


def _constants(machines: Mapping[str, MachineCollective]) -> str:
    names = ("startup", "rate_cap", "cross_rate_cap", "half_size", "exponent", "chunks")
    rows = []
    for name, machine in machines.items():
        text = written(machine)
        figures = [text.get(key, "") for key in names]
        rows.append([_NAMES[name], machine.algorithm, *figures, str(len(constants(machine)))])
    return _table(["machine", "algorithm", *(f"`{name}`" for name in names), "constants"], rows)


def _errors(rows: Mapping[str, Sequence[FitRow]]) -> str:
    lines = []
    for name, fit_rows in rows.items():
        # Errors below 1 MiB are reported apart: only the start-up counts there.
        small = [abs(row.error) for row in fit_rows if row.size < 2**20]
        worst = max(large(fit_rows), key=lambda row: abs(row.error))
        lines.append([
            _NAMES[name], str(len(large(fit_rows))), f"{_median(fit_rows):.1%}", f"{fit_rows[-1].error:+.1%}",
            f"{worst.error:+.1%} at {format_bytes(worst.size)}", f"{median(small):.1%}" if small else "not measured",
        ])  # fmt: skip
    head = ["machine", "sizes from 1 MiB", "median", "largest size", "worst", "median below 1 MiB"]
    return _table(head, lines)


def _worst(rows: Mapping[str, Sequence[FitRow]]) -> str:
    lines = [
        [_NAMES[name], format_bytes(r.size), format_time(r.measured), format_time(r.simulated), f"{r.error:+.1%}"]
        for name, fit_rows in rows.items()
        for r in sorted(large(fit_rows), key=lambda row: -abs(row.error))[:2]
    ]
    return (
        "The two rows with the largest errors on each machine:\n\n"
        + _table(["machine", "size", "measured", "simulated", "error"], lines)
        + WHY
    )


def _left_out(sweeps: Mapping[str, MeasuredSweep]) -> str:
    lines = []
    for name in FITTED:
        machine = build(sweeps[name].topology, sweeps[name].sweep.world_size).collectives["all_reduce"]
        kept, between = left_out(sweeps[name].sweep, sweeps[name].topology, machine.algorithm)
        lines.append([
            _NAMES[name], str(len(large(kept))), f"{_median(kept):.1%}", str(len(large(between))),
            f"{_median(between):.1%}", f"{between[-1].error:+.1%} at {format_bytes(between[-1].size)}",
        ])  # fmt: skip
    head = ["machine", "sizes fitted", "their median", "sizes left out", "their median", "the largest left out"]
    return (
        "## Sizes that the fit did not see\n\nThe constants were fitted to every second size (counted from the "
        "largest) and tested at the sizes in between. Errors from 1 MiB:\n\n" + _table(head, lines)
    )


def _gathers() -> str:
    """Return the table for operations whose sweeps over several groups of a node have one fit."""
    lines = []
    for topology in SWEPT:
        for operation in GATHERS:
            for measured in gather_sweeps(topology, operation):
                _, rows = shipped_rows(measured.sweep, measured.topology)
                short = median(abs(row.error) for row in rows if row.size < 2**20)
                lines.append([
                    measured.sweep.gpu, operation, str(measured.sweep.world_size), f"{short:.0%}",
                    f"{_median(rows):.0%}", f"{rows[-1].error:+.0%}",
                ])  # fmt: skip
    head = ["GPU", "operation", "GPUs", "median below 1 MiB", "median from 1 MiB", "at 512 MiB"]
    return GATHER + _table(head, lines) + GATHER_WHY


def _others(sweeps: Mapping[str, MeasuredSweep]) -> str:
    return XLA + _xla([held for name, held in sweeps.items() if name.startswith("xla_")])


def _borrowed(sweeps: Mapping[str, MeasuredSweep]) -> str:
    """Return the table for operations simulated without their own constants."""
    xla = [held for name, held in sweeps.items() if name.startswith("xla_")]
    others = [held for held in xla if held.sweep.operation != "all_reduce"]
    return BORROWED + _xla(others, known=("all_reduce",))


def _xla(sweeps: Sequence[MeasuredSweep], known: Sequence[str] | None = None) -> str:
    lines = []
    for measured in sweeps:
        algorithm, rows = shipped_rows(measured.sweep, measured.topology, operations=known)
        signed = median(row.error for row in large(rows))
        lines.append([
            measured.sweep.operation, str(measured.sweep.world_size), algorithm, f"{_median(rows):.0%}",
            f"{signed:+.0%}", f"{rows[-1].error:+.0%}",
        ])  # fmt: skip
    head = ["operation", "H100", "algorithm", "median of the error's size", "median error", "at 2 GiB"]
    return _table(head, sorted(lines))


def _over_nodes() -> str:
    lines = []
    for row in over_nodes(BUSY):
        played = row.played()
        inside = "inside" if row.low <= played <= row.high else "outside"
        figures = [f"{rate / 1e9:.0f}" for rate in (row.mean, row.low, row.high, played)]
        lines.append([row.operation, str(row.nodes), *figures, f"{played / row.mean - 1:+.0%}", inside])
    head = ["operation", "nodes of 8 H100", "mean [GB/s]", "band from", "to", "simulated [GB/s]", "off the mean",
            "band"]  # fmt: skip
    return OVER_NODES + _table(head, lines)


def _racks() -> str:
    lines = []
    for row in over_nodes(RACKS):
        played = row.played()
        rates = [f"{rate / 1e9:.0f}" for rate in (row.mean, played)]
        lines.append([str(row.nodes), format_bytes(row.nbytes), *rates, f"{played / row.mean - 1:+.0%}"])
    return OVER_RACKS + _table(["racks", "size", "measured [GB/s]", "simulated [GB/s]", "off"], lines)


def _sources(sweeps: Mapping[str, MeasuredSweep]) -> str:
    named = {measured.sweep.source: None for measured in sweeps.values()}
    return "\n" + "".join(f"- {source}\n" for source in named)


if __name__ == "__main__":
    # The table is written first, because the intervals of predictions read it.
    FOUND = tuple(network_errors())
    write_network_errors(TABLE, FOUND)
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"), FOUND)
