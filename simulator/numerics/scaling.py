"""Loss scaling: the factor on the loss that keeps small gradients above float16's least number, and how it adapts.

Rule: after each step the caller says whether any gradient overflowed, and `Scale.after` gives the factor for the next.

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
    """A loss scale, its settings and its counters; immutable, so each update gives a new one.

    Attributes
    ----------
    value : float
    interval : int
        Number of clean steps (without overflow) after which the scale grows; 0 for a static scale.
    growth, backoff : float
        Factors by which the scale grows and falls.
    hysteresis : int
        Number of overflows at which the scale falls; the ones before leave it as it is.
    refills : bool
        Whether a clean step restores the hysteresis at once, and not only growth (`consecutive_hysteresis` of [3]_).
    least : float
        Smallest scale; an overflow at it is an error.
    clean, left : int
        Clean steps since the last overflow or change; overflows left until the scale falls.
    """

    value: float = 65536.0
    interval: int = 2000
    growth: float = 2.0
    backoff: float = 0.5
    hysteresis: int = 1
    refills: bool = False
    least: float = 0.0
    clean: int = 0
    left: int = 1

    def after(self, *, overflow: bool) -> Scale:
        """The scale for the next step.

        Raises
        ------
        OverflowError
            Gradients overflow at the least scale, so scaling cannot make them smaller.

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
            grown = self.value * self.growth
            # The scale must not become infinite: every gradient would overflow from then on.
            return replace(self, value=grown if isfinite(grown) else self.value, clean=0, left=self.hysteresis)
        return replace(self, clean=clean, left=left)

    def _overflowed(self) -> Scale:
        if not self.interval:
            return self
        if self.left > 1:
            return replace(self, clean=0, left=self.left - 1)
        if self.value <= self.least:
            raise OverflowError(f"gradients overflow at a loss scale of {self.value:g}, the least that is allowed")
        return replace(self, value=max(self.value * self.backoff, self.least), clean=0)


def grad_scaler(value: float = 65536.0, interval: int = 2000) -> Scale:
    """PyTorch's rule [2]_."""
    return Scale(value, interval)


def deepspeed_scaler(value: float = 2.0**16, interval: int = 1000, hysteresis: int = 2) -> Scale:
    """DeepSpeed's rule [3]_: the first overflow only skips the step, later ones also halve the scale; never below 1."""
    return Scale(value, interval, hysteresis=hysteresis, left=hysteresis, least=1.0)


def static_scaler(value: float) -> Scale:
    """A scale that never changes."""
    return Scale(value, interval=0)


def unscaled(gradient: Array, scale: float, dtype: np.dtype[Any]) -> Array:
    """Convert a gradient of the scaled loss to one of the loss, in the master copy's dtype."""
    wide: Array = gradient.astype(dtype)
    wide *= dtype.type(1.0 / scale)
    return wide
