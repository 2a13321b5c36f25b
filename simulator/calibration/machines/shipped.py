"""The fitted sections of the shipped topologies: `python -m simulator.calibration.machines.shipped` writes them anew.

Rule: what was not measured on a machine says so, and from which it is taken. Like a recipe book that marks which dishes
were cooked.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulator.calibration.machines.fitting import fit_sweep
from simulator.calibration.machines.measured import measured_sweep
from simulator.calibration.machines.solve import FREE, Constants, Fading
from simulator.calibration.machines.words import section, without_section
from simulator.cluster.cluster import MachineCollective
from simulator.cluster.topology_file import MeasuredOperation

# Sweeps of all_reduce that the constants are fitted to; the table's others are only held against them.
FITTED: Final = ("8_a100", "p4de_16_a100", "8_h100", "p5_16_h100", "8_b200", "16_b200")
# The only sweeps of these operations over a full node, taken for a ring as NCCL runs it; those over 2 and 4 of its GPUs
# are held out.
RINGS: Final = {"all_gather": "xla_8_h100_all_gather", "reduce_scatter": "xla_8_h100_reduce_scatter"}
_ABSENT: Final = "not measured here"
_ROOT: Final = 0.5


def machines() -> dict[str, MachineCollective]:
    """Fit every sweep of FITTED, then those of RINGS."""
    found = {name: _fitted(name) for name in FITTED}
    for name in RINGS.values():
        found[name] = _fitted(name, "ring", ring_fading(found.get(RINGS["all_gather"])))
    return found


def ring_fading(gather: MachineCollective | None) -> Fading:
    """Caps of rings fade with the root of the size, and both operations alike: more would explain no more.

    What more constants explain stands in docs/measured.md. Exponents fitted to all-reduces lie from 0.51 to 0.75.
    """
    if gather is None:
        return Fading(exponent=_ROOT)
    like = Constants(gather.startup, gather.rate_cap, gather.half_size, _ROOT)
    return Fading(exponent=_ROOT, like=like)


def _fitted(name: str, algorithm: str | None = None, fading: Fading = FREE) -> MachineCollective:
    held = measured_sweep(name)
    machine = fit_sweep(held.sweep, topology=held.topology, algorithm=algorithm, fading=fading).machine
    given = "" if fading.like is None else ", start-up and half size as its all_gather's"
    return replace(machine, source=f"fitted to {held.sweep.world_size} {held.sweep.gpu}{given}: {held.sweep.source}")


def sections(fitted: Mapping[str, MachineCollective]) -> dict[str, dict[str, MeasuredOperation]]:
    """What each shipped topology runs by operation, from the fits by sweep."""
    all_reduces = _all_reduces(fitted)
    found = {name: {"all_reduce": both} for name, both in all_reduces.items()}
    for operation, sweep in RINGS.items():
        for name, ring in _rings(fitted[sweep], all_reduces["dgx_a100"].one_node).items():
            found[name][operation] = MeasuredOperation(ring, _over_nodes(name, ring, all_reduces))
    return found


def _all_reduces(fitted: Mapping[str, MachineCollective]) -> dict[str, MeasuredOperation]:
    a100, h100, b200 = (fitted[name] for name in ("8_a100", "8_h100", "8_b200"))
    p4de, p5, two_b200 = (fitted[name] for name in ("p4de_16_a100", "p5_16_h100", "16_b200"))
    return {
        "dgx_a100": MeasuredOperation(a100, _two_a100(two_b200)),
        "dgx_h100": MeasuredOperation(h100, _two_h100(p5, two_b200)),
        "dgx_b200": MeasuredOperation(b200, two_b200),
        "aws_p4de": MeasuredOperation(_said(a100, f"{_ABSENT}: as dgx_a100, the same eight GPUs"), p4de),
        "aws_p5": MeasuredOperation(_said(h100, "as dgx_h100, the same eight GPUs"), p5),
    }


def _rings(h100: MachineCollective, a100: MachineCollective | None) -> dict[str, MachineCollective]:
    """A ring in one node of each topology: of H100 as fitted, of A100 as their all_reduce, which is a ring."""
    if a100 is None or a100.algorithm != "ring":
        raise ValueError("eight A100 were fitted to no ring")
    b200 = replace(h100, rate_cap=2 * h100.rate_cap, half_size=2 * h100.half_size)
    return {
        "dgx_a100": _said(a100, f"{_ABSENT}: as its all_reduce, a ring too"),
        "dgx_h100": h100,
        "dgx_b200": _said(b200, f"{_ABSENT}: as dgx_h100, twice the bytes in the same time over links twice as fast"),
        "aws_p4de": _said(a100, f"{_ABSENT}: as the all_reduce of dgx_a100, a ring over the same eight GPUs"),
        "aws_p5": _said(h100, "as dgx_h100, the same eight GPUs"),
    }


def _over_nodes(name: str, ring: MachineCollective, all_reduces: Mapping[str, MeasuredOperation]) -> MachineCollective:
    """Several such rings at once; what the network adds to the start-up, and its cap, as of all_reduces."""
    own = all_reduces[name]
    # An all_reduce that its links inside hold back tells no cap between nodes.
    held_by = {"dgx_h100": "dgx_b200"}.get(name, name)
    network = all_reduces[held_by].nodes
    if own.one_node is None or own.nodes is None or network is None:
        raise ValueError(f"{name} has no all_reduce to take the network's part from")
    startup = float(f"{ring.startup + own.nodes.startup - own.one_node.startup:.4g}")
    told = f"{_ABSENT}: rings as in one node, the network's start-up as of its all_reduce, "
    if network.cross_rate_cap == float("inf"):
        told += "no cap between nodes but its cards' rating"
    else:
        told += f"cap between nodes as of the all_reduce of {held_by}" + (", the same cards" if held_by != name else "")
    machine = replace(ring, algorithm="multi_ring", startup=startup, cross_rate_cap=network.cross_rate_cap)
    return _said(machine, told)


def _said(machine: MachineCollective, why: str) -> MachineCollective:
    return replace(machine, source=f"{why}; {machine.source}")


def _two_a100(two_b200: MachineCollective) -> MachineCollective:
    """As much of its cards' 200 Gb/s as dgx_b200 reaches of 400 Gb/s; its switches cannot add."""
    cap = float(f"{two_b200.cross_rate_cap / 2:.4g}")
    machine = replace(two_b200, algorithm="hierarchical", cross_rate_cap=cap, chunks=8)
    return _said(machine, f"{_ABSENT}: as two dgx_b200 nodes with cards half as fast")


def _two_h100(p5: MachineCollective, two_b200: MachineCollective) -> MachineCollective:
    why = f"{_ABSENT}: rates as aws_p5 (the same nodes, as much card bandwidth), start-up as dgx_b200 (the same cards)"
    return _said(replace(p5, startup=two_b200.startup), why)


def write(folder: Path) -> None:
    """Write the sections into a folder's topology files."""
    for name, operations in sections(machines()).items():
        path = folder / f"{name}.yaml"
        path.write_text(without_section(path) + section(operations), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "topologies"))
