"""How far is a collective from a measured one where nobody has measured the network, so that links alone are known?

Rule: nothing is assumed. The errors are those of every measured collective of the catalog, simulated as if no
collective of any machine had been measured: catalog/measured/network_errors.csv, written by `python -m
tools.validation.machines_page`.

Such a collective pays nothing to start and fills its links. That is a best case: measured ones take longer, the more
so the shorter they are. Each sweep therefore counts with the row that takes about as long as the collective in
question, and all sweeps of a source together count as much as those of any other source.
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
    """One measured collective.

    Attributes
    ----------
    source, sweep : str
        Where it was measured, and with which others.
    seconds : float
        By the links' ratings alone [s].
    error : float
        ln(measured / simulated).
    """

    source: str
    sweep: str
    seconds: float
    error: float


def error_size(seconds: float, share: float, errors: Sequence[NetworkError] | None = None) -> float:
    """The size of error, as a logarithm, that this share of measured collectives of about such a length stay below.

    Parameters
    ----------
    seconds : float
        What a collective takes by the links' ratings alone [s].
    share : float
        Above 0, at most 1.
    errors : sequence of NetworkError, optional
        Other ones than the shipped.
    """
    nearest: dict[str, NetworkError] = {}
    for one in errors or shipped():
        other = nearest.get(one.sweep)
        if other is None or _apart(one.seconds, seconds) < _apart(other.seconds, seconds):
            nearest[one.sweep] = one
    counts = Counter(one.source for one in nearest.values())
    weights = [1 / counts[one.source] for one in nearest.values()]
    return weighted_quantile([abs(one.error) for one in nearest.values()], weights, share)


def _apart(one: float, other: float) -> float:
    return abs(math.log(one / other))


@cache
def shipped() -> tuple[NetworkError, ...]:
    """Those of the catalog."""
    return tuple(
        NetworkError(row["source"], row["sweep"], float(row["seconds"]), float(row["error"]))
        for row in read_table(TABLE.name)
    )
