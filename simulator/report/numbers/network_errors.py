"""How far is a simulated collective from a measured collective on an unmeasured network, known only by its links?

Rule: nothing is assumed. The errors are those of every measured collective of the catalog, simulated as if no
collective of any machine with such links had been measured: catalog/measured/network_errors.csv, written by `python -m
tools.validation.machines_page`.

Each was simulated with the library's model (cluster/library.py), and by the links' ratings alone: then a collective
pays no start-up and fills its links. Measured collectives take longer, short ones in particular. Each sweep therefore
contributes the row with the most similar duration, and all sweeps of a source together have the weight of any other
source.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from simulator.basics.measured_tables import FOLDER, read_table
from simulator.basics.quantiles import weighted_quantile

TABLE: Final = FOLDER / "network_errors.csv"


@dataclass(frozen=True, slots=True)
class NetworkError:
    """Measured duration of a collective compared with a simulation that knows only its links."""

    # `source`, `sweep`: Source of the measurement, and the sweep it belongs to.
    source: str
    sweep: str
    # Whether the library's model was simulated; False: the links' ratings.
    modelled: bool
    seconds: float  # simulated [s]
    error: float  # ln(measured / simulated)


def error_size(
    seconds: float, share: float, errors: Sequence[NetworkError] | None = None, *, modelled: bool = False
) -> float:
    """Return the error size |ln(measured / simulated)| that a share of similarly long collectives do not exceed.

    Parameters
    ----------
    seconds : float
        Simulated time of a collective [s].
    share : float
        Above 0, at most 1.
    errors : sequence of NetworkError, optional
        Errors to use instead of the shipped ones.
    modelled : bool
        Whether the collective has the library's model; False: the links' ratings.
    """
    # A row per sweep: the one with the most similar duration.
    nearest: dict[str, NetworkError] = {}
    for row in errors or shipped():
        if row.modelled != modelled:
            continue
        other = nearest.get(row.sweep)
        if other is None or _distance(row.seconds, seconds) < _distance(other.seconds, seconds):
            nearest[row.sweep] = row
    counts = Counter(row.source for row in nearest.values())
    # A laboratory with many sweeps must not outweigh other sources.
    weights = [1 / counts[row.source] for row in nearest.values()]
    # Sizes of errors: an interval is symmetric (in the logarithm).
    return weighted_quantile([abs(row.error) for row in nearest.values()], weights, share)


def _distance(duration: float, other: float) -> float:
    """Return the logarithmic distance between two durations: |ln(a / b)|."""
    return abs(math.log(duration / other))


@cache
def shipped() -> tuple[NetworkError, ...]:
    """Return the shipped catalog's errors ln(measured / simulated), an entry per measured collective."""
    return tuple(
        NetworkError(row["source"], row["sweep"], row["by"] == "model", float(row["seconds"]), float(row["error"]))
        for row in read_table(TABLE.name)
    )
