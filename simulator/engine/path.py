"""A Path: the links taken by a flow, and the capacity taken on each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    """A flow's path: links, capacity taken on each link, latency and uncontended rate.

    Attributes
    ----------
    links : tuple of int
        Numbers of the fabric's links.
    weights : tuple of float
        Link capacity that a flow of rate 1 takes: 1, or 3 for a reduction in HBM; times the priority.
    latency : float
        Time before the first byte flows [s].
    rate : float
        Rate of a flow without contention, its rate cap included [B/s].
    capped : bool
        True if `rate` is set by a rate cap or a pruned link, and not by one of `links`.
    """

    links: tuple[int, ...]
    weights: tuple[float, ...]
    latency: float
    rate: float
    capped: bool = False
