"""How large are the errors of the rules of thumb that planners use without a simulator?

Both rules assume a constant share of the peak (model FLOPs utilization, MFU). The first is common advice: 0.40 of an
H100's or B200's bfloat16 peak, 0.45 of an A100's. The second has seen the answers: the median MFU over the other
measured rows with equal chip and precision.

Example: a run needs 0.5 s at the peak and was measured at 1.0 s, so its MFU is 0.5. Under 0.40 the rule predicts
1.25 s; the error is +25 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.rows import MeasuredRow, cluster_of
from simulator.model.flops import model_flops_per_token

# Common advice for each architecture, in bfloat16 or float16.
_SAID: Final = {"a100": 0.45}
_ELSE: Final = 0.40


def utilization(row: MeasuredRow) -> float:
    """Return the measured run's MFU: model FLOPs over the bfloat16 peak."""
    return _flops(row) / row.step_time


def said(row: MeasuredRow) -> float:
    """Return the relative error of step time for the rule of a commonly advised MFU (0.40 or 0.45): predicted /
    measured - 1.
    """
    return utilization(row) / _SAID.get(row.chip, _ELSE) - 1.0


def by_median(outcomes: Sequence[PlayedRow]) -> tuple[float, ...]:
    """Return the relative step-time errors for the rule that predicts with the median MFU of a chip's other rows."""
    shares = [utilization(outcome.row) for outcome in outcomes]
    kinds = [(outcome.row.chip, outcome.row.eight_bit) for outcome in outcomes]
    found = []
    for place, share in enumerate(shares):
        others = [other for n, other in enumerate(shares) if n != place and kinds[n] == kinds[place]]
        # A chip with a single row has no median; the first rule stands in.
        found.append(share / median(others) - 1.0 if others else said(outcomes[place].row))
    return tuple(found)


def _flops(row: MeasuredRow) -> float:
    """Return the time of a measured run's step at the GPUs' bfloat16 peak [s]: model FLOP / peak of all GPUs."""
    tokens = row.seq_len * row.micro_batch_size * row.accumulation * row.replicas
    gpu = cluster_of(row.gpu, 1).gpus[0]
    return model_flops_per_token(row.transformer, row.seq_len) * tokens / (row.gpus * gpu.peak_flops["bfloat16"])
