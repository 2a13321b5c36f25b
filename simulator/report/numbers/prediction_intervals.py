"""How far may a prediction be from a measurement? Intervals from the errors of similar measured runs.

Rule: nothing is assumed of how errors are distributed; they are those of catalog/measured/residuals.csv, written by
`python -m tools.validation.training_page`. Each run has two: as played with all constants, and as if its
source had never been seen. The second stand for a framework or a chip of which no run was measured.

A measured value lies within the prediction divided and multiplied by e^h; 80 (95) % of the weights have errors up to h.
Experts are such a trait, and a framework of which no run with experts was measured counts as never measured. Nothing
like a list of layers was measured, and nothing like a chip without a run in the step's width of matmuls: B200's clock
under load in sixteen bits was 40 % below what other chips led to expect. Their intervals of time, for both shares, are
those of 95 % of unseen sources. Unseen sources differ most in models cut over several nodes, whose interval for 80 % is
that of 87.5 % of unseen sources.

Similar runs weigh more. Each source has the same total weight, because many runs from a laboratory are still a single
laboratory's. Example:

    run   |error|  source  traits that differ   weight before / after dividing by the source's runs
    1     0.02     A       0                    1.00  / 0.50
    2     0.10     A       1                    0.75  / 0.38
    3     0.30     B       2                    0.56  / 0.56
    Total weight 1.44: errors up to 0.10 have 61 % of it, so the 80 % interval needs h = 0.30.

Without a measured collective on a machine, a step's exposed communication may take e^n times as long: n is the size of
error that the same share of measured collectives, simulated in the same way, do not exceed (network_errors.py). With an
exposed share s, the step may take 1 + s (e^n - 1) times as long. The two errors are independent, so their logarithms
add in squares.

Kernels whose constants were not measured on the GPU count in the same way, each grade of evidence with its error.
The update of offloaded optimizer states on a host counts in the same way, with the error of the host's rate. A matmul
dtype of which no training run was measured counts like a framework of which no run was measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final, Literal

from simulator.basics.dtypes import find
from simulator.basics.measured_tables import FOLDER, read_table
from simulator.basics.quantiles import weighted_quantile
from simulator.report.numbers.network_errors import error_size

Quantity = Literal["time", "memory"]
SHARES: Final = (0.8, 0.95)
TABLE: Final = FOLDER / "residuals.csv"
# Weight factor for each trait that differs between a run and the prediction. A large factor, because few runs say
# little about each other: with 0.25, runs of omitted sources fall into 80 % intervals less often than stated.
_UNLIKE: Final = 0.75
# Reported rates of hosts' updates span a factor of ten, from 11 to 110 GB/s a node (docs/training.md): a rate is off by
# at most the root of ten from the middle of the span. The reports are too few for quantiles, so 80 and 95 % intervals
# both take the whole span.
HOST_RATE: Final = math.sqrt(10)
# Time of a launch on the host: from 13.5 to 50 us, of which frameworks' files take the middle (their `issue`).
LAUNCH_TIME: Final = 2.0
# Logarithmic errors of kernels by the grade of their constants, at 80 and 95 %, beside those of measured kernels.
# Carried over: seven chips' matmuls (catalog/measured/matmul.csv), each with the constants of its nearest GPU: 0.12 and
# 0.25 over all rows. Data sheets: measured shares of HBM's bandwidth lie between 0.75 and 0.92, 0.88 is taken. Assumed:
# published rates of attention, the largest of these, are off by at most 0.16 in the median on an H200 (kernels.csv);
# twice as much at 95 %.
_KERNEL_ERRORS: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {"other_gpu": (0.12, 0.25), "data_sheet": (0.1, 0.2), "assumed": (0.16, 0.32)}
)
# Frameworks that launch the kernels of each expert from a loop in Python: models/qwen3_moe/modeling_qwen3_moe.py of
# huggingface/transformers, before its grouped matmuls.
_LOOPS_OVER_EXPERTS: Final = ("transformers", "foak")
# Matmul dtypes with the matrix units and the rates of a measured dtype.
_SIXTEEN_BIT: Final = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Traits:
    """Traits by which training runs are judged similar."""

    # `framework`, `chip`: "nanotron"; "h100".
    framework: str
    chip: str
    # `eight_bit`, `cut`, `nodes`, `experts`: Matmuls use eight bits; the model is cut over ranks; several nodes take
    # part; the model has experts.
    eight_bit: bool
    cut: bool
    nodes: bool
    experts: bool = False


@dataclass(frozen=True, slots=True)
class UnmeasuredNetwork:
    """A step's share of communication over a network without a measured collective."""

    exposed: float  # share of the step that is exposed communication
    seconds: float  # duration of the step's collectives, weighted by duration [s]
    # Whether they have the library's model; False: the links' ratings.
    modelled: bool = False

    def error(self, share: float) -> float:
        """Return the logarithmic error of the whole step's time that the given share of cases does not exceed."""
        return _error_of_step(self.exposed, error_size(self.seconds, share, modelled=self.modelled))


