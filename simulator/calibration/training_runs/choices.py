"""Would a plan have chosen well: is the run that is predicted to be the fastest of its kind among the fastest measured?

Rule: runs of a kind learn from as many tokens with the same model on as many of the same GPUs, so that they differ in
layout, sharding and batching alone. Counts and sorts; plays nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.rows import MeasuredRow

# A choice is good within this share of the fastest; ranks say something from so many runs on.
GOOD: Final = 0.1
_RANKED_FROM: Final = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """A group of runs.

    Attributes
    ----------
    name : str
    runs : int
    behind : float
        How much more time the run that is predicted to be the fastest took than the fastest measured, as a share.
    agreement : float or None
        Spearman's rank correlation of predicted and measured speeds; None for two runs.
    """

    name: str
    runs: int
    behind: float
    agreement: float | None


def choices(outcomes: Sequence[PlayedRow]) -> tuple[Choice, ...]:
    """Groups of at least two runs, the largest first."""
    groups: dict[Hashable, list[PlayedRow]] = {}
    for outcome in outcomes:
        groups.setdefault(_kind(outcome.row), []).append(outcome)
    found = [_choice(own) for own in groups.values() if len(own) > 1]
    return tuple(sorted(found, key=lambda one: (-one.runs, one.name)))


def said(found: Sequence[Choice]) -> str:
    """In words: '9 of 10 groups, the preferred run within 10 % of the fastest; ranks agree by 0.905 in the median'."""
    good = sum(one.behind <= GOOD for one in found)
    ranks = [one.agreement for one in found if one.agreement is not None]
    agree = f"; ranks agree by {median(ranks):.3f} in the median" if ranks else ""
    return f"{good} of {len(found)} groups, the preferred run within {GOOD:.0%} of the fastest{agree}"


def _kind(row: MeasuredRow) -> Hashable:
    replicas = row.gpus // row.parallelism.size
    sequences = replicas * row.micro_batch_size * row.accumulation
    return row.table, row.model, row.shape, row.gpu, row.topology, row.gpus, row.seq_len, sequences, row.matmul


def _choice(outcomes: Sequence[PlayedRow]) -> Choice:
    row = outcomes[0].row
    predicted = np.array([outcome.tokens_per_s for outcome in outcomes])
    measured = np.array([outcome.row.tokens_per_s for outcome in outcomes])
    agreement = None
    if len(outcomes) >= _RANKED_FROM:
        agreement = float(np.corrcoef(_ranks(predicted), _ranks(measured))[0, 1])
    behind = float(measured.max() / measured[int(predicted.argmax())] - 1)
    return Choice(f"{row.model} on {row.gpus} {row.gpu}", len(outcomes), behind, agreement)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values by their mean."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count) - 1
    return np.asarray((last - (count - 1) / 2)[place])
