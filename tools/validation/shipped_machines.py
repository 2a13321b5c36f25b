"""Which constants do the shipped topologies have? `python -m tools.validation.shipped_machines` writes them again.

If a constant was not measured on a machine, its `source` says so, and names the machine that it is taken from.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulator.calibration.machines.fit_writing import section, without_section
from simulator.calibration.machines.fitting import fit_sweep
from simulator.calibration.machines.solve import FREE, CapModel, Constants
from simulator.cluster.cluster import MachineCollective
from simulator.cluster.topology_file import MeasuredOperation
from simulator.collectives.constants import NETWORK_STEP
from tools.validation.measured_collectives import measured_sweep

# Sweeps of all_reduce used for fitting; further sweeps in the table only check the constants.
FITTED: Final = ("8_a100", "p4de_16_a100", "8_h100", "p5_16_h100", "8_b200", "16_b200")
# The only sweeps of these operations over a full node, fitted as a ring, NCCL's algorithm. Sweeps over 2 and 4 GPUs of
# the node are held out.
RINGS: Final = {"all_gather": "xla_8_h100_all_gather", "reduce_scatter": "xla_8_h100_reduce_scatter"}
# The only sweep of all_to_all over a full node, fitted as sends between every pair of ranks. Sweeps over 2 and 4 GPUs
# of the node are held out.
EXCHANGE: Final = "xla_8_h100_all_to_all"
_ABSENT: Final = "not measured here"
# Exponent of rings: the cap depends on the square root of the size.
_ROOT: Final = 0.5


def machines() -> dict[str, MachineCollective]:
    """Fit every sweep in FITTED, then every sweep in RINGS, then EXCHANGE."""
    fitted = {name: _fitted(name) for name in FITTED}
    # The gather comes first in RINGS; the reduce-scatter takes over its start-up and half size.
    for name in RINGS.values():
        fitted[name] = _fitted(name, "ring", ring_fading(fitted.get(RINGS["all_gather"])))
    fitted[EXCHANGE] = _fitted(EXCHANGE, "direct", ring_fading(None))
    return fitted


def ring_fading(gather: MachineCollective | None) -> CapModel:
    """Return how a ring's cap depends on size: with the square root, and equally for both operations.

    More constants would explain no more; docs/measured.md has the figures. Exponents fitted to all-reduces range from
    0.51 to 0.75.
    """
    if gather is None:
        return CapModel(exponent=_ROOT)
    like = Constants(gather.startup, gather.rate_cap, gather.half_size, _ROOT)
    return CapModel(exponent=_ROOT, like=like)


def _fitted(name: str, algorithm: str | None = None, fading: CapModel = FREE) -> MachineCollective:
    measured = measured_sweep(name)
    machine = fit_sweep(measured.sweep, topology=measured.topology, algorithm=algorithm, fading=fading).machine
    given = "" if fading.like is None else ", start-up and half size as its all_gather's"
    return replace(
        machine, source=f"fitted to {measured.sweep.world_size} {measured.sweep.gpu}{given}: {measured.sweep.source}"
    )


def sections(fitted: Mapping[str, MachineCollective]) -> dict[str, dict[str, MeasuredOperation]]:
    """Return the operations for each shipped topology, from the fits by sweep."""
    all_reduces = _all_reduces(fitted)
    by_topology = {name: {"all_reduce": measured} for name, measured in all_reduces.items()}
    for operation, sweep in RINGS.items():
        for name, ring in _rings(fitted[sweep], all_reduces["dgx_a100"].one_node).items():
            by_topology[name][operation] = MeasuredOperation(ring, _over_nodes(name, ring, all_reduces))
    for name, exchange in _exchanges(fitted[EXCHANGE]).items():
        by_topology[name]["all_to_all"] = MeasuredOperation(exchange)
    return by_topology


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
    """Return each topology's ring within a node: H100's as fitted, A100's from its all_reduce, also a ring."""
    if a100 is None or a100.algorithm != "ring":
        raise ValueError("eight A100 were fitted to no ring")
    return {
        "dgx_a100": _said(a100, f"{_ABSENT}: taken from its all_reduce, which is a ring as well"),
        "dgx_h100": h100,
        "dgx_b200": _over_faster_links(h100),
        "aws_p4de": _said(a100, f"{_ABSENT}: taken from the all_reduce of dgx_a100, a ring over the same eight GPUs"),
        "aws_p5": _said(h100, "as dgx_h100, the same eight GPUs"),
    }


