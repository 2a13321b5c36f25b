"""The fitted sections of the shipped topologies: `python -m simulator.fit.shipped` writes them anew.

Rule: what was not measured on a machine says so, and from which it is taken. Like a recipe book that marks which dishes
were cooked.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulator.cluster.cluster import MachineCollective
from simulator.cluster.topology_file import MeasuredOperation
from simulator.fit.fitting import fit_sweep
from simulator.fit.measured import measured_sweep
from simulator.fit.words import section, without_section

# Sweeps that the constants are fitted to; the table's others are only held against them.
FITTED: Final = ("8_a100", "p4de_16_a100", "8_h100", "p5_16_h100", "8_b200", "16_b200")
_ABSENT: Final = "not measured here"


def machines() -> dict[str, MachineCollective]:
    """Fit every sweep of FITTED."""
    found = {}
    for name in FITTED:
        held = measured_sweep(name)
        machine = fit_sweep(held.sweep, topology=held.topology).machine
        source = f"fitted to {held.sweep.world_size} {held.sweep.gpu}: {held.sweep.source}"
        found[name] = replace(machine, source=source)
    return found


def sections(fitted: Mapping[str, MachineCollective]) -> dict[str, MeasuredOperation]:
    """The all_reduce of each shipped topology, from the fits by sweep."""
    a100, h100, b200 = (fitted[name] for name in ("8_a100", "8_h100", "8_b200"))
    p4de, p5, two_b200 = (fitted[name] for name in ("p4de_16_a100", "p5_16_h100", "16_b200"))
    return {
        "dgx_a100": MeasuredOperation(a100, _two_a100(two_b200)),
        "dgx_h100": MeasuredOperation(h100, _two_h100(p5, two_b200)),
        "dgx_b200": MeasuredOperation(b200, two_b200),
        "aws_p4de": MeasuredOperation(_said(a100, f"{_ABSENT}: as dgx_a100, the same eight GPUs"), p4de),
        "aws_p5": MeasuredOperation(_said(h100, "as dgx_h100, the same eight GPUs"), p5),
    }


def _said(machine: MachineCollective, why: str) -> MachineCollective:
    return replace(machine, source=f"{why}; {machine.source}")


def _two_a100(two_b200: MachineCollective) -> MachineCollective:
    """As much of its cards' 200 Gb/s as dgx_b200 reaches of 400 Gb/s; its switches cannot add."""
    cap = float(f"{two_b200.cross_rate_cap / 2:.4g}")
    machine = replace(two_b200, algorithm="hierarchical", cross_rate_cap=cap, chunks=8)
    return _said(machine, f"{_ABSENT}: as two dgx_b200 boxes with cards half as fast")


def _two_h100(p5: MachineCollective, two_b200: MachineCollective) -> MachineCollective:
    why = f"{_ABSENT}: rates as aws_p5 (the same boxes, as much card bandwidth), start-up as dgx_b200 (the same cards)"
    return _said(replace(p5, startup=two_b200.startup), why)


def write(folder: Path) -> None:
    """Write the sections into a folder's topology files."""
    for name, operation in sections(machines()).items():
        path = folder / f"{name}.yaml"
        path.write_text(without_section(path) + section({"all_reduce": operation}), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "topologies"))
