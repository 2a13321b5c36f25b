"""Whether a collective moves real arrays (`payload: auto` decides by size)."""

from __future__ import annotations

from typing import Final

from simulator.scenario.records import Payload

# payload: auto carries real arrays while all ranks' arrays together are no larger than this [B].
PAYLOAD_LIMIT: Final = 256 * 2**20


def carries_payload(payload: Payload, nbytes: int) -> bool:
    """Whether real arrays move: as asked, or, by itself, while they are small.

    Parameters
    ----------
    payload : bool or "auto"
    nbytes : int
        Of all ranks' arrays together [B].

    Examples
    --------
    >>> carries_payload("auto", 2**20), carries_payload("auto", 2**40), carries_payload(True, 2**40)
    (True, False, True)
    """
    return nbytes <= PAYLOAD_LIMIT if payload == "auto" else bool(payload)
