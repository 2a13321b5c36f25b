"""Which constants do the shipped topologies have? `python -m tools.validation.shipped_machines` writes them again.

If a constant was not measured on a machine, its `source` says so, and names the machine that it is taken from.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from simulator.basics.arrays import Floats
from simulator.calibration.machines.fit_writing import section, without_section
from simulator.calibration.machines.fitting import fit_sweep
from simulator.calibration.machines.multi_sweep_fit import with_own_part
from simulator.calibration.machines.solve import FREE, CapModel, Constants
from simulator.cluster.build import build
from simulator.cluster.cluster import MachineCollective
from simulator.cluster.library import PACKET
from simulator.cluster.topology_file import MeasuredOperation
from simulator.collectives.constants import NETWORK_STEP
from tools.validation.measured_collectives import MeasuredSweep, measured_sweep, measured_sweeps

# Sweeps of all_reduce used for fitting; further sweeps in the table only check the constants. OpenXLA's contain the
# launch.
FITTED: Final = ("8_a100", "p4de_16_a100", "8_h100", "p5_16_h100", "8_b200", "16_b200")
# Sweeps of these operations over a full node, fitted as rings: the inside of a gather over several nodes. Their times
# contain the launch.
RINGS: Final = {"all_gather": "xla_8_h100_all_gather", "reduce_scatter": "xla_8_h100_reduce_scatter"}
# Exponent of these rings: the cap depends on the square root of the size.
_ROOT: Final = 0.5
# Algorithm of each operation whose sweeps over 2, 4 and 8 GPUs of a node are fitted together: NCCL's rings, and sends
# between every pair of ranks.
GATHERS: Final = {"all_gather": "ring", "reduce_scatter": "ring", "all_to_all": "direct"}
# GPUs with such sweeps, by topology.
SWEPT: Final = {
    "dgx_a100": "a100",
    "dgx_h100": "h100",
    "dgx_h200": "h200",
    "dgx_b200": "b200",
    "gb200_nvl72": "gb200",
    "rtx_pro_server": "rtx_pro_6000",
}
_ABSENT: Final = "not measured here"
# Weight of a sweep over all GPUs, half and a quarter of them, and of large arrays [B].
_WEIGHTS: Final = (1.0, 0.4, 0.15)
_LARGE: Final = 2**25
_WEIGHT_OF_LARGE: Final = 3.0
# Errors beyond this relative size count linearly, as in `solve`.
_OUTLIER: Final = 0.05
# A smaller part counts as none: over PCIe, two GPUs reach more than eight.
_LEAST_OWN: Final = 0.01
# Most of the links' rating that a fit may claim: all_reduces of 4 GiB by rings on an H100 reach 0.82 (NVIDIA/nccl issue
# 1455); NCCL's own model has 20.6 of 25 GB/s a link (src/graph/topo.h).
_MOST_OF_LINKS: Final = 0.86


def machines() -> dict[str, MachineCollective]:
    """Fit every sweep in FITTED and RINGS, then the gathers of every GPU in SWEPT, keyed by "GPU operation"."""
    fitted = {name: _fitted(name) for name in FITTED}
    # The gather comes first in RINGS; the reduce-scatter takes over its start-up and half size.
    for name in RINGS.values():
        fitted[name] = _fitted(name, "ring", ring_fading(fitted.get(RINGS["all_gather"])))
    for topology, gpu in SWEPT.items():
        fitted |= {f"{gpu} {operation}": gather_fit(topology, operation) for operation in GATHERS}
    return fitted


def gather_sweeps(topology: str, operation: str) -> list[MeasuredSweep]:
    """Return the sweeps of an operation over GPUs of one node, most GPUs first."""
    sweeps, gpu = measured_sweeps(), SWEPT[topology]
    names = [f"nccl_{ranks}_{gpu}_{operation}" for ranks in (8, 4, 2)]
    return [sweeps[name] for name in names if name in sweeps]


def gather_fit(topology: str, operation: str) -> MachineCollective:
    """Return the constants of an operation in a node, fitted to its sweeps over 8, 4 and 2 GPUs together.

    A ring of n GPUs takes startup + (n - 1) latencies + (n - 1 + own_part) / n S / rate(S), a direct exchange one
    latency. The rate grows with the size, as `MachineCollective.factor` says.
    """
    sweeps = gather_sweeps(topology, operation)
    most = sweeps[0].sweep.world_size
    rows = [(held.sweep.world_size, *row) for held in sweeps for row in held.sweep.rows]
    ranks, sizes, times = (np.array(column, float) for column in zip(*rows, strict=True))
    weight_of = {most // 2**halved: weight for halved, weight in enumerate(_WEIGHTS)}
    weights = np.array([weight_of[int(n)] for n in ranks]) * np.where(sizes >= _LARGE, _WEIGHT_OF_LARGE, 1.0)
    cluster = build(topology, most)
    gpu, hop = cluster.gpus[0], cluster.route(*cluster.ranks[:2]).latency
    link = gpu.scale_up_bandwidth or gpu.host_bandwidth
    hops = hop * np.where(GATHERS[operation] == "direct", 1.0, ranks - 1.0)

    def errors(constants: Floats) -> Floats:
        startup, cap, half_size = np.exp(constants[:3])
        rate = cap / (1.0 + (half_size / np.maximum(sizes, PACKET)) ** constants[3])
        simulated = startup + hops + (ranks - 1.0 + constants[4]) / ranks * sizes / rate
        return np.asarray(np.sqrt(weights) * np.log(simulated / times))

    low, high = (np.log(ends) for ends in ((1e-7, 0.05 * link, 1e3), (1e-4, _MOST_OF_LINKS * link, 1e10)))
    starts = [np.array([*np.log((5e-6, 0.6 * link, 1e7)), exponent, 0.4]) for exponent in (0.4, 0.6, 0.9)]
    bounds = [*low, 0.3, 0.0], [*high, 1.2, 1.5]
    found = [least_squares(errors, start, loss="soft_l1", f_scale=_OUTLIER, bounds=bounds) for start in starts]
    best = min(found, key=lambda one: one.cost).x
    startup, cap, half_size, exponent, own = (float(f"{number:.4g}") for number in (*np.exp(best[:3]), *best[3:]))
    counts = ", ".join(str(held.sweep.world_size) for held in sweeps)
    source = f"fitted to {counts} {sweeps[0].sweep.gpu} together: {sweeps[0].sweep.source}"
    own = own if own > _LEAST_OWN else 0.0
    fading = {"half_size": half_size, "exponent": exponent}
    return MachineCollective(GATHERS[operation], startup, cap, **fading, own_part=own, source=source)


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
    """Return the operations for each shipped topology, from the fits."""
    all_reduces = _all_reduces(fitted)
    by_topology = {name: {"all_reduce": measured} for name, measured in all_reduces.items()}
    for name, operations in by_topology.items():
        gpu = {"aws_p4de": "a100", "aws_p5": "h100"}.get(name) or SWEPT[name]
        for operation, algorithm in GATHERS.items():
            inside = fitted[f"{gpu} {operation}"]
            if name not in SWEPT:
                inside = _said(inside, f"as dgx_{gpu}, the same eight GPUs")
            ring = _ring(name, operation, fitted) if algorithm == "ring" else None
            nodes = None if ring is None else _over_nodes(name, ring, all_reduces)
            operations[operation] = MeasuredOperation(inside, nodes)
    return by_topology


def _all_reduces(fitted: Mapping[str, MachineCollective]) -> dict[str, MeasuredOperation]:
    a100, h100, b200 = (fitted[name] for name in ("8_a100", "8_h100", "8_b200"))
    # A sum of A100, by a ring as well, was measured over all eight alone.
    a100 = with_own_part(a100, "all_reduce", 8, fitted["a100 all_gather"].own_part)
    p4de, p5, two_b200 = (fitted[name] for name in ("p4de_16_a100", "p5_16_h100", "16_b200"))
    return {
        "dgx_a100": MeasuredOperation(a100, _two_a100(two_b200)),
        "dgx_h100": MeasuredOperation(h100, _two_h100(p5, two_b200)),
        "dgx_b200": MeasuredOperation(b200, two_b200),
        "aws_p4de": MeasuredOperation(_said(a100, f"{_ABSENT}: as dgx_a100, the same eight GPUs"), p4de),
        "aws_p5": MeasuredOperation(_said(h100, "as dgx_h100, the same eight GPUs"), p5),
    }


def _ring(name: str, operation: str, fitted: Mapping[str, MachineCollective]) -> MachineCollective:
    """Return the inside of a topology's gather over nodes: H100's as fitted, A100's from its all_reduce, a ring."""
    # Over nodes, few of the parts are a rank's own.
    h100, a100 = fitted[RINGS[operation]], with_own_part(fitted["8_a100"], "all_reduce", 8, 0.0)
    if a100.algorithm != "ring":
        raise ValueError("eight A100 were fitted to no ring")
    return {
        "dgx_a100": _said(a100, f"{_ABSENT}: taken from its all_reduce, which is a ring as well"),
        "dgx_h100": h100,
        "dgx_b200": _over_faster_links(h100),
        "aws_p4de": _said(a100, f"{_ABSENT}: taken from the all_reduce of dgx_a100, a ring over the same eight GPUs"),
        "aws_p5": _said(h100, "as dgx_h100, the same eight GPUs"),
    }[name]


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
