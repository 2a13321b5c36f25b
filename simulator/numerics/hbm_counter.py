"""How many bytes a computation reads from HBM and writes to it: a counter.

Rule: whoever reads an array from HBM, or writes one, says so here; what stays on the chip is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HbmCounter:
    """Bytes so far.

    Attributes
    ----------
    read, written : int
        [B]
    """

    read: int = 0
    written: int = 0

    @property
    def total(self) -> int:
        """Both ways [B]."""
        return self.read + self.written
