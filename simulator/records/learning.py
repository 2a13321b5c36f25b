"""Measurements from a real training, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Learning:
    """Measurements from a real training, a number for each step.

    Attributes
    ----------
    losses, gradient_norms, loss_scales : tuple of float
        Loss, gradient norm before clipping, and loss scale.
    skipped : tuple of int
        Steps skipped because at least one rank overflowed.
    ended_s : tuple of float
        End of each step, averaged over ranks [s].
    staleness : tuple of float
        Updates by other workers between reading parameters and applying the gradient, on average; 0 in synchronous
        training.
    seen : dict of check to step
        Checks that found an error, with the first step in which they did.
    stopped : str
        Why there are fewer steps than requested, and which rank waits for which; otherwise empty.
    losses_by_rank : tuple of tuple of float
        A row per step, a column per rank: mean loss over the rank's micro-batches; NaN for an asynchronous worker that
        ran none in the step.
    optimizer_steps : tuple of int
        Optimizer steps taken until the end of each step. Skipped steps do not count; an asynchronous server takes a
        step for each worker's gradient.
    repeated_steps : int
        Steps that were taken again after a rank had stopped, from the last checkpoint on.
    """

    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    loss_scales: tuple[float, ...]
    skipped: tuple[int, ...]
    ended_s: tuple[float, ...] = ()
    staleness: tuple[float, ...] = ()
    seen: dict[str, int] = field(default_factory=dict)
    stopped: str = ""
    losses_by_rank: tuple[tuple[float, ...], ...] = ()
    optimizer_steps: tuple[int, ...] = ()
    repeated_steps: int = 0
