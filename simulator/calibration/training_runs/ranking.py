"""Would a plan have chosen well? Is the run predicted to be fastest in its group among the fastest measured runs?

Runs in a group have equal model, tokens per step, and number and kind of GPUs; they differ only in layout, sharding and
batching. The module counts and sorts, and simulates nothing.

Example: three runs, measured 10, 9 and 8 s per step, predicted 11, 8 and 9 s. The prediction prefers the second run,
which takes 9 / 8 - 1 = 12.5 % longer than the fastest.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.rows import MeasuredRow

# A choice within this share of the fastest is good. Rank correlation is computed from this many runs on.
GOOD: Final = 0.1
_RANKED_FROM: Final = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """A group with comparable measured runs, and the predicted choice's quality."""

    name: str  # model and GPUs
    runs: int  # number of runs
    behind: float  # additional time of the run predicted to be fastest, relative to the fastest measured run
    agreement: float | None  # spearman's rank correlation between predicted and measured speeds; None for two runs


def choices(outcomes: Sequence[PlayedRow]) -> tuple[Choice, ...]:
    """Return the groups of comparable runs (equal model, tokens per step and GPUs) with at least two runs, largest
    group first.
    """
    groups: dict[Hashable, list[PlayedRow]] = {}
    for outcome in outcomes:
        groups.setdefault(_kind(outcome.row), []).append(outcome)
    rankings = [_choice(runs) for runs in groups.values() if len(runs) > 1]
    return tuple(sorted(rankings, key=lambda ranking: (-ranking.runs, ranking.name)))


def said(groups: Sequence[Choice]) -> str:
    """Return a sentence on the predicted choices: '9 of 10 groups, the predicted fastest run within 10% of the measured
    fastest; ...'.

    >>> said([Choice("8 GPUs", 3, 0.0, None), Choice("16 GPUs", 3, 0.2, None)])
    '1 of 2 groups, the predicted fastest run within 10% of the measured fastest'
    """
    good = sum(group.behind <= GOOD for group in groups)
    ranks = [group.agreement for group in groups if group.agreement is not None]
    agree = f"; median rank correlation {median(ranks):.3f}" if ranks else ""
    return f"{good} of {len(groups)} groups, the predicted fastest run within {GOOD:.0%} of the measured fastest{agree}"


def _kind(row: MeasuredRow) -> Hashable:
    # Equal replicas times batch sizes mean equal tokens per step.
    replicas = row.gpus // row.parallelism.size
    sequences = replicas * row.micro_batch_size * row.accumulation
    return (
        row.table,
        row.model,
        row.shape,
        row.gpu,
        row.topology,
        row.gpus,
        row.seq_len,
        sequences,
        row.precision.matmul,
    )


def _choice(outcomes: Sequence[PlayedRow]) -> Choice:
    row = outcomes[0].row
    predicted = np.array([outcome.tokens_per_s for outcome in outcomes])
    measured = np.array([outcome.row.tokens_per_s for outcome in outcomes])
    agreement = None
    if len(outcomes) >= _RANKED_FROM:
        agreement = float(np.corrcoef(_ranks(predicted), _ranks(measured))[0, 1])
    # Speeds, therefore the fastest measured run has the maximum.
    behind = float(measured.max() / measured[int(predicted.argmax())] - 1)
    return Choice(f"{row.model} on {row.gpus} {row.gpu}", len(outcomes), behind, agreement)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value in ascending order, from 0; equal values get their mean rank.

    >>> _ranks(np.array([5.0, 7.0, 5.0])).tolist()
    [0.5, 2.0, 0.5]
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count) - 1
    return np.asarray((last - (count - 1) / 2)[place])
