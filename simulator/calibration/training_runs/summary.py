"""Which errors do simulated rows have? By group, the worst rows with a likely reason, and errors of memory.

The module counts and sorts; it simulates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import fmean, median
from typing import Any, Final

from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.rows import MeasuredRow

# Above this share of memory, a caching allocator starts to return blocks and request them again.
_NEARLY_FULL: Final = 0.8
_LONG: Final = 16384
# Relative error above which a run must have stalled: more than twice the simulated time.
_STOOD_STILL: Final = 1.0
# Largest factor between two runs that differ only in the sharding of optimizer states.
_TWIN: Final = 1.5
# Fields of a run that are not settings, each with a neutral value.
_OF_A_RUN: Final[Mapping[str, Any]] = {"line": 0, "tokens_per_s": 0.0, "peak": None, "source": "", "assumed": ()}


@dataclass(frozen=True, slots=True)
class Errors:
    """Summary of a row group's relative errors, simulated / measured - 1.

    Attributes
    ----------
    median, most : float
        Median, and 90 % quantile, of the errors' absolute values.
    """

    name: str  # name of the group
    count: int  # number of rows
    median: float
    most: float
    bias: float  # mean with signs
    middle: float  # median with signs


def errors(name: str, relative: Iterable[float]) -> Errors:
    """Return a summary of relative errors under the given name.

    >>> errors("three", [0.1, -0.2, 0.3]).median
    0.2
    """
    signed = [float(error) for error in relative]
    if not signed:
        raise ValueError(f"{name}: no error to summarise")
    sizes = sorted(map(abs, signed))
    # 90 % quantile of the absolute errors.
    last = min(len(sizes) - 1, int(0.9 * len(sizes)))
    return Errors(name, len(sizes), median(sizes), sizes[last], fmean(signed), median(signed))


def by_group(outcomes: Sequence[PlayedRow]) -> tuple[Errors, ...]:
    """Return an error summary for tokens/s for each group of rows; first for the fitted rows together, if present."""
    fitted = [o.error for o in outcomes if is_fitted(o.row)]
    first = (errors("foundry, bf16, all", fitted),) if fitted else ()
    names = dict.fromkeys(o.row.group for o in outcomes)
    return (*first, *(errors(name, [o.error for o in outcomes if o.row.group == name]) for name in names))


def is_fitted(row: MeasuredRow) -> bool:
    """Return True if the framework's constants were fitted to this row: llm-foundry's rows in bfloat16."""
    return row.table == "foundry" and not row.eight_bit


def of_memory(outcomes: Sequence[PlayedRow], table: str) -> Errors | None:
    """Return an error summary for peak memory for the rows of a source; None without measured memory."""
    relative = [o.memory_error for o in outcomes if o.row.table == table and o.memory_error is not None]
    return errors(table, relative) if relative else None


@dataclass(frozen=True, slots=True)
class SourceErrors:
    """Error summaries for step time and memory over a source's rows, or another group's."""

    time: Errors  # errors of step times
    memory: Errors | None  # errors of peak memory; None if not measured
    refused: int  # number of rows that ran in reality, and do not fit in the simulation


def by(outcomes: Sequence[PlayedRow], key: Callable[[PlayedRow], str]) -> tuple[SourceErrors, ...]:
    """Return error summaries for step time and memory for each value of `key`, a function of a row, by first
    appearance.
    """
    parts: dict[str, list[PlayedRow]] = {}
    for outcome in outcomes:
        parts.setdefault(key(outcome), []).append(outcome)
    return tuple(_of_part(name, part) for name, part in parts.items())


def by_source(outcomes: Sequence[PlayedRow]) -> tuple[SourceErrors, ...]:
    """Return error summaries for step time and memory for each source of measured rows."""
    return by(outcomes, lambda outcome: outcome.row.table)


def _of_part(name: str, part: Sequence[PlayedRow]) -> SourceErrors:
    memory = [outcome.memory_error for outcome in part if outcome.memory_error is not None]
    return SourceErrors(
        errors(name, [outcome.time_error for outcome in part]),
        errors(name, memory) if memory else None,
        sum(not outcome.fits for outcome in part),
    )


def apart(rows: Sequence[MeasuredRow]) -> frozenset[int]:
    """Return the indices of disturbed measurements: rows with a twin that took more than 1.5 times as long, or the
    reverse.

    Twins differ only in sharding. The place of optimizer states cannot explain such a difference, therefore one of both
    runs was disturbed.
    """
    twins: dict[object, list[int]] = {}
    for place, row in enumerate(rows):
        # A run with settings of a scenario is compared with no other.
        if row.scenario is not None:
            continue
        # Rows are equal except for sharding and the measurement itself.
        twins.setdefault(replace(row, sharding="", **_OF_A_RUN), []).append(place)
    indices: set[int] = set()
    for places in twins.values():
        times = [rows[place].step_time for place in places]
        if max(times) > _TWIN * min(times):
            indices |= set(places)
    return frozenset(indices)


def worst(outcomes: Sequence[PlayedRow], count: int = 10) -> tuple[tuple[PlayedRow, str], ...]:
    """Return the `count` rows with the largest tokens/s errors, each with a likely reason."""
    ordered = sorted(outcomes, key=lambda o: -abs(o.error))[:count]
    rows = [o.row for o in outcomes]
    return tuple((outcome, reason(outcome, rows)) for outcome in ordered)


def reason(outcome: PlayedRow, rows: Sequence[MeasuredRow]) -> str:
    """Return a phrase with the likely reason for a row's error: an effect outside the model, or a fact missing in the
    source.
    """
    row = outcome.row
    # A longer sequence means more work per token; if it ran faster, the shorter run was disturbed.
    longer = [r for r in rows if _like(r, row) and r.seq_len > row.seq_len and r.tokens_per_s > row.tokens_per_s]
    if outcome.error > 0 and longer:
        seq = min(r.seq_len for r in longer)
        return f"measured slower than sequence {seq}, which has more work per token; the source gives no reason"
    if outcome.error > 0 and outcome.peak > _NEARLY_FULL * outcome.capacity:
        return "memory is nearly full: perhaps the allocator releases and requests blocks again, which is not simulated"
    if outcome.error > _STOOD_STILL:
        return "took several times as long as similar runs: an unknown interruption; the source calls its cluster noisy"
    if row.eight_bit:
        return "every cast to 8 bits is simulated as a separate pass; the library fuses some casts with norms"
    if row.table == "torchtitan" and row.gpus > 8:
        return "the network of the measured machine is not stated"
    if row.seq_len >= _LONG:
        return "attention of long sequences; the version of the kernels is not stated"
    if row.gpus > 8:
        return "communication between nodes; the measured network differs from the simulated network"
    return "kernels: the constants fit shapes of this size less well"


def _like(other: MeasuredRow, row: MeasuredRow) -> bool:
    setting = attrgetter("table", "model", "gpu", "gpus", "precision.matmul", "checkpointing", "compiled")
    return bool(setting(other) == setting(row))
