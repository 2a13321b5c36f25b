"""What a real training measured of itself, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Learning:
    """What a real training measured of itself, one number for each step.

    Attributes
    ----------
    losses, gradient_norms, loss_scales : tuple of float
        Norms before they are clipped.
    skipped : tuple of int
        Steps that were not taken for an overflow, by one rank at least.
    ended_s : tuple of float
        When a step was over, on average over ranks [s].
    staleness : tuple of float
        Updates by others between a gradient's parameters and its own update, on average; 0 where all wait.
    seen : dict of check to step
        Checks that found something wrong, with the first step in which they did.
    stopped : str
        Why there are fewer steps than were asked for, and which rank waits for which; empty otherwise.
    losses_by_rank : tuple of tuple of float
        A row a step, a column a rank: the mean over its micro-batches; not a number for a worker that waits for nobody
        and was at none in that step.
    optimizer_steps : tuple of int
        How many the optimizer had taken when a step was over: those that were skipped do not count, and a server that
        waits for nobody takes one for each worker's gradient.
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
