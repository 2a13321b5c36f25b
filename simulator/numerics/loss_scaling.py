"""Loss scaling: the factor on the loss that keeps small gradients above float16's smallest number, and its adaptation.

After each step the caller says whether a gradient overflowed, and `Scale.after` returns the scale for the next step.

References
----------
.. [1] Micikevicius et al., "Mixed precision training", ICLR 2018.
.. [2] PyTorch, torch.amp.GradScaler: doubles after growth_interval clean steps, halves at each overflow.
.. [3] DeepSpeed, runtime/fp16/loss_scaler.py, DynamicLossScaler: hysteresis; the budget refills when the scale grows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from simulator.basics.arrays import Array


@dataclass(frozen=True, slots=True)
class Scale:
    """A loss scale with its settings and counters; immutable, so each update returns a new scale.

    Attributes
    ----------
    growth, backoff : float
        Factors by which the scale grows and falls.
    refills : bool
        If True, a clean step restores the hysteresis at once; if False, only growth does (`consecutive_hysteresis` of
        [3]_).
    clean, left : int
        Clean steps since the last overflow or change; overflows left until the scale falls.
    """

    value: float = 65536.0  # factor on the loss
    interval: int = 2000  # clean steps (without overflow) after which the scale grows; 0 for a static scale
    growth: float = 2.0
    backoff: float = 0.5
    hysteresis: int = 1  # number of overflows at which the scale falls; earlier overflows leave the scale unchanged
    refills: bool = False
    least: float = 0.0  # smallest scale; an overflow at the smallest scale is an error
    clean: int = 0
    left: int = 1

    def after(self, *, overflow: bool) -> Scale:
        """Return the loss scale for the next step, given whether gradients overflowed in this step.

        Raises
        ------
        OverflowError
            Gradients overflow at the smallest scale, so scaling cannot make them smaller.

        Examples
        --------
        >>> grad_scaler().after(overflow=True).value
        32768.0
        """
        if overflow:
            return self._overflowed()
        left = self.hysteresis if self.refills else self.left
        clean = self.clean + 1
        if self.interval and clean >= self.interval:
            # The scale must not become infinite: from then on every gradient would overflow.
            grown = self.value * self.growth
            return replace(self, value=grown if isfinite(grown) else self.value, clean=0, left=self.hysteresis)
        return replace(self, clean=clean, left=left)

    def _overflowed(self) -> Scale:
        """Return the loss scale after an overflow: unchanged while the hysteresis lasts, then smaller."""
        if not self.interval:
            return self
        if self.left > 1:
            return replace(self, clean=0, left=self.left - 1)
        if self.value <= self.least:
            raise OverflowError(f"gradients overflow at a loss scale of {self.value:g}, the least that is allowed")
        return replace(self, value=max(self.value * self.backoff, self.least), clean=0)


def grad_scaler(value: float = 65536.0, interval: int = 2000) -> Scale:
    """Return PyTorch's dynamic loss scale [2]_: it starts at `value` and grows after `interval` steps without
    overflow.
    """
    return Scale(value, interval)


def deepspeed_scaler(value: float = 2.0**16, interval: int = 1000, hysteresis: int = 2) -> Scale:
    """Return DeepSpeed's dynamic loss scale [3]_: it starts at `value` and grows after `interval` steps without
    overflow.

    The first overflow only skips the step; later overflows also halve the scale, down to 1.
    """
    return Scale(value, interval, hysteresis=hysteresis, left=hysteresis, least=1.0)


def static_scaler(value: float) -> Scale:
    """Return a constant loss scale with this value."""
    return Scale(value, interval=0)


def unscaled(gradient: Array, scale: float, dtype: np.dtype[Any]) -> Array:
    """Return a gradient divided by the loss scale, in the master weights' dtype."""
    # Widen before dividing: small quotients, the reason for loss scaling, would become 0 in float16.
    wide: Array = gradient.astype(dtype)
    wide *= dtype.type(1.0 / scale)
    return wide
