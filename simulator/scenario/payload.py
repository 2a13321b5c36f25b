"""Does a collective carry real arrays? `payload: auto` decides by size."""

from __future__ import annotations

from typing import Final

from simulator.scenario.records import Payload

# Under payload: auto, real arrays move up to this total size over every rank [B].
PAYLOAD_LIMIT: Final = 256 * 2**20


def carries_payload(payload: Payload, nbytes: int) -> bool:
    """Return True if a collective moves real arrays: as requested, or, under "auto", if the arrays are small.

    Parameters
    ----------
    payload : bool or "auto"
        Value of the key.
    nbytes : int
        Size of the arrays, summed over the ranks [B].

    Examples
    --------
    >>> carries_payload("auto", 2**20), carries_payload("auto", 2**40), carries_payload(True, 2**40)
    (True, False, True)
    """
    return nbytes <= PAYLOAD_LIMIT if payload == "auto" else bool(payload)