@dataclass(frozen=True, slots=True)
class HostWork:
    """The share of a step in which GPUs wait for their hosts, whose time is off by up to a factor."""

    exposed: float  # share (0 to 1) of the step in which hosts work and GPUs run nothing
    factor: float  # the true time lies between 1/factor and factor times the simulated one

    def error(self, share: float) -> float:
        """Return the logarithmic error of the whole step's time if the host's is off by the factor, whatever the share
        of cases.
        """
        return _error_of_step(self.exposed, math.log(self.factor))


@dataclass(frozen=True, slots=True)
class CarriedKernels:
    """Kernels whose constants were not measured on the GPU."""

    shares: Mapping[str, float]  # shares of the step's time by grade of evidence, as in `evidence`

    def error(self, share: float) -> float:
        """Return the logarithmic error of the whole step's time that the given share of cases does not exceed.

        >>> kernels = CarriedKernels({"measured": 0.5, "other_gpu": 0.5})
        >>> round(kernels.error(0.8), 3), CarriedKernels({"measured": 1.0}).error(0.8)
        (0.062, 0.0)
        """
        place = SHARES.index(share)
        return math.hypot(
            *(_error_of_step(self.shares.get(grade, 0.0), errors[place]) for grade, errors in _KERNEL_ERRORS.items())
        )


PartError = UnmeasuredNetwork | HostWork | CarriedKernels


def unpredictable(framework: str, experts: int) -> str:
    """Return why no run of a kind resembles a step, as a clause; empty if its time can be predicted.

    >>> unpredictable("transformers", 1), unpredictable("nemo", 128)
    ('', '')
    """
    if framework in _LOOPS_OVER_EXPERTS and experts > 1:
        return (
            f"{framework} launches the kernels of each expert from a loop in Python, and the host, which is not "
            "simulated, sets the time: a measured step took 48 times as long as its kernels"
        )
    return ""


def _error_of_step(share: float, error: float) -> float:
    """Return the logarithmic error of a step's time if a share (0 to 1) of the step has the given logarithmic error.

    ln(1 + s (e^n - 1)) for share s and error n. Example: half of a step takes twice its time (n = ln 2): ln 1.5.
    """
    return math.log1p(share * math.expm1(error))


@dataclass(frozen=True, slots=True)
class Residual:
    """A measured training run, with its traits and its prediction errors ln(measured / predicted)."""

    source: str  # source of the measurement
    traits: Traits
    # `own`, `unseen`: Errors with all constants, and as if the source had never been seen; without memory if not
    # measured.
    own: dict[str, float]
    unseen: dict[str, float]
    # Error of the step time as if the source had never been seen, after calibration to three other runs of the source;
    # None for these three runs, and for sources with few runs.
    calibrated: float | None = None


