"""Which records does the fit of a machine produce? Constants, errors by size, and the other algorithms tried.

Texts and topology files are written from these records alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from simulator.cluster.cluster import MachineCollective

# Errors are reported from this size on [B]. Below, only the start-up counts, and no training step sends so little at
# once.
LARGE: Final = 2**20
# Largest share of the rating seen on links inside a node: copies between two GPUs reach 91 % of NVLink 3, 88 % of
# NVLink 4 and 83 % of NVLink 5 (ml-engineering, S. Bekman, network benchmarks). Cards reach 97 %.
BEST_SHARE: Final = 0.92


@dataclass(frozen=True, slots=True)
class FitRow:
    """A collective's measured and simulated time for a single array size."""

    size: int  # size of the whole array [B]
    # `measured`, `simulated`: Times [s].
    measured: float
    simulated: float
    played: bool = True  # whether the engine simulated this size; otherwise the time is the fit's prediction

    @property
    def error(self) -> float:
        """Relative error of the time, simulated / measured - 1.

        >>> FitRow(1024, measured=2.0, simulated=1.5).error
        -0.25
        """
        return self.simulated / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class TrialSummary:
    """Summary for an algorithm tried in a fit, with the best constants."""

    algorithm: str  # name of the algorithm
    chunks: int | None  # number of pieces that arrays are cut into
    median: float  # median |error| from 1 MiB on; infinite for an algorithm too slow even without a cap
    at_largest: float  # error at the largest size
    loss: float  # loss used for comparing trials
    share: float = 0.0  # the needed rate as share of the rating of the links bounded by the cap

    @property
    def text(self) -> str:
        """The algorithm in words, with errors, or with the factor by which the algorithm is too slow."""
        name = self.algorithm + ("" if self.chunks is None else f" in {self.chunks} pieces")
        if self.median == float("inf"):
            return f"{name} takes {1 + self.at_largest:.3g} times as long"
        if self.share > BEST_SHARE:
            return f"{name} needs {self.share:.0%} of the rated bandwidth of its links"
        return f"{name} median |error| {self.median:.1%}, at the largest size {self.at_largest:+.1%}"


@dataclass(frozen=True, slots=True)
class Fit:
    """Algorithm and constants of a machine's collective, fitted to a measured sweep.

    Attributes
    ----------
    world_size, nodes : int
        Number of ranks, and of nodes.
    """

    operation: str  # measured operation
    world_size: int
    nodes: int
    topology: str  # name of the simulated topology
    base: str | Mapping[str, Any]  # the topology: a name, a path, or keys if it was assumed
    machine: MachineCollective  # the constants, rounded as in the topology file
    rows: tuple[FitRow, ...]  # residuals in order of size
    tried: tuple[TrialSummary, ...]  # every algorithm tried, best first; the first one's constants are the machine's
    assumed: tuple[str, ...]  # facts missing in the sweep
    source: str  # origin of the sweep

    @property
    def constants(self) -> dict[str, float]:
        """Constants determined by the sweep, by name, in SI units."""
        return constants(self.machine)

    @property
    def large(self) -> tuple[FitRow, ...]:
        """Rows for sizes from 1 MiB on; every row if there are none."""
        return large(self.rows)

    @property
    def median(self) -> float:
        """Median absolute relative error over sizes from 1 MiB on."""
        return median(abs(row.error) for row in self.large)

    @property
    def worst(self) -> FitRow:
        """Row with the largest absolute error for sizes from 1 MiB on."""
        return max(self.large, key=lambda row: abs(row.error))

    @property
    def at_largest(self) -> float:
        """Relative error at the largest size."""
        return self.rows[-1].error


@dataclass(frozen=True, slots=True)
class Check:
    """A measured sweep outside the fit, simulated with a fitted sweep's constants."""

    sweep: str  # the sweep in words
    rows: tuple[FitRow, ...]  # residuals in order of size

    @property
    def median(self) -> float:
        """Median absolute relative error over sizes from 1 MiB on."""
        return median(abs(row.error) for row in large(self.rows))


@dataclass(frozen=True, slots=True)
class MachineFit:
    """Fits of a machine's collectives to every measured sweep, with checks."""

    fits: tuple[Fit, ...]  # a fit for each operation within a node, and for each operation over nodes
    checks: tuple[Check, ...] = ()  # sweeps with fewer ranks than the fitted sweep
    untold: tuple[str, ...] = ()  # constants that no sweep determines, and their substitutes


def large(rows: Sequence[FitRow]) -> tuple[FitRow, ...]:
    """Return the rows for sizes from 1 MiB on; every row if there are none.

    >>> [row.size for row in large([FitRow(2**10, 1.0, 1.0), FitRow(2**20, 2.0, 2.0)])]
    [1048576]
    """
    return tuple(row for row in rows if row.size >= LARGE) or tuple(rows)


def constants(machine: MachineCollective) -> dict[str, float]:
    """Return the constants of a machine's collective by name, in SI units, without constants at their defaults."""
    values: dict[str, float] = {"startup": machine.startup}
    for name in ("rate_cap", "cross_rate_cap"):
        if getattr(machine, name) != float("inf"):
            values[name] = getattr(machine, name)
    if machine.half_size:
        values |= {"half_size": machine.half_size, "exponent": machine.exponent}
    values |= {} if machine.chunks is None else {"chunks": machine.chunks}
    return values | {name: value for name in ("step", "cross_step", "own_part") if (value := getattr(machine, name))}
