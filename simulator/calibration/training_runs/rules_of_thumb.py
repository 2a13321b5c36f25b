"""How far off are the rules of thumb that a planner would use instead of a simulator?

Rule: both take a constant share of the peak (model FLOPs utilization, MFU). The first is what people say: 0.40 of an
H100's or B200's peak in bfloat16, 0.45 of an A100's. The second has seen the answers: the median MFU of all measured
rows of the same chip and precision, its own left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.rows import MeasuredRow, cluster_of
from simulator.model.flops import model_flops_per_token

# What is said of each architecture in bfloat16 or float16.
_SAID: Final = {"a100": 0.45}
_ELSE: Final = 0.40


def utilization(row: MeasuredRow) -> float:
    """The measured run's model FLOPs over the peak in bfloat16."""
    return _flops(row) / row.step_time


def said(row: MeasuredRow) -> float:
    """Error of a step's time by what people say: predicted / measured - 1."""
    return utilization(row) / _SAID.get(row.gpu.split("_")[0], _ELSE) - 1.0


def by_median(outcomes: Sequence[PlayedRow]) -> tuple[float, ...]:
    """Errors of steps' times by the median of all other rows of the same chip and precision."""
    shares = [utilization(outcome.row) for outcome in outcomes]
    kinds = [(outcome.row.gpu.split("_")[0], outcome.row.eight_bit) for outcome in outcomes]
    found = []
    for place, share in enumerate(shares):
        others = [other for n, other in enumerate(shares) if n != place and kinds[n] == kinds[place]]
        found.append(share / median(others) - 1.0 if others else said(outcomes[place].row))
    return tuple(found)


def _flops(row: MeasuredRow) -> float:
    """Seconds that the step would take at the peak, times the peak's share: model FLOPs over all GPUs' peak [s]."""
    tokens = row.seq_len * row.micro_batch_size * row.accumulation * row.replicas
    gpu = cluster_of(row.gpu, 1).gpus[0]
    return model_flops_per_token(row.transformer, row.seq_len) * tokens / (row.gpus * gpu.peak_flops["bfloat16"])
