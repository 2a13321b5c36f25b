"""What is the result of fitting a machine: its constants, each size's error, and what else was tried?

Rule: everything that a fit's table or its topology file is written from is kept in these records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from simulator.cluster.cluster import MachineCollective

# Errors are reported from this size on [B]: below it only the start-up counts, and no training step sends so little at
# once.
LARGE: Final = 2**20
# No library has been seen to bring more of the rating over links inside a node: copies between two GPUs reach 91 % of
# NVLink 3, 88 % of NVLink 4 and 83 % of NVLink 5 (ml-engineering, S. Bekman, network benchmarks). Cards reach 97 %.
BEST_SHARE: Final = 0.92


@dataclass(frozen=True, slots=True)
class FitRow:
    """One size.

    Attributes
    ----------
    size : int
        The whole array [B].
    measured, simulated : float
        [s]
    played : bool
        Whether the engine played it; otherwise the simulated time is the fit's prediction.
    """

    size: int
    measured: float
    simulated: float
    played: bool = True

    @property
    def error(self) -> float:
        """Simulated over measured, less 1."""
        return self.simulated / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class TrialSummary:
    """One algorithm that was tried, with its best constants.

    Attributes
    ----------
    algorithm : str
    chunks : int or None
    median : float
        Median |error| from 1 MiB on; infinite for one that is too slow even without a cap.
    at_largest : float
        Error at the largest size.
    loss : float
        What trials are compared by.
    share : float
        Of the rating of the links that its cap bounds, what it needs.
    """

    algorithm: str
    chunks: int | None
    median: float
    at_largest: float
    loss: float
    share: float = 0.0

    @property
    def text(self) -> str:
        """The algorithm and its errors, or how much too slow it is."""
        name = self.algorithm + ("" if self.chunks is None else f" in {self.chunks} pieces")
        if self.median == float("inf"):
            return f"{name} takes {1 + self.at_largest:.3g} times as long"
        if self.share > BEST_SHARE:
            return f"{name} needs {self.share:.0%} of what its links are rated at"
        return f"{name} {self.median:.1%}, at the largest {self.at_largest:+.1%}"


@dataclass(frozen=True, slots=True)
class Fit:
    """A machine, fitted to a sweep.

    Attributes
    ----------
    operation : str
    world_size, nodes : int
    topology : str
        Name of the topology that it was played on.
    base : str, or mapping
        That topology: a name, a path, or its keys where it was assumed.
    machine : MachineCollective
        The constants, as they stand in the topology file.
    rows : tuple of FitRow
        By size.
    tried : tuple of TrialSummary
        Best first; the first is the machine's.
    assumed : tuple of str
        What the sweep did not say.
    source : str
        Where the sweep is from.
    """

    operation: str
    world_size: int
    nodes: int
    topology: str
    base: str | Mapping[str, Any]
    machine: MachineCollective
    rows: tuple[FitRow, ...]
    tried: tuple[TrialSummary, ...]
    assumed: tuple[str, ...]
    source: str

    @property
    def constants(self) -> dict[str, float]:
        """The constants that were set from the sweep, by name, in SI units."""
        return constants(self.machine)

    @property
    def large(self) -> tuple[FitRow, ...]:
        """Rows of at least 1 MiB; all where there are none."""
        return large(self.rows)

    @property
    def median(self) -> float:
        """Median |error| from 1 MiB on."""
        return median(abs(row.error) for row in self.large)

    @property
    def worst(self) -> FitRow:
        """The row from 1 MiB on with the largest |error|."""
        return max(self.large, key=lambda row: abs(row.error))

    @property
    def at_largest(self) -> float:
        """Error at the largest size."""
        return self.rows[-1].error


@dataclass(frozen=True, slots=True)
class Check:
    """A sweep that was not fitted, played with the constants of one that was.

    Attributes
    ----------
    sweep : str
        What it is, in words.
    rows : tuple of FitRow
    """

    sweep: str
    rows: tuple[FitRow, ...]

    @property
    def median(self) -> float:
        """Median |error| from 1 MiB on."""
        return median(abs(row.error) for row in large(self.rows))


@dataclass(frozen=True, slots=True)
class MachineFit:
    """A machine, fitted to all that was measured on it.

    Attributes
    ----------
    fits : tuple of Fit
        One for each operation in one node, and over several.
    checks : tuple of Check
        Sweeps of fewer ranks than the one that was fitted in the same place.
    untold : tuple of str
        What the sweeps do not tell, and what stands for it.
    """

    fits: tuple[Fit, ...]
    checks: tuple[Check, ...] = ()
    untold: tuple[str, ...] = ()


def large(rows: Sequence[FitRow]) -> tuple[FitRow, ...]:
    """Rows of at least 1 MiB; all where there are none."""
    return tuple(row for row in rows if row.size >= LARGE) or tuple(rows)


def constants(machine: MachineCollective) -> dict[str, float]:
    """The constants of a machine that are not left at their default, by name, in SI units."""
    values: dict[str, float] = {"startup": machine.startup}
    for name in ("rate_cap", "cross_rate_cap"):
        if getattr(machine, name) != float("inf"):
            values[name] = getattr(machine, name)
    if machine.half_size:
        values |= {"half_size": machine.half_size, "exponent": machine.exponent}
    values |= {} if machine.chunks is None else {"chunks": machine.chunks}
    return values | {name: value for name in ("step", "cross_step") if (value := getattr(machine, name))}
