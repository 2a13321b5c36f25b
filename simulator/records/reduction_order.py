"""In which order a participant adds what arrives for one chunk: floating-point sums depend on it.

Rule: a declaration of the schedule. The proof, the replay and whoever carries arrays hold to it; no time depends on it.
"""

from __future__ import annotations

from enum import Enum


class ReductionOrder(Enum):
    """How the sums into one chunk of a participant are ordered."""

    IN_SEQUENCE = "in_sequence"
    """Each transfer that is added waits for the one before, so the schedule alone fixes the order (ring, tree)."""

    ON_ARRIVAL = "on_arrival"
    """Whatever arrives is added at once; ties go by the transfer's number, which follows the sending rank (servers)."""

    BUFFERED = "buffered"
    """Kept apart until the last is in, then added in rank order, the own part in its place (direct, naive)."""