def _exchanges(h100: MachineCollective) -> dict[str, MachineCollective]:
    """Return the sends between every pair of ranks within a node, for the topologies with switches like H100's."""
    same = _said(h100, "as dgx_h100, the same eight GPUs")
    return {"dgx_h100": h100, "dgx_b200": _over_faster_links(h100), "aws_p5": same}


def _over_faster_links(h100: MachineCollective) -> MachineCollective:
    """Return dgx_b200's constants from dgx_h100's: links twice as fast carry twice the bytes in equal time, therefore
    cap and half size double.
    """
    b200 = replace(h100, rate_cap=2 * h100.rate_cap, half_size=2 * h100.half_size)
    return _said(b200, f"{_ABSENT}: as dgx_h100, twice the bytes in the same time over links twice as fast")


# Time per ring step inside a node, from NCCL's model of the Simple protocol [s]: src/graph/tuning.cc, hwLat.
_NVLINK_STEP: Final = 3.4e-6


def _over_nodes(name: str, ring: MachineCollective, all_reduces: Mapping[str, MeasuredOperation]) -> MachineCollective:
    """Return several such rings at once; start-up and cap of the network come from all_reduces."""
    own = all_reduces[name]
    # If links inside nodes limit an all_reduce, it determines no cap between nodes.
    other = {"dgx_h100": "dgx_b200"}.get(name, name)
    network = all_reduces[other].nodes
    if own.one_node is None or own.nodes is None or network is None:
        raise ValueError(f"{name} has no all_reduce to take the network's part from")
    # The network's part of the start-up: over nodes less within a node.
    startup = float(f"{ring.startup + own.nodes.startup - own.one_node.startup:.4g}")
    # The terminal prints the text up to the first semicolon, in a line of at most 160 characters.
    why = f"{_ABSENT}: inside nodes those of one node, between nodes "
    if network.cross_rate_cap == float("inf"):
        why += "the rated bandwidth of the cards"
    else:
        why += f"those of the all_reduce of {other}" + (" (same cards)" if other != name else "")
    machine = replace(
        ring,
        algorithm="multi_ring",
        startup=startup,
        cross_rate_cap=network.cross_rate_cap,
        step=_NVLINK_STEP,
        cross_step=NETWORK_STEP,
    )
    return _said(machine, f"{why}; start-up of the network as of its all_reduce, steps as in NCCL's own model")


def _said(machine: MachineCollective, why: str) -> MachineCollective:
    return replace(machine, source=f"{why}; {machine.source}")


def _two_a100(two_b200: MachineCollective) -> MachineCollective:
    """Return dgx_b200's constants for two nodes with cards of half the rate; A100's switches cannot add."""
    # Rounded to four digits, like fitted constants.
    cap = float(f"{two_b200.cross_rate_cap / 2:.4g}")
    machine = replace(two_b200, algorithm="blueconnect", cross_rate_cap=cap, chunks=8)
    return _said(machine, f"{_ABSENT}: as two dgx_b200 nodes with cards half as fast")


def _two_h100(p5: MachineCollective, two_b200: MachineCollective) -> MachineCollective:
    why = f"{_ABSENT}: rates as aws_p5 (the same nodes, as much card bandwidth), start-up as dgx_b200 (the same cards)"
    return _said(replace(p5, startup=two_b200.startup), why)


def write(folder: Path) -> None:
    """Write the sections into the topology files in a folder."""
    for name, operations in sections(machines()).items():
        path = folder / f"{name}.yaml"
        path.write_text(without_section(path) + section(operations), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "topologies"))
