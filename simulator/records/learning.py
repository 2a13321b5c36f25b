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
    seen : dict of check to step
        Checks that found an error, with the first step in which they did.
    """

    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    loss_scales: tuple[float, ...]
    skipped: tuple[int, ...]  # steps skipped because at least one rank overflowed
    ended_s: tuple[float, ...] = ()  # end of each step, averaged over ranks [s]
    # Updates by other workers between reading parameters and applying the gradient, on average; 0 in synchronous
    # training
    staleness: tuple[float, ...] = ()
    seen: dict[str, int] = field(default_factory=dict)
    stopped: str = ""  # why there are fewer steps than requested, and which rank waits for which; otherwise empty
    # A row per step, a column per rank: mean loss over the rank's micro-batches; NaN for an asynchronous worker that
    # ran none in the step
    losses_by_rank: tuple[tuple[float, ...], ...] = ()
    # Optimizer steps taken until the end of each step. Skipped steps do not count; an asynchronous server takes a step
    # for each worker's gradient.
    optimizer_steps: tuple[int, ...] = ()
    repeated_steps: int = 0  # steps that were taken again after a rank had stopped, from the last checkpoint on
