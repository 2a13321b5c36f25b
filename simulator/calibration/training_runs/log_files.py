"""What did a training log measure? Step time or tokens/s, and peak memory, from the lines that frameworks print.

    torchtitan   step: 40  loss:  7.1012  memory: 47.51GiB(59.98%)  tps: 5,762  mfu: 33.74%
    Megatron-LM  iteration 40/ 100 | ... | elapsed time per iteration (ms): 5123.4 | ...
                 [Rank 0] (after 40 iterations) memory (MB) | ... | max allocated: 45678.9 | ...
    NeMo         ... | train_step_timing in s: 7.21 | ...      (also "=" instead of ":", in a progress bar)

The first half of the steps is left out as warm-up; the median of the rest counts, because single steps wait for data or
a checkpoint. torchtitan's `tps` are tokens per second and GPU; its memory is the allocator's reserved peak [GiB].
Megatron-LM's MB are 2^20 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import read_text

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER: Final = r"([0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A run's measurements in its log."""

    step_time: float | None  # median time of a step [s]; None if the log holds tokens/s
    tokens_per_s_per_gpu: float | None  # median tokens per second and GPU; None if the log holds times
    peak_gib: float | None  # largest peak memory [GiB]; None if the log holds no memory
    steps: int  # number of steps that count


@dataclass(frozen=True, slots=True)
class _Format:
    """A framework's log lines."""

    speed: re.Pattern[str]  # pattern whose group 1 is a step's speed
    # Pattern whose group 1 is a peak of memory; None if the framework prints none
    memory: re.Pattern[str] | None = None
    seconds: Callable[[float], float] = float  # returns the step time [s], or tokens/s if `is_rate`
    gib: Callable[[float], float] = float  # returns the memory [GiB]
    is_rate: bool = False  # whether the speed is in tokens per second and GPU


_FORMATS: Final = (
    _Format(
        re.compile(rf"\bstep:\s*\d+.*\btps:\s*{_NUMBER}"),
        re.compile(rf"\bmemory:\s*{_NUMBER}GiB"),
        is_rate=True,
    ),
    _Format(
        re.compile(rf"elapsed time per iteration \(ms\):\s*{_NUMBER}"),
        re.compile(rf"memory \(MB\).*\bmax allocated:\s*{_NUMBER}"),
        seconds=lambda ms: ms / 1e3,
        gib=lambda mb: mb / 2**10,
    ),
    _Format(re.compile(rf"train_step_timing in s[=:]\s*{_NUMBER}")),
)


def read_log(path: Path) -> LoggedRun:
    """Return the measurements in a log of torchtitan, Megatron-LM or NeMo.

    Raises
    ------
    ScenarioError
        The file cannot be read, or has no line with a step's time.
    """
    text = _COLOURS.sub("", read_text(path))
    for kind in _FORMATS:
        speeds = [kind.seconds(_number(match)) for match in kind.speed.findall(text)]
        # A progress bar prints the same step several times, and 0 before the first step.
        speeds = [speed for speed in speeds if speed > 0]
        if speeds:
            second_half = speeds[len(speeds) // 2 :]
            matches = [] if kind.memory is None else kind.memory.findall(text)
            peaks = [kind.gib(_number(match)) for match in matches]
            speed = median(second_half)
            return LoggedRun(
                None if kind.is_rate else speed,
                speed if kind.is_rate else None,
                max(peaks, default=None),
                len(second_half),
            )
    raise ScenarioError(
        f"{path}: has no line with a step's time; known are torchtitan's `tps:`, Megatron-LM's `elapsed time per "
        "iteration (ms):` and NeMo's `train_step_timing in s:`; or write step_time_s into the table"
    )


def _number(text: str) -> float:
    return float(text.replace(",", ""))
