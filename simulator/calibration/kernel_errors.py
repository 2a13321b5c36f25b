"""How far are simulated kernels from measured kernels, on each GPU and in each group?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from simulator.calibration.kernel_rows import columns
from simulator.calibration.measured_kernels import MeasuredKernel, gpu_named
from simulator.calibration.table import Table

# Quantile of absolute errors in a summary.
_MOST: Final = 0.9


@dataclass(frozen=True, slots=True)
class KernelPrediction:
    """A measured kernel beside its simulated time [s]."""

    row: MeasuredKernel
    simulated: float

    @property
    def error(self) -> float:
        """Relative error: simulated / measured - 1."""
        return self.simulated / self.row.seconds - 1.0


@dataclass(frozen=True, slots=True)
class KernelErrors:
    """Summary of the relative errors of a group of measured kernels, simulated / measured - 1."""

    gpu: str
    group: str
    rows: int
    median: float  # of absolute errors
    most: float  # 90 % quantile of absolute errors
    bias: float  # median with signs


def predicted(rows: Iterable[MeasuredKernel], advance: Callable[[], None]) -> tuple[KernelPrediction, ...]:
    """Return measured kernels beside their simulated times; `advance` is called after each of them."""
    predictions = []
    for row in rows:
        predictions.append(KernelPrediction(row, row.simulated(gpu_named(row.gpu))))
        advance()
    return tuple(predictions)


def summaries(predictions: Sequence[KernelPrediction]) -> tuple[KernelErrors, ...]:
    """Return a summary for each GPU and group, of a GPU side by side, in the order of the rows."""
    groups: dict[tuple[str, str], list[float]] = {}
    for prediction in predictions:
        groups.setdefault((prediction.row.gpu, prediction.row.label), []).append(prediction.error)
    gpus = list(dict.fromkeys(gpu for gpu, _ in groups))
    ordered = sorted(groups.items(), key=lambda item: gpus.index(item[0][0]))
    return tuple(_summary(gpu, group, errors) for (gpu, group), errors in ordered)


def _summary(gpu: str, group: str, errors: Sequence[float]) -> KernelErrors:
    return KernelErrors(gpu, group, len(errors), *error_figures(errors))


def error_figures(errors: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the 90 % quantile of the sizes of relative errors, and their median with signs."""
    sizes = sorted(map(abs, errors))
    return median(sizes), sizes[min(len(sizes) - 1, int(_MOST * len(sizes)))], median(errors)


def error_table(family: str, errors: Sequence[KernelErrors]) -> Table:
    """Return the table of the errors, with a line for each GPU and group."""
    head = ("GPU", "group", "rows", "median", "90 % below", "bias")
    lines = tuple(
        (each.gpu, each.group, f"{each.rows:,}", f"{each.median:.1%}", f"{each.most:.1%}", f"{each.bias:+.1%}")
        for each in errors
    )
    return Table(f"error of measured kernels, {family} (simulated / measured - 1)", head, lines)


def prediction_rows(predictions: Sequence[KernelPrediction]) -> list[dict[str, Any]]:
    """Return a line for each kernel, by column: the columns of its table, group, both times [us] and error.

    Columns without a value in any line are omitted.
    """
    lines = [
        {name: cells[name] for name in columns(type(each.row))}
        | {
            "group": each.row.label,
            "measured_us": each.row.seconds * 1e6,
            "simulated_us": each.simulated * 1e6,
            "error": each.error,
        }
        for each in predictions
        for cells in [each.row.model_dump(by_alias=True)]
    ]
    used = [name for name in lines[0] if any(line[name] not in (None, "") for line in lines)]
    return [{name: line[name] for name in used} for line in lines]