@dataclass(frozen=True, slots=True)
class PredictionInterval:
    """Factors around a prediction: a share of cases has its measured value between prediction / and x the factor."""

    width: tuple[float, ...]  # e^h for each share, above 1
    carried_over: bool  # True if no run of this framework, of this chip or with this matmul dtype was measured

    def around(self, name: str, value: float) -> dict[str, float]:
        """Return the interval ends around a value: {NAME_80_low: number, NAME_80_high, NAME_95_low, NAME_95_high}."""
        ends: dict[str, float] = {}
        for share, width in zip(SHARES, self.width, strict=True):
            ends |= {f"{name}_{100 * share:.0f}_low": value / width, f"{name}_{100 * share:.0f}_high": value * width}
        return ends


def prediction_interval(
    traits: Traits,
    quantity: Quantity = "time",
    residuals: Sequence[Residual] | None = None,
    *,
    parts: Sequence[PartError] = (),
    unseen: bool = False,
    unlike: bool = False,
    calibration: Sequence[float] = (),
) -> PredictionInterval:
    """Return the prediction interval of a training run's time or memory, from the errors of similar measured runs.

    Parameters
    ----------
    traits : Traits
        Traits of the predicted run.
    quantity : {"time", "memory"}
        A rate has the interval of its time.
    residuals : sequence of Residual, optional
        Errors to use instead of the shipped ones.
    parts : sequence of UnmeasuredNetwork, HostWork or CarriedKernels
        Parts of the step with errors of their own, which do not affect memory.
    unseen : bool
        If True, treat the framework as never measured, for example because its runs with the step's matmul dtype, or
        with the step's kinds of parallelism, never were.
    unlike : bool
        If True, no measured model is of this kind: every share has the error of the largest share of unseen sources. So
        has the time on a chip of which no run with matmuls as wide was measured.
    calibration : sequence of float
        Errors of the user's own runs, to which the framework was calibrated: each run predicted from the others.
    """
    if calibration and quantity == "time":
        return _after_calibration(traits, calibration, residuals or shipped())
    # Memory was not measured in every run.
    pool = [run for run in residuals or shipped() if quantity in run.own]
    # A chip's clock under load, which affects time alone, depends on the width of its matmuls.
    width = None if quantity == "memory" else traits.eight_bit
    is_new_chip = all(run.traits.chip != traits.chip or width not in (None, run.traits.eight_bit) for run in pool)
    is_new_framework = all(run.traits.framework != traits.framework for run in pool)
    carried = unseen or unlike or is_new_chip or is_new_framework
    # An unknown framework or chip takes the larger errors from fits without the run's source.
    errors = [abs((run.unseen if carried else run.own)[quantity]) for run in pool]
    counts = Counter(run.source for run in pool)
    # Similar runs count more; each source counts once.
    weights = [_likeness(run.traits, traits) / counts[run.source] for run in pool]
    others = () if quantity == "memory" else parts
    # How far a quantile moves towards that of the largest share.
    towards = 0.5 if carried and traits.cut and traits.nodes else 0.0
    if unlike or (is_new_chip and quantity == "time"):
        towards = 1.0
    levels = [share + towards * (max(SHARES) - share) for share in SHARES]
    # Independent errors: the squares of the logarithms add.
    widths = (
        math.hypot(weighted_quantile(errors, weights, level), *(part.error(share) for part in others))
        for level, share in zip(levels, SHARES, strict=True)
    )
    return PredictionInterval(tuple(map(math.exp, widths)), carried)


def _after_calibration(
    traits: Traits, calibration: Sequence[float], residuals: Sequence[Residual]
) -> PredictionInterval:
    """Return the prediction interval of a framework calibrated to a user's own runs.

    The user's runs each weigh as much as a source. Other sources show how well three runs predict the rest.
    """
    pool = [run for run in residuals if run.calibrated is not None]
    counts = Counter(run.source for run in pool)
    errors = [*map(abs, calibration), *(abs(run.calibrated or 0.0) for run in pool)]
    weights = [*(1.0 for _ in calibration), *(_likeness(run.traits, traits) / counts[run.source] for run in pool)]
    halves = (weighted_quantile(errors, weights, share) for share in SHARES)
    return PredictionInterval(tuple(map(math.exp, halves)), carried_over=False)


