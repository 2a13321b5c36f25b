"""How far may a prediction be from what will be measured? Intervals from the errors of measured runs like it.

Rule: nothing is assumed of how errors are distributed; they are those of catalog/measured/residuals.csv, written by
`python -m tools.validation.training_page`. Each run has two: as played with all constants, and as if its
source had never been seen. The second stand for a framework or a chip of which no run was measured.

A measured value lies within the prediction divided and multiplied by e^h, where h is the size of error that 80 (95) %
of the weights stay below. Runs weigh by how like they are, and all runs of a source together as much as any other's:
what one laboratory measured often is not more than one laboratory's.

Where no collective of a machine was measured, a step's exposed communication may take e^n times as long: n is the size
of error that as many of the measured collectives stay below if they are simulated in the same way (network_errors.py).
A share s of the step is exposed, so that the step may take 1 + s (e^n - 1) times as long. The two errors have nothing
to do with each other, so that their logarithms add up as squares do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from simulator.basics.measured_tables import FOLDER, read_table
from simulator.basics.quantiles import weighted_quantile
from simulator.report.numbers.network_errors import error_size

Quantity = Literal["time", "memory"]
SHARES: Final = (0.8, 0.95)
TABLE: Final = FOLDER / "residuals.csv"
# What each way in which a run is unlike the predicted one leaves of its weight: much, for what few runs say of each
# other is little (with 0.25 runs of sources that were left out fall into 80 % intervals less often than said).
_UNLIKE: Final = 0.75


@dataclass(frozen=True, slots=True)
class Traits:
    """What makes runs alike.

    Attributes
    ----------
    framework, chip : str
        "nanotron"; "h100".
    eight_bit, cut, nodes : bool
        Whether matmuls take eight bits, a model is cut over ranks, several nodes take part.
    """

    framework: str
    chip: str
    eight_bit: bool
    cut: bool
    nodes: bool


@dataclass(frozen=True, slots=True)
class UnmeasuredNetwork:
    """What a step owes to a network of which no collective was measured.

    Attributes
    ----------
    exposed : float
        Share of the step that is communication which nothing hides.
    seconds : float
        What a collective of the step takes, the long ones counting most [s].
    """

    exposed: float
    seconds: float

    def error(self, share: float) -> float:
        """How far the whole step may be off by it, as a logarithm, in this share of cases."""
        return math.log1p(self.exposed * math.expm1(error_size(self.seconds, share)))


@dataclass(frozen=True, slots=True)
class Residual:
    """One measured run: ln(measured / predicted).

    Attributes
    ----------
    source : str
    traits : Traits
    own, unseen : mapping of quantity to float
        With all constants, and as if the source had never been seen; memory is missing where it was not measured.
    """

    source: str
    traits: Traits
    own: dict[str, float]
    unseen: dict[str, float]


@dataclass(frozen=True, slots=True)
class PredictionInterval:
    """Factors on a prediction, for each of SHARES: the measured value lies in between as often.

    Attributes
    ----------
    width : tuple of float
        e^h for each share, above 1.
    carried_over : bool
        Whether no run of this framework or of this chip was measured.
    """

    width: tuple[float, ...]
    carried_over: bool

    def around(self, name: str, value: float) -> dict[str, float]:
        """Lower and upper ends, as columns of a table: NAME_80_low, NAME_80_high, NAME_95_low, NAME_95_high."""
        ends: dict[str, float] = {}
        for share, width in zip(SHARES, self.width, strict=True):
            ends |= {f"{name}_{100 * share:.0f}_low": value / width, f"{name}_{100 * share:.0f}_high": value * width}
        return ends


def prediction_interval(
    traits: Traits,
    quantity: Quantity = "time",
    residuals: Sequence[Residual] | None = None,
    *,
    network: UnmeasuredNetwork | None = None,
    unseen: bool = False,
) -> PredictionInterval:
    """The interval of a prediction.

    Parameters
    ----------
    traits : Traits
    quantity : {"time", "memory"}
        A rate has the interval of its time.
    residuals : sequence of Residual, optional
        Other ones than the shipped.
    network : UnmeasuredNetwork, optional
        What the step owes to a network that was not measured; memory owes it nothing.
    unseen : bool
        As if nobody had seen this framework.
    """
    pool = [one for one in residuals or shipped() if quantity in one.own]
    known = {one.traits.framework for one in pool}, {one.traits.chip for one in pool}
    carried = unseen or traits.framework not in known[0] or traits.chip not in known[1]
    errors = [abs((one.unseen if carried else one.own)[quantity]) for one in pool]
    counts = Counter(one.source for one in pool)
    weights = [_likeness(one.traits, traits) / counts[one.source] for one in pool]
    more = [0.0 if network is None or quantity == "memory" else network.error(share) for share in SHARES]
    halves = (weighted_quantile(errors, weights, share) for share in SHARES)
    widths = (math.exp(math.hypot(half, by)) for half, by in zip(halves, more, strict=True))
    return PredictionInterval(tuple(widths), carried)


def _likeness(one: Traits, other: Traits) -> float:
    unlike = (
        one.framework != other.framework,
        one.chip != other.chip,
        one.eight_bit != other.eight_bit,
        one.cut != other.cut,
        one.nodes != other.nodes,
    )
    return _UNLIKE ** sum(unlike)


@cache
def shipped() -> tuple[Residual, ...]:
    """Those of the catalog."""
    return tuple(map(_residual, read_table(TABLE.name)))


def _residual(row: dict[str, str]) -> Residual:
    traits = Traits(row["framework"], row["chip"], row["eight_bit"] == "1", row["cut"] == "1", row["nodes"] == "1")
    columns = {"own": ("time", "memory"), "unseen": ("unseen_time", "unseen_memory")}
    found = {
        kind: {name.removeprefix("unseen_"): float(row[name]) for name in names if row[name]}
        for kind, names in columns.items()
    }
    return Residual(row["source"], traits, found["own"], found["unseen"])
