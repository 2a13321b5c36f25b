"""A Path: which links one flow uses, and how much of each it takes. A record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    """Links with what a flow takes of them.

    Attributes
    ----------
    links : tuple of int
        Numbers of the fabric's links.
    weights : tuple of float
        Link capacity that a flow at rate 1 takes: 1, or 3 for HBM that reduces.
    latency : float
        [s]
    rate : float
        The most it can get when alone, its rate cap included [B/s].
    capped : bool
        Whether something else than these links sets that rate: its cap, or a link of its own that is left out.
    """

    links: tuple[int, ...]
    weights: tuple[float, ...]
    latency: float
    rate: float
    capped: bool = False