def is_measured_dtype(matmul: str, chip: str) -> bool:
    """Return True if a measured training run has matmuls in a dtype with the same rates; eight bits: on this chip.

    >>> [is_measured_dtype(dtype, "h100") for dtype in ("bfloat16", "float8_e5m2", "tf32", "float32")]
    [True, True, False, False]
    >>> is_measured_dtype("float8_e4m3fn", "mi300x")
    False
    """
    # The table of errors distinguishes eight bits from sixteen; no row has a wider dtype.
    if find(matmul, stored=False).itemsize == 1:
        return any(run.traits.eight_bit and run.traits.chip == chip for run in shipped())
    return matmul in _SIXTEEN_BIT


def measured_framework(name: str, origin: str) -> str:
    """Return the name of the framework with measured runs: a framework's own name, or that of the framework `origin`
    whose constants it starts from.

    >>> measured_framework("transformers", "torchtitan"), measured_framework("my_framework", "nemo")
    ('transformers', 'nemo')
    """
    return name if any(run.traits.framework == name for run in shipped()) else origin


def has_measured_adapters(framework: str) -> bool:
    """Return True if runs of a framework with adapters on a frozen model were measured.

    >>> has_measured_adapters("transformers"), has_measured_adapters("nemo")
    (True, False)
    """
    return any(row["framework"] == framework and row["base"] for row in read_table("fine_tuning.csv"))


def unmeasured_parallelism(framework: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the kinds of model parallelism with more than one rank, among tp, pp, cp and ep, that no measured run of a
    framework has; and "experts" for a model with more than one expert without a measured run.

    >>> unmeasured_parallelism("torchtitan", {"tp": 8, "pp": 1, "cp": 2, "ep": 8})
    ('ep',)
    >>> unmeasured_parallelism("transformers", {"experts": 128})
    ('experts',)
    """
    runs = [row for row in read_table("training_cut.csv") if row["framework"] == framework and row["how"] == "timed"]
    # Measured experts are spread over ranks.
    column = {kind: "ep" if kind == "experts" else kind for kind in sizes}
    return tuple(kind for kind in sizes if sizes[kind] > 1 and not any(int(row[column[kind]]) > 1 for row in runs))


def _likeness(traits: Traits, other: Traits) -> float:
    """Return a measured run's weight: 0.75 ** (number of traits that differ between the two runs)."""
    unlike = (
        traits.framework != other.framework,
        traits.chip != other.chip,
        traits.eight_bit != other.eight_bit,
        traits.cut != other.cut,
        traits.nodes != other.nodes,
        traits.experts != other.experts,
    )
    return _UNLIKE ** sum(unlike)


@cache
def shipped() -> tuple[Residual, ...]:
    """Return the shipped catalog's measured runs, with prediction errors."""
    return tuple(map(_residual, read_table(TABLE.name)))


def _residual(row: dict[str, str]) -> Residual:
    """Return a measured run, built from a row (column name to text) of the catalog's table of prediction errors."""
    flags = (row[name] == "1" for name in ("eight_bit", "cut", "nodes", "experts"))
    traits = Traits(row["framework"], row["chip"], *flags)
    columns = {"own": ("time", "memory"), "unseen": ("unseen_time", "unseen_memory")}
    # Empty cells are quantities that were not measured.
    errors = {
        kind: {name.removeprefix("unseen_"): float(row[name]) for name in names if row[name]}
        for kind, names in columns.items()
    }
    calibrated = float(row["calibrated_time"]) if row["calibrated_time"] else None
    return Residual(row["source"], traits, errors["own"], errors["unseen"], calibrated)
