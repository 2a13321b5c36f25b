"""In which order does a participant add arriving values to a chunk? Floating-point sums depend on it.

The schedule declares the order. Verification, replay and payload obey it; no time depends on it.
"""

from __future__ import annotations

from enum import Enum


class ReductionOrder(Enum):
    """Order in which a participant in a collective adds arriving values to a chunk."""

    IN_SEQUENCE = "in_sequence"
    """Each transfer that is added waits for the one before, so the schedule alone fixes the order (ring, tree)."""

    ON_ARRIVAL = "on_arrival"
    """Whatever arrives is added at once; ties go by the transfer's number, which follows the sending rank (servers)."""

    BUFFERED = "buffered"
    """Kept apart until the last is in, then added in rank order, the own part in its place (direct, naive)."""
